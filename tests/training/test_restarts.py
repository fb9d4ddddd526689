"""One command for the start and every restart of a run, and checkpoints that were damaged in between."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import runs
import vitkit
from vitkit.errors import Interrupted, VitkitError
from vitkit.system import exclusive_in, reporting_to
from vitkit.training import run

FIELDS = {**runs.quick_fields(), "model_fields": runs.SIZE}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.photos(tmp_path_factory.mktemp("data") / "photos")


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of three epochs that tests may read but not change."""
    return run.train(runs.quick(data), tmp_path_factory.mktemp("runs") / "finished", say=lambda _: None)


def start(data: Path, out: Path, **fields: Any) -> list[str]:
    """What the command says that serves the start and every restart."""
    lines: list[str] = []
    vitkit.train(data, out=out, resume_if_there=True, say=lines.append, **{**FIELDS, **fields})
    return lines


# --- The command ------------------------------------------------------------------------------------


def test_one_command_starts_a_run_and_continues_it(finished: Path, data: Path, tmp_path: Path) -> None:
    def signal_in_epoch(now: str, done: int, total: int) -> None:
        if now == "epoch 2/3" and done == total:
            os.kill(os.getpid(), signal.SIGTERM)

    with reporting_to(signal_in_epoch), pytest.raises(Interrupted):
        start(data, tmp_path / "run")
    lines = start(data, tmp_path / "run")
    assert lines[0] == f"continuing the run in {tmp_path / 'run'}"
    runs.assert_same_weights(tmp_path / "run", finished)
    assert runs.metrics(tmp_path / "run") == runs.metrics(finished)


def test_a_start_that_was_killed_before_its_recipe_was_written_starts_again(
    finished: Path, data: Path, tmp_path: Path
) -> None:
    folder = runs.copy_of(finished, tmp_path / "run")
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.name not in ("request.json", "split.json", "log.txt"):
            path.rmdir() if path.is_dir() else path.unlink()
    with pytest.raises(VitkitError, match="exists and is not empty"):
        run.train(runs.quick(data), folder, say=lambda _: None)
    start(data, folder)
    runs.assert_same_weights(folder, finished)


def test_a_folder_of_something_else_is_left_alone(data: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(VitkitError, match="exists and is not empty"):
        start(data, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]


def test_a_command_of_another_run_is_refused_and_changes_nothing(finished: Path, data: Path, tmp_path: Path) -> None:
    folder = runs.copy_of(finished, tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.name != "log.txt"}
    for fields, expected in (
        ({"lr": 0.5}, "was started with lr 0.001, not 0.5: repeat the command of the run"),
        ({"seed": 7}, "with seed 0, not 7"),
    ):
        with pytest.raises(VitkitError, match=expected):
            run.train(runs.quick(data, **fields), folder, resume_if_there=True, say=lambda _: None)
    with pytest.raises(VitkitError, match=r"was started with .*, not unset"):
        start(data, folder)
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_how_long_and_by_what_a_run_is_computed_may_change(finished: Path, data: Path, tmp_path: Path) -> None:
    start(data, tmp_path / "run", epochs=2)
    lines = start(data, tmp_path / "run", epochs=3, workers=1)
    assert lines[1:3] == ["epochs is 3 now, not 2", "workers is 1 now, not 0"]
    assert [row["epoch"] for row in runs.metrics(tmp_path / "run")] == [0, 1, 2]
    assert (tmp_path / "run" / "recipe.toml").read_text().count("workers = 1") == 1


def test_the_place_must_be_named_and_not_overwritten(data: Path, tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match="name it with --out"):
        vitkit.train(data, resume_if_there=True)
    with pytest.raises(VitkitError, match="leave out one"):
        vitkit.train(data, out=tmp_path / "run", force=True, resume_if_there=True)
    with pytest.raises(VitkitError, match="--resume takes everything"):
        vitkit.train(resume=tmp_path / "run", resume_if_there=True)


def test_a_restart_waits_for_processes_of_the_attempt_before(
    finished: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitkit.training.run_folder.PATIENCE", 0.2)
    monkeypatch.setattr("vitkit.training.run.PATIENCE", 0.2)
    folder = runs.copy_of(finished, tmp_path / "run")

    def again() -> None:
        run.train(runs.quick(data), folder, resume_if_there=True, say=lambda _: None)

    with exclusive_in(folder), pytest.raises(VitkitError, match="is being written by"):
        again()
    again()


class Flat:
    """Images of one colour in memory, a class each."""

    classes = ("dark", "light")

    def __init__(self, images: int, seed: int) -> None:
        self.images, self.seed = images, seed

    def __len__(self) -> int:
        return self.images

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        drawn = np.random.default_rng((self.seed, index)).integers(0, 99, (16, 16, 3), dtype=np.uint8)
        return Image.fromarray(drawn + 99 * (index % 2)), index % 2


def test_datasets_and_pretrainings_restart_too_and_not_each_other(data: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    shared = {**FIELDS, "epochs": 1, "resume_if_there": True, "say": lines.append}
    for _ in range(2):
        vitkit.train(train_dataset=Flat(16, 0), val_dataset=Flat(8, 1), out=tmp_path / "memory", **shared)
        vitkit.pretrain(data, out=tmp_path / "encoder", **shared)
    assert [line for line in lines if line.startswith("continuing")] == [
        f"continuing the run in {tmp_path / name}" for name in ("memory", "encoder")
    ]
    with pytest.raises(VitkitError, match="is a pre-training"):
        vitkit.train(data, out=tmp_path / "encoder", **shared)
    with pytest.raises(VitkitError, match="is not a pre-training"):
        vitkit.pretrain(data, out=tmp_path / "memory", **shared)
    with pytest.raises(VitkitError, match="was started with data unset, not"):
        vitkit.train(data, out=tmp_path / "memory", **shared)


# --- Damaged checkpoints ----------------------------------------------------------------------------


def cut(path: Path, part: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])


@pytest.mark.parametrize("part", [0.0, 0.4, 0.999])
def test_a_truncated_checkpoint_falls_back_to_the_one_before(
    finished: Path, data: Path, tmp_path: Path, part: float
) -> None:
    folder, lines = runs.copy_of(finished, tmp_path / "run"), []
    last, before = folder / "checkpoints" / "last.ckpt", folder / "checkpoints" / "before.ckpt"
    cut(last, part)
    run.resume(folder, say=lines.append)
    expected = f"{last} is damaged: continuing from the checkpoint before it, {before}"
    assert lines.count(expected) == 1
    assert sum(line.startswith("epoch ") for line in lines) == 1, "the last epoch again, and no other"
    runs.assert_same_outcome(folder, finished)
    lines.clear()
    run.resume(folder, say=lines.append)
    assert not any("damaged" in line or line.startswith("epoch ") for line in lines)


def test_a_checkpoint_that_is_missing_is_replaced_by_the_one_before(finished: Path, tmp_path: Path) -> None:
    folder, lines = runs.copy_of(finished, tmp_path / "run"), []
    (folder / "checkpoints" / "last.ckpt").unlink()
    run.resume(folder, say=lines.append)
    assert any("last.ckpt is missing: continuing from the checkpoint before it" in line for line in lines)
    runs.assert_same_outcome(folder, finished)


def test_two_damaged_checkpoints_are_an_error_that_names_the_newest(finished: Path, tmp_path: Path) -> None:
    folder = runs.copy_of(finished, tmp_path / "run")
    for path in (folder / "checkpoints").glob("*.ckpt"):
        cut(path, 0.5)
    with pytest.raises(VitkitError, match=r"last\.ckpt is damaged; delete it"):
        run.resume(folder, say=lambda _: None)


def test_checkpoints_of_another_run_are_no_reason_to_fall_back(finished: Path, data: Path, tmp_path: Path) -> None:
    folder = runs.copy_of(finished, tmp_path / "run")
    other = run.train(runs.quick(data, seed=9, epochs=1), tmp_path / "other", say=lambda _: None)
    (other / "checkpoints" / "last.ckpt").replace(folder / "checkpoints" / "last.ckpt")
    with pytest.raises(VitkitError, match=r"last\.ckpt belongs to another run"):
        run.resume(folder, say=lambda _: None)


def test_the_checkpoint_before_needs_no_links(finished: Path, data: Path, tmp_path: Path, monkeypatch: Any) -> None:
    def refuse(*_: object) -> None:
        raise OSError("this file system has no links")

    monkeypatch.setattr(os, "link", refuse)
    folder = run.train(runs.quick(data), tmp_path / "run", say=lambda _: None)
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["before.ckpt", "last.ckpt"]
    cut(folder / "checkpoints" / "last.ckpt", 0.5)
    run.resume(folder, say=lambda _: None)
    runs.assert_same_outcome(folder, finished)
