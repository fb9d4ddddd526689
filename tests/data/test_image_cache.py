"""Kept pictures are those that decoding gives, wherever they are kept, and a changed photograph is seen."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from photos import fingerprint, folder, noise, save, smooth
from vitkit.data import (
    Augment,
    DiskCache,
    ImageData,
    ImageTable,
    MemoryCache,
    PictureCache,
    Preprocess,
    TrainingImages,
    choose_cache,
    estimate_bytes,
    open_cache,
    read_source,
    split,
)
from vitkit.data import image_cache as keeping
from vitkit.data import loading as datamodule
from vitkit.data.decode import decode

PREPROCESS = Preprocess(size=(12, 16))
CROPPED = Augment(crop_scale=(0.5, 1.0), hflip=True, color_jitter=0.2)
CACHES = ("none", "ram", "disk")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def table(tmp_path: Path) -> ImageTable:
    root = folder(tmp_path / "photos", {"a": 6, "b": 5})
    save(smooth(300, 200), root / "a" / "large.jpg")
    return split(read_source(root), (0.6, 0.3, 0.1), 0)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """The files that are decoded in this process, one entry each time."""
    files: list[Path] = []

    def noting(path: Path, short_side: int | None = None) -> Image.Image:
        files.append(path)
        return decode(path, short_side)

    monkeypatch.setattr(datamodule, "decode", noting)
    yield files


def data_of(table: ImageTable, cache: str, augment: Augment = CROPPED, workers: int = 0) -> ImageData:
    return ImageData(table, PREPROCESS, augment, batch_size=3, workers=workers, seed=5, cache=cache)


def batches(data: ImageData, epochs: int = 2) -> list[Tensor]:
    found = []
    for epoch in range(epochs):
        found += [images for images, _ in data.train_batches(epoch)]
        found += [images for images, _ in data.val_batches()]
    return found


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_pixels_are_the_same_to_the_bit_whatever_keeps_them(table: ImageTable, cache: Path) -> None:
    before = fingerprint(table.root)
    for augment in (Augment(hflip=True, rotate=5), CROPPED):
        expected = batches(data_of(table, "none", augment))
        for kind in ("ram", "disk", "disk", "auto"):  # the second time from what the first left
            assert same(batches(data_of(table, kind, augment)), expected)
    assert fingerprint(table.root) == before
    shutil.rmtree(cache)
    cache.write_text("a file where the folder should be")
    assert same(batches(data_of(table, "disk")), expected)


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_workers_share_what_is_kept_and_change_nothing(kind: str, table: ImageTable, cache: Path) -> None:
    expected = batches(data_of(table, "none"))
    assert same(batches(data_of(table, kind, workers=2)), expected)


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_nothing_is_decoded_twice(kind: str, table: ImageTable, cache: Path, decoded: list[Path]) -> None:
    data = data_of(table, kind)
    batches(data, epochs=4)
    assert len(decoded) == len(set(decoded))
    if kind == "disk":
        before = len(decoded)
        batches(data_of(table, kind), epochs=2)
        assert not set(decoded[before:]) & set(decoded[:before]), "a later run finds what an earlier one left"


def test_a_photograph_that_changed_since_an_earlier_run_is_seen(table: ImageTable, cache: Path) -> None:
    images = TrainingImages(table, PREPROCESS, CROPPED, 1, open_cache("disk", len(table), 2**20, "rule"))
    plain = TrainingImages(table, PREPROCESS, CROPPED, 1)
    file = table.file(0)
    for seed in (77, 78):
        save(noise(40, 30, seed), file)
        then = time.time() - 3600 - seed
        os.utime(file, (then, then))
        for _ in range(2):
            assert torch.equal(images[0, 0][0], plain[0, 0][0])


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_without_room_pictures_are_decoded_again(
    kind: str, table: ImageTable, cache: Path, decoded: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = 3 * 20 * 14
    pictures: PictureCache = (
        MemoryCache(len(table), 2 * first) if kind == "ram" else DiskCache("rule", 2 * (first + 12))
    )
    images = TrainingImages(table, PREPROCESS, Augment(crop_scale=(0.2, 1)), 0, pictures)
    small = [i for i in range(len(table)) if not table.paths[i].endswith(".jpg")]
    for _ in range(3):
        for i in small:
            images[0, i]
    assert len(decoded) == len(small) + 2 * (len(small) - 2)
    if kind == "disk":
        kept = [path for path in cache.rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in kept) <= 2 * (first + 12)


def test_a_damaged_file_of_the_cache_is_made_anew(tmp_path: Path, cache: Path) -> None:
    file, pictures = save(noise(), tmp_path / "a.png"), DiskCache("rule", 2**20)
    expected = pictures.picture(0, file, lambda: decode(file)).tobytes()
    (kept,) = [path for path in cache.rglob("*") if path.is_file()]
    flipped = bytearray(kept.read_bytes())
    flipped[-5] ^= 1
    for damaged in (kept.read_bytes()[:-7], bytes(flipped)):
        kept.write_bytes(damaged)
        for _ in range(2):
            assert pictures.picture(0, file, lambda: decode(file)).tobytes() == expected
        assert pictures.picture(0, file, lambda: noise(seed=9)).tobytes() == expected


def test_rules_do_not_mix(tmp_path: Path, cache: Path) -> None:
    file = save(noise(), tmp_path / "a.png")
    for rule, seed, expected in (("one", 1, 1), ("two", 2, 2), ("one", 3, 1)):
        picture = DiskCache(rule, 2**20).picture(0, file, lambda seed=seed: noise(seed=seed))
        assert picture.tobytes() == noise(seed=expected).tobytes()


def test_auto_takes_memory_that_can_be_shared_then_disk_then_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "available_memory", lambda: 4000)
    monkeypatch.setattr(keeping, "_free_disk", lambda: 8000)
    needs = {1000: "ram", 1001: "disk", 2000: "disk", 2001: "none"}
    assert {need: choose_cache("auto", need, workers=0) for need in needs} == needs
    assert choose_cache("auto", 600, workers=0, processes=2) == "disk"
    assert [choose_cache(kind, 10**9, workers=0) for kind in CACHES] == list(CACHES)
    monkeypatch.setattr(keeping.sys, "platform", "darwin")
    assert [choose_cache(kind, 100, workers=2) for kind in ("auto", "ram")] == ["disk", "disk"]
    assert [choose_cache(kind, 100, workers=0) for kind in ("auto", "ram")] == ["ram", "ram"]


def test_the_bytes_of_pictures_are_told_from_their_headers(tmp_path: Path) -> None:
    files = [save(noise(40, 20, i), tmp_path / f"{i}.png") for i in range(5)]
    (tmp_path / "0.png").write_bytes(b"")
    assert estimate_bytes(files, None) == estimate_bytes(files, 100) == 5 * 3 * 40 * 20
    assert estimate_bytes(files, 10) == 5 * 3 * 20 * 10
    assert estimate_bytes(files, None, (7, 9)) == 5 * 3 * 7 * 9


def test_what_was_not_used_for_longest_makes_room(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "_free_disk", lambda: 600)  # of which the cache takes half
    for age in range(4):
        place = cache / "pictures-1-x" / "ab" / str(age)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(bytes(100))
        os.utime(place, (1000 - age, 1000 - age))
    keeping._make_room(100)
    assert sorted(path.name for path in place.parent.iterdir()) == ["0", "1"]
