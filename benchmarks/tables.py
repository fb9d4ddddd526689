"""Where results go: results/<what>_<hardware>_<precision>_<torch>_<yyyymmdd>.csv."""

from __future__ import annotations

import csv
import os
import platform
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"
CPU = torch.device("cpu")


def hardware(device: torch.device) -> str:
    """Of the device that computes: `x86_64-2core`, or a GPU's name."""
    if device.type == "cuda":
        return re.sub(r"\W+", "-", torch.cuda.get_device_name(device)).strip("-")
    return f"{platform.machine()}-{os.cpu_count()}core"


def result_path(what: str, precision: str, device: torch.device = CPU, folder: Path = RESULTS) -> Path:
    """The table's file; a picture takes the same name with another suffix."""
    name = f"{what}_{hardware(device)}_{precision}_torch{version('torch').partition('+')[0]}_{date.today():%Y%m%d}.csv"
    return folder / name


def write_table(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """One line a row; the columns are those of the first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def save_table(what: str, precision: str, rows: Sequence[dict[str, Any]]) -> None:
    """What was measured on the CPU, among the results; the path is printed."""
    path = result_path(what, precision)
    write_table(path, rows)
    print(path)


def read_table(path: Path) -> list[dict[str, Any]]:
    """The rows of a table, as they were; none where there is no file yet."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        return [{name: _value(text) for name, text in row.items()} for row in csv.DictReader(stream)]


def _value(text: str) -> Any:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text or None


def show(row: dict[str, Any], names: Sequence[str] | None = None) -> str:
    """A row as a line of text, or those of its values."""
    return "   ".join(f"{name} {row[name]}" for name in names or row if row[name] is not None)
