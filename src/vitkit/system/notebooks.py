"""Display progress in Jupyter notebooks.

IPython is used only if it is already imported, as it is in a notebook.
"""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager
from html import escape
from typing import Any

_PAUSE = 0.2  # seconds between two updates


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
        self._display, self._handle = display, None
        self._what, self._began, self._shown = "", 0.0, 0.0

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Show the progress and the time left."""
        now = time.monotonic()
        if what != self._what:
            self._what, self._began = what, now
        elif now - self._shown < _PAUSE and done != total:
            return
        self._shown = now
        left = (now - self._began) / done * (total - done) if total and done else None
        amount = f"{done}/{total}" if total else str(done)
        value = f' value="{done}" max="{total}"' if total else ""
        words = escape(f"{what} {amount}" + ("" if not left or left < 1 else f", {_duration(left)} left"))
        self._show(f"<progress{value} aria-label='{escape(what)}'></progress> {words}")

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


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
