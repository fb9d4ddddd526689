"""Folders that take seconds to make, made once for all processes that run tests."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

root = Path()  # conftest.py sets it: a folder of this run of the tests, which its processes share


def once(name: str, make: Callable[[Path], object]) -> Path:
    """The folder or file that `make` writes at the path it is given; tests may read but not change it.

    The process that asks first makes it, while others that ask wait. Names are those of the file that asks: two files
    may use the same.
    """
    folder = root / Path(sys._getframe(1).f_code.co_filename).stem
    folder.mkdir(exist_ok=True)
    place, complete = folder / name, folder / f"{name}.made"
    with FileLock(folder / f"{name}.lock"):
        if not complete.exists():
            shutil.rmtree(place, ignore_errors=True)  # what an attempt that failed has left
            make(place)
            complete.touch()
    return place
