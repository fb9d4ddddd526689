"""Show the progress of long work on stderr: as a bar on a terminal, and as occasional lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from vitkit.cli.say import say
from vitkit.text.cells import visible

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_SECONDS_BETWEEN_LINES = 10.0


class Bar:
    """A progress bar. `bar(what, done, total)` moves it, and `bar.say(line)` prints a line above it, to stdout."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._what = ""
        self._last_output = time.monotonic()

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Remove the bar from the terminal."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def __call__(self, what: str, done: int, total: int | None) -> None:
        if self._progress is not None:
            if self._task is None:
                self._task = self._progress.add_task(what)
            self._progress.update(self._task, description=what, completed=done, total=total)
        elif time.monotonic() - self._last_output > _SECONDS_BETWEEN_LINES:
            self._last_output = time.monotonic()
            say(f"{what}: {done}" + (f" of {total}" if total else ""), file=sys.stderr, flush=True)

    def say(self, line: str) -> None:
        """Print a line that stays on the terminal."""
        self._last_output = time.monotonic()
        if self._progress is not None and sys.stdout.isatty():
            self._progress.console.file.flush()
            self._progress.console.print(visible(line), markup=False, highlight=False, soft_wrap=True)
        else:
            say(line, flush=True)
