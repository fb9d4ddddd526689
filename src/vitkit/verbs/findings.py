"""What the reader of an evaluation's figures should know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitkit.evaluation.metrics import Evaluation

_SHOWN = 10  # names of absent classes


def findings_of(outcome: Evaluation, numbers: dict[str, Any]) -> list[str]:
    """What the reader of the figures should know."""
    from vitkit.evaluation.headline import describe_proposals
    from vitkit.evaluation.unseen import counted_in, describe

    found = [describe_proposals(numbers), describe(numbers)]
    return [*_absent(counted_in(outcome, numbers)), *filter(None, found)]


def _absent(outcome: Evaluation) -> list[str]:
    from vitkit.evaluation.multilabel import MultiEvaluation

    if not outcome.absent:
        return []
    names = ", ".join(outcome.absent[:_SHOWN]) + (", ..." if len(outcome.absent) > _SHOWN else "")
    there = len(outcome.classes) - len(outcome.absent)
    absent = f"no image of {len(outcome.absent)} of the model's {len(outcome.classes)} classes: {names}"
    areas = "mAP" if isinstance(outcome, MultiEvaluation) else "areas"
    said = sum(row["f1"] is not None for row in outcome.per_class().values())
    f1 = f"macro F1 over the {said} that occur or are predicted"
    return [f"{absent}; balanced accuracy and {areas} are means over the {there} that occur, {f1}"]


def operating_lines(numbers: dict[str, Any]) -> list[str]:
    """Where classes differ much in size: what the answers come to for their shares in training, and for equal ones."""
    from vitkit.evaluation.operating import SHARES

    points = numbers.get("operating_points", {})
    return [
        f"for classes {shares}: accuracy {points[name]['accuracy']:.4f}, "
        f"balanced {points[name]['balanced_accuracy']:.4f}{' (chosen)' if name == points['chosen'] else ''}"
        for name, shares in SHARES.items()
        if name in points
    ]
