"""Write named data sets (`named_sets`) into the cache, as class folders. torchvision downloads and checks them."""

from __future__ import annotations

import errno
import http.client
import shutil
import socket
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError, URLError

from vitkit.data.named_sets import DATASETS, DataSet
from vitkit.errors import VitkitError
from vitkit.system.environment import cache_folder, offline
from vitkit.system.progress import Say, progress

_TIMEOUT = 30.0  # seconds without a byte; torchvision itself waits for ever
_TROUBLE = (
    *(OSError, RuntimeError, EOFError, http.client.HTTPException),
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error),
)
_DISK = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS),
    *(errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENOTDIR),
}


def _on_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def materialise(name: str, say: Say = _on_stderr) -> Path:
    """Return the folder of a named data set, downloading and writing it on first use. Other processes wait.

    What is interrupted or fails leaves nothing behind.

    Args:
        name: a key of `DATASETS`, in any spelling.
        say: receives in one line what will be downloaded, before it is.

    Raises:
        VitkitError: offline, the server cannot be reached or sends something else than was published, or the cache
            cannot be written.
    """
    entry = DATASETS[name]
    folder = cache_folder() / "data" / entry.name
    if folder.is_dir():
        return folder
    if entry.megabytes and (switch := offline()):
        raise VitkitError(
            f"the data set {entry.name} ({entry.megabytes:,} MB from {entry.host}) is not in the cache, and {switch} "
            "forbids downloading: name a folder that you have"
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _taking_turns(folder, say):
            if not folder.is_dir():  # else another process was first
                _make(entry, folder, say)
    except _TROUBLE as error:
        raise _explained(entry, folder, error) from error
    return folder


@contextmanager
def _taking_turns(folder: Path, say: Say) -> Iterator[None]:
    from filelock import FileLock, Timeout

    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"waiting for another process that is fetching {folder.name}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _make(entry: DataSet, folder: Path, say: Say) -> None:
    for stale in folder.parent.glob(f".{entry.name}-*"):  # of a process that was killed: it is our turn
        shutil.rmtree(stale, ignore_errors=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{entry.name}-", dir=folder.parent))
    raw, written = unfinished / "raw", unfinished / "written"
    try:
        raw.mkdir()
        written.mkdir()
        if entry.megabytes:
            say(_announcement(entry))
        with _watched(f"downloading {entry.name}") if entry.megabytes else nullcontext():
            entry.write(raw, written)
        _check(entry, written)
        _settle(written, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _announcement(entry: DataSet) -> str:
    return (
        f"downloading {entry.name}, about {entry.megabytes:,} MB from {entry.host}: {entry.images:,} images in "
        f"{entry.classes} classes, licence: {entry.licence} ({entry.page})"
    )


def _check(entry: DataSet, folder: Path) -> None:
    images = [image for parent in _parents(entry, folder) for image in parent.glob("*/*")]
    classes = {image.parent.name for image in images}
    if (len(images), len(classes)) != (entry.images, entry.classes):
        raise VitkitError(
            f"the data set {entry.name}{_from(entry)} has {len(images):,} images in {len(classes)} classes, expected "
            f"{entry.images:,} in {entry.classes}; {_instead(entry)}"
        )


def _parents(entry: DataSet, folder: Path) -> list[Path]:
    return [folder / split for split in entry.splits] or [folder]


def _settle(written: Path, folder: Path) -> None:
    try:
        written.rename(folder)
    except OSError:
        if not folder.is_dir():  # otherwise another process was first, with the same content
            raise


# --- When it fails ----------------------------------------------------------------------------------


def _explained(entry: DataSet, folder: Path, error: BaseException) -> VitkitError:
    if isinstance(error, OSError) and not isinstance(error, URLError) and error.errno in _DISK:
        return VitkitError(
            f"cannot write the data set {entry.name} to {folder}: {error.strerror}; make room there, or let "
            "VITKIT_CACHE name another folder"
        )
    reason = " ".join(_reason(error).split())
    return VitkitError(f"could not get the data set {entry.name}{_from(entry)}: {reason}; {_instead(entry)}")


def _from(entry: DataSet) -> str:
    return f" from {entry.host}" if entry.host else ""


def _instead(entry: DataSet) -> str:
    where = f" ({entry.page})" if entry.page else ""
    return f"try again, or download it yourself{where} and name its folder"


def _reason(error: BaseException) -> str:
    if isinstance(error, HTTPError):
        error.close()
        return f"the server answered {error.code} {error.reason}"
    if isinstance(error, URLError):
        return str(error.reason)
    if str(error).startswith("File not found or corrupted"):  # torchvision's words for another MD5
        return "the file that arrived is not the one that was published (its checksum differs)"
    return str(error) or type(error).__name__


# --- Downloading ------------------------------------------------------------------------------------


@contextmanager
def _watched(what: str) -> Iterator[None]:
    """Report torchvision's download to `progress`, and end it with a timeout if the server is silent."""
    from torchvision.datasets import utils

    bar, timeout = utils.tqdm, socket.getdefaulttimeout()
    utils.tqdm = partial(_ProgressBar, what)
    socket.setdefaulttimeout(_TIMEOUT)
    try:
        yield
    finally:
        socket.setdefaulttimeout(timeout)
        utils.tqdm = bar


class _ProgressBar:
    """A progress bar that draws nothing and reports to `progress`."""

    def __init__(self, what: str, total: int | None = None, **_: Any) -> None:
        self._tell, self._done, self._total = partial(progress, what), 0, total or 0

    def __enter__(self) -> Self:
        self.update(0)
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, count: int) -> None:
        self._done += count
        self._tell(self._done, self._total)
