"""Models small enough to build in a millisecond, with weights that make every term of the sums count."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from _pytest.mark.structures import ParameterSet
from hypothesis import strategies as st
from torch import Tensor, nn

from vitkit.classifier import Classifier
from vitkit.inference import HeldOut, Trust, Unknown
from vitkit.model import VisionTransformer, ViTConfig

M = TypeVar("M", bound=nn.Module)

# Neither the image nor the grid is square, so that height and width cannot be swapped unnoticed.
TINY: dict[str, Any] = {
    "image_size": (12, 16),
    "patch_size": (4, 4),
    "hidden_size": 32,
    "heads": 4,
    "layers": 3,
    "mlp_size": 48,
    "num_classes": 7,
}

# One of each way a model can differ inside; a name for test ids, and the fields that differ from TINY.
VARIETY: dict[str, dict[str, Any]] = {
    "token": {},
    "gap": {"pool": "gap"},
    "token+gap": {"pool": "token+gap"},
    "distilled": {"distill_token": True, "distill_head": True},
    "distil token alone": {"distill_token": True},
    "representation": {"representation_size": 20},
    "unit": {"representation_size": 20, "representation": "unit"},
    "token+gap representation": {"pool": "token+gap", "representation_size": 20},
    "post-norm": {"norm": "post"},
    "patch norm": {"patch_norm": True},
    "clip": {"embed_norm": True, "patch_bias": False, "gelu": "quick"},
    "map": {"pool": "map"},
    "map of all tokens": {"pool": "map", "class_token": True, "registers": 1, "representation_size": 20},
    "map of other sizes": {"pool": "map", "pool_heads": 2, "pool_mlp_size": 40, "last_norm": False},
    "eva02": {"rotary": "eva", "rotary_grid": (5, 6), "mlp_kind": "swiglu", "mlp_norm": True, "attention_norm": True},
    "rotary axial": {"rotary": "axial", "rotary_offset": 1, "rotary_grid": (2, 2), "pool": "gap", "class_token": True},
    "rotary mixed": {"rotary": "mixed", "rotary_base": 10.0, "position": "none", "layer_scale": 0.1},
    "dinov3": {"rotary": "dinov3", "rotary_base": 100.0, "position": "none", "registers": 2, "qkv_bias": False},
    "aimv2": {
        "norm_kind": "rms",
        "proj_bias": False,
        "qkv_bias": False,
        "mlp_kind": "swiglu",
        "patch_norm": True,
        "pool": "gap",
    },
    "rms": {"norm_kind": "rms", "embed_norm": True, "mlp_norm": True, "attention_norm": True},
    "res-post": {"norm": "res-post"},
    "res-post gap conv": {"norm": "res-post", "pool": "gap", "fc_norm": True, "mlp_kind": "conv"},
    "no qkv bias": {"qkv_bias": False},
    "qk_scale": {"qk_scale": 0.7},
    "tanh": {"gelu": "tanh"},
    "none": {"position": "none"},
    "learned_1d every_layer": {"position_at": "every_layer"},
    "learned_2d": {"position": "learned_2d"},
    "learned_2d every_layer": {"position": "learned_2d", "position_at": "every_layer"},
    "learned_2d shared": {"position": "learned_2d", "position_at": "shared"},
    "sincos_1d": {"position": "sincos_1d"},
    "sincos_2d": {"position": "sincos_2d"},
    "gap with a class token": {"pool": "gap", "class_token": True},
    "fc_norm": {"pool": "gap", "fc_norm": True},
    "registers": {"registers": 3},
    "registers without positions": {"registers": 3, "prefix_positions": False, "pool": "token+gap"},
    "no prefix positions": {"prefix_positions": False},
    "no prefix positions every_layer": {"prefix_positions": False, "position_at": "every_layer"},
    "layer scale": {"layer_scale": 0.1},
    "swiglu": {"mlp_kind": "swiglu"},
    "conv MLP distilled registers": {
        "mlp_kind": "conv",
        "distill_token": True,
        "distill_head": True,
        "registers": 2,
    },
    "conv projection": {"projection": "conv"},
    "interleaved": {"conv_layers": (0,)},
    "interleaved gap": {"conv_layers": (0, 2), "pool": "gap"},
    "all mixtures post-norm": {"conv_layers": (1,), "projection": "conv", "mlp_kind": "conv", "norm": "post"},
    "relative every_layer": {"position": "relative", "position_at": "every_layer"},
    "relative shared": {"position": "relative", "position_at": "shared"},
    "relative_bias": {"position": "relative_bias", "position_at": "every_layer", "pool": "gap", "fc_norm": True},
    "relative_bias shared": {"position": "relative_bias", "position_at": "shared"},
    "relative_mlp": {"position": "relative_mlp", "position_at": "every_layer", "relative_size": 9, "pool": "token+gap"},
    "relative post-norm": {"position": "relative", "position_at": "every_layer", "norm": "post"},
    "relative distilled": {
        "position": "relative",
        "position_at": "every_layer",
        "distill_token": True,
        "distill_head": True,
        "qk_scale": 0.5,
    },
}

GRID = {"image_size": (40, 56), "patch_size": (8, 8)}  # 5 x 7 patches
AXIAL: dict[str, Any] = {**GRID, "attention": "axial", "layers": 4}
WINDOW: dict[str, Any] = {**GRID, "attention": "window", "window_size": (2, 3)}  # padded in both directions
# Attention within rows and columns, and within windows.
LOCAL: dict[str, dict[str, Any]] = {
    "axial": AXIAL,
    "axial gap": {**AXIAL, "pool": "gap"},
    "axial registers": {**AXIAL, "registers": 2, "distill_token": True, "distill_head": True},
    "axial rotary": {**AXIAL, "rotary": "axial", "heads": 1, "hidden_size": 12, "pool": "map"},
    "axial bias": {**AXIAL, "position": "relative_bias", "position_at": "every_layer"},
    "window": WINDOW,
    "window of one row": {**WINDOW, "window_size": (1, 4), "pool": "gap", "class_token": True},
    "window bias": {**WINDOW, "position": "relative_bias", "position_at": "every_layer"},
    "window mlp bias": {**WINDOW, "position": "relative_mlp", "position_at": "shared", "pool": "gap"},
    "window global": {**WINDOW, "global_layers": (1,), "layers": 3, "norm": "post"},
    "window mixtures": {**WINDOW, "projection": "conv", "mlp_kind": "conv", "conv_layers": (0,), "pool": "gap"},
    "window sub-norm": {**WINDOW, "attention_norm": True, "norm_kind": "rms"},
}

# Of VARIETY so many as have each value of each field.
FEW = frozenset({
    *("token", "representation", "patch norm", "no qkv bias", "qk_scale", "tanh", "none", "learned_2d shared"),
    *("sincos_1d", "sincos_2d", "gap with a class token", "fc_norm", "registers without positions", "layer scale"),
    *("swiglu", "conv MLP distilled registers", "interleaved", "interleaved gap", "all mixtures post-norm"),
    *("relative_bias shared", "relative_mlp", "relative distilled", "clip", "map of all tokens"),
    *("map of other sizes", "eva02", "aimv2", "rms", "rotary axial", "rotary mixed", "dinov3", "res-post gap conv"),
})  # fmt: skip


def kinds(fields: Mapping[str, dict[str, Any]] = VARIETY, few: Collection[str] = FEW) -> list[ParameterSet]:
    """The fields of one model of each kind under `make test`, of all under `make accept`."""
    return [pytest.param(own, id=name, marks=_when(name, few)) for name, own in fields.items()]


def some(names: Iterable[str], few: Collection[str] = FEW) -> list[ParameterSet]:
    """Names as parameters of a test that takes long: few of them under `make test`, all under `make accept`."""
    return [pytest.param(name, id=name, marks=_when(name, few)) for name in names]


def _when(name: str, few: Collection[str]) -> Any:
    return () if name in few else pytest.mark.accept


def tiny(**fields: Any) -> ViTConfig:
    return ViTConfig(**TINY | fields)


def build(seed: int = 0, std: float = 0.2, **fields: Any) -> VisionTransformer:
    """A tiny model in eval mode whose every weight, bias and LayerNorm scale is random."""
    return randomise(VisionTransformer(tiny(**fields)), seed, std).eval()


def randomise(model: M, seed: int = 0, std: float = 0.2) -> M:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * std
            centre = 1.0 if parameter.ndim == 1 and name.endswith("weight") else 0.0  # a LayerNorm's scale
            parameter.copy_(centre + noise)
    return model


def images(batch: int = 2, seed: int = 1, config: ViTConfig | None = None) -> Tensor:
    config = config or tiny()
    shape = (batch, config.in_channels, *config.image_size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def gradients(model: VisionTransformer, batch: Tensor) -> dict[str, Tensor]:
    """The gradient of a loss that weighs every logit of every image differently."""
    model.zero_grad(set_to_none=True)
    logits = model(batch)
    weights = torch.linspace(-1.0, 1.5, logits.numel(), dtype=logits.dtype).view_as(logits)
    (logits * weights).sum().backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert found.keys() == dict(model.named_parameters()).keys()
    return found


def largest_difference(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return (a - b).abs().max().item()


@st.composite
def configs(draw: st.DrawFn) -> ViTConfig:
    """Any small configuration that can be built."""
    heads, head_size = draw(st.integers(1, 3)), draw(st.sampled_from([4, 8]))
    patch, grid = [draw(st.tuples(st.integers(1, 4), st.integers(1, 4))) for _ in range(2)]
    pool = draw(st.sampled_from(["token", "gap", "token+gap", "map"]))
    distill_token = pool == "token" and draw(st.booleans())
    position = draw(st.sampled_from(["learned_1d", "learned_2d", "sincos_1d", "sincos_2d", "relative", "none"]))
    rate = st.sampled_from([0.0, 0.1, 0.5])
    layers, norm = draw(st.integers(1, 3)), draw(st.sampled_from(["pre", "post", "res-post"]))
    last = layers - (pool == "token")  # whose class token must read the patches
    rotary = "none" if position == "relative" else draw(st.sampled_from(["none", *["eva", "axial", "mixed", "dinov3"]]))
    stretches = rotary in ("eva", "axial")
    is_plain = position == "relative" or rotary != "none" or not draw(st.booleans())
    conv_layers = () if is_plain else tuple(layer for layer in range(last) if draw(st.booleans()))
    mlp_kind = "mlp" if pool == "map" else draw(st.sampled_from(["mlp", "swiglu", "conv"]))
    fc_norm = norm != "post" and pool != "token+gap" and not (distill_token and pool == "token") and draw(st.booleans())
    distill_head = distill_token and draw(st.booleans())
    return ViTConfig(
        registers=draw(st.integers(0, 2)),
        class_token=True if pool in ("token", "token+gap") else draw(st.sampled_from([None, True])),
        prefix_positions=position in ("sincos_1d", "relative") or draw(st.booleans()),
        layer_scale=None if norm == "res-post" else draw(st.sampled_from([None, 0.1])),
        mlp_kind=mlp_kind,
        mlp_norm=mlp_kind != "conv" and draw(st.booleans()),
        attention_norm=not conv_layers and draw(st.booleans()),
        last_norm=norm == "post" or fc_norm or draw(st.booleans()),
        pool_heads=draw(st.sampled_from([None, 1, 2])) if pool == "map" else None,
        pool_mlp_size=draw(st.sampled_from([None, 7])) if pool == "map" else None,
        rotary=rotary,
        rotary_base=draw(st.sampled_from([10.0, 10_000.0])),
        rotary_grid=draw(st.sampled_from([None, (3, 5)])) if stretches else None,
        rotary_offset=draw(st.integers(0, 1)) if stretches else 0,
        gelu=draw(st.sampled_from(["erf", "tanh", "quick"])),
        embed_norm=draw(st.booleans()),
        patch_bias=draw(st.booleans()),
        projection="linear" if rotary != "none" else draw(st.sampled_from(["linear", "conv"])),
        conv_layers=conv_layers,
        fc_norm=fc_norm,
        image_size=(patch[0] * grid[0], patch[1] * grid[1]),
        patch_size=patch,
        in_channels=draw(st.integers(1, 4)),
        num_classes=draw(st.sampled_from([0, 1, 5])),
        layers=layers,
        hidden_size=heads * head_size,
        heads=heads,
        mlp_size=draw(st.integers(1, 20)),
        pool=pool,
        distill_token=distill_token,
        distill_head=distill_head,
        representation_size=None if distill_token else draw(st.sampled_from([None, 6])),
        representation=draw(st.sampled_from(["tanh", "unit"])),
        position=position,
        position_at=draw(st.sampled_from(["every_layer", "shared"] + ["input"] * (position != "relative"))),
        norm=norm,
        norm_kind=draw(st.sampled_from(["layer", "rms"])),
        proj_bias=draw(st.booleans()),
        norm_eps=draw(st.sampled_from([1e-6, 1e-2])),
        patch_norm=draw(st.booleans()),
        qkv_bias=draw(st.booleans()),
        qk_scale=draw(st.sampled_from([None, 0.3])),
        dropout=draw(rate),
        attention_dropout=draw(rate),
        position_dropout=draw(rate),
        drop_path=draw(rate),
        init=draw(st.sampled_from(["trunc_normal", "reference"])),
    )


def with_score(classifier: Classifier, folder: Path) -> Classifier:
    """A classifier with a score for unknown images that was fitted to the pictures of a folder."""
    pixels = np.stack([np.asarray(classifier.read(path)) for path in sorted(folder.iterdir())])
    logits, features = classifier.seeing()(pixels)
    half = np.arange(len(pixels)) < len(pixels) // 2
    unknown = Unknown.fit(features[half], features[~half])
    held_out = HeldOut.from_probabilities(classifier.calibrated(logits), logits.argmax(axis=1))
    classifier.trust = Trust(held_out, unknown).to_bytes()
    return classifier
