"""Write the images of a table as shards, which `data.shards` reads.

Writing has three steps:

1. Plan the shards. The order of the images and the bytes of every shard depend only on the images, their labels and the
   size of a shard.
2. Write the shards in several threads. A shard gets its name when it is complete. A shard for a remote address is
   written to a temporary file first.
3. Write the index.

A second call with the same plan keeps the shards that exist already. If a call was killed, it can therefore simply be
repeated, and the result has the same bytes.

The images of a split are distributed over its shards in the order of the digests of their keys, which is as good as
random. Otherwise, images that are neighbours in a folder, and often have the same class, would also be neighbours in
the batches of a program that reads shards in order.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tarfile
import zlib
from array import array
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from threading import Event

from vitkit.data.file_facts import Memory, scan
from vitkit.data.remote import check_writable, fetched, names_at, read_file, remove_file, write_file
from vitkit.data.shards import INDEX, UNFINISHED, LeftOut, Shard, ShardFolder, ShardIndex, clear_caches
from vitkit.data.splits import SPLITS
from vitkit.data.storage import UnreadableImageError, open_place, read_place
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.system.files import (
    address_of,
    exclusive_in,
    from_json,
    is_empty,
    read_json,
    replacing,
    to_json,
    unfinished,
    write_text,
)
from vitkit.system.progress import progress

_BLOCK, _RECORD = 512, 10240  # bytes: a tar consists of blocks, and its length is a multiple of a record


def write_shards(table: ImageTable, folder: Path, size: int) -> ShardIndex:
    """Write the readable images of a table as a folder of shards.

    Args:
        table: the images. Splits may already be assigned or not.
        folder: the folder or address to write to. It must be missing, empty, or the result of an earlier call with the
            same plan, complete or not.
        size: the largest number of bytes of a shard. A larger image gets a separate shard.

    Raises:
        VitkitError: the folder contains something else, no image can be read, a key is not a path below the data's
            folder, or an image changed during the call.
        OSError: a shard cannot be written.
    """
    for key in table.paths:  # a CSV file may contain others than paths below the data's folder
        if key.startswith(("/", "\\")) or PurePosixPath(key).is_absolute() or ".." in key.split("/"):
            raise VitkitError(
                "data.path-outside",
                f"{table.name}: shards name images by their paths below one folder, so {key!r} cannot be stored: move "
                "the CSV file into a folder above all images, and write paths relative to this folder",
            )
    address = address_of(folder)
    target = _LocalTarget(folder) if address is None else _RemoteTarget(address)
    with target.lock():
        names = target.names()
        known = ShardFolder(folder).index() if INDEX in names else None
        if known is None and UNFINISHED not in names and names:
            raise VitkitError("data.folder-not-empty", f"{target} is not empty: choose a new folder for the shards")
        plan = _plan(table, size)
        before = known.plan if known is not None else target.plan_begun() if UNFINISHED in names else None
        if before not in (None, plan.digest):
            raise VitkitError(
                "data.shards-of-others",
                f"{target} contains shards of other images or labels, or of another --size: choose a new folder, or "
                "delete this one",
            )
        if known is None:
            target.write(UNFINISHED, to_json({"plan": plan.digest}) + "\n")
        target.tidy()
        index = _write_all(plan, target)
        if index != known:
            target.write(INDEX, to_json(index.to_dict()) + "\n")
        target.remove(UNFINISHED)
    return index


@dataclass(frozen=True)
class _LocalTarget:
    """A local folder that shards are written to. `lock` keeps other processes out."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        with exclusive_in(self.path):
            yield

    def names(self) -> set[str]:
        return set() if is_empty(self.path) else {path.name for path in self.path.iterdir()}

    def tidy(self) -> None:  # delete the temporary files of a call that was killed
        for _, left in [*unfinished(self.path)]:
            left.unlink()

    def plan_begun(self) -> str:  # the digest of the plan of a call that was interrupted
        return str(read_json(self.path / UNFINISHED).get("plan"))

    def write(self, name: str, text: str) -> None:
        write_text(self.path / name, text)

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[Path]:
        yield self.path / name

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        with replacing(self.path / name) as temporary:
            yield temporary


@dataclass(frozen=True)
class _RemoteTarget:
    """A remote folder that shards are written to, with the methods of `_LocalTarget`.

    It cannot be locked. If two calls run at the same time, they follow the same plan and write the same bytes.
    """

    address: str

    def __str__(self) -> str:
        return self.address

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        check_writable(self.address)
        try:
            yield
        finally:
            clear_caches()

    def names(self) -> set[str]:
        return names_at(self.address)

    def tidy(self) -> None:
        pass  # a remote file becomes visible only when it is complete

    def plan_begun(self) -> str:
        content = read_file(f"{self.address}/{UNFINISHED}")
        try:
            return str(from_json(content.decode())["plan"])
        except (ValueError, TypeError, KeyError) as error:
            raise VitkitError(
                "data.shards-damaged",
                f"{self.address}/{UNFINISHED} is damaged: {error}; delete {self.address}, and write the shards again",
            ) from error

    def write(self, name: str, text: str) -> None:
        write_file(f"{self.address}/{name}", text.encode("utf-8", "surrogateescape"))

    def remove(self, name: str) -> None:
        remove_file(f"{self.address}/{name}")

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[Path]:
        with fetched(PurePosixPath(self.address) / name) as copy:
            yield copy

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        with TemporaryDirectory() as scratch:
            yield Path(scratch) / name
            write_file(f"{self.address}/{name}", Path(scratch) / name)


# --- The plan -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ShardMember:
    """An image in a shard, with the files that follow it."""

    row: int  # in the table
    number: int  # the name of the image's files
    offset: int  # of the image's first byte
    length: int  # bytes
    after: tuple[tuple[str, bytes], ...]  # the names and contents of the files

    @property
    def end(self) -> int:
        return self.offset + _padded(self.length) + sum(_BLOCK + _padded(len(data)) for _, data in self.after)


@dataclass(frozen=True)
class _PlannedShard:
    name: str
    split: str | None
    members: tuple[_ShardMember, ...]

    @property
    def size(self) -> int:
        """The size of the shard in bytes: the images, two empty blocks, and padding to whole tar records."""
        return -(-(self.members[-1].end + 2 * _BLOCK) // _RECORD) * _RECORD


@dataclass(frozen=True)
class _ShardPlan:
    """The plan of all shards, which determines their bytes."""

    table: ImageTable  # the readable images
    digests: tuple[bytes, ...]  # the SHA-256 of each image
    shards: tuple[_PlannedShard, ...]
    left_out: tuple[LeftOut, ...]
    digest: str  # of the other attributes and of the size of a shard


def _plan(table: ImageTable, size: int) -> _ShardPlan:
    with Memory() as memory:
        facts = scan(table.files(), memory, partial(progress, "examining images"))
    readable = [row for row, error in enumerate(facts.column("error")) if error is None]
    left_out = [
        LeftOut(table.paths[row], table.name_of(row), table.splits[row], str(error))
        for row, error in enumerate(facts.column("error"))
        if error is not None
    ]
    left_out += [LeftOut(*row, "left out by the label file") for row in table.left_out]
    if not readable:
        raise VitkitError(
            "data.images-unreadable",
            f"no image of {table.name} can be read (first: {left_out[0].key}: {left_out[0].reason})",
        )
    table = table.take(readable).compact()
    digests = tuple(facts.take(readable).column("digest"))
    shards = tuple(_divide(table, size))
    content = [
        (table.task.name, table.classes, size),
        [vars(image) for image in left_out],
        [item._asdict() for item in table.earlier],
        *([sorted(table.groups.items())] if table.groups else []),
        [(table.paths[row], digest.hex(), table.cell_of(row)) for row, digest in enumerate(digests)],
        [(shard.split, [(member.row, member.length) for member in shard.members]) for shard in shards],
    ]
    digest = hashlib.sha256(to_json(content).encode("utf-8", "surrogateescape")).hexdigest()
    return _ShardPlan(table, digests, shards, tuple(left_out), digest)


def _divide(table: ImageTable, size: int) -> Iterator[_PlannedShard]:
    def place(row: int) -> tuple[int, bytes]:
        split = table.splits[row]
        digest = hashlib.sha256(table.paths[row].encode("utf-8", "surrogateescape")).digest()
        return -1 if split is None else SPLITS.index(split), digest

    order = sorted(range(len(table)), key=place)
    members: list[_ShardMember] = []
    count = 0
    for number, row in enumerate(order):
        with open_place(table.file(row)) as image:
            length = image.seek(0, os.SEEK_END)
        names = [table.classes[k] for k in table.classes_of(row)]
        description = {"classes": names} if table.sets else {"class": names[0]}
        text = to_json({"key": table.paths[row], **description, "split": table.splits[row]})
        after = [(f"{number:08}.json", text.encode("utf-8", "surrogateescape"))]
        if not table.sets:
            after.insert(0, (f"{number:08}.cls", str(table.labels[row]).encode()))
        member = _ShardMember(row, number, members[-1].end + _BLOCK if members else _BLOCK, length, tuple(after))
        is_other = bool(members) and table.splits[row] != table.splits[members[0].row]
        if members and (is_other or member.end + 2 * _BLOCK > size):  # two empty blocks end a tar file
            yield _PlannedShard(f"shard-{count:05}.tar", table.splits[members[0].row], tuple(members))
            member, members, count = replace(member, offset=_BLOCK), [], count + 1
        members.append(member)
        if number % 1024 == 0:
            progress("planning shards", number, len(order))
    yield _PlannedShard(f"shard-{count:05}.tar", table.splits[members[0].row], tuple(members))


def _padded(length: int) -> int:
    return -(-length // _BLOCK) * _BLOCK


# --- The files ----------------------------------------------------------------------------------------------------


def _write_all(plan: _ShardPlan, target: _LocalTarget | _RemoteTarget) -> ShardIndex:
    """Write the shards that do not exist yet, several at a time. Return the index of all shards of the plan."""
    done, total = array("q", [0] * len(plan.shards)), sum(shard.size for shard in plan.shards)
    is_stopped = Event()
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
        jobs = [
            pool.submit(_complete, plan, shard, target, partial(done.__setitem__, i), is_stopped)
            for i, shard in enumerate(plan.shards)
        ]
        try:
            waiting: set[Future[tuple[Shard, list[int]]]] = set(jobs)
            while waiting:
                finished, waiting = wait(waiting, timeout=0.2, return_when=FIRST_EXCEPTION)
                for job in finished:
                    job.result()
                progress("writing shards (MB)", sum(done) // 10**6, total // 10**6)
        except BaseException:
            is_stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
    table = plan.table
    shard_of, offsets, lengths, checks = (array("q", [0] * len(table)) for _ in range(4))
    for number, (shard, job) in enumerate(zip(plan.shards, jobs, strict=True)):
        for member, check in zip(shard.members, job.result()[1], strict=True):
            row = member.row
            shard_of[row], offsets[row], lengths[row], checks[row] = number, member.offset, member.length, check
    return ShardIndex(
        plan=plan.digest,
        task=table.task.name,
        classes=table.classes,
        shards=tuple(job.result()[0] for job in jobs),
        keys=table.paths,
        classes_of=tuple(table.classes_of(row) for row in range(len(table))),
        shard_of=shard_of,
        offsets=offsets,
        lengths=lengths,
        checks=checks,
        left_out=plan.left_out,
        earlier=table.earlier,
        groups=dict(table.groups),
    )


def _complete(
    plan: _ShardPlan, shard: _PlannedShard, target: _LocalTarget | _RemoteTarget, done: partial[None], is_stopped: Event
) -> tuple[Shard, list[int]]:
    """Write a shard, unless an earlier call has. Return it, with the CRC-32 of each of its images."""
    with contextlib.suppress(FileNotFoundError), target.reading(shard.name) as path, path.open("rb") as file:
        checks = []
        for member in shard.members:
            file.seek(member.offset)
            data = file.read(member.length)
            if hashlib.sha256(data).digest() != plan.digests[member.row]:
                break
            checks.append(zlib.crc32(data))
        else:
            file.seek(0)
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            if file.tell() == shard.size:
                done(shard.size)
                return Shard(shard.name, shard.size, sha256, shard.split), checks
    with target.writing(shard.name) as path:
        written = _write(plan, shard, path, done, is_stopped)
    done(shard.size)
    return written


def _write(
    plan: _ShardPlan, shard: _PlannedShard, path: Path, done: partial[None], is_stopped: Event
) -> tuple[Shard, list[int]]:
    digest, checks = hashlib.sha256(), []
    with path.open("wb") as file:

        def put(name: str, data: bytes) -> None:
            header = tarfile.TarInfo(name)  # with fixed times, owner and mode
            header.size = len(data)
            for part in (header.tobuf(tarfile.USTAR_FORMAT), data, bytes(-len(data) % _BLOCK)):
                file.write(part)
                digest.update(part)

        for member in shard.members:
            if is_stopped.is_set():
                # The error that stopped it is reported instead.
                raise VitkitError("data.shards-unfinished", "the shards are not complete")
            place = plan.table.file(member.row)
            try:
                data = read_place(place)
            except (OSError, UnreadableImageError) as error:
                raise VitkitError(
                    "data.image-changed",
                    f"{place} could be read when the command started, but not now ({error}): restore or remove it, "
                    "and repeat the command",
                ) from error
            if hashlib.sha256(data).digest() != plan.digests[member.row]:
                raise VitkitError(
                    "data.image-changed", f"{place} has changed since it was examined: repeat the command"
                )
            put(f"{member.number:08}{PurePosixPath(plan.table.paths[member.row]).suffix.lower()}", data)
            for name, content in member.after:
                put(name, content)
            checks.append(zlib.crc32(data))
            done(member.end)
        end = bytes(shard.size - shard.members[-1].end)
        file.write(end)
        digest.update(end)
    return Shard(shard.name, shard.size, digest.hexdigest(), shard.split), checks
