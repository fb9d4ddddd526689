"""benchmarks/gpu.py: all stages work, and what is killed is gone on with."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
STAGES = ("environment", "train", "predict", "kernels", "loop", "verbs", "memory")


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines() if line.endswith("}")]


def ends(out: Path) -> dict[str, str]:
    return {row["stage"]: row["ended"] for row in rows(out) if "ended" in row}


@pytest.mark.accept
def test_it_is_killed_and_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "gpu.jsonl"
    command = [sys.executable, str(SCRIPT), "--smoke", "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 300
    while not (out.exists() and "environment" in ends(out)):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with out.open("a") as text:
        text.write('{"stage": "train", "key": "cut o')  # as a kill leaves it
    done = subprocess.run(command, capture_output=True, text=True, check=True)
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
