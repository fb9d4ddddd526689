"""Test-time augmentation: average the class probabilities over several views of a picture.

`flip` adds the mirror image of each view. `crops` adds the four corners of the resized picture to the centre crop. Both
together give ten views (Krizhevsky et al. 2012, sec. 4.1). The first view is always the model's usual input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vitkit.errors import VitkitError

if TYPE_CHECKING:
    from PIL import Image

    from vitkit.data.preprocess import Preprocess

Array = npt.NDArray[np.float32]
KINDS = ("flip", "crops")


@dataclass(frozen=True)
class Views:
    """The views of each picture over which probabilities are averaged.

    Attributes:
        flip: whether each view is also mirrored.
        crops: whether the corners of the resized picture are used in addition to its centre.
    """

    flip: bool
    crops: bool

    @classmethod
    def of(cls, names: str) -> Views:
        """Parse the names of views, separated by commas.

        Raises:
            VitkitError: a name is unknown, missing or given twice.
        """
        parts = [part.strip() for part in names.split(",")]
        if not set(parts) <= set(KINDS) or len(set(parts)) < len(parts):
            raise VitkitError(f"--tta {names!r} must be flip, crops, or flip,crops")
        return cls("flip" in parts, "crops" in parts)

    def __str__(self) -> str:
        return ",".join(name for name in KINDS if getattr(self, name))

    @property
    def count(self) -> int:
        """The number of views of each picture, V."""
        return (5 if self.crops else 1) * (2 if self.flip else 1)

    @property
    def in_words(self) -> str:
        """The number and kinds of the views."""
        return f"mean of {self.count} views ({self})"

    def check(self, preprocess: Preprocess, recipe: object) -> None:
        """Check that the views suit a model.

        Args:
            preprocess: the preprocessing of the model.
            recipe: the fields of the model's training recipe; an empty mapping if they are not known.

        Raises:
            VitkitError: the model was trained without mirrored pictures because left and right differ, or its
                preprocessing does not crop.
        """
        if self.flip and isinstance(recipe, dict) and recipe.get("hflip") is False:
            raise VitkitError(
                "leave out --tta flip: this model was trained with --no-hflip, so mirroring may change the class"
            )
        if self.crops and not preprocess.fit.endswith("crop"):
            raise VitkitError(
                f"--tta crops: the preprocessing of this model (fit {preprocess.fit}) shows the whole picture and has "
                "nothing to crop: leave it out"
            )

    def pixels(self, image: Image.Image, preprocess: Preprocess) -> Array:
        """Convert an RGB picture to its views, (V, C, height, width)."""
        pictures = preprocess.crops(image) if self.crops else [preprocess.resize(image)]
        views = [preprocess.normalise(picture) for picture in pictures]
        if self.flip:
            views += [view[:, :, ::-1] for view in views]
        return np.stack(views)

    def mean(self, answer: Callable[[Array], Array]) -> Callable[[Array], Array]:
        """Return a function that maps views (B, V, C, height, width) to the mean of their probabilities, (B, K).

        Args:
            answer: a function that computes probabilities, (n, C, height, width) -> (n, K).
        """

        def compute(pixels: Array) -> Array:
            each = answer(pixels.reshape(-1, *pixels.shape[2:]))  # (B * V, K)
            return each.reshape(len(pixels), self.count, -1).mean(axis=1, dtype=np.float32)  # (B, K)

        return compute
