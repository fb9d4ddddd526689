"""What is refused is known by its code: messages may be reworded (`test_messages.py` reads them all)."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from vitkit.errors import VitkitError


@contextmanager
def refused(code: str, *named: str) -> Iterator[None]:
    """Expect an error with this code, whose message names these things."""
    with pytest.raises(VitkitError) as caught:
        yield
    assert caught.value.code == code, f"{caught.value.code}: {caught.value}"
    assert [name for name in named if name not in str(caught.value)] == [], caught.value
