"""Read the images of a folder of shards: .tar files with an index of the position of each image.

The shards, `shard-00000.tar` and so on, can also be read by `tar` and WebDataset. Each image (`00000012.jpg`) is
followed by its class number (`00000012.cls`) and by its key, class and split (`00000012.json`). The index,
`shards.json`, lists the shard, the position and the checksum of every image. Therefore a single read returns an image,
from a local or a remote folder (docs/decisions/0048-shards.md). `shard_writer` writes such folders.
"""

from __future__ import annotations

import io
import os
import re
import zlib
from array import array
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from vitkit.data.file_names import is_passed_over, why_ignored
from vitkit.data.layout import LayoutName
from vitkit.data.remote import cached_shard, read_file, read_part
from vitkit.data.storage import SearchLog, UnreadableImageError, entries_in
from vitkit.data.table import TASKS, EarlierLabel, ImageTable, TaskName
from vitkit.errors import VitkitError
from vitkit.system.files import address_of, from_json, path_or_address, read_bytes
from vitkit.text.cells import listed, plural

INDEX, UNFINISHED = "shards.json", "sharding.json"  # the second exists while shards are being written
VERSION = 1
_FORMAT = "vitkit shards"
_SHARD, _SHA256 = re.compile(r"shard-\d{5,9}\.tar"), re.compile(r"[0-9a-f]{64}")
_WRITE_AGAIN = "write it again with `vitkit shard`"


@dataclass(frozen=True)
class Shard:
    """A .tar file of images of one split."""

    name: str  # of the file
    size: int  # bytes
    sha256: str  # hexadecimal
    split: str | None  # None if splits are not yet assigned


@dataclass(frozen=True)
class OmittedImage:
    """An image of the data that was not written to the shards, because it is unreadable or a label file excludes it."""

    key: str
    label: str
    split: str | None
    reason: str


@dataclass(frozen=True)
class ShardIndex:
    """The content of `shards.json`. Images are in the order of the table from which the shards were written."""

    plan: str  # a digest of everything that determines the shards: the images, their labels and the size of a shard
    task: TaskName
    classes: tuple[str, ...]
    shards: tuple[Shard, ...]
    keys: tuple[str, ...]  # of the images; the columns up to `checksums` have one entry per image
    classes_of: tuple[tuple[int, ...], ...]  # class numbers
    shard_of: array[int]  # shard numbers
    offsets: array[int]  # the position of the first byte in the shard
    lengths: array[int]  # bytes
    checksums: array[int]  # CRC-32
    left_out: tuple[OmittedImage, ...] = ()
    earlier: tuple[EarlierLabel, ...] = ()  # as in `ImageTable`
    groups: dict[str, str] = field(default_factory=dict)  # as in `ImageTable`
    rows: dict[str, int] = field(init=False, repr=False, compare=False)  # by key

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", {key: row for row, key in enumerate(self.keys)})

    @property
    def splits(self) -> tuple[str | None, ...]:
        """Return the split of each image."""
        return tuple(self.shards[number].split for number in self.shard_of)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `shards.json` in plain JSON types. Images are stored by column, for faster reading."""
        return {
            "format": _FORMAT,
            "version": VERSION,
            "plan": self.plan,
            "task": self.task,
            "classes": list(self.classes),
            "shards": [vars(shard) for shard in self.shards],
            "images": {
                "key": list(self.keys),
                "class": [list(numbers) if self.task == "multi" else numbers[0] for numbers in self.classes_of],
                "split": list(self.splits),
                "shard": list(self.shard_of),
                "offset": list(self.offsets),
                "length": list(self.lengths),
                "crc32": list(self.checksums),
            },
            "left_out": [vars(image) for image in self.left_out],
            "proposals": [item._asdict() for item in self.earlier],
            **({"groups": self.groups} if self.groups else {}),
        }

    @classmethod
    def from_json(cls, text: bytes) -> ShardIndex:
        """Read `shards.json`, which may come from an untrusted source. Raise ValueError if it is invalid."""
        try:
            stored = from_json(text)
            if stored["format"] != _FORMAT:
                raise ValueError(f"its format is {stored['format']!r}, not {_FORMAT!r}")
            if stored["version"] != VERSION:
                raise ValueError(f"its version is {stored['version']!r}, and this vitkit reads version {VERSION}")
            images = stored["images"]
            is_multi = stored["task"] == "multi"
            index = cls(
                plan=str(stored["plan"]),
                task="multi" if is_multi else "single",
                classes=tuple(stored["classes"]),
                shards=tuple(Shard(**shard) for shard in stored["shards"]),
                keys=tuple(images["key"]),
                classes_of=tuple(tuple(numbers) if is_multi else (numbers,) for numbers in images["class"]),
                shard_of=array("q", images["shard"]),
                offsets=array("q", images["offset"]),
                lengths=array("q", images["length"]),
                checksums=array("q", images["crc32"]),
                left_out=tuple(OmittedImage(**image) for image in stored["left_out"]),
                earlier=tuple(EarlierLabel(**item) for item in stored["proposals"]),
                groups=dict(stored.get("groups", {})),
            )
            index._check()
        except KeyError as error:
            raise ValueError(f"it has no {error}") from error
        except (TypeError, AttributeError, OverflowError) as error:
            raise ValueError(str(error)) from error
        return index

    def _check(self) -> None:
        images = len(self.keys)
        columns = (self.classes_of, self.shard_of, self.offsets, self.lengths, self.checksums)
        if images == 0 or any(len(column) != images for column in columns):
            raise ValueError("its columns are empty or have different lengths")
        if len(self.rows) != images or not all(isinstance(key, str) and key for key in self.keys):
            raise ValueError("its keys are not text, or not unique")
        if not all(isinstance(name, str) for name in (*self.classes, *self.groups.values())):
            raise ValueError("the name of a class or group is not text")
        for values in (self.classes, *self.classes_of):
            if len(set(values)) < len(values):
                raise ValueError("it lists a class twice")
        for number in chain.from_iterable(self.classes_of):
            if type(number) is not int or not 0 <= number < len(self.classes):
                raise ValueError("it lists an image of a class that does not exist")
        for shard in self.shards:
            if not _SHARD.fullmatch(shard.name) or shard.split not in (None, "train", "val", "test"):
                raise ValueError("it lists a shard with an invalid name or split")
            if not _SHA256.fullmatch(shard.sha256):
                raise ValueError("it lists a shard with an invalid checksum")
        sizes = [shard.size for shard in self.shards]
        for number, offset, length in zip(self.shard_of, self.offsets, self.lengths, strict=True):
            exists = 0 <= number < len(sizes)
            if not exists or not 0 <= offset <= offset + length <= sizes[number]:
                raise ValueError("it lists an image outside of its shard")


@dataclass(frozen=True)
class ShardFolder:
    """A local or remote folder of shards as a storage of images. The keys of images are those in the original data.

    Every read opens a shard again, so threads and processes (forked or spawned) may share a folder. A process reads the
    index once; it reads a local index again after a change.
    """

    path: Path

    @cached_property
    def name(self) -> str:
        return path_or_address(self.path)

    @cached_property
    def is_remote(self) -> bool:
        """Return whether the shards are on another machine."""
        return address_of(self.path) is not None

    def keys(self) -> Collection[str]:
        return self.index().rows.keys()

    def index(self) -> ShardIndex:
        """Return the index. Raise VitkitError if there is none, it is damaged, or the server does not answer."""
        try:
            return _index_at(self.name, None if self.is_remote else _stamp_of(f"{self.name}/{INDEX}"))
        except FileNotFoundError as error:
            raise VitkitError(
                "data.shards-incomplete",
                f"{self.name} has no {INDEX}, because writing was interrupted or the file was removed: {_WRITE_AGAIN}",
            ) from error
        except OSError as error:
            raise VitkitError(
                "data.shards-unreadable", f"{self.name}/{INDEX} cannot be read: {error.strerror or error}"
            ) from error

    def stamp(self, key: str) -> bytes | None:
        """Return bytes that change if the image's shard or its position there changes; None if there is no image."""
        try:
            index = self.index()
            row = index.rows[key]
            shard = index.shards[index.shard_of[row]]
            file = f"{self.name}/{shard.name}"
            version = shard.sha256 if self.is_remote else _stamp_of(file)
        except (KeyError, OSError, VitkitError):
            return None
        # Twice as fast as the text of a tuple.
        entry = f"({index.offsets[row]}, {index.lengths[row]}, {index.checksums[row]})"
        return f"{self.name}\0{shard.name}\0{version}\0{entry}".encode("utf-8", "surrogateescape")

    def open(self, key: str) -> BinaryIO:
        index = self.index()
        row = index.rows.get(key)
        if row is None:
            raise FileNotFoundError(f"{self.name} has no image {key!r}")
        shard = index.shards[index.shard_of[row]]
        file = f"{self.name}/{shard.name}"
        offset, length = index.offsets[row], index.lengths[row]

        def is_valid(data: bytes) -> bool:
            return zlib.crc32(data) == index.checksums[row]

        if not self.is_remote:
            data = _read(file, offset, length)
            if not is_valid(data):
                text = f"damaged (it does not have the checksum that {INDEX} lists)"
                raise UnreadableImageError("data.image-damaged", text)
            return io.BytesIO(data)
        copy = cached_shard(shard.sha256)
        if copy is not None:
            with suppress(FileNotFoundError):  # it may have been deleted
                data = _read(copy, offset, length)
                if is_valid(data):
                    return io.BytesIO(data)
        return io.BytesIO(read_part(file, offset, length, is_valid))

    def check_files(self) -> None:
        """Raise VitkitError if a local shard is missing, or does not have the listed size."""
        if self.is_remote:
            return
        for shard in self.index().shards:
            try:
                size = os.stat(f"{self.name}/{shard.name}").st_size  # noqa: PTH116
            except FileNotFoundError:
                raise VitkitError(
                    "data.shards-incomplete", f"{self.name} lacks {shard.name}: copy it there again, or {_WRITE_AGAIN}"
                ) from None
            if size != shard.size:
                what = "truncated" if size < shard.size else "longer than it was"
                sizes = f"{size:,} bytes instead of {shard.size:,}"
                raise VitkitError(
                    "data.shards-damaged",
                    f"{self.name}/{shard.name} is {what} ({sizes}): copy it there again, or {_WRITE_AGAIN}",
                )

    def files(self) -> list[tuple[str, str, int]]:
        """Return the path or address, the SHA-256 and the number of bytes of each shard."""
        return [(f"{self.name}/{shard.name}", shard.sha256, shard.size) for shard in self.index().shards]


def _read(file: str, offset: int, length: int) -> bytes:
    with open(file, "rb", buffering=0) as opened:  # noqa: PTH123  # half the time of a Path's own
        opened.seek(offset)
        return opened.read(length)


def _stamp_of(path: str) -> tuple[int, int, int, int]:
    status = os.stat(path)  # noqa: PTH116  # half the time of a Path's own
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@lru_cache(maxsize=8)
def _index_at(folder: str, stamp: tuple[int, ...] | None) -> ShardIndex:
    """Read the index of a folder. The stamp of a local index is part of the cache's key; None for an address."""
    content = (read_file if stamp is None else read_bytes)(f"{folder}/{INDEX}")
    try:
        index = ShardIndex.from_json(content)
    except ValueError as error:
        raise VitkitError("data.shards-damaged", f"{folder}/{INDEX} cannot be used: {error}; {_WRITE_AGAIN}") from error
    if stamp is None:
        _REMOTE_FOLDERS.add(folder)
    return index


_REMOTE_FOLDERS: set[str] = set()  # addresses that contain shards; servers are not asked about each of their images


# --- The source ---------------------------------------------------------------------------------------------------


def is_shard_folder(path: Path) -> bool:
    """Return whether a folder or address contains shards. A local folder may have lost its index."""
    address = address_of(path)
    if address is None:
        marks = (INDEX, UNFINISHED, "shard-00000.tar")
        return os.path.isdir(path) and any((path / name).is_file() for name in marks)  # noqa: PTH112  # a Path takes three times as long
    return not any(address.startswith(f"{folder}/") for folder in _REMOTE_FOLDERS) and _has_index(address)


@lru_cache(maxsize=1024)
def _has_index(address: str) -> bool:
    try:
        return bool(_index_at(address, None).keys)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return False
    except OSError as error:
        # The text of the error begins with the address.
        raise VitkitError("data.shards-unreadable", f"cannot read {error}") from error


def read_shards(name: str, path: Path, _: LayoutName = "auto") -> ImageTable:
    """Return the table from which a folder of shards was written."""
    storage = ShardFolder(path if address_of(path) else path.resolve())
    index = storage.index()
    storage.check_files()
    sets, labels = TASKS[index.task].encode(index.classes_of)
    overlooked = []
    if index.left_out:
        images = plural(len(index.left_out), "image was", "images were")
        reasons = listed([f"{image.key} ({image.reason})" for image in index.left_out])
        overlooked.append(f"{images} left out when the shards were written: {reasons}")
    others = []
    for entry, is_file in [] if storage.is_remote else entries_in(storage.path):
        is_ignored = why_ignored(entry) is not None if is_file else is_passed_over(entry)
        if not is_ignored:
            others.append(entry)
    if others:
        some_lie = plural(len(others), "folder or image lies", "folders or images lie")
        overlooked.append(f"{some_lie} beside the shards and will not be read: {listed(sorted(others))}")
    return ImageTable(
        name=name,
        root=storage.path,
        classes=index.classes,
        paths=index.keys,
        labels=labels,
        splits=index.splits,
        folders=() if storage.is_remote else (storage.path,),
        sets=sets,
        overlooked=tuple(overlooked),
        earlier=index.earlier,
        storage=storage,
        groups=index.groups,
    )


def find_all_images(path: Path, _: SearchLog) -> tuple[Sequence[str], Sequence[str]]:
    """Return the keys of all images in a folder of shards, and lines about what was left out."""
    table = read_shards(str(path), path)
    return table.paths, table.overlooked
