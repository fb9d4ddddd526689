"""What lies in a run's folder is named in one place."""

from __future__ import annotations

import ast
import csv
import json
from pathlib import Path

from vitkit.model_folder import DESCRIPTION, RECORD, TRUST, WEIGHTS
from vitkit.system import run_files

SOURCE = Path(__file__).parents[2] / "src" / "vitkit"
NAMES = {*run_files.FILES, run_files.PREDICTIONS, run_files.LAST.name, run_files.BAD_BATCH}


def test_no_other_module_spells_a_name() -> None:
    """Where it does, one of them may change and the other not: a file would be written and not found."""
    spelt = [
        f"{path.relative_to(SOURCE)}: {node.value}"
        for path in SOURCE.rglob("*.py")
        if path.name != "run_files.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in NAMES
    ]
    assert spelt == []


def test_a_run_writes_nothing_that_the_list_lacks(trained: Path) -> None:
    """So that writing another run over it leaves nothing of it behind."""
    known = {*run_files.FILES, *run_files.LOGGED, run_files.LAST.parts[0], WEIGHTS, DESCRIPTION, RECORD, TRUST}
    assert {path.name for path in trained.iterdir() if not path.name.startswith(".")} <= known


def test_a_run_writes_down_what_it_said_of_each_held_out_image(trained: Path) -> None:
    figures = json.loads((trained / run_files.EVALUATION).read_text(encoding="utf-8"))
    with (trained / run_files.PREDICTIONS).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == figures["images"]
    assert sum(row["label"] == row["predicted"] for row in rows) / len(rows) == figures["accuracy"]
