"""`vitkit.train`: what `vitkit train` does, from Python."""

import csv
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runs
import vitkit as package
import warm
from vitkit.cli.commands import SET_ONLY
from vitkit.data import read_source
from vitkit.evaluation import evaluate
from vitkit.model_folder import DESCRIPTION, RECORD, TRUST, WEIGHTS
from vitkit.system import run_files
from vitkit.system.environment import best_precision
from vitkit.text import interval_text
from vitkit.training import Recipe, run
from vitkit.verbs import TrainingRun
from vitkit.weights import load


def test_named_data_are_trained_by_their_recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from vitkit.training import run

    asked: list[Any] = []
    monkeypatch.setattr(
        run, "train", lambda recipe, out, **options: asked.append((recipe.set_fields(), options["notes"]))
    )
    package.train("digits", package.Recipe(epochs=2, max_images=300))
    ((fields, notes),) = asked
    assert (fields["epochs"], fields["max_images"], fields["model"]) == (2, 300, "vit_micro_patch4_16")
    assert any("epochs 2 (published: " in note for note in notes)


def test_the_result_is_what_the_folder_holds(trained: Path, data: Path) -> None:
    run = TrainingRun(trained)
    numbers = json.loads((trained / "evaluation.json").read_text())
    assert {**run.evaluation, "figures": None} == {**numbers, "figures": None}
    assert run.recipe.data == str(data)
    assert run.folds == ()
    outcome = evaluate(run.classifier, read_source(data), "all")
    assert outcome.classes == run.classifier.classes == ("blue", "green", "red")
    assert np.isfinite(outcome.loss)
    assert json.loads(json.dumps(run.to_dict()))["evaluation"] == numbers
    with (trained / run_files.PREDICTIONS).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == numbers["images"]
    assert sum(row["label"] == row["predicted"] for row in rows) / len(rows) == numbers["accuracy"]
    verdict, headline = run.lines()
    assert verdict.startswith("Right for ") and verdict.endswith(".")
    assert headline == f"{run.headline.words}; report: {trained / 'report.html'}"
    assert repr(run) == f"<TrainingRun: {headline}>"
    page = run._repr_html_()
    assert verdict in page and run.headline.words in page
    assert f"{run.evaluation['loss']:.4f}" in page
    assert page.count("<tr>") == 7  # the head, and every figure of an evaluation


def test_a_cross_validation_has_the_runs_of_its_folds(data: Path) -> None:
    run = TrainingRun(runs.shared_folds())
    assert [fold.folder.name for fold in run.folds] == ["fold-1", "fold-2", "fold-3"]
    assert run.accuracy == pytest.approx(sum(fold.accuracy for fold in run.folds) / 3)
    bounds = interval_text(run.evaluation["accuracy"]["interval_95"])
    assert run.lines()[1].startswith(
        f"accuracy {run.accuracy:.4f} (95 %: {bounds}) over 3 folds, on 21 test images (of the folds' models; "
    )
    assert list(dict.fromkeys(row["fold"] for row in run.rows())) == [1, 2, 3, "final"]
    assert run.classifier.predict(data / "red" / "img1.png")
    assert run.folds[1].classifier.classes == ("blue", "green", "red")
    assert str(run.report) in run._repr_html_()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[dict[str, Any], Any, dict[str, Any]]]:
    """What the command asks of `run.train`, which is not run."""
    calls: list[tuple[dict[str, Any], Any, dict[str, Any]]] = []

    def train(*asked: Any, **options: Any) -> Path:
        calls.append((*asked, options))
        return tmp_path / "run"

    monkeypatch.setattr(run, "train", train)
    return calls


def test_flags_become_fields_of_the_recipe_and_go_before_its_file(
    vitkit: Any, asked: list[Any], tmp_path: Path
) -> None:
    given = ("--lr", "1e-3", "--split", "0.5", "0.2", "0.3", "--no-hflip", "--crop-scale", "0", "0", "--time", "10m")
    assert vitkit("train", tmp_path, "--epochs", 7, *given, "--keep", "every").code == 0
    fields = {"data": str(tmp_path), "epochs": 7, "lr": 1e-3, "split": (0.5, 0.2, 0.3), "hflip": False}
    assert asked[0][0].set_fields() == {**fields, "crop_scale": (0.0, 0.0), "time": "10m", "keep": "every"}
    (tmp_path / "mine.toml").write_text(f'data = "{tmp_path}"\nepochs = 7\nhflip = false\nseed = 3\n')
    assert vitkit("train", "--recipe", tmp_path / "mine.toml", "--epochs", 9, "--hflip").code == 0
    assert asked[1][0].set_fields() == {"data": str(tmp_path), "epochs": 9, "hflip": True, "seed": 3}


def test_every_field_of_the_recipe_but_the_data_can_be_set(vitkit: Any, asked: list[Any], tmp_path: Path) -> None:
    flags = []
    for name, value in Recipe().to_dict().items():
        if isinstance(value, bool) and name not in SET_ONLY:
            flags.append(f"--{'' if value else 'no-'}{name.replace('_', '-')}")
        elif name in SET_ONLY:
            flags += [] if value is None else ["--set", f"{name}={value}"]
        elif name != "data" and value is not None:
            flags += [f"--{name.replace('_', '-')}", *(map(str, value) if isinstance(value, tuple) else [str(value)])]
    assert vitkit("train", tmp_path, *flags).code == 0
    assert asked[0][0] == Recipe(data=str(tmp_path))


def test_only_the_main_process_says_what_comes_next(
    vitkit: Any, asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert vitkit("train", tmp_path).err == f"Next: vitkit predict {tmp_path / 'run'} PHOTOS\n"
    monkeypatch.setenv("SLURM_PROCID", "1")
    assert vitkit("train", tmp_path).err == ""
    assert len(asked) == 2
    vitkit("train", "photos", "--resume", tmp_path).refused("verbs.option-conflict", "--resume")


def test_force_writes_over_a_run(vitkit: Any, data: Path, trained: Path, tmp_path: Path) -> None:
    folder = runs.copy_of(trained, tmp_path / "run")
    assert vitkit("train", data, *runs.FLAGS, "--epochs", 1, "--seed", 5, "--out", folder, "--force").code == 0
    assert load(folder).provenance["recipe"]["seed"] == 5
    assert len(runs.metrics(folder)) == 1


def test_a_run_says_what_it_does_and_nothing_else(data: Path, trained: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [warm.vitkit(), "train", data, *runs.FLAGS, "--out", "run"],
        cwd=tmp_path, env=runs.environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    report, folder = Path("run", "report.html"), "run"
    assert (done.returncode, done.stderr) == (0, f"Next: open {report}, or vitkit predict {folder} PHOTOS\n")
    starts = ["vitkit ", "folders read as classes: 3", "3 classes; images: 27 train, 3 val, 6 test"]
    starts += ["3 epochs of 4 steps in float32", *(f"epoch   {epoch}/3  train_loss " for epoch in (1, 2, 3))]
    starts += ["unknown images are recognised by "]
    starts += ["trained in float32, evaluated in bfloat16"] if best_precision("cpu") == "bfloat16" else []
    starts += ["temperature ", "Right for ", "accuracy "]
    lines = done.stdout.splitlines()
    assert len(lines) == len(starts), done.stdout
    assert [line for line, start in zip(lines, starts, strict=True) if not line.startswith(start)] == []
    assert lines[-1].endswith(f"report: {report}")
    assert [line.partition("  ")[2] for line in (tmp_path / "run" / "log.txt").read_text().splitlines()] == lines
    runs.assert_same_weights(tmp_path / "run", trained)


def test_ctrl_c_exits_with_130_after_saving_and_saying_how_to_go_on(data: Path, tmp_path: Path) -> None:
    flags = (*runs.FLAGS, "--workers", "2", "--epochs", "500")
    process = subprocess.Popen(
        [warm.vitkit(), "train", data, *flags, "--out", "run"],
        cwd=tmp_path, env=runs.environment(), text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    metrics = tmp_path / "run" / "metrics.csv"
    deadline = time.monotonic() + 90
    while not metrics.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the workers too
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert [line for line in err.splitlines() if not line.startswith("epoch ")] == ["stopped by SIGINT"]
    assert out.splitlines()[-2:] == [
        "stopped; the best model so far is in run",
        "to continue: vitkit train --resume run",
    ]
    assert load(tmp_path / "run").classes == ("blue", "green", "red")


def test_a_full_disk_is_an_error_that_keeps_the_model(vitkit: Any, trained: Path, data: Path, tmp_path: Path) -> None:
    size = (trained / "model.safetensors").stat().st_size
    with runs.files_of_at_most(size * 5 // 4):  # too little for the optimiser's state
        outcome = vitkit("train", data, *runs.FLAGS, "--out", tmp_path / "run")
    outcome.refused(None, "last.ckpt")
    assert load(tmp_path / "run").classes == ("blue", "green", "red")
    assert list((tmp_path / "run").rglob("*.tmp")) == []


def test_a_disk_filled_by_a_later_model_keeps_the_earlier(vitkit: Any, trained: Path, tmp_path: Path) -> None:
    folder = runs.copy_of(trained, tmp_path / "run")
    recipe = Recipe.load(folder / "recipe.toml").replace(epochs=5, keep="last")
    (folder / "recipe.toml").write_text(recipe.to_toml())
    with runs.files_of_at_most((trained / "model.safetensors").stat().st_size * 5 // 8):
        vitkit("train", "--resume", folder).refused(None, "model.safetensors")
    runs.assert_same_weights(folder, trained)
    assert load(folder).provenance == load(trained).provenance


def test_a_run_is_not_written_over_its_teacher(vitkit: Any, data: Path, trained: Path, tmp_path: Path) -> None:
    teacher = runs.copy_of(trained, tmp_path / "teacher")
    flags = (*runs.FLAGS, "--model", "deit_micro_distilled_patch8_16", "--epochs", 1, "--teacher", teacher)
    vitkit("train", data, *flags, "--out", teacher, "--force").refused("training.out-overwrites", str(teacher))
    runs.assert_same_weights(teacher, trained)


def test_what_lies_in_a_run_is_named_among_its_files(trained: Path) -> None:
    known = {*run_files.FILES, run_files.BOARD, run_files.LAST.parts[0], WEIGHTS, DESCRIPTION, RECORD, TRUST}
    assert {path.name for path in trained.iterdir() if not path.name.startswith(".")} <= known
