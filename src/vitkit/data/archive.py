"""Read a .zip or .tar of class folders as a source of images, without unpacking it to disk.

The archive may have every folder layout that is accepted on disk (`data.layout`). It may come from an untrusted source,
so its list of members is checked (docs/decisions/0037-keys-and-bytes.md):

- Links are left out. Members whose names would lead to a place outside the archive are left out, too.
- Two members with the same name are an error.
- No member is unpacked beyond its declared size.
- Names in a zip are UTF-8, or in the encoding that the environment variable VITKIT_ZIP_ENCODING names.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from vitkit.data.file_names import is_passed_over, why_ignored
from vitkit.data.layout import Folder, LayoutName, table_of_layout, understand
from vitkit.data.storage import Overlooked, UnreadableImageError
from vitkit.data.table import ImageTable, unlabelled_table
from vitkit.errors import VitkitError
from vitkit.text.cells import listed, plural

if TYPE_CHECKING:
    from zipfile import ZipInfo

_COMPRESSED = (".gz", ".tgz", ".bz2", ".tbz2", ".xz", ".txz", ".zst")  # refused with advice
SUFFIXES = (".zip", ".tar", *_COMPRESSED)
_MOST_MEMBERS = 2_000_000
_MOST_LISTED = 2**28  # bytes of a zip's list of members, which is read as a whole
_MOST_FOLDERS, _LONGEST = 100, 4096  # the most nested folders, and the most characters, of a name
_LARGE, _MOST_RATIO, _LARGEST = 2**26, 100, 2**31  # bytes and ratio: refused above the third, or above both others
_STORED, _DEFLATED = 0, 8  # the compression methods of zip that can be read
_ENCRYPTED, _UTF_8 = 1, 1 << 11  # bits of a zip member's flags
_ENCODING = "VITKIT_ZIP_ENCODING"  # an environment variable, since an archive is opened in many places and processes
_TAR_BLOCK, _TAR_END, _TAR_REST = 512, 1024, 2**24  # bytes: the end is two blocks of zeros, padded by further zeros
_LONGEST_HEADER = 2**20  # bytes of all headers of one member of a tar, such as long names
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # of a zip member: signature, length of its name and of its extra field
_END = struct.Struct("<4s8xL6x")  # of a zip: signature, size of the list of members
_END_64 = struct.Struct("<4s36xQ8x")
_LOCATOR_64 = struct.Struct("<4s4xQ4x")


@dataclass(frozen=True)
class _Member:
    """The position of a member in the archive, and its compression.

    Attributes:
        offset: the offset of the member's local header in a zip, or of its bytes in a tar.
        packed: the number of bytes in the archive.
        size: the number of bytes after decompression.
        method: zip's number of the compression method; None in a tar.
        check: the CRC-32 of the decompressed bytes; None in a tar, which stores no checksums of contents.
        is_encrypted: whether reading the member requires a password.
    """

    offset: int
    packed: int
    size: int
    method: int | None = None
    check: int | None = None
    is_encrypted: bool = False


@dataclass
class _MemberIndex:
    """The members of an archive.

    Attributes:
        members: the members that are files, by key.
        folders: the keys of the members that are folders. Such a folder may be empty.
        ignored: the number of ignored members, by reason.
        unsafe: the names of members that are ignored because the name is not a valid path below a folder, such as
            `../a.png`.
    """

    members: dict[str, _Member] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    ignored: Counter[str] = field(default_factory=Counter)
    unsafe: list[str] = field(default_factory=list)

    def add(self, archive: Path, name: str, member: _Member | None) -> None:
        """Add a member of the archive, or a folder if `member` is None; refuse a name that occurs twice."""
        key = name.removeprefix("./").rstrip("/")
        parts = key.split("/")
        if key in ("", ".") and member is None:
            return
        is_odd = len(parts) > _MOST_FOLDERS or len(key) > _LONGEST or ":" in parts[0] or "\0" in key
        if is_odd or not {"", ".", ".."}.isdisjoint(parts):
            self.unsafe.append(name)
        elif member is None:
            self.folders.add(key)
        elif key in self.members:
            raise VitkitError(f"{archive} contains two files named {key!r}: create it again with only one of them")
        else:
            self.members[key] = member
        if len(self.members) + len(self.folders) + len(self.unsafe) > _MOST_MEMBERS:
            raise VitkitError(f"{archive} has more than {_MOST_MEMBERS:,} members: unpack it, and use the folder")


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
        return _index_of(self.path, self._stamp(), os.environ.get(_ENCODING))

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
            raise UnreadableImageError("encrypted")
        if member.method not in (None, _STORED, _DEFLATED):
            raise UnreadableImageError(f"compressed by method {member.method}: make the archive again with deflate")
        if member.size > _LARGEST or (member.size > _LARGE and member.size > _MOST_RATIO * member.packed):
            raise UnreadableImageError(
                f"unpacks from {member.packed:,} to {member.size:,} bytes, too large for an image"
            )
        with self.path.open("rb") as file:
            file.seek(member.offset)
            if member.method is not None:
                header = file.read(_LOCAL_HEADER.size)
                if len(header) != _LOCAL_HEADER.size:
                    raise UnreadableImageError("truncated")
                signature, name, extra = _LOCAL_HEADER.unpack(header)
                if signature != b"PK\3\4":
                    raise UnreadableImageError("damaged (the archive has no member at the listed position)")
                file.seek(name + extra, 1)
            data = file.read(member.packed)
        if len(data) != member.packed:
            raise UnreadableImageError("truncated")
        if member.method == _DEFLATED:
            try:
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, member.size + 1)
            except zlib.error as error:
                raise UnreadableImageError(f"damaged ({error})") from error
        if len(data) != member.size or (member.check is not None and zlib.crc32(data) != member.check):
            raise UnreadableImageError("damaged (its size or checksum is not the listed one)")
        return io.BytesIO(data)

    def _stamp(self) -> tuple[int, ...]:
        seen = self.path.stat()
        return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns


# --- The list of members ------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def _index_of(path: Path, stamp: tuple[int, ...], encoding: str | None) -> _MemberIndex:  # noqa: ARG001  # another one for a file that has changed
    if not path.is_file():
        raise VitkitError(f"{path} is a pipe or a device, not an archive")
    if path.suffix.lower() in _COMPRESSED:
        raise VitkitError(
            f"{path} is compressed as a whole, so single pictures cannot be read from it: unpack it, or make a .zip or "
            "a plain .tar of it"
        )
    return _index_of_zip(path, encoding) if path.suffix.lower() == ".zip" else _index_of_tar(path)


def _index_of_zip(path: Path, encoding: str | None) -> _MemberIndex:
    import zipfile  # imported only here, because it loads all compression modules

    _check_list(path)
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, EOFError) as error:
        raise VitkitError(
            f"{path} is not a .zip, or it is damaged or incomplete: {error}; copy or download it again"
        ) from error
    index = _MemberIndex()
    for info in members:
        kind = info.external_attr >> 28 if info.create_system == 3 else 0  # 3 is Unix, which stores file types
        if kind == 0o12:
            index.ignored["link in the archive"] += 1
            continue
        name = _name_of(path, info, encoding).replace("\\", "/")  # some Windows programs write "\"
        sizes, is_encrypted = (info.compress_size, info.file_size), bool(info.flag_bits & _ENCRYPTED)
        member = _Member(info.header_offset, *sizes, info.compress_type, info.CRC, is_encrypted)
        index.add(path, name, None if name.endswith("/") else member)
    return index


def _name_of(path: Path, info: ZipInfo, encoding: str | None) -> str:
    """Return the name of a member of a zip. Without a flag for UTF-8, it is UTF-8 nevertheless, or in `encoding`."""
    if info.flag_bits & _UTF_8:
        return info.orig_filename
    written = info.orig_filename.encode("cp437")  # as which zipfile has decoded it
    try:
        return written.decode()
    except UnicodeDecodeError:
        pass
    try:
        if encoding:
            return written.decode(encoding)
        problem = f"that are not UTF-8, such as {written!r:.200}"
    except UnicodeDecodeError:
        problem = f"that are neither UTF-8 nor {encoding}, such as {written!r:.200}"
    except LookupError:
        raise VitkitError(f"{_ENCODING}={encoding}: there is no encoding of this name") from None
    raise VitkitError(
        f"{path} contains names {problem}: set the environment variable {_ENCODING} to their encoding (such as cp850 "
        "for Western European, cp866 for Russian, cp932 for Japanese or gbk for Chinese Windows)"
    )


def _check_list(path: Path) -> None:
    """Refuse a zip whose list of members would take too much memory. The list itself is not read."""
    with path.open("rb") as file:
        end = file.seek(0, 2)
        file.seek(max(0, end - 2**16 - 22))
        tail = file.read()
        place = tail.rfind(b"PK\5\6")
        if place < 0 or len(tail) - place < 22:
            raise VitkitError(
                f"{path} is not a .zip, or it is damaged or incomplete: it has no list of members at its end; copy or "
                "download it again"
            )
        size = _END.unpack(tail[place : place + 22])[1]
        if place >= _LOCATOR_64.size:
            signature, offset = _LOCATOR_64.unpack(tail[place - _LOCATOR_64.size : place])
            if signature == b"PK\6\7" and offset < end:
                file.seek(offset)
                head = file.read(_END_64.size)
                size = _END_64.unpack(head)[1] if len(head) == _END_64.size else size
    if size > _MOST_LISTED:
        raise VitkitError(
            f"{path} has a list of members of {size:,} bytes, more than the limit of {_MOST_LISTED:,}: unpack it, and "
            "use the folder"
        )


def _index_of_tar(path: Path) -> _MemberIndex:
    import tarfile

    index, size = _MemberIndex(), path.stat().st_size
    try:
        with _Headers(io.FileIO(path)) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            while (info := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # a list that only costs memory
                file.left = _LONGEST_HEADER
                if info.issparse():
                    raise VitkitError(f"{path} has the sparse file {info.name!r}: pack the folder without --sparse")
                if info.size < 0 or (info.isreg() and info.offset_data + info.size > size):
                    raise VitkitError(f"{path} is incomplete: it ends within {info.name!r}; copy or download it again")
                if info.isdir():
                    index.add(path, info.name, None)
                elif not info.isreg():
                    index.ignored["link in the archive" if info.issym() or info.islnk() else "no regular file"] += 1
                else:
                    index.add(path, info.name, _Member(info.offset_data, info.size, info.size))
            _check_end(path, archive.offset)
    except VitkitError:
        raise
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise VitkitError(
            f"{path} is not a plain .tar, or it is damaged or incomplete: {error}; copy or download it again"
        ) from error
    return index


class _Headers(io.BufferedReader):
    """The file of a tar, of which at most `left` bytes are read for the headers of the next member."""

    left = _LONGEST_HEADER

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= self.left:
            raise ValueError(f"a header is longer than {_LONGEST_HEADER:,} bytes")
        self.left -= size
        return super().read(size)


def _check_end(path: Path, offset: int) -> None:
    """Check that a tar ends at `offset`, behind its last member: tarfile stops at any header that is cut or damaged."""
    with path.open("rb") as file:
        file.seek(offset)
        end, rest = file.read(_TAR_END), file.read(_TAR_REST)
    if any(end[:_TAR_BLOCK]):
        raise VitkitError(
            f"{path} is damaged or incomplete: there is no member at byte {offset:,}; copy or download it again"
        )
    if any(end) or any(rest):
        raise VitkitError(
            f"{path} has another archive behind its end, as `cat` joins them, which would be left out: unpack it by "
            f"`tar -xif {path}`, and use the folder"
        )
    if len(end) < _TAR_END:
        raise VitkitError(
            f"{path} has no end, so images may be missing: copy or download it again; if it is complete, because its "
            f"writer never writes the end, append it by `truncate -s +{_TAR_END} {path}`"
        )


# --- The folders in it --------------------------------------------------------------------------------------------


class _Tree:
    """The folders in an archive, with the methods that `data.layout` uses for folders on disk."""

    def __init__(self, path: Path, overlooked: Overlooked) -> None:
        self._root, self._overlooked = path, overlooked
        self._files: dict[str, list[str]] = {"": []}
        self._folders: dict[str, set[str]] = {"": set()}
        try:
            self.index = Archive(path).index()
        except OSError as error:
            raise VitkitError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error
        overlooked.ignored.update(self.index.ignored)
        for key in self.index.folders:
            self._add_folder(key)
        for key in self.index.members:
            above, _, name = key.rpartition("/")
            self._add_folder(above)
            self._files[above].append(name)
        for key in self.index.members:
            if key in self._folders:
                raise VitkitError(
                    f"{path} contains a file and a folder named {key!r}: create the archive again with only one of them"
                )

    def _add_folder(self, key: str) -> None:
        if key not in self._folders:
            self._folders[key], self._files[key] = set(), []
            above, _, name = key.rpartition("/")
            self._add_folder(above)
            self._folders[above].add(name)

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

    def _images(self, key: str, before: str) -> Iterator[str]:
        for name in sorted(self._files[key]):
            reason = why_ignored(name)
            if reason is None:
                yield before + name
            else:
                self._overlooked.ignored[reason] += 1
        for name in sorted(self._folders[key]):
            if is_passed_over(name):
                self._overlooked.ignored[f"folder {name}"] += 1
                self._hide(_join(key, name))
            else:
                yield from self._images(_join(key, name), f"{before}{name}/")

    def entries(self, folder: Path) -> list[tuple[str, bool]]:
        """List the entries of a folder as pairs of a name and whether it is a file."""
        key = folder.relative_to(self._root).as_posix().removeprefix(".")
        return [(name, True) for name in self._files[key]] + [(name, False) for name in self._folders[key]]

    def _hide(self, key: str) -> None:
        if self._holds_images(key):
            self._overlooked.hidden.add(str(self._root / key))

    def _holds_images(self, key: str) -> bool:
        return any(why_ignored(name) is None for name in self._files[key]) or any(
            self._holds_images(_join(key, name)) for name in self._folders[key]
        )

    def lines(self) -> tuple[str, ...]:
        """Describe the ignored folders that contain images, and the members with invalid names, one sentence each."""
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
    overlooked = Overlooked()
    tree = _Tree(path, overlooked)
    layout = understand(name, tree.survey(), layout_name)
    try:
        table = table_of_layout(name, path, layout, overlooked, tree.images_below, tree.entries)
    except VitkitError as error:
        raise VitkitError("; ".join([str(error), *tree.lines()[len(overlooked.lines(path)) :]])) from error
    return replace(table, storage=Archive(path), overlooked=tree.lines())


def read_unlabelled_archive(name: str, path: Path) -> ImageTable:
    """Return all images of an archive as a table of one class without splits."""
    path = path.resolve()
    overlooked = Overlooked()
    tree = _Tree(path, overlooked)
    keys = tree.images_below(path)
    if not keys:
        raise VitkitError("; ".join([f"no images in {name}", *tree.lines()]))
    return unlabelled_table(
        name,
        path,
        keys,
        ignored=dict(overlooked.ignored),
        folders=(path,),
        layout="pictures without labels: all in the archive",
        overlooked=tree.lines(),
        storage=Archive(path),
    )
