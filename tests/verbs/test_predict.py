"""`vitkit.predict`: what `vitkit predict` does, from Python."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import vitkit as package
from refusals import refused
from tiny import build, randomise
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.inference.backends import registry
from vitkit.weights import load

CLASSES = ("blue", "green", "<red>")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, which answer at once."""
    folder = tmp_path_factory.mktemp("model") / "model"
    Classifier(build(image_size=(16, 16), num_classes=3), CLASSES, Preprocess(size=(16, 16))).save(folder)
    return folder


@pytest.fixture(scope="module")
def photos(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three photographs and a file that is none."""
    folder = tmp_path_factory.mktemp("photos")
    for i in (1, 2, 3):
        (folder / f"{i}.png").write_bytes((data / "red" / f"img{i}.png").read_bytes())
    (folder / "4.png").write_text("not a picture")
    return folder


@pytest.mark.parametrize(
    ("name", "values", "flags"),
    [
        ("out.csv", {"top": 9}, ("--top", 9)),
        ("out.jsonl", {"top": 2, "promises": package.Promises(reject=0.4)}, ("--top", 2, "--reject", 0.4)),
    ],
)
def test_function_and_command_write_the_same_file(
    vitkit: Any, model: Path, photos: Path, tmp_path: Path, name: str, values: dict[str, Any], flags: tuple[Any, ...]
) -> None:
    own, other = tmp_path / f"own-{name}", tmp_path / f"other-{name}"
    found = package.predict(model, photos, out=own, **values)
    outcome = vitkit("predict", model, photos, *flags, "-o", other)
    assert own.read_bytes() == other.read_bytes()
    assert outcome.out == f"{found.lines()[0].removesuffix(str(own))}{other}\n{found.lines()[1]}\n"
    in_memory = package.predict(str(model), [str(photos)], **values)
    assert (len(found), found.is_whole) == (len(in_memory), in_memory.is_whole) == (4, False)
    for row, kept in zip(found, in_memory, strict=True):
        assert (row.path, row.label, row.name, row.error) == (kept.path, kept.label, kept.name, kept.error)
        assert [label for label, _ in row.top] == [label for label, _ in kept.top]
        assert row.confidence == (None if kept.confidence is None else pytest.approx(kept.confidence, abs=1e-6))
    assert repr(in_memory).startswith("<Predictions: 4 images (1 unreadable")
    page = in_memory._repr_html_()
    assert page.count("<tr>") == 5 and "not an image" in page and "<red>" not in page
    if name.endswith(".jsonl"):
        assert found.to_dict()["predictions"] == [json.loads(line) for line in own.read_text().splitlines()]


@pytest.fixture(scope="module")
def files_of_stopped() -> dict[str, bytes]:
    return {}


@pytest.fixture
def stopped(
    model: Path, photos: Path, tmp_path: Path, files_of_stopped: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> bytes:
    """The rows of an uninterrupted prediction with OpenVINO, of which out.csv.partial has the first.

    `auto` is OpenVINO for the four images, but not for the three that remain.
    """
    pytest.importorskip("openvino")
    for name, row in registry.BACKENDS.items():
        monkeypatch.setitem(registry.BACKENDS, name, replace(row, auto_from=min(row.auto_from, 4)))

    def stop(task: str, done: int, of: int) -> None:
        if (task, done) == ("predicting", 1):
            raise KeyboardInterrupt

    if not files_of_stopped:
        whole, out = tmp_path / "whole.csv", tmp_path / "out.csv"
        package.predict(model, photos, compute=package.Compute(batch_size=1), out=whole)
        with pytest.raises(KeyboardInterrupt):
            package.predict(model, photos, compute=package.Compute(batch_size=1), out=out, progress=stop)
        files_of_stopped.update({path.name: path.read_bytes() for path in tmp_path.glob("*.csv*")})
    for name, content in files_of_stopped.items():
        (tmp_path / name).write_bytes(content)
    assert len((tmp_path / "out.csv.partial").read_bytes().splitlines()) == 2
    return files_of_stopped["whole.csv"]


def test_the_rest_is_computed_as_the_whole_would_be(
    model: Path, photos: Path, tmp_path: Path, stopped: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    openvino = registry.BACKENDS["openvino"]
    monkeypatch.setitem(registry.BACKENDS, "openvino", replace(openvino, auto_from=500))  # as another version might
    found = package.predict(model, photos, compute=package.Compute(batch_size=1), out=tmp_path / "out.csv", resume=True)
    assert found.computed.startswith("openvino")
    assert (tmp_path / "out.csv").read_bytes() == stopped
    assert [path.name for path in tmp_path.glob("out.csv*")] == ["out.csv"]


def test_a_backend_that_is_gone_is_not_replaced_in_silence(
    model: Path, photos: Path, tmp_path: Path, stopped: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.csv"
    monkeypatch.setattr(registry, "find_spec", lambda _: None)
    with refused("inference.package-missing", "openvino"):
        package.predict(model, photos, out=out, resume=True)
    found = package.predict(model, photos, compute=package.Compute(backend="eager"), out=out, resume=True)
    assert any("1 row was computed by" in note and "openvino" in note and "eager" in note for note in found.notes)


def test_the_rest_is_computed_as_its_record_says(model: Path, photos: Path, tmp_path: Path, stopped: bytes) -> None:
    """A damaged record is told, and a missing one guessed."""
    out, record = tmp_path / "out.csv", tmp_path / "out.csv.partial.json"
    partial, computation = (tmp_path / "out.csv.partial").read_bytes(), json.loads(record.read_text())

    def computed_by(content: str | None) -> str:
        out.unlink(missing_ok=True)
        (tmp_path / "out.csv.partial").write_bytes(partial)
        record.unlink(missing_ok=True) if content is None else record.write_text(content)
        return package.predict(model, photos, compute=package.Compute(batch_size=1), out=out, resume=True).computed

    with refused("system.json-damaged", "out.csv.partial.json"):
        computed_by("{")
    for content in (None, json.dumps(computation)):
        assert computed_by(content).startswith("openvino")
        assert out.read_bytes() == stopped
    plan = {"backend": "eager", "precision": "float32", "plan": "folded-fused"}
    assert computed_by(json.dumps(plan)) == "eager, float32, plan folded-fused"


@pytest.fixture
def here(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(data, tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(file: str = "out.csv") -> dict[str, tuple[str, float]]:
    with Path(file).open(newline="") as stream:
        return {row["path"]: (row["label"], float(row["confidence"])) for row in csv.DictReader(stream)}


def cut(lines: int) -> None:
    """The finished file as it was after so many rows."""
    whole = Path("out.csv").read_text().splitlines(keepends=True)
    Path("out.csv.partial").write_text("".join(whole[: lines + 1]))
    Path("out.csv").unlink()


def test_predictions_in_bfloat16_say_so_and_are_those_of_the_api_but_for_rounding(
    vitkit: Any, trained: Path, here: Path
) -> None:
    outcome = vitkit("predict", trained, "photos", "-o", "out.csv", "--backend", "eager", "--precision", "bfloat16")
    assert outcome.out.splitlines()[-1] == "36 images (0 unreadable), eager, bfloat16: out.csv"
    found = rows()
    for expected in load(trained).predict(list(found)):
        label, confidence = found[expected.path]
        assert confidence == pytest.approx(expected.confidence, abs=0.02)
        (_, first), (_, second) = expected.ranking[:2]
        assert label == expected.label or first - second < 0.04


def shaken(model: Path, folder: Path, noise: float) -> Path:
    """The model with noise on every weight, relative to the spread of each."""
    other = load(model)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter += noise * parameter.std(correction=0) * torch.randn_like(parameter)
    other.save(folder)
    return folder


@pytest.mark.parametrize(("precision", "noise"), [("float32", 0.1), ("bfloat16", 1.0)])
def test_rows_of_another_model_are_refused(
    vitkit: Any, trained: Path, here: Path, precision: str, noise: float
) -> None:
    vitkit("predict", trained, "photos", "-o", "out.csv", "--precision", precision, "--backend", "eager")
    cut(20)
    computation = {"backend": "eager", "precision": precision, "plan": "plain"}
    Path("out.csv.partial.json").write_text(json.dumps(computation))
    other = shaken(trained, here / "other", noise)
    outcome = vitkit("predict", other, "photos", "-o", "out.csv", "--resume", "--precision", precision)
    outcome.refused("verbs.rows-foreign", "out.csv.partial")
    then = "bfloat16" if precision == "float32" else "float32"
    outcome = vitkit("predict", trained, "photos", "-o", "out.csv", "--resume", "--precision", then)
    assert (outcome.code, len(rows())) == (0, 36), "in another precision they are recognised"


def test_rows_of_several_classes_are_recognised_in_another_precision(vitkit: Any, here: Path) -> None:
    def multi(seed: int, folder: str) -> Path:
        model = randomise(build(image_size=(16, 16), num_classes=6), seed)
        thresholds = tuple(0.1 * i for i in range(2, 8))
        Classifier(model, tuple("abcdef"), Preprocess(size=(16, 16)), thresholds=thresholds).save(here / folder)
        return here / folder

    own, other = multi(0, "own"), multi(1, "other")
    vitkit("predict", own, "photos", "-o", "out.csv", "--precision", "float32", "--backend", "eager")
    cut(20)
    flags = ("photos", "-o", "out.csv", "--resume", "--precision", "bfloat16")
    vitkit("predict", other, *flags).refused("verbs.rows-foreign")
    assert vitkit("predict", own, *flags).code == 0
