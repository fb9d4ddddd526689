"""How far long work is: what is being done, how much of it is done, of how much."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int | None], None]  # what, how much is done, of how much; None or 0: nobody knows yet


def silent(what: str, done: int, total: int | None) -> None:
    """The progress of work that nobody watches."""
