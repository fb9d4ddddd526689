"""What the names and shapes of stored tensors say: names that match a pattern, sizes that most tensors have."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitkit.weights.checkpoint import StoredTensor


def matches_of(pattern: str | re.Pattern[str], names: Iterable[str]) -> list[re.Match[str]]:
    """Return the matches of a pattern at the start of names, without those names that do not match."""
    return [match for match in map(re.compile(pattern).match, names) if match]


def reasons_of(reasons: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the names that match the patterns in `reasons`, each with the reason of its pattern."""
    return {match.string: why for pattern, why in reasons.items() for match in matches_of(pattern, names)}


def most_common(values: Iterable[int]) -> int:
    """Return the most common value, the first one of several; 0 if there is none."""
    counts = Counter(values)
    return max(counts, key=counts.__getitem__, default=0)


def shape_of(name: str, tensors: Mapping[str, StoredTensor]) -> tuple[int, ...]:
    """Return the shape of a stored tensor; () if the checkpoint lacks it."""
    return tensors[name].shape if name in tensors else ()
