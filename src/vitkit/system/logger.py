"""The logger `vitkit`, to which functions report while they work.

Lines about a run have the level INFO. Notes have the level WARNING: they report assumptions, and input that was not
understood. Both are printed, notes to stderr, unless the program configures logging or adds a handler to the logger.

    import logging

    logging.getLogger("vitkit").setLevel("WARNING")  # only notes
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("vitkit")


class _Print(logging.Handler):
    """Print lines if nothing else receives them."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.root.handlers or len(log.handlers) > 1:
            return
        if record.levelno >= logging.WARNING:
            print(f"note: {record.getMessage()}", file=sys.stderr, flush=True)
        else:
            print(record.getMessage(), flush=True)


if log.level == logging.NOTSET:
    log.setLevel(logging.INFO)
log.addHandler(_Print())


@contextmanager
def muted() -> Iterator[None]:
    """Log nothing in a `with` block."""
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before


@contextmanager
def labelled(label: str) -> Iterator[None]:
    """Put a label, such as the name of a data set, before each message that is logged in the `with` block."""

    def add(record: logging.LogRecord) -> bool:
        record.msg, record.args = f"{label}: {record.getMessage()}", ()
        return True

    log.addFilter(add)
    try:
        yield
    finally:
        log.removeFilter(add)
