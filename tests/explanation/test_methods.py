"""Rollout is the product of attention that is written with loops."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from refusals import refused
from tiny import build, images
from vitkit.explanation import attention_maps, rollout, rollout_matrix

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


def test_a_share_that_makes_no_sense_is_refused() -> None:
    for discard in (-0.1, 1.0, float("nan")):
        with refused("explanation.discard-outside"):
            rollout(build(), images(), discard=discard)
