"""What goes to the terminal: any text on any console, and none that a terminal would act upon."""

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

HARMLESS = "vitkit"  # how what an encoding lacks is written


def _replace(error: UnicodeError) -> tuple[str | bytes, int]:
    """Bytes of file names that are not UTF-8 as they are; a character that the console lacks as an escape."""
    assert isinstance(error, UnicodeEncodeError)
    if all("\udc80" <= character <= "\udcff" for character in error.object[error.start : error.end]):
        return codecs.lookup_error("surrogateescape")(error)
    return codecs.lookup_error("backslashreplace")(error)


codecs.register_error(HARMLESS, _replace)


def prepare_streams() -> None:
    """Make stdout and stderr take any text; one that was closed from the start swallows it."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  # for as long as it runs
    for stream in (sys.__stdout__, sys.__stderr__):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=HARMLESS)


def give_up_stdout() -> None:
    """Nobody reads any more: what is still to be written goes nowhere, without a word at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, sys.stdout.fileno())
    except (OSError, ValueError):
        pass
    finally:
        os.close(null)


def say(text: object = "", *, file: TextIO | None = None, flush: bool = False) -> None:
    """A line for people; control characters, as names may have them, are shown as escapes."""
    print(visible(str(text)), file=file, flush=flush)


def tell(line: str) -> None:
    """A line beside the answers, on stderr."""
    say(f"note: {line}", file=sys.stderr)


def show(found: Result, *, as_json: bool) -> None:
    """What a verb found, on stdout: its lines for people, or its figures as JSON for programs."""
    if as_json:
        print(to_json(found.to_dict(), indent=2))
        return
    for line in found.lines():
        say(line)
