"""Read and write remote files by address, such as `s3://bucket/folder/file` or `https://host/file`, with retries.

The servers are accessed through fsspec. fsspec and the packages that a scheme needs (`pip install 'vitkit[remote]'`)
are imported only when an address is used. `prefetch_shards` makes local copies of shards; `cached_shard` finds them.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from vitkit.errors import VitkitError
from vitkit.system.environment import cache_folder, offline
from vitkit.system.files import address_of

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

T = TypeVar("T")
_WAITS = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds before each further attempt
_TIMEOUT = 20.0  # seconds without a byte after which an HTTP connection is given up
_FINAL = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)  # a further attempt cannot help
_TEMPORARY = (408, 425, 429)  # HTTP statuses of clients' errors after which to retry
_CHUNK = 2**23  # bytes that are read at a time


def read_file(address: str) -> bytes:
    """Read a whole remote file.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: the file cannot be read, or the server does not answer; the message has the number of attempts.
        VitkitError: a package that the scheme needs is missing, or connections are forbidden (`environment.offline`).
    """
    return _with_retries(address, lambda: bytes(_filesystem(address).cat_file(address)))


@dataclass(frozen=True)
class RemoteFile:
    """A single remote file as a storage. It contains one image, whose key is empty."""

    name: str

    def __post_init__(self) -> None:
        # Checked now, because an error in `open` would be reported as an unreadable image.
        _refuse_offline(self.name)

    def keys(self) -> Collection[str]:
        return ("",)

    def open(self, key: str) -> BinaryIO:  # noqa: ARG002  # there is only one
        return io.BytesIO(read_file(address_of(self.name) or self.name))

    def stamp(self, key: str) -> bytes | None:  # noqa: ARG002
        return None


def read_part(address: str, start: int, length: int, is_valid: Callable[[bytes], bool]) -> bytes:
    """Read `length` bytes of a remote file, beginning at `start`. Retry if `is_valid` returns False for the bytes."""

    def read() -> bytes:
        data = bytes(_filesystem(address).cat_file(address, start=start, end=start + length))
        if len(data) != length:
            raise OSError(f"{len(data):,} bytes arrived where {length:,} were requested")
        if not is_valid(data):
            raise OSError("the bytes that arrived do not have the listed checksum")
        return data

    return _with_retries(address, read)


def _download(address: str, file: BinaryIO, on_chunk: Callable[[bytes], None] = lambda _: None) -> None:
    """Download a remote file to `file`, and call `on_chunk` with each chunk of bytes."""

    def read() -> None:
        with _filesystem(address).open(address, "rb", cache_type="none", block_size=_CHUNK) as source:
            source.seek(file.tell())  # continue where the previous attempt ended
            while chunk := source.read(_CHUNK):
                file.write(chunk)
                on_chunk(chunk)

    _with_retries(address, read)


def _with_retries(address: str, function: Callable[[], T]) -> T:
    """Call a function. If it fails, wait and call it again, unless another attempt cannot help."""
    for wait in (*_WAITS, None):
        try:
            return function()
        except (VitkitError, ImportError, *_FINAL):
            raise
        except NotImplementedError as error:
            raise VitkitError(
                "data.address-read-only",
                f"{address}: this kind of address can only be read: choose a folder, or object storage such as s3://",
            ) from error
        except Exception as error:  # each scheme has its own errors
            reason = str(error) or type(error).__name__
            status = getattr(error, "status", 0)
            lacks_credentials = "Credentials" in type(error).__name__  # in errors of botocore and google
            # 400 is retried, because aiohttp also reports it for a response that it cannot read.
            if lacks_credentials or (status in range(401, 500) and status not in _TEMPORARY):
                raise OSError(f"{address}: {reason}") from error
            if wait is None:
                raise OSError(f"{address}: gave up after {len(_WAITS) + 1} attempts: {reason}") from error
            time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


def _refuse_offline(address: str) -> None:
    if address.partition(":")[0] not in ("file", "local", "memory") and (switch := offline()):
        raise VitkitError(
            "data.offline",
            f"{address}: {switch} forbids connections to servers: use a copy in a folder, or unset it for this command",
        )


def _filesystem(address: str) -> AbstractFileSystem:
    _refuse_offline(address)
    return _filesystem_of(address.partition(":")[0], os.getpid())  # connections do not survive a fork


@lru_cache(maxsize=8)
def _filesystem_of(scheme: str, process: int) -> AbstractFileSystem:  # noqa: ARG001  # part of the cache's key
    try:
        import fsspec

        if scheme not in ("http", "https"):
            return fsspec.filesystem(scheme)
        from aiohttp import ClientTimeout

        timeout = ClientTimeout(total=None, sock_connect=_TIMEOUT, sock_read=_TIMEOUT)
        return fsspec.filesystem(scheme, client_kwargs={"timeout": timeout, "auto_decompress": False})
    except ImportError as error:
        raise VitkitError(
            "data.package-missing",
            f"{scheme}:// requires a package that is not installed: pip install 'vitkit[remote]'",
        ) from error
    except ValueError as error:
        raise VitkitError(
            "data.address-unsupported",
            f"{scheme}:// is not a supported kind of address ({error}): use https:// or object storage such as s3://",
        ) from error


# --- Copies of shards -----------------------------------------------------------------------------------------

# Remote shards are copied to the cache folder before training reaches them. The file name of a copy is the SHA-256 of
# the shard, so every run can use it, whatever the address. Images without a copy are read remotely, one by one.

_Shards = Sequence[tuple[str, str, int]]  # the address, the SHA-256 and the size in bytes of each shard
_MAX_CACHE = 64 * 2**30  # bytes of all copies, even if more are free
_STALLED = 30.0  # seconds without growth after which a download is considered failed
_SHARDS_AHEAD = 4  # shards that are downloaded before the reader reaches them


def cached_shard(sha256: str) -> str | None:
    """Return the path of the local copy of a shard; None if there is none. If it is being downloaded, wait for it."""
    path = f"{_folder()}/{sha256}.tar"
    while not os.path.exists(path):  # noqa: PTH110  # a Path takes three times as long
        if not _is_downloading(f"{path}.part"):
            return path if os.path.exists(path) else None  # noqa: PTH110
        time.sleep(0.02)
    return path


def prefetch_shards(batches: Iterator[T], shards: _Shards, order: Sequence[int], batch_size: int) -> Iterator[T]:
    """Yield the remaining batches of an epoch, while a thread downloads the shards that the next batches need.

    `order` holds the index in `shards` for each remaining image of the epoch. The thread starts at once, not when the
    first batch is read.
    """
    first_images: dict[int, int] = {}  # of each shard, in the order of use
    for image, number in enumerate(order):
        first_images.setdefault(number, image)
    free = threading.Semaphore(_SHARDS_AHEAD)
    is_closed = threading.Event()

    def download_all() -> None:
        for number in first_images:
            free.acquire()
            if is_closed.is_set():
                return
            with contextlib.suppress(OSError, VitkitError):  # without a copy, images are read from the server
                _cache_shard(*shards[number])

    def yield_batches() -> Iterator[T]:
        waiting = deque(first_images.values())
        try:
            for number, batch in enumerate(batches, start=1):
                yield batch
                while waiting and waiting[0] < number * batch_size:  # the reader has reached another shard
                    waiting.popleft()
                    free.release()
        finally:
            is_closed.set()
            free.release()

    threading.Thread(target=download_all, name="vitkit-shards", daemon=True).start()
    return yield_batches()


def _cache_shard(address: str, sha256: str, size: int) -> None:
    """Download a shard, unless there is a copy, another process is downloading it, or there is no space for it."""
    folder = _folder()
    path, partial = folder / f"{sha256}.tar", folder / f"{sha256}.tar.part"
    with contextlib.suppress(FileNotFoundError):
        os.utime(path)  # the least recently used copies are deleted first
        return
    if _is_downloading(partial):
        return
    folder.mkdir(parents=True, exist_ok=True)

    # Delete the least recently used copies until `size` more bytes are allowed.
    copies = []
    for copy in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            stat = copy.stat()
            copies.append((stat.st_mtime, stat.st_size, copy))
    used = sum(bytes_used for _, bytes_used, _ in copies)
    limit = min((shutil.disk_usage(folder).free + used) // 2, _MAX_CACHE)
    for _, bytes_used, copy in sorted(copies):
        if used + size <= limit:
            break
        copy.unlink(missing_ok=True)
        used -= bytes_used
    if used + size > limit:
        return

    partial.unlink(missing_ok=True)  # a killed process may have left it
    try:
        file = partial.open("xb")
    except FileExistsError:  # another process has begun to download it
        return
    digest = hashlib.sha256()
    try:
        with file:
            _download(address, file, digest.update)
        if digest.hexdigest() == sha256:  # otherwise images are read remotely, where their own checksums are verified
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _folder() -> Path:
    return cache_folder() / "shards"


def _is_downloading(partial: str | Path) -> bool:
    try:
        return time.time() - os.stat(partial).st_mtime < _STALLED  # noqa: PTH116
    except FileNotFoundError:
        return False
