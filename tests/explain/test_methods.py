"""Every method on every kind of model, and whether it finds what the class really depends on."""

from __future__ import annotations

import math
from functools import cache
from itertools import combinations, product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tiny import build, images, randomise
from vitkit.config import ViTConfig
from vitkit.explain import BY_LAYER, CLASS_SPECIFIC, METHODS
from vitkit.model import VisionTransformer

SIZES: dict[str, dict[str, Any]] = {
    "224": {"image_size": 224, "patch_size": 16},
    "384": {"image_size": 384, "patch_size": 16},
    "224x320": {"image_size": (224, 320), "patch_size": 16},
    "96/8": {"image_size": 96, "patch_size": 8},
}
PREFIXES: dict[int, dict[str, Any]] = {
    0: {"classifier": "gap"},
    1: {},
    2: {"distill_token": True, "distill_head": True},
    5: {"registers": 4},
}
RUNS = ("float32", "bfloat16", "compiled")
# Any two choices meet in one of these.
SWEEP = [
    (name, size, prefix, RUNS[(i + j + k) % 3])
    for (i, name), (j, size), (k, prefix) in product(enumerate(METHODS), enumerate(SIZES), enumerate(PREFIXES))
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
    options |= {"target": 0} if name in CLASS_SPECIFIC else {}
    maps = METHODS[name](model, batch, **options)
    assert maps.shape == ((2, 2, h, w) if name == "heads" else (2, h, w))
    assert maps.dtype == torch.float32
    assert maps.isfinite().all()
    assert not maps.requires_grad
    assert not torch.allclose(maps[0], maps[1], rtol=1e-3, atol=0), "two images, one map"
    assert maps.flatten(1).std(dim=1).min() > 0, "a map of nothing"
    if name in CLASS_SPECIFIC:
        other = METHODS[name](model, batch, **options | {"target": torch.tensor([2, 0])})
        assert not torch.allclose(other[0], maps[0], rtol=1e-3, atol=0), "two classes, one map"
        assert torch.equal(other[1], maps[1])
    elif name == "raw":
        by_layer = [METHODS[name](model, batch, layer=layer) for layer in (0, 1)]
        assert not torch.allclose(*by_layer, rtol=1e-3, atol=0), "two layers, one map"


def test_the_sweep_tries_every_pair_of_choices() -> None:
    choices = (tuple(METHODS), tuple(SIZES), tuple(PREFIXES), RUNS)
    for a, b in combinations(range(4), 2):
        assert {(case[a], case[b]) for case in SWEEP} == set(product(choices[a], choices[b]))


def test_the_table_says_what_each_method_takes() -> None:
    assert set(CLASS_SPECIFIC) | set(BY_LAYER) < set(METHODS)
    for name, method in METHODS.items():
        options = ({"target": 1} if name in CLASS_SPECIFIC else {}) | ({"layer": 0} if name in BY_LAYER else {})
        assert method(build(), images(), **options).shape[-2:] == (3, 4)


# --- A class that depends on one corner ---------------------------------------------------------------


def corner_images(number: int, corner: tuple[int, int], seed: int, blank: int = 0) -> tuple[Tensor, Tensor]:
    """Noise in 5 x 6 patches; the class is the sign of one patch's brightness. In the first `blank` it is 0."""
    generator = torch.Generator().manual_seed(seed)
    batch = torch.randn(number, 1, 20, 24, generator=generator)
    labels = torch.randint(0, 2, (number,), generator=generator)
    top, left = 4 * corner[0], 4 * corner[1]
    brightness = (2.0 * labels - 1).index_fill(0, torch.arange(blank), 0.0)
    batch[:, :, top : top + 4, left : left + 4] = brightness[:, None, None, None]
    return batch, labels


@cache
def corner_model(corner: tuple[int, int], classifier: Any, layers: int) -> VisionTransformer:
    """Trained until it knows; and to be undecided without the corner, so that no class is what remains if in doubt."""
    torch.manual_seed(0)
    sizes = {"image_size": (20, 24), "patch_size": 4, "hidden_size": 32, "heads": 2, "mlp_size": 32}
    config = ViTConfig(**sizes, in_channels=1, layers=layers, num_classes=2, classifier=classifier)
    model = VisionTransformer(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(400):
        batch, labels = corner_images(64, corner, step, blank=16)
        wanted = F.one_hot(labels, 2).float().index_fill(0, torch.arange(16), 0.5)
        loss = F.cross_entropy(model(batch), wanted) - math.log(2) / 4  # of which the undecided quarter cannot be rid
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if loss.item() < 2e-2:
            break
    return model.eval()


@pytest.mark.parametrize("classifier", ["token", "gap"])
@pytest.mark.parametrize("corner", [(0, 0), (4, 5), (0, 5)])
@pytest.mark.parametrize(
    ("name", "layers"),
    [("gradient", 1), ("gradient", 2), ("occlusion", 1), ("occlusion", 2), ("gradient-attention", 1)],
)
def test_the_map_peaks_where_the_class_is_decided(
    name: str, layers: int, corner: tuple[int, int], classifier: str
) -> None:
    """One layer's attention is asked of one layer alone: a deeper one's no longer tells where its patches have been."""
    model = corner_model(corner, classifier, layers)
    batch, labels = corner_images(16, corner, 10_000)
    with torch.no_grad():
        assert (model(batch).argmax(-1) == labels).all(), "the model should have learned it"
    options = {"square": 1} if name == "occlusion" else {}
    maps = METHODS[name](model, batch, labels, **options)
    peaks = maps.flatten(1).argmax(dim=1)
    assert (peaks == corner[0] * 6 + corner[1]).float().mean() >= 0.9
