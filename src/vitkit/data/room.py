"""How much memory pictures may take at a time: threads that would take more wait until others are done."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LEAST = 2**30  # bytes that are shared out however little memory seems to be free
_UNCOUNTED = 2**16  # bytes of a picture that is not worth the counting


class NoRoomError(Exception):
    """A picture is larger than this process may decode."""


class Room:
    """So many bytes of decoded pictures at a time, in all threads of a process.

    A picture that is larger than the whole room has it alone. A thread that has a share is not made to wait for more,
    so that threads never wait in a circle.

    Args:
        size: bytes; None: a quarter of the memory that is free when it first matters, `LEAST` at least.
    """

    def __init__(self, size: int | None = None) -> None:
        self._size, self._most = size, math.inf
        self.clear()

    def limit(self, most: int) -> None:
        """Refuse what is larger, from now on, in the place of waiting until it has the room alone."""
        self._size = self._most = most

    def clear(self) -> None:
        """Forget what is held: a process that was forked has none of the threads that held it."""
        self._changed, self._held, self._own = threading.Condition(), 0, threading.local()

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """A function that takes bytes, waiting for them if need be; they are given back when the block ends.

        It raises NoRoomError for more than the limit, where there is one.
        """
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            if size > self._most:
                raise NoRoomError
            if size < _UNCOUNTED:
                return
            with self._changed:
                if not self._mine:
                    self._changed.wait_for(lambda: self._held == 0 or self._fits(self._held + size))
                self._held, self._own.held = self._held + size, self._mine + size
                taken += size

        try:
            yield take
        finally:
            if taken:
                with self._changed:
                    self._held, self._own.held = self._held - taken, self._mine - taken
                    self._changed.notify_all()

    @property
    def _mine(self) -> int:
        held: int = getattr(self._own, "held", 0)
        return held

    def _fits(self, size: int) -> bool:
        if self._size is None:
            if size <= LEAST:
                return True
            from vitkit.data.image_cache import available_memory

            self._size = max(LEAST, available_memory() // 4)
        return size <= self._size


ROOM = Room()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ROOM.clear)
