"""`vitkit train`: flags reach the recipe, and a real process does, says and exits as promised."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import runs
import warm
from vitkit.system.environment import best_precision
from vitkit.training import Recipe, build, load_fields, run
from vitkit.training.recipe import SET_ONLY
from vitkit.weights import load

# --- In this process --------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Any], Any, dict[str, Any]]]:
    """What the command asks of `run.train`, which is not run."""
    calls: list[tuple[dict[str, Any], Any, dict[str, Any]]] = []
    monkeypatch.setattr(run, "train", lambda recipe, out, **options: calls.append((recipe, out, options)))
    return calls


def test_flags_become_fields_of_the_recipe(vitkit: Any, asked: list[Any], tmp_path: Path) -> None:
    given = ("--lr", "1e-3", "--split", "0.5", "0.2", "0.3", "--no-hflip", "--crop-scale", "0", "0", "--time", "10m")
    assert vitkit("train", tmp_path, "--epochs", 7, *given, "--keep", "every").code == 0
    assert asked[0][0].fields == {
        "data": str(tmp_path),
        "epochs": 7,
        "lr": 1e-3,
        "split": (0.5, 0.2, 0.3),
        "hflip": False,
        "crop_scale": (0.0, 0.0),
        "time": "10m",
        "keep": "every",
    }


def test_flags_go_before_the_recipe_file(vitkit: Any, asked: list[Any], tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(f'data = "{tmp_path}"\nepochs = 7\nhflip = false\nseed = 3\n')
    assert vitkit("train", "--recipe", tmp_path / "mine.toml", "--epochs", 9, "--hflip").code == 0
    assert asked[0][0].fields == {"data": str(tmp_path), "epochs": 9, "hflip": True, "seed": 3}


def test_every_field_of_the_recipe_but_the_data_can_be_set(vitkit: Any, asked: list[Any], tmp_path: Path) -> None:
    flags = []
    for name, value in build({}).__dict__.items():
        if isinstance(value, bool) and name not in SET_ONLY:
            flags.append(f"--{'' if value else 'no-'}{name.replace('_', '-')}")
        elif name in SET_ONLY:
            flags += [] if value is None else ["--set", f"{name}={value}"]
        elif name != "data" and value is not None:
            flags += [f"--{name.replace('_', '-')}", *(map(str, value) if isinstance(value, tuple) else [str(value)])]
    assert vitkit("train", tmp_path, *flags).code == 0
    assert asked[0][0].recipe == Recipe(data=str(tmp_path))


def test_resume_finishes_a_run(vitkit: Any, trained: Path, tmp_path: Path) -> None:
    folder = runs.copy_of(trained, tmp_path / "run")
    outcome = vitkit("train", "--resume", folder)
    assert (outcome.code, outcome.err) == (0, "")
    runs.assert_same_weights(folder, trained)


@pytest.mark.parametrize("extra", [("photos",), ("--epochs", "5"), ("--out", "x"), ("--recipe", "digits")])
def test_resume_takes_no_other_flags(vitkit: Any, trained: Path, extra: tuple[str, ...]) -> None:
    outcome = vitkit("train", *extra, "--resume", trained)
    assert outcome.code == 2
    assert outcome.err == "error: --resume takes everything from the run: leave out the data and the other flags\n"


def test_force_writes_over_a_run(vitkit: Any, data: Path, trained: Path, tmp_path: Path) -> None:
    folder = runs.copy_of(trained, tmp_path / "run")
    flags = (*runs.FLAGS, "--epochs", 1, "--seed", 5)
    assert vitkit("train", data, *flags, "--out", folder, "--force").code == 0
    assert load(folder).provenance["recipe"]["seed"] == 5
    assert len(runs.metrics(folder)) == 1


# --- As a process -----------------------------------------------------------------------------------


def test_a_run_says_what_it_does_and_nothing_else(data: Path, trained: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [warm.vitkit(), "train", data, *runs.FLAGS, "--out", "run"],
        cwd=tmp_path, env=runs.environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    starts = [
        "vitkit ",
        "folders read as classes: 3",
        "3 classes; images: 27 train, 3 val, 6 test",
        "3 epochs of 4 steps in float32",
    ]
    starts += [f"epoch   {epoch}/3  train_loss " for epoch in (1, 2, 3)]
    starts += ["unknown images are recognised by "]
    starts += ["trained in float32, evaluated in bfloat16"] if best_precision("cpu") == "bfloat16" else []
    starts += ["temperature ", "accuracy "]
    lines = done.stdout.splitlines()
    assert len(lines) == len(starts), done.stdout
    assert [line for line, start in zip(lines, starts, strict=True) if not line.startswith(start)] == []
    assert lines[-1].endswith(f"report: {Path('run', 'report.html')}")
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


# --- A full disk ------------------------------------------------------------------------------------


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def bytes_of_model(run: Path) -> int:
    return (run / "model.safetensors").stat().st_size


def test_a_full_disk_is_an_error_that_keeps_the_model(vitkit: Any, trained: Path, data: Path, tmp_path: Path) -> None:
    with files_of_at_most(bytes_of_model(trained) * 5 // 4):  # too little for the optimiser's state
        outcome = vitkit("train", data, *runs.FLAGS, "--out", tmp_path / "run")
    assert outcome.code == 2
    assert re.fullmatch(r"error: .*last\.ckpt.*[Tt]oo large.*\n", outcome.err)
    assert load(tmp_path / "run").classes == ("blue", "green", "red")
    assert list((tmp_path / "run").rglob("*.tmp")) == []


def test_a_disk_that_fills_while_a_later_model_is_saved_keeps_the_earlier_one(
    vitkit: Any, trained: Path, tmp_path: Path
) -> None:
    folder = runs.copy_of(trained, tmp_path / "run")
    recipe = build(load_fields(folder / "recipe.toml")).replace(epochs=5, keep="last")
    (folder / "recipe.toml").write_text(recipe.to_toml())
    with files_of_at_most(bytes_of_model(trained) * 5 // 8):
        outcome = vitkit("train", "--resume", folder)
    assert outcome.code == 2
    assert re.fullmatch(r"error: .*model\.safetensors.*\n", outcome.err)
    runs.assert_same_weights(folder, trained)
    assert load(folder).provenance == load(trained).provenance
