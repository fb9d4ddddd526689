"""Shards: what any reader of tar files finds in them, what the index must not claim, and reading from afar."""

import csv
import hashlib
import json
import os
import shutil
import signal
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

import runs
import tiny
import vitkit
from afar import Site, served
from refusals import refused
from vitkit.data import (
    Augment,
    EpochSampler,
    ImageData,
    ImageTable,
    Preprocess,
    ShardFolder,
    find_images,
    read_source,
    read_table,
    shard_writer,
)
from vitkit.data.remote import _cache_shard, _filesystem_of, cached_shard, prefetch_shards
from vitkit.data.shard_writer import write_shards
from vitkit.errors import VitkitError


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs in two splits, one of which cannot be read; some names have dots, two differ in their suffix."""
    root = tmp_path_factory.mktemp("data")
    runs.photos(root / "train", images=10)
    runs.photos(root / "val", images=4, seed=1)
    (root / "train" / "red" / "img1.png").rename(root / "train" / "red" / "a.b.c.PNG")
    (root / "train" / "red" / "img2.png").rename(root / "train" / "red" / "a.b.d.png")
    (root / "train" / "blue" / "broken.png").write_bytes(b"\x89PNG no picture")
    return root


@pytest.fixture(scope="module")
def shards(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written") / "shards"
    write_shards(read_source(data), folder, 20_000)
    return folder


@pytest.fixture
def copied(shards: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(shards, tmp_path / "shards"))


def bytes_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def members(folder: Path) -> dict[str, dict[str, bytes]]:
    """The samples as WebDataset groups them: neighbours of one name up to the first dot, by the rest of the name."""
    samples: dict[str, dict[str, bytes]] = {}
    last = ""
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as archive:
            for info in archive:
                name, _, suffix = info.name.partition(".")
                assert name == last or name not in samples, "the files of a sample are not neighbours"
                file = archive.extractfile(info)
                assert file is not None and suffix not in samples.setdefault(name, {})
                samples[name][suffix] = file.read()
                last = name
    return samples


def test_any_reader_of_tars_finds_image_class_and_key(data: Path, shards: Path) -> None:
    table, packed = read_source(data), read_source(shards)
    expected = {key: (table.name_of(i), table.splits[i]) for i, key in enumerate(table.paths)}
    samples = members(shards)
    assert len(samples) == len(expected) - 1
    left = dict(expected)
    for sample in samples.values():
        about = json.loads(sample["json"])
        assert sample["png"] == (data / about["key"]).read_bytes()
        assert left.pop(about["key"]) == (about["class"], about["split"])
        assert table.classes[int(sample["cls"])] == about["class"]
    assert list(left) == ["train/blue/broken.png"]
    del expected["train/blue/broken.png"]
    assert {key: (packed.name_of(i), packed.splits[i]) for i, key in enumerate(packed.paths)} == expected
    assert list(packed.paths) == list(expected) and packed.classes == table.classes
    assert "broken.png" in packed.overlooked[0]
    assert all(packed.open(i).read() == (data / key).read_bytes() for i, key in enumerate(packed.paths))
    stored = json.loads((shards / "shards.json").read_text(encoding="utf-8"))
    for shard in stored["shards"]:
        content = (shards / shard["name"]).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (shard["size"], shard["sha256"])
        assert len(content) <= 20_480  # a record of 10 kB more or less
    images = stored["images"]
    of_shard = set(zip(images["shard"], images["split"], strict=True))
    assert len(of_shard) == len(stored["shards"]), "a shard has images of two splits"


def test_the_bytes_depend_on_the_images_alone(data: Path, shards: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(data, tmp_path / "elsewhere"))
    write_shards(read_source(moved), tmp_path / "again", 20_000)
    assert bytes_in(tmp_path / "again") == bytes_in(shards)
    shutil.make_archive(str(tmp_path / "packed"), "zip", data)
    write_shards(read_source(tmp_path / "packed.zip"), tmp_path / "of-zip", 20_000)
    assert bytes_in(tmp_path / "of-zip") == bytes_in(shards)
    write_shards(read_source(shards), tmp_path / "of-shards", 20_000)
    for path in shards.glob("*.tar"):
        assert (tmp_path / "of-shards" / path.name).read_bytes() == path.read_bytes()


def write_and_die(table: ImageTable, folder: Path) -> None:
    """Write shards in a process that is killed when it reads its 20th image."""
    left, read = [20], shard_writer.read_place

    def read_or_die(place: Any) -> bytes:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return read(place)

    shard_writer.read_place = read_or_die
    write_shards(table, folder, 20_000)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows does not fork")
def test_a_killed_call_is_repeated(data: Path, shards: Path, tmp_path: Path) -> None:
    folder, table = tmp_path / "shards", read_source(data)
    process = get_context("fork").Process(target=write_and_die, args=(table, folder))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    for name, content in bytes_in(folder).items():
        assert not name.startswith("shard-") or content == (shards / name).read_bytes(), "half a shard has its name"
    with refused("data.shards-incomplete"):
        read_source(folder)
    done = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.tar")}
    assert done
    with refused("data.shards-of-others"):
        write_shards(table, folder, 30_000)
    write_shards(table, folder, 20_000)
    assert bytes_in(folder) == bytes_in(shards)
    assert all((folder / name).stat().st_mtime_ns == time for name, time in done.items()), "they were written again"
    before = (folder / "shards.json").stat().st_mtime_ns
    write_shards(table, folder, 20_000)
    assert (folder / "shards.json").stat().st_mtime_ns == before
    with (folder / "shard-00001.tar").open("r+b") as file:
        file.seek(700)
        file.write(b"other")
    (folder / "shard-00002.tar").unlink()
    write_shards(table, folder, 20_000)
    assert bytes_in(folder) == bytes_in(shards)


def test_what_may_not_be_written(data: Path, tmp_path: Path, shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes.txt").touch()
    with (tmp_path / "list.csv").open("w", newline="") as text:
        csv.writer(text).writerows([("path", "label"), (data / "val/red/img1.png", "a"), ("b.png", "b")])
    refusals: list[tuple[Path, Path | str, str]] = [
        (data, tmp_path, "data.folder-not-empty"),
        (data, data / "shards", "verbs.out-in-source"),
        (data / "val", shards, "data.shards-of-others"),
        (tmp_path / "list.csv", tmp_path.parent / "new-shards", "data.path-outside"),
        (data, "memory://photos/shards", "system.path-remote"),
    ]
    for source, place, code in refusals:
        with refused(code):
            vitkit.shard(source, place, size="20kB")
    for size in ("1kB", "9GB", "big"):
        with refused("verbs.option-invalid"):
            vitkit.shard(data, tmp_path / "new", size=size)
    assert not (tmp_path / "new").exists()
    monkeypatch.setattr("vitkit.data.shard_writer.read_place", lambda place: b"a picture that has changed meanwhile")
    with refused("data.image-changed"):
        vitkit.shard(data, tmp_path / "new")
    assert not list((tmp_path / "new").glob("*.tar"))


def test_several_classes_and_labels_of_a_file(tmp_path: Path) -> None:
    for split in ("train", "val"):
        runs.photos(tmp_path / split, images=4)
    table = read_source(runs.several(tmp_path))
    write_shards(table, tmp_path / "shards", 20_000)
    again = read_source(tmp_path / "shards")
    assert again.paths == table.paths
    assert [again.name_of(i) for i in range(len(again))] == [table.name_of(i) for i in range(len(table))]
    assert not any("cls" in sample for sample in members(tmp_path / "shards").values())
    (tmp_path / "labels.csv").write_text("path,label\nred/img1.png,blue\nred/img2.png,-\n")
    vitkit.shard(tmp_path / "train", tmp_path / "corrected", labels=tmp_path / "labels.csv")
    corrected = read_source(tmp_path / "corrected")
    assert corrected.name_of(corrected.paths.index("red/img1.png")) == "blue"


def test_pictures_without_labels(tmp_path: Path) -> None:
    runs.photos(tmp_path / "all", images=3)
    heap = tmp_path / "heap"
    heap.mkdir()
    for i, path in enumerate(sorted((tmp_path / "all").rglob("*.png"))):
        path.rename(heap / f"{i}.png")
    sharding = vitkit.shard(heap, tmp_path / "shards")
    assert sharding.images == 9 and sharding.index.classes == ("unlabelled",)
    with refused("data.class-single"):
        read_source(tmp_path / "shards")
    (tmp_path / "labels.csv").write_text("path,label\n0.png,a\n1.png,b\n")
    with_labels = vitkit.doctor(tmp_path / "shards", labels=tmp_path / "labels.csv")
    assert with_labels.diagnosis.table.counts() == {"a": 1, "b": 1}
    (tmp_path / "shards" / ".git").mkdir()
    (tmp_path / "shards" / "beside.png").write_bytes(b"")
    with_labels = vitkit.doctor(tmp_path / "shards", labels=tmp_path / "labels.csv")
    assert any(line.endswith(": beside.png") for line in with_labels.diagnosis.table.overlooked)


def read_image(table: ImageTable, i: int) -> bytes:
    return table.open(i).read()


def test_threads_and_forked_processes_share_a_folder(shards: Path, data: Path) -> None:
    table = read_source(shards)
    expected = [(data / key).read_bytes() for key in table.paths] * 5
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda i: table.open(i % len(table)).read(), range(len(expected)))) == expected
    with get_context("fork").Pool(2) as pool:
        assert pool.starmap(read_image, [(table, i % len(table)) for i in range(len(expected))]) == expected


def test_a_damaged_image_is_unreadable_and_a_shard_that_is_replaced_is_read_again(copied: Path, shards: Path) -> None:
    table, index = read_source(copied), ShardFolder(copied).index()
    before = table.open(0).read()
    row = index.keys.index("train/red/img5.png")
    path = copied / index.shards[index.shard_of[row]].name
    with path.open("r+b") as file:
        file.seek(index.offsets[row] + index.lengths[row] // 2)
        file.write(b"\0\1\2\3")
    diagnosis = vitkit.doctor(copied).diagnosis
    assert list(diagnosis.unreadable) == ["train/red/img5.png"]
    assert "checksum" in diagnosis.unreadable["train/red/img5.png"]
    for content in (bytes(path.stat().st_size), (shards / path.name).read_bytes()):
        (copied / "new").write_bytes(content)
        (copied / "new").replace(path)
        assert bool(vitkit.doctor(copied).diagnosis.unreadable) == (not any(content))
    assert table.open(0).read() == before


def cut(folder: Path) -> None:
    os.truncate(folder / "shard-00001.tar", (folder / "shard-00001.tar").stat().st_size - 600)


def changed(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """The index, changed."""

    def write(folder: Path) -> None:
        index = json.loads((folder / "shards.json").read_text())
        change(index)
        (folder / "shards.json").write_text(json.dumps(index))

    return write


WRONG: list[Callable[[dict[str, Any]], object]] = [
    lambda index: index.update(version=0),
    lambda index: index.update(images={}),
    lambda index: index.update(classes=["blue", "red", "red"]),
    lambda index: index["images"]["offset"].__setitem__(1, 10**9),
    lambda index: index["images"]["shard"].__setitem__(1, 99),
    lambda index: index["images"]["class"].__setitem__(1, 3),
    lambda index: index["shards"][1].update(name="../../etc/passwd"),
    lambda index: index["shards"][1].update(split="other"),
    lambda index: index["shards"][1].update(sha256="../x"),
    # As if each image had a class twice.
    lambda index: index.update(
        task="multi", images={**index["images"], "class": [[0, 0]] * len(index["images"]["key"])}
    ),
]


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda folder: (folder / "shard-00002.tar").unlink(), "data.shards-incomplete"),
        *((damage, "data.shards-damaged") for damage in (cut, *map(changed, WRONG))),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(copied: Path, damage: Callable[[Path], object], code: str) -> None:
    damage(copied)
    for read in (read_source, lambda place: find_images([str(place)])):  # not as if its pictures were unreadable
        with refused(code):
            read(copied)


def test_images_from_afar_are_read_shard_after_shard() -> None:
    shard_of, labels = [i % 50 for i in range(5000)], [i // 2500 for i in range(5000)]
    sampler = EpochSampler(5000, seed=3, labels=labels, shards=shard_of)
    order = [key[1] for key in sampler]
    assert sorted(order) == list(range(5000)) and [key[1] for key in sampler] == order
    places: dict[int, list[int]] = {}
    for place, image in enumerate(order):
        places.setdefault(shard_of[image], []).append(place)
    # All of a shard while eight others come and go, and neighbours from the whole window.
    assert max(max(own) - min(own) for own in places.values()) < 5000 * 9 / 50
    assert 6 <= len({shard_of[image] for image in order[2000:2100]}) <= 9
    opened = [min(places[number]) for number in range(50)]
    assert sorted(range(50), key=opened.__getitem__) != list(range(50)), "the shards are in their own order"
    sampler.set_epoch(1)
    assert [key[1] for key in sampler] != order


def test_the_order_is_the_same_for_any_ranks_and_workers_and_place(shards: Path) -> None:
    with served(shards) as site:
        table = read_table(site.address)

        def loaded(rank: int, size: int, workers: int, first: int) -> list[torch.Tensor]:
            images = ImageData(
                table, Preprocess(size=(16, 16)), Augment(), batch_size=7, workers=workers, seed=5, process=(rank, size)
            )
            batches = [pixels for pixels, _ in images.train_batches(2, first)]
            images.close()
            return batches

        whole = loaded(0, 1, 0, 0)
        assert sum(map(len, whole)) == 30
        for size, workers in ((1, 2), (3, 0)):
            shares = [loaded(rank, size, workers, 2) for rank in range(size)]
            for number, batch in enumerate(whole[2:]):
                for rank in range(size):
                    share = batch[rank::size]
                    assert torch.equal(shares[rank][number], share if len(share) else batch[:1])


@pytest.fixture
def site(copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr("vitkit.data.remote._WAITS", (0.0,) * 3)
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    with served(copied) as site:
        yield site


def digests(table: ImageTable) -> list[str]:
    return [hashlib.sha256(table.open(i).read()).hexdigest() for i in range(len(table))]


def test_an_image_is_one_request_which_is_repeated_if_it_fails(site: Site, shards: Path) -> None:
    table, expected = read_table(site.address), digests(read_table(shards))
    assert str(table.file(0)).startswith(f"{site.address}/train/")
    assert digests(table) == expected and site.requests.total() == len(table) + 1
    for fault in ("cut", "broken", "whole", "wrong"):
        site.requests.clear()
        site.fault = lambda name, before, fault=fault: fault if name.endswith(".tar") and before % 3 == 0 else None
        assert digests(table) == expected, fault


def test_what_stays_wrong_is_a_row_with_its_reason(site: Site, shards: Path) -> None:
    index = ShardFolder(shards).index()
    lost = [key for key, number in zip(index.keys, index.shard_of, strict=True) if number == 1]
    site.fault = lambda name, before: "wrong" if name == "shard-00001.tar" else None
    diagnosis = vitkit.doctor(site.address).diagnosis
    assert sorted(diagnosis.unreadable) == sorted(lost)
    assert all("gave up after 4 attempts" in reason for reason in diagnosis.unreadable.values())
    assert sorted([*diagnosis.table.paths, *lost]) == sorted(index.keys)


def test_addresses_without_shards(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("data.shards-missing", f"{site.address}/nothing"):
        read_table(f"{site.address}/nothing")
    with refused("data.source-missing"):
        find_images([f"{site.address}/nothing/1.png"])
    site.fault = lambda name, before: "broken"
    with refused("data.shards-unreadable", "4 attempts"):
        read_table(site.address.replace("/shards", "/other"))
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(VitkitError, match=r"gs://.* pip install 'vitkit\[remote\]'"):
        read_table("gs://bucket/shards")


def test_shards_are_fetched_ahead_and_read_from_their_copies(site: Site, shards: Path) -> None:
    site.fault = lambda name, before: "cut" if before == 1 else None  # the first request asks for the size
    storage = ShardFolder(Path(site.address))
    files, index = storage.files(), storage.index()
    order = sorted(range(len(index.keys)), key=lambda row: index.shard_of[row])
    shard_of = [index.shard_of[row] for row in order]
    for row in prefetch_shards(iter(order), files, shard_of, 1):
        address, sha256, _ = files[index.shard_of[row]]
        path = eventually(lambda sha256=sha256: cached_shard(sha256))
        assert Path(path).read_bytes() == (shards / Path(address).name).read_bytes()
    before = site.requests.total()
    assert digests(read_table(site.address)) == digests(read_table(shards))
    assert site.requests.total() == before


def eventually(value: Callable[[], Any]) -> Any:
    for _ in range(1000):
        if (current := value()) is not None:
            return current
        time.sleep(0.01)
    raise AssertionError("it takes longer than ten seconds")


def test_a_copy_with_another_checksum_is_not_kept(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address, sha256, size = ShardFolder(Path(site.address)).files()[0]
    _cache_shard(address, "0" * 64, size)
    assert not list((tmp_path / "cache" / "shards").iterdir())
    _cache_shard(address, sha256, size)
    monkeypatch.setattr("vitkit.data.remote._MAX_CACHE", size + 10)
    _cache_shard(*ShardFolder(Path(site.address)).files()[1])  # the first one makes room
    assert len(list((tmp_path / "cache" / "shards").iterdir())) == 1 and cached_shard(sha256) is None


@pytest.fixture
def bucket() -> Iterator[Any]:
    """A file system in memory, in the place of object storage."""
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    yield memory
    memory.store.clear()


def some_model() -> vitkit.Classifier:
    network = tiny.build(num_classes=3, image_size=(16, 16))
    return vitkit.Classifier(network, ("blue", "green", "red"), Preprocess(size=(16, 16)))


def test_what_is_not_written_to_an_address(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scratch, model = vitkit.Recipe(model="vit_micro_patch4_16", weights="none", epochs=1), some_model()
    with refused("system.path-remote"):
        vitkit.predict(model, data, out="memory://photos/rows.csv")
    with refused("system.path-remote"):
        vitkit.train(data, scratch, out="memory://photos/run")
    with refused("system.path-remote"):
        vitkit.evaluate(model, data, out="memory://photos/figures")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.accept
def test_object_storage(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a server on this machine that speaks S3."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    settings = {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "DEFAULT_REGION": "us-east-1"}
    for name, value in {**settings, "ENDPOINT_URL": "http://{}:{}".format(*server.get_host_and_port())}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    _filesystem_of.cache_clear()
    try:
        bucket = fsspec.filesystem("s3")
        bucket.mkdir("photos")
        bucket.put(f"{shards}/", "photos/shards/", recursive=True)
        assert digests(read_table("s3://photos/shards")) == digests(read_table(shards))
        assert len(vitkit.predict(some_model(), "s3://photos/shards")) == 42
    finally:
        server.stop()
        _filesystem_of.cache_clear()
