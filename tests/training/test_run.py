"""A run from beginning to end: what it leaves behind, what it says, and that neither crash nor Ctrl-C can spoil it."""

import csv
import json
import re
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import photos as pictures
import runs
from refusals import refused
from runs import told as train
from vitkit.data import split_from_file
from vitkit.errors import VitkitError
from vitkit.evaluation import evaluate
from vitkit.training import Metrics, Recipe, lr_factor, read_metrics, run
from vitkit.training import checkpoint as writer
from vitkit.verbs import TrainingRun
from vitkit.weights import load

ARTEFACTS = (
    *("model.safetensors", "model.json", "recipe.toml", "split.json", "metrics.csv", "log.txt", "report.html"),
    *("curves.png", "classes.png", "confusion.png", "train_batch.png", "checkpoints/last.ckpt"),
)


def test_a_run_folder_has_its_files_with_the_users_permissions_and_no_other(finished: Path, tmp_path: Path) -> None:
    assert [name for name in ARTEFACTS if not (finished / name).stat().st_size] == []
    assert [path.name for path in finished.rglob("*") if "tmp" in path.name or path.name.startswith(".")] == []
    (tmp_path / "usual").touch()
    modes = {path.stat().st_mode for path in finished.rglob("*") if path.is_file()}
    assert modes == {(tmp_path / "usual").stat().st_mode}


def test_the_log_and_the_provenance_say_what_the_saved_classifier_does(finished: Path, data: Path) -> None:
    line = r"accuracy (\S+) \(95 %: \S+\) on (\d+) test images(?: \([^()]*\))? \((\S+) log loss\)"
    said = re.search(line, (finished / "log.txt").read_text())
    classifier, table = load(finished), split_from_file(finished / "split.json")
    outcome = evaluate(classifier, table, "test")
    assert said.groups() == (f"{outcome.accuracy:.4f}", str(len(outcome.labels)), f"{outcome.loss:.4f}")
    classifier.temperature = 1.0  # what is logged is not calibrated yet
    outcome = evaluate(classifier, table, "val")
    assert outcome.accuracy == pytest.approx(classifier.provenance["metrics"]["val_acc"])
    assert outcome.loss == pytest.approx(classifier.provenance["metrics"]["val_loss"], rel=1e-4)
    runs.assert_learned(finished, data)


def test_what_is_written_down_is_what_was_done(finished: Path, data: Path) -> None:
    with (finished / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["epoch"], row["step"]) for row in rows] == [("0", "4"), ("1", "8"), ("2", "12")]
    assert all(value for row in rows for value in row.values())
    table = split_from_file(finished / "split.json")
    for name, expected in {"train": 9, "val": 1, "test": 2}.items():
        assert Counter(table.of_split(name).labels) == {0: expected, 1: expected, 2: expected}
    assert Recipe.load(finished / "recipe.toml") == runs.quick(data).replace(method="scratch", head_from="zero")
    provenance = load(finished).provenance
    assert provenance["data"] == data.name, "not where it lies"
    assert provenance["data_hash"] == json.loads((finished / "split.json").read_text())["hash"]
    assert (provenance["recipe"]["seed"], provenance["recipe"]["model"]) == (0, runs.QUICK["model"])
    assert provenance["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert {"vitkit", "python", "torchvision", "lightning-fabric", "numpy", "pillow"} <= provenance["versions"].keys()


@pytest.mark.usefixtures("no_reports")
def test_one_seed_gives_one_result_and_another_seed_another(
    finished: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0}, raising=False)  # more workers than cores, if need be
    again, _ = train(runs.quick(data, workers=2), tmp_path / "again")
    runs.assert_same_weights(finished, again)
    assert runs.metrics(finished) == runs.metrics(again)
    other, _ = train(runs.quick(data, seed=1, epochs=1), tmp_path / "other")
    assert not torch.equal(runs.weights(finished)["head.weight"], runs.weights(other)["head.weight"])
    assert (finished / "split.json").read_text() != (other / "split.json").read_text()


def test_a_run_without_val_images_keeps_the_last_epoch_and_is_not_calibrated(data: Path, tmp_path: Path) -> None:
    folder, said = train(runs.quick(data, epochs=2, split=(0.8, 0.0, 0.2)), tmp_path / "run")
    classifier = load(folder)
    assert classifier.provenance["metrics"]["epoch"] == 1 and classifier.temperature == 1
    assert "0 val" in said and "the confidences are not calibrated" in said
    assert [sorted(row) for row in runs.metrics(folder)] == [["epoch", "lr", "step", "train_acc", "train_loss"]] * 2


def test_a_run_with_training_images_alone_is_evaluated_on_them_and_says_so(data: Path, tmp_path: Path) -> None:
    folder, said = train(runs.quick(data, epochs=1, split=(1.0, 0.0, 0.0)), tmp_path / "run")
    with_them = json.loads((folder / "evaluation.json").read_text())["with_seen"]["accuracy"]
    assert "no accuracy can be given" in said and f"with them {with_them:.4f}" in said
    with refused("evaluation.images-seen"):
        TrainingRun(folder).accuracy  # noqa: B018  # a property
    assert "No figure" in (folder / "report.html").read_text()


@pytest.mark.usefixtures("no_reports")
def test_a_time_budget_ends_the_run_with_the_learning_rate_fallen(data: Path, tmp_path: Path) -> None:
    folder, _ = train(runs.quick(data, epochs=100_000, time="1s"), tmp_path / "run")
    rows = read_metrics(folder / "metrics.csv")
    assert 1.0 <= rows[-1]["seconds"] < 5.0
    behind = rows[-2]["seconds"] - 0.05 if len(rows) > 1 else 0.0  # when the last epoch began
    assert 0 < rows[-1]["lr"] <= max(1e-3 * lr_factor(behind, Recipe(), 1.0), 1e-3 * (behind < Recipe().warmup))
    run.resume(runs.copy_of(folder, tmp_path / "copied"))
    assert runs.metrics(tmp_path / "copied") == runs.metrics(folder), "it is over"
    runs.assert_same_weights(tmp_path / "copied", folder)


class Crash(BaseException):
    """The process ends here."""


def stop_when(monkeypatch: pytest.MonkeyPatch, step: str, epoch: int) -> None:
    """Crash before a step of the epoch's writing down."""
    home: Any = {"append": Metrics, "_update_best": writer.RunWriter, "save": writer}[step]
    original = getattr(home, step)
    calls = Counter[str]()

    def crash_or(*args: Any, **kwargs: Any) -> Any:
        calls[step] += 1
        if calls[step] == epoch + 1:
            raise Crash
        return original(*args, **kwargs)

    monkeypatch.setattr(home, step, crash_or)


@pytest.mark.usefixtures("no_reports")
@pytest.mark.parametrize(("step", "epoch"), [("append", 1), ("_update_best", 1), ("save", 1), ("append", 0)])
def test_a_crash_between_any_two_steps_of_saving_changes_nothing_after_a_resume(
    finished: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, epoch: int
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Crash):
        stop_when(patch, step, epoch)
        train(runs.quick(data), tmp_path / "run")
    if epoch == 0:
        assert list(tmp_path.iterdir()) == [], "without a model there is no folder"
        return
    assert load(tmp_path / "run").classes == ("blue", "green", "red")
    run.resume(tmp_path / "run")
    runs.assert_same_outcome(tmp_path / "run", finished)


def test_without_out_runs_are_numbered_and_lie_outside_of_the_data(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "TRAINING", replace(run.TRAINING, fit=lambda _: None, conclude=()))
    assert run.train(runs.quick(data)) == Path("runs", "photos-1")
    assert run.train(runs.quick(data)) == Path("runs", "photos-2")
    monkeypatch.chdir(data)
    before = pictures.fingerprint(data)
    with suppress(VitkitError):  # asking where to is as good
        run.train(runs.quick(Path()))
    assert pictures.fingerprint(data) == before


@pytest.mark.usefixtures("no_reports")
def test_force_leaves_nothing_of_the_earlier_run(data: Path, tmp_path: Path) -> None:
    folder, _ = train(runs.quick(data, epochs=2, max_images=6, keep="every"), tmp_path / "run")
    assert len(list((folder / "checkpoints").glob("epoch-*"))) == 2
    before = set(folder.rglob("events*"))
    train(runs.quick(data, epochs=1, max_images=6), folder, force=True)
    assert list((folder / "checkpoints").glob("epoch-*")) == []
    assert before & set(folder.rglob("events*")) == set()
    assert len(runs.metrics(folder)) == 1


def test_force_keeps_the_earlier_run_when_the_new_one_cannot_begin(finished: Path, tmp_path: Path) -> None:
    folder = runs.copy_of(finished, tmp_path / "run")
    before = pictures.fingerprint(folder)
    with refused("data.source-missing", "nowhere"):
        train(runs.quick(tmp_path / "nowhere"), folder, force=True)
    assert pictures.fingerprint(folder) == before
