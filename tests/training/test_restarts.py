"""Runs that go on after an interrupted start, or from checkpoints that were damaged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import runs
from vitkit.errors import VitkitError
from vitkit.training import run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.photos(tmp_path_factory.mktemp("data") / "photos")


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of three epochs that tests may read but not change."""
    return run.train(runs.quick(data), tmp_path_factory.mktemp("runs") / "finished", say=lambda _: None)


def test_a_start_that_was_killed_before_its_recipe_was_written_is_overwritten(
    finished: Path, data: Path, tmp_path: Path
) -> None:
    folder = runs.copy_of(finished, tmp_path / "run")
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.name not in ("request.json", "split.json", "log.txt"):
            path.rmdir() if path.is_dir() else path.unlink()
    with pytest.raises(VitkitError, match="exists and is not empty"):
        run.train(runs.quick(data), folder, say=lambda _: None)
    with pytest.raises(VitkitError, match="repeat the command that started it, with --force"):
        run.resume(folder, say=lambda _: None)
    run.train(runs.quick(data), folder, force=True, say=lambda _: None)
    runs.assert_same_weights(folder, finished)


def test_a_recipe_of_an_earlier_version_is_read(finished: Path, tmp_path: Path) -> None:
    folder = runs.copy_of(finished, tmp_path / "run")
    recipe = folder / "recipe.toml"
    recipe.write_text(f"views = 0\nwise_ft = false\n{recipe.read_text()}")
    run.resume(folder, say=lambda _: None)
    runs.assert_same_outcome(folder, finished)
    recipe.write_text(recipe.read_text().replace("views = 0", "views = 3"))
    with pytest.raises(VitkitError, match="unknown field 'views'"):
        run.resume(folder, say=lambda _: None)
    recipe.write_text(recipe.read_text().replace("views = 3", "views = 0").replace("wise_ft = false", "wise_ft = true"))
    with pytest.raises(VitkitError, match="unknown field 'wise_ft'"):
        run.resume(folder, say=lambda _: None)


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
