"""Print text and progress.

Control characters are escaped, because a terminal would interpret them as commands. Progress is written to stderr: as a
bar on a terminal, otherwise as occasional lines.
"""

from __future__ import annotations

import codecs
import io
import logging
import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from vitkit.system.files import to_json
from vitkit.system.logger import log
from vitkit.text.cells import visible

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from vitkit.verbs.result import Result


_is_quiet = False
HARMLESS = "vitkit"  # the error handler for characters that an encoding lacks


def _replace_harmlessly(error: UnicodeError) -> tuple[str | bytes, int]:
    """Keep bytes of file names that are not UTF-8, and replace characters that the console lacks with escapes."""
    assert isinstance(error, UnicodeEncodeError)
    if all("\udc80" <= character <= "\udcff" for character in error.object[error.start : error.end]):
        return codecs.lookup_error("surrogateescape")(error)
    return codecs.lookup_error("backslashreplace")(error)


codecs.register_error(HARMLESS, _replace_harmlessly)


def prepare_streams() -> None:
    """Make stdout and stderr accept any text. If one of them is closed, replace it with the null device.

    Output into a file or a pipe is UTF-8, as all files of vitkit are, unless PYTHONIOENCODING says otherwise.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  # for as long as it runs
    for stream in (sys.__stdout__, sys.__stderr__):
        if isinstance(stream, io.TextIOWrapper):
            uses_utf8 = not stream.isatty() and "PYTHONIOENCODING" not in os.environ
            stream.reconfigure(encoding="utf-8" if uses_utf8 else None, errors=HARMLESS)


def give_up_stdout() -> None:
    """Discard all further output without an error, because the reader of stdout has closed the pipe."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, sys.stdout.fileno())
    except (OSError, ValueError):
        pass
    finally:
        os.close(null)


def say(text: object = "", *, file: TextIO | None = None, flush: bool = False) -> None:
    """Print a line in which control characters, for example in file names, are shown as escapes."""
    print(visible(str(text)), file=file, flush=flush)


def set_quiet(wanted: bool) -> None:
    """Set whether only results and errors are printed (--quiet)."""
    global _is_quiet  # a setting of the whole program, like its streams
    _is_quiet = wanted


def remark(text: object, *, file: TextIO | None = None, flush: bool = False) -> None:
    """Print a line that is neither a result nor an error. With --quiet, it is not printed."""
    if not _is_quiet:
        say(text, file=file, flush=flush)


def show(result: Result, *, as_json: bool) -> None:
    """Print a result on stdout, as lines or as JSON."""
    if as_json:
        print(to_json(result.to_dict(), indent=2))
        return
    for line in result.lines():
        say(line)
    show_next(result)


def show_next(result: Result) -> None:
    """Print what to do with a result on stderr, if there is anything."""
    if result.next_step:
        remark(f"Next: {result.next_step}", file=sys.stderr)


_SECONDS_BETWEEN_LINES = 10.0


class Bar(logging.Handler):
    """A progress bar on stderr, which also prints what is logged in its `with` block.

    `bar(what, done, total)` updates the bar. Lines about a run are printed to stdout, notes to stderr.

    Args:
        as_json: whether lines about a run are printed to stderr, too, as stdout only receives JSON.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        super().__init__()
        self._as_json = as_json
        self._is_shown = sys.stderr.isatty() and not _is_quiet
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._last_output = time.monotonic()

    def __enter__(self) -> Self:
        log.addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        log.removeHandler(self)
        self.stop()

    def stop(self) -> None:
        """Remove the bar from the terminal."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
        self._is_shown = False

    def __call__(self, what: str, done: int, total: int | None) -> None:
        if not self._is_shown:
            if time.monotonic() - self._last_output > _SECONDS_BETWEEN_LINES:
                self._last_output = time.monotonic()
                remark(f"{what}: {done}" + (f" of {total}" if total else ""), file=sys.stderr, flush=True)
            return
        if self._progress is None or self._task is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._progress.start()
            self._task = self._progress.add_task(what)
        self._progress.update(self._task, description=what, completed=done, total=total)

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line that stays on the terminal."""
        line = record.getMessage()
        if record.levelno >= logging.WARNING:
            remark(f"note: {line}", file=sys.stderr)
            return
        if self._as_json:
            remark(line, file=sys.stderr)
            return
        self._last_output = time.monotonic()
        if self._progress is not None and sys.stdout.isatty():
            self._progress.console.file.flush()
            self._progress.console.print(visible(line), markup=False, highlight=False, soft_wrap=True)
        else:
            remark(line, flush=True)
