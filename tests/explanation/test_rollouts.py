"""Rollout is the product that the papers write down."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tiny import build, configs, images, randomise
from vitkit.errors import VitkitError
from vitkit.explanation import attention_maps, rollout, rollout_matrix
from vitkit.model import VisionTransformer, ViTConfig

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
@pytest.mark.parametrize("fields", [{}, {"pool": "gap"}, {"registers": 3}, {"conv_layers": (1,)}], ids=str)
def test_rollout_is_the_product_written_with_loops(fields: dict[str, Any], fusion: Any, discard: float) -> None:
    model = build(**fields)
    prefix = model.config.prefix_tokens
    layers = [attention.double().numpy() for attention in attention_maps(model, images())]
    expected = by_loops(layers, fusion, discard, prefix)
    matrix = rollout_matrix(model, images(), fusion=fusion, discard=discard)
    np.testing.assert_allclose(matrix, expected, atol=1e-6)
    rows = expected.mean(axis=1) if prefix == 0 else expected[:, 0]
    found = rollout(model, images(), fusion=fusion, discard=discard)
    np.testing.assert_allclose(found, rows[:, prefix:].reshape(2, 3, 4), atol=1e-6)


def test_a_distilled_model_is_followed_from_both_tokens() -> None:
    model = build(distill_token=True, distill_head=True)
    matrix = rollout_matrix(model, images())
    torch.testing.assert_close(rollout(model, images()), ((matrix[:, 0] + matrix[:, 1]) / 2)[:, 2:].view(2, 3, 4))


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(
    config=configs(),
    fusion=st.sampled_from(["mean", "max", "min", 0]),
    discard=st.floats(0, 1, exclude_max=True),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_every_row_of_the_product_sums_to_one(
    config: ViTConfig, fusion: Any, discard: float, dtype: torch.dtype
) -> None:
    if len(config.conv_layers) == config.layers:
        return
    model = randomise(VisionTransformer(config)).to(dtype)
    matrix = rollout_matrix(model, images(2, config=config), fusion=fusion, discard=discard)
    assert matrix.shape == (2, config.tokens, config.tokens)
    assert (matrix.sum(-1) - 1).abs().max() <= 1e-5


@pytest.mark.parametrize("discard", [-0.1, 1.0, float("nan")])
def test_a_share_that_makes_no_sense_is_refused(discard: float) -> None:
    with pytest.raises(VitkitError, match=r"discard must be in \[0, 1\)"):
        rollout(build(), images(), discard=discard)
