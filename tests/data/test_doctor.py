"""What cannot be read is found before training, and only that is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from photos import fingerprint, folder
from vitkit.data.doctor import drop_unreadable
from vitkit.data.source import read_source
from vitkit.errors import VitkitError


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return folder(tmp_path, {"cat": 4, "dog": 3, "owl": 2})


def spoil(path: Path, content: bytes = b"<html>") -> str:
    path.write_bytes(content)
    return f"{path.parent.name}/{path.name}"


def test_a_healthy_folder_stays_as_it_is(photos: Path) -> None:
    table = read_source(photos)
    assert drop_unreadable(table) == (table, {})


def test_bad_files_are_left_out_with_their_reasons(photos: Path) -> None:
    html, empty = spoil(photos / "cat" / "cat_1.png"), spoil(photos / "dog" / "dog_0.png", b"")
    half = photos / "owl" / "owl_1.png"
    spoil(half, half.read_bytes()[: half.stat().st_size // 2])
    before = read_source(photos)
    table, unreadable = drop_unreadable(before)
    assert unreadable == {html: "not an image", empty: "empty file", "owl/owl_1.png": "truncated"}
    assert len(table) + len(unreadable) == len(before)
    assert set(table.paths) | set(unreadable) == set(before.paths)
    assert table.counts() == {"cat": 3, "dog": 2, "owl": 1}


def test_a_class_with_no_readable_image_is_no_class(photos: Path) -> None:
    for i in range(3):
        spoil(photos / "dog" / f"dog_{i}.png")
    table, unreadable = drop_unreadable(read_source(photos))
    assert table.classes == ("cat", "owl")
    assert [table.classes[label] for label in table.labels] == [path.split("/")[0] for path in table.paths]
    assert len(unreadable) == 3


def test_fewer_than_two_classes_left_is_an_error_that_names_a_file(photos: Path) -> None:
    for name, count in {"dog": 3, "owl": 2}.items():
        for i in range(count):
            spoil(photos / name / f"{name}_{i}.png")
    with pytest.raises(VitkitError, match=r"5 of 9 images are unreadable.*dog/dog_0.png: not an image"):
        drop_unreadable(read_source(photos))


def test_a_table_of_one_class_is_an_error_even_when_all_is_readable(photos: Path) -> None:
    table = read_source(photos).take([0, 1])  # as `--limit 1` leaves it
    with pytest.raises(VitkitError):
        drop_unreadable(table)


def test_progress_is_told_after_every_image(photos: Path) -> None:
    told: list[tuple[int, int]] = []
    drop_unreadable(read_source(photos), lambda done, total: told.append((done, total)))
    assert told == [(done, 9) for done in range(1, 10)]


def test_splits_travel_with_their_images(tmp_path: Path) -> None:
    for name in ("train", "val"):
        folder(tmp_path / name, {"cat": 2, "dog": 2})
    spoil(tmp_path / "train" / "cat" / "cat_0.png")
    table, _ = drop_unreadable(read_source(tmp_path))
    assert all(path.startswith(own) for path, own in zip(table.paths, table.splits, strict=True))


def test_the_check_writes_nothing_beside_the_photographs(photos: Path) -> None:
    spoil(photos / "cat" / "cat_1.png")
    before = fingerprint(photos)
    drop_unreadable(read_source(photos))
    assert fingerprint(photos) == before
