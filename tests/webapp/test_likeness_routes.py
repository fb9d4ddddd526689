"""What is alike and what to label next, by a model that sees nothing but colours."""

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

import runs
from vitkit.system.progress import progress
from vitkit.webapp import Workspace, create_app, likeness, open_workspace


def see_colours(arguments: list[str], out: Path) -> None:
    """In the place of `vitkit embed MODEL FOLDER --out FILE`; one photograph cannot be read."""
    progress("embedding", 1, 2)
    verb, model, folder, _ = arguments
    assert (verb, Path(model).name) == ("embed", "eyes.pth")
    paths = [own for own in sorted(Path(folder).rglob("*.png")) if own.name != "green-img2.png"]
    vectors = [np.asarray(Image.open(own), np.float32).mean((0, 1)) - 90 for own in paths]
    with out.open("wb") as file:
        np.savez(file, paths=np.array([str(own) for own in paths]), features=np.array(vectors))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Unlabelled photographs of three colours."""
    data, heap = runs.photos(tmp_path / "data", images=4), tmp_path / "heap"
    heap.mkdir()
    for own in data.rglob("*.png"):
        own.rename(heap / f"{own.parent.name}-{own.name}")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("VITKIT_OFFLINE", "1")
    return open_workspace(heap)


def looked(client: TestClient) -> dict[str, Any]:
    told = client.post("/api/data/look").json()
    while told["running"]:
        time.sleep(0.01)
        told = client.get("/api/data/look").json()
    return dict(told)


def test_without_a_model_the_page_is_told_so(place: Workspace) -> None:
    client = TestClient(create_app(place), raise_server_exceptions=False)
    told = client.get("/api/data/look").json()
    assert (told["ready"], told["eyes"], told["download"]) == (False, "", None), "downloads are forbidden"
    for answer in (client.post("/api/data/look?download=true"), client.get("/api/data/alike/0")):
        assert answer.status_code == 400


def test_alike_and_next_are_by_what_the_model_sees(place: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likeness, "run_vitkit", see_colours)
    Path("eyes.pth").write_bytes(b"")  # lies where the studio is started
    for source, copy in (("red-img1", "copy"), ("blue-img1", "first"), ("blue-img1", "second")):
        shutil.copy(place.photographs / f"{source}.png", place.photographs / f"{copy}.png")
    client = TestClient(create_app(place), raise_server_exceptions=False)
    paths, version = (client.get("/api/data/all").json()[key] for key in ("paths", "version"))

    def proposed(count: int) -> list[str]:
        return [paths[i] for i in client.post("/api/data/next", json={"count": count}).json()["images"]]

    def label(images: list[int], label: str) -> None:
        client.post("/api/data/labels", json={"version": version, "images": images, "label": label})

    assert client.post("/api/data/next", json={"count": 3}).status_code == 400  # not looked at yet
    assert looked(client)["ready"]
    red = paths.index("red-img1.png")
    order = [paths[i] for i in client.get(f"/api/data/alike/{red}").json()["images"]]
    assert {path.split("-")[0] for path in order[:5]} == {"red", "copy.png"}
    assert len(order) == 14  # without the one that cannot be read
    for number in (paths.index("green-img2.png"), 99):
        assert client.get(f"/api/data/alike/{number}").status_code == 400
    label([red], "red")
    found = proposed(100)
    assert len(found) == 10, "neither what cannot be read nor what is labelled nor a copy of either"
    assert "copy.png" not in found and len({"blue-img1.png", "first.png", "second.png"} & set(found)) == 1
    assert TestClient(create_app(place)).get("/api/data/look").json()["ready"], "what was seen is kept"
    label(list(range(15)), "seen")
    assert "already" in client.post("/api/data/next", json={"count": 3}).json()["error"]
    Image.new("RGB", (16, 16), "red").save(place.photographs / "new.png")
    assert not TestClient(create_app(place)).get("/api/data/look").json()["ready"], "until photographs change"
