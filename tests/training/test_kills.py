"""Trainings that are killed for real continue with the same samples and weights (benchmarks/kills.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import runs
import warm

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kills.py"


def kills(*arguments: str, seconds: float) -> str:
    """The script's output; it fails where a sample is lost or repeated, or where weights differ."""
    command = [sys.executable, str(SCRIPT), *arguments]
    env = os.environ | runs.environment() | {"KILLS_PYTHON": warm.python(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.accept
def test_two_processes_survive_a_kill_a_signal_and_a_kill_in_the_middle_of_a_save() -> None:
    (line,) = kills("--smoke", seconds=300).splitlines()
    assert "kills 3 " in line
    assert "samples_exact True   difference 0.0 " in line
    assert "codes_of_sigterm 1 of 2" in line, "torchrun's code, whatever its processes return"


@pytest.mark.accept
def test_forty_kills_and_three_restarts() -> None:
    lines = kills("--kills", "40", "--no-table", seconds=6000).splitlines()
    assert lines[-2].startswith("what restarted by torchrun")
