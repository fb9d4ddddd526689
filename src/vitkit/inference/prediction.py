"""The prediction for one image: its classes by their probability, sorted as far as they are requested."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

from vitkit.text.cells import JOINT

Place = tuple[str, float]


class Ranking(Sequence[Place]):
    """Every class with its probability, most probable first; ties keep the order of the classes.

    It compares and hashes as the tuple of all of them would.

    Attributes:
        classes: K names.
        probabilities: (K,), in their order.
    """

    def __init__(self, classes: Sequence[str], probabilities: npt.NDArray[np.float32]) -> None:
        self.classes, self.probabilities = classes, probabilities

    def __len__(self) -> int:
        return len(self.probabilities)

    @overload
    def __getitem__(self, index: int) -> Place: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Place, ...]: ...
    def __getitem__(self, index: int | slice) -> Place | tuple[Place, ...]:
        every = range(len(self))[index]
        if isinstance(every, int):
            return self._first(every + 1)[every]
        first = self._first(max(every, default=-1) + 1)
        return tuple(first[i] for i in every)

    def __iter__(self) -> Iterator[Place]:
        return iter(self._first(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Ranking, tuple)) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def _first(self, count: int) -> tuple[Place, ...]:
        """Return the most probable classes without sorting the others."""
        p = self.probabilities
        if count == 1:
            order = np.array([p.argmax()])
        else:
            least = np.partition(p, len(p) - count)[len(p) - count] if 0 < count < len(p) else -np.inf
            likely = np.flatnonzero(p >= least)
            order = likely[np.argsort(-p[likely], kind="stable")][:count]
        return tuple((self.classes[i], float(p[i])) for i in order)


@dataclass(frozen=True)
class Prediction:
    """The prediction for one image.

    Attributes:
        path: the path as the caller named it.
        label: the most probable class; None when there is no answer. Of a multi-label model the classes that
            reach their thresholds, in the order of the classes, joined by `;`; "" when none does.
        confidence: its probability; the lowest of those named, or when none is, 1 - the highest of all.
        ranking: every class with its probability, the most probable first, sorted as far as it is read (`Ranking`).
        error: why there is no answer: the image could not be read, or the model's numbers are not finite.
    """

    path: str
    label: str | None = None
    confidence: float | None = None
    ranking: Sequence[tuple[str, float]] = ()
    error: str | None = None


def rank(path: str, ranking: Ranking, thresholds: npt.NDArray[np.float64] | None) -> Prediction:
    """Make the prediction from a ranking; `thresholds` (K,) are those of a multi-label model."""
    if thresholds is None:
        return Prediction(path, *ranking[0], ranking)
    p = ranking.probabilities
    named = np.flatnonzero(p >= thresholds)
    confidence = p[named].min() if len(named) else 1 - p.max()
    return Prediction(path, JOINT.join(ranking.classes[i] for i in named.tolist()), float(confidence), ranking)
