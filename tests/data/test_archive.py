"""Archives as sources: the same images as in the folder, and nothing that an archive says of itself is believed."""

import io
import pickle
import shutil
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest
from PIL import Image

import photos
from refusals import refused
from vitkit.data import (
    ImageTable,
    Stored,
    examine,
    find_images,
    image_exists,
    read_digests,
    read_place,
    read_source,
    read_table,
    split_from_file,
    split_to_dict,
)
from vitkit.data.archive import Archive
from vitkit.data.decode import UnreadableImageError, decode
from vitkit.system import write_json

PICTURE = io.BytesIO()
photos.noise().save(PICTURE, "PNG")


def zipped(folder: Path) -> Path:
    """A .zip of what is in a folder, empty folders too."""
    return Path(shutil.make_archive(str(folder), "zip", folder))


def tarred(folder: Path) -> Path:
    """A plain .tar of the same."""
    return Path(shutil.make_archive(str(folder), "tar", folder))


def zip_of(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in members.items():
            made.writestr(name, data)
    return path


def tar_of(path: Path, members: list[tarfile.TarInfo]) -> Path:
    with tarfile.open(path, "w") as made:
        for own in members:
            own.size = len(PICTURE.getvalue()) if own.isreg() else 0
            made.addfile(own, io.BytesIO(PICTURE.getvalue()) if own.isreg() else None)
    return path


def odd(root: Path) -> Path:
    """Two classes, and whatever people leave lying about."""
    data = photos.folder(root, {"b class": 3, "ä": 2})
    (data / "empty").mkdir()
    photos.save(photos.noise(seed=77), data / "ä" / "deeper" / "0.png")
    photos.save(photos.noise(seed=78), data / "ä" / ".hidden" / "0.png")
    photos.save(photos.noise(seed=79), data / "__MACOSX" / "ä" / "0.png")
    for name in ("notes.txt", "ä/.DS_Store", "ä/._0.png", "ä/list.csv"):
        (data / name).write_text("nothing", encoding="utf-8")
    return data


def in_splits(root: Path) -> Path:
    for split, seed in (("train", 0), ("valid", 10), ("Test", 20)):
        for name in ("cat", "dog"):
            for i in range(3):
                photos.save(photos.noise(seed=seed + 3 * (name == "dog") + i), root / split / name / f"{i}.png")
    return root


def contents(table: ImageTable) -> list[bytes]:
    return [read_place(table.file(i)) for i in range(len(table))]


def without_storage(table: ImageTable) -> ImageTable:
    root = table.root.with_suffix("")
    return replace(table, name="it", root=root, folders=(root,), storage=None)


@pytest.mark.parametrize("make", [odd, in_splits])
def test_an_archive_is_read_as_its_folder(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    data = make(tmp_path / "data")
    folder = read_source(data)
    for pack in (zipped, tarred):
        packed = read_source(pack(data))
        assert without_storage(packed) == without_storage(folder)
        assert contents(packed) == contents(folder)


def test_split_digests_and_findings_are_those_of_the_folder(tmp_path: Path) -> None:
    data = photos.folder(tmp_path / "data", {"a": 6, "b": 6})
    shutil.copy(data / "a" / "a_0.png", data / "a" / "copy.png")
    (data / "b" / "bad.png").write_bytes(b"no picture")
    tables = [read_source(data), read_source(tarred(data))]
    before = sorted(tmp_path.rglob("*"))
    found = [examine(table) for table in tables]
    assert sorted(tmp_path.rglob("*")) == before, "something is written beside it"
    assert found[0].facts == found[1].facts
    assert list(found[1].unreadable.items()) == list(found[0].unreadable.items())
    digests = [read_digests(table) for table in tables]
    assert digests[0] == digests[1] and len(digests[0]) == 13


def test_an_archive_is_as_a_folder_in_layouts_and_split_json(tmp_path: Path) -> None:
    packed = zipped(in_splits(tmp_path / "data"))
    table = read_source(packed)
    assert table.lies_among(packed) and not table.lies_among(tmp_path / "run")
    assert read_table(packed, layout="classes").classes == ("Test", "train", "valid")
    write_json(tmp_path / "split.json", split_to_dict(table))
    again = split_from_file(tmp_path / "split.json")
    assert again.storage == Archive(again.root)
    assert again.open(0).read().startswith(b"\x89PNG")


def test_an_image_in_an_archive_has_a_name_that_can_be_named(tmp_path: Path) -> None:
    packed = zipped(photos.folder(tmp_path / "data", {"a": 2, "b": 11}))
    names = find_images([str(packed)])
    assert len(names) == 13 and names[:2] == [f"{packed}/a/a_0.png", f"{packed}/a/a_1.png"]
    assert names[-1] == f"{packed}/b/b_10.png"  # in natural order
    assert find_images([f"{packed}/b"]) == names[2:]
    assert find_images([f"{packed}/b/b_7.png"]) == [f"{packed}/b/b_7.png"]
    assert find_images([f"{tmp_path}/*.zip"]) == names
    assert decode(names[0]).size == (20, 14)
    with refused("data.source-missing"):
        find_images([f"{packed}/c"])
    with pytest.raises(UnreadableImageError, match="no such file"):
        decode(f"{packed}/a/9.png")


def _read(storage: Archive, key: str) -> bytes:
    with storage.open(key) as opened:
        return opened.read()


def test_processes_and_threads_share_an_archive(tmp_path: Path) -> None:
    storage = Archive(zipped(photos.folder(tmp_path / "data", {"a": 4, "b": 4})))
    expected = {key: _read(storage, key) for key in storage.index().members}
    assert pickle.loads(pickle.dumps(storage)) == storage
    with get_context("fork").Pool(2) as pool:
        assert pool.starmap(_read, [(storage, key) for key in expected]) == list(expected.values())
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda key: _read(storage, key), list(expected) * 8))
    assert found == list(expected.values()) * 8


def test_an_archive_that_changes_is_read_again(tmp_path: Path) -> None:
    packed = zip_of(tmp_path / "a.zip", {"a/0.png": b"first", "b/0.png": b"other"})
    storage = Archive(packed)
    before = storage.stamp("a/0.png")
    assert _read(storage, "a/0.png") == b"first"
    zip_of(tmp_path / "b.zip", {"c/0.png": b"", "a/0.png": b"again"}).replace(packed)
    assert _read(storage, "a/0.png") == b"again"
    assert storage.stamp("a/0.png") not in (before, None)
    assert not image_exists(Stored(storage, "b/0.png"))
    packed.unlink()
    assert storage.stamp("a/0.png") is None
    with pytest.raises(UnreadableImageError, match="no such file"):
        decode(Stored(storage, "a/0.png"))


def without_flag(path: Path, classes: tuple[str, ...], encoding: str) -> Path:
    """A zip whose names are in an encoding that it does not tell."""
    names = [f"{name}/{i}.png".encode(encoding) for name in classes for i in range(2)]
    stand_ins = [f"{i}".zfill(len(name)) for i, name in enumerate(names)]
    data = zip_of(path, dict.fromkeys(stand_ins, PICTURE.getvalue())).read_bytes()
    for stand_in, name in zip(stand_ins, names, strict=True):
        assert data.count(stand_in.encode()) == 2
        data = data.replace(stand_in.encode(), name)
    path.write_bytes(data)
    return path


def test_names_of_another_encoding_are_refused(tmp_path: Path) -> None:
    assert read_source(without_flag(tmp_path / "utf.zip", ("Löwenzahn", "Ä"), "utf-8")).classes == ("Löwenzahn", "Ä")
    with refused("data.archive-encoding"):
        read_source(without_flag(tmp_path / "it.zip", ("ソテツ", "表"), "cp932"))


@pytest.mark.parametrize("name", ["/a/0.png", "a/../../0.png", "C:/a/0.png", "..\\a\\0.png", "x/" * 200 + "0.png"])
def test_names_that_lead_out_are_left_out(tmp_path: Path, name: str) -> None:
    good = {"a/0.png": PICTURE.getvalue(), "b/0.png": PICTURE.getvalue()}
    table = read_source(zip_of(tmp_path / "it.zip", {name: PICTURE.getvalue(), **good}))
    assert table.paths == ("a/0.png", "b/0.png")
    assert "1 member is left out because of invalid names" in " ".join(table.overlooked)
    members = [tarfile.TarInfo(own) for own in (name.replace("\\", "/"), *good)]
    assert read_source(tar_of(tmp_path / "it.tar", members)).paths == table.paths
    assert sorted(own.name for own in tmp_path.iterdir()) == ["it.tar", "it.zip"]


def test_links_and_devices_are_left_out(tmp_path: Path) -> None:
    members = [tarfile.TarInfo(f"{name}.png") for name in ("a/0", "b/0", "a/1", "b/1", "b/2", "b/3")]
    kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE)
    for own, kind in zip(members[2:], kinds, strict=True):
        own.type, own.linkname = kind, "/etc/passwd"
    table = read_source(tar_of(tmp_path / "it.tar", members))
    assert table.paths == ("a/0.png", "b/0.png")
    assert table.ignored == {"link in the archive": 2, "no regular file": 2}
    link = zipfile.ZipInfo("a/1.png")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    packed = zip_of(tmp_path / "it.zip", {"a/0.png": PICTURE.getvalue(), "b/0.png": PICTURE.getvalue()})
    with zipfile.ZipFile(packed, "a") as made:
        made.writestr(link, "/etc/passwd")
    assert read_source(packed).paths == table.paths


def test_names_that_occur_twice_are_refused(tmp_path: Path) -> None:
    members = [tarfile.TarInfo(name) for name in ("a/0.png", "b/0.png", "./a/0.png")]
    with refused("data.name-repeated", "a/0.png"):
        read_source(tar_of(tmp_path / "it.tar", members))
    both = {"a": PICTURE.getvalue(), "a/0.png": PICTURE.getvalue(), "b/0.png": PICTURE.getvalue()}
    with refused("data.name-repeated", "'a'"):
        read_source(zip_of(tmp_path / "it.zip", both))


@pytest.mark.parametrize(
    ("offset", "form", "value", "reason"),
    [
        (8, "<H", 1, "encrypted"),
        (10, "<H", 12, "compressed by method 12"),
        (24, "<L", 2**31 - 1, "unpacks from"),
        (24, "<L", 10, "size or checksum is not the listed one"),  # more comes out than it declares
        (16, "<L", 7, "size or checksum is not the listed one"),
    ],
)
def test_members_of_another_kind_are_not_read(tmp_path: Path, offset: int, form: str, value: int, reason: str) -> None:
    members = {f"{name}/{i}.png": PICTURE.getvalue() for name in "ab" for i in range(2)}
    packed = zip_of(tmp_path / "it.zip", members)
    data = bytearray(packed.read_bytes())
    struct.pack_into(form, data, data.rindex(b"PK\1\2", 0, data.rindex(b"b/1.png")) + offset, value)
    packed.write_bytes(data)
    found = examine(read_source(packed))
    assert list(found.unreadable) == ["b/1.png"] and reason in found.unreadable["b/1.png"]


def test_a_bomb_is_not_unpacked_but_a_large_picture_of_one_colour_is(tmp_path: Path) -> None:
    plain = io.BytesIO()
    Image.new("RGB", (3000, 2000), (10, 20, 30)).save(plain, "BMP")
    packed = zip_of(tmp_path / "it.zip", {"a/0.png": bytes(2**26 + 1), "a/0.bmp": plain.getvalue()})
    with pytest.raises(UnreadableImageError, match="67,108,865"):
        Archive(packed).open("a/0.png")
    assert decode(f"{packed}/a/0.bmp").size == (3000, 2000)


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_an_archive_that_was_cut_is_refused_wherever_it_ends(tmp_path: Path, form: int) -> None:
    packed = tmp_path / "it.tar"
    with tarfile.open(packed, "w", format=form) as made:
        for name in ("a/0.png", "b/0.png", f"b/{'ä' * 70}/{'x' * 70}.png"):
            own = tarfile.TarInfo(name)
            own.size = 3
            made.addfile(own, io.BytesIO(b"123"))
        end = made.offset  # of the last member
    data = packed.read_bytes()
    for length in (*range(0, end + 1024, 256), *range(end - 8, end + 9, 4), end + 1023):
        packed.write_bytes(data[:length])
        with refused("data.archive-damaged"):
            read_source(packed)
    packed.write_bytes(data[: end + 1024])
    assert len(read_source(packed)) == 3
    packed = zip_of(tmp_path / "it.zip", {"a/0.png": b"123", "b/0.png": b"123"})
    data = packed.read_bytes()
    for length in (0, len(data) // 2, len(data) - 1):
        packed.write_bytes(data[:length])
        with refused("data.archive-damaged"):
            read_source(packed)


def test_a_tar_with_another_one_behind_its_end_is_refused(tmp_path: Path) -> None:
    packed = tarred(photos.folder(tmp_path / "data", {"a": 2, "b": 2}))
    packed.write_bytes(2 * packed.read_bytes())  # as `cat` joins them
    with refused("data.archive-joined", packed.name):
        read_source(packed)


def test_compressed_tars_are_refused_with_what_to_do(tmp_path: Path) -> None:
    for name in ("it.tgz", "it.tar.xz"):
        with tarfile.open(tmp_path / name, f"w:{name[-2:]}") as made:  # type: ignore[call-overload]
            made.add(photos.folder(tmp_path / "data", {"a": 2, "b": 2}), "")
        with refused("data.archive-compressed"):
            read_source(tmp_path / name)
