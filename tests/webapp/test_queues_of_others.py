"""A queue that somebody else wrote: nothing in it is begun, gone on with or stopped, and no record stops the studio."""

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import runs
from refusals import refused
from vitkit.system import exclusive, exclusive_in, state_folder
from vitkit.webapp import Job, Jobs, Workspace, create_app, open_workspace, state_of_runs, work
from vitkit.webapp import jobs as module


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """The workspace of a run that came from somebody else, `given/run-1`."""
    photos = runs.photos(tmp_path / "photos", images=2)
    run = tmp_path / "given" / "run-1"
    run.mkdir(parents=True)
    (run / "recipe.toml").write_text("")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("VITKIT_OFFLINE", "1")
    return open_workspace(photos, runs=tmp_path / "given")


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the user's that has nothing to do with vitkit."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        assert process.poll() is None, "it was stopped"
        process.kill()


def job(**fields: Any) -> Job:
    arguments = ("train", "/photos", "--out", "/elsewhere/evil-1", "--weights", "none")
    return replace(Job(1, "evil-1", arguments, "/", {}, queued=1.0), **fields)


def record(**fields: Any) -> dict[str, Any]:
    """As the queue stores the job."""
    stored = asdict(job())
    return {"asked": stored.pop("request"), **stored, **fields}


def put(folder: Path, record: Any, name: str = "000001.json") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(record if isinstance(record, str) else json.dumps(record))
    return file


def client_of(place: Workspace) -> TestClient:
    return TestClient(create_app(place), raise_server_exceptions=False)


def test_what_lies_in_the_folder_of_runs_is_not_begun(place: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Path] = []
    monkeypatch.setattr(Jobs, "_start_runner", lambda self: started.append(self.runs))
    monkeypatch.setattr(module, "command", lambda own: pytest.fail(f"{own} was begun"))
    put(place.runs / ".studio" / "jobs", record())
    client = client_of(place)
    listed = client.get("/api/train/runs").json()
    assert [own["name"] for own in listed["runs"]] == ["run-1"]
    work(place.runs)
    for action in ("stop", "resume"):
        assert client.post(f"/api/train/runs/evil-1/{action}").status_code == 400
    assert started == []
    assert (place.runs / ".studio" / "jobs" / "000001.json").is_file(), "what others wrote is left as it is"


def test_what_the_studio_keeps_is_nobody_elses(place: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Jobs, "_start_runner", lambda self: None)
    assert client_of(place).post("/api/train/start", json={"weights": "none"}).status_code == 200
    jobs = Jobs(place.runs)
    assert len(jobs.all()) == 1
    assert not jobs.state_folder.is_relative_to(place.runs) and not (place.runs / ".studio").exists()
    monkeypatch.setenv("VITKIT_STATE", str(place.runs / "state"))
    for folder in (state_folder(), state_of_runs(place.runs).parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        folder.chmod(0o770)
        with refused("system.folder-shared"):
            Jobs(place.runs)
        folder.chmod(0o700)


def test_no_record_stops_a_process_that_is_no_training_of_this_queue(
    place: Workspace, other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    client, jobs = client_of(place), Jobs(place.runs)
    began = exclusive(jobs.state_folder, jobs.state_folder / "runner.lock")  # as if they were just being begun
    with began, monkeypatch.context() as patch:
        patch.setattr(module.os, "kill", lambda process, number: number and sent.append(process))
        for process in (-1, 0, -other.pid, other.pid, os.getpid()):
            for more in ({"birth": ""}, {"birth": "long ago"}, {"run": "run-1"}):
                put(jobs.folder, record(started=time.time(), process=process, **more))
                answer = client.post(f"/api/train/runs/{more.get('run', 'evil-1')}/stop")
                assert answer.status_code == (400 if "run" in more else 200), "one that never began leaves the list"
    assert sent == []


def test_what_was_begun_elsewhere_is_stopped_elsewhere(place: Workspace, other: subprocess.Popen[bytes]) -> None:
    """By the text of a lock that anybody can write, or by a real one."""
    client = client_of(place)
    lock = place.runs / "run-1" / ".lock"
    for process in (str(other.pid), "0", "99999999999999999999"):
        lock.write_text(f"process {process} of {os.uname().nodename} since 2026-01-01 00:00:00")
        assert client.get("/api/train/runs").status_code == 200
        assert client.post("/api/train/runs/run-1/stop").status_code == 400
    lock.unlink()
    with exclusive_in(place.runs / "run-1"):
        assert client.get("/api/train/runs/run-1").json()["state"] == "running"
        assert client.get("/api/train/runs/run-1").json()["can_stop"] is False
        answer = client.post("/api/train/runs/run-1/stop")
    assert answer.status_code == 400
    assert "where it was started" in answer.json()["error"]
    assert client.get("/api/train/runs/run-1").json()["state"] == "failed", "by now"


def test_files_that_are_no_records_are_ignored(place: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Jobs, "_start_runner", lambda self: None)
    monkeypatch.setattr(module, "command", lambda own: [sys.executable, "-c", ""])
    jobs = Jobs(place.runs)
    jobs.add("photos-1", ("train",), {})
    file = put(jobs.folder, record(number=2), "000002.json")
    assert [own.run for own in jobs.all()] == ["photos-1", "evil-1"]
    for content in (b"", b"[" * 100_000, b"\xff\xfe{", json.dumps(record(number=2, of_later="version")).encode()):
        file.write_bytes(content)
        listed = client_of(place).get("/api/train/runs").json()  # of a studio that begins now
        assert [own["name"] for own in listed["runs"]] == ["photos-1", "run-1"], content
    work(place.runs)
    assert [own.code for own in jobs.all()] == [0]
    assert jobs.add("photos-2", ("train",), {}).number == 3, "no record is written over"
    assert file.is_file()
