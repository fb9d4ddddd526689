"""What the Train tab asks: trainings of what was offered, and of nothing else."""

import json
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import runs
from vitkit.training import Recipe, new_run_folder
from vitkit.webapp import Jobs, Workspace, command, create_app, open_workspace

COLUMNS = "epoch,step,train_loss,train_acc,val_loss,val_acc,lr,seconds\n"
METRICS = f"{COLUMNS}0,3,1.5,0.5,1.25,0.75,0.1,2\n1,6,1.0,,1.0,0.8,0.1,2\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace with a file of weights beside it, whose queue nobody works on."""
    data = runs.photos(tmp_path / "my photos; <b>", images=2)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("VITKIT_OFFLINE", "1")
    monkeypatch.setattr(Jobs, "_start_runner", lambda self: None)
    Path("eyes.pth").write_bytes(b"")
    return open_workspace(data)


@pytest.fixture
def client(place: Workspace) -> TestClient:
    return TestClient(create_app(place), raise_server_exceptions=False)


def start(client: TestClient, **asked: Any) -> Any:
    return client.post("/api/train/start", json={"weights": "none", **asked})


def make_run(place: Workspace, name: str) -> Path:
    folder = place.runs / name
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text("")
    return folder


def test_what_is_asked_for_becomes_a_command(client: TestClient, place: Workspace) -> None:
    eyes = str(Path("eyes.pth").absolute())
    before = make_run(place, "before")
    offers = [own["source"] for own in client.get("/api/train/offers").json()["offers"]]
    assert offers == [eyes]  # offline, and a run without a model is none to begin from
    first = start(client, weights=eyes, method="lora", time="10m", split_from="before")
    assert first.json() == {"run": "my_photos_b-1", "notes": []}
    assert start(client).json()["run"] == "my_photos_b-2"
    place.labels.parent.mkdir()
    place.labels.write_text("path,label\nred/img1.png,blue\n")
    start(client, method="probe", weights=eyes)
    first, second, third = (list(job.arguments) for job in Jobs(place.runs).all())
    own = ["train", str(place.photographs)]
    out = [["--out", str(place.runs / f"my_photos_b-{number}")] for number in (1, 2, 3)]
    said = ["--weights", eyes, "--method", "lora", "--time", "10m", "--split-from", str(place.runs / "before")]
    assert first == [*own, *said, *out[0]]
    assert second == [*own, "--weights", "none", "--method", "scratch", *out[1]]
    assert third == [*own, "--labels", str(place.labels), "--weights", eyes, "--method", "probe", *out[2]]
    figures = {"accuracy": 0.5, "images": 6, "split": "cross-validated", "intervals_95": {}}
    (before / "evaluation.json").write_text(json.dumps(figures))  # it tested every photograph
    for method, status in {"probe": 200, "lora": 400}.items():
        answer = start(client, weights=eyes, method=method, split_from="before")
        assert answer.status_code == status
    assert answer.json()["code"] == "webapp.run-cross-tested"


def test_a_new_model_of_a_named_data_set_follows_its_recipe(place: Workspace) -> None:
    """As `vitkit train digits` does: the default model learns little from pictures of 8 by 8 pixels in minutes."""
    digits = open_workspace("digits")
    client = TestClient(create_app(digits), raise_server_exceptions=False)
    assert start(client, time="2m").json()["run"] == "digits-1"
    start(client, method="probe", weights=str(Path("eyes.pth").absolute()))
    assert all(command(job) for job in Jobs(place.runs).all()), "the queue runs them"
    first, second = (list(job.arguments) for job in Jobs(place.runs).all())
    flags = ["--recipe", "digits", "--weights", "none", "--method", "scratch", "--time", "2m"]
    assert first == ["train", str(digits.photographs), *flags, "--out", str(place.runs / "digits-1")]
    assert "--recipe" not in second
    asked = Recipe.load("digits").updated(Recipe(data=str(digits.photographs), weights="none", method="scratch"))
    assert asked.model == "vit_micro_patch4_16"


def test_trainings_that_are_asked_for_at_once_have_a_name_each(client: TestClient, place: Workspace) -> None:
    """A double click, two tabs, a second studio, and `vitkit train` meanwhile."""
    other = TestClient(create_app(place), raise_server_exceptions=False)
    assert [start(own, time="soon").status_code for own in (client, other)] == [422, 422]  # they have met by now
    gate, given, trained = threading.Barrier(7), [], []

    def ask(who: TestClient) -> None:
        gate.wait()
        answer = start(who)
        assert answer.status_code == 200, answer.text
        given.append(answer.json()["run"])

    def train() -> None:
        gate.wait()
        trained.append(new_run_folder("my_photos_b", ExitStack()).name)

    threads = [threading.Thread(target=ask, args=((client, other)[i % 2],)) for i in range(6)]
    threads.append(threading.Thread(target=train))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = {f"my_photos_b-{number}" for number in range(1, 8)}
    assert {*given, *trained} == names and len(given) == 6
    assert {job.run for job in Jobs(place.runs).all()} == set(given)
    assert sorted(job.number for job in Jobs(place.runs).all()) == [1, 2, 3, 4, 5, 6]
    last = sorted(given)[-1]
    client.post(f"/api/train/runs/{last}/stop")
    assert not (place.runs / last).exists(), "who is taken from the queue gives the name back"


def test_nothing_else_can_be_named(client: TestClient, place: Workspace) -> None:
    for asked in (
        *({"weights": weights} for weights in ("/etc/passwd", "../eyes.pth", "--help", ["none"])),
        *({"split_from": run} for run in ("../../etc", "--force")),
        *({"time": "1h; rm -rf /"}, {"method": "--force"}),
    ):
        answer = start(client, **asked)
        assert answer.status_code in (400, 422), asked
    assert Jobs(place.runs).all() == [] and list(place.runs.glob("my_photos*")) == []


def test_a_run_is_told_from_its_folder(client: TestClient, place: Workspace) -> None:
    folder = make_run(place, "one")
    (folder / "metrics.csv").write_text(METRICS)
    (folder / "log.txt").write_text("2026-11-22 10:00:00  hello\n")
    (folder / "evaluation.json").write_text('{"accuracy": 0.5, "images": 4, "split": "test", "paths": ["x"]}')
    told = client.get("/api/train/runs/one").json()
    figures = {"figure": "accuracy", "accuracy": 0.5, "images": 4, "split": "test"}
    assert (told["state"], told["figures"], told["caveats"]) == ("done", figures, [])
    assert told["verdict"]["sentence"].startswith("Right for 1 of every 2 photographs") and told["step"] is None
    second = {"epoch": 1, "step": 6, "train_loss": 1.0, "val_loss": 1.0, "val_acc": 0.8, "lr": 0.1, "seconds": 2}
    assert told["metrics"][1] == second
    assert told["log"] == ["2026-11-22 10:00:00  hello"]
    assert [own["name"] for own in client.get("/api/train/runs").json()["runs"]] == ["one"]
    for action in ("resume", "stop"):
        assert client.post(f"/api/train/runs/one/{action}").status_code == 400
    (folder / "metrics.csv").write_text(METRICS + "2,x")  # half written
    (folder / "evaluation.json").write_text('{"accu')
    (folder / "log.txt").write_bytes(b"\xff\xfe")
    assert client.get("/api/train/runs").status_code == client.get("/api/train/runs/one").status_code == 200


def test_a_stopped_training_goes_on_by_the_command_for_it(client: TestClient, place: Workspace) -> None:
    folder = make_run(place, "one")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "last.ckpt").write_bytes(b"")
    assert client.post("/api/train/runs/one/resume").json() == {"run": "one"}
    (job,) = Jobs(place.runs).all()
    assert job.arguments == ("train", "--resume", str(folder))
    assert client.get("/api/train/runs/one").json()["state"] == "queued"
    assert client.post("/api/train/runs/one/resume").status_code == 400  # not twice
    assert client.post("/api/train/runs/one/stop").status_code == 200
    assert client.get("/api/train/runs/one").json()["state"] == "stopped"
