"""Folders that somebody gave to the user: links and names that lead out of them, pipes and devices instead of files.

What is written through a link, or below another folder, is the user's; what is read from a pipe may never end.
"""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import runs
import tiny
import vitkit
import wordy
from photos import fingerprint
from refusals import refused
from vitkit.errors import VitkitError
from vitkit.experiments import ComparisonJob, Plan
from vitkit.language import read_tokenizer
from vitkit.system import exclusive
from vitkit.training import run
from vitkit.weights import load, read_checkpoint


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """A run, and `precious` beside it."""
    (tmp_path / "precious").write_text("precious")
    return runs.copy_of(runs.shared_run(), tmp_path / "run")


@pytest.mark.parametrize("name", ["log.txt", "metrics.csv", ".lock"])
def test_a_run_that_goes_on_writes_through_no_link(given: Path, name: str) -> None:
    (given / name).unlink(missing_ok=True)
    (given / name).symlink_to("../precious")
    with refused("system.lock-is-link" if name == ".lock" else "training.file-is-link", name):
        run.resume(given)
    (given.parent / ".out.csv.lock").symlink_to("precious")
    with refused("system.lock-is-link"), exclusive(given.parent / "out.csv"):
        pass
    assert (given.parent / "precious").read_text() == "precious"


@pytest.mark.parametrize("folder", ["../run", "/tmp/run", "runs/../../run", ""])
def test_a_comparison_trains_in_its_folder_alone(given: Path, tmp_path: Path, folder: str) -> None:
    fine = ComparisonJob("a", 0, 1.0, 8, {"data": "photos"}, "runs/a")
    plan = Plan({"data": "photos", "seeds": 1}, ("a",), (0,), (1.0,), (fine,), "", ()).to_dict()
    assert Plan.from_dict(json.loads(json.dumps(plan))).jobs == (fine,)
    plan["jobs"][0]["folder"] = folder
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "plan.json").write_text(json.dumps({"fields": {}, "plan": plan}))
    (given / "recipe.toml").unlink()  # as of a run that was killed, whose folder is cleared
    before = fingerprint(given)
    with refused("experiments.plan-damaged"):
        vitkit.compare(out=tmp_path / "out", resume=True)
    assert fingerprint(given) == before


def replaced(path: Path, kind: str) -> None:
    """Put something in the place of a file whose reading would not end."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")


def error_of(call: Callable[[], Any]) -> str:
    """What it is refused with; empty where it is not. It has to come to an end."""
    told: list[str] = []

    def work() -> None:
        try:
            call()
            told.append("")
        except (VitkitError, OSError) as error:
            told.append(str(error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert told, "it is still being read"
    return told[0]


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", ["model.json", "model.safetensors", "pictures.npz"])
def test_a_file_of_a_model_folder_that_is_none_is_not_read(given: Path, name: str, kind: str) -> None:
    """Nor served."""
    assert (given / name).is_file()
    replaced(given / name, kind)
    assert error_of(lambda: load(given))
    assert error_of(lambda: vitkit.serve(given, port=0))


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", ["w.safetensors", "config.json", "model.safetensors.index.json", "class_indices.json"])
def test_a_checkpoint_that_is_no_file_is_not_read(tmp_path: Path, name: str, kind: str) -> None:
    from safetensors.torch import save_file

    model = tiny.build(num_classes=3)
    save_file(dict(model.state_dict()), tmp_path / "w.safetensors")
    replaced(tmp_path / name, kind)
    assert bool(error_of(lambda: read_checkpoint(tmp_path / "w.safetensors"))) == (name == "w.safetensors")
    error_of(lambda: load(tmp_path))
    index = {"weight_map": {"a": "s.safetensors"}}
    if name != "model.safetensors.index.json":
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        replaced(tmp_path / "s.safetensors", kind)
        assert "s.safetensors" in error_of(lambda: read_checkpoint(tmp_path))


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_exported_files_and_tokenizers_that_are_none_are_not_read(tmp_path: Path, kind: str) -> None:
    (tmp_path / "photo.png").write_bytes(b"")
    for ending in (".onnx", ".xml", ".pth", ".npz"):
        file = tmp_path / f"model{ending}"
        replaced(file, kind)
        assert error_of(lambda file=file: vitkit.predict(file, tmp_path / "photo.png"))
    wordy.clip_tokenizer().save_pretrained(tmp_path / "words")
    for name in ("vocab.json", "spiece.model", "tokenizer_config.json", "tokenizer.json"):
        replaced(tmp_path / "words" / name, kind)
        error_of(lambda: read_tokenizer(tmp_path / "words", wordy.CONTEXT, "none"))


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_photograph_that_is_no_file_is_not_read(given: Path, tmp_path: Path, kind: str) -> None:
    """By prediction, by evaluation where the run's pictures were, and where they are said to be now."""
    data = runs.copy_of(runs.shared_photos(), tmp_path / "photos")
    pictures = sorted(data.glob("red/*.png"))
    for picture in pictures:
        replaced(picture, kind)
    (row, *_) = list(vitkit.predict(given, pictures))
    assert row.error == "not a regular file"
    error_of(lambda: vitkit.evaluate(given, data_root=data))
    split = json.loads((given / "split.json").read_text())
    split["root"] = str(data)
    (given / "split.json").write_text(json.dumps(split))
    error_of(lambda: vitkit.evaluate(given))
