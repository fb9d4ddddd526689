"""Which photographs to label next: the choice is `evaluation.label_choice`'s, by what a frozen model sees in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitkit.data.label_file import EXCLUDED
from vitkit.data.pictures import UNLABELLED
from vitkit.errors import VitkitError
from vitkit.webapp.photographs import State

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def next_labels(
    state: State, seen: tuple[tuple[int, ...], npt.NDArray[np.float32]] | None, count: int
) -> dict[str, Any]:
    """The numbers of so many photographs without a class whose labels would teach the most, the most first.

    Args:
        state: of the photographs.
        seen: the numbers of those that could be read, and the features of each (n, D).
        count: how many are wanted.

    Raises:
        VitkitError: the photographs were not looked at yet, or all have a class.
    """
    if seen is None:
        raise VitkitError("the photographs were not looked at yet")
    from vitkit.evaluation.label_choice import choose_next

    numbers, features = seen
    rows = [row for row, i in enumerate(numbers) if state.labels[i] != EXCLUDED]
    labels = [None if (own := state.labels[numbers[row]]) == UNLABELLED else own for row in rows]
    if None not in labels:
        raise VitkitError("every photograph has a class already")
    chosen = choose_next(features[rows], labels, count)
    return {"images": [numbers[rows[i]] for i in chosen]}
