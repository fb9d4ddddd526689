"""One self-contained HTML page about a run: it opens offline, years later, on any machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from vitkit.evaluate.metrics import Evaluation
from vitkit.page import figure, finding, table, write_page


def write_report(
    path: Path,
    *,
    title: str,
    evaluation: Evaluation,
    facts: Mapping[str, str],
    findings: Sequence[str],
    pictures: Mapping[str, Path],
    recipe: str,
) -> None:
    """Write the page.

    Args:
        path: the HTML file.
        title: the run's name.
        evaluation: its outcome on held-out images.
        facts: what was trained, on what, by what.
        findings: what the reader should know about the data, one sentence each; shown first.
        pictures: caption and PNG file, put into the page itself.
        recipe: the resolved recipe, as TOML.
    """
    body = [
        f"<h1>{escape(title)}</h1>",
        _headline(evaluation),
        *map(finding, findings),
        "<h2>The run</h2>",
        table([[escape(name), escape(value)] for name, value in facts.items()]),
        "<h2>Each class</h2>",
        _class_table(evaluation),
        *[figure(caption, picture.read_bytes()) for caption, picture in pictures.items() if picture.is_file()],
        "<h2>Recipe</h2>",
        f"<pre>{escape(recipe)}</pre>",
    ]
    write_page(path, title, body)


def _headline(evaluation: Evaluation) -> str:
    accuracy, balanced = 100 * evaluation.accuracy, 100 * evaluation.balanced_accuracy
    images = f"{len(evaluation.labels)} {escape(evaluation.split)} images"
    detail = f"(balanced {balanced:.1f} %, log loss {evaluation.loss:.3f})"
    return (
        f'<p><span class="figure">{accuracy:.1f} %</span> accuracy on {images} <span class="soft">{detail}</span></p>'
    )


def _class_table(evaluation: Evaluation) -> str:
    header = ["class", "precision", "recall", "F1", "images"]
    rows = [
        [escape(name), *(f"{row[key]:.3f}" for key in ("precision", "recall", "f1")), str(row["support"])]
        for name, row in evaluation.per_class().items()
    ]
    return table(rows, header)
