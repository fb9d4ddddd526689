"""One self-contained HTML page about a run: it opens offline, years later, on any machine."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from vitkit.evaluate.metrics import Evaluation
from vitkit.files import write_text

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.2rem; border-bottom: 1px solid var(--line); }
.figure { font-size: 2.6rem; font-weight: 600; } .soft { opacity: .75; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
tr + tr td { border-top: 1px solid var(--line); }
img { max-width: 100%; background: white; border: 1px solid var(--line); }
.finding { background: var(--soft); border-left: 4px solid #E69F00; padding: .3rem .8rem; margin: .4rem 0; }
pre { background: var(--soft); padding: .8rem; overflow-x: auto; }
"""


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
        *[f'<p class="finding">{escape(finding)}</p>' for finding in findings],
        "<h2>The run</h2>",
        _table([[escape(name), escape(value)] for name, value in facts.items()]),
        "<h2>Each class</h2>",
        _class_table(evaluation),
        *[_figure(caption, picture) for caption, picture in pictures.items() if picture.is_file()],
        "<h2>Recipe</h2>",
        f"<pre>{escape(recipe)}</pre>",
    ]
    page = (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>\n'
    )
    write_text(path, page + "\n".join(body) + "\n</html>\n")


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
    return _table(rows, header)


def _table(rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        kinds = ["", *[' class="number"' if header else ""] * (len(cells) - 1)]
        return (
            "<tr>" + "".join(f"<{tag}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)) + "</tr>"
        )

    lines = [line(header, "th")] if header else []
    return "<table>" + "\n".join(lines + [line(row, "td") for row in rows]) + "</table>"


def _figure(caption: str, picture: Path) -> str:
    data = base64.b64encode(picture.read_bytes()).decode()
    return f'<h2>{escape(caption)}</h2><img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
