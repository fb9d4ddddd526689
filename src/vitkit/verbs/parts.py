"""Divide the images of a command into parts, write the result of each part to a file, and read all parts together.

`vitkit predict ... -o OUT --shard 2/8` handles the second of eight parts of the images, and writes
`OUT.parts/2-of-8.part`. `vitkit gather` joins the parts. A `JobRequest` has the arguments of a command, and can be sent
to another process. Its `DividedJob` lists the images, and computes a value for each image. `write_part` writes the
values of one part.

A part is a text file. Its first line is a JSON object, which contains the number of the part and the facts that all
parts must share: the model, the images, the flags, the version, and how numbers were computed. Each further line
contains the position of an image among all images, its value, and the reason if the image cannot be read. Each line
ends with a checksum, which detects changes on the way from another machine. Lines are written as soon as they are
computed. The file has a temporary name until it is complete. If a command is interrupted, repeating it continues this
file.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import FileIO
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

import vitkit
from vitkit.data.shards import ShardFolder
from vitkit.data.storage import below_storage
from vitkit.errors import VitkitError
from vitkit.inference.prediction import ENCODING, partial_of
from vitkit.system.files import exclusive, from_json, regular, to_json
from vitkit.system.progress import Say, ignore, progress
from vitkit.text.cells import listed, plural
from vitkit.verbs.inputs import check_outside
from vitkit.verbs.result import Result

if TYPE_CHECKING:
    from vitkit.classifier import Classifier

Value = tuple[Any, str | None]  # the result for an image, and the reason if the image cannot be read
Compute = Callable[[Sequence[int]], Iterator[Value]]  # takes the positions of images

SUFFIX = ".part"
_FORMAT, _VERSION = "vitkit part", 1
_SHARD = re.compile(r"(\d{1,9})/(\d{1,9})")
_LONGEST_HEAD = 2**24  # bytes
_NAMED = 20  # missing parts that a message names
_PATIENCE = 10.0  # seconds to wait for the lock of a process that was stopped


@dataclass(frozen=True)
class Part:
    """One of several parts of the images of a command, such as `2/8`: the second of eight.

    Attributes:
        number: the number of this part, from 1 to `count`.
        count: the number of all parts.
    """

    number: int
    count: int

    @classmethod
    def of(cls, text: str) -> Part:
        """Parse the text of a part, such as `2/8`.

        Raises:
            VitkitError: the text does not have this form, or there is no part with this number.
        """
        match = _SHARD.fullmatch(text.strip())
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise VitkitError(f"--shard must be a part such as 2/8, from 1/8 to 8/8, not {text!r:.40}")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def file(self, out: Path) -> Path:
        """Return the path of this part's file, for the output `out` of the whole command."""
        return folder_of(out) / f"{self.number}-of-{self.count}{SUFFIX}"


def folder_of(out: Path) -> Path:
    """Return the folder for the parts of an output, `OUT.parts`."""
    return out.with_name(f"{out.name}.parts")


@dataclass(frozen=True)
class DividedJob:
    """The images of a command, the computation for each image, and the facts that all parts share.

    Attributes:
        verb: the name of the command.
        images: the names of the images, in order.
        about: further facts that all parts must share, in JSON types, such as `model` and `flags`.
        start: a function that prepares the computation, and is called once. It returns a description of how numbers are
            computed, such as the backend and the precision, and the function that computes values.
        shards: the folder of shards that contains all images, and the keys of the images in this folder; None if there
            is no such folder.
        folders: the folders of the images, in which no output may be written.
    """

    verb: str
    images: Sequence[str]
    about: Mapping[str, Any]
    start: Callable[[], tuple[Mapping[str, Any], Compute]]
    shards: tuple[ShardFolder, Sequence[str]] | None = None
    folders: Sequence[str] = ()

    def positions(self, part: Part) -> Sequence[int]:
        """Return the positions of the images of a part, in ascending order.

        If the images are in a folder of shards, a part consists of whole shards. Otherwise, a part consists of
        consecutive images.
        """
        if self._shard_of is None:
            return _share(range(len(self.images)), part)
        shards = set(_share(sorted(set(self._shard_of)), part))
        return [position for position, shard in enumerate(self._shard_of) if shard in shards]

    @cached_property
    def _shard_of(self) -> Sequence[int] | None:
        return None if self.shards is None else self.shards[0].shards_of(self.shards[1])

    @cached_property
    def started(self) -> tuple[Mapping[str, Any], Compute]:
        """The result of `start`, which is called at the first access."""
        return self.start()

    @cached_property
    def known(self) -> dict[str, Any]:
        """The entries of `head` that can be determined without calling `start`: all except `computed`."""
        digest = hashlib.sha256("\0".join(self.images).encode(*ENCODING))
        if self.shards is not None:
            digest.update(b"\0\0" + self.shards[0].index().plan.encode())
        known = {"format": _FORMAT, "version": _VERSION, "vitkit": vitkit.__version__, "verb": self.verb}
        inputs = {"images": len(self.images), "inputs": digest.hexdigest()}
        return {**known, **inputs, **self.about}

    @property
    def head(self) -> dict[str, Any]:
        """The first line of each part, without the number of the part: all facts that the parts must share.

        The entry `computed` describes how numbers are computed.
        """
        return {**self.known, "computed": dict(self.started[0])}


class JobRequest(Protocol):
    """The arguments of a command, in a form that can be sent to another process."""

    @property
    def device(self) -> str:
        """The device to compute on."""
        ...

    def job(self, note: Say = ignore) -> DividedJob:
        """Open the model, find the images, and return a job that can be divided into parts.

        Args:
            note: called with each assumption about the model.

        Raises:
            VitkitError: the model or the images cannot be used.
        """
        ...


def _share(items: Sequence[int], part: Part) -> Sequence[int]:
    """Return the consecutive items of a sequence that belong to a part. The sizes of the parts differ by at most 1."""
    start, stop = (len(items) * number // part.count for number in (part.number - 1, part.number))
    return items[start:stop]


def shards_of(paths: Sequence[str]) -> tuple[ShardFolder, Sequence[str]] | None:
    """Return the folder of shards that contains all images, and the keys of the images in this folder.

    Return None if there are no images, or if they are not all in one folder of shards.
    """
    first = below_storage(paths[0]) if paths else None
    if first is None or not isinstance(first.storage, ShardFolder):
        return None
    folder = paths[0].removesuffix(first.key)
    keys = [path.removeprefix(folder) for path in paths]
    known = first.storage.keys()
    return (first.storage, keys) if all(key in known for key in keys) else None


# --- Writing ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class PartFile(Result):
    """The complete file of one part, which is the result of a command with `--shard`.

    Attributes:
        path: the path of the file.
        part: the number of the part, and the number of all parts.
        head: the facts that all parts share: the first line of the file, without the number of the part.
        was_kept: whether the file was already complete when the command started, so that nothing was computed.
    """

    path: Path
    part: Part
    head: Mapping[str, Any]
    was_kept: bool = False

    def values(self) -> Generator[tuple[int, Value]]:
        """Yield the position and the value of each image.

        Raises:
            VitkitError: the file is damaged.
        """
        with _opened(self.path) as file:
            head = zlib.crc32(file.readline())
            for number, line in enumerate(file, 2):
                try:
                    position, value, error = _parsed(line, head)
                except ValueError as reason:
                    raise _damaged(self.path, number) from reason
                yield position, (value, error)

    @property
    def computed(self) -> str:
        """A description of the backend and precision of the computation; empty if no model was run."""
        return _in_words(self.head)

    @cached_property
    def first(self) -> int | None:
        """The position of the first image; None if there is none."""
        values = self.values()
        try:
            return next((position for position, _ in values), None)
        finally:
            values.close()

    def counts(self) -> tuple[int, int]:
        """Return the number of images, and the number of images that cannot be read."""
        errors = Counter(error is not None for _, (_, error) in self.values())
        return errors.total(), errors[True]

    def to_dict(self) -> dict[str, Any]:
        """Return the part, its counts of all and of unreadable images, its file, and the facts that all parts share."""
        images, unreadable = self.counts()
        numbers = {"part": str(self.part), "images": images, "unreadable": unreadable}
        return {**numbers, "out": str(self.path), **self.head, "was_kept": self.was_kept}

    def lines(self) -> list[str]:
        """Return one line with the part, its counts and its file."""
        images, unreadable = self.counts()
        kept = ", which was there already" if self.was_kept else ""
        return [f"part {self.part}: {plural(images, 'image', 'images')} ({unreadable} unreadable){kept}: {self.path}"]


def write_part(job: DividedJob, part: Part, out: Path, *, force: bool) -> PartFile:
    """Compute the values of a part, and write its file.

    If the same command has written the file before, a complete file is kept, and an incomplete file is continued.

    Args:
        job: the images and their computation.
        part: the part to write.
        out: the output of the whole command. The part is written into `out`.parts.
        force: whether to replace the file of another command.

    Raises:
        VitkitError: the file was written by another command, is being written by another process, or would lie in a
            folder of the images.
        OSError: the file cannot be written.
    """
    path = part.file(out)
    check_outside("--out", path, job.folders)
    path.parent.mkdir(exist_ok=True)
    with exclusive(path, wait=_PATIENCE):
        head = job.head
        if path.exists() and _is_part_of(path, head, force=force):
            return PartFile(path, part, head, was_kept=True)
        partial, first = partial_of(path), _line({"shard": [part.number, part.count], **head})
        size, done = _left_in(partial, head, force=force)
        positions = job.positions(part)
        with partial.open("ab", buffering=0) as file:
            file.truncate(size)
            if not size:
                _append(file, first, path)
            with _opened(partial) as begun:
                checksum = zlib.crc32(begun.readline())
            left = positions[done:]
            for position, (value, error) in zip(left, job.started[1](left) if left else (), strict=True):
                _append(file, _line([position, value, error], checksum), path)
                done += 1
                progress(f"part {part}", done, len(positions))
            os.fsync(file.fileno())
        partial.replace(path)
    return PartFile(path, part, head)


def _append(file: FileIO, line: bytes, path: Path) -> None:
    """Write a line without buffering, so that it is not lost if the process is killed."""
    rest = memoryview(line)
    try:
        while rest:
            rest = rest[file.write(rest) :]
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}; repeat the command to continue", str(path)) from error


def _is_part_of(path: Path, head: Mapping[str, Any], *, force: bool) -> bool:
    """Return whether a file is a part of the command with this head.

    Any other file is refused without `force`. With `force`, the result is False, and the file may be replaced.

    Raises:
        VitkitError: the file is a part of another command, or not a part, and `force` is False.
    """
    try:
        difference = _difference(open_part(path).head, head)
    except VitkitError:
        difference = "is not a readable part"
    if difference and not force:
        raise VitkitError(f"{path} {difference}: write to another --out, or use --force to replace it")
    return not difference


def _left_in(partial: Path, head: Mapping[str, Any], *, force: bool) -> tuple[int, int]:
    """Return the size in bytes of the intact lines at the beginning of a partial file, and the number of their values.

    The size includes the first line, which has no value. Both numbers are 0 if there is nothing to continue.

    Raises:
        VitkitError: the file is a part of another command, and `force` is False.
    """
    if not partial.exists():
        return 0, 0
    with _opened(partial) as file:
        first = file.readline(_LONGEST_HEAD)
        if not first.endswith(b"\n") or not _is_part_of(partial, head, force=force):
            return 0, 0
        size, done, checksum = len(first), 0, zlib.crc32(first)
        for line in file:
            try:
                _parsed(line, checksum)
            except ValueError:
                break
            size, done = size + len(line), done + 1
    return size, done


# --- Lines ------------------------------------------------------------------------------------------------------


def _line(value: Any, head: int = 0) -> bytes:
    """Return a value as a line of a part, with a checksum.

    `head` is the checksum of the part's first line. The checksum of the line depends on `head`, so that a line that was
    moved to another part is detected.
    """
    text = to_json(value).encode(*ENCODING)
    return b"%b\t%08x\n" % (text, zlib.crc32(text, head))


def _is_intact(line: bytes, head: int = 0) -> bool:
    text, _, checksum = line.rpartition(b"\t")
    return checksum == b"%08x\n" % zlib.crc32(text, head)


def _parsed(line: bytes, head: int) -> Any:
    """Return the value of a line, or raise a ValueError if the line is damaged."""
    if not _is_intact(line, head):
        raise ValueError("another checksum")
    return from_json(line.rpartition(b"\t")[0].decode(*ENCODING))


def _damaged(path: Path, number: int) -> VitkitError:
    return VitkitError(f"{path} is damaged in line {number}: delete it and write it again")


def _opened(path: Path) -> BinaryIO:
    return open(path, "rb", opener=regular)


# --- Reading ------------------------------------------------------------------------------------------------------


def open_part(path: Path) -> PartFile:
    """Open a part by reading and checking its first line.

    Raises:
        VitkitError: the file is no part, is damaged, or has another version of the format.
        OSError: the file cannot be read.
    """
    with _opened(path) as file:
        first = file.readline(_LONGEST_HEAD)
    try:
        head = from_json(first.rpartition(b"\t")[0].decode(*ENCODING))
        if head.pop("format") != _FORMAT:
            raise ValueError("another format")
        number, count = head.pop("shard")
        if head["version"] != _VERSION:
            raise VitkitError(
                f"{path} has version {head['version']} of the format for parts, but this vitkit reads {_VERSION}: "
                "write it again"
            )
        if not _is_intact(first):
            raise _damaged(path, 1)
        head = {"format": _FORMAT, **head}
        return PartFile(path, Part.of(f"{number}/{count}"), head)
    except VitkitError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise VitkitError(f"{path} is not a part written with --shard") from error


@dataclass(frozen=True)
class Parts:
    """All parts of a command.

    Attributes:
        files: the parts, in order.
        head: the head of the first part (`PartFile.head`). The heads of the others may differ from it only in the plan
            of the backend eager (`--plan`).
        notes: remarks on differences between the parts that change only the last digits of numbers.
    """

    files: tuple[PartFile, ...]
    head: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def images(self) -> int:
        """The number of images of all parts."""
        return int(self.head["images"])

    @property
    def flags(self) -> dict[str, Any]:
        """The flags of the command."""
        return dict(self.head["flags"])

    @property
    def computed(self) -> str:
        """A description of the backend and precision of the computation; empty if no model was run."""
        return _in_words(self.head)

    def check(self, job: DividedJob) -> None:
        """Check that the parts match the current model, images and flags of a command.

        Raises:
            VitkitError: the model, the images or the flags differ.
        """
        if difference := _difference({**self.head, "computed": {}}, {**job.known, "computed": {}}):
            raise VitkitError(
                f"{self.files[0].path} no longer matches this command: it {difference}; write the parts again"
            )

    def values(self) -> Iterator[Value]:
        """Yield the value of each image, in order.

        Raises:
            VitkitError: an image is missing or occurs twice, because a part is damaged.
        """
        waiting = sorted((file.first, i) for i, file in enumerate(self.files) if file.first is not None)[::-1]
        heap: list[tuple[int, int, Value, Iterator[tuple[int, Value]]]] = []  # the next image of each open part

        def push(i: int, values: Iterator[tuple[int, Value]]) -> None:
            if (entry := next(values, None)) is not None:
                heapq.heappush(heap, (entry[0], i, entry[1], values))

        for expected in range(self.images):
            while waiting and (not heap or waiting[-1][0] <= heap[0][0]):
                _, i = waiting.pop()
                push(i, self.files[i].values())
            if not heap:
                raise VitkitError(
                    f"image {expected + 1} of {self.images} is in no part: delete the last part and write it again"
                )
            position, i, value, values = heapq.heappop(heap)
            if position != expected:
                what = f"{expected + 1} is missing" if position > expected else f"{position + 1} is there twice"
                raise VitkitError(
                    f"{self.files[i].path} or another part is damaged (image {what}): "
                    "delete all parts and write them again"
                )
            yield value
            push(i, values)
        if heap or waiting:
            raise VitkitError(
                f"{self.files[heap[0][1] if heap else waiting[0][1]].path} has too many images: "
                "delete it and write it again"
            )


def find_parts(sources: Sequence[str | Path]) -> Parts:
    """Read the first lines of all parts of a command, and check that the parts belong together.

    Args:
        sources: the parts, or folders that contain them.

    Raises:
        VitkitError: there is no part, a part is missing or occurs twice, or parts differ in the model, the images, the
            flags, the version or how numbers were computed. The message names the parts.
        OSError: a part cannot be read.
    """
    paths = [path for source in sources for path in _parts_in(Path(source))]
    if not paths:
        raise VitkitError(
            f"no parts (*{SUFFIX}, written with --shard) in {listed([str(source) for source in sources])}"
        )
    files = sorted((open_part(path) for path in dict.fromkeys(paths)), key=lambda file: file.part.number)
    first = files[0]
    for file in files[1:]:
        if difference := _difference(file.head, first.head):
            raise VitkitError(f"{file.path} {difference} than {first.path}: gather parts of one command")
        if file.part.count != first.part.count:
            counts = f"{file.part.count} parts, and {first.path} of {first.part.count}"
            raise VitkitError(f"{file.path} is one of {counts}: gather parts of one command")
    for number, same in groupby(files, key=lambda file: file.part.number):
        if len(twice := [str(file.path) for file in same]) > 1:
            raise VitkitError(
                f"part {number} occurs {plural(len(twice), 'time', 'times')}: {listed(twice)}; pass only one of them"
            )
    there = {file.part.number for file in files}
    if count := first.part.count - len(there):
        absent = (str(number) for number in range(1, first.part.count + 1) if number not in there)
        names = ", ".join(islice(absent, _NAMED)) + (f" and {count - _NAMED} more" if count > _NAMED else "")
        raise VitkitError(
            f"{'part' if count == 1 else 'parts'} {names} of {first.part.count} {'is' if count == 1 else 'are'} "
            "missing: write the rest with --shard first"
        )
    plans = {str(file.head["computed"].get("plan")) for file in files}
    unequal = f"parts were computed by different plans ({', '.join(sorted(plans))}): the last digits may differ"
    return Parts(tuple(files), first.head, (unequal,) if len(plans) > 1 else ())


def _parts_in(source: Path) -> list[Path]:
    if source.is_dir():
        return sorted(source.glob(f"*{SUFFIX}"))
    if not source.exists():
        raise VitkitError(f"no such part: {source}")
    return [source]


def _in_words(head: Mapping[str, Any]) -> str:
    from vitkit.classifier import computed_in_words

    return computed_in_words(head["computed"]) if head["computed"] else ""


_KINDS = {  # differences between two parts, in the order in which they are checked
    "version": "has another version of the format",
    "vitkit": "was written by another version of vitkit",
    "verb": "is of another command",
    "model": "is of another model",
    "images": "is of other images",
    "inputs": "is of other images",
}


def _difference(head: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return a description of the first difference between two parts' heads (first lines); empty if there is none."""
    for name, words in _KINDS.items():
        if head.get(name) != other.get(name):
            return words
    flags, others = head.get("flags") or {}, other.get("flags") or {}
    for name in sorted({*flags, *others}):
        if flags.get(name) != others.get(name):
            return f"has other flags (--{name.replace('_', '-')}: {flags.get(name)}, not {others.get(name)})"
    by, by_other = ({**each.get("computed", {}), "plan": None} for each in (head, other))
    for name in sorted({*by, *by_other}):
        if by.get(name) != by_other.get(name):
            return f"was computed in another way (--{name} {by.get(name)}, not {by_other.get(name)})"
    return ""


# --- Values -------------------------------------------------------------------------------------------------------


def from_array(array: npt.NDArray[Any]) -> dict[str, Any]:
    """Encode an array as float32 in JSON types."""
    data = base64.b64encode(np.ascontiguousarray(array, np.float32).tobytes()).decode()
    return {"shape": list(array.shape), "float32": data}


def to_array(value: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    """Decode the result of `from_array`."""
    return np.frombuffer(base64.b64decode(value["float32"]), np.float32).reshape(value["shape"])


def model_digest(classifier: Classifier) -> str:
    """Return the SHA-256 of everything that affects predictions: weights, classes, preprocessing and calibration."""
    from vitkit.exporting.loading import Exported

    digest = hashlib.sha256()
    if isinstance(classifier, Exported):
        for file in (classifier.path, classifier.path.with_suffix(".bin")):
            digest.update(file.read_bytes() if file.is_file() else b"")
    else:
        import torch

        digest.update(repr(classifier.model.config).encode())
        for name, tensor in classifier.model.state_dict().items():
            digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    known = (classifier.classes, classifier.preprocess.to_dict(), classifier.temperature, classifier.thresholds)
    digest.update(
        to_json([*known, str(classifier.views)]).encode("utf-8", "surrogateescape") + (classifier.trust or b"")
    )
    return digest.hexdigest()
