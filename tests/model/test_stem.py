"""The hybrids' ResNet against timm's; the reference's arithmetic is held to its checkpoints elsewhere."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.models.vision_transformer_hybrid import _resnetv2
from torch import nn

import vitkit
from tiny import build, gradients, images, largest_difference, randomise
from vitkit.errors import VitkitError
from vitkit.model import ResNetStem, ViTConfig, config_for, pad_same, stride_of

SMALL: dict[str, Any] = {"stem": (1, 2), "image_size": (24, 32), "patch_size": 1}


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", [(64, 64), (75, 53), (33, 7)])
@pytest.mark.parametrize("stages", [(), (1,), (1, 2), (2, 1, 1, 1)])
def test_features_are_timms(stages: tuple[int, ...], size: tuple[int, int]) -> None:
    theirs = randomise(_resnetv2(stages)).eval()
    ours = ResNetStem(3, stages, "timm").eval()
    names = {f"stem.{name}" if not stages else name: tensor for name, tensor in theirs.state_dict().items()}
    ours.load_state_dict(names)
    with torch.no_grad():
        assert largest_difference(ours(noise(2, 3, *size)), theirs(noise(2, 3, *size))) <= 1e-5


def test_the_two_arithmetics_differ_by_little_but_differ() -> None:
    reference, other = (randomise(ResNetStem(3, (1, 1), kind)) for kind in ("reference", "timm"))
    with torch.no_grad():
        difference = largest_difference(reference(noise(1, 3, 32, 32)), other(noise(1, 3, 32, 32)))
    assert 1e-7 < difference < 1e-1


@pytest.mark.parametrize("kind", ["reference", "timm"])
def test_scale_and_shift_of_a_kernel_do_not_matter(kind: Any) -> None:
    stem = randomise(ResNetStem(3, (1,), kind))
    x = noise(1, 3, 32, 32)
    with torch.no_grad():
        before = stem(x)
        for module in stem.modules():
            if isinstance(module, nn.Conv2d):
                scale = torch.linspace(1, 3, len(module.weight)).view(-1, 1, 1, 1)
                module.weight.mul_(scale).add_(scale)
        assert largest_difference(stem(x), before) < 1e-2


@functools.cache
def stem_of(stages: tuple[int, ...]) -> ResNetStem:
    return ResNetStem(3, stages)


@settings(max_examples=60)
@given(height=st.integers(1, 70), width=st.integers(1, 70), stages=st.sampled_from([(), (1,), (1, 1), (1, 1, 1, 1)]))
def test_sides_are_divided_and_rounded_up(height: int, width: int, stages: tuple[int, ...]) -> None:
    with torch.device("meta"):
        stem = stem_of(stages)
        shape = stem(torch.empty(1, 3, height, width)).shape
    stride = stride_of(stages)
    assert shape == (1, stem.out_channels, -(-height // stride), -(-width // stride))


def test_the_odd_pixel_is_padded_below_and_right() -> None:
    assert pad_same(torch.ones(1, 1, 4, 4), 3, 2)[0, 0].sum(0).tolist() == [4, 4, 4, 4, 0]
    assert pad_same(torch.ones(1, 1, 5, 5), 3, 2)[0, 0].sum(0).tolist() == [0, 5, 5, 5, 5, 5, 0]


@pytest.mark.parametrize("kind", ["reference", "timm"])
def test_a_hybrid_learns_in_every_parameter(kind: str) -> None:
    model = build(**SMALL, stem_kind=kind).train()
    for name, gradient in gradients(model, images(config=model.config)).items():
        assert gradient.abs().sum() > 0, name


def test_a_hybrid_compiles_and_exports_whole() -> None:
    model = build(**SMALL)
    batch = images(config=model.config)
    with torch.no_grad():
        expected = model(batch)
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        assert largest_difference(compiled(batch), expected) <= 1e-5
        exported = torch.export.export(model, (batch,))
        assert largest_difference(exported.module()(batch), expected) <= 1e-5


@pytest.mark.parametrize(
    ("name", "grid"),
    [
        ("vit_tiny_r_s16_p8_224", (7, 7)),
        ("vit_tiny_r_s16_p8_384", (12, 12)),
        ("vit_small_r26_s32_224", (7, 7)),
        ("vit_base_r50_s16_224", (14, 14)),
        ("vit_base_r50_s16_384", (24, 24)),
        ("vit_large_r50_s32_384_in21k", (12, 12)),
        ("vit_micro_r_s4_16", (4, 4)),
    ],
)
def test_the_papers_hybrids_have_the_papers_grid(name: str, grid: tuple[int, int]) -> None:
    assert config_for(name).grid == grid


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"stem": (1, 0)}, "stem"),
        ({"stem": (1, 1, 1, 1, 1)}, "stem"),
        ({"stem": 3}, "stem"),
        (
            {"stem": (), "image_size": 40, "patch_size": 3},
            "feature map of 10x10, which is not divisible by",
        ),
        ({"stem": (), "stem_kind": "other", "patch_size": 1}, "stem_kind"),
        ({"conv_layers": (12,)}, "conv_layers"),
        ({"conv_layers": (11,)}, "must not contain the last layer"),
        ({"conv_layers": (0,), "position": "relative", "position_at": "shared"}, "conv_layers"),
        ({"registers": -1}, "registers"),
        ({"class_token": False}, "class_token"),
        ({"fc_norm": True, "norm": "post"}, "fc_norm"),
        ({"fc_norm": True, "pool": "token+gap"}, "fc_norm"),
        ({"prefix_positions": False, "position": "sincos_1d"}, "prefix_positions"),
    ],
)
def test_what_cannot_be_built_is_named(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(VitkitError, match=complaint):
        ViTConfig(**fields)


def test_the_papers_resnet_is_timms_network_with_a_linear_head() -> None:
    """With timm's arithmetic in both, the ResNet-50 answers as timm's stem, its mean and the head do."""
    ours = vitkit.create_model("custom:bit_resnet50", num_classes=5).eval()
    assert sum(parameter.numel() for parameter in ours.parameters()) == 25_557_032 - 995 * 2049, "a ResNet-50's"
    for module in ours.modules():
        if hasattr(module, "kind"):
            module.kind = "timm"
        if isinstance(module, nn.GroupNorm):
            module.eps = 1e-5
    theirs = _resnetv2((3, 4, 6, 3)).eval()
    theirs.load_state_dict(ours.network.features.state_dict())
    x = noise(2, 3, 64, 64)
    with torch.no_grad():
        expected = ours.network.head(theirs(x).mean(dim=(2, 3)))
        torch.testing.assert_close(ours(x), expected, rtol=1e-3, atol=1e-5)
