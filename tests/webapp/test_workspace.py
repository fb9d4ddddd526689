"""Where a studio keeps its own, and that it is never among the photographs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

import runs
from vitkit.errors import VitkitError
from vitkit.webapp import create_app, open_workspace


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which the current one is beside."""
    (tmp_path / "holiday").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "holiday"


def make_run(folder: Path, root: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text("")
    content = {"classes": [], "splits": {}}
    digest = "0c3ac8b1f5d7b8bd2b7a1c9a9b1c"  # of another content: told as damaged
    (folder / "split.json").write_text(json.dumps({"data": "x", "root": str(root), "hash": digest, **content}))
    return folder


def test_a_folder_is_only_read_and_the_studios_own_lies_in_the_current_folder(photos: Path) -> None:
    own = open_workspace(photos)
    assert own.photographs == photos.resolve()
    assert own.runs == Path.cwd() / "runs"
    assert own.labels == Path.cwd() / "labels" / "holiday.csv"
    assert list(photos.iterdir()) == []
    assert list(Path.cwd().iterdir()) == []  # nothing is made before there is something to keep


@pytest.mark.parametrize("flag", ["runs", "labels"])
def test_nothing_of_the_studios_lies_among_the_photographs(photos: Path, flag: str) -> None:
    inside = photos / ("own.csv" if flag == "labels" else "own")
    with pytest.raises(VitkitError, match=f"--{flag} .* among the photographs"):
        open_workspace(photos, **{flag: inside})


def test_a_link_into_the_photographs_is_followed(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(photos)
    with pytest.raises(VitkitError, match="among the photographs"):
        open_workspace(photos, runs=tmp_path / "link" / "runs")


def test_the_photographs_as_the_current_folder(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos)
    with pytest.raises(VitkitError, match="start the studio in another folder"):
        open_workspace(".")


def test_what_is_no_folder(photos: Path) -> None:
    (photos / "a.txt").write_text("")
    for source, told in ((photos / "a.txt", "is a file"), (photos / "none", "no such folder")):
        with pytest.raises(VitkitError, match=told):
            open_workspace(source)


def test_a_damaged_run_is_refused(photos: Path) -> None:
    run = make_run(Path("runs") / "one", photos)
    with pytest.raises(VitkitError, match="damaged"):
        open_workspace(run)
    (run / "split.json").write_text("[1]")
    with pytest.raises(VitkitError, match=r"split\.json is damaged"):
        open_workspace(run)


def test_the_names_of_runs_lead_nowhere_else(photos: Path) -> None:
    make_run(Path("runs") / "one", photos)
    make_run(Path("other"), photos)
    own = open_workspace(photos)
    assert own.run_names() == ["one"]
    assert own.run_folder("one") == Path.cwd() / "runs" / "one"
    for name in ("../other", "..", ".", "", "/etc", "one/..", "one/../one"):
        with pytest.raises(VitkitError, match="there is no run"):
            own.run_folder(name)


def test_a_folder_that_was_deleted_is_named_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    photographs = runs.photos(tmp_path / "photos", images=2)
    here.mkdir()
    monkeypatch.chdir(here)
    client = TestClient(create_app(open_workspace(photographs)))
    version = client.get("/api/data/all").json()["version"]
    body = {"version": version, "images": [0], "label": "x"}
    shutil.rmtree(photographs)
    for answer in (
        client.get("/api/data/all"),
        client.post("/api/data/labels", json=body),
        client.post("/api/train/start", json={"weights": "none", "method": "scratch"}),
    ):
        expected = f"{photographs} is no longer there: restore it, or open other photographs"
        assert (answer.status_code, answer.json()["error"]) == (400, expected)
    here.rmdir()
    answer = client.get("/api/train/offers")
    assert answer.status_code == 410 and "in which the studio was started is gone" in answer.json()["error"]
