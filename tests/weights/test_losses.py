"""A checkpoint that has lost something, or has the tensors of another model: what loads says what it assumed."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer as TimmViT
from torch import Tensor
from torchvision.models import resnet18

import tiny
from refusals import refused
from tiny import build, randomise
from vitkit import create_model
from vitkit.model import VisionTransformer, config_for
from vitkit.training import Recipe, blueprint_of
from vitkit.weights import catalog, class_names, inspect, load, unique
from weights.spoiling import write_shapes

State = dict[str, Tensor]
TI: dict[str, Any] = {"img_size": 32, "patch_size": 16, "num_classes": 7}  # timm's ViT-Ti/16 but for its image


def ti(heads: int = 3) -> State:
    return dict(randomise(TimmViT(**TI, embed_dim=192, num_heads=heads)).state_dict())


def keep(state: State, path: Path) -> Path:
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)
    return path


def test_what_a_file_has_lost_is_assumed_aloud_but_where_it_was_said(tmp_path: Path) -> None:
    lost = {name: own for name, own in ti().items() if "blocks.11." not in name and "attn.qkv.bias" not in name}
    lost["pos_embed"] = lost["pos_embed"][:, :-1]
    told = {"layers": 11, "qkv_bias": False, "prefix_positions": False}
    whole, path = keep(ti(), tmp_path / "whole.safetensors"), keep(lost, tmp_path / "w.safetensors")
    assert not inspect(whole, heads=3).report.assumed.keys() & told.keys()
    found = inspect(path, heads=3).report
    assert found.assumed.keys() >= told.keys()
    assert all(any(line.startswith(f"{field} assumed") for line in found.caveats()) for field in told)
    assert set(inspect(path, heads=3, **told).report.assumed) == {"preprocess", "classes"}


def test_twelve_heads_are_not_read_as_three_in_silence(tmp_path: Path) -> None:
    path = keep(ti(heads=12), tmp_path / "w.safetensors")  # what TimmViT(embed_dim=192) makes
    assert "set heads=12" in load(path).report.assumed["heads"]
    assert "heads" not in inspect(path, heads=12).report.assumed
    recipe = Recipe(weights=str(path), model_fields={"heads": 12}, method="full")
    assert blueprint_of(recipe, ("a", "b")).config.heads == 12  # type: ignore[union-attr]
    sizes: dict[str, Any] = {"hidden_size": 384, "intermediate_size": 1536, "image_size": 32, "num_labels": 7}
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**sizes))
    plan = inspect(keep(dict(model.state_dict()), tmp_path / "hf.safetensors"))
    assert plan.config.heads == 6 and "heads" in plan.report.assumed  # type: ignore[union-attr]
    model.save_pretrained(tmp_path / "folder")
    plan = inspect(tmp_path / "folder")
    assert plan.config.heads == 12 and "heads" not in plan.report.assumed  # type: ignore[union-attr]


@pytest.mark.parametrize("names", [("blocks.1.attn.qkv.weight",), ("cls_token", "pos_embed"), ("values of qkv",)])
def test_weights_of_zeros_are_warned_of(tmp_path: Path, names: tuple[str, ...]) -> None:
    state = {name: tensor.clone() for name, tensor in build(image_size=(16, 16)).state_dict().items()}
    assert load(keep(state, tmp_path / "whole.safetensors"), heads=4).report.warnings == ()  # type: ignore[union-attr]
    if names == ("values of qkv",):
        names = ("blocks.2.attn.qkv.weight",)
        state[names[0]][64:] = 0
    else:
        for name in names:
            state[name].zero_()
    report = load(keep(state, tmp_path / "w.safetensors"), heads=4).report
    (warning,) = report.warnings
    assert all(name in warning for name in names) and "the checkpoint is damaged" in warning
    assert f"warning: {warning}" in report.lines() and report.to_dict()["warnings"] == (warning,)
    assert warning in report.caveats(), "which every verb tells that answers"


def test_zeros_that_are_meant_are_not_warned_of(tmp_path: Path) -> None:
    state = {
        n: torch.zeros_like(t) if n.endswith("bias") else t for n, t in build(image_size=(16, 16)).state_dict().items()
    }
    state["head.weight"] = torch.zeros_like(state["head.weight"])  # as of some files of ImageNet-21k
    report = load(keep(state, tmp_path / "w.safetensors"), heads=4).report
    told = "the head is all zeros: until it is trained, all classes are equally likely"
    assert report.warnings == () and told in report.notes and told in report.caveats()
    assert load(tmp_path / "w.safetensors", 3, heads=4).report.warnings == ()  # type: ignore[union-attr]


def test_zeros_in_a_network_of_another_library_are_warned_of(tmp_path: Path) -> None:
    state = dict(randomise(resnet18(num_classes=7)).state_dict())
    whole = load(keep(state, tmp_path / "whole.safetensors"), network="torchvision:resnet18")
    assert whole.report is not None and whole.report.warnings == ()
    state["layer2.0.conv1.weight"] = torch.zeros_like(state["layer2.0.conv1.weight"])
    report = load(keep(state, tmp_path / "w.safetensors"), network="torchvision:resnet18").report
    assert report is not None and "layer2.0.conv1.weight" in report.warnings[0]


def test_a_representation_layer_is_kept_or_dropped_as_is_asked_for(tmp_path: Path) -> None:
    path = keep(dict(build(image_size=(16, 16), representation_size=20).state_dict()), tmp_path / "w.safetensors")
    for kept in ({"has_logits": True}, {"representation_size": 20}):
        for count in (None, 3):
            found = load(path, count, heads=4, **kept)
            assert found.model.config.representation_size == 20 and not found.report.dropped
        created = create_model(str(path), 3, pretrained=True, heads=4, **kept)
        assert created.config.representation_size == 20  # type: ignore[union-attr]
    for dropped in ({"has_logits": False}, {"representation_size": None}):
        found = load(path, heads=4, **dropped)
        assert found.model.config.representation_size is None
        assert "pre_logits.fc.weight" in found.report.dropped
    for other, code in (
        ({"representation_size": 21}, "weights.field-contradicted"),
        ({"representation_size": 20, "has_logits": False}, "weights.options-contradictory"),
        ({"representation_size": None, "has_logits": True}, "weights.options-contradictory"),
    ):
        with refused(code):
            load(path, heads=4, **other)
    path = keep(dict(build(image_size=(16, 16)).state_dict()), tmp_path / "without.safetensors")
    with refused("weights.field-contradicted"):
        load(path, heads=4, representation_size=20)


def test_the_heads_of_i_jepa_s_namesake_are_assumed(tmp_path: Path) -> None:
    with torch.device("meta"):
        state = timm.create_model("vit_base_patch16_gap_224", num_classes=7).state_dict()
    file = write_shapes({name: tuple(tensor.shape) for name, tensor in state.items()}, tmp_path / "x.safetensors")
    plan = inspect(file)
    assert plan.config.heads == 12 and "has the same tensors and 16" in plan.report.assumed["heads"]
    plan = inspect(file, heads=16, gelu="erf")
    assert plan.config.heads == 16 and not {"heads", "gelu"} & set(plan.report.assumed)


def test_a_scale_that_no_file_keeps_is_assumed_of_tutorials_files_alone(tmp_path: Path) -> None:
    state = build(image_size=(16, 16), qk_scale=0.7).state_dict()
    torch.save(state, tmp_path / "x.pth")
    plan = inspect(tmp_path / "x.pth", heads=4)
    assert plan.config.qk_scale is None and set(plan.report.assumed) == {"preprocess", "classes"}
    state["pos_embedding.pos_embedding"] = state.pop("pos_embed")
    torch.save(state, tmp_path / "x.pth")
    assert inspect(tmp_path / "x.pth", heads=4).report.assumed["qk_scale"].startswith("1 / sqrt(8)")
    told = load(tmp_path / "x.pth", heads=4, qk_scale=0.7)
    assert told.report is not None and "qk_scale" not in told.report.assumed
    assert told.model.blocks[0].attn.scale == 0.7  # type: ignore[union-attr]


NAMES = ("daisy", "dandelion", "roses")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    model = tiny.randomise(VisionTransformer(config_for("vit_micro_patch8_16", 3)))
    torch.save(model.state_dict(), tmp_path / "model.pth")
    return tmp_path / "model.pth"


@pytest.mark.parametrize(
    "written", [{"2": "roses", "1": "dandelion", "0": "daisy"}, {"roses": 2, "daisy": 0, "dandelion": 1}], ids=str
)
def test_it_is_read_in_both_directions_and_names_that_are_given_come_first(
    checkpoint: Path, written: dict[str, object]
) -> None:
    (checkpoint.parent / "class_indices.json").write_text(json.dumps(written))
    classifier = load(checkpoint)
    assert classifier.classes == NAMES
    assert "classes" not in classifier.report.assumed
    assert any("class_indices.json" in note for note in classifier.report.notes)
    assert load(checkpoint, classes=("a", "b", "c")).classes == ("a", "b", "c")
    assert load(checkpoint, 5).classes == ("0", "1", "2", "3", "4"), "another head has other classes"


@pytest.mark.parametrize(
    "written",
    [
        {str(i): f"class {i}" for i in range(4)},
        {"1": "daisy", "2": "dandelion", "3": "roses"},
        {"daisy": 0, "dandelion": 0, "roses": 2},
        ["daisy", "dandelion", "roses"],
        "{",
    ],
    ids=str,
)
def test_one_that_does_not_fit_is_passed_over_and_said_to_be(checkpoint: Path, written: object) -> None:
    file = checkpoint.parent / "class_indices.json"
    file.write_text(written if isinstance(written, str) else json.dumps(written))
    classifier = load(checkpoint)
    assert classifier.classes == ("0", "1", "2")
    assert f"{file} was ignored" in classifier.report.assumed["classes"], "commands show what is assumed"


def test_the_classes_of_imagenet_21k_have_wordnets_names_in_googles_order() -> None:
    from timm.data import ImageNetInfo

    names, told = class_names(21843)
    theirs = ImageNetInfo("imagenet21k_goog")
    assert list(names) == [theirs.index_to_description(i).partition(",")[0].strip() for i in range(21843)]
    assert "ImageNet-21k's names" in told
    assert len(set(unique(names))) == 21843
    licence = Path(catalog.__file__).with_name("imagenet21k_classes.LICENSE").read_text(encoding="utf-8")
    assert "WordNet 3.0 Copyright 2006 by Princeton University" in licence
