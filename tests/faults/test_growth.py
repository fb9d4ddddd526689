"""Nothing grows faster than what it is asked about: the promised figures, for two quiet cores. Run by `make accept`."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.accept
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "growth.py"
AT_LEAST = ("predict",)  # of these the promised figure is the least, of others the most


SHORT = pytest.mark.xfail(
    reason="reading takes 0.7 ms a picture: 97 s of two cores where 20 were promised", strict=True
)


@pytest.mark.parametrize(
    "what", ["report", "evaluate", "embed", pytest.param("doctor", marks=SHORT), "predict", "train"]
)
def test_what_is_promised_of_growth_holds(what: str, tmp_path: Path) -> None:
    small = ("--model", "vit_micro_patch4_16") if what == "embed" else ()
    trained = ("--trained", "vit_micro_patch4_16") if what == "train" else ()
    command = [sys.executable, str(SCRIPT), "--only", what, "--out", str(tmp_path), *small, *trained]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (table,) = tmp_path.glob("growth_*.csv")
    with table.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["promised"]]
    assert rows
    sign = -1 if what in AT_LEAST else 1
    assert all(sign * float(row["value"]) <= sign * float(row["promised"]) for row in rows), rows


@pytest.mark.parametrize("what", ["report", "embed", "doctor", "train"])
def test_every_part_of_the_script_runs(what: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--smoke", "--only", what, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
