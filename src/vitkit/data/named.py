"""Data sets that have a name. Each is written once into the cache as class folders of PNG, and read from there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image


def cache_folder() -> Path:
    """Where vitkit keeps what it can make again: VITKIT_CACHE, else the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("VITKIT_CACHE") or Path(base) / "vitkit")


def materialise(name: str) -> Path:
    """The folder of a named data set, written on first use. An interrupted writing leaves nothing behind."""
    folder = cache_folder() / "data" / name
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
        try:
            DATASETS[name](unfinished)
            unfinished.chmod(0o755)
            _settle(unfinished, folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _settle(unfinished: Path, folder: Path) -> None:
    try:
        unfinished.rename(folder)
    except OSError:
        if not folder.is_dir():  # otherwise another process was first, with the same content
            raise


def _digits(folder: Path) -> None:
    """scikit-learn's 1,797 handwritten digits (UCI, 8x8, 16 greys), which it ships: no download."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    for i, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        target = folder / str(label) / f"{i:04d}.png"
        target.parent.mkdir(exist_ok=True)
        Image.fromarray(np.round(image * (255 / 16)).astype(np.uint8)).save(target)


DATASETS: dict[str, Callable[[Path], None]] = {"digits": _digits}
