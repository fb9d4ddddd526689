"""Which photographs a report holds: all of a few images, of many those that a click is most likely to ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vitkit.evaluation.doubts import Doubt
from vitkit.evaluation.embedding import LaidOut
from vitkit.evaluation.metrics import Evaluation
from vitkit.evaluation.multilabel import MultiEvaluation
from vitkit.reporting.gallery import Thumbnail, size, thumbnails
from vitkit.reporting.report_data import listed

FIRST = 24  # in a gallery that is read without a script
MOST, MOST_DOUBTED = 500, 100  # photographs in a page
_BYTES = 10_000_000  # that they take, so that the page is below 20 MB
_OF_A_PAIR, _OF_PAIRS = 3, 150  # mistakes of a pair of classes, of all pairs, before others


class Explained(NamedTuple):
    """A mistake, and where its classes come from.

    Attributes:
        image: its number in the evaluation.
        title: what was taken for what.
        pictures: caption and JPEG; the photograph first.
    """

    image: int
    title: str
    pictures: Sequence[tuple[str, bytes]]


@dataclass(frozen=True)
class Photographs:
    """The photographs of a report.

    Attributes:
        root: the folder that paths are relative to; None where images are no files.
        listed: numbers of the images that the page lists.
        first: numbers of those that are shown without a script.
        of_images: photographs by the image's number.
        of_doubts: photographs of the first labels to look at, in their order.
    """

    root: Path | None
    listed: npt.NDArray[np.int64]
    first: Sequence[int]
    of_images: Mapping[int, Thumbnail]
    of_doubts: Sequence[Thumbnail]

    @classmethod
    def of(
        cls, evaluation: Evaluation, root: Path | None, doubts: Sequence[Doubt], laid_out: LaidOut | None
    ) -> Photographs:
        """Those of an evaluation and of labels to look at."""
        shown = listed(evaluation)
        if root is None:
            return cls(None, shown, (), {}, ())
        there = set(shown.tolist())
        order = [i for i in wanted(evaluation, laid_out) if i in there]
        first = order[:FIRST]
        if not isinstance(evaluation, MultiEvaluation):
            wrong = set(evaluation.mistakes(FIRST))
            first = [i for i in first if i in wrong]
        chosen = list(dict.fromkeys([*first, *order]))[:MOST]
        kept: dict[int, Thumbnail] = {}
        spent = 0
        for i, own in zip(chosen, thumbnails(root / evaluation.paths[i] for i in chosen), strict=True):
            spent += size(own)
            if spent > _BYTES and i not in first:
                break
            kept[i] = own
        doubted = list(thumbnails(root / own.path for own in doubts[:MOST_DOUBTED]))
        return cls(root, shown, first, kept, doubted)

    def place(self, image: int) -> int:
        """Where an image is in the page's list."""
        return int(np.searchsorted(self.listed, image))

    def addresses(self) -> dict[str, str]:
        """The photographs that no gallery of the page shows, by the image's place in the page's list."""
        others = [(self.place(i), own.address) for i, own in self.of_images.items() if i not in self.first]
        return {str(place): address for place, address in others if address is not None}

    def addresses_of_doubts(self) -> dict[str, str]:
        """The same of labels to look at."""
        others = [(place, own.address) for place, own in enumerate(self.of_doubts) if place >= FIRST]
        return {str(place): address for place, address in others if address is not None}


def wanted(evaluation: Evaluation, laid_out: LaidOut | None) -> list[int]:
    """Images in the order in which their photographs are wanted: confident mistakes, some of each pair, points."""
    n = len(evaluation.paths)
    if isinstance(evaluation, MultiEvaluation):
        wrong = np.flatnonzero((evaluation.predicted != evaluation.labels).any(axis=1)).tolist()
        return list(dict.fromkeys([*wrong, *range(n)]))
    mistakes = evaluation.mistakes(n)
    seen: dict[tuple[int, int], int] = {}
    of_pairs = []
    for i in mistakes:
        pair = int(evaluation.labels[i]), int(evaluation.predicted[i])
        seen[pair] = seen.get(pair, 0) + 1
        if seen[pair] <= _OF_A_PAIR:
            of_pairs.append(i)
    points = [] if laid_out is None else laid_out[0].tolist()
    others = np.random.default_rng(0).permutation(n).tolist()
    return list(dict.fromkeys([*mistakes[:FIRST], *of_pairs[:_OF_PAIRS], *points, *mistakes, *others]))
