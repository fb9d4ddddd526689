"""Runs that stop within an epoch continue after the same step: the same samples, weights and figures."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import runs
import warm
from hearing import heard
from once import once
from vitkit.data import Augment, ImageData, ImageTable, Preprocess
from vitkit.errors import Interrupted
from vitkit.system import LAST, reporting_to
from vitkit.training import Loop, Recipe, run

pytestmark = pytest.mark.usefixtures("no_reports")
DROPPING = {"dropout": 0.2, "attention_dropout": 0.1, "drop_path": 0.2}
CASES: dict[str, dict[str, Any]] = {
    "several classes, mixed, accumulated, averaged": {
        "batch_size": 4, "grad_accum": 2, "mixup": 0.4, "cutmix": 1.0, "ema": 0.9, "balance": "loss", **DROPPING,
    },
    "averaged by epochs": {"swa": 0.5, "swa_lr": 1e-4, "step_per": "epoch"},
    "rare classes shown more often": {
        "balance": "sampler", "patience": 2, "rand_augment": 6, "random_erasing": 0.5, "precision": "float16",
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def data() -> Path:
    """39 images to train on, in five batches of eight."""
    return once("within-photos", lambda place: runs.photos(place, images=18))


def recipe_of(data: Path, case: str, **fields: Any) -> Recipe:
    return runs.quick(runs.shared_overlaid() if "several" in case else data, **CASES[case], **fields)


def finished(data: Path, case: str) -> Path:
    """An uninterrupted run of three epochs."""
    return once(f"within-{list(CASES).index(case)}", lambda place: run.train(recipe_of(data, case), place))


def signal_at(epoch: int, steps: int) -> Callable[[str, int, int | None], None]:
    """A progress that sends SIGTERM once after so many steps of an epoch, counted from 1."""
    sent: list[int] = []

    def progress(now: str, done: int, total: int | None) -> None:
        if not sent and now == f"epoch {epoch}/3" and done == steps:
            sent.append(os.getpid())
            os.kill(os.getpid(), signal.SIGTERM)

    return progress


def stored(folder: Path) -> dict[str, Any]:
    return dict(torch.load(folder / LAST, weights_only=True))


@pytest.mark.parametrize("case", [name for name in CASES if name != "averaged by epochs"])
def test_a_signal_within_an_epoch_saves(data: Path, tmp_path: Path, case: str) -> None:
    folder, lines = tmp_path / "run", list[str]()
    with reporting_to(signal_at(2, 2)), pytest.raises(Interrupted) as caught, heard(lines.append):
        run.train(recipe_of(data, case), folder)
    assert caught.value.signal_number == signal.SIGTERM
    assert lines[-3].startswith("saved after step 8, batch "), lines
    assert stored(folder)["epoch"] == 1
    with reporting_to(signal_at(3, 4)), pytest.raises(Interrupted):
        run.resume(folder)
    run.resume(folder)
    runs.assert_same_outcome(folder, finished(data, case))


def test_a_signal_in_the_validation_of_an_epoch_does_not_repeat_its_steps(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, case = tmp_path / "run", "averaged by epochs"
    expected = finished(data, case)  # before anything is replaced
    plain, validations = Loop.validate, list[int]()

    def validate(loop: Loop) -> Any:
        validations.append(loop.state.epoch)
        if len(validations) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(loop)

    monkeypatch.setattr(Loop, "validate", validate)
    with pytest.raises(Interrupted):
        run.train(recipe_of(data, case), folder)
    assert stored(folder)["is_trained"]
    taken: list[int] = []
    monkeypatch.setattr(Loop, "take_step", lambda loop, *_: taken.append(loop.state.step))
    run.resume(folder)
    assert taken == []
    runs.assert_same_outcome(folder, expected)


class Killed(BaseException):
    """What a test ends a run with, without a chance to save."""


def test_a_killed_run_loses_no_more_than_what_came_after_its_checkpoint(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, plain, case = tmp_path / "run", Loop.take_step, "several classes, mixed, accumulated, averaged"

    def step(loop: Loop, *arguments: Any) -> None:
        if loop.state.step == 8:
            raise Killed
        plain(loop, *arguments)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Loop, "take_step", step)
        run.train(recipe_of(data, case, save_every="0.001s"), folder)
    state = stored(folder)
    assert state["epoch"] == 1 and state["batch"] > 0 and 5 < state["step"] <= 8
    run.resume(folder)
    whole = finished(data, case)
    recipes = [(each / "recipe.toml").read_text() for each in (folder, whole)]
    assert recipes[0].replace('save_every = "0.001s"\n', "") == recipes[1]
    runs.assert_same_weights(folder, whole)
    assert runs.metrics(folder) == runs.metrics(whole)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 3), st.booleans(), st.data())
def test_the_rest_of_an_epoch_is_the_rest_for_any_number_of_processes(
    train: int, batch_size: int, size: int, balanced: bool, drawn: st.DataObject
) -> None:
    paths = tuple(f"{i}.png" for i in range(train))
    table = ImageTable("made", Path("/"), ("a", "b"), paths, tuple(i % 2 for i in range(train)), ("train",) * train)
    whole = [
        ImageData(
            table, Preprocess(size=(16, 16)), Augment(), batch_size=batch_size, workers=0, seed=5, balanced=balanced,
            process=(rank, size),
        )
        for rank in range(size)
    ]  # fmt: skip
    batches = list(whole[0]._batch_sampler())
    first = drawn.draw(st.integers(0, len(batches)))
    for data in whole:
        sampler = data._batch_sampler()
        every = list(sampler)
        sampler.first = first
        assert list(sampler) == every[first:]
        assert len(sampler) == len(every) - first


@pytest.mark.accept
def test_two_processes_survive_a_kill_a_signal_and_a_kill_in_the_middle_of_a_save() -> None:
    command = [sys.executable, str(Path(__file__).parents[2] / "benchmarks" / "kills.py"), "--smoke"]
    env = os.environ | runs.environment() | {"KILLS_PYTHON": warm.python(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kills 3 " in done.stdout
    assert "samples_exact True   difference 0.0 " in done.stdout
