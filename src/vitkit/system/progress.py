"""Callbacks through which long work reports lines and progress, and a progress bar for Jupyter notebooks.

Public functions take a callback as the keyword argument `progress`. The decorator `check_arguments` makes the callback
the current receiver during the call. Inner functions report to the current receiver by calling `progress`, so the
callback need not be passed to them.

IPython is used only if it is already imported, as it is in a notebook.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from html import escape
from typing import Any

Say = Callable[[str], None]  # receives a line
Progress = Callable[[str, int, int | None], None]  # description, amount done, total (None or 0 if unknown)


def silent(what: str, done: int, total: int | None) -> None:
    """Ignore progress."""


def ignore(line: str) -> None:
    """Ignore a line."""


_RECEIVER: ContextVar[Progress] = ContextVar("receiver", default=silent)


def progress(what: str, done: int, total: int | None) -> None:
    """Report progress to the current receiver. If there is none, the report is ignored.

    Args:
        what: a description of the work, such as "reading images".
        done: amount of work that is done.
        total: total amount of work; None or 0 if unknown.
    """
    _RECEIVER.get()(what, done, total)


def receiver() -> Progress:
    """Return the current receiver, to pass it to other threads, which do not inherit it."""
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
    """Put a label such as "run 2 of 6" before the description of all progress that a `with` block reports."""
    outer = receiver()
    with reporting_to(lambda what, done, total: outer(f"{label}: {what}", done, total)):
        yield


# --- Progress in notebooks ------------------------------------------------------------------------------------

_UPDATE_INTERVAL = 0.2  # seconds


def display_of_notebook() -> Any:
    """Return the module `IPython.display` if this process is the kernel of a notebook, otherwise None."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if not hasattr(shell, "kernel"):  # a terminal with IPython has none
        return None
    import IPython.display

    return IPython.display


class NotebookBar(AbstractContextManager["NotebookBar"]):
    """A progress bar below the cell of a notebook, which disappears at the end.

    `bar(what, done, total)` updates it.

    Args:
        display: a module with `display` and `HTML` as in `IPython.display`.
    """

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None  # of the shown bar
        self._what = ""
        self._began_at = self._shown_at = 0.0  # seconds

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Show the progress and the time left."""
        now = time.monotonic()
        if what != self._what:
            self._what, self._began_at = what, now
        elif now - self._shown_at < _UPDATE_INTERVAL and done != total:
            return
        self._shown_at = now
        text, attributes = f"{what} {done}", ""
        if total:
            text += f"/{total}"
            attributes = f' value="{done}" max="{total}"'
            if done:
                seconds_left = (now - self._began_at) / done * (total - done)
                if seconds_left >= 1:
                    minutes, seconds = divmod(round(seconds_left), 60)
                    text += f", {minutes} min {seconds:02d} s left" if minutes else f", {seconds} s left"
        self._show(f"<progress{attributes} aria-label='{escape(what)}'></progress> {escape(text)}")

    def _show(self, html: str) -> None:
        content = self._display.HTML(html)
        if self._handle is None:
            self._handle = self._display.display(content, display_id=True)
        else:
            self._handle.update(content)

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        if self._handle is not None:
            self._show("")
