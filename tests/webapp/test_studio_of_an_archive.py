"""The studio shows the photographs in an archive or in shards, and writes what is said of them beside it."""

from __future__ import annotations

import csv
import io
import shutil
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from PIL import Image

import runs
from vitkit import shard
from vitkit.data import read_source, split, split_to_dict
from vitkit.errors import VitkitError
from vitkit.evaluation import LabelError, write_label_errors
from vitkit.system import write_json
from vitkit.webapp import Workspace, create_app, decide, file_of, open_workspace, suspects_of
from vitkit.webapp.results import stamp_of


@pytest.fixture(params=["photos.zip", "photos.shards"])
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Workspace:
    monkeypatch.chdir(tmp_path)
    data, packed = runs.photos(tmp_path / "photos", images=4), tmp_path / request.param
    if packed.suffix == ".zip":
        shutil.make_archive(str(data), "zip", data)
    else:
        shard(data, packed)
    shutil.rmtree(data)
    return open_workspace(packed)


def content_of(place: Path) -> list[bytes]:
    return [file.read_bytes() for file in ([place] if place.is_file() else sorted(place.iterdir()))]


def test_photographs_are_shown_and_labels_lie_beside_the_archive(place: Workspace, tmp_path: Path) -> None:
    before = content_of(place.photographs)
    client = TestClient(create_app(place))
    found = client.get("/api/data/all").json()
    assert len(found["paths"]) == 12 and [own["count"] for own in found["classes"]] == [4, 4, 4]
    for kind in ("thumbnail", "picture"):
        answer = client.get(f"/api/data/{kind}/{found['version']}/0")
        assert answer.headers["content-type"] == "image/jpeg"
        assert Image.open(io.BytesIO(answer.content)).size == (16, 16)
    answer = client.post("/api/data/labels", json={"version": found["version"], "images": [0], "label": "violet"})
    assert answer.status_code == 200, answer.text
    assert place.labels == tmp_path / "labels" / f"{place.photographs.name}.csv"
    rows = list(csv.DictReader(io.StringIO(place.labels.read_text(encoding="utf-8"))))
    assert [(row["path"], row["label"]) for row in rows] == [("blue/img1.png", "violet")]
    assert content_of(place.photographs) == before
    assert client.get("/api/data/all").json()["version"] == found["version"]


def test_nothing_is_written_into_an_archive(place: Workspace) -> None:
    with pytest.raises(VitkitError, match="among the photographs"):
        open_workspace(place.photographs, labels=place.photographs / "labels.csv")


def test_doubtful_labels_of_a_run_of_an_archive_are_judged(place: Workspace) -> None:
    table = read_source(place.photographs)
    run = place.runs / "one"
    run.mkdir(parents=True)
    (run / "recipe.toml").write_text("")
    write_json(run / "split.json", split_to_dict(split(table, (0.5, 0.25, 0.25), 0)))
    write_label_errors(run / "label_errors.csv", [LabelError("red/img1.png", "red", "blue", 0.9, 0.25)])
    assert open_workspace(run).photographs == place.photographs
    assert str(file_of(run, "red/img1.png")) == f"{place.photographs}/red/img1.png"
    assert suspects_of(place, run)["why_not"] == ""
    decide(place, run, stamp_of(run / "label_errors.csv"), [0], "relabel")
    assert [(own.path, own.label) for own in place.said.read().edits] == [("red/img1.png", "blue")]


def test_an_archive_of_pictures_alone_has_no_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = runs.photos(tmp_path / "photos", images=2) / "red"
    packed = shutil.make_archive(str(tmp_path / "flat"), "tar", data)
    found = TestClient(create_app(open_workspace(packed))).get("/api/data/all").json()
    assert found["paths"] == ["img1.png", "img2.png"] and found["classes"] == []
