"""Read and write remote files by address, such as `s3://bucket/folder/file` or `https://host/file`, with retries.

The servers are accessed through fsspec. fsspec and the packages that a scheme needs (`pip install 'vitkit[remote]'`)
are imported only when an address is used.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from vitkit.errors import VitkitError
from vitkit.system.files import address_of

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

T = TypeVar("T")
_WAITS = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds before each further attempt
_PATIENCE = 20.0  # seconds without a byte after which an HTTP connection is given up
_FINAL = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)  # a further attempt cannot help
# HTTP statuses from 401 to 499 after which to retry. Status 400 is also retried, because aiohttp reports it for answers
# that it cannot read, too.
_BUSY = (408, 425, 429)
_INSTALL = "pip install 'vitkit[remote]'"


def read_file(address: str) -> bytes:
    """Read a whole remote file.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: the file cannot be read, or the server does not answer; the message has the number of attempts.
        VitkitError: a package that the scheme needs is missing.
    """
    return _insist(address, lambda: bytes(_filesystem(address).cat_file(address)))


@dataclass(frozen=True)
class RemoteFile:
    """A single remote file as a storage; its only image has an empty key."""

    name: str

    def keys(self) -> Collection[str]:
        return ("",)

    def open(self, key: str) -> BinaryIO:  # noqa: ARG002  # there is only one
        return io.BytesIO(read_file(address_of(self.name) or self.name))

    def stamp(self, key: str) -> bytes | None:  # noqa: ARG002
        return None


def read_part(address: str, start: int, length: int, is_right: Callable[[bytes], bool]) -> bytes:
    """Read `length` bytes of a remote file, beginning at `start`.

    If the answer has another length, or `is_right` rejects it, the bytes are requested again.

    Raises:
        FileNotFoundError, OSError, VitkitError: as in `read_file`.
    """

    def read() -> bytes:
        data = bytes(_filesystem(address).cat_file(address, start=start, end=start + length))
        if len(data) != length:
            raise OSError(f"{len(data):,} bytes arrived where {length:,} were requested")
        if not is_right(data):
            raise OSError("the bytes that arrived do not have the listed checksum")
        return data

    return _insist(address, read)


def download(address: str, file: BinaryIO, received: Callable[[bytes], None]) -> None:
    """Download a remote file to `file`, and pass each part also to `received`.

    After a broken connection, the next attempt continues where the previous one ended.

    Raises:
        FileNotFoundError, OSError, VitkitError: as in `read_file`; `file` then contains a part of the bytes.
    """

    def read() -> None:
        with _filesystem(address).open(address, "rb", cache_type="none", block_size=_PART) as source:
            source.seek(file.tell())
            while part := source.read(_PART):
                file.write(part)
                received(part)

    _insist(address, read)


_PART = 2**23  # bytes


@contextlib.contextmanager
def fetched(path: PurePath) -> Iterator[Path]:
    """Yield the path of a local file, or of a temporary local copy if the path is an address.

    Raises:
        OSError, VitkitError: as in `read_file`.
    """
    address = address_of(path)
    if address is None:
        yield Path(path)
        return
    with TemporaryDirectory() as scratch:
        copy = Path(scratch) / path.name
        with copy.open("wb") as file:
            download(address, file, lambda _: None)
        yield copy


def write_file(address: str, content: bytes | PurePath) -> None:
    """Write bytes, or copy a local file, to an address. The remote file becomes visible only when it is complete.

    Raises:
        OSError: the server refuses, or does not answer.
        VitkitError: files cannot be written there, or a package that the scheme needs is missing.
    """
    check_writable(address)

    def write() -> None:
        if isinstance(content, bytes):
            _filesystem(address).pipe_file(address, content)
        else:
            _filesystem(address).put_file(str(content), address)

    try:
        _insist(address, write)
    except _FINAL as error:
        raise OSError(f"{address}: {error}") from error


def remove_file(address: str) -> None:
    """Delete a remote file. It is not an error if the file is missing.

    Raises:
        OSError: the server refuses, or does not answer.
    """
    with contextlib.suppress(FileNotFoundError):
        _insist(address, lambda: _filesystem(address).rm_file(address))


def names_at(address: str) -> set[str]:
    """Return the names of the files and folders in a remote folder; none if the folder does not exist.

    Raises:
        OSError: the server refuses, or does not answer.
        VitkitError: a package that the scheme needs is missing.
    """

    def look() -> list[str]:
        _filesystem(address).invalidate_cache()
        return list(_filesystem(address).ls(address, detail=False))

    try:
        found = _insist(address, look)
    except FileNotFoundError:
        return set()
    folder = address.partition("://")[2].rstrip("/")
    return {path.rstrip("/").rpartition("/")[2] for path in found if path.strip("/") != folder}


def check_writable(address: str) -> None:
    """Refuse an address of a web server, which can only be read.

    Raises:
        VitkitError: the address is one of a web server.
    """
    scheme = address.partition(":")[0]
    if scheme in ("http", "https"):
        raise VitkitError(f"{address}: {scheme}:// can only be read: choose a folder, or object storage such as s3://")


def _insist(address: str, read: Callable[[], T]) -> T:
    """Call `read` repeatedly, with waits in between, until it succeeds or another attempt cannot help."""
    for wait in (*_WAITS, None):
        try:
            return read()
        except (VitkitError, ImportError, *_FINAL):
            raise
        except NotImplementedError as error:
            raise VitkitError(f"{address}: files of this kind of address can only be read") from error
        except Exception as error:  # each scheme has its own errors
            reason = str(error) or type(error).__name__
            status = getattr(error, "status", 0)
            lacks_credentials = "Credentials" in type(error).__name__  # as errors of botocore and google
            if lacks_credentials or (status in range(401, 500) and status not in _BUSY):
                raise OSError(f"{address}: {reason}") from error
            if wait is None:
                raise OSError(f"{address}: gave up after {len(_WAITS) + 1} attempts: {reason}") from error
            time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


def _filesystem(address: str) -> AbstractFileSystem:
    return _filesystem_of(address.partition(":")[0], os.getpid())  # connections do not survive a fork


@lru_cache(maxsize=8)
def _filesystem_of(scheme: str, process: int) -> AbstractFileSystem:  # noqa: ARG001  # another one in each process
    try:
        import fsspec

        options: dict[str, Any] = {}
        if scheme in ("http", "https"):
            from aiohttp import ClientTimeout

            options = {
                "client_kwargs": {
                    "timeout": ClientTimeout(total=None, sock_connect=_PATIENCE, sock_read=_PATIENCE),
                    "auto_decompress": False,
                }
            }
        return fsspec.filesystem(scheme, **options)
    except ImportError as error:
        raise VitkitError(f"{scheme}:// requires a package that is not installed: {_INSTALL}") from error
    except ValueError as error:
        raise VitkitError(f"{scheme}:// is no known kind of address ({error})") from error
