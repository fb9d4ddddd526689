"""Every method on every kind of model, and whether it finds what the class really depends on."""

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from refusals import refused
from tiny import build, configs, images, randomise
from vitkit.explanation import METHODS, attention_maps, rollout, rollout_matrix
from vitkit.model import VisionTransformer, ViTConfig

SIZES: dict[str, dict[str, Any]] = {
    "224": {"image_size": 224, "patch_size": 16},
    "384": {"image_size": 384, "patch_size": 32},
    "224x320": {"image_size": (224, 320), "patch_size": 16},
    "96/8": {"image_size": 96, "patch_size": 8},
}
PREFIXES: dict[int, dict[str, Any]] = {
    0: {"pool": "gap"},
    1: {},
    2: {"distill_token": True, "distill_head": True},
    5: {"registers": 4},
}
RUNS = ("float32", "bfloat16", "compiled")
# Any two choices meet in one of these.
SWEEP = [
    (name, size, prefix, RUNS[(i + 2 * j) % 3])
    for (i, name), (j, size), (k, prefix) in product(enumerate(METHODS), enumerate(SIZES), enumerate(PREFIXES))
    if (i + j + k) % 4 == 0
]


@cache
def sized(size: str, prefix: int, run: str) -> Any:
    config = ViTConfig(hidden_size=16, heads=2, layers=2, mlp_size=16, num_classes=4, **SIZES[size], **PREFIXES[prefix])
    model = randomise(VisionTransformer(config), std=0.4).eval()
    if run == "compiled":
        return torch.compile(model, backend="aot_eager")
    return model.bfloat16() if run == "bfloat16" else model


@cache
def batch_for(size: str) -> Tensor:
    return images(2, config=ViTConfig(**SIZES[size]))


@pytest.mark.parametrize(("name", "size", "prefix", "run"), SWEEP)
def test_maps_have_the_grids_shape_and_differ_as_they_should(name: str, size: str, prefix: int, run: str) -> None:
    model, batch = sized(size, prefix, run), batch_for(size)
    assert model.config.prefix_tokens == prefix
    h, w = (side // model.config.patch_size[0] for side in batch.shape[-2:])
    options: dict[str, Any] = {"square": 8, "stride": 8} if name == "occlusion" else {}
    options |= {"target": 0} if METHODS[name].is_class_specific else {}
    maps = METHODS[name](model, batch, **options)
    assert maps.shape == ((2, 2, h, w) if name == "heads" else (2, h, w))
    assert maps.dtype == torch.float32
    assert maps.isfinite().all()
    assert not maps.requires_grad
    assert not torch.allclose(maps[0], maps[1], rtol=1e-3, atol=0), "two images, one map"
    assert maps.flatten(1).std(dim=1).min() > 0, "a map of nothing"
    if METHODS[name].is_class_specific:
        other = METHODS[name](model, batch, **options | {"target": torch.tensor([2, 0])})
        assert not torch.allclose(other[0], maps[0], rtol=1e-3, atol=0), "two classes, one map"
        assert torch.equal(other[1], maps[1])
    elif name == "raw":
        by_layer = [METHODS[name](model, batch, layer=layer) for layer in (0, 1)]
        assert not torch.allclose(*by_layer, rtol=1e-3, atol=0), "two layers, one map"


GRID = (5, 6)
# Where the parts of a token lie, each beside its negative, so that a token's mean is 0 and LayerNorm scales it alone.
BRIGHTNESS, EVIDENCE, CORNER, DECOY, ANCHOR, GOSSIP = range(0, 12, 2)


def corner_images(number: int, corner: tuple[int, int], seed: int = 0) -> tuple[Tensor, Tensor]:
    """Noise in 5 x 6 patches; the class is the sign of one patch's brightness."""
    generator = torch.Generator().manual_seed(seed)
    batch = torch.randn(number, 1, 20, 24, generator=generator)
    labels = torch.arange(number) % 2
    top, left = 4 * corner[0], 4 * corner[1]
    batch[:, :, top : top + 4, left : left + 4] = (2.0 * labels - 1)[:, None, None, None]
    return batch, labels


def decoy_of(corner: tuple[int, int]) -> tuple[int, int]:
    """The patch across, of which the class knows nothing."""
    return GRID[0] - 1 - corner[0], GRID[1] - 1 - corner[1]


def _both(table: Tensor, part: int, value: float) -> None:
    """Write a part of the last dimension, and its negative beside it."""
    table[..., part], table[..., part + 1] = value, -value


@cache
def corner_model(corner: tuple[int, int], pool: Any, layers: int) -> VisionTransformer:
    """Every weight set by hand, so that one corner decides the class whatever this processor rounds.

    Every token attends by its first head to the corner (0.9 of its attention), which moves the corner's brightness
    into the evidence that the classes read; and by its second head to the decoy (all of it), which moves the decoy's
    brightness to where no class looks.
    """
    sizes = {"image_size": (20, 24), "patch_size": 4, "hidden_size": 16, "heads": 2, "mlp_size": 4}
    config = ViTConfig(**sizes, in_channels=1, layers=layers, num_classes=2, pool=pool)
    model = VisionTransformer(config).requires_grad_(False).eval()
    for name, parameter in model.named_parameters():
        parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
    brightness = model.patch_embed.proj.weight.flatten(1)  # (D, pixels of a patch), a view
    _both(brightness.T, BRIGHTNESS, 1 / 16)
    assert isinstance(model.pos_embed, Tensor)
    places = model.pos_embed.view(-1, 16)  # (N, D)
    _both(places, ANCHOR, 2.0)
    for part, (row, column) in ((CORNER, corner), (DECOY, decoy_of(corner))):
        _both(places[config.prefix_tokens + 6 * row + column], part, 2.0)
    for block in model.blocks:
        attention = block.attn
        _, k, v = attention.qkv.weight.view(3, 2, 8, 16)  # (heads, D_h, D) each
        for head, (marker, sharpness) in enumerate(((CORNER, 8.0), (DECOY, 16.0))):
            attention.qkv.bias[8 * head] = sharpness
            k[head, 0, marker] = 1.0
            v[head, 0, BRIGHTNESS] = 1.0
            _both(attention.proj.weight[:, 8 * head], (EVIDENCE, GOSSIP)[head], 1.0)
    model.head.weight[:, EVIDENCE] = torch.tensor([-2.0, 2.0])
    return model


CORNERS = pytest.mark.parametrize("corner", [(0, 0), (4, 5), (0, 5)])
POOLS = pytest.mark.parametrize("pool", ["token", "gap"])


def peaks(maps: Tensor) -> list[tuple[int, int]]:
    return [divmod(peak, GRID[1]) for peak in maps.flatten(1).argmax(dim=1).tolist()]


@POOLS
@CORNERS
@pytest.mark.parametrize("name", ["gradient", "occlusion", "gradient-attention"])
def test_the_map_peaks_where_the_class_is_decided(name: str, corner: tuple[int, int], pool: str) -> None:
    layers = 1 if corner == (0, 0) else 2
    model = corner_model(corner, pool, layers)
    batch, labels = corner_images(16, corner)
    assert (model(batch).argmax(-1) == labels).all()
    options = {"square": 1} if name == "occlusion" else {}
    assert peaks(METHODS[name](model, batch, labels, **options)) == [corner] * 16


@POOLS
@CORNERS
@pytest.mark.parametrize("name", ["raw", "rollout"])
def test_attention_alone_peaks_where_most_of_it_goes(name: str, corner: tuple[int, int], pool: str) -> None:
    """So the model above tells a map of the class from a map of the attention."""
    batch, _ = corner_images(16, corner)
    assert peaks(METHODS[name](corner_model(corner, pool, 1), batch)) == [decoy_of(corner)] * 16


FUSIONS: dict[Any, Any] = {"mean": np.mean, "max": np.max, "min": np.min, 2: lambda a, axis: a.take(2, axis)}
Array = npt.NDArray[np.float64]


def by_loops(layers: list[Array], fusion: Any, discard: float, prefix: int) -> Array:
    """(B, N, N) from (B, H, N, N) of each layer, one image and one layer at a time, in float64."""
    products = []
    for image in range(len(layers[0])):
        product = np.eye(layers[0].shape[-1])
        for layer in layers:
            fused = FUSIONS[fusion](layer[image], axis=0)
            upon_patches = sorted((fused[q, k], q, k) for q in range(len(fused)) for k in range(prefix, len(fused)))
            for _, q, k in upon_patches[: int(discard * len(upon_patches))]:
                fused[q, k] = 0.0
            mixed = fused + np.eye(len(fused))
            product = (mixed / mixed.sum(axis=1, keepdims=True)) @ product
        products.append(product)
    return np.stack(products)


@pytest.mark.parametrize("discard", [0.0, 0.3, 0.99])
@pytest.mark.parametrize("fusion", FUSIONS)
def test_rollout_is_the_product_written_with_loops(fusion: Any, discard: float) -> None:
    several: dict[str, Any] = {"distill_token": True, "distill_head": True}  # followed from both tokens
    cases: list[tuple[dict[str, Any], int]] = [({"pool": "gap"}, 12), ({"registers": 3}, 1), (several, 2)]
    for fields, first in (*cases, ({"conv_layers": (1,)}, 1)):
        model = build(**fields)
        prefix = model.config.prefix_tokens
        layers = [attention.double().numpy() for attention in attention_maps(model, images())]
        expected = by_loops(layers, fusion, discard, prefix)
        matrix = rollout_matrix(model, images(), fusion=fusion, discard=discard)
        np.testing.assert_allclose(matrix, expected, atol=1e-6)
        found = rollout(model, images(), fusion=fusion, discard=discard)
        rows = expected[:, :first].mean(axis=1)
        np.testing.assert_allclose(found, rows[:, prefix:].reshape(2, 3, 4), atol=1e-6)


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(
    config=configs(),
    fusion=st.sampled_from(["mean", "max", "min", 0]),
    discard=st.floats(0, 1, exclude_max=True),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_rows_of_the_product_sum_to_one(config: ViTConfig, fusion: Any, discard: float, dtype: torch.dtype) -> None:
    if len(config.conv_layers) == config.layers:
        return
    model = randomise(VisionTransformer(config)).to(dtype)
    matrix = rollout_matrix(model, images(2, config=config), fusion=fusion, discard=discard)
    assert matrix.shape == (2, config.tokens, config.tokens)
    assert (matrix.sum(-1) - 1).abs().max() <= 1e-5


def test_a_share_that_makes_no_sense_is_refused() -> None:
    for discard in (-0.1, 1.0, float("nan")):
        with refused("explanation.discard-outside"):
            rollout(build(), images(), discard=discard)
