"""The names by which a search recognises photographs, and the files and folders that it leaves out.

The exported .zip contains a copy of this file, so it imports nothing of vitkit.
"""

from __future__ import annotations

import os

SUFFIXES = frozenset(
    f".{ending}"
    for ending in (
        *("jpg", "jpeg", "jpe", "jfif", "mpo", "png", "webp", "gif"),
        *("bmp", "tif", "tiff", "ppm", "pgm", "heic", "heif", "hif", "avif"),
    )
)
_SYSTEM = frozenset((".ds_store", "thumbs.db", "ehthumbs.db", "desktop.ini"))
# Thumbnails, deleted files and snapshots, in lower case. Hidden folders are left out anyway.
_SYNOLOGY = ("@eadir", "@sharebin", "@tmp", "#recycle", "#snapshot", "@synologydrive", "@synologycloudsync")
_QNAP = ("@recycle", "@recently-snapshot", "@__thumb", "@qsync")
_WINDOWS = ("$recycle.bin", "recycler", "recycled", "system volume information", "found.000")
_MACOS = ("__macosx", "network trash folder", "temporary items", "thevolumesettingsfolder")
_OTHERS = ("lost+found", "~snapshot", "trashbox", "_gsdata_", "__pycache__")  # Linux, NetApp, Buffalo, GoodSync, Python
SYSTEM_FOLDERS = frozenset((*_SYNOLOGY, *_QNAP, *_WINDOWS, *_MACOS, *_OTHERS))


def is_passed_over(folder: str) -> bool:
    """Return whether a folder is ignored by its name: it is hidden, or one that a system or file server adds."""
    return folder.startswith(".") or folder.lower() in SYSTEM_FOLDERS


def why_ignored(file: str) -> str | None:
    """Return the reason why a file with this name is ignored; None if the name is that of an image."""
    if file.lower() in _SYSTEM or file.startswith("._"):
        return "system file"
    if file.startswith("."):
        return "hidden"
    if os.path.splitext(file)[1].lower() not in SUFFIXES:  # noqa: PTH122  # ten times as fast as a Path's
        return "not an image format"
    return None
