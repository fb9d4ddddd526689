"""Counts and lists in sentences, and tables in lines."""

from __future__ import annotations

import math
from collections.abc import Sequence

_DASH = "\N{EN DASH}"  # between the ends of an interval


def plural(count: int, one: str, more: str) -> str:
    """`1 file`, or `2 files`."""
    return f"{count} {one if count == 1 else more}"


def by_chance(count: int, expected: float) -> str:
    """`of these 32 about 21 are expected by chance`."""
    about = f"{expected:.0f}" if expected >= 10 else f"{expected:.1f}"
    return f"of these {count} about {about} {'is' if about == '1.0' else 'are'} expected by chance"


def listed(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def one_of(words: tuple[str, ...]) -> str:
    """`a, b or c`."""
    return f"{', '.join(words[:-1])} or {words[-1]}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines whose columns stand below one another."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def interval_text(bounds: Sequence[float], decimals: int = 3) -> str:
    """An interval, rounded outwards: no end is shown as certain that is not."""
    unit = 10**decimals
    low, high = (round(bound * unit, 6) for bound in bounds)
    return f"{math.floor(low) / unit:.{decimals}f}{_DASH}{math.ceil(high) / unit:.{decimals}f}"
