"""`vitkit average`: the mean of weights that share a start, what may be averaged, and which images test it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import runs
import vitkit as package
from vitkit.data import read_source
from vitkit.errors import VitkitError
from vitkit.evaluation import evaluate
from vitkit.training import train
from vitkit.weights import load

FIELDS: dict[str, Any] = {**runs.FINE_TUNING, "split_seed": 0}


def quiet(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights, noisy photographs, and three runs from these weights that differ in their seeds."""
    root = tmp_path_factory.mktemp("average")
    train(runs.quick(runs.photos(root / "others", seed=1), epochs=2), root / "source", say=quiet)
    runs.photos(root / "photos", images=16, noise=90)
    for seed in (0, 1, 2):
        fine_tuned(root, f"run-{seed}", seed=seed, lr=1e-3 * (1 + seed))
    return root


def fine_tuned(root: Path, name: str, **more: Any) -> Path:
    train({"data": str(root / "photos"), "weights": str(root / "source"), **FIELDS, **more}, root / name, say=quiet)
    return root / name


def three(place: Path) -> list[Path]:
    return [place / f"run-{seed}" for seed in (0, 1, 2)]


def test_the_weights_are_the_mean_of_the_runs(place: Path, tmp_path: Path) -> None:
    result = package.average(three(place), out=tmp_path / "mean", note=quiet)
    assert result.used == ("run-0", "run-1", "run-2") and result.left == ()
    weights, states = runs.weights(tmp_path / "mean"), [runs.weights(run) for run in three(place)]
    for name, tensor in weights.items():
        expected = torch.stack([state[name].double() for state in states]).mean(dim=0).float()
        assert torch.equal(tensor, expected), name
    assert not torch.equal(states[0]["blocks.0.attn.qkv.weight"], states[1]["blocks.0.attn.qkv.weight"])
    averaged = load(tmp_path / "mean").provenance["average"]
    assert averaged["how"] == "uniform" and len(averaged["used"]) == 3


def test_the_mean_of_copies_is_the_run_itself(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "run-0", tmp_path / "copy")
    package.average([place / "run-0", tmp_path / "copy"], out=tmp_path / "mean", note=quiet)
    runs.assert_same_weights(tmp_path / "mean", place / "run-0")
    assert load(tmp_path / "mean").temperature == pytest.approx(load(place / "run-0").temperature, abs=1e-3)


def test_a_run_whose_training_has_not_finished_is_noted(place: Path, tmp_path: Path) -> None:
    stopped, notes = shutil.copytree(place / "run-1", tmp_path / "stopped"), list[str]()
    for name in ("evaluation.json", "report.html"):
        (stopped / name).unlink()
    result = package.average([place / "run-0", stopped], out=tmp_path / "mean", note=notes.append)
    assert f"the training in {stopped} has not finished" in notes[0] and result.notes == tuple(notes)
    assert "not finished" not in " ".join(notes[1:])


def test_the_figures_are_those_of_the_shared_test_images(place: Path, tmp_path: Path) -> None:
    result = package.average(three(place), out=tmp_path / "mean", note=quiet)
    assert result.headline is not None and result.headline.split == "test" and result.headline.images == 12
    table = read_source(place / "photos")
    test = [i for i, path in enumerate(table.paths) if path in package.evaluate(place / "run-0").evaluation.paths]
    for row, run in zip(result.rows(), three(place), strict=True):
        accuracy = evaluate(load(run), table.take(test), "all").accuracy
        assert row["accuracy"] == pytest.approx(accuracy, abs=1e-6)
        assert row["gain"] == pytest.approx(result.headline.value - accuracy, abs=1e-6)
        assert row["interval_95"][0] <= row["gain"] <= row["interval_95"][1]
    stored = json.loads((tmp_path / "mean" / "evaluation.json").read_text())
    assert stored == json.loads(json.dumps(result.figures))
    again = package.evaluate(tmp_path / "mean")
    assert again.accuracy == result.headline.value
    on_other = package.evaluate(tmp_path / "mean", place / "photos")
    assert on_other.headline.images == 12  # the record knows what the runs have seen
    held_out = load(tmp_path / "mean").held_out
    assert held_out is not None and len(held_out.held_out) == 12  # calibrated on the shared validation images


def test_a_cross_validation_has_no_image_that_tests_its_average(place: Path, tmp_path: Path) -> None:
    folds = fine_tuned(place, "folds", folds=3, split_seed=None, split=(1.0, 0.0, 0.0))
    notes: list[str] = []
    result = package.average(folds, out=tmp_path / "mean", note=notes.append)
    assert result.used == ("folds/fold-1", "folds/fold-2", "folds/fold-3")
    assert result.figures is None and result.headline is None and result.rows() == []
    assert any("no figure tests the average: 48 of the 48 images" in line for line in notes)
    assert any("not calibrated" in line for line in notes)
    with pytest.raises(VitkitError, match="the weights had seen all 48 images"):
        _ = package.evaluate(tmp_path / "mean", place / "photos").accuracy
    others = runs.photos(tmp_path / "new", images=5, seed=7)
    measured = package.average(folds, out=tmp_path / "mean", data=others, force=True, note=quiet)
    assert measured.headline is not None and measured.headline.images == 15
    with pytest.raises(VitkitError, match="--greedy needs validation images"):
        package.average(folds, out=tmp_path / "other", greedy=True, note=quiet)


def test_a_greedy_average_leaves_out_what_makes_it_worse(place: Path, tmp_path: Path) -> None:
    spoilt = tmp_path / "spoilt"
    shutil.copytree(place / "run-1", spoilt)
    classifier = load(spoilt)
    with torch.no_grad():
        classifier.model.head.weight.mul_(-30)  # type: ignore[union-attr]
    classifier.save(spoilt)
    result = package.average([spoilt, place / "run-0", place / "run-2"], out=tmp_path / "mean", greedy=True, note=quiet)
    assert "spoilt" in result.left and set(result.used) & {"run-0", "run-2"}
    assert result.figures is not None
    steps = result.figures["average"]["greedy"]
    accuracies = [step["accuracy"] for step in steps]
    assert accuracies == sorted(accuracies, reverse=True) and steps[0]["used"]
    best = 0.0
    for step in steps:
        assert step["used"] == (step["with_it"] >= best)
        best = max(best, step["with_it"])
    on_validation = package.evaluate(tmp_path / "mean", split="val").figures
    assert "runs of the average by accuracy" in on_validation["chosen_on"]


def test_runs_that_have_no_common_valley_are_refused(place: Path, tmp_path: Path) -> None:
    train(runs.quick(place / "others", epochs=1, seed=5), place / "elsewhere", say=quiet)
    other = tmp_path / "other start"
    fields = {**FIELDS, "data": str(place / "photos"), "weights": str(place / "elsewhere")}
    train(fields, other, say=quiet)
    padded = fine_tuned(place, "padded", fit="pad")
    for run, message in (
        (other, "started from different weights"),
        (padded, "preprocess images differently"),
        (place / "source", "started from random values"),
        (place / "photos", "is not a run folder"),
    ):
        with pytest.raises(VitkitError, match=message):
            package.average([place / "run-0", run], out=tmp_path / "mean", note=quiet)
    with pytest.raises(VitkitError, match="named twice"):
        package.average([place / "run-0", place / "run-0"], out=tmp_path / "mean", note=quiet)
    with pytest.raises(VitkitError, match="two runs or more"):
        package.average([place / "run-0"], out=tmp_path / "mean", note=quiet)
    assert not (tmp_path / "mean").exists()


def test_only_an_average_is_overwritten(place: Path, tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match="is not empty"):
        package.average(three(place), out=place / "run-0", note=quiet)
    with pytest.raises(VitkitError, match="would overwrite one of the runs"):
        package.average(three(place), out=place / "run-0", force=True, note=quiet)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(VitkitError, match=r"other than an average \(letter\.txt\)"):
        package.average(three(place), out=tmp_path / "mine", force=True, note=quiet)
    with pytest.raises(VitkitError, match="nothing is written next to the photographs"):
        package.average(three(place), out=place / "photos" / "mean", note=quiet)


def test_the_command_prints_what_was_gained(place: Path, tmp_path: Path, vitkit: Any) -> None:
    outcome = vitkit("average", *three(place), "-o", tmp_path / "mean")
    assert outcome.code == 0
    assert "average of 3 runs (run-0, run-1, run-2)" in outcome.out
    assert outcome.out.count("the average gains") == 3
    outcome = vitkit("average", *three(place), "-o", tmp_path / "mean", "--force", "--json")
    assert json.loads(outcome.out)["used"] == ["run-0", "run-1", "run-2"]
