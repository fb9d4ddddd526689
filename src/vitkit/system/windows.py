"""Information about processes and memory on Windows. Other systems provide it by signals and by /proc.

The functions are called only on Windows. There, `os.kill` cannot test whether a process exists: signal 0 is Ctrl-C, and
other signals end the process at once.
"""

from __future__ import annotations

import sys

IS_WINDOWS = sys.platform == "win32"

if sys.platform == "win32":
    import ctypes
    from contextlib import contextmanager
    from ctypes import wintypes
    from typing import TYPE_CHECKING

    if TYPE_CHECKING:
        from collections.abc import Iterator

    _QUERY = 0x1000  # PROCESS_QUERY_LIMITED_INFORMATION
    _STILL_ACTIVE = 259
    _DENIED = 5  # the process exists and belongs to somebody else
    _KERNEL = ctypes.WinDLL("kernel32", use_last_error=True)
    _KERNEL.OpenProcess.restype = wintypes.HANDLE
    _KERNEL.OpenProcess.argtypes = (wintypes.DWORD, wintypes.BOOL, wintypes.DWORD)
    _KERNEL.CloseHandle.argtypes = (wintypes.HANDLE,)
    _KERNEL.GetExitCodeProcess.argtypes = (wintypes.HANDLE, ctypes.POINTER(wintypes.DWORD))
    _KERNEL.GetProcessTimes.argtypes = (wintypes.HANDLE, *[ctypes.POINTER(wintypes.FILETIME)] * 4)

    class _MemoryStatus(ctypes.Structure):
        """The structure MEMORYSTATUSEX of the Windows API."""

        _fields_ = (
            ("length", wintypes.DWORD),
            ("load", wintypes.DWORD),
            ("total", ctypes.c_uint64),
            ("available", ctypes.c_uint64),
            *((f"other_{number}", ctypes.c_uint64) for number in range(5)),
        )

    @contextmanager
    def _process(number: int) -> Iterator[int | None]:
        handle = _KERNEL.OpenProcess(_QUERY, False, number)  # noqa: FBT003  # not inherited
        try:
            yield handle
        finally:
            if handle:
                _KERNEL.CloseHandle(handle)

    def exists(process: int) -> bool:
        """Return whether a process with this id runs."""
        code = wintypes.DWORD()
        with _process(process) as handle:
            if not handle:
                return ctypes.get_last_error() == _DENIED
            return bool(_KERNEL.GetExitCodeProcess(handle, ctypes.byref(code))) and code.value == _STILL_ACTIVE

    def birth(process: int) -> str:
        """Return the start time of a process, in units of 100 ns; "" if it has ended or belongs to another user."""
        created, *others = (wintypes.FILETIME() for _ in range(4))
        if not exists(process):
            return ""
        with _process(process) as handle:
            times = [ctypes.byref(time) for time in (created, *others)]
            if not handle or not _KERNEL.GetProcessTimes(handle, *times):
                return ""
        return str(created.dwHighDateTime << 32 | created.dwLowDateTime)

    def available_memory() -> int:
        """Return the available main memory in bytes; 0 if Windows does not report it."""
        memory = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
        return int(memory.available) if _KERNEL.GlobalMemoryStatusEx(ctypes.byref(memory)) else 0

else:

    def exists(process: int) -> bool:
        """Return whether a process with this id runs."""
        raise NotImplementedError

    def birth(process: int) -> str:
        """Return when a process started."""
        raise NotImplementedError

    def available_memory() -> int:
        """Return the available main memory in bytes."""
        raise NotImplementedError
