"""Write the page about a run: one self-contained HTML file with interactive views.

The page consists of sections, which contain tables and pictures and need no script. In browsers that run scripts,
interactive views replace these tables and pictures. `write_evaluation` writes a folder with the page, the measured
values (evaluation.json), and the prediction for each image.

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
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from matplotlib.figure import Figure

from vitkit.classifier import Classifier
from vitkit.data.storage import Place
from vitkit.data.table import ImageTable
from vitkit.evaluation.figures import SHARES, by_name_in_words, calibration_rise, counted_part, tta_lines
from vitkit.evaluation.headline import headline_of
from vitkit.evaluation.label_errors import LabelError
from vitkit.evaluation.metrics import Evaluation, MultiEvaluation
from vitkit.evaluation.registry import METRICS
from vitkit.inference.trust import CROSS_VALIDATED, VALIDATION
from vitkit.reporting import plots, report_data
from vitkit.reporting.plots import gallery
from vitkit.reporting.report_data import FIRST, Explained, LaidOut, ReportPhotographs, embed, threshold_data
from vitkit.system.environment import STUDIO_PORT
from vitkit.system.files import without_place, write_json, write_text
from vitkit.system.run_files import EVALUATION, PREDICTIONS, RECIPE, REPORT
from vitkit.text.cells import JOINT, by_chance, harmless, interval_text, plural
from vitkit.text.pages import (
    DRAWN,
    Live,
    decimals,
    figure,
    finding,
    folded,
    image,
    listing,
    table,
    to_png,
    wide,
    write_page,
)
from vitkit.text.pages import findings as shown_findings

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([a-z_]+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=class |function )", re.MULTILINE)
_EXPORTED = re.compile(r"^export (?:class|function) (\w+)", re.MULTILINE)


VIEWS_FOLDER = Path(__file__).parent / "static"  # the studio serves the files from this folder


def static(name: str) -> str:
    """Return the text of a file in `static/`."""
    return (VIEWS_FOLDER / name).read_text(encoding="utf-8")


@cache
def script() -> str:
    """Return the script of the report, as one module without imports."""
    return "".join(_with_imports("report", set()))


def _with_imports(name: str, done: set[str]) -> list[str]:
    done.add(name)
    text = static(f"{name}.js")
    before = [piece for need in _IMPORT.findall(text) if need not in done for piece in _with_imports(need, done)]
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
) -> None:
    """Write the page about a run.

    Args:
        path: the HTML file.
        title: the run's name.
        evaluation: evaluation of the run's model on held-out images.
        numbers: the measured values of the evaluation (`evaluation.figures`).
        root: the folder or storage that the images' paths are relative to; None if the images are not files.
        facts: rows of the table about the run: its model, data and software.
        findings: what the reader should know about the data, one sentence each; they are shown first.
        pictures: PNG pictures by caption, such as those of `pictures_of`; they are embedded in the page.
        laid_out: some of the images as points in the plane.
        doubts: labels that are likely wrong, the most doubtful first.
        recipe: the complete recipe, as TOML.
        explained: mistakes with the regions that led to them.
    """
    photographs = ReportPhotographs.of(evaluation, root, doubts, laid_out)
    rest = {caption: png for caption, png in pictures.items() if caption not in (CONFUSION, CONFIDENCE, POINTS)}
    classes, join = evaluation.classes, "and" if isinstance(evaluation, MultiEvaluation) else "or"
    task = f"{', '.join(classes[:-1])} {join} {classes[-1]}?" if len(classes) > 1 else classes[0]
    if len(classes) > 5:
        task = f"{', '.join(classes[:5])} {join} {len(classes) - 5} more classes?"
    caveats = []
    if evaluation.chosen:
        what = ", ".join(evaluation.chosen)
        text = f"all figures here are too optimistic, because the validation images were also used to choose ({what})"
        caveats = [finding(f"note: {text}; only the figures on a test split are not affected by such choices")]
    points = []
    if laid_out is not None:
        drawn = [] if POINTS not in pictures else [image(POINTS, pictures[POINTS], "png", DRAWN)]
        text = (
            "Images that look similar to the model are close together (t-SNE). A ring around a point marks a mistake."
        )
        points = [f"<h2>{escape(POINTS)}</h2>", f"<p>{text}</p>", _view("embedding", *drawn)]
    body = [
        f"<h1>{escape(task)}</h1>",
        f'<p class="soft">{escape(title)}</p>',
        headline(numbers),
        *caveats,
        *shown_findings(findings),
        *_classes(evaluation, numbers),
        *_confusion(evaluation, numbers, pictures.get(CONFUSION)),
        *confidence(evaluation, numbers, pictures.get(CONFIDENCE)),
        *([] if root is None else _photographs(evaluation, photographs, path.parent)),
        *_explained(explained, photographs),
        *([] if root is None else _label_errors(doubts, photographs)),
        *points,
        *_figures(evaluation, numbers),
        *_operating_table(numbers),
        *_promises(numbers),
        *_unknown(numbers),
        *[
            figure(caption, picture, is_photograph=caption == "What the model sees in training")
            for caption, picture in rest.items()
        ],
        "<h2>The run</h2>",
        table([[escape(name), escape(value)] for name, value in facts.items()]),
        *(["<h2>Recipe</h2>", folded("The complete recipe", listing(recipe))] if recipe else []),
    ]
    data = _data(evaluation, numbers, photographs, laid_out, doubts if root is not None else ())
    write_page(path, title, body, Live(static("views.css"), script(), data))


def pictures_of(evaluation: Evaluation, laid_out: LaidOut | None) -> dict[str, Callable[[], Figure]]:
    """Return functions that plot the figures of an evaluation, by caption; empty for multi-label models.

    Without points in the plane (`report_data.embed`), their figure is omitted.
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
        "ROC and precision-recall": lambda: plots.ranking(evaluation.curves, labels, evaluation.probabilities, classes),
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
    shown = photographs.listed
    is_multi = isinstance(evaluation, MultiEvaluation)
    kind = "all" if is_multi or (evaluation.predicted == evaluation.labels).all() else "wrong"
    data = {
        "images": report_data.images_data(evaluation, shown),
        "photographs": photographs.addresses(),
        "classes": report_data.class_table(evaluation, numbers),
        "gallery": {"kind": kind} if photographs.root is not None else None,
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
        evaluation: the evaluation of the classifier on all images. The report shows only the images from which
            `numbers` were computed.
        table: the images.
        numbers: the measured values of the evaluation (`evaluation.figures`).
        findings: what the reader should know about the results, one sentence each.
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
            "model": f"{config.description}, {len(classifier.classes)} classes",
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

    If labels have changed since an earlier run, the column `label` contains the earlier labels, and an additional
    column `label_now` contains the current labels.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("path", "label", "predicted", "confidence", *(["label_now"] if evaluation.since else [])))
    classes = evaluation.classes
    for i, (key, true, said) in enumerate(zip(evaluation.paths, evaluation.labels, evaluation.predicted, strict=True)):
        row = evaluation.probabilities[i]
        if isinstance(evaluation, MultiEvaluation):
            names = [JOINT.join(name for name, has in zip(classes, one, strict=True) if has) for one in (true, said)]
            probability = float(row[said == 1].min()) if said.any() else 1 - float(row.max())
        else:
            names, probability = [classes[true], classes[said]], float(row[said])
        now = [harmless(evaluation.since.get(key, names[0]))] if evaluation.since else []
        writer.writerow((*map(harmless, (key, *names)), f"{probability:.6f}", *now))
    write_text(path, text.getvalue())


# --- The sections of the page ---------------------------------------------------------------------------------

_HEADLINES = ("accuracy", "balanced_accuracy")


def multi_class_table(rows: Mapping[str, Mapping[str, Any]], most: int) -> str:
    """Return an HTML table of the first `most` classes of a multi-label evaluation, with thresholds and metrics."""
    heads = ["class", "threshold", "precision", "recall", "F1", "average precision", "images"]
    return _class_table(rows, most, heads, ("threshold", "precision", "recall", "f1", "average_precision", "support"))


def _class_table(rows: Mapping[str, Mapping[str, Any]], most: int, heads: Sequence[str], keys: Sequence[str]) -> str:
    def cell(value: float | None) -> str:
        return str(value) if isinstance(value, int) else decimals(value)

    return table([[escape(name), *(cell(row[key]) for key in keys)] for name, row in islice(rows.items(), most)], heads)


def _operating_table(numbers: Mapping[str, Any]) -> list[str]:
    # The results for the class frequencies in training beside those for equal frequencies, if measured.
    points = numbers.get("operating_points")
    if points is None:
        return []
    names = ("data", "uniform")
    heads = [f"{SHARES[name]}{' (chosen)' if name == points['chosen'] else ''}" for name in names]
    rows = [[what.replace("_", " "), *(f"{points[name][what]:.3f}" for name in names)] for what in _HEADLINES]
    for row in points["data"]["recall"]:
        values = [points[name]["recall"][row] for name in names]
        rows.append([f"recall of {escape(row)}", *("none" if value is None else f"{value:.3f}" for value in values)])
    words = (
        "A model can predict for the class frequencies of its training data, or for equally frequent classes. The "
        "latter finds more images of the rare classes and makes more errors overall (--set prior=uniform)."
    )
    return ["<h2>The operating point</h2>", f"<p>{words}</p>", wide(table(rows, ["", *heads]))]


def _promises(numbers: Mapping[str, Any]) -> list[str]:
    # The measured coverage of prediction sets, and accuracy of confident predictions.
    entry = numbers.get("promises")
    if entry is None:
        return []
    kept = [row for row in entry["coverage"] if "refused" not in row]
    sure = [row for row in entry["accuracy"] if "refused" not in row]
    refused = [row["refused"] for row in (*entry["coverage"], *entry["accuracy"]) if "refused" in row]
    validation = entry["validation"]
    chosen = f", which were also used to choose: {', '.join(validation['chosen_on_them'])}"
    words = (
        f"What vitkit predict --coverage and --accuracy promise by {validation['images']} {_kind(validation)}"
        f"{chosen if validation['chosen_on_them'] else ''}, measured on the images of this page."
    )
    body = ["<h2>Sets and sure predictions</h2>", f"<p>{escape(words)}</p>"]
    if kept:
        rows = [
            [
                *(f"{row['requested']:g}", f"{row['measured']:.3f}", interval_text(row["interval_95"])),
                *(f"{row['mean_size']:.2f}", str(row["empty"]), str(row["images"])),
            ]
            for row in kept
        ]
        heads = ["--coverage", "measured", "95 % interval", "classes in a set", "empty sets", "images"]
        body.append(wide(table(rows, heads)))
        per_class = kept[-1]["per_class"]
        names = list(per_class)
        if len(names) > _LEAST_COVERED:
            names = sorted(names, key=lambda name: (per_class[name]["measured"], name))[:_LEAST_COVERED]
            body.append(f"<p>The {_LEAST_COVERED} classes of {len(per_class):,} that are covered least often:</p>")
        of_class = []
        for name in names:
            sets = [row["per_class"][name] for row in kept]
            cells = [cell for each in sets for cell in (f"{each['measured']:.3f}", f"{each['mean_size']:.2f}")]
            of_class.append([escape(name), *cells])
        heads = [f"{what} ({row['requested']:g})" for row in kept for what in ("covered", "classes in a set")]
        body.append(wide(table(of_class, ["class", *heads])))
    if sure:
        rows = []
        for row in sure:
            measured = ["none", ""]
            if row["measured"] is not None:
                measured = [f"{row['measured']:.3f}", interval_text(row["interval_95"])]
            answered = f"{row['answered']} of {row['images']}"
            rows.append([f"{row['requested']:g}", f"{row['above_confidence']:.4f}", answered, *measured])
        heads = ["--accuracy", "above confidence", "answered", "measured accuracy", "95 % interval"]
        body.append(wide(table(rows, heads)))
    return [*body, *(f"<p>{escape(reason)}</p>" for reason in refused)]


def _kind(entry: Mapping[str, Any]) -> str:
    return CROSS_VALIDATED if entry.get("folds") else VALIDATION


def _unknown(numbers: Mapping[str, Any]) -> list[str]:
    # How well the model notices images of none of its classes.
    entry = numbers.get("unknown")
    if entry is None:
        return []
    text = (
        f"The column familiar of vitkit predict is the part of known images that look no more familiar to the model "
        f"(low is strange), by the distance to the nearest training images, compared with {entry['validation_images']} "
        f"{_kind(entry)}."
    )
    body = ["<h2>Images of unknown things</h2>", f"<p>{escape(text)}</p>"]
    if entry["limits"]:
        caught = (
            f"Where {entry['accepted']:.0%} of known images pass as known, so do these images, which belong to none of "
            "the classes:"
        )
        rows = []
        for row in entry["limits"]:
            low, high = row["bounds"]
            noticed = "mostly missed" if low >= 0.5 else "some are missed"
            if high <= 0.2:
                noticed = "mostly noticed"
            basis = f"{row['images']} pictures made from {_kind(entry)}"
            if row["classes"]:
                basis = (
                    f"{row['images']} images of {row['classes']} classes, each left out in turn, by the initial "
                    "weights; the interval is for another class"
                )
            elif row.get("sorts"):
                basis = (
                    f"{row['images']} pictures of {row['sorts']} sorts made from {_kind(entry)}; the interval is for "
                    "another sort"
                )
            share = f"{row['share']:.0%}"
            rows.append([escape(row["kind"]), share, interval_text(row["bounds"]), noticed, basis])
        words = ["noticed or missed", "measured on"]
        heads = ["images", "pass as known", "95 % interval", *words]
        body += [f"<p>{caught}</p>", wide(table(rows, heads, words))]
    if not any(row["classes"] for row in entry["limits"]):
        body.append(
            "<p>Whether photographs of an unseen class that resembles the known ones are noticed was not measured: "
            "this requires weights that had seen none of these images, and at least three classes.</p>"
        )
    if entry["called"]:
        rows = [
            [f"{row['level']:g}", f"{row['measured']:.3f}", interval_text(row["interval_95"]), str(row["images"])]
            for row in entry["called"]
        ]
        body.append(wide(table(rows, ["--unknown", "called unknown", "95 % interval", "images of this page"])))
    return body


_CLASSES, _LEAST_COVERED = 1_000, 20  # rows without a script
_OTHER_TITLES = {  # titles of figures that are not in the registry of metrics
    "ece_before_temperature": "the calibration error at temperature 1",
    "temperature": "temperature",
    "roc_auc": "area under the ROC curve, mean over classes",
    "average_precision": "average precision, mean over classes",
}


def _view(name: str, *content: str) -> str:
    """Return the HTML element of an interactive view. It shows `content` until the script replaces the content."""
    return f'<div data-view="{name}">{"".join(content)}</div>'


def headline(numbers: Mapping[str, Any]) -> str:
    """Return the paragraph with the main result, its interval and a few other metrics."""
    quoted = headline_of(numbers)
    if quoted.value is None:
        return f'<p><span class="figure">No figure</span> {escape(quoted.words)}</p>'
    interval = [] if quoted.interval is None else [f"95 %: {interval_text([100 * end for end in quoted.interval], 1)}"]
    if numbers.get("task") != "multi":
        beside = f"balanced {100 * numbers['balanced_accuracy']:.1f} %, log loss {numbers['loss']:.3f}"
    else:
        others = [metric for metric in METRICS["multi"].values() if metric.name not in _HEADLINES]
        beside = ", ".join(f"{escape(metric.title)} {decimals(numbers[metric.name])}" for metric in others)
        if "cross_fitted" in numbers:
            beside += f"; macro F1 with cross-fitted thresholds {decimals(numbers['cross_fitted']['macro_f1'])}"
    detail = "; ".join([*interval, beside])
    return (
        f'<p><span class="figure">{100 * quoted.value:.1f} %</span> {quoted.figure} on {escape(quoted.described)} '
        f'<span class="soft">({detail})</span></p>'
    )


def _classes(evaluation: Evaluation, numbers: Mapping[str, Any]) -> list[str]:
    more = len(evaluation.classes) - _CLASSES
    left = [f"<p>The first {_CLASSES:,} classes; {more:,} more are in the page's data.</p>"] if more > 0 else []
    if not isinstance(evaluation, MultiEvaluation):
        heads = ["class", "precision", "recall", "F1", "images", "ROC area", "average precision"]
        keys = ("precision", "recall", "f1", "support", "roc_auc", "average_precision")
        shown = _class_table(numbers["per_class"], _CLASSES, heads, keys)
        return ["<h2>Each class</h2>", _view("classes", wide(shown), *left)]
    return [
        "<h2>Each class</h2>",
        _view("classes", wide(multi_class_table(numbers["per_class"], _CLASSES)), *left),
        "<h2>Thresholds</h2>",
        _view("class_thresholds", "<p>The thresholds are in the table of classes.</p>"),
    ]


def _confusion(evaluation: Evaluation, numbers: Mapping[str, Any], drawn: bytes | None) -> list[str]:
    if isinstance(evaluation, MultiEvaluation):
        return []
    if not numbers["confused"]:
        words = ["<p>The model made no mistakes.</p>"]
    else:
        pairs = [
            [escape(pair["true"]), escape(pair["predicted"]), str(pair["count"]), f"{100 * pair['share']:.1f} %"]
            for pair in numbers["confused"][:20]
        ]
        heads = ["true", "predicted", "images", "of the true class"]
        words = ["<h3>Most often confused</h3>", wide(table(pairs, heads))]
    picture = [] if drawn is None else [image("Confusion", drawn, "png", DRAWN)]
    return ["<h2>Confusion</h2>", _view("confusion", *picture, *words)]


def confidence(evaluation: Evaluation, numbers: Mapping[str, Any], drawn: bytes | None) -> list[str]:
    """Return the section on how well confidences match accuracy; empty for multi-label models."""
    if isinstance(evaluation, MultiEvaluation):
        return []
    data = threshold_data(evaluation)
    n, steps, rows = data["images"], len(data["answered"]) - 1, []
    for at in (0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99):
        answered, right = (data[name][round(at * steps)] for name in ("answered", "right"))
        part = f"{100 * right / answered:.1f} %" if answered else "-"
        rows.append([f"{100 * at:.0f} %", f"{100 * answered / n:.1f} %", part, str(answered - right)])
    heads = ["minimum confidence", "images kept", "of those right", "mistakes left"]
    picture = [] if drawn is None else [image("Confidence and accuracy", drawn, "png", DRAWN)]
    explained = []
    if (rise := calibration_rise(evaluation, numbers)) is not None:
        before, after = numbers["ece_before_temperature"], numbers["ece"]
        why = (
            "such a rise can occur by chance even if the temperature is right"
            if rise.is_chance
            else "this is more than chance explains, so these images differ from those that the temperature was fitted "
            "on, or it was fitted on too few"
        )
        text = (
            f"The temperature increased the calibration error from {before:.4f} to {after:.4f}: with "
            f"{plural(n, 'image', 'images')}, {why}. The temperature minimises the log loss on the validation images. "
            "It usually also reduces the calibration error on other images, but not always, because that error is "
            "noisy."
        )
        explained = [f"<p>{escape(text)}</p>"]
    return [
        "<h2>Confidence</h2>",
        *explained,
        _view("reliability", *picture),
        "<h3>Rejecting uncertain predictions</h3>",
        _view("threshold", wide(table(rows, heads))),
    ]


def _photographs(evaluation: Evaluation, photographs: ReportPhotographs, folder: Path) -> list[str]:
    # Without a script, the section shows the worst mistakes.
    n, here, listed = len(evaluation.paths), len(photographs.of_images), len(photographs.listed)
    held = [] if here == n else [f"this page contains the photographs of {here:,} of {n:,} images"]
    held += [] if listed == n else [f"{listed:,} images are listed, and the others are left out"]
    words = f"<p>{'; '.join(held).capitalize()}.</p>" if held else ""
    cells = []
    for i in photographs.first:
        if i not in photographs.of_images:
            continue
        true, said = evaluation.labels[i], evaluation.predicted[i]
        if isinstance(evaluation, MultiEvaluation):
            sets = ([name for name, has in zip(evaluation.classes, one, strict=True) if has] for one in (true, said))
            label, predicted = (", ".join(names) or "none" for names in sets)
        else:
            label = evaluation.classes[true]
            predicted = f"{evaluation.classes[said]} {100 * evaluation.probabilities[i].max():.1f} %"
        now = evaluation.since.get(evaluation.paths[i])  # if the label has changed since earlier runs
        since = [] if now is None else [f"now: {now}"]
        lines = (f"your label: {label}", *since, f"predicted: {predicted}", evaluation.paths[i])
        cells.append((photographs.of_images[i], f'data-image="{photographs.place(i)}"', lines))
    head = ""
    if not isinstance(evaluation, MultiEvaluation):
        head = "<h3>The most confident mistakes</h3>" if cells else "<p>The model made no mistakes.</p>"
    studio = []
    if (folder / RECIPE).is_file():
        place = f"http://127.0.0.1:{STUDIO_PORT}/#results/{quote(folder.name, safe='')}"
        link = f'<a href="{escape(place)}">the enlarged photograph of its results</a>'
        start = "Start <code>vitkit studio</code> with the folder of this run"
        studio = [f"<p>Is one of your labels wrong? {start}, and correct it in {link}.</p>"]
    return ["<h2>Photographs</h2>", words, *studio, _view("gallery", head, gallery(cells))]


def _explained(mistakes: Sequence[Explained], photographs: ReportPhotographs) -> list[str]:
    # The worst mistakes, and the picture regions that led to them.
    if not mistakes:
        return []
    pieces = ["<h2>Where the mistakes come from</h2>"]
    for mistake in mistakes:
        place = f'data-map="{photographs.place(mistake.image)}"'
        pictures = [
            f'<figure class="large">{image(caption, data, "jpeg", place if number else "")}'
            f"<figcaption>{escape(caption)}</figcaption></figure>"
            for number, (caption, data) in enumerate(mistake.pictures)
        ]
        pieces += [f"<h3>{escape(mistake.title)}</h3>", f'<div class="row">{"".join(pictures)}</div>']
    return pieces


def _label_errors(doubts: Sequence[LabelError], photographs: ReportPhotographs) -> list[str]:
    if not doubts:
        return []
    chance = by_chance(len(doubts), sum(error.chance for error in doubts))
    cells = []
    for place, (error, shown) in enumerate(zip(doubts[:FIRST], photographs.of_doubts, strict=False)):
        lines = (f"your label: {error.label}", f"looks like: {error.suggested} (by {error.score:.2f})", error.path)
        cells.append((shown, f'data-doubt="{place}"', lines))
    words = (
        f"{len(doubts)} labels contradict models that were trained on the other images; the most doubtful come first. "
        f"{chance[0].upper()}{chance[1:]}, and their images are only difficult, so look at an image before you change "
        "its label. label_errors.csv in the run's folder lists all of them."
    )
    return ["<h2>Labels to look at</h2>", f"<p>{words}</p>", _view("doubts", gallery(cells))]


def _figures(evaluation: Evaluation, numbers: Mapping[str, Any]) -> list[str]:
    if isinstance(evaluation, MultiEvaluation):
        return []  # its metrics are in the headline
    rows = []
    names = {name: metric.title for name, metric in METRICS["single"].items()} | _OTHER_TITLES
    for key, name in names.items():
        if numbers.get(key) is not None:
            bounds = numbers["intervals_95"].get(key)
            interval = "" if bounds is None else interval_text(bounds, 4)
            rows.append([escape(name), f"{numbers[key]:.4f}", interval])
    of = {"val": "validation images", "all": "all images"}.get(evaluation.split, f"{evaluation.split} images")
    return [f"<h2>Figures of {escape(of)}</h2>", wide(table(rows, ["", "", "95 % interval"]))]
