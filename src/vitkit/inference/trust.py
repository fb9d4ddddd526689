"""A classifier's record of held-out images, and the guarantees that predictions derive from it.

`Trust` is the content of `trust.safetensors` in a model folder. `rules_for` converts a user's requests to rules for
predictions. It refuses requests for which there are too few held-out images.
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
from vitkit.inference.conformal import CROSS_VALIDATED, VALIDATION, ClassSets, HeldOut, SetScore, class_sets
from vitkit.inference.selective import SureThreshold, sure_threshold
from vitkit.inference.unknown import Unknown, check_level, from_arrays, to_arrays

_VERSION = 1
_HEADER = "trust"  # the key of the file's metadata
_INTS, _FLOATS = ("label", "predicted", "rank"), ("rest", "above", "doubt")
UNKNOWN = "?"  # the label of an image that is called unknown
NOT_FITTED = (
    "one with one class per image that `vitkit train` fitted to validation images, or an export of it; models that "
    "earlier versions of vitkit trained have none"
)
MOST = 20_000  # held-out images that are stored; more hardly change a quantile


@dataclass(frozen=True, eq=False)
class Trust:
    """The record of a classifier's predictions for images that its weights were not trained on.

    Attributes:
        held_out: the predictions.
        unknown: the out-of-distribution detector with its scores of held-out images; None if none was fitted.
    """

    held_out: HeldOut
    unknown: Unknown | None = None

    def to_bytes(self) -> bytes:
        """Return the record as the content of a .safetensors file."""
        from safetensors.numpy import save

        tensors: dict[str, npt.NDArray[Any]] = {name: getattr(self.held_out, name) for name in _FLOATS}
        tensors |= {name: getattr(self.held_out, name).astype(np.int32) for name in _INTS}
        named = {f"held_out.{name}": array for name, array in tensors.items()}
        about: dict[str, Any] = {"format_version": _VERSION, "chosen": list(self.held_out.chosen)}
        about |= {"folds": self.held_out.folds} if self.held_out.folds else {}
        if self.unknown is not None:
            arrays, about["unknown"] = to_arrays(self.unknown)
            named |= {f"unknown.{name}": array for name, array in arrays.items()}
        named = {name: np.ascontiguousarray(array) for name, array in named.items()}
        return save(named, {_HEADER: json.dumps(about)})  # one entry, as the order of several is random

    @classmethod
    def from_bytes(cls, data: bytes, classes: int) -> Trust:
        """Parse the result of `to_bytes`.

        Args:
            data: the content of the file.
            classes: number of the model's classes.

        Raises:
            VitkitError: the content is damaged, or a later version of vitkit wrote it.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            about = _header_of(data)
            if about["format_version"] > _VERSION:
                raise VitkitError(
                    "a later version of vitkit has written the predictions of held-out images: upgrade it"
                )
            tensors = load(data)
            held_out = _held_out(tensors, tuple(about["chosen"]), about.get("folds", 0), classes)
            if "unknown" not in about:
                return cls(held_out)
            arrays = {name.removeprefix("unknown."): array for name, array in tensors.items()}
            return cls(held_out, from_arrays(arrays, about["unknown"]))
        except (SafetensorError, KeyError, TypeError, ValueError, RecursionError, OverflowError) as error:
            raise VitkitError(f"the predictions of held-out images are damaged: {error}") from error


@lru_cache(maxsize=8)
def parsed(data: bytes, classes: int) -> Trust:
    """Return `Trust.from_bytes(data, classes)`, cached for the last eight models.

    Raises:
        VitkitError: the content is damaged, or a later version of vitkit wrote it.
    """
    return Trust.from_bytes(data, classes)


def _header_of(data: bytes) -> Mapping[str, Any]:
    """Return the metadata that `to_bytes` wrote. A file starts with 8 bytes, the length of its JSON header."""
    length = int.from_bytes(data[:8], "little")
    about: Mapping[str, Any] = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][_HEADER])
    return about


def _held_out(tensors: Mapping[str, npt.NDArray[Any]], chosen: tuple[str, ...], folds: Any, classes: int) -> HeldOut:
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
    if type(folds) is not int or folds < 0:
        raise ValueError(f"the number of folds is {folds}")
    return HeldOut(**integers, **floats, chosen=chosen, folds=folds)


@dataclass(frozen=True)
class PredictionRules:
    """The rules for prediction sets and for withheld labels.

    Attributes:
        sets: the rule for prediction sets; None if no sets are requested.
        sure: the confidence threshold below which labels are withheld; None if no accuracy is requested.
        unknown: the highest p-value of an image that is called unknown; None to call no image unknown.
        chosen: the settings that were chosen on the same held-out images.
        folds: the number of folds if the held-out images were predicted by cross-validation (`conformal.HeldOut`), else
            0.
    """

    sets: ClassSets | None = None
    sure: SureThreshold | None = None
    unknown: float | None = None
    chosen: tuple[str, ...] = ()
    folds: int = 0

    def notes(self) -> list[str]:
        """Return lines of text that explain the rules; an empty list if there are no rules."""
        lines = []
        kind = CROSS_VALIDATED if self.folds else VALIDATION
        if self.sets is not None:
            lines.append(
                f"--coverage {self.sets.coverage}: sets by {self.sets.images} {kind}; a set is to contain "
                f"the true class {self.sets.coverage:.4g} of the time, for photographs like those"
            )
        if self.sure is not None:
            lines.append(self.sure.in_words())
        if self.unknown is not None:
            lines.append(
                f"--unknown {self.unknown}: an image is called {UNKNOWN} if it looks less familiar than all but "
                f"{self.unknown:.4g} of the {kind}, as that part of known images does, too"
            )
        if self.folds and (self.sets is not None or self.sure is not None):
            lines.append(
                f"the model was trained on these images too, and each was predicted by a model of the other folds (of "
                f"{self.folds}): this holds as far as such models are alike, and has no guarantee"
            )
        if self.chosen:
            lines.append(f"the same {kind} were used to choose: {', '.join(self.chosen)}")
        return lines


NO_RULES = PredictionRules()


def rules_for(
    trust: Trust | None,
    classes: tuple[str, ...],
    *,
    coverage: float | None = None,
    set_score: SetScore = "lac",
    by_class: bool = False,
    accuracy: float | None = None,
    unknown: float | None = None,
) -> PredictionRules:
    """Return the rules that a user requests.

    Args:
        trust: the classifier's record of held-out images; None if it has none.
        classes: the names of the classifier's classes.
        coverage: the fraction of prediction sets that must contain the true class; None for no sets.
        set_score: the score of a class, see `conformal.ClassSets`.
        by_class: whether the coverage must hold for each class, instead of for all images together.
        accuracy: the accuracy that labels must have; labels that are too uncertain are withheld. None to withhold none.
        unknown: the highest p-value of an image that is called unknown; None to call no image unknown.

    Raises:
        VitkitError: there are no held-out images or too few of them, or a value is not between 0 and 1.
    """
    if coverage is None and by_class:
        raise VitkitError("--set-by-class applies to sets: request them by --coverage")
    if coverage is None and accuracy is None and unknown is None:
        return NO_RULES
    if unknown is not None:
        if trust is None or trust.unknown is None:
            raise VitkitError(f"--unknown requires a model with a score for unknown images: {NOT_FITTED}")
        check_level(trust.unknown, unknown)
    if coverage is None and accuracy is None:
        held_out = None if trust is None else trust.held_out
        return PredictionRules(
            unknown=unknown,
            chosen=() if held_out is None else held_out.chosen,
            folds=0 if held_out is None else held_out.folds,
        )
    if trust is None:
        flag = "coverage" if coverage is not None else "accuracy"
        raise VitkitError(
            f"--{flag} requires a model that knows how it predicted held-out images: one with one class per image that "
            "`vitkit train` calibrated on validation images, or an export of it"
        )
    sets = None if coverage is None else class_sets(trust.held_out, classes, coverage, set_score, by_class=by_class)
    sure = None if accuracy is None else sure_threshold(trust.held_out, accuracy)
    return PredictionRules(sets, sure, unknown, trust.held_out.chosen, trust.held_out.folds)
