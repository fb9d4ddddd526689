"""Tables of an evaluation, as HTML."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from vitkit.evaluation.metrics import Evaluation
from vitkit.evaluation.multilabel import MultiEvaluation, cross_fitted
from vitkit.evaluation.operating import SHARES
from vitkit.evaluation.registry import METRICS
from vitkit.text.html import decimals, table

_HEADLINES = ("accuracy", "balanced_accuracy")


def multi_headline(evaluation: Evaluation) -> str:
    """The first figures of a report, as HTML."""
    summary = evaluation.summary()
    others = [metric for metric in METRICS["multi"].values() if metric.name not in _HEADLINES]
    detail = ", ".join(f"{escape(metric.title)} {decimals(summary[metric.name])}" for metric in others)
    images = escape(evaluation.described)
    if evaluation.chosen and isinstance(evaluation, MultiEvaluation):
        detail += f"; macro F1 with cross-fitted thresholds {decimals(cross_fitted(evaluation)['macro_f1'])}"
    return (
        f'<p><span class="figure">{100 * evaluation.accuracy:.1f} %</span> exact match on {images}'
        f' <span class="soft">({detail})</span></p>'
    )


def multi_class_table(evaluation: Evaluation) -> str:
    """Each class with its threshold, as an HTML table."""
    keys = ("threshold", "precision", "recall", "f1", "average_precision")
    rows = [
        [
            escape(name),
            *(decimals(row[key]) for key in keys),
            str(row["support"]),
        ]
        for name, row in evaluation.per_class().items()
    ]
    return table(rows, ["class", "threshold", "precision", "recall", "F1", "average precision", "images"])


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
