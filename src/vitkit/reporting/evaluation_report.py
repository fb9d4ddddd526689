"""Write the page about a run: one self-contained HTML file with interactive views.

The page contains tables and pictures that need no script. Interactive views replace them in browsers that run scripts.
`write_evaluation` writes a folder with the page, the figures, and the prediction for each image.

The views are JavaScript modules in `static/`, which are joined into one script in the order of their imports. For this,
each module imports only from `static/`, with one import per line, and exports with `export class` or `export function`.
The head of each module documents the format of the data that `report_data` writes for it.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from vitkit.classifier import Classifier
from vitkit.data.storage import Place
from vitkit.data.table import ImageTable
from vitkit.evaluation.embedding import LaidOut, embed
from vitkit.evaluation.figures import by_name_in_words, counted_part, tta_lines
from vitkit.evaluation.label_errors import LabelError
from vitkit.evaluation.metrics import Evaluation, MultiEvaluation
from vitkit.reporting import plots, report_data, sections
from vitkit.reporting.report_data import Explained, ReportPhotographs
from vitkit.reporting.sections import operating_table
from vitkit.system.files import without_place, write_json, write_text
from vitkit.system.run_files import EVALUATION, PREDICTIONS, REPORT
from vitkit.text.cells import JOINT, harmless
from vitkit.text.html import Live, figure, folded, listing, table, to_png, write_page
from vitkit.text.html import findings as shown_findings

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([a-z_]+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=class |function )", re.MULTILINE)
_EXPORTED = re.compile(r"^export (?:class|function) (\w+)", re.MULTILINE)


FOLDER = Path(__file__).parent / "static"  # the studio serves the files from this folder


def static(name: str) -> str:
    """Return the text of a file in `static/`."""
    return (FOLDER / name).read_text(encoding="utf-8")


@cache
def script() -> str:
    """Return the script of the report, as one module without imports."""
    return "".join(_with_needs("report", set()))


@cache
def styles() -> str:
    """Return the style sheet of the views."""
    return static("views.css")


def _with_needs(name: str, done: set[str]) -> list[str]:
    done.add(name)
    text = static(f"{name}.js")
    before = [piece for need in _IMPORT.findall(text) if need not in done for piece in _with_needs(need, done)]
    code, exported = _EXPORT.sub("", _IMPORT.sub("", text)), ", ".join(_EXPORTED.findall(text))
    return [
        *before,
        f"const {{ {exported} }} = (() => {{\n{code}\nreturn {{ {exported} }};\n}})();\n",
    ]  # so that the module's other names stay private


CONFUSION, CONFIDENCE = "Confusion", "Confidence and accuracy"
POINTS = "Held-out images as the model sees them"


def write_report(
    path: Path,
    *,
    title: str,
    evaluation: Evaluation,
    numbers: Mapping[str, Any],
    root: Place | None,
    facts: Mapping[str, str],
    findings: Sequence[str],
    pictures: Mapping[str, bytes],
    laid_out: LaidOut | None = None,
    doubts: Sequence[LabelError] = (),
    recipe: str = "",
    explained: Sequence[Explained] = (),
    tried: sections.Tried | None = None,
) -> None:
    """Write the page about a run.

    Args:
        path: the HTML file.
        title: the run's name.
        evaluation: evaluation of the run's model on held-out images.
        numbers: figures of the evaluation (`evaluation.figures`).
        root: the folder or storage that the images' paths are relative to; None if the images are not files.
        facts: rows of the table about the run: its model, data and software.
        findings: what the reader should know about the data, one sentence each; they are shown first.
        pictures: PNG pictures by caption, such as those of `draw`; they are embedded in the page.
        laid_out: some of the images as points in the plane.
        doubts: labels that are likely wrong, the most doubtful first.
        recipe: the complete recipe, as TOML.
        explained: mistakes with the regions that led to them.
        tried: the candidate initial weights, with their scores.
    """
    photographs = ReportPhotographs.of(evaluation, root, doubts, laid_out)
    rest = {caption: png for caption, png in pictures.items() if caption not in (CONFUSION, CONFIDENCE, POINTS)}
    body = [
        f"<h1>{escape(_task(evaluation))}</h1>",
        f'<p class="soft">{escape(title)}</p>',
        sections.headline(numbers),
        *sections.caveat(evaluation),
        *shown_findings(findings),
        *sections.classes(evaluation, numbers),
        *sections.confusion(evaluation, numbers, pictures.get(CONFUSION)),
        *sections.confidence(evaluation, numbers, pictures.get(CONFIDENCE)),
        *([] if root is None else sections.gallery_of(evaluation, photographs)),
        *sections.explained(explained, photographs),
        *([] if root is None else sections.doubted(doubts, photographs)),
        *sections.points(POINTS, laid_out, pictures.get(POINTS)),
        *sections.figures(evaluation, numbers),
        *operating_table(numbers),
        *sections.promises(numbers),
        *sections.unknown(numbers),
        *[figure(caption, picture, is_photograph=caption in _PHOTOGRAPHS) for caption, picture in rest.items()],
        *sections.weights_tried(tried),
        "<h2>The run</h2>",
        table([[escape(name), escape(value)] for name, value in facts.items()]),
        *(["<h2>Recipe</h2>", folded("The complete recipe", listing(recipe))] if recipe else []),
    ]
    data = _data(evaluation, numbers, photographs, laid_out, doubts if root is not None else ())
    write_page(path, title, body, Live(styles(), script(), data))


_NAMED = 5  # classes in the title of a report
_PHOTOGRAPHS = ("What the model sees in training",)  # captions of pictures that are not drawn


def _task(evaluation: Evaluation) -> str:
    """Return the title of the page, which names the classes, such as `daisy, rose or tulip?`."""
    classes = evaluation.classes
    several = isinstance(evaluation, MultiEvaluation)
    if len(classes) > _NAMED:
        more = len(classes) - _NAMED
        return f"{', '.join(classes[:_NAMED])} {'and' if several else 'or'} {more} more classes?"
    return f"{', '.join(classes[:-1])} {'and' if several else 'or'} {classes[-1]}?" if len(classes) > 1 else classes[0]


def pictures_of(evaluation: Evaluation, laid_out: LaidOut | None) -> dict[str, Callable[[], Figure]]:
    """Return a drawing function for each figure of an evaluation, by caption.

    Args:
        evaluation: the evaluation of a classifier.
        laid_out: some images as points in the plane (`evaluation.embedding`); None to omit the figure of these points.
    """
    if isinstance(evaluation, MultiEvaluation):
        return {}
    labels, classes, now = evaluation.labels, evaluation.classes, evaluation.reliability
    title = f"{evaluation.split} split: {100 * evaluation.accuracy:.1f} % right"
    states = {"as it is": now}
    if evaluation.temperature != 1:
        states = {"temperature 1": evaluation.untempered, f"temperature {evaluation.temperature:.2f}": now}
    pictures: dict[str, Callable[[], Figure]] = {
        CONFUSION: lambda: plots.confusion(evaluation.confusion(plots.MOST_SHADED), classes, title),
        CONFIDENCE: lambda: plots.reliability(states),
        "ROC and precision-recall": lambda: plots.ranking(
            evaluation.rankings, labels, evaluation.probabilities, classes
        ),
    }
    if laid_out is not None:
        chosen, points = laid_out
        is_right = (evaluation.predicted == labels)[chosen]
        pictures[POINTS] = lambda: plots.embedding(points, labels[chosen], is_right, classes, len(labels))
    return pictures


def _data(
    evaluation: Evaluation,
    numbers: Mapping[str, Any],
    photographs: ReportPhotographs,
    laid_out: LaidOut | None,
    doubts: Sequence[LabelError],
) -> dict[str, Any]:
    """Return the data of the interactive views."""
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


def write_evaluation(
    folder: Path,
    classifier: Classifier,
    evaluation: Evaluation,
    table: ImageTable,
    numbers: Mapping[str, Any],
    findings: Sequence[str],
    progress: Callable[[int, int], None],
) -> None:
    """Write report.html, evaluation.json and predictions.csv.

    Args:
        folder: the folder, which is created if it does not exist.
        classifier: the classifier that was evaluated.
        evaluation: the evaluation of the classifier on all images. The report shows only images that the figures
            include.
        table: the images.
        numbers: figures of the evaluation (`evaluation.figures`).
        findings: what the reader should know about the figures, one sentence each.
        progress: called with the number of images whose features are computed, and the total.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_predictions(folder / PREDICTIONS, evaluation)
    evaluation = counted_part(evaluation, numbers)
    laid_out = embed(classifier, evaluation, table.place, progress)
    pictures = {caption: draw() for caption, draw in pictures_of(evaluation, laid_out).items()}
    config, preprocess = classifier.model.config, classifier.preprocess
    h, w = config.image_size
    write_report(
        folder / REPORT,
        title=f"evaluation on {without_place(table.name)}",
        evaluation=evaluation,
        numbers=numbers,
        root=table.place,
        facts={
            "model": f"{config.in_words}, {len(classifier.classes)} classes",
            **by_name_in_words(classifier.provenance),
            "data": f"{table.root.name}: {len(evaluation.labels)} {evaluation.split} images",
            "pixels": f"{h}x{w}, {preprocess.fit}, {preprocess.interpolation}",
            "computed": classifier.computed,
            **({"views": "; ".join(lines)} if (lines := tta_lines(numbers)) else {}),
        },
        findings=[*findings, *(f"left out {path}: {reason}" for path, reason in evaluation.unreadable.items())],
        pictures={caption: to_png(picture) for caption, picture in pictures.items()},
        laid_out=laid_out,
    )
    write_json(folder / EVALUATION, numbers)


def write_predictions(path: Path, evaluation: Evaluation) -> None:
    """Write a CSV file with the columns path, label, predicted and confidence; several classes are joined by `;`.

    If models proposed labels, `label` contains the labels before the proposals, and an additional column `label_now`
    contains the current labels.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("path", "label", "predicted", "confidence", *(["label_now"] if evaluation.since else [])))
    classes = evaluation.classes
    for i, (image, true, said) in enumerate(
        zip(evaluation.paths, evaluation.labels, evaluation.predicted, strict=True)
    ):
        row = evaluation.probabilities[i]
        if isinstance(evaluation, MultiEvaluation):
            names = [JOINT.join(name for name, has in zip(classes, one, strict=True) if has) for one in (true, said)]
            confidence = float(row[said == 1].min()) if said.any() else 1 - float(row.max())
        else:
            names, confidence = [classes[true], classes[said]], float(row[said])
        now = [harmless(evaluation.since.get(image, names[0]))] if evaluation.since else []
        writer.writerow((*map(harmless, (image, *names)), f"{confidence:.6f}", *now))
    write_text(path, text.getvalue())
