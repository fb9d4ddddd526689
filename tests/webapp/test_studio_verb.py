"""How a studio is started: what it says, where it listens, and what it refuses."""

import asyncio
import csv
import importlib.util
import io
import json
import shutil
import socket
import webbrowser
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

import runs
import vitkit
from hearing import heard
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
    assert (host, rules.token, link) == ("127.0.0.1", None, f"http://127.0.0.1:{port}/")
    assert link in lines[0]
    assert all(str(own) in "\n".join(lines) for own in (photos, workspace.labels, workspace.runs))
    assert list(photos.iterdir()) == list(Path.cwd().iterdir()) == []


def test_short_answers_are_sent_at_once() -> None:
    """Asyncio turns Nagle's algorithm off where a socket names TCP; each answer would take 40 ms more."""
    with module._listen("127.0.0.1", None) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_a_port_that_is_taken_is_passed_over_unless_it_is_asked_for(photos: Path, started: list[Any]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "STUDIO_PORT", taken)
            vitkit.studio(photos, show=False)
        assert started[0][1][1] != taken
        assert started[0][3] is None  # nothing is opened
        with pytest.raises(VitkitError, match=f"port {taken}"):
            vitkit.studio(photos, port=taken)


def test_other_machines_need_the_token_of_the_link(photos: Path, started: list[Any]) -> None:
    lines: list[str] = []
    for _ in range(2):
        with heard(lines.append):
            vitkit.studio(photos, host="0.0.0.0", port=0)
    first, second = (own[2].token for own in started)
    assert len(first) >= 32
    assert first != second
    assert f"/?token={first}" in lines[0]
    assert started[0][3].endswith(f"/?token={first}")


def test_an_address_of_another_machine_is_refused(photos: Path) -> None:
    for host, said in (("192.0.2.1", r"listen at 192\.0\.2\.1: "), ("no such host.invalid", "is not an address")):
        with pytest.raises(VitkitError, match=said):
            vitkit.studio(photos, host=host)


def test_without_the_extra_one_line_says_what_to_install(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find(name))
    with pytest.raises(VitkitError, match=r"pip install 'vitkit\[studio\]'"):
        vitkit.studio(photos)


def test_the_page_opens_by_itself_where_there_is_a_screen(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import uvicorn

    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setenv("DISPLAY", ":0")

    async def end_soon(self: uvicorn.Server) -> None:
        self.should_exit = True

    monkeypatch.setattr(uvicorn.Server, "main_loop", end_soon)
    vitkit.studio(photos, port=0)
    assert opened[0].startswith("http://127.0.0.1:")


def test_a_request_without_an_end_keeps_no_connection(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import uvicorn

    from vitkit.serving import guard as connections

    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
    left: list[bytes] = []

    async def ask_and_end(self: uvicorn.Server) -> None:
        host, port = self.servers[0].sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        async with asyncio.timeout(10):
            left.append(await reader.read())
        writer.close()

    monkeypatch.setattr(uvicorn.Server, "main_loop", ask_and_end)
    vitkit.studio(photos, port=0, show=False)
    assert left == [b""]


# --- Where a studio keeps its own, and that it is never among the photographs -------------------------


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
    assert own.labels == Path.cwd() / "labels" / "photos.csv"
    assert list(photos.iterdir()) == []
    assert list(Path.cwd().iterdir()) == []  # nothing is made before there is something to keep


def test_what_is_no_folder_and_places_among_the_photographs_are_refused(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "link").symlink_to(photos)
    for source, places, told in (
        (tmp_path / "a.txt", {}, "is a file"),
        (tmp_path / "none", {}, "no such folder"),
        (photos, {"labels": photos / "own.csv"}, "--labels .* among the photographs"),
        (photos, {"runs": photos / "own"}, "--runs .* among the photographs"),
        (photos, {"runs": tmp_path / "link" / "runs"}, "among the photographs"),
    ):
        with pytest.raises(VitkitError, match=told):
            open_workspace(source, **places)
    monkeypatch.chdir(photos)
    with pytest.raises(VitkitError, match="start the studio in another folder"):
        open_workspace(".")


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
    assert answer.json()["code"] == "webapp.folder-missing"
    assert client.get("/api/nothing").json()["code"] == "webapp.route-missing"


# --- Photographs in an archive or in shards ---------------------------------------------------------


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
    assert [(own.path, own.label) for own in place.label_file.read().edits] == [("red/img1.png", "blue")]


def test_an_archive_of_pictures_alone_has_no_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = runs.photos(tmp_path / "photos", images=2) / "red"
    packed = shutil.make_archive(str(tmp_path / "flat"), "tar", data)
    found = TestClient(create_app(open_workspace(packed))).get("/api/data/all").json()
    assert found["paths"] == ["img1.png", "img2.png"] and found["classes"] == []
