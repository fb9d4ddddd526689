"""A zip of class folders, and a folder of shards of it, give in every command what the folder gives, and so does a
source that is no file at all."""

import csv
import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runs
from once import once
from vitkit import shard
from vitkit.data import Edit, ImageTable, LayoutName, SourceKind, add_edits, images_of_run, move_run, sources, table_of
from vitkit.training import train

PACKED = ("data.zip", "shards")


@pytest.fixture(scope="module")
def place() -> Path:
    """A folder with photographs, the zip and the shards of them, and a run of each."""

    def make(root: Path) -> None:
        data = runs.photos(root / "data")
        shutil.make_archive(str(data), "zip", data)
        shard(data, root / "shards", size="20kB")
        for name in ("data", *PACKED):
            train(runs.quick(root / name, epochs=1), root / f"run-{name}")

    return once("archives", make)


def stored(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", PACKED)
def test_training_gives_the_same_weights_record_and_split(place: Path, name: str) -> None:
    folder, packed = place / "run-data", place / f"run-{name}"
    for file in ("model.safetensors", "pictures.npz"):
        assert (folder / file).read_bytes() == (packed / file).read_bytes(), file
    splits = [stored(run / "split.json") for run in (folder, packed)]
    assert all(splits[1][field] == splits[0][field] for field in ("hash", "contents", "splits"))
    assert splits[1]["root"] == str(place / name)
    figures = [stored(run / "evaluation.json") for run in (folder, packed)]
    assert figures[0]["accuracy"] == figures[1]["accuracy"]


def test_workers_and_caches_read_an_archive(place: Path, tmp_path: Path) -> None:
    run = train(runs.quick(place / "shards", cache="disk", workers=1, epochs=1), tmp_path / "run")
    runs.assert_same_weights(run, place / "run-data")


def test_eval_and_doctor_tell_what_they_do_of_the_folder(vitkit: Any, place: Path, tmp_path: Path) -> None:
    for name in ("data", *PACKED):
        outcome = vitkit("eval", place / f"run-{name}", place / name, "--out", tmp_path / f"of-{name}")
        assert outcome.code == 0, outcome.err
    figures = [stored(tmp_path / f"of-{name}" / "evaluation.json") for name in ("data", *PACKED)]
    for packed in figures[1:]:
        assert (packed["accuracy"], packed["seen"]) == (figures[0]["accuracy"], figures[0]["seen"])
    told = [vitkit("doctor", place / name, "--json") for name in ("data", *PACKED)]
    assert [own.code for own in told] == [0, 0, 0]
    found = [json.loads(own.out) for own in told]
    for own in found:
        for name in ("root", "data", "name", "layout"):
            own.pop(name, None)
    assert found[0] == found[1] == found[2]


def predictions(outcome: Any, root: Path) -> list[tuple[str, str, str]]:
    assert outcome.code == 0, outcome.err
    rows = csv.DictReader(io.StringIO(outcome.out))
    return [(row["path"].removeprefix(f"{root}/"), row["label"], row["confidence"]) for row in rows]


def test_predict_embed_and_explain_read_an_archive(vitkit: Any, place: Path, tmp_path: Path) -> None:
    found = [
        predictions(vitkit("predict", place / "run-data", place / name), place / name) for name in ("data", *PACKED)
    ]
    assert found[0] == found[1] == found[2] and len(found[0]) == 36
    for name in PACKED:
        one = place / name / "red" / "img3.png"
        assert predictions(vitkit("predict", place / "run-data", one), place / name)[0] in found[0]
    for name in ("data", *PACKED):
        outcome = vitkit("embed", place / "run-data", place / name, "--out", tmp_path / f"{name}.npz")
        assert outcome.code == 0, outcome.err
    arrays = [np.load(tmp_path / f"{name}.npz")["features"] for name in ("data", *PACKED)]
    assert np.array_equal(arrays[0], arrays[1]) and np.array_equal(arrays[0], arrays[2])
    for name in PACKED:
        member = place / name / "red" / "img1.png"
        assert vitkit("explain", place / "run-data", member, "--out", tmp_path / name).code == 0
        assert (tmp_path / name / "index.html").is_file()


def test_a_label_file_names_images_in_an_archive(vitkit: Any, place: Path, tmp_path: Path) -> None:
    for name in PACKED:
        labels = tmp_path / f"{name}.csv"
        absolute = str(place / name / "blue" / "img2.png")
        add_edits(labels, [Edit("red/img1.png", "blue", "red"), Edit(absolute, "", "blue")])
        before = content_of(place / name)
        classes = json.loads(vitkit("doctor", place / name, "--labels", labels, "--json").out)["classes"]
        assert classes == {"blue": 12, "green": 12, "red": 11}
        if name == PACKED[0]:
            run = train(runs.quick(place / name, labels=str(labels), epochs=1), tmp_path / "run")
            assert (run / "labels.csv").is_file() and stored(run / "split.json")["splits"]
        assert content_of(place / name) == before


def content_of(place: Path) -> list[bytes]:
    return [file.read_bytes() for file in ([place] if place.is_file() else sorted(place.iterdir()))]


def test_a_run_finds_its_images_in_an_archive_and_out_of_it(place: Path, tmp_path: Path) -> None:
    run = runs.copy_of(place / "run-data", tmp_path / "run")
    there = images_of_run(run / "split.json", place / "data.zip")
    assert there.storage is not None and there.open(0).read().startswith(b"\x89PNG")
    renamed = tmp_path / "renamed"
    (renamed / "x").mkdir(parents=True)
    for i, file in enumerate(sorted((place / "data").rglob("*.png"))):
        shutil.copy(file, renamed / "x" / f"{i}.png")
    packed = Path(shutil.make_archive(str(tmp_path / "other"), "zip", renamed))
    move_run(run / "split.json", packed)  # by content, as other names are in it
    moved = images_of_run(run / "split.json")
    assert moved.root == packed and all(path.startswith("x/") for path in moved.paths)
    move_run(run / "split.json", place / "data")
    assert images_of_run(run / "split.json").storage is None
    move_run(run / "split.json", place / "shards")
    assert images_of_run(run / "split.json").open(0).read().startswith(b"\x89PNG")


@cache
def held(file: Path) -> dict[str, bytes]:
    """Pictures that are nowhere on disk."""
    data = runs.photos(file.with_suffix(""))
    found = {path.relative_to(data).as_posix(): path.read_bytes() for path in sorted(data.rglob("*.png"))}
    shutil.rmtree(data)
    return found


@dataclass(frozen=True)
class Dictionary:
    """A storage of bytes in memory."""

    file: Path

    @property
    def name(self) -> str:
        return "memory"

    def keys(self) -> Any:
        return held(self.file).keys()

    def open(self, key: str) -> io.BytesIO:
        return io.BytesIO(held(self.file)[key])

    def stamp(self, key: str) -> bytes | None:
        return held(self.file)[key]


def read_dictionary(name: str, path: Path, _: LayoutName) -> ImageTable:
    return table_of(name, path, [(key, key.split("/")[0], None) for key in held(path)], Dictionary(path))


@pytest.fixture
def kind() -> Iterator[None]:
    sources.register(SourceKind("bytes", "bytes", read_dictionary, (".bytes",), storage=Dictionary))
    yield
    del sources.SOURCE_KINDS["bytes"]


@pytest.mark.usefixtures("kind")
def test_a_source_is_a_class_and_a_row(vitkit: Any, place: Path, tmp_path: Path) -> None:
    data = tmp_path / "pictures.bytes"
    data.touch()
    run = train(runs.quick(data, epochs=1), tmp_path / "run")
    assert (run / "model.safetensors").read_bytes() == (place / "run-data" / "model.safetensors").read_bytes()
    assert (run / "pictures.npz").read_bytes() == (place / "run-data" / "pictures.npz").read_bytes()
    assert vitkit("eval", run).code == 0
