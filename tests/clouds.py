"""Features of made-up images: three classes whose features are clouds, and images of no class."""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
CENTRES = 4 * np.eye(3, 6)


def known(n: int, seed: int) -> Array:
    """Features of images of three classes."""
    rng = np.random.default_rng(seed)
    return CENTRES[rng.integers(0, 3, n)] + rng.standard_normal((n, 6))


def far(n: int, seed: int) -> Array:
    """Features of images in a direction that no class has."""
    return np.random.default_rng(seed).standard_normal((n, 6)) + 6 * np.eye(1, 6, 5)
