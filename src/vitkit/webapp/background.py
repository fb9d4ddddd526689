"""Work that takes longer than a page waits: one at a time of each kind, with how far it is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from vitkit.errors import VitkitError, first_line
from vitkit.system.progress import Progress

T = TypeVar("T")


class Background(Generic[T]):
    """Runs one thing at a time in a thread, and remembers what came of the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._told: tuple[str, int, int | None] = ("", 0, None)
        self._error = ""
        self._result: T | None = None
        self._key: object = None

    def start(self, key: object, work: Callable[[Progress], T]) -> None:
        """Begin, unless it runs already.

        Args:
            key: what it is that is worked on; what `result` gives back belongs to it.
            work: is given where to tell how far it is.
        """
        with self._lock:
            if self.is_running:
                return
            self._told, self._error, self._key, self._result = ("", 0, None), "", key, None
            self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
            self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether something runs."""
        return self._thread is not None and self._thread.is_alive()

    def result(self, key: object) -> T | None:
        """What came of it, where it was about the same."""
        return self._result if self._key == key else None

    def to_dict(self) -> dict[str, Any]:
        """How far it is, and why it failed."""
        what, done, total = self._told
        return {"running": self.is_running, "what": what, "done": done, "total": total, "error": self._error}

    def _run(self, work: Callable[[Progress], T]) -> None:
        try:
            self._result = work(self._tell)
        except (VitkitError, OSError) as error:
            self._error = first_line(error)
        except Exception as error:  # a thread's own end, which nobody else hears of
            self._error = f"{type(error).__name__}: {first_line(error)}"

    def _tell(self, what: str, done: int, total: int | None) -> None:
        self._told = (what, done, total)
