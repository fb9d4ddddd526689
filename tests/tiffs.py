"""TIFF files written by hand, byte by byte from the standard, so that what their numbers stand for is known."""

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

_FORMATS = {"u": 1, "i": 2, "f": 3}
_TYPES = {3: "H", 4: "I", 11: "f", 12: "d", 9: "i"}


def write_tiff(path: Path, values: np.ndarray[Any, Any], *, white_is_zero: bool = False, **tags: Any) -> Path:
    """(h, w) or (h, w, C) numbers of any type, in the byte order of their type, without compression.

    Args:
        path: to write.
        values: the numbers.
        white_is_zero: PhotometricInterpretation 0.
        tags: `t281=(3, 4095)`: further tags by number, with type and value; bytes for type 2.
    """
    height, width = values.shape[:2]
    colours = values.shape[2] if values.ndim == 3 else 1
    order = ">" if values.dtype.byteorder == ">" else "<"
    bits, pixels = 8 * values.dtype.itemsize, values.tobytes()
    kind = _FORMATS[values.dtype.kind]
    entries: dict[int, tuple[int, tuple[Any, ...]]] = {
        256: (4, (width,)),
        257: (4, (height,)),
        258: (3, (bits,) * colours),
        259: (3, (1,)),
        262: (3, (2 if colours == 3 else 0 if white_is_zero else 1,)),
        273: (4, (8,)),
        277: (3, (colours,)),
        278: (4, (height,)),
        279: (4, (len(pixels),)),
        339: (3, (kind,) * colours),
    }
    for name, (type_, value) in tags.items():
        is_single = int(name[1:]) in (254, 259, 262, 330, 338, 50706)
        entries[int(name[1:])] = (type_, value if type_ == 2 else (value,) * (1 if is_single else colours))
    pixels += b"\0" * (len(pixels) % 2)
    place = 8 + len(pixels)
    beyond = place + 2 + 12 * len(entries) + 4
    table, extra = struct.pack(f"{order}H", len(entries)), b""
    for tag, (type_, own) in sorted(entries.items()):
        data = bytes(own) if type_ == 2 else struct.pack(f"{order}{len(own)}{_TYPES[type_]}", *own)
        table += struct.pack(f"{order}HHI", tag, type_, len(own))
        if len(data) <= 4:
            table += data.ljust(4, b"\0")
        else:
            table += struct.pack(f"{order}I", beyond + len(extra))
            extra += data + b"\0" * (len(data) % 2)
    head = (b"MM" if order == ">" else b"II") + struct.pack(f"{order}HI", 42, place)
    path.write_bytes(head + pixels + table + struct.pack(f"{order}I", 0) + extra)
    return path


def write_png(path: Path, values: np.ndarray[Any, Any], significant: int | None = None) -> Path:
    """(h, w) or (h, w, 3) numbers of 16 bits, with sBIT where so many are said to be significant."""
    height, width = values.shape[:2]
    colours = values.shape[2] if values.ndim == 3 else 1

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = values.astype(">u2").reshape(height, -1)
    data = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    head = struct.pack(">IIBBBBB", width, height, 16, 2 if colours == 3 else 0, 0, 0, 0)
    bits = b"" if significant is None else chunk(b"sBIT", bytes([significant] * colours))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + bits + chunk(b"IDAT", data) + chunk(b"IEND", b""))
    return path
