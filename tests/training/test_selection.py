"""The cross-validation of a linear probe that decides between a head and fine-tuning."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from vitkit.training import selection


def right(x: torch.Tensor, y: torch.Tensor, parts: int) -> torch.Tensor:
    fold_of = torch.arange(len(y)) % parts
    found = torch.zeros(len(y), dtype=torch.bool)
    for part in range(parts):
        own = selection._right_of_part(x, y, fold_of, part, 4)
        assert not (own & (fold_of != part)).any()
        found |= own
    return found


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_an_image_is_not_judged_by_a_probe_that_knows_it(parts: int) -> None:
    """Features that name each image, and labels by lot: who has seen the label knows it, and nobody else does."""
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.permutation(np.arange(240) % 4))
    x = torch.eye(240) + 0.01 * torch.from_numpy(rng.normal(size=(240, 240)).astype(np.float32))
    low, high = binomtest(int(right(x, y, parts).sum()), 240).proportion_ci(0.999)
    assert low < 0.25 < high


def test_features_that_tell_the_classes_apart_are_right() -> None:
    y = torch.arange(200) % 4
    x = torch.eye(4)[y] + 0.1 * torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    assert right(x, y, 5).all()
