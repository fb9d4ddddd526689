"""benchmarks/gpu.py: all stages work, what is killed is gone on with, and what takes too long is left out."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import warm

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
STAGES = ("environment", "train", "predict", "kernels", "loop", "verbs", "memory")


def command(out: Path, *flags: str, python: str = sys.executable) -> list[str]:
    return [python, str(SCRIPT), "--smoke", "--out", str(out), *flags]


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines() if line.endswith("}")]


def ends(out: Path) -> dict[str, str]:
    return {row["stage"]: row["ended"] for row in rows(out) if "ended" in row}


@pytest.mark.accept
def test_it_is_killed_and_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "gpu.jsonl"
    process = subprocess.Popen(command(out), stdout=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 300
    while not (out.exists() and "environment" in ends(out)):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with out.open("a") as text:
        text.write('{"stage": "train", "key": "cut o')  # as a kill leaves it
    done = subprocess.run(command(out), capture_output=True, text=True, check=True)
    assert ends(out) == dict.fromkeys(STAGES, "done"), done.stdout + done.stderr
    of_stage = {stage: [row for row in rows(out) if row["stage"] == stage] for stage in STAGES}
    assert len([row for row in of_stage["environment"] if row["key"] == "environment"]) == 1, "it was not repeated"
    for stage, name in (
        ("train", "images_per_s"),
        ("predict", "times_best_peer"),
        ("loop", "waiting"),
        ("memory", "mib"),
    ):
        assert [row for row in of_stage[stage] if row.get(name) is not None], stage
    assert {row["key"] for row in of_stage["verbs"]} >= {"micro/4 predict", "micro/4 embed", "micro/4 explain"}
    left_out = {row["key"] for row in rows(out) if "left_out" in row}
    # CPUs have no attention by cuDNN.
    assert left_out <= {f"micro/4 cudnn_attention {way}" for way in ("forward", "forward and backward")}
    assert "predict micro/4 batch 2 vitkit eager" in done.stdout


@pytest.mark.accept
def test_a_stage_that_takes_too_long_is_dropped_with_a_line(tmp_path: Path) -> None:
    out = tmp_path / "gpu.jsonl"
    flags = ("--budget", "2s", "--limit", "1s")  # of which importing torch takes more
    driven = command(out, *flags, python=warm.python())  # its stages do not begin warm
    done = subprocess.run(driven, capture_output=True, text=True, check=True)
    assert ends(out)["environment"] == "dropped: it reached its limit of 1 s"
    assert "memory: left out, the budget is used up" in done.stdout
    assert "no row can be compared with a target" in done.stdout
