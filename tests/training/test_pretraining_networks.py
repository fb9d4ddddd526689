"""What pre-training computes, against transformers' ViTMAE and ViT with a mask token, and against sums written out."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from refusals import refused
from vitkit.data import Preprocess
from vitkit.model import VisionTransformer, ViTConfig
from vitkit.training import (
    MaskedAutoencoding,
    MaskedPatchPrediction,
    Pretraining,
    SelfSupervised,
    check_encoder,
    corrupt,
    decoder_config,
    dequantised_colours,
    network_of,
    patchify,
    quantised_colours,
    shuffle_patches,
    unpatchify,
)

SMALL: dict[str, Any] = {
    "image_size": 16, "patch_size": 4, "hidden_size": 32, "heads": 4, "layers": 3, "mlp_size": 48, "num_classes": 0,
    "norm_eps": 1e-6,
}  # fmt: skip
THEIRS: dict[str, Any] = {
    "image_size": 16, "patch_size": 4, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3,
    "intermediate_size": 48, "layer_norm_eps": 1e-6, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
HALVES = Preprocess(size=(16, 16))
KEYS = torch.tensor([3, -8, 2**31 - 1, -(2**31)])
CHOICES = {"mask", "target"}  # of Pretraining; other fields are the encoder's


def config(**fields: Any) -> ViTConfig:
    return ViTConfig(**{**SMALL, **fields})


def network(objective: Any, seed: int = 0, preprocess: Preprocess = HALVES, **fields: Any) -> SelfSupervised:
    choices = {name: fields.pop(name) for name in CHOICES & fields.keys()}
    torch.manual_seed(seed)
    encoder = VisionTransformer(config(**fields))
    return network_of(encoder, preprocess, Pretraining(objective=objective, **choices).resolved(), seed)


def images(number: int = 4, size: tuple[int, int] = (16, 16)) -> Tensor:
    return torch.randn(number, 3, *size, generator=torch.Generator().manual_seed(1)) / 2


def scrambled(module: nn.Module) -> None:
    """Weights that make every term of the sums count."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for own in module.parameters():
            own.copy_(torch.randn(own.shape, generator=generator) * 0.2 + (0.7 if own.ndim == 1 else 0.0))


OURS = {
    "vit.embeddings.cls_token": "encoder.cls_token", "vit.embeddings.mask_token": "task.mask_token",
    "vit.embeddings.patch_embeddings.projection": "encoder.patch_embed.proj", "vit.layernorm": "encoder.norm",
    "decoder.mask_token": "task.mask_token", "decoder.decoder_embed": "task.embed", "decoder.decoder_norm": "task.norm",
    "decoder.decoder_pred": "task.head", "vit.layers": "encoder.blocks", "decoder.decoder_layers": "task.blocks",
    "layernorm_before": "norm1", "layernorm_after": "norm2", "attention.o_proj": "attn.proj",
}  # fmt: skip


def named_as_ours(theirs: nn.Module, of: Callable[[nn.Parameter], Any]) -> dict[str, Tensor]:
    """Something of each of their parameters but positions, under our names, q, k and v in one."""
    found = {}
    for name, own in theirs.named_parameters():
        for before, after in OURS.items():
            name = name.replace(before, after)
        found[name] = of(own)
    for name in [name for name in found if "attention.q_proj" in name]:
        parts = [found.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        found[name.replace("attention.q_proj", "attn.qkv")] = torch.cat(parts)
    return {name: own for name, own in found.items() if name.startswith(("encoder.", "task."))}


def weights_of(theirs: nn.Module) -> dict[str, Tensor]:
    state = named_as_ours(theirs, lambda own: own.detach().clone())
    return {**state, "encoder.pos_embed": theirs.vit.embeddings.position_embeddings.detach().clone()}


def assert_same_loss_and_gradients(ours: nn.Module, theirs: nn.Module, loss: Tensor) -> None:
    """`loss` is theirs, of the same images, of which the same is hidden."""
    loss.backward()
    (each,) = ours.forward_heads(images(), KEYS)
    each.mean().backward()
    assert each.mean().item() == pytest.approx(loss.item(), abs=1e-5)
    wanted = named_as_ours(theirs, lambda own: own.grad)
    found = {name: own.grad for name, own in ours.named_parameters() if name in wanted}
    assert found.keys() == wanted.keys()
    apart = {name: float((found[name] - wanted[name]).abs().max()) for name in wanted}
    assert apart == pytest.approx(dict.fromkeys(apart, 0.0), abs=1e-5)


def their_mae(*, is_normalised: bool) -> Any:
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    ours = decoder_config(config())
    decoder = {"hidden_size": ours.hidden_size, "num_hidden_layers": ours.layers, "num_attention_heads": ours.heads}
    decoder["intermediate_size"] = 4 * ours.hidden_size
    more = {f"decoder_{name}": value for name, value in decoder.items()}
    theirs = ViTMAEForPreTraining(ViTMAEConfig(**THEIRS, mask_ratio=0.75, norm_pix_loss=is_normalised, **more))
    scrambled(theirs)
    theirs.decoder.initialize_weights(16)  # positions are fixed, and compared with ours
    nn.init.normal_(theirs.decoder.mask_token)
    return theirs.train()


@pytest.mark.parametrize("target", ["normalised", "pixels"])
def test_mae_has_the_loss_and_gradients_of_transformers(target: Any) -> None:
    theirs = their_mae(is_normalised=target == "normalised")
    ours = network("mae", target=target)
    assert torch.allclose(ours.task.positions, theirs.decoder.decoder_pos_embed[0], atol=1e-6)
    ours.load_state_dict(weights_of(theirs))
    loss = theirs(images(), noise=shuffle_patches(KEYS, 16).argsort(dim=1).double()).loss
    assert_same_loss_and_gradients(ours, theirs, loss)


def test_masked_patches_have_the_features_and_gradients_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every corrupted patch masked, as theirs are; the linear layer and the L2 loss are written out."""
    monkeypatch.setattr("vitkit.training.pretraining.objectives._MASKED", 1.0)
    from transformers import ViTConfig as TheirConfig
    from transformers import ViTForMaskedImageModeling

    theirs: Any = ViTForMaskedImageModeling(TheirConfig(**THEIRS, encoder_stride=4)).train()
    ours = network("masked-patch", target="pixels")
    scrambled(theirs)
    scrambled(ours.task)
    head = {name: own for name, own in ours.state_dict().items() if name.startswith("task.head.")}
    ours.load_state_dict({**weights_of(theirs), **head})
    fate = corrupt(KEYS, 16, 8)
    assert torch.equal(fate.corrupted, fate.masked)
    features = theirs.vit(images(), bool_masked_pos=fate.corrupted.float()).last_hidden_state[:, 1:]
    said = features @ ours.task.head.weight.detach().T + ours.task.head.bias.detach()
    error = (said - their_mae(is_normalised=False).patchify(images())).square().mean(dim=2)
    loss = (error * fate.corrupted).sum() / fate.corrupted.sum()
    assert_same_loss_and_gradients(ours, theirs, loss)


def colour_by_hand(picture: Tensor, y: int, x: int, side: int) -> int:
    """The 3-bit colour of a cell of a picture (3, height, width), 0 to 1."""
    red, green, blue = (min(int(float(own[y : y + side, x : x + side].double().mean()) * 8), 7) for own in picture)
    return red * 64 + green * 8 + blue


def test_the_loss_is_the_cross_entropy_of_the_colours_of_corrupted_patches() -> None:
    ours = network("masked-patch")
    scrambled(ours)
    pixels, fate = images() * 0.5 + 0.5, corrupt(KEYS, 16, 8)
    said = ours.task.predict(ours.encoder, images(), fate).detach()
    losses, right = ours.forward_heads(images(), KEYS)
    for i in range(4):
        own = [p for p in range(16) if fate.corrupted[i, p]]
        assert len(own) == 8
        truth = [colour_by_hand(pixels[i], 4 * (p // 4), 4 * (p % 4), 4) for p in own]
        by_hand = [-float(said[i, p].log_softmax(0)[number]) for p, number in zip(own, truth, strict=True)]
        assert losses[i].item() == pytest.approx(sum(by_hand) / 8, rel=1e-5)
        hits = [int(said[i, p].argmax()) == number for p, number in zip(own, truth, strict=True)]
        assert right[i].item() == pytest.approx(sum(hits) / 8)


def test_sixteen_colours_of_a_patch_lie_row_by_row() -> None:
    pixels = torch.rand(2, 3, 16, 24, generator=torch.Generator().manual_seed(2))
    found = quantised_colours(pixels, (8, 8), 4)  # (2, 6, 16)
    assert found.shape == (2, 6, 16)
    by_hand = [
        colour_by_hand(pixels[1], 8 * (p // 3) + 2 * (c // 4), 8 * (p % 3) + 2 * (c % 4), 2)
        for p in range(6)
        for c in range(16)
    ]
    assert found[1].flatten().tolist() == by_hand
    pixels = dequantised_colours(found, 3, (8, 8), 4, (16, 24))
    assert torch.equal(quantised_colours(pixels, (8, 8), 4), found), "and are painted so"
    ends = torch.stack([torch.ones(3, 4, 4), torch.zeros(3, 4, 4)])
    assert quantised_colours(ends, (4, 4), 1).flatten().tolist() == [511, 0], "white is the last and black the first"
    grey = Preprocess(size=(16, 16), mean=(0.5,), std=(0.5,))
    task = MaskedPatchPrediction(config(in_channels=1), Pretraining(objective="masked-patch").resolved(), grey)
    assert task.head.out_features == 8


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.sampled_from([1, 3]))
@settings(max_examples=25)
def test_patches_go_back_to_their_places(h: int, w: int, p: int, q: int, channels: int) -> None:
    pictures = torch.arange(2.0 * channels * h * p * w * q).view(2, channels, h * p, w * q)
    patches = patchify(pictures, (p, q))
    assert patches.shape == (2, h * w, p * q * channels)
    assert torch.equal(patches[0, 0], pictures[0, :, :p, :q].permute(1, 2, 0).flatten())
    assert torch.equal(unpatchify(patches, (p, q), (h * p, w * q)), pictures)


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=5), st.integers(2, 40))
@settings(max_examples=40)
def test_an_order_has_every_patch_once_and_depends_on_the_key_alone(keys: list[int], patches: int) -> None:
    order = shuffle_patches(torch.tensor(keys), patches)
    assert torch.equal(order.sort(dim=1).values, torch.arange(patches).expand(len(keys), -1))
    alone = torch.cat([shuffle_patches(torch.tensor([key]), patches) for key in keys])
    assert torch.equal(order, alone)


def test_every_patch_is_hidden_as_often_as_any_other() -> None:
    keys = torch.from_numpy(np.random.default_rng(0).integers(-(2**31), 2**31, 20_000))
    hidden = shuffle_patches(keys, 16)[:, 4:].flatten().bincount(minlength=16).double() / 20_000
    assert hidden.tolist() == pytest.approx([0.75] * 16, abs=0.015)  # five standard deviations


def test_corrupted_patches_are_masked_replaced_and_left_as_the_paper_says() -> None:
    keys = torch.from_numpy(np.random.default_rng(1).integers(-(2**31), 2**31, 5_000))
    fate = corrupt(keys, 16, 8)
    assert (fate.corrupted.sum(dim=1) == 8).all()
    own = torch.arange(16).expand(5_000, -1)
    replaced = fate.source != own
    assert not (replaced & fate.masked).any()
    assert not ((replaced | fate.masked) & ~fate.corrupted).any()
    shares = [float(part.sum()) / 40_000 for part in (fate.masked, replaced)]
    assert shares == pytest.approx([0.8, 0.1], abs=0.01)  # five standard deviations
    steps = ((fate.source - own) % 16)[replaced].bincount(minlength=16).double() / int(replaced.sum())
    assert steps[0] == 0
    assert steps[1:].tolist() == pytest.approx([1 / 15] * 15, abs=0.02)


@pytest.mark.parametrize("objective", ["mae", "masked-patch"])
def test_nothing_hidden_is_read(objective: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise in the hidden patches changes neither what is drawn nor, so, anything but the truth it is held against."""
    monkeypatch.setattr("vitkit.training.pretraining.objectives._MASKED", 1.0)
    ours = network(objective, target="pixels").eval()
    scrambled(ours)
    _, hidden = ours.fill(images(), KEYS)
    noise = torch.randn(4, 16, 48, generator=torch.Generator().manual_seed(9)) * hidden[:, :, None]
    spoilt = images() + unpatchify(noise, (4, 4), (16, 16))
    drawn = [patchify(ours.fill(x, KEYS)[0], (4, 4))[hidden] for x in (images(), spoilt)]
    assert torch.equal(*drawn)


def test_the_decoder_of_a_base_model_is_the_papers() -> None:
    base = ViTConfig(num_classes=0)
    found = decoder_config(base)
    assert (found.layers, found.hidden_size, found.heads, found.mlp_size) == (8, 512, 16, 2048)
    with torch.device("meta"):
        task = MaskedAutoencoding(base, Pretraining().resolved())
        whole = SelfSupervised(VisionTransformer(base), task)
    assert task.visible == 49
    fixed = (196 + 1) * (768 + 512)  # positions that transformers keeps as parameters
    assert sum(own.numel() for own in whole.parameters()) - 197 * 768 + fixed == 111_907_840  # facebook/vit-mae-base


STEM, RELATIVE = {"stem": (), "patch_size": 1}, {"position": "relative", "position_at": "every_layer"}


@pytest.mark.parametrize(
    ("objective", "fields", "code"),
    [
        *(("mae", own, "training.model-unsupported") for own in (STEM, RELATIVE, {"distill_token": True})),
        ("masked-patch", {"pool": "gap", "fc_norm": True}, "training.model-unsupported"),
        ("mae", {"mask": 0.0}, "training.mask-share"),
        ("masked-patch", {"target": "colour-4x4", "patch_size": 2}, "training.patch-indivisible"),
        ("mae", {"target": "colour"}, "training.target-unsupported"),
    ],
)
def test_what_cannot_be_learned_so_is_refused(objective: Any, fields: dict[str, Any], code: str) -> None:
    own = {name: fields[name] for name in CHOICES & fields.keys()}
    with refused(code):
        choices = Pretraining(objective=objective, **own).resolved()
        check_encoder(config(**{name: fields[name] for name in fields.keys() - own.keys()}), choices)
        network(objective, **fields)
