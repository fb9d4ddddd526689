"""Named data sets: made of small archives laid out as the published ones, and fetched from servers on this machine."""

import hashlib
import inspect
import io
import pickle
import resource
import socket
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import torchvision
from PIL import Image
from sklearn.datasets import load_digits

from afar import Site, served
from hearing import heard
from photos import folder, noise
from refusals import refused
from vitkit.data import DATASETS, DataSet, Torchvision, locate, materialise, named, read_source
from vitkit.data.decode import decode
from vitkit.data.named import TarDownload
from vitkit.system import cache_folder, reporting_to

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "named-data.md"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    for name in ("VITKIT_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache"


def pair(write: Callable[[Path, Path], object] = lambda raw, root: folder(root, {"a": 1, "b": 1})) -> DataSet:
    return DataSet("pair", 2, 2, write=write)


def kept(cache: Path) -> list[str]:
    """What is in the cache's data folder besides locks."""
    return sorted(path.name for path in (cache / "data").iterdir() if path.suffix != ".lock")


def test_digits_are_the_1797_of_scikit_learn(cache: Path) -> None:
    table = read_source("digits")
    digits = load_digits()
    assert table.classes == tuple("0123456789") and table.ignored == {}
    assert list(table.counts().values()) == np.bincount(digits.target).tolist()
    assert sorted(Path(path).stem for path in table.paths) == [f"{i:04d}" for i in range(1797)]
    for row in range(0, len(table), 13):
        i = int(table.file(row).stem)
        assert digits.target[i] == table.labels[row]
        with Image.open(table.file(row)) as stored:
            assert (stored.format, stored.mode, stored.size) == ("PNG", "L", (8, 8))
        expected = np.round(digits.images[i] * 255 / 16)
        for channel in range(3):
            np.testing.assert_array_equal(np.asarray(decode(table.file(row)))[..., channel], expected)


def test_a_set_is_written_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (".pair-x1y2z3", ".pairs-x1y2z3", "pairs"):  # a killed process has left the first
        folder(cache / "data" / name, {"a": 1})
    calls = []
    monkeypatch.setitem(DATASETS, "pair", pair(lambda raw, root: calls.append(raw) or folder(root, {"a": 1, "b": 1})))
    assert materialise("pair") == materialise("pair") == cache / "data" / "pair"
    assert len(calls) == 1
    assert kept(cache) == [".pairs-x1y2z3", "pair", "pairs"]


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_the_way(raw: Path, root: Path) -> None:
        folder(root, {"a": 1, "b": 1})
        (cache / "data" / "pair").touch()

    monkeypatch.setitem(DATASETS, "pair", pair(in_the_way))
    with refused("data.cache-unwritable", "pair", "VITKIT_CACHE"):
        materialise("pair")
    assert kept(cache) == ["pair"]
    (tmp_path / "file").touch()
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "file"))
    with refused("data.cache-unwritable", "digits"):
        materialise("digits")


def test_a_set_in_part_is_refused_and_an_interruption_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(raw: Path, root: Path) -> None:
        folder(root, {"a": 1})
        (raw / "archive").touch()
        raise KeyboardInterrupt

    for arrived in ({"a": 2}, {"a": 2, "b": 1}, {}):
        entry = pair(lambda raw, root, own=arrived: folder(root, own))
        monkeypatch.setitem(DATASETS, "pair", replace(entry, host="example.org", page="https://example.org/pair"))
        with refused("data.download-incomplete", "pair", "example.org"):
            materialise("pair")
        assert kept(cache) == []
    monkeypatch.setitem(DATASETS, "pair", pair(interrupted))
    with pytest.raises(KeyboardInterrupt):
        materialise("pair")
    assert kept(cache) == []
    monkeypatch.setitem(DATASETS, "pair", pair())
    assert len(read_source("pair")) == 2


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VITKIT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_folder() == Path("/home/somebody/.cache/vitkit")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/vitkit")
    monkeypatch.setenv("VITKIT_CACHE", "/own")
    assert cache_folder() == Path("/own")


def test_a_set_whose_folder_is_gone_is_made_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("data.source-missing", "caltech101", "oxford-pets"):
        read_source("cifra10")
    monkeypatch.setitem(DATASETS, "pair", pair())
    table = read_source("pair")
    cache.rename(cache.parent / "gone")
    monkeypatch.setenv("VITKIT_CACHE", str(cache.parent / "new"))  # it is made again where the cache is now
    found = locate(table)
    assert found.file(0).is_file() and found.root.is_relative_to(cache.parent / "new")
    assert (found.paths, found.labels) == (table.paths, table.labels)


def test_every_set_is_described_and_the_guide_says_the_same() -> None:
    guide = GUIDE.read_text(encoding="utf-8").splitlines()
    for entry in DATASETS.values():
        assert entry.images > entry.classes >= 2 and entry.licence and entry.page.startswith("http")
        assert set(entry.splits) <= {"train", "val", "test"} and (not entry.splits or entry.splits[0] == "train")
        assert (entry.megabytes > 0) == bool(entry.host)
        splits, size = ", ".join(entry.splits) or "-", f"{entry.megabytes:,}" if entry.megabytes else "-"
        told = f"| `{entry.name}` | {entry.images:,} | {entry.classes} | {splits} | {size} "
        assert f"{told}| [{entry.licence}]({entry.page}) |" in guide


Tree = dict[str, "bytes | np.ndarray"]  # path in the data set -> the file's bytes, or its pixels


def tar(files: dict[str, bytes], compression: str = "gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=f"w:{compression}") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def pixels(count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, *shape), dtype=np.uint8)


def photo(name: str) -> bytes:
    """A JPEG file like no other."""
    buffer = io.BytesIO()
    noise(seed=int.from_bytes(name.encode()[-6:])).save(buffer, "JPEG")
    return buffer.getvalue()


def arrays_of(split: str, images: np.ndarray, labels: list[int], names: list[str]) -> Tree:
    return {
        f"{split}/{names[label]}/{i:05d}.png": image
        for i, (image, label) in enumerate(zip(images, labels, strict=True))
    }


def cifar10() -> tuple[dict[str, bytes], Tree]:
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    files: dict[str, bytes] = {"batches.meta": pickle.dumps({"label_names": names})}
    tree: Tree = {}
    for split, batches in {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}.items():
        images = pixels(2 * len(batches), 32, 32, 3)
        labels = [(7 * i + len(split)) % len(names) for i in range(len(images))]
        for j, batch in enumerate(batches):
            rows = images[2 * j : 2 * j + 2].transpose(0, 3, 1, 2).reshape(2, -1)
            files[batch] = pickle.dumps({"data": rows, "labels": labels[2 * j : 2 * j + 2]})
        tree |= arrays_of(split, images, labels, names)
    archive = tar({f"cifar-10-batches-py/{name}": content for name, content in files.items()})
    return {"cifar-10-python.tar.gz": archive}, tree


def oxford_pets() -> tuple[dict[str, bytes], Tree]:
    rows = {"trainval": [("Abyssinian", 1, 100), ("american_bulldog", 2, 7)], "test": [("american_bulldog", 2, 8)]}
    rows["test"].append(("Abyssinian", 1, 2))
    names = {"Abyssinian": "Abyssinian", "american_bulldog": "American Bulldog"}
    images, lists, tree = {}, {}, {}
    for split, own in rows.items():
        lists[f"annotations/{split}.txt"] = "".join(f"{name}_{i} {label} 1 1\n" for name, label, i in own).encode()
        for name, _, i in own:
            folder = f"{'train' if split == 'trainval' else 'test'}/{names[name]}"
            images[f"images/{name}_{i}.jpg"] = tree[f"{folder}/{name}_{i}.jpg"] = photo(f"{name}{i}")
    return {
        "images.tar.gz": tar(images | {"images/Abyssinian_1.mat": b"no image"}),
        "annotations.tar.gz": tar(lists),
    }, tree


def imagenette() -> tuple[dict[str, bytes], Tree]:
    names = {"n01440764": "tench", "n03394916": "French horn"}
    files, tree = {"imagenette2/noisy_imagenette.csv": b"path\n"}, {}
    for split in ("train", "val"):
        for wnid, name in names.items():
            file = f"{wnid}_{split}_1.JPEG"
            files[f"imagenette2/{split}/{wnid}/{file}"] = tree[f"{split}/{name}/{file}"] = photo(split + name)
    return {"imagenette2.tgz": tar(files)}, tree


def caltech101() -> tuple[dict[str, bytes], Tree]:
    names = ("Faces", "Faces_easy", "accordion")
    tree: Tree = {f"{name}/image_{i:04d}.jpg": photo(f"{name}{i}") for name in names for i in (1, 2)}
    files = {f"101_ObjectCategories/{path}": content for path, content in tree.items()}
    files["101_ObjectCategories/BACKGROUND_Google/image_0001.jpg"] = photo("background")
    inner = {"101_ObjectCategories.tar.gz": tar(files), "Annotations.tar": tar({}, ""), "show_annotation.m": b""}
    return {"caltech-101.zip": zipped({f"caltech-101/{name}": content for name, content in inner.items()})}, tree


def gtsrb() -> tuple[dict[str, bytes], Tree]:
    train = {f"{sign}/00000_{i:05d}.ppm": photo(f"{sign}{i}") for sign in ("00000", "00001") for i in (0, 1)}
    test = {f"{i:05d}.ppm": (photo(f"test{i}"), sign) for i, sign in enumerate((1, 0))}
    lines = ["Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId"]
    lines += [f"{name};53;54;6;5;48;49;{sign}" for name, (_, sign) in test.items()]
    files = {
        "GTSRB-Training_fixed.zip": zipped({f"GTSRB/Training/{path}": content for path, content in train.items()}),
        "GTSRB_Final_Test_Images.zip": zipped(
            {f"GTSRB/Final_Test/Images/{name}": own[0] for name, own in test.items()}
        ),
        "GTSRB_Final_Test_GT.zip": zipped({"GT-final_test.csv": "\n".join(lines).encode()}),
    }
    tree = {f"train/{path}": content for path, content in train.items()}
    return files, tree | {f"test/{sign:05d}/{name}": content for name, (content, sign) in test.items()}


def fgvc_aircraft() -> tuple[dict[str, bytes], Tree]:
    names = ["707-320", "F/A-18"]
    files, tree = {"variants.txt": "\n".join(names).encode()}, {}
    for i, split in enumerate(("train", "val", "test")):
        files[f"images_variant_{split}.txt"] = "".join(f"{j}00{i} {name}\n" for j, name in enumerate(names)).encode()
        for j, name in enumerate(names):
            path = f"{split}/{name.replace('/', '-')}/{j}00{i}.jpg"
            files[f"images/{j}00{i}.jpg"] = tree[path] = photo(path)
    archive = tar({f"fgvc-aircraft-2013b/data/{name}": content for name, content in files.items()})
    return {"fgvc-aircraft-2013b.tar.gz": archive}, tree


# Arrays and files, with the names of the classes from each place, with and without splits.
BUILDERS = (cifar10, oxford_pets, imagenette, caltech101, gtsrb, fgvc_aircraft)
PUBLISHED = {own.__name__.replace("_", "-"): own for own in BUILDERS}


@dataclass
class Shelf:
    """The archives of one data set in place of the network, and what was asked of them."""

    files: dict[str, bytes]
    asked: list[str] = field(default_factory=list)

    def download(self, url: str, root: str | Path, filename: str | None = None, md5: str | None = None) -> None:
        self.asked.append(url)
        Path(root).mkdir(parents=True, exist_ok=True)
        Path(root, filename or Path(urlsplit(url).path).name).write_bytes(self.files[Path(urlsplit(url).path).name])


def publish(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Shelf, Tree]:
    """Let torchvision find small archives where it looks for those of `name`, and not mind their checksums."""
    from torchvision.datasets import cifar, utils

    files, tree = PUBLISHED[name]()
    shelf = Shelf(files)
    monkeypatch.setattr(utils, "download_url", shelf.download)
    monkeypatch.setattr(cifar, "check_integrity", lambda path, md5=None: Path(path).is_file())
    classes = {Path(path).parent.name for path in tree}
    monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], images=len(tree), classes=len(classes)))
    return shelf, tree


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_set_of_torchvision_becomes_class_folders(name: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf, tree = publish(name, monkeypatch)
    told: list[str] = []
    with heard(told.append):
        root = materialise(name)
    assert {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()} == tree.keys()
    for path, expected in tree.items():
        if isinstance(expected, bytes):
            assert (root / path).read_bytes() == expected, path
        else:
            with Image.open(root / path) as image:
                np.testing.assert_array_equal(np.asarray(image), expected)
    entry = DATASETS[name]
    assert {urlsplit(url).hostname for url in shelf.asked} == {entry.host}
    assert sorted(shelf.asked) == sorted(set(shelf.asked)), "nothing is downloaded twice"
    assert kept(cache) == [name]
    [line] = told
    assert all(word in line for word in (name, f"{entry.megabytes:,} MB", entry.host, f"{len(tree):,} images"))
    table = read_source(name)
    assert set(table.paths) == tree.keys() and table.ignored == {}
    assert table.splits == tuple(Path(path).parts[0] if entry.splits else None for path in table.paths)
    assert [table.name_of(i) for i in range(len(table))] == [Path(path).parent.name for path in table.paths]


def test_every_set_of_torchvision_is_asked_for_with_arguments_that_it_has() -> None:
    for entry in DATASETS.values():
        if isinstance(entry.write, Torchvision):
            signature = inspect.signature(getattr(torchvision.datasets, entry.write.kind))
            for arguments in entry.write.splits.values():
                signature.bind("folder", download=True, **arguments, **entry.write.options)
            assert tuple(filter(None, entry.write.splits)) == entry.splits


@pytest.mark.parametrize("name", ["imagenette", "caltech101"])
def test_a_damaged_archive_is_said(name: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf, _ = publish(name, monkeypatch)
    for damaged in (b"", b"not an archive", tar({"a": bytes(10_000)})[:-40]):
        shelf.files = dict.fromkeys(shelf.files, damaged)
        with refused("data.download-failed", name, DATASETS[name].host, DATASETS[name].page):
            materialise(name)
        assert kept(cache) == []


def flowers() -> dict[str, bytes]:
    return {f"{name}/{i}.jpg": photo(f"{name}{i}") for name in ("daisy", "roses") for i in range(3)}


def flower_archive() -> bytes:
    inner = flowers() | {"LICENSE.txt": b"CC-BY, by these photographers", "roses/Thumbs.db": b""}
    return tar({f"flower_photos/{path}": content for path, content in inner.items()})


@pytest.fixture
def site(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A server that flower_photos comes from."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    published = tmp_path / "example_images" / "flower_photos.tgz"
    published.parent.mkdir()
    published.write_bytes(flower_archive())
    with served(published.parent) as site:
        write = TarDownload(f"{site.address}/{published.name}", sha256_of(published))
        entry = replace(DATASETS["flower_photos"], images=6, classes=2, host="127.0.0.1", write=write)
        monkeypatch.setitem(DATASETS, "flower_photos", entry)
        yield site


def sha256_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_flower_photos_keep_their_bytes_and_their_licence(site: Site, cache: Path) -> None:
    told: list[tuple[str, int, int]] = []
    lines: list[str] = []
    with reporting_to(lambda *report: told.append(report)), heard(lines.append):
        root = materialise("flower_photos")
        assert materialise("flower_photos") == root  # it is there
    (line,) = lines
    assert "229 MB from 127.0.0.1: 6 images in 2 classes, licence: CC BY" in line
    found = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert found == {**flowers(), "LICENSE.txt": b"CC-BY, by these photographers"}
    size = len(flower_archive())
    assert (told[0], told[-1]) == tuple(("downloading flower_photos", done, size) for done in (0, size))
    assert kept(cache) == ["flower_photos"]
    table = read_source("flower_photos")
    assert table.counts() == {"daisy": 3, "roses": 3} and set(table.splits) == {None}


@pytest.mark.parametrize(
    ("fault", "url", "reason"),
    [
        ("broken", None, "500"),
        *((fault, None, "SHA-256") for fault in ("wrong", "cut")),
        ("slow", None, "timed out"),
        (None, "http://127.0.0.1:9/x.tgz", "Connection refused"),
    ],
)
def test_a_failed_download_says_why_and_the_next_one_works(
    site: Site, cache: Path, monkeypatch: pytest.MonkeyPatch, fault: str | None, url: str | None, reason: str
) -> None:
    entry = DATASETS["flower_photos"]
    assert isinstance(entry.write, TarDownload)
    site.fault = lambda name, before: fault
    with monkeypatch.context() as patch:
        patch.setattr(named, "_TIMEOUT", 0.5)
        patch.setitem(DATASETS, "flower_photos", replace(entry, write=replace(entry.write, url=url or entry.write.url)))
        with refused("data.download-failed", "flower_photos", "127.0.0.1", reason, entry.page):
            materialise("flower_photos")
    assert kept(cache) == [] and socket.getdefaulttimeout() is None
    site.fault = lambda name, before: None
    assert len(read_source("flower_photos")) == 6


def test_offline_nothing_is_asked(site: Site, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITKIT_OFFLINE", "1")
    with refused("data.offline", "flower_photos", "VITKIT_OFFLINE=1"), heard(pytest.fail):
        materialise("flower_photos")
    assert site.requests.total() == 0 and not cache.exists()
    monkeypatch.setitem(DATASETS, "pair", pair())
    assert len(read_source("pair")) == 2, "which needs no download"
    monkeypatch.setenv("VITKIT_OFFLINE", "0")
    materialise("flower_photos")
    monkeypatch.setenv("VITKIT_OFFLINE", "1")
    assert len(read_source("flower_photos")) == 6


def test_a_full_disk_is_said_and_of_two_processes_one_downloads(site: Site, cache: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with refused("data.cache-unwritable", "flower_photos", "File too large"), heard(list[str]().append):
            materialise("flower_photos")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert kept(cache) == []
    site.requests.clear()
    processes = [get_context("fork").Process(target=materialise, args=("flower_photos",)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert site.requests.total() == 2, "torchvision asks once for redirects and once for the file"
    assert kept(cache) == ["flower_photos"]
    assert len(read_source("flower_photos")) == 6
