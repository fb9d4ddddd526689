"""What a model folder stores about held-out images, so that predictions can come with promises.

`Trust` is the content of `trust.safetensors`. `rules_for` makes the rules of one `predict` from what the user
requests, and refuses what the images cannot support.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from vitkit.errors import VitkitError
from vitkit.inference.conformal import ClassSets, HeldOut, SetScore, class_sets
from vitkit.inference.selective import SureThreshold, sure_threshold

_VERSION = 1
_INTS, _FLOATS = ("label", "predicted", "rank"), ("rest", "above", "doubt")
MOST = 20_000  # held-out images that are stored; more hardly change a quantile


@dataclass(frozen=True, eq=False)
class Trust:
    """What a classifier knows about images that its weights were not trained on.

    Attributes:
        held_out: its predictions of them.
    """

    held_out: HeldOut

    def to_bytes(self) -> bytes:
        """Return the content of a .safetensors file."""
        from safetensors.numpy import save

        tensors: dict[str, npt.NDArray[Any]] = {name: getattr(self.held_out, name) for name in _FLOATS}
        tensors |= {name: getattr(self.held_out, name).astype(np.int32) for name in _INTS}
        header = {"format_version": str(_VERSION), "chosen": json.dumps(self.held_out.chosen)}
        return save({f"held_out.{name}": np.ascontiguousarray(array) for name, array in tensors.items()}, header)

    @classmethod
    def from_bytes(cls, data: bytes, classes: int) -> Trust:
        """Read what `to_bytes` wrote.

        Args:
            data: the content of the file.
            classes: number of the model's classes.

        Raises:
            VitkitError: the content is damaged, or a later version of vitkit wrote it.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            header = _header_of(data)
            if int(header["format_version"]) > _VERSION:
                raise VitkitError(
                    "a later version of vitkit has written the predictions of held-out images: upgrade it"
                )
            tensors = load(data)
            return cls(_held_out(tensors, tuple(json.loads(header["chosen"])), classes))
        except (SafetensorError, KeyError, TypeError, ValueError, RecursionError, OverflowError) as error:
            raise VitkitError(f"the predictions of held-out images are damaged: {error}") from error


@lru_cache(maxsize=8)
def parsed(data: bytes, classes: int) -> Trust:
    """Return `Trust.from_bytes`, which is remembered for a few models.

    Raises:
        VitkitError: the content is damaged, or a later version of vitkit wrote it.
    """
    return Trust.from_bytes(data, classes)


def _header_of(data: bytes) -> Mapping[str, Any]:
    """Return the text entries of a .safetensors file, whose header is JSON after its length in 8 bytes."""
    length = int.from_bytes(data[:8], "little")
    header: Mapping[str, Any] = json.loads(data[8 : 8 + length])["__metadata__"]
    return header


def _held_out(tensors: Mapping[str, npt.NDArray[Any]], chosen: tuple[str, ...], classes: int) -> HeldOut:
    integers: dict[str, Any] = {name: tensors[f"held_out.{name}"].astype(np.int64) for name in _INTS}
    floats: dict[str, Any] = {name: tensors[f"held_out.{name}"].astype(np.float64) for name in _FLOATS}
    shapes = {array.shape for array in (*integers.values(), *floats.values())}
    if len(shapes) != 1 or len(next(iter(shapes))) != 1:
        raise ValueError(f"arrays of held-out images have the shapes {sorted(shapes)}")
    if any(((array < 0) | (array >= classes)).any() for array in integers.values()):
        raise ValueError(f"classes are not from 0 to {classes - 1}")
    if not all(((array > -1e-6) & (array < 1 + 1e-6)).all() for array in floats.values()):
        raise ValueError("probabilities are not from 0 to 1")
    if not all(isinstance(text, str) for text in chosen):
        raise ValueError("what was chosen is not text")
    return HeldOut(**integers, **floats, chosen=chosen)


@dataclass(frozen=True)
class Rules:
    """The rules that decide what is said of an image besides its class.

    Attributes:
        sets: the rule for its set of classes; None if none is requested.
        sure: the threshold of sufficient confidence; None if every image is answered.
    """

    sets: ClassSets | None = None
    sure: SureThreshold | None = None

    def notes(self, chosen: tuple[str, ...]) -> list[str]:
        """Return lines about the rules; `chosen` is what was chosen with the help of the same images."""
        lines = []
        if self.sets is not None:
            lines.append(
                f"--coverage {self.sets.coverage}: sets by {self.sets.images} validation images; a set is to contain "
                f"the true class {self.sets.coverage:.4g} of the time, for photographs like those"
            )
        if self.sure is not None:
            lines.append(self.sure.in_words())
        if lines and chosen:
            lines.append(f"the same validation images were used to choose: {', '.join(chosen)}")
        return lines


NO_RULES = Rules()


def rules_for(
    trust: Trust | None,
    classes: tuple[str, ...],
    *,
    coverage: float | None = None,
    set_score: SetScore = "lac",
    by_class: bool = False,
    accuracy: float | None = None,
) -> Rules:
    """Return the rules that a user requests.

    Args:
        trust: what the classifier knows about held-out images; None if it knows nothing.
        classes: the names of its classes.
        coverage: how often sets are to contain the true class; None for no sets.
        set_score: the score of a class, one of `conformal.ClassSets`.
        by_class: whether sets are to contain the true class as often for each class.
        accuracy: how often answers are to be right; None to answer every image.

    Raises:
        VitkitError: there are no held-out images or too few of them, or a value is not between 0 and 1.
    """
    if coverage is None and by_class:
        raise VitkitError("--set-by-class applies to sets: request them by --coverage")
    if coverage is None and accuracy is None:
        return NO_RULES
    if trust is None:
        flag = "coverage" if coverage is not None else "accuracy"
        raise VitkitError(
            f"--{flag} requires a model that knows how it predicted held-out images: one with one class per image that "
            "`vitkit train` calibrated on validation images, or an export of it"
        )
    sets = None if coverage is None else class_sets(trust.held_out, classes, coverage, set_score, by_class=by_class)
    return Rules(sets, None if accuracy is None else sure_threshold(trust.held_out, accuracy))
