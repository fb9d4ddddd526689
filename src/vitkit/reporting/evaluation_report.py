"""One self-contained HTML page about a run: it opens offline, years later, on any machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from vitkit.classifier import Classifier
from vitkit.evaluation import multilabel
from vitkit.evaluation.calibration import Reliability
from vitkit.evaluation.doubts import Doubt
from vitkit.evaluation.embedding import embed
from vitkit.evaluation.figures import interval_text
from vitkit.evaluation.metrics import Evaluation
from vitkit.evaluation.registry import METRICS
from vitkit.reporting import plots
from vitkit.reporting.gallery import gallery
from vitkit.reporting.tables import multi_class_table, multi_headline, operating_table
from vitkit.text.html import decimals, figure, finding, table, write_page

_PHOTOGRAPHS, _PAIRS = 24, 20  # in a gallery; in the table of confused classes
_BESIDE = {  # what is said of an evaluation beside its figures
    "ece_before_temperature": "the calibration error at temperature 1",
    "temperature": "temperature",
    "roc_auc": "area under ROC, mean of classes",
    "average_precision": "average precision, mean of classes",
}


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
    doubts: Sequence[Doubt] = (),
    recipe: str = "",
    explained: str | None = None,
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
        pictures: caption and PNG, put into the page itself.
        doubts: labels that are likely wrong, the most doubtful first.
        recipe: the resolved recipe, as TOML.
        explained: the file beside it that shows what speaks for the mistakes.
    """
    is_multi = isinstance(evaluation, multilabel.MultiEvaluation)
    body = [
        f"<h1>{escape(title)}</h1>",
        multi_headline(evaluation) if is_multi else _headline(evaluation, numbers),
        *map(finding, findings),
        "<h2>The run</h2>",
        table([[escape(name), escape(value)] for name, value in facts.items()]),
        *([] if is_multi else ["<h2>Figures</h2>", _figure_table(numbers)]),
        *operating_table(numbers),
        "<h2>Each class</h2>",
        multi_class_table(evaluation) if is_multi else _class_table(numbers),
        *([] if is_multi else _mistakes(evaluation, numbers, root, explained)),
        *([] if root is None else _doubts(doubts, root)),
        *[figure(caption, picture) for caption, picture in pictures.items()],
        *(["<h2>Recipe</h2>", f"<pre>{escape(recipe)}</pre>"] if recipe else []),
    ]
    write_page(path, title, body)


def draw(
    classifier: Classifier,
    evaluation: Evaluation,
    root: Path | None,
    progress: Callable[[int, int], None],
) -> dict[str, Figure]:
    """The pictures of an evaluation by their captions.

    Args:
        classifier: whose evaluation it is.
        evaluation: of it.
        root: the folder that the paths of its images are relative to; None where they are no files.
        progress: told of how many images the features are computed, of how many.
    """
    if isinstance(evaluation, multilabel.MultiEvaluation):
        return {}
    labels, classes, now = (
        evaluation.labels,
        evaluation.classes,
        Reliability.of(evaluation.probabilities, evaluation.labels),
    )
    title = f"{evaluation.split} split: {100 * evaluation.accuracy:.1f} % right"
    states = {"as it is": now}
    if evaluation.temperature != 1:
        states = {"temperature 1": evaluation.untempered, f"temperature {evaluation.temperature:.2f}": now}
    figures = {
        "Confusion": plots.confusion(evaluation.confusion(plots.MOST_SHADED), classes, title),
        "Confidence and accuracy": plots.reliability(states),
        "ROC and precision-recall": plots.ranking(evaluation.standings, labels, evaluation.probabilities, classes),
    }
    laid_out = None if root is None else embed(classifier, evaluation, root, progress)
    if laid_out is not None:
        chosen, points = laid_out
        is_right = (evaluation.predicted == labels)[chosen]
        figures["Held-out images as the model sees them"] = plots.embedding(
            points, labels[chosen], is_right, classes, len(labels)
        )
    return figures


def _headline(evaluation: Evaluation, numbers: Mapping[str, Any]) -> str:
    bounds = interval_text([100 * bound for bound in numbers["intervals_95"]["accuracy"]], 1)
    images = escape(evaluation.described)
    detail = f"(95 %: {bounds}; balanced {100 * numbers['balanced_accuracy']:.1f} %, "
    return (
        f'<p><span class="figure">{100 * numbers["accuracy"]:.1f} %</span> accuracy on {images} '
        f'<span class="soft">{detail}log loss {numbers["loss"]:.3f})</span></p>'
    )


def _figure_table(numbers: Mapping[str, Any]) -> str:
    rows = []
    names = {name: metric.title for name, metric in METRICS["single"].items()} | _BESIDE
    for key, name in names.items():
        if numbers.get(key) is not None:
            bounds = numbers["intervals_95"].get(key)
            interval = "" if bounds is None else interval_text(bounds, 4)
            rows.append([escape(name), f"{numbers[key]:.4f}", interval])
    return table(rows, ["", "", "95 % interval"])


def _class_table(numbers: Mapping[str, Any]) -> str:
    header = ["class", "precision", "recall", "F1", "images", "ROC area", "average precision"]
    rows = [
        [
            escape(name),
            *(decimals(row[key]) for key in ("precision", "recall", "f1")),
            str(row["support"]),
            *(decimals(row[key]) for key in ("roc_auc", "average_precision")),
        ]
        for name, row in numbers["per_class"].items()
    ]
    return table(rows, header)


def _mistakes(
    evaluation: Evaluation, numbers: Mapping[str, Any], root: Path | None, explained: str | None
) -> list[str]:
    if not numbers["confused"]:
        return ["<h2>Mistakes</h2>", "<p>There are none.</p>"]
    pairs = [
        [escape(own["true"]), escape(own["predicted"]), str(own["count"]), f"{100 * own['share']:.1f} %"]
        for own in numbers["confused"][:_PAIRS]
    ]
    confused = [
        "<h2>Classes most often confused</h2>",
        table(pairs, ["true", "predicted", "images", "of the true class"]),
    ]
    if root is None:
        return confused
    classes, confidence = evaluation.classes, evaluation.probabilities.max(axis=1)
    photographs = [
        (
            root / evaluation.paths[i],
            (
                f"true: {classes[evaluation.labels[i]]}",
                f"predicted: {classes[evaluation.predicted[i]]} {100 * confidence[i]:.1f} %",
                evaluation.paths[i],
            ),
        )
        for i in evaluation.mistakes(_PHOTOGRAPHS)
    ]
    return [
        *confused,
        "<h2>The most confident mistakes</h2>",
        *([f'<p><a href="{escape(explained)}">Where in them the answers come from</a></p>'] if explained else []),
        gallery(photographs),
    ]


def _doubts(doubts: Sequence[Doubt], root: Path) -> list[str]:
    if not doubts:
        return []
    shown = [
        (root / own.path, (f"label: {own.label}", f"looks like: {own.suggested} (by {own.score:.2f})", own.path))
        for own in doubts[:_PHOTOGRAPHS]
    ]
    words = (
        f"{len(doubts)} labels do not fit what the other images teach; the most doubtful come first. Many of them are "
        "right and only hard: look before you change one. All are in label_errors.csv."
    )
    return ["<h2>Labels to look at</h2>", f"<p>{words}</p>", gallery(shown)]
