"""Features and logits of made-up images: three classes whose features are clouds, and images of no class."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vitkit.inference import Seen

Array = npt.NDArray[np.float64]
CENTRES = 4 * np.eye(3, 6)


def known(n: int, seed: int) -> Seen:
    """Images of three classes, whose features are clouds."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n)
    return seen(CENTRES[labels] + rng.standard_normal((n, 6)), labels)


def seen(features: Array, labels: npt.NDArray[np.int64] | None = None) -> Seen:
    return Seen(features, features @ CENTRES.T, np.empty(0, np.int64) if labels is None else labels)


def far(n: int, seed: int) -> Seen:
    """Images in a direction that no class has."""
    return seen(np.random.default_rng(seed).standard_normal((n, 6)) + 6 * np.eye(1, 6, 5))
