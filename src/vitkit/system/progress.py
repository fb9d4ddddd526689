"""The callbacks through which long work reports lines and progress, and the callbacks that ignore them."""

from __future__ import annotations

from collections.abc import Callable

Say = Callable[[str], None]  # receives a line
Progress = Callable[[str, int, int | None], None]  # what, how much is done, of how much; None or 0 if unknown


def silent(what: str, done: int, total: int | None) -> None:
    """Ignore progress."""


def ignore(line: str) -> None:
    """Ignore a line."""
