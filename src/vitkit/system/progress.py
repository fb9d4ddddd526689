"""Callbacks through which long work reports lines and progress.

Public functions take a callback as the keyword argument `progress`. The decorator `check_arguments` makes the callback
the current receiver for the length of the call. Inner functions report to the current receiver by calling `progress`,
so that the callback need not be passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Say = Callable[[str], None]  # receives a line
Progress = Callable[[str, int, int | None], None]  # what, how much is done, of how much; None or 0 if unknown


def silent(what: str, done: int, total: int | None) -> None:
    """Ignore progress."""


def ignore(line: str) -> None:
    """Ignore a line."""


_RECEIVER: ContextVar[Progress] = ContextVar("receiver", default=silent)


def progress(what: str, done: int, total: int | None) -> None:
    """Report progress to the current receiver; by default, it is ignored.

    Args:
        what: a description of the work, such as "reading images".
        done: amount of work that is done.
        total: total amount of work; None or 0 if unknown.
    """
    _RECEIVER.get()(what, done, total)


def receiver() -> Progress:
    """Return the current receiver, to pass it to other threads, because threads do not inherit it."""
    return _RECEIVER.get()


@contextmanager
def reporting_to(target: Progress) -> Iterator[None]:
    """Make `target` the receiver of the progress that this thread reports in a `with` block."""
    before = _RECEIVER.set(target)
    try:
        yield
    finally:
        _RECEIVER.reset(before)


@contextmanager
def reporting_within(label: str) -> Iterator[None]:
    """Prefix the progress that a `with` block reports with a label such as "run 2 of 6"."""
    outer = receiver()
    with reporting_to(lambda what, done, total: outer(f"{label}: {what}", done, total)):
        yield
