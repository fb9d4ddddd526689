"""What a search for images passes over is told: folders that cannot be read, hidden ones, names that name nothing."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from photos import noise, save
from refusals import refused
from vitkit.data import SearchLog, examine, find_images, read_source
from vitkit.errors import VitkitError

Closing = Callable[..., None]


@pytest.fixture
def close(monkeypatch: pytest.MonkeyPatch) -> Closing:
    """`close(folder)` makes it one that cannot be listed, for the superuser too."""
    closed: set[str] = set()
    scandir = os.scandir

    def refusing(path: Any = ".") -> Any:
        if os.path.realpath(path) in closed:
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    return lambda *folders: closed.update(os.path.realpath(own) for own in folders)


def folder(root: Path, images: dict[str, int]) -> Path:
    for name, count in images.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            save(noise(20, 14, sum(map(ord, name)) * 10 + i), root / name / f"{i}.png")
    return root


@pytest.fixture
def album(tmp_path: Path) -> Path:
    return folder(tmp_path / "album", {"cat": 3, "dog": 3, "cat/deep": 2})


def test_folders_that_cannot_be_read_are_told_or_refused_by_their_reason(album: Path, close: Closing) -> None:
    close(album / "cat" / "deep")
    overlooked = SearchLog()
    assert len(find_images([str(album)], overlooked)) == 6
    (line,) = overlooked.lines()
    assert str(album / "cat/deep") in line and "permission denied" in line
    told = [str(finding) for finding in examine(read_source(album)).findings]
    assert any(line.startswith("warning") and "cat/deep (permission denied)" in line for line in told)
    root = folder(album / "in splits", {"train/a": 2, "train/b": 2, "val/a": 2, "val/b": 2})
    close(root / "val")
    assert any("val (permission denied)" in line for line in read_source(root).overlooked)
    close(album)
    for call in (read_source, lambda path: find_images([str(path)])):
        with refused("data.images-missing", "permission denied"):
            call(album)


def test_hidden_folders_with_images_are_told_and_others_are_not(album: Path) -> None:
    folder(album, {".bird": 2, "cat/.more": 1})
    (album / ".git").mkdir()
    (album / ".git" / "config").touch()
    overlooked = SearchLog()
    assert len(find_images([str(album)], overlooked)) == 8
    assert sorted(Path(own).name for own in overlooked.hidden) == [".bird", ".more"]
    table = read_source(album)
    assert table.classes == ("cat", "dog")
    (line,) = table.overlooked
    assert ".bird, cat/.more" in line and str(album) not in line


# Thumbnails, deleted files and snapshots that systems, file servers and programs put among photographs.
SYSTEM_FOLDERS = (
    *("@eaDir", "#Recycle", "#snapshot", "$RECYCLE.BIN", "System Volume Information", "lost+found", "__MACOSX"),
    *(".thumbnails", ".Trash-1000", "~archive", "found.001", "LOST.DIR", "Photos Library.photoslibrary"),
)


def test_folders_of_systems_and_file_servers_are_left_out_and_told(tmp_path: Path) -> None:
    people = ["#1", "$5", "thumbnails", "trash", "snapshots", "a@b", "Originals"]  # may name a class so
    assert sorted(read_source(folder(tmp_path / "people", dict.fromkeys(people, 1))).classes) == sorted(people)
    root = folder(tmp_path / "photos", {"cat": 3, "dog": 3})
    for name in SYSTEM_FOLDERS:
        folder(root, {name: 1, f"cat/{name}": 1, f"dog/deep/{name}/1.png": 1})
    archives = [Path(shutil.make_archive(str(root), kind, root)) for kind in ("zip", "tar")]
    for data in (root, *archives):
        table = read_source(data)
        assert table.counts() == {"cat": 3, "dog": 3}, data
        assert table.ignored == {f"folder {name}": 3 for name in SYSTEM_FOLDERS}
        (line,) = table.overlooked
        assert f"{3 * len(SYSTEM_FOLDERS)} hidden or system folders" in line
        overlooked = SearchLog()
        assert len(find_images([str(data)], overlooked)) == 6
        assert len(overlooked.hidden) == 3 * len(SYSTEM_FOLDERS)


def test_the_empty_name_is_not_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder(tmp_path, {"cat": 2, "dog": 2}))
    for call in (lambda: find_images([""]), lambda: read_source("")):
        with refused("data.source-empty"):
            call()
    assert len(find_images(["."])) == 4


@pytest.mark.parametrize("row", [0, 11, 29])
@pytest.mark.parametrize("place", ["path", "label", "end", "twice"])
def test_a_stray_quote_in_a_csv_never_loses_a_row(tmp_path: Path, row: int, place: str) -> None:
    rows = [f"{name}{i}.png,{name}" for i in range(15) for name in ("cat", "dog")]
    path, label = rows[row].split(",")
    spoiled = {"label": f'{path},"{label}', "end": f'{path},{label}"'}
    rows[row] = spoiled.get(place, f'"{path},{label}')
    if place == "twice" and row + 5 < len(rows):
        path, label = rows[row + 5].split(",")
        rows[row + 5] = f'{path}",{label}'
    file = tmp_path / "all.csv"
    file.write_text("\n".join(["path,label", *rows]) + "\n")
    try:
        assert len(read_source(file)) == 30
    except VitkitError as error:
        assert error.code in ("data.csv-quote", "data.csv-damaged") and f"line {row + 2}" in str(error)
    else:
        assert place == "end"
    file.write_text('path,label,note\na.png,cat,"a line,\nand another, with commas"\n"b\nc.png",dog,\n')
    assert read_source(file).paths == ("a.png", "b\nc.png"), "a note of several lines is no stray quote"
