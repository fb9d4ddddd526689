"""Other processes that look at image files: what Python itself does for a small picture takes turns among threads.

They are started as programs of their own, since a process with threads cannot be forked safely and a user's script
cannot be imported twice. Where that fails, or one of them dies, the files are looked at here.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

from vitkit.data.doctor.contents import Stamped, examine
from vitkit.data.memory import Facts, Memory, row_of
from vitkit.data.opening import decoders
from vitkit.data.room import LEAST, ROOM
from vitkit.system.processes import python

_MOST = 32  # processes


class Readers:
    """Processes that are handed files, and tell what is in them. Threads may share them.

    Args:
        processes: how many; one is this process alone.
    """

    def __init__(self, processes: int) -> None:
        self._processes = min(processes, _MOST)
        self._idle: SimpleQueue[_Reader] = SimpleQueue()
        self._all: list[_Reader] = []

    def __enter__(self) -> Self:
        if self._processes > 1 and sys.executable:
            with contextlib.suppress(OSError):
                for _ in range(self._processes):
                    self._all.append(_Reader(LEAST // self._processes))
        for reader in self._all:
            self._idle.put(reader)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for reader in self._all:
            reader.leave()
        for reader in self._all:
            reader.wait()

    def examine(self, files: Sequence[Stamped]) -> list[Facts | None]:
        """The facts of each file; None where it is to be looked at in this process."""
        if not self._all:
            return [None] * len(files)
        reader = self._idle.get()
        try:
            return reader.examine(files)
        finally:
            self._idle.put(reader)


class _Reader:
    """One process, which may come to nothing."""

    def __init__(self, room: int) -> None:
        self._process = subprocess.Popen(  # noqa: S603  # this program
            python(__name__),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._is_able: bool | None = None  # until it is asked
        self._room = room

    def examine(self, files: Sequence[Stamped]) -> list[Facts | None]:
        try:
            if self._is_able is None:
                self._is_able = self._ask(self._room) == decoders()  # a format may have been added in this process
            if self._is_able:
                rows = self._ask([(str(file), stamp) for file, stamp in files])
                return [None if row is None else Facts(*row) for row in rows]
        except (OSError, EOFError, pickle.UnpicklingError):
            self._is_able = False
        return [None] * len(files)

    def _ask(self, what: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        pickle.dump(what, self._process.stdin)
        self._process.stdin.flush()
        return pickle.load(self._process.stdout)  # noqa: S301  # from our own process

    def leave(self) -> None:
        """Let it write down what it has learned, and end."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()

    def wait(self) -> None:
        """Until it has ended."""
        with self._process:
            self._process.wait()


def serve() -> None:
    """Look at the files that are named on stdin, until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to both, and the other one decides
    gc.set_threshold(100_000)  # little of what a picture leaves behind needs it
    asked, told = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no answer
    with Memory() as memory, contextlib.suppress(EOFError, BrokenPipeError):
        ROOM.limit(pickle.load(asked))  # noqa: S301
        _tell(told, decoders())
        while True:
            files = [(Path(name), stamp) for name, stamp in pickle.load(asked)]  # noqa: S301
            _tell(told, [None if own is None else row_of(own) for own in examine(files, memory)])


def _tell(out: Any, what: Any) -> None:
    pickle.dump(what, out)
    out.flush()


if __name__ == "__main__":
    serve()
