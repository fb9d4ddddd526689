"""How a studio is started: what it says, where it listens, and what it refuses."""

import asyncio
import csv
import io
import json
import shutil
import socket
import webbrowser
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi.testclient import TestClient
from PIL import Image

import runs
import vitkit
from hearing import heard
from refusals import refused
from vitkit import shard
from vitkit.data import read_source, split, split_to_dict
from vitkit.errors import VitkitError
from vitkit.evaluation import LabelError, write_label_errors
from vitkit.system import write_json
from vitkit.webapp import Workspace, create_app, decide, file_of, open_workspace, suspects_of
from vitkit.webapp import studio as module
from vitkit.webapp.results import stamp_of


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "photos").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "photos"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would be served: application, socket's address, rules of the guard, link to open."""
    seen: list[Any] = []
    monkeypatch.setattr(
        module, "_serve", lambda own, listener, *rest: seen.append((own, listener.getsockname()[:2], *rest))
    )
    return seen


def test_it_says_where_it_is_and_where_it_keeps_what(photos: Path, started: list[Any]) -> None:
    lines: list[str] = []
    with heard(lines.append):
        vitkit.studio(photos)
    ((_, (host, port), rules, link),) = started
    workspace = open_workspace(photos)
    assert workspace.photographs == photos.resolve()
    assert (workspace.runs, workspace.labels) == (Path.cwd() / "runs", Path.cwd() / "labels" / "photos.csv")
    assert (host, rules.token, link) == ("127.0.0.1", None, f"http://127.0.0.1:{port}/")
    assert link in lines[0]
    assert all(str(own) in "\n".join(lines) for own in (photos, workspace.labels, workspace.runs))
    assert list(photos.iterdir()) == list(Path.cwd().iterdir()) == []


def test_a_port_that_is_taken_is_passed_over_and_other_machines_need_the_token_of_the_link(
    photos: Path, started: list[Any]
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "STUDIO_PORT", taken)
            vitkit.studio(photos, show=False)
        assert started[0][1][1] != taken
        assert started[0][3] is None  # nothing is opened
        with refused("webapp.port-taken", str(taken)):
            vitkit.studio(photos, port=taken)
    for _ in range(2):
        vitkit.studio(photos, host="0.0.0.0", port=0)
    (first, second), link = (own[2].token for own in started[1:]), started[1][3]
    assert len(first) >= 32
    assert first != second
    assert link.endswith(f"/?token={first}")


def test_what_a_studio_cannot_be_started_with_is_refused(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "link").symlink_to(photos)
    for source, places, code in (
        (tmp_path / "a.txt", {}, "webapp.folder-invalid"),
        (tmp_path / "none", {}, "webapp.folder-missing"),
        (photos, {"labels": photos / "own.csv"}, "webapp.folder-inside-photographs"),
        (photos, {"runs": tmp_path / "link" / "runs"}, "webapp.folder-inside-photographs"),
    ):
        with refused(code):
            open_workspace(source, **places)
    with refused("webapp.host-invalid"):
        vitkit.studio(photos, host="no such host.invalid")
    monkeypatch.chdir(photos)
    with refused("webapp.folder-inside-photographs"):
        open_workspace(".")


def test_the_page_opens_by_itself_and_answers(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    answers: list[bytes] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setenv("DISPLAY", ":0")

    async def ask_and_end(self: uvicorn.Server) -> None:
        host, port = self.servers[0].sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(10):
            answers.append(await reader.readline())
        writer.close()

    monkeypatch.setattr(uvicorn.Server, "main_loop", ask_and_end)
    vitkit.studio(photos, port=0)
    assert opened[0].startswith("http://127.0.0.1:")
    assert answers == [b"HTTP/1.1 200 OK\r\n"]


def test_runs_are_named_in_one_folder_and_a_damaged_one_is_refused(photos: Path) -> None:
    run = Path("runs") / "one"
    for folder in (run, Path("other")):
        folder.mkdir(parents=True)
        (folder / "recipe.toml").write_text("")
    own = open_workspace(photos)
    assert own.run_names() == ["one"]
    assert own.run_folder("one") == Path.cwd() / "runs" / "one"
    for name in ("../other", "..", ".", "", "/etc", "one/../one"):
        with refused("webapp.run-unknown"):
            own.run_folder(name)
    told = {"data": "x", "root": str(photos), "hash": "0c3ac8b1f5", "classes": [], "splits": {}}  # of another content
    for content in (json.dumps(told), "[1]"):
        (run / "split.json").write_text(content)
        with pytest.raises(VitkitError, match="damaged"):
            open_workspace(run)


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
    assert [(own.path, own.label) for own in place.label_file.read().edits] == [("red/img1.png", "blue")]
