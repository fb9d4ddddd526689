"""Bytes tucked into a zip file where every reader of zip files passes over them: before its central directory.

An entry of its own would be one array too many for those who load all that a `.npz` file holds; the file's comment has
room for 64 KiB. The Android package format keeps its signatures in this place for the same reason.
"""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

_END = struct.Struct("<Q16s")  # bytes before it, and a name
_NAME = b"vitkit pictures\n"


def tuck_in(path: Path, data: bytes, comment: bytes | None = None) -> None:
    """Put bytes, unless there are none, and if given a comment, into a zip file.

    Raises:
        OSError: the disk is full or not writable.
    """
    with zipfile.ZipFile(path, "a") as archive:
        assert archive.fp is not None
        if data:
            archive.fp.seek(archive.start_dir)
            archive.fp.write(data + _END.pack(len(data), _NAME))
            archive.start_dir = archive.fp.tell()
        archive.comment = archive.comment if comment is None else comment  # which makes it write its directory anew


def tucked_in(path: Path) -> bytes | None:
    """What `tuck_in` put into a zip file; None where it holds nothing of the kind."""
    with zipfile.ZipFile(path) as archive:
        start = archive.start_dir
    with path.open("rb") as file:
        if start < _END.size:
            return None
        file.seek(start - _END.size)
        size, name = _END.unpack(file.read(_END.size))
        if name != _NAME or size > start - _END.size:
            return None
        file.seek(start - _END.size - size)
        return file.read(size)
