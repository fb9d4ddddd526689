"""The names by which a search recognises photographs, and the files and folders that it leaves out.

The exported .zip contains a copy of this file, so it imports nothing of vitkit.
"""

from __future__ import annotations

import os
import re

SUFFIXES = frozenset(
    f".{ending}"
    for ending in (
        *("jpg", "jpeg", "jpe", "jfif", "mpo", "png", "webp", "gif"),
        *("bmp", "tif", "tiff", "ppm", "pgm", "heic", "heif", "hif", "avif"),
    )
)
_SYSTEM_FILES = frozenset((".ds_store", "thumbs.db", "ehthumbs.db", "desktop.ini"))
# Folders of thumbnails, deleted files and snapshots, in upper or lower case. `#1` and `$5` may be classes.
_SYSTEM_FOLDERS = re.compile(
    r"[.~]|[@#$][^\W\d]"  # hidden folders, and the marks of Synology, QNAP, NetApp and Windows
    r"|(?:recycler|recycled|system volume information|found\.\d{3}|lost\.dir|lost\+found"  # Windows, Android, Linux
    r"|__macosx|network trash folder|temporary items|thevolumesettingsfolder|.*\.(?:photoslibrary|backupdb)"  # macOS
    r"|trashbox|_gsdata_|__pycache__|.*\.lrdata)$",  # Buffalo, GoodSync, Python, Lightroom
    re.IGNORECASE,
)


def is_passed_over(folder: str) -> bool:
    """Return whether a folder is ignored by its name: it is hidden, or one that a system or file server adds."""
    return _SYSTEM_FOLDERS.match(folder) is not None


def why_ignored(file: str) -> str | None:
    """Return the reason why a file with this name is ignored; None if the name is that of an image."""
    if file.lower() in _SYSTEM_FILES or file.startswith("._"):
        return "system file"
    if file.startswith("."):
        return "hidden"
    if os.path.splitext(file)[1].lower() not in SUFFIXES:  # noqa: PTH122  # ten times as fast as a Path's
        return "not an image format"
    return None
