"""`--backend` and `--precision`: said at the end, near to the API's answers, and no obstacle to going on."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tiny import build, randomise
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.weights import load


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


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_predict_says_what_computed_and_answers_as_the_api(
    vitkit: Any, trained: Path, here: Path, precision: str
) -> None:
    rounding = {"float32": 2e-6, "bfloat16": 0.02}[precision]
    flags = ("--backend", "eager", "--precision", precision)
    outcome = vitkit("predict", trained, "photos", "-o", "out.csv", *flags)
    assert outcome.out.splitlines()[-1] == f"36 images (0 unreadable), eager, {precision}: out.csv"
    found = rows()
    for expected in load(trained).predict(list(found)):
        label, confidence = found[expected.path]
        assert confidence == pytest.approx(expected.confidence, abs=rounding)
        (_, first), (_, second) = expected.ranking[:2]
        assert label == expected.label or first - second < 2 * rounding


def test_few_images_are_computed_eagerly_in_the_best_precision(
    vitkit: Any, trained: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitkit.inference.backends.best_precision", lambda _: "bfloat16")
    assert vitkit("predict", trained, "photos/red/img1.png").err == "1 image (0 unreadable), eager, bfloat16\n"


def test_eval_says_what_computed(vitkit: Any, trained: Path) -> None:
    exact, rounded = (
        json.loads(vitkit("eval", trained, "--json", "--backend", "eager", "--precision", precision).out)
        for precision in ("float32", "bfloat16")
    )
    assert (exact["backend"], exact["precision"]) == ("eager", "float32")
    assert (rounded["backend"], rounded["precision"]) == ("eager", "bfloat16")
    assert rounded["loss"] == pytest.approx(exact["loss"], abs=0.02)
    assert "(eager, bfloat16)" in vitkit("eval", trained, "--backend", "eager", "--precision", "bfloat16").out


@pytest.mark.parametrize("verb", ["predict", "eval"])
def test_an_backend_that_is_not_installed_is_told_in_a_line(
    vitkit: Any, trained: Path, here: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr("vitkit.inference.backends.registry.find_spec", lambda _: None)
    outcome = vitkit(verb, trained, "photos", "--backend", "openvino")
    assert (outcome.code, outcome.out) == (2, "")
    assert "pip install 'vitkit[export]'" in outcome.err
    assert len(outcome.err.splitlines()) == 1


# --- Going on with rows of another precision ----------------------------------------------------------


@pytest.mark.parametrize(("first", "then"), [("bfloat16", "float32"), ("float32", "bfloat16")])
@pytest.mark.parametrize("lines", [1, 20])
def test_rows_of_another_precision_are_the_models_own(
    vitkit: Any, trained: Path, here: Path, first: str, then: str, lines: int
) -> None:
    assert vitkit("predict", trained, "photos", "-o", "out.csv", "--precision", first, "--backend", "eager").code == 0
    cut(lines)
    outcome = vitkit("predict", trained, "photos", "-o", "out.csv", "--resume", "--precision", then)
    assert (outcome.code, len(rows())) == (0, 36)


def shaken(model: Path, folder: Path, std: float, seed: int) -> Path:
    """The model with noise on every weight, relative to the spread of each."""
    import torch

    other = load(model)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter += std * parameter.std(correction=0) * torch.randn_like(parameter)
    other.save(folder)
    return folder


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("seed", range(3))
def test_rows_of_a_model_trained_a_little_further_are_refused(
    vitkit: Any, trained: Path, here: Path, seed: int, precision: str
) -> None:
    vitkit("predict", trained, "photos", "-o", "out.csv", "--precision", precision, "--backend", "eager")
    cut(20)
    other = shaken(trained, here / "other", 0.1, seed)
    outcome = vitkit("predict", other, "photos", "-o", "out.csv", "--resume", "--precision", precision)
    assert outcome.code == 2
    assert "were written by another model" in outcome.err


@pytest.mark.parametrize("first", ["bfloat16", "float32"])
def test_rows_of_several_classes_are_recognised_in_another_precision(vitkit: Any, here: Path, first: str) -> None:
    def multi(seed: int, folder: str) -> Path:
        model = randomise(build(image_size=(16, 16), num_classes=6), seed)
        thresholds = tuple(0.1 * i for i in range(2, 8))
        Classifier(model, tuple("abcdef"), Preprocess(size=(16, 16)), thresholds=thresholds).save(here / folder)
        return here / folder

    own, other = multi(0, "own"), multi(1, "other")
    vitkit("predict", own, "photos", "-o", "out.csv", "--precision", first, "--backend", "eager")
    cut(20)
    assert vitkit("predict", other, "photos", "-o", "out.csv", "--resume", "--precision", "bfloat16").code == 2
    assert vitkit("predict", own, "photos", "-o", "out.csv", "--resume", "--precision", "bfloat16").code == 0


def test_a_row_of_a_class_that_the_model_lacks_is_anothers(vitkit: Any, trained: Path, here: Path) -> None:
    vitkit("predict", trained, "photos", "-o", "out.csv")
    cut(20)
    partial = here / "out.csv.partial"
    partial.write_text(partial.read_text().replace(",blue,", ",pink,"))
    assert vitkit("predict", trained, "photos", "-o", "out.csv", "--resume").code == 2
