"""Ten processes at one place, for real: one works, nine say who does, and nothing is damaged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import runs
from vitkit.train import run
from vitkit.weights import load

pytestmark = pytest.mark.accept
MANY = 10


def at_once(*arguments: str | Path) -> list[tuple[int, str]]:
    """Exit code and stderr of ten processes that run the same command."""
    command = [sys.executable, "-m", "vitkit", *map(str, arguments)]
    crowd = [
        subprocess.Popen(
            command, env=runs.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8"
        )
        for _ in range(MANY)
    ]
    return [(process.returncode, err) for process in crowd for err in [process.communicate(timeout=600)[1]]]


def assert_one_won(outcomes: list[tuple[int, str]]) -> None:
    assert sorted(code for code, _ in outcomes) == [0, *[2] * (MANY - 1)], outcomes
    for code, err in outcomes:
        assert "Traceback" not in err
        assert code == 0 or "is being written by process" in err, err


def test_ten_trainings_at_one_new_folder_and_at_a_run(tmp_path: Path) -> None:
    data = runs.photos(tmp_path / "photos")
    whole = run.train(runs.quick(data, epochs=30), tmp_path / "whole", say=lambda _: None)
    flags = [*runs.FLAGS, "--epochs", "30", "--out", tmp_path / "run"]
    for extra in ([], ["--force"]):
        assert_one_won(at_once("train", data, *flags, *extra))
        runs.assert_same_weights(tmp_path / "run", whole)
        assert runs.metrics(tmp_path / "run") == runs.metrics(whole)
        assert load(tmp_path / "run").provenance["metrics"] == load(whole).provenance["metrics"]
        assert not list((tmp_path / "run").rglob(".*"))
