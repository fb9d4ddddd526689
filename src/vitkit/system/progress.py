"""The callbacks through which long work reports lines and progress.

Public functions take `progress` as a keyword. `check_arguments` puts it in force for the length of the call, and the
functions within report to it through `progress`, so that none of them has to hand it on.
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
    """Report progress to the receiver in force, which ignores it by default.

    Args:
        what: a description of the work, such as "reading images".
        done: how much of it is done.
        total: how much there is to do; None or 0 if unknown.
    """
    _RECEIVER.get()(what, done, total)


@contextmanager
def reporting_to(receiver: Progress) -> Iterator[None]:
    """Send the progress of a `with` block to a receiver, in this thread."""
    before = _RECEIVER.set(receiver)
    try:
        yield
    finally:
        _RECEIVER.reset(before)


@contextmanager
def reporting_within(label: str) -> Iterator[None]:
    """Put a label such as "run 2 of 6" before what a `with` block reports."""
    receiver = _RECEIVER.get()
    with reporting_to(lambda what, done, total: receiver(f"{label}: {what}", done, total)):
        yield
