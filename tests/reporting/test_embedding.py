"""Where images lie on the page: by their features, the same each time."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from vitkit.reporting import lay_out

pytestmark = pytest.mark.usefixtures("drawn_pictures")  # by all steps


def features(n: int = 60, d: int = 8) -> np.ndarray:
    rng = np.random.default_rng(0)
    return (np.eye(3)[np.arange(n) % 3] @ rng.normal(0, 5, (3, d)) + rng.normal(size=(n, d))).astype(np.float32)


def test_images_of_one_kind_lie_together() -> None:
    points = lay_out(features())
    assert points is not None and points.shape == (60, 2)
    kinds = np.arange(60) % 3
    assert KNeighborsClassifier(5).fit(points, kinds).score(points, kinds) > 0.95


def test_the_layout_is_the_same_each_time() -> None:
    first, second = lay_out(features(24)), lay_out(features(24))
    assert first is not None and second is not None
    np.testing.assert_array_equal(first, second)


def test_too_few_images_or_images_that_are_all_alike_have_no_layout() -> None:
    assert lay_out(features(19)) is None
    assert lay_out(np.ones((30, 4), np.float32)) is None
    assert lay_out(np.full((30, 4), np.nan, np.float32)) is None
