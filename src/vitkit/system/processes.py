"""Processes of vitkit: how they are started, and how one is recognised by more than its number, which is used again."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_RUN = (
    "import sys; sys.path[:] = {path!r}; import os, runpy; os.environ['PYTHONSAFEPATH'] = '1'; "
    "runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
)


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of vitkit as a program, in an interpreter that imports nothing from where it runs.

    `python -m` and `python -c` import from the current folder first, which is often a folder of photographs: a
    `queue.py` in there, whosever it is, would run in the place of the standard library's.

    Args:
        module: its full name; `vitkit` is the command line.
        arguments: of the program.
    """
    return [sys.executable, "-P", "-c", _RUN.format(path=_safe_path(), module=module), *arguments]


def _safe_path() -> list[str]:
    """Where this process imports from, without the current folder, but in the end for vitkit itself."""
    here = os.path.realpath(os.curdir)
    named = [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str) and entry]  # noqa: PTH100
    path = [entry for entry in named if os.path.realpath(entry) != here]
    home = str(Path(__file__).parents[2])
    return path if os.path.realpath(home) != here else [*path, home]


def is_same(process: int, birth: str) -> bool:
    """Whether the process that began then (`birth_of`) still has this number, and is this user's.

    Where the system cannot tell when a process began, none is: a number alone may be any process's.
    """
    if process <= 1 or not birth or birth_of(process) != birth:
        return False
    with suppress(OSError, AttributeError):  # no such process by now; Windows has no users of this kind
        return not _PROC.is_dir() or (_PROC / str(process)).stat().st_uid == os.getuid()
    return False


def birth_of(process: int) -> str:
    """When a process began, as the system tells it: another one that gets its number later began at another time.

    Empty where there is no such process, where it has ended and only its number is left, or where the system cannot
    tell.
    """
    if (_PROC / "self" / "stat").is_file():
        with suppress(OSError, IndexError):
            fields = (_PROC / str(process) / "stat").read_text(errors="replace").rpartition(")")[2].split()
            boot = (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
            return "" if fields[0] in ("Z", "X") else f"{fields[19]} of {boot}"  # proc(5): state, starttime
        return ""
    with suppress(OSError, subprocess.SubprocessError):
        asked = ["ps", "-o", "lstart=", "-p", str(process)]
        return subprocess.run(asked, capture_output=True, text=True, timeout=5, check=False).stdout.strip()  # noqa: S603
    return ""
