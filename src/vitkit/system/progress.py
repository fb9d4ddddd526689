"""What long work tells whoever watches: how far it is, and what there is to say."""

from __future__ import annotations

from collections.abc import Callable

Say = Callable[[str], None]  # takes a line
Progress = Callable[[str, int, int | None], None]  # what, how much is done, of how much; None or 0: nobody knows yet


def silent(what: str, done: int, total: int | None) -> None:
    """The progress of work that nobody watches."""


def unsaid(line: str) -> None:
    """Takes lines that are to be told nobody."""
