"""Print any text on any console, without characters that a terminal would interpret as commands."""

from __future__ import annotations

import codecs
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from vitkit.system.files import to_json
from vitkit.text.cells import visible

if TYPE_CHECKING:
    from vitkit.verbs.result import Result

HARMLESS = "vitkit"  # the error handler for characters that an encoding lacks


def _replace(error: UnicodeError) -> tuple[str | bytes, int]:
    """Keep bytes of file names that are not UTF-8, and write characters that the console lacks as escapes."""
    assert isinstance(error, UnicodeEncodeError)
    if all("\udc80" <= character <= "\udcff" for character in error.object[error.start : error.end]):
        return codecs.lookup_error("surrogateescape")(error)
    return codecs.lookup_error("backslashreplace")(error)


codecs.register_error(HARMLESS, _replace)


def prepare_streams() -> None:
    """Make stdout and stderr accept any text, and replace one that was closed when the program started."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  # for as long as it runs
    for stream in (sys.__stdout__, sys.__stderr__):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=HARMLESS)


def give_up_stdout() -> None:
    """Discard all further output, silently, because its reader has closed it."""
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


def tell(line: str) -> None:
    """Print a note on stderr."""
    say(f"note: {line}", file=sys.stderr)


def show(result: Result, *, as_json: bool) -> None:
    """Print a result on stdout, as lines or as JSON."""
    if as_json:
        print(to_json(result.to_dict(), indent=2))
        return
    for line in result.lines():
        say(line)
