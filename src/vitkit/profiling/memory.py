"""The most memory that some work takes: of the GPU where there is one, else of the whole process."""

from __future__ import annotations

import ctypes
import gc
import re
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # as proc(5) has it


class PeakMemory:
    """Measures while its block runs.

    On a GPU it is what torch's allocator has given out there. Elsewhere it is the largest resident memory of the
    process, libraries and all, as Linux counts it once its mark is set back; `malloc` is asked to hand back what is
    free before, so that work done earlier does not count.

    Attributes:
        peak: bytes, once the block has ended; None where the system does not say.
    """

    peak: int | None = None

    def __enter__(self) -> Self:
        import torch

        gc.collect()
        self._on_gpu = torch.cuda.is_available()
        self._is_set = True
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats()
            return self
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        try:
            _CLEAR.write_text(_RESET_PEAK)
        except OSError:
            self._is_set = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        import torch

        if self._on_gpu:
            self.peak = torch.cuda.max_memory_allocated() or None  # 0: it was computed elsewhere
        elif self._is_set and sys.platform == "linux":
            self.peak = _peak_of_process()


def _peak_of_process() -> int | None:
    with suppress(OSError):
        found = re.search(r"^VmHWM:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
        return None if found is None else int(found[1]) * 1024
    return None
