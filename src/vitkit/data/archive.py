"""Read a .zip or .tar of class folders as a source of images, without unpacking it to disk.

The archive may have every folder layout that is accepted on disk (`data.layout`). It may come from an untrusted source,
so its list of members is checked (docs/decisions/0037-keys-and-bytes.md):

- Links are left out. Members whose names would lead to a place outside the archive are left out, too.
- Two members with the same name are an error.
- No member is unpacked beyond its declared size.
- Names in a zip must be UTF-8.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from vitkit.data.file_names import is_passed_over, why_ignored
from vitkit.data.layout import Folder, LayoutName, read_layout, table_of_layout
from vitkit.data.storage import SearchLog, UnreadableImageError
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.text.cells import listed, plural

_COMPRESSED = (".gz", ".tgz", ".bz2", ".tbz2", ".xz", ".txz", ".zst")  # refused with advice
SUFFIXES = (".zip", ".tar", *_COMPRESSED)
_MAX_SIZE = 2**31  # bytes of a member
_SUSPICIOUS_SIZE, _SUSPICIOUS_RATIO = 2**26, 100  # bytes, and bytes per packed byte; members above both are refused
_DEFLATED = 8  # zip's number of this compression method


@dataclass(frozen=True)
class _Member:
    """The position of a member in the archive, and its compression."""

    offset: int  # of the member's local header in a zip, or of its bytes in a tar
    packed: int  # bytes in the archive
    size: int  # bytes after decompression
    method: int | None = None  # zip's number of the compression method; None in a tar
    crc32: int | None = None  # of the decompressed bytes; None in a tar, which has no checksums of contents
    is_encrypted: bool = False


@dataclass
class _MemberIndex:
    members: dict[str, _Member] = field(default_factory=dict)  # files, by key
    folders: set[str] = field(default_factory=set)  # keys of folders, which may be empty
    ignored: Counter[str] = field(default_factory=Counter)  # number of ignored members, by reason
    unsafe: list[str] = field(default_factory=list)  # ignored names that lead out of the archive, such as `../a.png`

    def add(self, archive: Path, name: str, member: _Member | None) -> None:
        """Add a file, or a folder if `member` is None. Raise VitkitError if two files have the same name."""
        key = name.removeprefix("./").rstrip("/")
        parts = key.split("/")
        if key in ("", ".") and member is None:
            return
        is_too_long = len(parts) > 100 or len(key) > 4096
        has_drive = ":" in parts[0]  # of Windows, such as C:
        leads_elsewhere = not {"", ".", ".."}.isdisjoint(parts)
        if is_too_long or has_drive or leads_elsewhere or "\0" in key:
            self.unsafe.append(name)
        elif member is None:
            self.folders.add(key)
        elif key in self.members:
            raise VitkitError(
                "data.name-repeated",
                f"{archive} contains two files named {key!r}: create it again with only one of them",
            )
        else:
            self.members[key] = member


@dataclass(frozen=True)
class Archive:
    """A .zip or .tar file as a storage of images. The keys are the names of its members.

    Every read opens the file again, so threads and processes (forked or spawned) may share an archive. A process reads
    the list of members once, and again if the file has changed.
    """

    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    def keys(self) -> Collection[str]:
        return self.index().members.keys()

    def index(self) -> _MemberIndex:
        """Return the members.

        Raises:
            VitkitError: the file is not an archive, is damaged, or has members that are not accepted.
            OSError: the file cannot be read.
        """
        return _index_of(self.path, self._stamp())

    def stamp(self, key: str) -> bytes | None:
        """Return bytes that change if the archive or the member changes; None if there is no such member.

        The bytes contain the times and the size of the archive, and the position and checksum of the member.
        """
        try:
            member = self.index().members.get(key)
        except (OSError, VitkitError):
            return None
        return None if member is None else f"{self._stamp()}\0{key}\0{member}".encode("utf-8", "surrogateescape")

    def open(self, key: str) -> BinaryIO:
        member = self.index().members.get(key)
        if member is None:
            raise FileNotFoundError(f"{self.path} has no member {key!r}")
        if member.is_encrypted:
            raise UnreadableImageError("data.image-encrypted", "encrypted")
        if member.method not in (None, 0, _DEFLATED):  # 0 is without compression
            raise UnreadableImageError(
                "data.image-compression", f"compressed by method {member.method}: make the archive again with deflate"
            )
        is_suspicious = member.size > _SUSPICIOUS_SIZE and member.size > _SUSPICIOUS_RATIO * member.packed
        if member.size > _MAX_SIZE or is_suspicious:
            raise UnreadableImageError(
                "data.image-too-large",
                f"unpacks from {member.packed:,} to {member.size:,} bytes, too large for an image",
            )
        with self.path.open("rb") as file:
            file.seek(member.offset)
            if member.method is not None:
                header = file.read(30)  # signature, ..., lengths of the name and of the extra field
                if len(header) != 30:
                    raise UnreadableImageError("data.image-damaged", "truncated")
                signature, name_length, extra_length = struct.unpack("<4s22xHH", header)
                if signature != b"PK\3\4":
                    raise UnreadableImageError(
                        "data.image-damaged", "damaged (the archive has no member at the listed position)"
                    )
                file.seek(name_length + extra_length, os.SEEK_CUR)
            data = file.read(member.packed)
        if len(data) != member.packed:
            raise UnreadableImageError("data.image-damaged", "truncated")
        if member.method == _DEFLATED:
            try:
                # Stop one byte after the declared size, which shows that the size is wrong.
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, member.size + 1)
            except zlib.error as error:
                raise UnreadableImageError("data.image-damaged", f"damaged ({error})") from error
        if len(data) != member.size or (member.crc32 is not None and zlib.crc32(data) != member.crc32):
            raise UnreadableImageError("data.image-damaged", "damaged (its size or checksum is not the listed one)")
        return io.BytesIO(data)

    def _stamp(self) -> tuple[int, ...]:
        status = self.path.stat()
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


# --- The list of members ------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def _index_of(path: Path, stamp: tuple[int, ...]) -> _MemberIndex:  # noqa: ARG001  # another one for a file that has changed
    if not path.is_file():
        raise VitkitError("data.file-not-regular", f"{path} is a pipe or a device, not an archive")
    if path.suffix.lower() in _COMPRESSED:
        raise VitkitError(
            "data.archive-compressed",
            f"{path} is compressed as a whole, so single pictures cannot be read from it: unpack it, or make a .zip or "
            "a plain .tar of it",
        )
    if path.suffix.lower() != ".zip":
        return _index_of_tar(path)

    import zipfile  # imported only here, because it loads all compression modules

    try:
        with zipfile.ZipFile(path, metadata_encoding="utf-8") as archive:
            members = archive.infolist()
    except UnicodeDecodeError as error:
        raise VitkitError(
            "data.archive-encoding",
            f"{path} contains names that are not UTF-8, such as {error.object!r:.200}: unpack it, with the encoding of "
            "the names (`unzip -O cp932` for Japanese Windows), and use the folder",
        ) from error
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, EOFError) as error:
        raise _damaged(f"{path} is not a .zip, or it is damaged or incomplete: {error}") from error

    index = _MemberIndex()
    for info in members:
        kind = info.external_attr >> 28 if info.create_system == 3 else 0  # 3 is Unix, which stores file types
        if kind == 0o12:
            index.ignored["link in the archive"] += 1
            continue
        name = info.orig_filename.replace("\\", "/")  # some Windows programs write "\"
        member = None
        if not name.endswith("/"):
            member = _Member(
                offset=info.header_offset,
                packed=info.compress_size,
                size=info.file_size,
                method=info.compress_type,
                crc32=info.CRC,
                is_encrypted=bool(info.flag_bits & 1),
            )
        index.add(path, name, member)
    return index


def _index_of_tar(path: Path) -> _MemberIndex:
    import tarfile

    index = _MemberIndex()
    archive_size = path.stat().st_size
    try:
        with tarfile.open(path, "r:") as archive:
            while (info := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # tarfile's own list, which only costs memory
                if info.isreg() and info.offset_data + info.size > archive_size:
                    raise _damaged(f"{path} is incomplete: it ends within {info.name!r}")
                if info.isdir():
                    index.add(path, info.name, None)
                elif info.issym() or info.islnk():
                    index.ignored["link in the archive"] += 1
                elif info.issparse() or not info.isreg():
                    index.ignored["no regular file"] += 1
                else:
                    index.add(path, info.name, _Member(info.offset_data, info.size, info.size))
            offset = archive.offset  # after the last member; tarfile stops silently at a truncated or damaged header
    except VitkitError:
        raise
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise _damaged(f"{path} is not a plain .tar, or it is damaged or incomplete: {error}") from error
    with path.open("rb") as file:
        file.seek(offset)
        if file.read(1024) != bytes(1024):  # two blocks of zeros end a tar
            raise _damaged(f"{path} is damaged or incomplete: it has neither a member nor an end at byte {offset:,}")
        if any(file.read(2**24)):  # further zeros may pad it
            raise VitkitError(
                "data.archive-joined",
                f"{path} has another archive behind its end, as `cat` joins them, which would be left out: unpack it "
                f"by `tar -xif {path}`, and use the folder",
            )
    return index


def _damaged(text: str) -> VitkitError:
    return VitkitError("data.archive-damaged", f"{text}; copy or download it again")


# --- The folders in it --------------------------------------------------------------------------------------------


class _Tree:
    """The folders in an archive, with the methods that `data.layout` uses for folders on disk."""

    def __init__(self, path: Path, overlooked: SearchLog) -> None:
        self._root = path
        self._overlooked = overlooked
        self._files: dict[str, list[str]] = {"": []}
        self._folders: dict[str, set[str]] = {"": set()}
        try:
            self.index = Archive(path).index()
        except OSError as error:
            raise VitkitError(
                "data.archive-unreadable", f"{path} cannot be read: {(error.strerror or str(error)).lower()}"
            ) from error
        overlooked.ignored.update(self.index.ignored)
        for key in self.index.folders:
            self._add_folder(key)
        for key in self.index.members:
            parent, _, name = key.rpartition("/")
            self._add_folder(parent)
            self._files[parent].append(name)
        for key in self.index.members:
            if key in self._folders:
                text = f"{path} contains a file and a folder named {key!r}"
                raise VitkitError("data.name-repeated", f"{text}: create the archive again with only one of them")

    def _add_folder(self, key: str) -> None:
        if key not in self._folders:
            self._folders[key] = set()
            self._files[key] = []
            parent, _, name = key.rpartition("/")
            self._add_folder(parent)
            self._folders[parent].add(name)

    def survey(self, key: str = "") -> Folder:
        folders = []
        for name in sorted(self._folders[key]):
            if is_passed_over(name):
                self._hide(_join(key, name))
            else:
                folders.append(self.survey(_join(key, name)))
        has_images = any(why_ignored(name) is None for name in self._files[key])
        return Folder(self._root / key, has_images, tuple(folders))

    def images_below(self, folder: Path) -> list[str]:
        return list(self._images(folder.relative_to(self._root).as_posix().removeprefix("."), ""))

    def _images(self, key: str, prefix: str) -> Iterator[str]:
        for name in sorted(self._files[key]):
            reason = why_ignored(name)
            if reason is None:
                yield prefix + name
            else:
                self._overlooked.ignored[reason] += 1
        for name in sorted(self._folders[key]):
            if is_passed_over(name):
                self._overlooked.ignored[f"folder {name}"] += 1
                self._hide(_join(key, name))
            else:
                yield from self._images(_join(key, name), f"{prefix}{name}/")

    def entries(self, folder: Path) -> list[tuple[str, bool]]:
        """List the entries of a folder as pairs of a name and whether it is a file."""
        key = folder.relative_to(self._root).as_posix().removeprefix(".")
        return [(name, True) for name in self._files[key]] + [(name, False) for name in self._folders[key]]

    def _hide(self, key: str) -> None:
        if self._holds_images(key):
            self._overlooked.hidden.add(str(self._root / key))

    def _holds_images(self, key: str) -> bool:
        if any(why_ignored(name) is None for name in self._files[key]):
            return True
        return any(self._holds_images(_join(key, name)) for name in self._folders[key])

    def lines(self) -> tuple[str, ...]:
        """Return one line about the ignored folders that contain images, and one about members with invalid names."""
        lines = self._overlooked.lines(self._root)
        if unsafe := self.index.unsafe:
            members = plural(len(unsafe), "member is", "members are")
            names = listed([repr(name[:80]) for name in unsafe])
            lines.append(f"{members} left out because of invalid names: {names}")
        return tuple(lines)


def _join(key: str, name: str) -> str:
    return f"{key}/{name}" if key else name


def read_archive(name: str, path: Path, layout_name: LayoutName = "auto") -> ImageTable:
    """Return the table of the images in an archive. Classes and splits are inferred from its folders as on disk."""
    path = path.resolve()
    overlooked = SearchLog()
    tree = _Tree(path, overlooked)
    layout = read_layout(name, tree.survey(), layout_name)
    try:
        table = table_of_layout(name, path, layout, overlooked, tree.images_below, tree.entries)
    except VitkitError as error:
        already_included = len(overlooked.lines(path))  # the first lines; `table_of_layout` adds them to its errors
        text = "; ".join([str(error), *tree.lines()[already_included:]])
        raise VitkitError(error.code, text) from error
    return replace(table, storage=Archive(path), overlooked=tree.lines())


def find_all_images(path: Path, overlooked: SearchLog) -> tuple[Sequence[str], Sequence[str]]:
    """Return the keys of all images in an archive, and lines about what was left out."""
    tree = _Tree(path, overlooked)
    return tree.images_below(path), tree.lines()
