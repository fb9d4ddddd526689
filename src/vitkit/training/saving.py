"""Write checkpoints while the training goes on.

`BackgroundSave` copies a state and writes it in a thread of the main process. The thread copies weights and moments
during the forward and backward pass of the next step. Only the optimiser's step changes weights and moments, and it
waits for the copy, which is usually complete by then. The file is written under a temporary name, and renamed when the
file is complete. The thread never waits for another process, because it communicates with none
(docs/decisions/0040-a-place-in-the-epoch.md).
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitkit.system.files import replacing
from vitkit.system.run_files import BEFORE

CHECKSUM = 64  # length of the checksum, which is the comment of the zip archive


def save(state: Mapping[str, Any], path: Path) -> None:
    """Write the state of a training, completely or not at all. The previous file is kept as `before.ckpt`.

    Raises:
        OSError: the file cannot be written; the error names `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing(path) as temporary:
            with temporary.open("wb") as file:  # with a path, torch does not report the cause of an error
                torch.save(dict(state), file)
            seal(temporary)
            _keep_before(path)
    except (OSError, RuntimeError) as error:
        cause = error if isinstance(error, OSError) else error.__context__  # torch raises another error in its place
        if not isinstance(cause, OSError):
            raise
        raise OSError(cause.errno, cause.strerror or str(cause), str(path)) from error


def _keep_before(last: Path) -> None:
    """Keep the last checkpoint as `before.ckpt`, because `last.ckpt` will be replaced."""
    if not last.is_file():
        return
    before = last.with_name(BEFORE.name)
    try:
        with replacing(before) as temporary:
            os.link(last, temporary)
    except OSError:  # the file system has no hard links
        last.replace(before)


def seal(path: Path) -> None:
    """Append a checksum to a file that `torch.save` wrote."""
    with path.open("rb+") as file:
        file.seek(-2, os.SEEK_END)
        if file.read() != b"\0\0":  # the length of the comment
            raise ValueError(f"{path} has a comment already")
        file.seek(-2, os.SEEK_END)
        file.write(CHECKSUM.to_bytes(2, "little"))
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.write(digest.encode())


def check_seal(path: Path) -> None:
    """Check the checksum of a file that `seal` has processed.

    Raises:
        ValueError: the content of the file does not match the checksum.
        OSError: the file cannot be read.
    """
    digest, left = hashlib.sha256(), path.stat().st_size - CHECKSUM
    with path.open("rb") as file:
        while left > 0 and (part := file.read(min(left, 2**20))):
            digest.update(part)
            left -= len(part)
        if file.read() != digest.hexdigest().encode():
            raise ValueError("its content does not match its checksum")


class BackgroundSave:
    """Write one checkpoint at a time in a thread.

    Args:
        path: the file, which each checkpoint replaces.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._thread: threading.Thread | None = None
        self._copied = threading.Event()
        self._copied.set()
        self._error: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """Return whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, changing: Mapping[str, Any], constant: Mapping[str, Any]) -> None:
        """Start to write a state in a thread.

        Args:
            changing: the part of the state that is copied. Its tensors may change again after `wait_for_copy`.
            constant: the part of the state whose tensors never change.

        Raises:
            OSError: the previous checkpoint could not be written.
        """
        self.finish()
        self._copied.clear()
        self._thread = threading.Thread(target=self._write, args=(changing, constant), name="checkpoint")
        self._thread.start()

    def wait_for_copy(self, *_: object) -> None:
        """Wait until the tensors of the state have been copied."""
        self._copied.wait()

    def finish(self) -> None:
        """Wait until the checkpoint is written.

        Raises:
            OSError: the checkpoint could not be written.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Wait until the thread has ended, without raising its error."""
        if self._thread is not None:
            self._thread.join()

    def _write(self, changing: Mapping[str, Any], constant: Mapping[str, Any]) -> None:
        try:
            try:
                copied = copy_tensors(changing)
            finally:
                self._copied.set()
            save({**copied, **constant}, self.path)
        except BaseException as error:  # it is raised in the main thread
            self._error = error


def copy_tensors(value: Any) -> Any:
    """Copy nested dictionaries and lists, and the tensors in them, to main memory."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: copy_tensors(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(copy_tensors(item) for item in value)
    return value
