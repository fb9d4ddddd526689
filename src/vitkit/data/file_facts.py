"""A cache of facts about image files, in an SQLite database outside the data's folder.

A file is not read again if its device, inode, size and times are unchanged (as in git); otherwise it is recognised by
the hash of its content. If the cache cannot be written, every file is examined.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import TracebackType
from typing import Any, Self

from vitkit.data.decode import decoders
from vitkit.data.storage import Place, Stored
from vitkit.system.environment import cache_folder
from vitkit.system.files import to_json

_VERSION = 6  # increased if the stored facts or the comparison of pictures change
_FACTS = "digest, error, format, mode, width, height, is_animated, thumbnail, doubt, keypoints"
_CREATE = f"""
CREATE TABLE IF NOT EXISTS facts ({_FACTS}, PRIMARY KEY (digest));
CREATE TABLE IF NOT EXISTS stamps (stamp PRIMARY KEY, digest) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS compared (number INTEGER PRIMARY KEY, name UNIQUE, contents, pairs);
"""
_BY_DIGEST = f"SELECT {_FACTS} FROM facts WHERE digest IN"  # noqa: S608  # constants
_BY_STAMP = f"SELECT stamp, {_FACTS} FROM stamps JOIN facts USING (digest) WHERE stamp IN"  # noqa: S608
_FORGET = """
DELETE FROM compared WHERE number IN (
    SELECT number FROM (SELECT number, SUM(LENGTH(contents)) OVER (ORDER BY number DESC) AS held FROM compared)
    WHERE held > ? AND number < (SELECT MAX(number) FROM compared)
)
"""  # deletes the oldest comparisons, but never the last one
_MOST_COMPARED = 64 * 2**20  # bytes of digests
_DIGEST = 32  # bytes of each
_WRITTEN = 4096  # files in one transaction
_MOST_AT_ONCE = 512  # files or contents in one query
_SETTLED = 2 * 10**9  # nanoseconds after which another change surely changes the file's time


@dataclass(frozen=True)
class Facts:
    """The facts about one image file.

    Attributes:
        digest: SHA-256 of the file's bytes; empty if it could not be opened.
        error: why the file is unreadable; None if it is readable. Only then the other fields have values.
        format, mode: Pillow's names for the format and mode of the file.
        width, height: pixels of the upright picture.
        is_animated: the file has several frames, of which only the first is used.
        thumbnail: 16 x 16 x 3 bytes in RGB.
        doubt: why the brightness may be wrong, if the file does not determine it; otherwise None.
        keypoints: the keypoints of the picture (`doctor.keypoints`); empty if they were not computed.
    """

    digest: bytes
    error: str | None = None
    format: str = ""
    mode: str = ""
    width: int = 0
    height: int = 0
    is_animated: bool = False
    thumbnail: bytes = b""
    doubt: str | None = None
    keypoints: bytes = b""


row_of = attrgetter(*_FACTS.split(", "))


class Memory:
    """A database of facts, by file and by content, and of the results of comparisons. Threads may share it."""

    def __init__(self) -> None:
        self._path = cache_folder() / f"doctor-{_VERSION}-{decoders()}.sqlite3"
        self._lock = threading.Lock()
        self._facts: list[Facts] = []  # not yet written
        self._stamps: list[tuple[bytes, bytes]] = []
        self._database: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        for _ in range(2):  # the second attempt follows the removal of a damaged file
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._database = sqlite3.connect(self._path, timeout=30, check_same_thread=False)
                self._database.executescript(_CREATE)
                break
            except (OSError, sqlite3.Error) as error:
                self._give_up(error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.write()
        self._give_up()

    def of_files(self, stamps: Sequence[bytes | None]) -> dict[bytes, Facts]:
        """Return the facts of files by their stamps (`stamp_of`). Unknown files are left out."""
        known = [stamp for stamp in stamps if stamp is not None]
        return {row[0]: Facts(*row[1:]) for part in _parts(known) for row in self._ask(_BY_STAMP, part)}

    def of_contents(self, digests: Sequence[bytes]) -> dict[bytes, Facts]:
        """Return the facts of contents by their SHA-256 digests. Unknown contents are left out."""
        return {row[0]: Facts(*row) for part in _parts(digests) for row in self._ask(_BY_DIGEST, part)}

    def learn(self, facts: Facts, stamp: bytes | None) -> None:
        """Store the facts of a file under its content and, if there is a stamp, also under its stamp."""
        with self._lock:
            self._facts.append(facts)
            if stamp is not None:
                self._stamps.append((stamp, facts.digest))
        self.write(least=_WRITTEN)

    def compared(self, digests: Sequence[bytes]) -> tuple[tuple[bytes, ...], Any] | None:
        """Return the earlier comparison that shares the most contents with `digests`, and its result.

        Args:
            digests: the SHA-256 digests of the contents to compare, sorted and without repetitions.

        Returns:
            The digests of the contents that were compared, and the result; None if no comparison covered more than half
            of `digests`.
        """
        rows = self._ask("SELECT pairs FROM compared WHERE name IN", [_name_of(digests)])
        if rows:
            return tuple(digests), json.loads(rows[0][0])
        wanted, most, best = set(digests), len(digests) // 2, None
        for number in self._ask("SELECT number FROM compared WHERE LENGTH(name) IN", [_DIGEST]):
            blobs = self._ask("SELECT contents FROM compared WHERE number IN", number)
            contents = _split(blobs[0][0]) if blobs else []
            there = len(wanted.intersection(contents))
            if there > most:
                most, best = there, (number, contents)
        rows = [] if best is None else self._ask("SELECT pairs FROM compared WHERE number IN", best[0])
        return None if best is None or not rows else (tuple(best[1]), json.loads(rows[0][0]))

    def learn_compared(self, digests: Sequence[bytes], outcome: Any) -> None:
        """Store the result of comparing these contents with one another. It must consist of JSON types."""
        row = (_name_of(digests), b"".join(digests), to_json(outcome))
        self._run("INSERT OR REPLACE INTO compared (name, contents, pairs) VALUES (?, ?, ?)", [row])
        self._run(_FORGET, [(_MOST_COMPARED,)])

    def write(self, least: int = 1) -> None:
        """Write the stored facts to the database if there are at least `least` of them."""
        if len(self._facts) >= least:
            with self._lock:
                facts, stamps, self._facts, self._stamps = self._facts, self._stamps, [], []
            self._run("INSERT OR IGNORE INTO facts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", list(map(row_of, facts)))
            self._run("INSERT OR REPLACE INTO stamps VALUES (?, ?)", stamps)

    def _ask(self, question: str, keys: Sequence[Any]) -> list[Any]:
        with self._lock:
            if self._database is None or not keys:
                return []
            try:
                return self._database.execute(f"{question} ({', '.join('?' * len(keys))})", keys).fetchall()
            except sqlite3.Error as error:
                self._give_up(error)
                return []

    def _run(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        with self._lock:
            if self._database is not None:
                try:
                    with self._database:
                        self._database.executemany(statement, rows)
                except sqlite3.Error as error:
                    self._give_up(error)

    def _give_up(self, reason: Exception | None = None) -> None:
        """Continue without the database. If it is damaged, delete it."""
        if self._database is not None:
            with contextlib.suppress(sqlite3.Error):
                self._database.close()
        self._database = None
        if isinstance(reason, sqlite3.DatabaseError) and not isinstance(reason, sqlite3.OperationalError):
            with contextlib.suppress(OSError):
                self._path.unlink()


def _parts(keys: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    return (keys[start : start + _MOST_AT_ONCE] for start in range(0, len(keys), _MOST_AT_ONCE))


def stamp_of(file: Place) -> bytes | None:
    """Return bytes that change whenever a file changes.

    They are None if the file cannot be read, or if it changed in the last two seconds: another change might then leave
    the same times.
    """
    if isinstance(file, Stored):
        return file.storage.stamp(file.key)
    try:
        seen = os.stat(file)  # noqa: PTH116  # half the time of a Path's own
    except OSError:
        return None
    if time.time_ns() - max(seen.st_mtime_ns, seen.st_ctime_ns) < _SETTLED:
        return None
    return struct.pack("=QQQqq", seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)


def _name_of(digests: Sequence[bytes]) -> bytes:
    return hashlib.sha256(b"".join(digests)).digest()


def _split(contents: bytes) -> list[bytes]:
    return [contents[i : i + _DIGEST] for i in range(0, len(contents), _DIGEST)]
