"""Processes that prepare images, and that die: a line with the cure, and the best model stays."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import runs
from vitkit.data import decode
from vitkit.errors import VitkitError
from vitkit.train import run


def test_a_worker_that_is_killed_ends_the_run_in_a_line_and_the_best_model_stays(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def kill(what: str, done: int, total: int) -> None:
        if what == "epoch 2/3" and done == 1:
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            for child in children:
                os.kill(int(child), signal.SIGKILL)

    recipe = runs.quick(runs.photos(tmp_path / "photos", images=40), workers=1)
    with pytest.raises(VitkitError) as caught:
        run.train(recipe, folder, say=lambda _: None, progress=kill)
    said = str(caught.value)
    assert "a process that prepares images ended" in said
    assert f"set workers = 0 in {folder / 'recipe.toml'}; the best model so far is in {folder}" in said
    assert len(said.splitlines()) == 1
    text = (folder / "recipe.toml").read_text()
    (folder / "recipe.toml").write_text(text.replace("workers = 1", "workers = 0"))
    run.resume(folder, say=lambda _: None)
    assert (folder / "report.html").is_file()


def test_memory_that_is_short_is_not_called_damage(tmp_path: Path) -> None:
    assert decode.reason(tmp_path, MemoryError()) == "there is too little memory to decode it now"
