"""Write files so that a crash, a full disk or a second process never leaves an incomplete file under its final name.

`replacing` is the basis: it yields a temporary file and renames it at the end. `exclusive` locks a file or folder for
one process. Functions that read refuse pipes and devices, and functions that write refuse addresses such as
s3://bucket. `empty_array` returns an array that may be larger than the main memory (it is stored in a temporary file).
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import socket
import stat
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path, PurePath
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from vitkit.errors import VitkitError
from vitkit.system import environment
from vitkit.system.environment import cache_folder

if TYPE_CHECKING:
    import numpy.typing as npt

_MAX_IN_MEMORY = 2**28  # bytes of the largest array that is not stored in a file
_MAX_NAME = 255  # bytes of a file's name
LOCK = ".lock"  # the name of the lock file in a folder
_HOLDER_SUFFIX = ".holder"
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the system does not name the file in these errors
_NO_FILE = "it is a pipe or a device; a regular file is expected"
_MIN_WAIT = 0.1  # seconds to wait for a lock at least, because `is_locked` holds it for an instant to test it
_REPLACE_TIMEOUT = 2.0  # seconds to wait on Windows until a virus scanner or another reader has closed a file
_ADDRESS = re.compile(r"([a-z][a-z0-9+]+):/+([^/].*)", re.DOTALL)  # a scheme has two letters or more: C:/ is a drive
_UNFINISHED = re.compile(r"\.(.+)\.\d+\.tmp", re.DOTALL)  # the name of a temporary file of `replacing`


def address_of(path: str | PurePath) -> str | None:
    """Return the address in a path or text, such as s3://bucket/folder; None for a path on this machine.

    A `Path` drops one of the two slashes of an address, and this function restores it. Addresses can therefore be
    passed as `Path` objects.
    """
    text = path if isinstance(path, str) else path.as_posix()
    match = _ADDRESS.fullmatch(text)
    return None if match is None else f"{match[1]}://{match[2].rstrip('/')}"


def path_or_address(path: Path) -> str:
    """Return a path or an address as text. A `Path` drops a slash of an address such as s3://bucket; it is restored."""
    return address_of(path) or str(path)


def check_local(path: Path) -> None:
    """Refuse an address as an output path. Without this check, s3://bucket/run would create a local folder `s3:`."""
    if (address := address_of(path)) is not None:
        raise VitkitError(
            "system.path-remote",
            f"{address} is on another machine: choose a path on this one, and copy the result there",
        )


def open_regular(name: str, flags: int) -> int:
    """Open a regular file and return its descriptor. This function is an `opener` for Python's `open`.

    Pipes and devices raise OSError, because reading them may block forever.
    """
    try:
        descriptor = os.open(name, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0), 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a pipe that nobody reads from
            raise OSError(errno.EINVAL, _NO_FILE, name) from error
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    raise OSError(errno.EINVAL, _NO_FILE, name)


def read_bytes(path: str | Path) -> bytes:
    """Read the content of a regular file (see `open_regular`)."""
    with open(path, "rb", opener=open_regular) as file:  # a Path takes no opener
        return file.read()


def read_text(path: str | Path, errors: str = "strict") -> str:
    """Read a regular file (see `open_regular`) as UTF-8 text, with `\\n` as line ends."""
    with open(path, encoding="utf-8", errors=errors, opener=open_regular) as file:
        return file.read()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to. The new file replaces `path` if the block succeeds, and is removed otherwise.

    Raises:
        VitkitError: `path` is an address (`check_local`).
        OSError: the file cannot be written; the error names `path`.
    """
    check_local(path)
    temporary = path.with_name(fit_name(f".{path.name}", f".{os.getpid()}.tmp"))
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        # On Windows, retry for a short time while another program has `path` open.
        end = time.monotonic() + (_REPLACE_TIMEOUT if environment.IS_WINDOWS else 0.0)
        while True:
            try:
                temporary.replace(path)
                break
            except PermissionError:
                if time.monotonic() >= end:
                    raise
                time.sleep(0.02)
    except OSError as error:
        is_full = error.filename is None and error.errno in _DISK_FULL
        if error.filename == str(temporary) or is_full:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise  # an error of another file
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """Yield a path with the same name as `path`, in a temporary folder next to it.

    The `with` block writes to the yielded path, and finally moves the result to `path`. Then the folder is removed.
    """
    folder = path.with_name(fit_name(f".{path.name}", f".{os.getpid()}.tmp"))
    shutil.rmtree(folder, ignore_errors=True)  # a killed process with the same id may have left it, as in containers
    folder.mkdir()
    try:
        yield folder / path.name
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fit_name(name: str, ending: str) -> str:
    """Return `name + ending`, shortening the name if necessary to the 255 bytes that file systems allow.

    The cut part is replaced by a digest of the whole name, so that different names stay different.
    """
    room = _MAX_NAME - len(os.fsencode(ending))
    stored = os.fsencode(name)
    if len(stored) > room:
        digest = hashlib.sha256(stored).hexdigest()[:16]
        name = f"{stored[: room - len(digest) - 1].decode('utf-8', 'ignore')}-{digest}"
    return name + ending


def unfinished(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the temporary files of `replacing` in a folder, each as a pair of the final name and the temporary path.

    The process that created such a file is either still running or was killed.
    """
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        match = _UNFINISHED.fullmatch(path.name)
        if match is not None:
            yield match[1], path


@contextmanager
def exclusive(path: Path, lock_file: Path | None = None, wait: float = 0.0) -> Iterator[None]:
    """Lock a file or folder for this process during a `with` block.

    If the process is killed, the system releases the lock. Temporary files for `path` that killed processes have left
    are deleted.

    Args:
        path: the file or folder.
        lock_file: the path of the lock file; None for a hidden file next to `path`.
        wait: seconds to wait for another process or thread to release the lock.

    Raises:
        VitkitError: another process holds the lock (the message names the process), the lock file is a symbolic link,
            or `path` is an address (`check_local`).
    """
    from filelock import FileLock, Timeout

    check_local(path)
    lock_file = lock_file or path.with_name(fit_name(f".{path.name}", ".lock"))
    if lock_file.is_symlink():
        message = f"{lock_file} is a link, and vitkit writes no lock through it: remove it"
        raise VitkitError("system.lock-is-link", message)
    # The file that names this process: the lock file, or another one on Windows, where a locked file cannot be read.
    holder_file = lock_file.with_name(lock_file.name + _HOLDER_SUFFIX) if environment.IS_WINDOWS else lock_file
    lock = FileLock(lock_file, timeout=max(wait, _MIN_WAIT), poll_interval=0.01)
    try:
        lock.acquire()
    except Timeout as error:
        name = ""
        with suppress(OSError, ValueError):
            name = read_text(holder_file)
        raise VitkitError(
            "system.path-locked",
            f"{path} is being written by {name or 'another process'}: wait until it is done, or choose another path",
        ) from error
    try:
        with suppress(OSError):  # if the disk is full, the work itself will report it
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            holder_file.write_text(f"process {os.getpid()} of {socket.gethostname()} since {since}", "utf-8")
        for name, left in unfinished(path.parent):  # of killed processes
            if name == path.name:
                with suppress(OSError):
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
        yield
    finally:
        # Delete the file before the release: a process that has opened it meanwhile notices the deletion and retries.
        # Delete it only once: after the first deletion, the name can belong to the lock of another process.
        with suppress(OSError):
            for file in {holder_file, lock_file}:
                file.unlink(missing_ok=True)
        lock.release()  # on Windows, this deletes the lock file, because an open file cannot be deleted there


@contextmanager
def exclusive_in(folder: Path, wait: float = 0.0) -> Iterator[None]:
    """Lock a folder for this process during a `with` block, as `exclusive` does.

    If the folder or its parents do not exist, they are created. Created folders that are empty at the end are deleted.
    """
    check_local(folder)
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with exclusive(folder, folder / LOCK, wait):
            yield
    finally:
        with suppress(OSError):  # rmdir fails if a folder is not empty
            for parent in made:
                parent.rmdir()


def is_locked(path: Path, lock_file: Path | None = None) -> bool:
    """Return whether a process has locked a file or folder with `exclusive` or `exclusive_in`.

    If the lock file cannot be opened, the result is True. If `lock_file` is None, it is inside `path` if that is a
    folder, and next to it otherwise.
    """
    if lock_file is None:
        lock_file = path / LOCK if path.is_dir() else path.with_name(fit_name(f".{path.name}", ".lock"))
    if not lock_file.exists():
        return False
    if environment.IS_WINDOWS:
        from filelock import FileLock, Timeout

        try:
            with FileLock(lock_file, timeout=0):
                return False
        except Timeout:
            return True
    import fcntl

    try:
        descriptor = os.open(lock_file, os.O_RDWR | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that two callers do not see each other
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def is_empty(folder: Path) -> bool:
    """Return whether a folder contains nothing except a lock."""
    return all(path.name in (LOCK, LOCK + _HOLDER_SUFFIX) for path in folder.iterdir())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file completely or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def common_folder(folders: Collection[str]) -> str:
    """Return the deepest folder that contains all of these folders. VitkitError: they are on several Windows drives."""
    try:
        return os.path.commonpath(folders)
    except ValueError as error:
        raise VitkitError(
            "system.drives-differ", f"images of several drives have no common folder: pass those of one drive ({error})"
        ) from error


def public_path(name: str | Path) -> str:
    """Return the last part of an absolute path, or a relative path unchanged.

    People who receive a model or a page should not see the folders or the user name of its author.
    """
    return Path(name).name if Path(name).is_absolute() else str(name)


def write_text(path: Path, text: str) -> None:
    """Write a text file completely or not at all.

    Line ends are written unchanged. If the text contains file names that are not UTF-8, their bytes are kept.
    """
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="surrogateescape", newline="")


def write_json(path: Path, value: Any) -> None:
    """Write JSON completely or not at all."""
    write_text(path, to_json(value, indent=2) + "\n")


def to_json(value: Any, indent: int | None = None) -> str:
    """Convert a value to strict JSON. NaN and infinity, which do not exist in JSON, become null.

    Characters beyond ASCII are escaped only if the text contains control characters, or bytes of a file name that are
    not UTF-8.
    """
    try:
        text = _dump(value, indent)
    except (TypeError, ValueError):  # a number is not finite, or a mapping is not a dict
        value = _without_nan(value)
        text = _dump(value, indent)
    if text.isascii() and "\x7f" not in text:
        return text
    must_escape = any("\ud800" <= character <= "\udfff" or "\x7f" <= character <= "\x9f" for character in text)
    return json.dumps(value, indent=indent, allow_nan=False) if must_escape else text


def _dump(value: Any, indent: int | None) -> str:
    if indent is None:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    buffer = StringIO()  # json.dumps would collect millions of short strings before it joins them
    json.dump(value, buffer, indent=indent, ensure_ascii=False, allow_nan=False)
    return buffer.getvalue()


def from_json(text: str | bytes) -> Any:
    """Parse JSON, which may begin with a byte order mark.

    Raises:
        ValueError: the text is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(text.removeprefix("\ufeff") if isinstance(text, str) else text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that contains an object. VitkitError: it is not JSON, or not an object."""
    try:
        value = from_json(read_text(path))
        if not isinstance(value, dict):
            raise ValueError(f"expected a JSON object, not {type(value).__name__}")
        return value
    except ValueError as error:
        raise VitkitError("system.json-damaged", f"{path} is damaged: {error}; restore or replace it") from error


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return value


def empty_array(shape: tuple[int, ...], dtype: str = "float32") -> npt.NDArray[Any]:
    """Return an uninitialised array.

    An array of more than 256 MiB is stored in a temporary file in vitkit's cache folder, if the system can reserve the
    disk space. For example, the probabilities of 50,000 images for 21,843 classes take 4.4 GB. The system keeps the
    content of the file in main memory only as long as there is enough free memory. The file has no name, and is deleted
    together with the array.
    """
    import numpy as np

    size = np.dtype(dtype).itemsize * math.prod(shape)
    if size > _MAX_IN_MEMORY and hasattr(os, "posix_fallocate"):
        with suppress(OSError):
            # Not the folder for temporary files, which may be in memory.
            cache_folder().mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=cache_folder()) as file:
                # If the disk became full later, writing would end the process.
                os.posix_fallocate(file.fileno(), 0, size)
                return np.asarray(np.memmap(file, dtype, "r+", shape=shape))
    return np.empty(shape, dtype)
