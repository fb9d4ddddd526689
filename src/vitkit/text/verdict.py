"""The verdict of a page or a command: the sentence that it begins with, and how serious it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Level = Literal["good", "note", "warning", "problem"]

_DENOMINATORS = (2, 3, 4, 5, 10, 20, 8, 6, 7, 9, 12, 15, 25, 30, 40, 50, 100, 200, 500, 1000)  # the simplest first
_TOLERANCE = 0.15  # the largest rounding error, relative to the distance of the share from 0 or 1


@dataclass(frozen=True)
class Verdict:
    """One sentence that a reader can act on."""

    level: Level  # a warning needs a look, and a problem must be solved first
    sentence: str  # begins with a capital letter and has no full stop at the end


def share_in_words(share: float, count: int) -> str:
    """Return a share of `count` things as a simple fraction, rounded down, such as `19 of every 20` for 0.953.

    >>> share_in_words(0.953, 300), share_in_words(0.72, 50), share_in_words(355 / 359, 359), share_in_words(1.0, 40)
    ('19 of every 20', '7 of every 10', '355 of 359', 'all 40')
    """
    if share >= 1:
        return f"all {count:,}"
    if share * count < 1 - 1e-6:
        return f"none of {count:,}"
    for denominator in _DENOMINATORS:
        numerator = math.floor(share * denominator + 1e-9)
        is_close = share - numerator / denominator <= _TOLERANCE * min(share, 1 - share)
        if denominator <= count and numerator > 0 and is_close:
            return f"{numerator} of {'' if denominator == count else 'every '}{denominator:,}"
    return f"{math.floor(share * count + 1e-6):,} of {count:,}"
