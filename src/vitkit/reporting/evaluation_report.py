"""One self-contained HTML page about a run: it opens offline, years later, on any machine, and answers to clicks.

What is read without a script, tables and pictures, stands in the page; the views (`views.py`) take its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from vitkit.evaluation.doubts import Doubt
from vitkit.evaluation.embedding import LaidOut
from vitkit.evaluation.metrics import Evaluation
from vitkit.evaluation.multilabel import MultiEvaluation
from vitkit.reporting import plots, report_data, sections, views
from vitkit.reporting.report_photographs import Explained, Photographs
from vitkit.reporting.tables import operating_table
from vitkit.text.html import Live, figure, finding, listing, table, write_page

CONFUSION, CONFIDENCE = "Confusion", "Confidence and accuracy"
POINTS = "Held-out images as the model sees them"


def write_report(
    path: Path,
    *,
    title: str,
    evaluation: Evaluation,
    numbers: Mapping[str, Any],
    root: Path | None,
    facts: Mapping[str, str],
    findings: Sequence[str],
    pictures: Mapping[str, bytes],
    laid_out: LaidOut | None = None,
    doubts: Sequence[Doubt] = (),
    recipe: str = "",
    explained: Sequence[Explained] = (),
    tried: sections.Tried | None = None,
) -> None:
    """Write the page.

    Args:
        path: the HTML file.
        title: the run's name.
        evaluation: its outcome on held-out images.
        numbers: its figures (figures.py).
        root: the folder that the paths of its images are relative to; None where they are no files.
        facts: what was trained, on what, by what.
        findings: what the reader should know about the data, one sentence each; shown first.
        pictures: caption and PNG, put into the page itself; of `draw` and others.
        laid_out: some of its images as points.
        doubts: labels that are likely wrong, the most doubtful first.
        recipe: the resolved recipe, as TOML.
        explained: what speaks for its mistakes.
        tried: what the weights that it began from were chosen among.
    """
    photographs = Photographs.of(evaluation, root, doubts, laid_out)
    is_multi = isinstance(evaluation, MultiEvaluation)
    rest = {caption: png for caption, png in pictures.items() if caption not in (CONFUSION, CONFIDENCE, POINTS)}
    body = [
        f"<h1>{escape(title)}</h1>",
        sections.headline(numbers),
        *sections.caveat(evaluation),
        *map(finding, findings),
        *sections.classes(evaluation, numbers),
        *([] if is_multi else sections.confusion(numbers, pictures.get(CONFUSION))),
        *sections.confidence(evaluation, numbers, pictures.get(CONFIDENCE)),
        *([] if root is None else sections.gallery_of(evaluation, photographs)),
        *sections.explained(explained, photographs),
        *([] if root is None else sections.doubted(doubts, photographs)),
        *sections.points(POINTS, laid_out, pictures.get(POINTS)),
        *([] if is_multi else sections.figures(evaluation, numbers)),
        *operating_table(numbers),
        *[figure(caption, picture) for caption, picture in rest.items()],
        *sections.weights_tried(tried),
        "<h2>The run</h2>",
        table([[escape(name), escape(value)] for name, value in facts.items()]),
        *(["<h2>Recipe</h2>", listing(recipe)] if recipe else []),
    ]
    data = _data(evaluation, numbers, photographs, laid_out, doubts if root is not None else ())
    write_page(path, title, body, Live(views.styles(), views.script(), data))


def draw(evaluation: Evaluation, laid_out: LaidOut | None) -> dict[str, Figure]:
    """The pictures of an evaluation by their captions.

    Args:
        evaluation: of a classifier.
        laid_out: some of its images as points (embedding.py), which are drawn too.
    """
    if isinstance(evaluation, MultiEvaluation):
        return {}
    labels, classes, now = evaluation.labels, evaluation.classes, evaluation.reliability
    title = f"{evaluation.split} split: {100 * evaluation.accuracy:.1f} % right"
    states = {"as it is": now}
    if evaluation.temperature != 1:
        states = {"temperature 1": evaluation.untempered, f"temperature {evaluation.temperature:.2f}": now}
    figures = {
        CONFUSION: plots.confusion(evaluation.confusion(plots.MOST_SHADED), classes, title),
        CONFIDENCE: plots.reliability(states),
        "ROC and precision-recall": plots.ranking(evaluation.standings, labels, evaluation.probabilities, classes),
    }
    if laid_out is not None:
        chosen, points = laid_out
        is_right = (evaluation.predicted == labels)[chosen]
        figures[POINTS] = plots.embedding(points, labels[chosen], is_right, classes, len(labels))
    return figures


def _data(
    evaluation: Evaluation,
    numbers: Mapping[str, Any],
    photographs: Photographs,
    laid_out: LaidOut | None,
    doubts: Sequence[Doubt],
) -> dict[str, Any]:
    """What the views are given."""
    shown = photographs.listed
    has_files = photographs.root is not None
    kind = (
        "all"
        if isinstance(evaluation, MultiEvaluation) or bool((evaluation.predicted == evaluation.labels).all())
        else "wrong"
    )
    data = {
        "images": report_data.images_data(evaluation, shown),
        "photographs": photographs.addresses(),
        "classes": report_data.class_table(evaluation, numbers),
        "gallery": {"kind": kind} if has_files else None,
        "doubts": report_data.doubts_data(doubts, evaluation.classes, photographs.addresses_of_doubts()),
    }
    if isinstance(evaluation, MultiEvaluation):
        return {**data, "class_thresholds": report_data.class_thresholds(evaluation)}
    return {
        **data,
        "confusion": report_data.confusion_data(evaluation),
        "reliability": report_data.reliability_data(evaluation),
        "threshold": report_data.threshold_data(evaluation),
        "embedding": report_data.embedding_data(laid_out, shown),
    }
