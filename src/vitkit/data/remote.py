"""Read files from afar by their addresses, such as `s3://bucket/folder/file` or `https://host/file`, with retries.

fsspec speaks to the servers. It is not imported before an address is read, and neither is what a scheme needs beside it
(`pip install 'vitkit[remote]'`). A `Path` drops one of the two slashes of an address; `address_of` puts it back, so
that addresses may go wherever paths go.
"""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from vitkit.errors import VitkitError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

T = TypeVar("T")
_ADDRESS = re.compile(r"([a-z][a-z0-9+]+):/+([^/].*)", re.DOTALL)  # a scheme has two letters: C:/ is a drive
_WAITS = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds before each further attempt
_PATIENCE = 20.0  # seconds without a byte after which an HTTP connection is given up
_FINAL = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)  # a further attempt cannot help
_BUSY = (408, 425, 429)  # of the answers by which HTTP servers refuse (401 to 499), those after which to ask again;
# 400 is also what aiohttp calls an answer that it cannot read
_INSTALL = "pip install 'vitkit[remote]'"


def address_of(path: str | PurePath) -> str | None:
    """Return the address that a path or text is, with both slashes; None for a path of this machine."""
    text = path if isinstance(path, str) else path.as_posix()
    match = _ADDRESS.fullmatch(text) if ":/" in text else None
    return None if match is None else f"{match[1]}://{match[2].rstrip('/')}"


def read_file(address: str) -> bytes:
    """Read a whole file.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it cannot be read, or the server does not answer; the message says how often that was tried.
        VitkitError: a package that the scheme needs is missing.
    """
    return _insist(address, lambda: bytes(_filesystem(address).cat_file(address)))


@dataclass(frozen=True)
class RemoteFile:
    """A single file from afar, as a storage whose only image has an empty key."""

    name: str

    def keys(self) -> Collection[str]:
        return ("",)

    def open(self, key: str) -> BinaryIO:  # noqa: ARG002  # there is only one
        return io.BytesIO(read_file(address_of(self.name) or self.name))

    def stamp(self, key: str) -> bytes | None:  # noqa: ARG002
        return None


def read_part(address: str, start: int, length: int, is_right: Callable[[bytes], bool]) -> bytes:
    """Read `length` bytes of a file from `start` on.

    An answer of another length, or one that `is_right` refuses, is requested again, as after a broken connection.

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
    """Write a file from afar to `file`; `received` gets its bytes, too. A second attempt goes on where the first ended.

    Raises:
        FileNotFoundError, OSError, VitkitError: as in `read_file`; `file` then has a part of the bytes.
    """

    def read() -> None:
        with _filesystem(address).open(address, "rb", cache_type="none", block_size=_PART) as source:
            source.seek(file.tell())
            while part := source.read(_PART):
                file.write(part)
                received(part)

    _insist(address, read)


_PART = 2**23  # bytes


def _insist(address: str, read: Callable[[], T]) -> T:
    """Call `read` until it succeeds, with waits in between; give up if another attempt cannot help."""
    for wait in (*_WAITS, None):
        try:
            return read()
        except (VitkitError, ImportError, *_FINAL):
            raise
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
        raise VitkitError(f"reading {scheme}:// requires a package that is not installed: {_INSTALL}") from error
    except ValueError as error:
        raise VitkitError(f"{scheme}:// is no known kind of address ({error})") from error
