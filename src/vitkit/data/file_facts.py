"""Facts about image files: each file is read and decoded once, and the results are stored in a database.

`scan` returns the facts of files: a digest, the size, a thumbnail and keypoints. They are stored in an SQLite database
outside the data's folder (`FactDatabase`). A file is not read again if its device, inode, size and times are unchanged
(as in git). Otherwise it is read, but if a file with the same content has been examined before, it is not decoded
again. If the database cannot be used, every file is examined.

Python decodes small pictures in only one thread at a time, so many files are distributed to processes. If such a
process dies, the main process examines its files.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import pickle
import signal
import sqlite3
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, replace
from operator import attrgetter
from queue import SimpleQueue
from typing import Any, Self, overload

import numpy as np
import numpy.typing as npt
from PIL import Image

from vitkit.data.decode import (
    DECODE_BUDGET,
    LEAST_BUDGET,
    OverBudgetError,
    decoder_versions,
    picture_of,
    raise_if_short,
    reason,
)
from vitkit.data.doctor.keypoints import BYTES, MOST, SHORT, Grey, find_keypoints, working_copy
from vitkit.data.picture import QUIET, Picture
from vitkit.data.storage import Place, Stored, UnreadableImageError, open_place
from vitkit.system.environment import cache_folder
from vitkit.system.files import empty_array, to_json
from vitkit.system.processes import Worker, serve_calls

Stamped = tuple[Place, bytes | None]  # a file, and its stamp (`stamp_of`)
THUMBNAIL = 16  # pixels of a thumbnail's sides: enough to recognise a picture, too few to show its details
LEAST_SIDE = 48  # pixels; in smaller pictures, blobs have too few pixels for keypoints
NO_BORDER, PLAIN = -1, -2  # values of `Facts.border`
_IN_MEMORY = (b"\xff\xd8\xff", b"\x89PNG")  # the first bytes of formats that are decoded from memory as from a file

_VERSION = 8  # increase it if the stored facts or the comparison of pictures change
_FACTS = "digest, error, format, mode, width, height, is_animated, thumbnail, doubt, keypoints, quality, camera, border"
_CREATE = f"""
CREATE TABLE IF NOT EXISTS facts ({_FACTS}, PRIMARY KEY (digest));
CREATE TABLE IF NOT EXISTS stamps (stamp PRIMARY KEY, digest) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS compared (number INTEGER PRIMARY KEY, contents, pairs);
"""
_INSERT_FACTS = f"INSERT OR IGNORE INTO facts VALUES ({', '.join('?' * len(_FACTS.split(', ')))})"  # noqa: S608  # constants
_BY_DIGEST = f"SELECT {_FACTS} FROM facts WHERE digest IN"  # noqa: S608  # constants
_DELETE_OLD = """
DELETE FROM compared WHERE number IN (
    SELECT number FROM (SELECT number, SUM(LENGTH(contents)) OVER (ORDER BY number DESC) AS held FROM compared)
    WHERE held > ? AND number < (SELECT MAX(number) FROM compared)
)
"""  # deletes the oldest comparisons, but never the last one
_MAX_COMPARED = 64 * 2**20  # the bytes of digests in all stored comparisons
_DIGEST = 32  # the bytes of a digest
_MAX_KEYS = 512  # the number of files or contents in one query


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about one image file. Fields after `error` have values only if the file is readable."""

    digest: bytes  # the SHA-256 of the file's bytes; empty if the file could not be opened
    error: str | None = None  # the reason why the file is unreadable; None if it is readable
    format: str = ""  # Pillow's names for the format and mode of the file
    mode: str = ""
    width: int = 0  # of the upright picture in pixels
    height: int = 0
    is_animated: bool = False  # whether the file has several frames, of which only the first is used
    thumbnail: bytes = b""  # 16 x 16 pixels in RGB, 768 bytes
    doubt: str | None = None  # why the brightness may be wrong, as in `picture.Picture`
    keypoints: bytes = b""  # the packed keypoints of the picture (`doctor.keypoints`); empty if they were not computed
    quality: int = 0  # as in `picture.Picture`
    camera: str = ""
    border: int = NO_BORDER  # the coarse colour of a border (`_border`), or PLAIN for a picture of one colour


_row_of = attrgetter(*_FACTS.split(", "))


class FactTable(Sequence[Facts]):
    """The facts of n images, stored as one column per field.

    One object per image would take 1.5 GB for a million images; the columns take 50 MB. Thumbnails and keypoints are
    kept in temporary files if there are many images (`empty_array`).

    Args:
        images: the number of images. Until its facts are set, an image counts as unreadable.
    """

    def __init__(self, images: int) -> None:
        self._rows: npt.NDArray[np.int64] = np.arange(images)
        self._bytes: dict[str, npt.NDArray[np.uint8]] = {  # (images, bytes); shorter values are padded with zeros
            "digest": np.zeros((images, _DIGEST), np.uint8),
            "thumbnail": empty_array((images, 3 * THUMBNAIL**2), "uint8"),
            "keypoints": empty_array((images, MOST * BYTES), "uint8"),
        }
        self._lengths = {name: np.zeros(images, np.int16) for name in self._bytes}
        self._sizes = np.zeros((images, 2), np.int32)  # width, height
        # The other fields (`_NAMED`) of each image. Few of these tuples differ, so images share them (`_distinct`).
        self._named: list[tuple[Any, ...]] = [_named(Facts(b"", "not read"))] * images
        self._distinct: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    @classmethod
    def of(cls, facts: Sequence[Facts]) -> FactTable:
        """Return a table of these facts. If `facts` is already a table, return it unchanged."""
        if isinstance(facts, FactTable):
            return facts
        table = cls(len(facts))
        table.fill(range(len(facts)), facts)
        return table

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Facts: ...
    @overload
    def __getitem__(self, index: slice) -> FactTable: ...
    def __getitem__(self, index: int | slice) -> Facts | FactTable:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        row = self._rows[index]
        width, height = self._sizes[row].tolist()
        fields: dict[str, Any] = dict(zip(_NAMED, self._named[row], strict=True))
        for name, stored in self._bytes.items():
            fields[name] = stored[row, : self._lengths[name][row]].tobytes()
        return Facts(width=width, height=height, **fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FactTable) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # it can be changed

    def fill(self, indices: Sequence[int], facts: Sequence[Facts]) -> None:
        """Set the facts of the images at these indices."""
        if not indices:
            return
        rows = self._rows[np.asarray(indices, np.int64)]
        self._sizes[rows] = [(fact.width, fact.height) for fact in facts]
        for name, stored in self._bytes.items():
            values = [getattr(fact, name) for fact in facts]
            padded = b"".join(value.ljust(stored.shape[1], b"\0") for value in values)
            stored[rows] = np.frombuffer(padded, np.uint8).reshape(len(values), -1)
            self._lengths[name][rows] = [len(value) for value in values]
        for row, fact in zip(rows.tolist(), facts, strict=True):
            named = _named(fact)
            self._named[row] = self._distinct.setdefault(named, named)

    def take(self, indices: Sequence[int] | npt.NDArray[np.int64]) -> FactTable:
        """Return the facts of the images at these indices, in this order. The columns are shared, not copied."""
        table = copy(self)
        table._rows = self._rows[np.asarray(indices, np.int64)]
        return table

    def column(self, name: str) -> list[Any]:
        """Return one field of all images, without creating a `Facts` object per image."""
        rows = self._rows.tolist()
        if name in self._bytes:
            stored, lengths = self._bytes[name], self._lengths[name][self._rows].tolist()
            return [stored[row, :length].tobytes() for row, length in zip(rows, lengths, strict=True)]
        if name in _SIZES:
            pixels: list[Any] = self._sizes[self._rows, _SIZES.index(name)].tolist()
            return pixels
        position = _NAMED.index(name)
        return [self._named[row][position] for row in rows]

    def columns(self, *names: str) -> list[list[Any]]:
        return [self.column(name) for name in names]

    def thumbnails(self) -> npt.NDArray[np.uint8]:
        """Return the thumbnails (n, 16, 16, 3)."""
        pixels = empty_array((len(self), 3 * THUMBNAIL**2), "uint8")
        np.take(self._bytes["thumbnail"], self._rows, axis=0, out=pixels, mode="clip")  # other modes copy `out`
        return pixels.reshape(-1, THUMBNAIL, THUMBNAIL, 3)


_NAMED = ("error", "format", "mode", "is_animated", "doubt", "quality", "camera", "border")
_SIZES = ("width", "height")
_named = attrgetter(*_NAMED)


Keep = Callable[[Place, Picture, bytes | None], None]
_BATCH = 32  # the number of files that are examined together
_MANY = 2_000  # the number of new files for which it is worth starting processes


def scan(
    files: Sequence[Place],
    database: FactDatabase,
    progress: Callable[[int, int], None] | None = None,
    keep: Keep | None = None,
) -> FactTable:
    """Return the facts of each file, in order. A file is not decoded if earlier scans have decoded the same content.

    Args:
        files: the image files.
        database: the database with the facts of earlier scans.
        progress: receives the number of files done and their total. A file that is listed several times counts once.
        keep: receives the pictures that this process decodes, so that they need not be decoded again.
    """
    row_of = {file: row for row, file in enumerate(dict.fromkeys(files))}
    distinct = list(row_of)
    table = FactTable(len(distinct))
    stamps: dict[int, bytes | None] = {}  # the stamps of new files, by row
    for start in range(0, len(distinct), _MAX_KEYS):
        part = {row: stamp_of(distinct[row]) for row in range(start, min(start + _MAX_KEYS, len(distinct)))}
        facts_by_stamp = database.find_by_stamps(list(part.values()))
        known: dict[int, Facts] = {}
        for row, stamp in part.items():
            if stamp is not None and stamp in facts_by_stamp:
                known[row] = facts_by_stamp[stamp]
            else:
                stamps[row] = stamp
        table.fill(list(known), list(known.values()))
    new = list(stamps)
    batches = [new[start : start + _BATCH] for start in range(0, len(new), _BATCH)]
    done = len(distinct) - len(new)
    cpus = os.cpu_count() or 1
    # With two CPUs, processes save less time than `keep`, which only this process can call.
    processes = cpus if len(new) >= _MANY and (keep is None or cpus > 2) else 1
    with ReaderPool(processes) as readers, ThreadPoolExecutor(cpus) as threads:

        def examine_batch(batch: Sequence[int]) -> list[Facts]:
            stamped = [(distinct[row], stamps[row]) for row in batch]
            facts = readers.examine(stamped)
            left = [i for i, fact in enumerate(facts) if fact is None]  # this process must examine these
            if left:
                for i, fact in zip(left, examine([stamped[i] for i in left], database, keep), strict=True):
                    facts[i] = fact
            return [fact for fact in facts if fact is not None]

        for batch, batch_facts in zip(batches, threads.map(examine_batch, batches), strict=True):
            table.fill(batch, batch_facts)
            done += len(batch)
            if progress is not None:
                progress(done, len(distinct))
    if progress is not None and not new:
        progress(done, len(distinct))
    return table.take([row_of[file] for file in files])


# --- Reading files -----------------------------------------------------------------------------------------------


@dataclass
class _Examined:
    """The facts of one file, and what the search for its keypoints needs."""

    facts: Facts | None  # None for a picture that needs more memory than this process may use; keypoints come last
    may_store: bool = False  # whether another examination would give the same facts
    grey: Grey | None = None  # the grey values in which to search for keypoints, if there may be any


def examine(files: Sequence[Stamped], database: FactDatabase, keep: Keep | None = None) -> list[Facts | None]:
    """Examine files whose stamp is not in the database, store the facts and return them.

    The facts are None for a picture that needs more memory than this process may use.
    """
    with QUIET:
        contents = [_content_of(file) for file, _ in files]
        known = database.find_by_contents([content[0] for content in contents if not isinstance(content, Facts)])
        examined: list[_Examined] = []
        for (file, _), content in zip(files, contents, strict=True):
            if isinstance(content, Facts):
                examined.append(_Examined(content))
            elif content[0] in known:
                examined.append(_Examined(known[content[0]], may_store=True))
            else:
                examined.append(_decode(file, *content, keep))
    keypoints = iter(find_keypoints([each.grey for each in examined if each.grey is not None]))
    for each, (_, stamp) in zip(examined, files, strict=True):
        if each.facts is not None and each.grey is not None:
            each.facts = replace(each.facts, keypoints=next(keypoints))
        if each.facts is not None and each.may_store:
            database.add(each.facts, stamp)
    return [each.facts for each in examined]


def _content_of(file: Place) -> tuple[bytes, bytes | None] | Facts:
    """Return the digest of a file, and its bytes if they are few; facts with the reason if it cannot be read."""
    try:
        with open_place(file) as opened:
            content = opened.read(2**20)
            is_complete = True
            digest = hashlib.sha256(content)
            while part := opened.read(2**20):
                is_complete = False
                digest.update(part)
    except (OSError, UnreadableImageError) as error:
        raise_if_short(file, error)
        return Facts(b"", reason(file, error))
    return digest.digest(), content if is_complete and content.startswith(_IN_MEMORY) else None


def _decode(file: Place, digest: bytes, content: bytes | None, keep: Keep | None) -> _Examined:
    try:
        with picture_of(file, short_side=SHORT // 2, content=content) as picture:  # reads a JPEG to its end
            if keep is not None:
                keep(file, picture, content)
            extrema: Any = picture.image.getextrema()  # a pair for each channel
            is_plain = all(high - low <= 2 for low, high in extrema)  # compression adds noise of two levels
            facts = Facts(
                digest,
                format=picture.format,
                mode=picture.mode,
                width=picture.width,
                height=picture.height,
                is_animated=picture.is_animated,
                thumbnail=picture.image.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX).tobytes(),
                doubt=picture.doubt,
                quality=picture.quality,
                camera=picture.camera,
                border=PLAIN if is_plain else _border(picture.image),
            )
            grey = working_copy(picture.image) if min(picture.image.size) >= LEAST_SIDE else None
            return _Examined(facts, may_store=True, grey=grey)
    except OverBudgetError:
        return _Examined(None)
    except UnreadableImageError as error:
        cause = error.__cause__
        # With an errno, the error is one of the system, such as a network that fails; Pillow's own have none.
        is_temporary = isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno is not None)
        return _Examined(Facts(digest, str(error)), may_store=not is_temporary)


def _border(picture: Image.Image) -> int:
    """Return a number for the coarse colour of a border or a bar at an edge; NO_BORDER if there is none.

    An edge belongs to a border if its outermost pixels have one colour. The tolerance is such that a border of 4 pixels
    is recognised after compression as JPEG; 15 % of the edges of photographs are, too. The most frequent colour counts.
    """
    width, height = picture.size
    boxes = ((0, 0, width, 1), (0, 0, 1, height), (width - 1, 0, width, height), (0, height - 1, width, height))
    colours = Counter[int]()
    for box in boxes:
        pixels = np.asarray(picture.crop(box)).reshape(-1, 3).astype(np.int16)
        median = np.median(pixels, axis=0)
        if np.mean(np.abs(pixels - median).max(axis=1) <= 16) >= 0.9:
            red, green, blue = np.rint(median / 51).astype(int).tolist()  # six coarse levels each
            colours[36 * red + 6 * green + blue] += 1
    return max(colours, key=lambda colour: (colours[colour], colour), default=NO_BORDER)


class ReaderPool:
    """A pool of processes that examine files, which threads may share. A pool of one process starts none."""

    def __init__(self, processes: int) -> None:
        processes = min(processes, 32)
        self._workers = [Worker(__name__, is_quiet=True) for _ in range(processes)] if processes > 1 else []
        self._budget = LEAST_BUDGET // processes
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.close()  # asks it to store its results and end
        for worker in self._workers:
            worker.wait()

    def examine(self, files: Sequence[Stamped]) -> list[Facts | None]:
        """Return the facts of each file; None for files that the calling process must examine."""
        if not self._workers:
            return [None] * len(files)
        worker = self._idle.get()
        try:
            rows = worker.call((self._budget, files))
        except (OSError, EOFError, pickle.PickleError):  # it died
            return [None] * len(files)
        finally:
            self._idle.put(worker)
        return [None if row is None else Facts(*row) for row in rows]


def serve() -> None:
    """Examine the lists of files that the parent process sends, each with the bytes that decoding may take."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process also receives it, and decides what to do
    gc.set_threshold(100_000)  # decoding creates few reference cycles
    with FactDatabase() as database:

        def answer(question: tuple[int, Sequence[Stamped]]) -> list[tuple[Any, ...] | None]:
            budget, files = question
            DECODE_BUDGET.max_picture = budget
            return [None if fact is None else _row_of(fact) for fact in examine(files, database)]

        serve_calls(answer)


# --- The database ------------------------------------------------------------------------------------------------


class FactDatabase:
    """A database of the facts of files and of the pairs of copies that were found. Threads may share it.

    Facts are found by the stamp or by the content of a file.
    """

    def __init__(self) -> None:
        self._path = cache_folder() / f"doctor-{_VERSION}-{decoder_versions()}.sqlite3"
        self._lock = threading.Lock()
        self._facts: list[Facts] = []  # not yet written
        self._stamps: list[tuple[bytes, bytes]] = []
        self._database: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(self._path, timeout=30, check_same_thread=False)
            self._database.executescript(_CREATE)
        except (OSError, sqlite3.Error) as error:
            self._close(error)
        return self

    def __exit__(self, *_: object) -> None:
        self.write()
        self._close()

    def find_by_stamps(self, stamps: Sequence[bytes | None]) -> dict[bytes, Facts]:
        """Look up the facts of files by their stamps (`stamp_of`). Unknown files are left out."""
        present = [stamp for stamp in stamps if stamp is not None]
        query = "SELECT stamp, digest FROM stamps WHERE stamp IN"
        digests = dict(self._rows_with(query, present))
        facts = self.find_by_contents(list(set(digests.values())))
        return {stamp: facts[digest] for stamp, digest in digests.items() if digest in facts}

    def find_by_contents(self, digests: Sequence[bytes]) -> dict[bytes, Facts]:
        """Look up the facts of file contents by their SHA-256 digests. Unknown contents are left out."""
        return {row[0]: Facts(*row) for row in self._rows_with(_BY_DIGEST, digests)}

    def add(self, facts: Facts, stamp: bytes | None) -> None:
        """Store the facts of a file by its content, and also by its stamp if there is one."""
        with self._lock:
            self._facts.append(facts)
            if stamp is not None:
                self._stamps.append((stamp, facts.digest))
        self.write(min_count=4096)

    def find_comparison(self, digests: Sequence[bytes]) -> tuple[tuple[bytes, ...], Any] | None:
        """Look up the earlier comparison that covered the largest part of these contents.

        Return its contents and its result; None if no comparison covered more than half of `digests`, which are sorted.
        """
        wanted = set(digests)
        most_covered = len(digests) // 2
        best_number = None
        best_contents: list[bytes] = []
        for number, joined in self._query("SELECT number, contents FROM compared"):
            contents = [joined[i : i + _DIGEST] for i in range(0, len(joined), _DIGEST)]
            covered = len(wanted.intersection(contents))
            if covered > most_covered:
                most_covered, best_number, best_contents = covered, number, contents
        if best_number is None:
            return None
        rows = self._query("SELECT pairs FROM compared WHERE number = ?", [best_number])
        return (tuple(best_contents), json.loads(rows[0][0])) if rows else None

    def add_comparison(self, digests: Sequence[bytes], result: Any) -> None:
        """Store the result of comparing these contents with one another. The result must consist of JSON types."""
        row = (b"".join(digests), to_json(result))
        self._run("INSERT INTO compared (contents, pairs) VALUES (?, ?)", [row])
        self._run(_DELETE_OLD, [(_MAX_COMPARED,)])

    def write(self, min_count: int = 1) -> None:
        """Write the pending facts to the database if there are at least `min_count` of them."""
        if len(self._facts) >= min_count:
            with self._lock:
                facts, self._facts = self._facts, []
                stamps, self._stamps = self._stamps, []
            self._run(_INSERT_FACTS, [_row_of(fact) for fact in facts])
            self._run("INSERT OR REPLACE INTO stamps VALUES (?, ?)", stamps)

    def _rows_with(self, query: str, keys: Sequence[bytes]) -> Iterator[Any]:
        """Yield the rows of a query that ends with `IN`, for these keys."""
        for start in range(0, len(keys), _MAX_KEYS):
            part = keys[start : start + _MAX_KEYS]
            yield from self._query(f"{query} ({', '.join('?' * len(part))})", part)

    def _query(self, query: str, parameters: Sequence[Any] = ()) -> list[Any]:
        with self._lock:
            if self._database is None:
                return []
            try:
                return self._database.execute(query, parameters).fetchall()
            except sqlite3.Error as error:
                self._close(error)
                return []

    def _run(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        with self._lock:
            if self._database is not None:
                try:
                    with self._database:
                        self._database.executemany(statement, rows)
                except sqlite3.Error as error:
                    self._close(error)

    def _close(self, reason: Exception | None = None) -> None:
        """Close the database, and work without it. If `reason` means that it is damaged, delete its file.

        A full disk and a lock are no damage; SQLite reports them as OperationalError.
        """
        if self._database is not None:
            with contextlib.suppress(sqlite3.Error):
                self._database.close()
        self._database = None
        if isinstance(reason, sqlite3.DatabaseError) and not isinstance(reason, sqlite3.OperationalError):
            with contextlib.suppress(OSError):
                self._path.unlink()


def stamp_of(file: Place) -> bytes | None:
    """Return the stamp of a file: bytes that change whenever the file changes.

    Return None if the file cannot be accessed, or if it changed in the last two seconds, because times may be too
    coarse to reveal another change so soon after.
    """
    if isinstance(file, Stored):
        return file.storage.stamp(file.key)
    try:
        status = os.stat(file)  # noqa: PTH116  # half the time of a Path's own
    except OSError:
        return None
    if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) < 2 * 10**9:
        return None
    inode = status.st_ino & 0xFFFFFFFFFFFFFFFF  # it has 128 bits on some file systems of Windows
    return struct.pack("=QQQqq", status.st_dev, inode, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


if __name__ == "__main__":
    serve()
