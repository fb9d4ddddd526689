"""What would spoil a training run, found before it starts."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from vitkit.data.decode import UnreadableImageError, decode
from vitkit.data.source import ImageTable
from vitkit.errors import VitkitError


def drop_unreadable(
    table: ImageTable, progress: Callable[[int, int], None] | None = None
) -> tuple[ImageTable, dict[str, str]]:
    """Decode every file once, in full.

    Args:
        table: the images.
        progress: told how many of how many are done.

    Returns:
        The table of readable images, without classes that have none, and the reason of each unreadable path.

    Raises:
        VitkitError: fewer than two classes have a readable image.
    """
    reasons: list[str | None] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow decodes outside the interpreter's lock
        for reason in pool.map(lambda i: _fault(table, i), range(len(table))):
            reasons.append(reason)
            if progress is not None:
                progress(len(reasons), len(table))
    unreadable = {table.paths[i]: reason for i, reason in enumerate(reasons) if reason is not None}
    readable = table.take([i for i, reason in enumerate(reasons) if reason is None])
    if len(set(readable.labels)) < 2:
        first = f" (first: {': '.join(next(iter(unreadable.items())))})" if unreadable else ""
        found = f"{len(unreadable)} of {len(table)} images are unreadable"
        raise VitkitError(f"{table.name}: fewer than two classes are left; {found}{first}")
    return readable.compact(), unreadable


def _fault(table: ImageTable, index: int) -> str | None:
    try:
        decode(table.file(index))
    except UnreadableImageError as error:
        return str(error)
    return None
