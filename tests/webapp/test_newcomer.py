"""The way of somebody who has 300 unlabelled photographs: a studio of its own process, which is killed on the way."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from vitkit.data import split_from_file
from vitkit.system import is_locked
from vitkit.webapp import Jobs

pytestmark = pytest.mark.accept
DATA = Path(os.environ.get("VITKIT_TEST_DATA", "/nowhere"))
WEIGHTS = DATA / "weights" / "deit_tiny_patch16_224.pth"
FLOWERS = ("daisy", "roses", "tulips")
EACH = 100  # of fewer, no label looks wrong more often than by chance
WRONG = (5, 25, 45, 65)  # of each flower


@pytest.fixture
def heap(tmp_path: Path) -> Iterator[Path]:
    """300 photographs of three flowers in one folder, whose names say nothing; `truth` tells what each shows."""
    if not WEIGHTS.is_file():
        pytest.skip("VITKIT_TEST_DATA has no photographs and weights")
    folder = tmp_path / "garden"
    folder.mkdir()
    for name in FLOWERS:
        for i, own in enumerate(sorted((DATA / "data" / "flowers" / name).glob("*.jpg"))[: EACH + 1]):
            shutil.copy(own, (folder if i < EACH else tmp_path) / f"{own.stem[:12]}.jpg")
    yield folder
    for job in Jobs(tmp_path / "runs").all():
        if not job.ended:
            with contextlib.suppress(OSError):
                os.kill(job.process, signal.SIGKILL)


def truth(path: str) -> str:
    return next(name for name in FLOWERS if any((DATA / "data" / "flowers" / name).glob(f"{path[:-4]}*.jpg")))


@contextmanager
def studio(folder: Path) -> Iterator[httpx.Client]:
    """`vitkit studio` as a process, which is killed in the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = ["studio", str(folder), "--weights", str(WEIGHTS), "--port", str(port), "--no-open"]
    process = subprocess.Popen([sys.executable, "-m", "vitkit", *arguments], cwd=folder.parent)

    def is_there() -> bool:
        with contextlib.suppress(httpx.ConnectError):
            return client.get("/api/studio").status_code == 200
        return False

    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        try:
            until(is_there)
            yield client
        finally:
            process.kill()
            process.wait()


def until(what: Callable[[], bool], seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.1)


def test_from_photographs_to_a_classifier_across_a_killed_server(heap: Path) -> None:
    paths = sorted(own.name for own in heap.iterdir())
    kinds = {name: [path for path in paths if truth(path) == name] for name in FLOWERS}
    others = dict(zip(FLOWERS, (*FLOWERS[1:], FLOWERS[0]), strict=True))
    wrong = {kinds[name][i]: others[name] for name in FLOWERS for i in WRONG}
    given = {path: wrong.get(path, truth(path)) for path in paths}
    before = {own.name: own.read_bytes() for own in heap.iterdir()}
    jobs, training = Jobs(heap.parent / "runs"), {"weights": str(WEIGHTS), "method": "probe"}
    with studio(heap) as client:
        all_ = client.get("/api/data/all").json()
        for name in FLOWERS:
            images = [i for i, path in enumerate(all_["paths"]) if given[path] == name]
            client.post("/api/data/labels", json={"version": all_["version"], "images": images, "label": name})
        assert client.post("/api/train/start", json=training).json()["run"] == "garden-1"
        until(lambda: is_locked(heap.parent / "runs" / "garden-1"))
    until(lambda: jobs.state("garden-1", jobs.last()["garden-1"]) == "done")
    with studio(heap) as client:
        all_ = client.get("/api/data/all").json()
        said = {path: all_["names"][i] for path, i in zip(all_["paths"], all_["labels"], strict=True)}
        assert said == given
        suspected = {all_["paths"][int(i)] for i in all_["doubts"]} & set(wrong)
        assert len(suspected) > len(wrong) / 2, "most of the planted labels are among those that look wrong"
        for path in suspected:
            body = {"version": all_["version"], "images": [all_["paths"].index(path)], "label": truth(path)}
            assert client.post("/api/data/labels", json=body).status_code == 200
        client.post("/api/train/start", json={**training, "split_from": "garden-1"})
        until(lambda: jobs.state("garden-2", jobs.last()["garden-2"]) == "done")
        new = next(heap.parent.glob("*.jpg")).read_bytes()
        assert client.post("/api/look/see", params={"run": "garden-2"}, content=new).json()["label"] in FLOWERS
    assert {own.name: own.read_bytes() for own in heap.iterdir()} == before
    first, second = (split_from_file(heap.parent / "runs" / name / "split.json") for name in ("garden-1", "garden-2"))
    assert dict(zip(first.paths, first.splits, strict=True)) == dict(zip(second.paths, second.splits, strict=True))
