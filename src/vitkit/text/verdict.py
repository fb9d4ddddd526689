"""The first thing that a page or a command says: one sentence to act on, and how much it can be relied on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Level = Literal["good", "note", "warning", "problem"]

_OF = (2, 3, 4, 5, 10, 20, 8, 6, 7, 9, 12, 15, 25, 30, 40, 50, 100, 200, 500, 1000)  # the plainest first
_EXACT = 0.15  # how far the words may fall below a share, as a part of what is missing to all or none


@dataclass(frozen=True)
class Verdict:
    """One sentence that a reader can act on."""

    level: Level  # good, or a note; after a warning there is something to look at, and after a problem to do first
    sentence: str  # begins with a capital letter and has no full stop at the end


def share_in_words(share: float, count: int) -> str:
    """Return a share of `count` things as people say it, never larger than it is, such as `19 of every 20` for 0.953.

    >>> share_in_words(0.953, 300), share_in_words(0.72, 50), share_in_words(355 / 359, 359), share_in_words(1.0, 40)
    ('19 of every 20', '7 of every 10', '355 of 359', 'all 40')
    """
    if share >= 1:
        return f"all {count:,}"
    if share * count < 1 - 1e-6:
        return f"none of {count:,}"
    for of in _OF:
        said = math.floor(share * of + 1e-9)
        if of <= count and said > 0 and share - said / of <= _EXACT * min(share, 1 - share):
            return f"{said} of {'' if of == count else 'every '}{of:,}"
    return f"{math.floor(share * count + 1e-6):,} of {count:,}"
