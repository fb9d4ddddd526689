"""Download published weights into the cache, which contains only complete and verified files.

A download is written to `NAME.part`, and renamed after its length and checksum were verified. An interrupted download
continues next time. Repositories of the Hugging Face hub are downloaded with `huggingface_hub`. Cached files are used
without a request.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import re
import ssl
import urllib.request
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from vitkit import __version__
from vitkit.errors import VitkitError, first_line
from vitkit.system.environment import cache_folder, offline
from vitkit.system.progress import progress, receiver

_TIMEOUT = 30.0  # seconds without a byte
_BLOCK = 1 << 18  # bytes to read at once


def fetch_url(url: str, sha256: str | None = None) -> Path:
    """Return the path of a file in the cache, downloading it if necessary.

    Interrupted downloads continue, and processes that need the same file wait for one another.

    Args:
        url: an https address, or an http address of this machine.
        sha256: all or the first hexadecimal digits of the file's SHA-256; None if it is unknown.

    Raises:
        VitkitError: downloads are forbidden, the server cannot be reached or does not have the file, the checksum is
            wrong, or the cache cannot be written.
    """
    final = cache_path(url)
    if final.is_file():
        return final
    check_online(url, f"put the file at {final}, or name a file that you have")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(final.with_name(f".{final.name}.lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress(f"waiting for another download of {final.name}", 0, 0)
            lock.acquire()
        try:
            if not final.is_file():  # otherwise another process has downloaded it
                _download(url, final, sha256)
        finally:
            lock.release()
    except OSError as error:
        raise VitkitError(
            "weights.cache-unwritable",
            f"cannot write {final}: {error.strerror or error}; set VITKIT_CACHE to use another folder",
        ) from error
    return final


def cache_path(url: str) -> Path:
    """Return the path in the cache for the file of an address, whether or not the file exists."""
    if not _is_allowed_url(url):
        raise VitkitError(
            "weights.address-invalid", f"cannot download {url!r}: expected an address that begins with https://"
        )
    parts = urlsplit(url)
    *folders, name = parts.path.split("/")[1:] or [""]
    if parts.query:  # each query may be a different file
        folders.append(hashlib.sha256(parts.query.encode()).hexdigest()[:8])
    if any(re.fullmatch(r"\.*", part) or set(part) & set('\\:*?"<>|') for part in (*folders, name)):
        raise VitkitError("weights.address-invalid", f"cannot download {url}: expected the address of a file")
    return cache_folder() / "weights" / parts.netloc.replace(":", "_") / Path(*folders, name)


def _is_allowed_url(url: str) -> bool:
    if not re.fullmatch(r"https?://([\w.-]+|\[[\da-f:]+\])(:\d+)?/[!-~]*", url, re.ASCII):
        return False
    return url.startswith("https:") or urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")


def check_online(what: str, advice: str) -> None:
    """Raise VitkitError with advice for the user if downloads are forbidden."""
    switch = offline()  # the name of the environment variable that forbids them
    if switch:
        raise VitkitError(
            "weights.downloads-forbidden", f"{what} is not in the cache, and {switch} forbids downloading: {advice}"
        )


def _download(url: str, final: Path, sha256: str | None) -> None:
    """Complete the partial file, verify its checksum, and move it to `final`."""
    part = final.with_name(f"{final.name}.part")
    try:
        _receive(url, part, f"downloading {final.name}")
    except HTTPError as error:
        error.close()
        if error.code == 416:  # the file on the server is not longer than the partial file
            part.unlink()
        raise _failure(url, f"the server answered {error.code} {error.reason}; try again") from error
    except (URLError, http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError) as error:
        kept = f" ({part.stat().st_size} bytes are kept, try again to continue)" if part.is_file() else ""
        raise _failure(url, f"{getattr(error, 'reason', error)!s}{kept}" or type(error).__name__) from error
    if sha256:
        with part.open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()[: len(sha256)]
        if actual != sha256.lower():
            part.unlink()
            raise _failure(url, f"its SHA-256 is {actual}, expected {sha256.lower()}, so it was deleted; try again")
    part.replace(final)


def _receive(url: str, part: Path, what: str) -> None:
    offset = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": f"vitkit/{__version__}", "Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  # `cache_path` checked it
    with urllib.request.build_opener(_Redirects).open(request, timeout=_TIMEOUT) as response:
        if response.status == 206:  # the server sends the requested range, and not the whole file
            length = response.headers["Content-Range"].rpartition("/")[2]
        elif response.status == 200:
            offset, length = 0, response.headers.get("Content-Length", "")
        else:
            raise _failure(url, f"the server answered {response.status} {response.reason}")
        if not length.isdecimal():
            raise _failure(url, "the server does not say how long the file is")
        total = int(length)
        progress(what, offset, total)
        with part.open("ab" if offset else "wb") as file:
            while True:
                try:
                    block = response.read(_BLOCK)
                except OSError as error:  # of the network, and not of the file
                    raise ConnectionError(str(error) or type(error).__name__) from error
                if not block:
                    break
                file.write(block)
                offset += len(block)
                progress(what, offset, total)
    if offset < total:
        raise ConnectionError(f"the connection broke after {offset} of {total} bytes")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """A handler that follows redirects only to addresses that vitkit may request directly."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not _is_allowed_url(newurl.replace(" ", "%20")):
            fp.close()
            raise _failure(req.full_url, f"the server sends us to {newurl}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _failure(url: str, reason: str) -> VitkitError:
    reason = " ".join(reason.split())
    return VitkitError(
        "weights.download-failed",
        f"could not download {url}: {reason}; or download it by other means and name the file instead",
    )


_DESCRIPTIONS = [
    "model.json",
    "pictures.npz",
    "config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "open_clip_config.json",
    *("tokenizer.json", "spiece.model", "tokenizer_config.json"),  # of text encoders
]


def fetch_hub(repo_id: str) -> Path:
    """Return the folder of a Hugging Face repository in the hub's cache, downloading its weights and descriptions.

    Safetensors are preferred to other weights. HF_HOME, HF_ENDPOINT (a mirror) and HF_HUB_OFFLINE are respected, and
    files that other programs have put into this cache are used.

    Raises:
        VitkitError: the repository does not exist, is private or gated, or has no weights; the repository is not cached
            and downloads are forbidden; or the hub cannot be reached.
    """
    folder = _snapshot(repo_id, [*_DESCRIPTIONS, "*.safetensors", "*.safetensors.index.json"])
    if not any(folder.glob("*.safetensors")):
        others = ["pytorch_model*.bin", "pytorch_model.bin.index.json", "*.npz"]
        folder = _snapshot(repo_id, [*_DESCRIPTIONS, *others])
    if not any(any(folder.glob(pattern)) for pattern in ("*.safetensors", "*.bin", "*.npz")):
        check_online(repo_id, "download its files elsewhere and name their folder")
        raise VitkitError(
            "weights.tensors-absent",
            f"{repo_id} on the hub has no weights: expected a .safetensors, pytorch_model.bin or .npz file",
        )
    return folder


def _snapshot(repo_id: str, patterns: list[str]) -> Path:
    from huggingface_hub import errors, snapshot_download
    from tqdm import tqdm  # type: ignore[import-untyped]

    report = receiver()  # the hub's library downloads in threads

    class Reporting(tqdm):  # type: ignore[misc]
        """A progress bar that draws nothing and reports to `progress`."""

        def __init__(self, *args: Any, **fields: Any) -> None:
            super().__init__(*args, **{**fields, "file": io.StringIO(), "disable": False})

        def update(self, n: float | None = 1) -> bool | None:
            shown = super().update(n)
            if self.unit == "B":  # bytes; other bars count files
                report(f"downloading {repo_id}", int(self.n), int(self.total or 0))
            return shown

    try:
        return Path(
            snapshot_download(
                repo_id,
                allow_patterns=patterns,
                ignore_patterns=["*/*"],  # subfolders contain other formats and precisions
                local_files_only=offline() is not None,
                tqdm_class=Reporting,
            )
        )
    except errors.GatedRepoError as error:
        raise VitkitError(
            "weights.repository-gated",
            f"{repo_id} is gated: accept its terms on https://huggingface.co/{repo_id} and log in with `hf auth login`",
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise VitkitError(
            "weights.repository-unknown",
            f"the hub has no repository {repo_id!r}, or it is private: check its name (owner/name), or log in with "
            "`hf auth login`",
        ) from error
    except Exception as error:  # the hub's HTTP library, and so its errors, change from release to release
        check_online(repo_id, "download its files elsewhere and name their folder")
        raise VitkitError(
            "weights.download-failed",
            f"could not download {repo_id} from the hub: {first_line(error)}; try again, or download its files by "
            "other means and name their folder instead",
        ) from error
