"""metrics.csv: a row for each epoch of a run."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitkit.errors import VitkitError
from vitkit.system.files import regular, write_text

ZERO_SHOT = -1  # the row of a model that has learned nothing yet but what its classes are called; epochs count from 0
COLUMNS = ("epoch", "step", "train_loss", "train_acc", "val_loss", "val_acc", "lr", "seconds")


def append_metrics(path: Path, row: dict[str, Any]) -> None:
    """Add a row, under a header where the file is new; of other columns than those of every run nothing."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _columns([row]), lineterminator="\n", extrasaction="ignore")
    if not path.exists():
        writer.writeheader()
    writer.writerow(row)
    with open(path, "a", encoding="utf-8", opener=regular) as file:
        file.write(text.getvalue())


def _columns(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Those of every run, and after `val_acc` the mean average precision where images may have several classes."""
    place = COLUMNS.index("val_acc") + 1
    return (*COLUMNS[:place], "val_map", *COLUMNS[place:]) if any("val_map" in row for row in rows) else COLUMNS


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The rows of metrics.csv; a column without a value is left out of its row.

    Raises:
        VitkitError: the file is damaged.
    """
    if not path.exists():
        return []
    try:
        with open(path, encoding="utf-8", newline="", opener=regular) as file:
            rows = [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]
        if lacking := next((name for name in ("epoch", "step") for row in rows if name not in row), None):
            raise ValueError(f"a row has no {lacking}")
        if not all(math.isfinite(row["epoch"]) and math.isfinite(row["step"]) for row in rows):
            raise ValueError("a row has no whole number of epochs")
    except (ValueError, TypeError, csv.Error) as error:
        raise VitkitError(f"{path} is damaged: {error}; delete it, and the run goes on without these curves") from error
    return rows


def truncate_metrics(path: Path, epoch: int) -> None:
    """Drop the rows of this epoch and later ones: a resumed run writes them again."""
    rows = [row for row in read_metrics(path) if row["epoch"] < epoch]
    if path.exists():
        text = io.StringIO()
        writer = csv.DictWriter(text, _columns(rows), lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, "epoch": int(row["epoch"]), "step": int(row["step"])} for row in rows)
        write_text(path, text.getvalue())
