"""Published weights into the cache: whole and checked, or not at all.

A file is written to `NAME.part` and takes its name when its length and checksum are right. What an interruption leaves
is gone on with next time, if the server still has the same file. Nothing here runs when the file is in the cache.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import os
import re
import ssl
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from vitkit import __version__
from vitkit.errors import VitkitError
from vitkit.system.cache import cache_folder, offline
from vitkit.system.progress import Progress, silent
from vitkit.weights.partial_file import PartialFile, Version

_TIMEOUT = 30.0  # seconds without a byte
_PAUSES = (0.5, 1.0, 2.0)  # seconds before trying again after an attempt that got no further
_BLOCK = 1 << 18
_LOCAL = ("localhost", "127.0.0.1", "::1")
_ELSEWHERE = "or download it by other means and name the file instead"


def fetch_url(url: str, sha256: str | None = None, progress: Progress = silent) -> Path:
    """The file at a web address, in the cache. Interrupted downloads are resumed; two processes take turns.

    Args:
        url: https; http for this machine only.
        sha256: hexadecimal digits, the first few or all. Without it, the MD5 that Google's servers send is checked.
        progress: told `downloading NAME`, bytes done, bytes in all.

    Raises:
        VitkitError: offline, the server cannot be reached or does not have the file, the checksum is wrong, or the
            cache cannot be written.
    """
    final = cache_path(url)
    if final.is_file():
        return final
    refuse_offline(url, f"put the file at {final}, or name a file that you have")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with _taking_turns(final, progress):
            if not final.is_file():  # else another process was first
                _download(url, final, sha256, progress)
    except OSError as error:
        raise VitkitError(
            f"cannot write {final}: {error.strerror or error}; VITKIT_CACHE may name another folder"
        ) from error
    return final


def cache_path(url: str) -> Path:
    """Where the cache keeps the file of this address, whether it is there or not.

    Raises:
        VitkitError: it is no https address of a file.
    """
    if not _may_be_asked(url):
        raise VitkitError(f"cannot download {url!r}: expected an address that begins with https://")
    parts = urlsplit(url)
    *folders, name = parts.path.split("/")[1:] or [""]
    if parts.query:  # another query may be another file
        folders.append(hashlib.sha256(parts.query.encode()).hexdigest()[:8])
    if any(re.fullmatch(r"\.*", part) or set(part) & set('\\:*?"<>|') for part in (*folders, name)):
        raise VitkitError(f"cannot download {url}: expected the address of a file")
    return cache_folder() / "weights" / parts.netloc.replace(":", "_") / Path(*folders, name)


def _may_be_asked(url: str) -> bool:
    if not re.fullmatch(r"https?://([\w.-]+|\[[\da-f:]+\])(:\d+)?/[!-~]*", url, re.ASCII):
        return False
    return url.startswith("https:") or urlsplit(url).hostname in _LOCAL


def refuse_offline(what: str, instead: str) -> None:
    """Refuse to download where that is switched off; `instead` is what to do."""
    switch = offline()
    if switch:
        raise VitkitError(f"{what} is not in the cache, and {switch} forbids downloading: {instead}")


@contextmanager
def _taking_turns(final: Path, progress: Progress) -> Iterator[None]:
    lock = FileLock(final.with_name(f".{final.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(f"waiting for another download of {final.name}", 0, 0)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


class _BrokenOffError(Exception):
    """An attempt failed in a way that another one may not."""


def _download(url: str, final: Path, sha256: str | None, progress: Progress) -> None:
    part = PartialFile(final.with_name(f"{final.name}.part"))
    furthest, failures = part.size(), 0
    while True:
        try:
            _receive(url, part, f"downloading {final.name}", progress)
            break
        except _BrokenOffError as error:
            failures = 0 if part.size() > furthest else failures + 1
            furthest = max(furthest, part.size())
            if failures > len(_PAUSES):
                kept = f" ({part.size()} bytes are kept for the next attempt)" if part.size() else ""
                raise _failure(url, f"{error}{kept}") from error
            time.sleep(_PAUSES[max(failures - 1, 0)])
    try:
        _check(url, part, sha256)
    except VitkitError:
        part.delete()
        raise
    with part.path.open("rb+") as file:
        os.fsync(file.fileno())
    part.path.replace(final)
    part.delete()  # its note


def _receive(url: str, part: PartialFile, what: str, progress: Progress) -> None:
    """One attempt to complete the part."""
    version, offset = part.version(), part.size()
    if version.length is not None and offset == version.length:
        return  # it was interrupted after the last byte
    resuming = bool(offset and version.validator)
    headers = {"Range": f"bytes={offset}-", "If-Range": version.validator} if resuming else {}
    with _open(url, {name: value for name, value in headers.items() if value}, part) as response:
        if response.status == 206:
            _check_range(response.headers, version, offset, part)
        else:
            offset = 0
            if response.length is None and not response.chunked:
                raise _failure(url, "the server does not say how long the file is")
            version = Version.described(response.headers, response.length)
            part.begin(version)
        total = version.length or 0
        progress(what, offset, total)
        with part.path.open("ab") as file:
            for block in _blocks(response):
                file.write(block)
                offset += len(block)
                progress(what, offset, total)
        cut_short = bool(response.length)
    if cut_short or (version.length is not None and offset != version.length):
        raise _BrokenOffError(f"the connection broke after {offset} of {version.length or 'unknown'} bytes")


def _open(url: str, headers: dict[str, str], part: PartialFile) -> http.client.HTTPResponse:
    everywhere = {"User-Agent": f"vitkit/{__version__}", "Accept-Encoding": "identity"}
    request = urllib.request.Request(url, headers=everywhere | headers)  # noqa: S310  # `cache_path` checked it
    try:
        response: http.client.HTTPResponse = urllib.request.build_opener(_Redirects).open(request, timeout=_TIMEOUT)
    except HTTPError as error:
        error.close()
        if error.code == 416:  # the file is shorter than the part
            part.delete()
        if error.code in (408, 416, 429) or error.code >= 500:
            raise _BrokenOffError(f"the server answered {error.code} {error.reason}") from error
        raise _failure(url, f"the server answered {error.code} {error.reason}") from error
    except URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise _failure(url, str(error.reason)) from error
        raise _BrokenOffError(str(error.reason)) from error
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenOffError(_said(error)) from error
    if response.status not in (200, 206):
        response.close()
        raise _failure(url, f"the server answered {response.status} {response.reason}")
    return response


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows to addresses that could have been asked for."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not _may_be_asked(newurl.replace(" ", "%20")):
            fp.close()
            raise _failure(req.full_url, f"the server sends us to {newurl}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_range(headers: Message, version: Version, offset: int, part: PartialFile) -> None:
    """That a partial answer goes on where the part ends, in the same file."""
    now = Version.described(headers, None).validator
    begins = re.match(r"bytes (\d+)-\d+/(\d+|\*)", headers.get("Content-Range", ""))
    if begins is None or int(begins[1]) != offset or now not in (None, version.validator):
        part.delete()
        raise _BrokenOffError("the file on the server changed during the download")


def _blocks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while True:
        try:
            block = response.read(_BLOCK)
        except (OSError, http.client.HTTPException) as error:
            raise _BrokenOffError(_said(error)) from error
        if not block:
            return
        yield block


def _check(url: str, part: PartialFile, sha256: str | None) -> None:
    md5 = part.version().md5
    with part.path.open("rb") as file:
        if sha256:
            kind, expected = "SHA-256", sha256.lower()
            found = hashlib.file_digest(file, "sha256").hexdigest()
        elif md5:
            kind, expected = "MD5", base64.b64decode(md5).hex()
            found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        else:
            return
    if not found.startswith(expected):
        found = found[: len(expected)]
        raise _failure(url, f"its {kind} is {found}, expected {expected}, so it was deleted; try again")


def _failure(url: str, reason: str) -> VitkitError:
    return VitkitError(f"could not download {url}: {' '.join(reason.split())}; {_ELSEWHERE}")


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
