"""Tables of an evaluation, as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import islice
from typing import Any

from vitkit.evaluation.operating import SHARES
from vitkit.text.html import decimals, table

_HEADLINES = ("accuracy", "balanced_accuracy")


def class_table(rows: Mapping[str, Mapping[str, Any]], most: int) -> str:
    """Each class of the first `most` with its figures, as an HTML table."""
    heads = ["class", "precision", "recall", "F1", "images", "ROC area", "average precision"]
    return _of_classes(rows, most, heads, ("precision", "recall", "f1", "support", "roc_auc", "average_precision"))


def multi_class_table(rows: Mapping[str, Mapping[str, Any]], most: int) -> str:
    """The same with its threshold."""
    heads = ["class", "threshold", "precision", "recall", "F1", "average precision", "images"]
    return _of_classes(rows, most, heads, ("threshold", "precision", "recall", "f1", "average_precision", "support"))


def _of_classes(rows: Mapping[str, Mapping[str, Any]], most: int, heads: Sequence[str], keys: Sequence[str]) -> str:
    def cell(value: float | None) -> str:
        return str(value) if isinstance(value, int) else decimals(value)

    return table([[escape(name), *(cell(row[key]) for key in keys)] for name, row in islice(rows.items(), most)], heads)


def operating_table(numbers: Mapping[str, Any]) -> list[str]:
    """Both, side by side, as HTML; nothing where there is little to choose."""
    found = numbers.get("operating_points")
    if found is None:
        return []
    names = ("data", "uniform")
    heads = [f"{SHARES[name]}{' (chosen)' if name == found['chosen'] else ''}" for name in names]
    rows = [[what.replace("_", " "), *(f"{found[name][what]:.3f}" for name in names)] for what in _HEADLINES]
    for own in found["data"]["recall"]:
        values = [found[name]["recall"][own] for name in names]
        rows.append([f"recall of {escape(own)}", *("none" if value is None else f"{value:.3f}" for value in values)])
    words = (
        "Answers and confidences can be for classes as frequent as they were in training, or for all alike, which "
        "finds more of the rare ones and is wrong more often in all (--prior)."
    )
    return ["<h2>The operating point</h2>", f"<p>{words}</p>", table(rows, ["", *heads])]
