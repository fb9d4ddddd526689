"""Write the images of a table as shards, which `data.shards` reads.

Writing has three steps:

1. Plan the shards. The order of the images and the bytes of every shard depend only on the images, their labels and the
   size of a shard.
2. Write the shards in several threads, each to a temporary file that is renamed when it is complete.
3. Write the index.

A second call with the same plan keeps the shards that exist already. If a call was killed, it can therefore simply be
repeated, and the result has the same bytes.

The images of a split are distributed over its shards in the order of the digests of their keys, which is as good as
random. Otherwise, images that are neighbours in a folder, and often have the same class, would also be neighbours in
the batches of a program that reads shards in order.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import zlib
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from threading import Event

from vitkit.data.file_facts import FactDatabase, scan
from vitkit.data.shards import INDEX, UNFINISHED, OmittedImage, Shard, ShardFolder, ShardIndex
from vitkit.data.splits import SPLITS
from vitkit.data.storage import UnreadableImageError, open_place, read_place
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.system.files import exclusive_in, is_empty, read_json, replacing, to_json, unfinished, write_text
from vitkit.system.progress import progress

_BLOCK, _RECORD = 512, 10240  # bytes: a tar consists of blocks, and its length is a multiple of a record


def write_shards(table: ImageTable, folder: Path, size: int) -> ShardIndex:
    """Write the readable images of a table as a folder of shards.

    Args:
        table: the images. Splits may already be assigned or not.
        folder: the folder to write to. It must be missing, empty, or the result of an earlier call with the same plan,
            complete or not.
        size: the largest number of bytes of a shard. A larger image gets a separate shard.

    Raises:
        VitkitError: the folder contains something else, no image can be read, a key is not a path below the data's
            folder, or an image changed during the call.
        OSError: a shard cannot be written.
    """
    for key in table.paths:  # a CSV file may contain others than paths below the data's folder
        if key.startswith(("/", "\\")) or ".." in key.split("/"):
            raise VitkitError(
                "data.path-outside",
                f"{table.name}: shards name images by their paths below one folder, so {key!r} cannot be stored: move "
                "the CSV file into a folder above all images, and write paths relative to this folder",
            )
    with exclusive_in(folder):
        names = set() if is_empty(folder) else {path.name for path in folder.iterdir()}
        existing = ShardFolder(folder).index() if INDEX in names else None
        if names and existing is None and UNFINISHED not in names:
            raise VitkitError("data.folder-not-empty", f"{folder} is not empty: choose a new folder for the shards")
        plan = _plan(table, size)
        if existing is not None:
            earlier_plan = existing.plan
        elif UNFINISHED in names:
            earlier_plan = str(read_json(folder / UNFINISHED).get("plan"))
        else:
            earlier_plan = plan.digest
        if earlier_plan != plan.digest:
            raise VitkitError(
                "data.shards-of-others",
                f"{folder} contains shards of other images or labels, or of another --size: choose a new folder, or "
                "delete this one",
            )
        if existing is None:
            write_text(folder / UNFINISHED, to_json({"plan": plan.digest}) + "\n")
        for _, temporary in [*unfinished(folder)]:  # of a call that was killed
            temporary.unlink()
        index = _write_all(plan, folder)
        if index != existing:
            write_text(folder / INDEX, to_json(index.to_dict()) + "\n")
        (folder / UNFINISHED).unlink(missing_ok=True)
    return index


# --- The plan -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ShardMember:
    """An image in a shard, with the files that follow it."""

    row: int  # in the table
    number: int  # the name of the image's files
    offset: int  # of the image's first byte
    length: int  # bytes
    files: tuple[tuple[str, bytes], ...]  # the names and contents of the files

    @property
    def end(self) -> int:
        """The offset after the last of these files. Each file has a header of one block."""
        return self.offset + _padded(self.length) + sum(_BLOCK + _padded(len(data)) for _, data in self.files)


@dataclass(frozen=True)
class _PlannedShard:
    name: str
    split: str | None
    members: tuple[_ShardMember, ...]

    @property
    def size(self) -> int:
        """The size of the shard in bytes: the images, two empty blocks, and padding to whole tar records."""
        return _padded(self.members[-1].end + 2 * _BLOCK, _RECORD)


@dataclass(frozen=True)
class _ShardPlan:
    """The plan of all shards, which determines their bytes."""

    table: ImageTable  # the readable images
    digests: tuple[bytes, ...]  # the SHA-256 of each image
    shards: tuple[_PlannedShard, ...]
    left_out: tuple[OmittedImage, ...]
    digest: str  # of the other attributes and of the size of a shard


def _plan(table: ImageTable, size: int) -> _ShardPlan:
    with FactDatabase() as database:
        facts = scan(table.files(), database, partial(progress, "examining images"))
    readable: list[int] = []
    left_out: list[OmittedImage] = []
    for row, error in enumerate(facts.column("error")):
        if error is None:
            readable.append(row)
        else:
            left_out.append(OmittedImage(table.paths[row], table.name_of(row), table.splits[row], str(error)))
    left_out += [OmittedImage(key, label, split, "left out by the label file") for key, label, split in table.left_out]
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
    """Distribute the images over shards of at most `size` bytes."""
    keys: list[tuple[int, bytes]] = []  # the images are sorted by these
    for path, split in zip(table.paths, table.splits, strict=True):
        digest = hashlib.sha256(path.encode("utf-8", "surrogateescape")).digest()
        keys.append((-1 if split is None else SPLITS.index(split), digest))
    order = sorted(range(len(table)), key=lambda row: keys[row])
    members: list[_ShardMember] = []
    count = 0
    for number, row in enumerate(order):
        with open_place(table.file(row)) as image:
            length = image.seek(0, os.SEEK_END)
        names = [table.classes[k] for k in table.classes_of(row)]
        description = {"classes": names} if table.sets else {"class": names[0]}
        text = to_json({"key": table.paths[row], **description, "split": table.splits[row]})
        files = [(f"{number:08}.json", text.encode("utf-8", "surrogateescape"))]
        if not table.sets:
            files.insert(0, (f"{number:08}.cls", str(table.labels[row]).encode()))
        offset = members[-1].end + _BLOCK if members else _BLOCK
        member = _ShardMember(row, number, offset, length, tuple(files))
        if members:
            split = table.splits[members[0].row]
            if table.splits[row] != split or member.end + 2 * _BLOCK > size:  # two empty blocks end a tar file
                yield _PlannedShard(f"shard-{count:05}.tar", split, tuple(members))
                count += 1
                members = []
                member = replace(member, offset=_BLOCK)
        members.append(member)
        if number % 1024 == 0:
            progress("planning shards", number, len(order))
    yield _PlannedShard(f"shard-{count:05}.tar", table.splits[members[0].row], tuple(members))


def _padded(length: int, unit: int = _BLOCK) -> int:
    """Round a number of bytes up to a multiple of a unit."""
    return -(-length // unit) * unit


# --- The files ----------------------------------------------------------------------------------------------------


def _write_all(plan: _ShardPlan, folder: Path) -> ShardIndex:
    """Write the shards that do not exist yet, several at a time. Return the index of all shards of the plan."""
    total = sum(shard.size for shard in plan.shards)  # bytes
    written = 0
    is_stopped = Event()
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
        jobs = [pool.submit(_write_if_missing, plan, shard, folder / shard.name, is_stopped) for shard in plan.shards]
        try:
            for job in as_completed(jobs):
                shard, _ = job.result()  # raises the error of a job that failed
                written += shard.size
                progress("writing shards (MB)", written // 10**6, total // 10**6)
        except BaseException:
            is_stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
    table = plan.table
    shards: list[Shard] = []
    shard_of, offsets, lengths, checksums = (array("q", [0] * len(table)) for _ in range(4))
    for number, (planned, job) in enumerate(zip(plan.shards, jobs, strict=True)):
        shard, checksums_in_shard = job.result()
        shards.append(shard)
        for member, checksum in zip(planned.members, checksums_in_shard, strict=True):
            shard_of[member.row] = number
            offsets[member.row] = member.offset
            lengths[member.row] = member.length
            checksums[member.row] = checksum
    return ShardIndex(
        plan=plan.digest,
        task=table.task.name,
        classes=table.classes,
        shards=tuple(shards),
        keys=table.paths,
        classes_of=tuple(table.classes_of(row) for row in range(len(table))),
        shard_of=shard_of,
        offsets=offsets,
        lengths=lengths,
        checksums=checksums,
        left_out=plan.left_out,
        earlier=table.earlier,
        groups=dict(table.groups),
    )


def _read_existing(plan: _ShardPlan, shard: _PlannedShard, path: Path) -> tuple[Shard, list[int]] | None:
    """Return a shard that an earlier call wrote, and the CRC-32 of its images; None if it is not the planned one."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    checksums = []
    with file:
        for member in shard.members:
            file.seek(member.offset)
            data = file.read(member.length)
            if hashlib.sha256(data).digest() != plan.digests[member.row]:
                return None
            checksums.append(zlib.crc32(data))
        file.seek(0)
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if file.tell() != shard.size:
            return None
    return Shard(shard.name, shard.size, sha256, shard.split), checksums


def _write_if_missing(plan: _ShardPlan, shard: _PlannedShard, path: Path, is_stopped: Event) -> tuple[Shard, list[int]]:
    """Write a shard, unless an earlier call has. Return it, with the CRC-32 of each of its images."""
    existing = _read_existing(plan, shard, path)
    if existing is not None:
        return existing
    digest = hashlib.sha256()
    checksums = []
    with replacing(path) as temporary, temporary.open("wb") as output:
        for member in shard.members:
            if is_stopped.is_set():
                # Not shown: the error of another thread, which stopped this one, is reported.
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
            suffix = PurePosixPath(plan.table.paths[member.row]).suffix.lower()
            for name, content in ((f"{member.number:08}{suffix}", data), *member.files):
                header = tarfile.TarInfo(name)  # with fixed times, owner and mode
                header.size = len(content)
                for part in (header.tobuf(tarfile.USTAR_FORMAT), content, bytes(-len(content) % _BLOCK)):
                    output.write(part)
                    digest.update(part)
            checksums.append(zlib.crc32(data))
        end = bytes(shard.size - shard.members[-1].end)
        output.write(end)
        digest.update(end)
    return Shard(shard.name, shard.size, digest.hexdigest(), shard.split), checksums
