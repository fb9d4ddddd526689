"""Processes by more than their numbers, which systems give again."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


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
