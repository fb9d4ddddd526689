"""What timm's users do with a model, beside timm itself; and the spellings of others."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

import vitkit
from refusals import refused
from tiny import build
from vitkit.model import VisionTransformer, config_for
from vitkit.weights import create_model

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 3, "num_heads": 4, "num_classes": 5}


def pair() -> tuple[Any, Any, Tensor]:
    """One model of ours and timm's with the same weights, and images."""
    torch.manual_seed(0)
    theirs = timm.create_model("vit_tiny_patch16_224", **SIZES).eval()
    options = {name: value for name, value in SIZES.items() if name != "num_classes"}
    ours = create_model("vit_tiny_patch16_224", 5, **options).eval()
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs, torch.randn(2, 3, 16, 16)


def test_what_is_not_decayed_is_what_timm_does_not_decay() -> None:
    ours, theirs, _ = pair()
    there = {name for name, _ in theirs.named_parameters()}
    assert ours.no_weight_decay() == theirs.no_weight_decay() & there
    assert ours.num_features == theirs.num_features and ours.num_classes == theirs.num_classes


@torch.no_grad()
def test_heads_are_reset_and_swapped_as_in_timm() -> None:
    model = build(representation_size=9)
    before = model.state_dict()
    model.reset_classifier(7)
    assert model(torch.randn(2, 3, *model.config.image_size)).eq(0).all() and model.num_classes == 7
    assert all(torch.equal(before[name], own) for name, own in model.state_dict().items() if "head" not in name)
    assert set(VisionTransformer(model.config).state_dict()) == set(model.state_dict())
    model.reset_classifier(0)
    assert model.head is None
    distilled = build(distill_token=True, distill_head=True)
    distilled.reset_classifier(3)
    assert (distilled.head.out_features, distilled.head_dist.out_features) == (3, 3)
    model.head = nn.Linear(model.num_features, 11)
    assert model(torch.zeros(1, 3, *model.config.image_size)).shape == (1, 11)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"img_size": 32, "in_chans": 1, "depth": 2}, {"image_size": 32, "in_channels": 1, "layers": 2}),
        ({"embed_dim": 48, "num_heads": 4}, {"hidden_size": 48, "heads": 4}),
        ({"in_c": 1, "drop_path_ratio": 0.2}, {"in_channels": 1, "drop_path": 0.2}),
        ({"attn_drop_ratio": 0.1}, {"attention_dropout": 0.1}),
        ({"drop_ratio": 0.1}, {"dropout": 0.1, "position_dropout": 0.1}),
        ({"drop_rate": 0.0, "proj_drop_rate": 0.1, "attn_drop_rate": 0.2}, {"dropout": 0.1, "attention_dropout": 0.2}),
        ({"global_pool": "avg", "init_values": 1e-5}, {"pool": "gap", "layer_scale": 1e-5}),
        ({"reg_tokens": 4}, {"registers": 4}),
        ({"norm_layer": None, "patch_drop_rate": 0.0}, {}),
    ],
)
def test_the_spellings_of_others_are_understood(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    assert vitkit.create_model("vit_micro_patch4_16", **theirs).config == config_for("vit_micro_patch4_16", **ours)


@pytest.mark.parametrize(
    ("options", "code", "word"),
    [
        ({"drop_rate": 0.1}, "model.option-unsupported", "dropout"),
        ({"global_pool": "prr"}, "model.value-invalid", "avg"),
        ({"patch_drop_rate": 0.5}, "model.option-unsupported", "--patch-dropout"),
        ({"depth": 2, "layers": 3}, "model.option-repeated", "layers"),
    ],
)
def test_what_means_something_else_is_answered_with_the_right_word(
    options: dict[str, Any], code: str, word: str
) -> None:
    with refused(code, word):
        create_model("vit_micro_patch4_16", **options)


def _saved(folder: Path) -> vitkit.Classifier:
    model = build()
    pixels = vitkit.Preprocess(size=model.config.image_size)
    classifier = vitkit.Classifier(model, tuple(map(str, range(model.config.num_classes))), pixels)
    classifier.save(folder)
    return classifier


def test_pretrained_gives_the_published_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    classifier = _saved(tmp_path / "run")
    model = create_model(str(tmp_path / "run"), pretrained=True)
    assert all(torch.equal(model.state_dict()[name], own) for name, own in classifier.model.state_dict().items())
    new = create_model(str(tmp_path / "run"), 3, pretrained=True, drop_path_rate=0.1)
    assert new.config.num_classes == 3 and new.config.drop_path == 0.1 and new.head is not None
    assert not new.head.weight.any()
    with refused("weights.field-contradicted", "layers"):
        create_model(str(tmp_path / "run"), pretrained=True, depth=1)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_tiny_patch16_224.augreg_in21k"])
def test_no_folder_is_taken_for_published_weights(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    model = _saved(tmp_path / name).model
    monkeypatch.chdir(tmp_path)
    with refused("weights.name-ambiguous", f"./{name}"):
        create_model(name, pretrained=True)
    assert create_model(f"./{name}", pretrained=True).config == model.config
    if "." not in name:
        assert create_model(name).config.image_size == (224, 224)


PLACES: dict[str, Callable[[Any], nn.Module]] = {
    "blocks": lambda model: model.blocks,
    "blocks[-1]": lambda model: model.blocks[-1],
    "attn.qkv": lambda model: model.blocks[-1].attn.qkv,
    "mlp": lambda model: model.blocks[-1].mlp,
    "mlp.fc1": lambda model: model.blocks[-1].mlp.fc1,
    "norm": lambda model: model.norm,
}


class Spy(nn.Module):
    """A module of a script's, around one of the model."""

    def __init__(self, inner: nn.Module, seen: list[Tensor]) -> None:
        super().__init__()
        self.inner, self.seen = inner, seen

    def forward(self, *inputs: Any) -> Tensor:
        output: Tensor = self.inner(*inputs)
        self.seen.append(output.detach())
        return output


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        *(("forward", place) for place in PLACES),
        *((kind, "attn.qkv") for kind in ("forward_pre", "full_backward", "full_backward_pre")),
        *(("of all modules", "mlp.fc1"), ("module of a script's", "mlp")),
    ],
)
def test_whoever_looks_into_the_last_block_sees_what_timm_shows(kind: str, place: str) -> None:
    *models, images = pair()
    seen: list[Tensor] = []
    for model in models:
        watched, handle = PLACES[place](model), None
        if kind == "module of a script's":
            model.blocks[-1].mlp = Spy(watched, seen)
        elif kind == "of all modules":
            handle = nn.modules.module.register_module_forward_hook(
                lambda module, _, output, own=watched: seen.append(output.detach()) if module is own else None
            )
        else:
            watched_hook = getattr(watched, f"register_{kind}_hook")
            watched_hook(lambda _, *values: seen.append((values[-1][0] if "_" in kind else values[-1]).detach()))
        model(images)[:, 1].sum().backward()
        if handle is not None:
            handle.remove()
    assert len(seen) == 2 and seen[0].shape[1] == 17
    torch.testing.assert_close(*seen, rtol=1e-4, atol=1e-5)


def test_the_shortcut_is_back_when_the_hook_is_removed() -> None:
    ours, _, images = pair()
    logits = ours(images)
    handle = ours.blocks[-1].mlp.fc2.register_forward_hook(lambda *_: None)
    torch.testing.assert_close(ours(images), logits)
    assert ours.is_observed
    handle.remove()
    assert not ours.is_observed
    ours.blocks[0].register_forward_hook(lambda *_: None)  # this one sees all tokens anyway
    assert not ours.is_observed


def test_blocks_applies_all_layers() -> None:
    ours, reference, images = pair()
    tokens = ours.embed(images)
    torch.testing.assert_close(ours.blocks(tokens), reference.blocks(tokens), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.blocks[:1](tokens), reference.blocks[:1](tokens), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.norm(ours.blocks(tokens)), ours.forward_features(images))
    with refused("model.positions-missing"):
        build(position="relative", position_at="every_layer").blocks(torch.zeros(1, 17, 32))
