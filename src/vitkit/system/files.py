"""Writing files so that a crash, a full disk or a second process never leaves half of one under its final name."""

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vitkit.errors import VitkitError

_LONGEST = 255  # bytes of a file's name
_LOCK = ".lock"  # in a folder that is worked on

NO_FILE = "it is a pipe or a device; a regular file is expected"
_UNFINISHED = re.compile(r"\.(.+)\.\d+\.tmp", re.DOTALL)  # as `replacing` names it


def regular(name: str, flags: int) -> int:
    """Open a regular file: an `opener` for `open` that refuses pipes and devices, which may keep it waiting forever.

    Raises:
        OSError: it is none, or cannot be opened.
    """
    try:
        descriptor = os.open(name, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0), 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a pipe that nobody reads from
            raise OSError(errno.EINVAL, NO_FILE, name) from error
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    raise OSError(errno.EINVAL, NO_FILE, name)


def read_bytes(path: str | Path) -> bytes:
    """The content of a regular file.

    Raises:
        OSError: there is none of this name (`regular`), or it cannot be read.
    """
    with open(path, "rb", opener=regular) as file:  # a Path takes no opener
        return file.read()


def read_text(path: str | Path, errors: str = "strict") -> str:
    """The text of a regular file in UTF-8, its line ends as `\\n`.

    Raises:
        OSError: as of `read_bytes`.
        UnicodeDecodeError: it is not in UTF-8, and `errors` is `strict`.
    """
    with open(path, encoding="utf-8", errors=errors, opener=regular) as file:
        return file.read()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; it takes the final name when the block ends well, else it goes."""
    temporary = path.with_name(fitting(f".{path.name}", f".{os.getpid()}.tmp"))
    try:
        yield temporary
        _flush(temporary)
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def fitting(name: str, ending: str) -> str:
    """A file name with an ending, within the 255 bytes that file systems allow: a name too long for it is cut.

    Names that differ stay different: a digest of the whole takes the place of what was cut.
    """
    room = _LONGEST - len(os.fsencode(ending))
    stored = os.fsencode(name)
    if len(stored) > room:
        digest = hashlib.sha256(stored).hexdigest()[:16]
        name = f"{stored[: room - len(digest) - 1].decode('utf-8', 'ignore')}-{digest}"
    return name + ending


def unfinished(folder: Path) -> Iterator[tuple[str, Path]]:
    """What is being written in a folder, or was when its process was killed: the name that it was for, and the file."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if (found := _UNFINISHED.fullmatch(path.name)) is not None:
            yield found[1], path


@contextmanager
def sole(path: Path, place: Path | None = None, wait: float = 0.0) -> Iterator[None]:
    """Work on a file or folder as the only process that does. The lock ends with the process, however that ends.

    What a killed process was writing for it is removed.

    Args:
        path: what is worked on.
        place: where the lock is; by default beside it.
        wait: seconds for another process, or thread, to be done.

    Raises:
        VitkitError: another process works on it, and the message says which; or the lock is a link.
    """
    from filelock import FileLock, Timeout

    place = place or path.with_name(fitting(f".{path.name}", ".lock"))
    if place.is_symlink():
        raise VitkitError(f"{place} is a link, where vitkit writes who works on {path}: remove it")
    lock = FileLock(place, timeout=wait)
    try:
        lock.acquire()
    except Timeout as error:
        raise VitkitError(
            f"{path} is being written by {_holder(place)}: wait until it is done, or name another"
        ) from error
    try:
        with suppress(OSError):  # of a full disk what is being written will tell
            place.write_text(f"process {os.getpid()} of {socket.gethostname()} since {time.strftime('%F %T')}")
        _tidy(path)
        yield
    finally:
        with suppress(OSError):  # while it is held: whoever has opened it meanwhile sees that it is gone, and asks anew
            place.unlink(missing_ok=True)
        lock.release()


@contextmanager
def sole_in(folder: Path) -> Iterator[None]:
    """Work on a folder as the only process that does. It is made if need be, and goes again if nothing comes into it.

    Raises:
        VitkitError: another process works on it.
    """
    made = [own for own in (folder, *folder.parents) if not own.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with sole(folder, folder / _LOCK):
            yield
    finally:
        with suppress(OSError):  # as a rule there is something in it
            for own in made:
                own.rmdir()


def is_held(path: Path, place: Path | None = None) -> bool:
    """Whether a process works on a file or folder, as `sole` (of a folder `sole_in`) has it.

    Whoever begins meanwhile is not disturbed: the lock is asked for only where the process that had it may be gone.

    Args:
        path: what is worked on.
        place: where the lock is; by default in a folder, and beside a file.
    """
    if place is None:
        place = path / _LOCK if path.is_dir() else path.with_name(fitting(f".{path.name}", ".lock"))
    try:
        told = read_text(place)
        found = re.match(r"process (\d+) of (.+) since ", told)
        if found is None or found[2] != socket.gethostname():
            return True  # it is just beginning, or on another machine, whose locks cannot be seen from here
        os.kill(int(found[1]), 0)
    except (FileNotFoundError, ProcessLookupError, OverflowError):  # the last: no process has such a number
        return False
    except OSError:  # of another user
        return True
    return _is_locked(place)


def holder(folder: Path) -> int | None:
    """The number of the process that works on a folder; None: of none that is known here, as on another machine."""
    with suppress(OSError):
        found = re.match(r"process (\d+) of (.+) since ", read_text(folder / _LOCK))
        is_here = found is not None and found[2] == socket.gethostname()
        return int(found[1]) if found is not None and is_here and is_held(folder) else None
    return None


def _is_locked(place: Path) -> bool:
    from filelock import FileLock, Timeout

    lock = FileLock(place, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        return True
    lock.release()
    return False


def is_empty(folder: Path) -> bool:
    """Whether nothing is in a folder, but perhaps the lock of who works on it."""
    return all(path.name == _LOCK for path in folder.iterdir())


def _tidy(path: Path) -> None:
    """Remove what a process that was killed was writing for this name: nobody else is at work on it now."""
    for name, left in unfinished(path.parent):
        if name == path.name:
            with suppress(OSError):
                shutil.rmtree(left) if left.is_dir() else left.unlink()


def _holder(place: Path) -> str:
    with suppress(OSError, ValueError):
        return read_text(place) or "another process"
    return "another process"


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def append_bytes(path: Path, data: bytes) -> None:
    """Append to a file that the caller holds (`sole`), all or nothing, however large the file is.

    Until all is on disk a note beside the file tells what is being added, so that `read_appended` passes over what a
    crash has left of it, and the next call removes that.

    Raises:
        OSError: it cannot be written, and is as before.
    """
    mend_append(path)
    size, note = path.stat().st_size if path.exists() else 0, _note_of(path)
    try:
        with open(note, "wb", opener=regular) as file:
            file.write(f"{size}\n".encode() + data)
            file.flush()
            os.fsync(file.fileno())
        _flush_folder(path.parent)
        with open(path, "ab", opener=regular) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        if path.exists():
            cut_off(path, size)
        note.unlink(missing_ok=True)
        raise
    note.unlink(missing_ok=True)


def read_appended(path: Path) -> bytes:
    """The content of a file that others may append to meanwhile (`append_bytes`), without what is half-written.

    Raises:
        OSError: it cannot be read, or is a pipe or a device.
    """
    while True:
        before = _stamp(path)
        data, adding = read_bytes(path), _noted(path)
        if adding is not None and adding[0] <= len(data):
            return data[: adding[0]] if _is_half(data, *adding) else data
        if _stamp(path) == before:
            return data


def cut_off(path: Path, size: int) -> None:
    """Leave the first bytes of a file, and nothing behind them."""
    with open(path, "r+b", opener=regular) as file:
        file.truncate(size)
        file.flush()
        os.fsync(file.fileno())


def mend_append(path: Path) -> None:
    """Remove what a crash has left of an addition to a file that the caller holds (`sole`).

    Where the file was edited by hand since, it stays as it is.
    """
    adding = _noted(path)
    if adding is not None and path.exists() and _is_half(read_bytes(path), *adding):
        cut_off(path, adding[0])
    with suppress(OSError):
        _note_of(path).unlink(missing_ok=True)


def _note_of(path: Path) -> Path:
    return path.with_name(fitting(f".{path.name}", ".adding"))


def _noted(path: Path) -> tuple[int, bytes] | None:
    """The size that a file had before what is being added, and that; None where nothing is being added."""
    try:
        size, is_whole, data = read_bytes(_note_of(path)).partition(b"\n")
        return (int(size), data) if is_whole else None
    except (OSError, ValueError):
        return None


def _is_half(content: bytes, size: int, data: bytes) -> bool:
    """Whether a file ends in a part of what was to be added to it, and in nothing else."""
    tail = content[size:]
    return 0 < len(tail) < len(data) and data.startswith(tail)


def _stamp(path: Path) -> tuple[int, int, int]:
    seen = path.stat()
    return seen.st_size, seen.st_mtime_ns, seen.st_ino


def _flush_folder(folder: Path) -> None:
    with suppress(OSError):  # not every system opens folders
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def without_place(name: str | Path) -> str:
    """What to call a file or folder in what others will read: an absolute path by its last part, else as it stands.

    Where a photograph lies on somebody's disk, under whose name, is nobody's business who gets a model or a page.
    """
    return Path(name).name if Path(name).is_absolute() else str(name)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all. Names of files that are not UTF-8 keep their bytes."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="surrogateescape")


def write_json(path: Path, value: Any) -> None:
    """Write JSON, whole or not at all."""
    write_text(path, to_json(value, indent=2) + "\n")


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON that every reader takes: a number that is NaN or infinite, which JSON has no word for, is null.

    Text is written as it is, but for a file name that is not UTF-8, or has what terminals take for commands: that
    survives as escapes.
    """
    value = _finite(value)
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    is_plain = text.isascii() and "\x7f" not in text
    if is_plain or not any("\ud800" <= own <= "\udfff" or "\x7f" <= own <= "\x9f" for own in text):
        return text
    return json.dumps(value, indent=indent, allow_nan=False)


def from_json(text: str | bytes) -> Any:
    """What JSON text says.

    Raises:
        ValueError: it is no JSON, or nested deeper than anyone means.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        VitkitError: the file is damaged, or holds something else; it is named.
        OSError: it cannot be read.
    """
    try:
        found = from_json(read_text(path))
    except ValueError as error:
        raise VitkitError(f"{path} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise VitkitError(f"{path} is damaged: expected a JSON object, not {type(found).__name__}")
    return found


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def _flush(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
