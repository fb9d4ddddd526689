"""What the logger `vitkit` receives."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _Hearing(logging.Handler):
    def __init__(self, hear: Callable[[str], object]) -> None:
        super().__init__()
        self._hear = hear

    def emit(self, record: logging.LogRecord) -> None:
        self._hear(record.getMessage())


@contextmanager
def heard(hear: Callable[[str], object]) -> Iterator[None]:
    """Call a function with each line that is logged in a `with` block."""
    handler = _Hearing(hear)
    logging.getLogger("vitkit").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("vitkit").removeHandler(handler)
