"""Write the page about a run: one self-contained HTML file with interactive views.

The page consists of sections with text, tables and pictures, and of interactive views, which need a browser that runs
scripts. `write_evaluation` writes a folder with the page, the measured values (evaluation.json), and the prediction for
each image.

The views are JavaScript modules in `static/`, which are joined into one script in the order of their imports. For this,
each module imports only from `static/`, with one import per line, and exports with `export class` or `export function`.
The head of each module documents the format of the data that `report_data` writes for it.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from vitkit.classifier import Classifier
from vitkit.data.storage import Place
from vitkit.data.table import ImageTable
from vitkit.evaluation.figures import counted_part, tta_lines, zero_shot_in_words
from vitkit.evaluation.headline import headline_of, most_mixed_up, verdict_of
from vitkit.evaluation.label_errors import LabelError
from vitkit.evaluation.metrics import Evaluation, MultiEvaluation
from vitkit.evaluation.registry import METRICS
from vitkit.inference.trust import CROSS_VALIDATED, VALIDATION
from vitkit.reporting import plots, report_data
from vitkit.reporting.plots import cell
from vitkit.reporting.report_data import Explained, LaidOut, ReportPhotographs, embed, views_data
from vitkit.system.files import public_path, write_json, write_text
from vitkit.system.run_files import EVALUATION, PREDICTIONS, RECIPE, REPORT
from vitkit.text.cells import JOINT, false_alarms_in_words, harmless, interval_text, plural
from vitkit.text.pages import Live, data_uri, decimals, from_template, split_level, to_png, write_page

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([a-z_]+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=class |function )", re.MULTILINE)
_EXPORTED = re.compile(r"^export (?:class|function) (\w+)", re.MULTILINE)
VIEWS_FOLDER = Path(__file__).parent / "static"  # the studio serves the files from this folder


def static(name: str) -> str:
    """Return the text of a file in `static/`."""
    return (VIEWS_FOLDER / name).read_text(encoding="utf-8")


def _modules(name: str, done: set[str]) -> list[str]:
    """Return the code of a module after that of its imports, without modules in `done`, to which they are added."""
    done.add(name)
    text = static(f"{name}.js")
    modules = []
    for imported in _IMPORT.findall(text):
        if imported not in done:
            modules += _modules(imported, done)
    code, exported = _EXPORT.sub("", _IMPORT.sub("", text)), ", ".join(_EXPORTED.findall(text))
    # A function around the module keeps its other names private.
    return [*modules, f"const {{ {exported} }} = (() => {{\n{code}\nreturn {{ {exported} }};\n}})();\n"]


CONFUSION, CONFIDENCE = "Confusion", "Confidence and accuracy"  # pictures of what interactive views show, too
_TEMPLATE = Path(__file__).parent / "templates" / "evaluation.html"


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
    label_errors: Sequence[LabelError] = (),
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
        findings: what the reader should know about the data, one sentence each; problems and warnings are shown first.
        pictures: PNG pictures by caption, such as those of `pictures_of`; they are embedded in the page.
        laid_out: some of the images as points in the plane.
        label_errors: labels that are likely wrong, the most doubtful first.
        recipe: the complete recipe, as TOML.
        explained: mistakes with the regions that led to them.
    """
    photographs = ReportPhotographs.of(evaluation, root, label_errors, laid_out)
    is_multi = isinstance(evaluation, MultiEvaluation)
    images, here, listed = len(evaluation.paths), len(photographs.of_images), len(photographs.listed)
    left_out = []
    if here < images:
        left_out.append(f"This page contains the photographs of {here:,} of {images:,} images.")
    if listed < images:
        left_out.append(f"{listed:,} images are listed, and the others are left out.")
    sentences = [split_level(text) for text in findings]
    if evaluation.chosen:
        problem = "all figures here are too optimistic, because the validation images were also used to choose"
        remedy = "only the figures on a test split are not affected by such choices"
        sentences.insert(0, ("warning", f"{problem} ({', '.join(evaluation.chosen)}); {remedy}"))
    figure, beside = headline(numbers)
    label_paragraph = None
    if root is not None and label_errors:
        chance = false_alarms_in_words(len(label_errors), sum(error.chance for error in label_errors))
        label_paragraph = (
            f"{len(label_errors)} labels contradict models that were trained on the other images; the most doubtful "
            f"come first. {chance[0].upper()}{chance[1:]}, and their images are only difficult, so look at an image "
            "before you change its label. label_errors.csv in the run's folder lists all of them."
        )
    calibration = ""  # how far confidences and accuracy are apart
    if not is_multi and numbers.get("ece") is not None:
        calibration = f"Here the two differ by {100 * numbers['ece']:.1f} points on average."
    body = from_template(
        _TEMPLATE,
        task=_task_in_words(evaluation.classes, "and" if is_multi else "or"),
        is_multi=is_multi,
        verdict=verdict_of(numbers),
        figure=figure,
        beside=beside,
        findings=sentences,
        notes=[f"This page is about {title}.", *(text for level, text in sentences if level == "note")],
        few=_smallest_class(numbers),
        mixed=most_mixed_up(numbers),
        has_photographs=root is not None,
        left_out=" ".join(left_out),
        is_in_run=(path.parent / RECIPE).is_file(),
        label_errors=label_paragraph,
        calibration=calibration,
        unknown=_unknown(numbers),
        has_points=laid_out is not None,
        explained=_explained(explained, photographs),
        figures=None if is_multi else _figures(evaluation, numbers),  # those of a multi-label model are in the headline
        promises=_promises(numbers),
        pictures=[
            (caption, data_uri(png, "png"), caption == "What the model sees in training")
            for caption, png in pictures.items()
            if caption not in (CONFUSION, CONFIDENCE)
        ],
        facts=list(facts.items()),
        recipe=recipe,
    )
    data = views_data(evaluation, numbers, photographs, laid_out, label_errors if root is not None else ())
    script = "".join(_modules("report", set()))
    write_page(path, title, body, Live(static("views.css"), script, data))


def _task_in_words(classes: Sequence[str], conjunction: str) -> str:
    if len(classes) == 1:
        return classes[0]
    if len(classes) <= 5:
        return f"{', '.join(classes[:-1])} {conjunction} {classes[-1]}?"
    return f"{', '.join(classes[:5])} {conjunction} {len(classes) - 5} more classes?"


def _smallest_class(numbers: Mapping[str, Any]) -> str:
    # A warning if the smallest class in the table of classes has only a few images.
    sizes = [(row["support"], name) for name, row in numbers["per_class"].items() if row["support"]]
    if not sizes or min(sizes)[0] >= _FEW:
        return ""
    support, name = min(sizes)
    lowest_recall = 0.025 ** (1 / support)  # of the interval of Clopper and Pearson if all images are right
    return (
        f"{name} has only {plural(support, 'image', 'images')} here. Even if all were right, up to "
        f"{100 - 100 * lowest_recall:.0f} % of this class could be wrong."
    )


def pictures_of(evaluation: Evaluation) -> dict[str, Callable[[], Figure]]:
    """Return functions that plot the figures of an evaluation, by caption; empty for multi-label models."""
    if isinstance(evaluation, MultiEvaluation):
        return {}
    labels, classes, now = evaluation.labels, evaluation.classes, evaluation.reliability
    title = f"{evaluation.split} split: {100 * evaluation.accuracy:.1f} % right"
    states = {"as it is": now}
    if evaluation.temperature != 1:
        states = {"temperature 1": evaluation.reliability_untempered, f"temperature {evaluation.temperature:.2f}": now}
    return {
        CONFUSION: lambda: plots.confusion(evaluation.confusion(plots.MAX_CELLS), classes, title),
        CONFIDENCE: lambda: plots.reliability(states),
        "ROC and precision-recall": lambda: plots.ranking(evaluation.curves, labels, evaluation.probabilities, classes),
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
    pictures = pictures_of(evaluation)
    config, preprocess = classifier.model.config, classifier.preprocess
    height, width = config.image_size
    facts = {
        "model": f"{config.description}, {len(classifier.classes)} classes",
        **zero_shot_in_words(classifier.provenance),
        "data": f"{table.root.name}: {len(evaluation.labels)} {evaluation.split} images",
        "pixels": f"{height}x{width}, {preprocess.fit}, {preprocess.interpolation}",
        "computed": classifier.computed,
    }
    if views := tta_lines(numbers):
        facts["views"] = "; ".join(views)
    write_report(
        folder / REPORT,
        title=f"evaluation on {public_path(table.name)}",
        evaluation=evaluation,
        numbers=numbers,
        root=table.place,
        facts=facts,
        findings=[*findings, *(f"left out {path}: {reason}" for path, reason in evaluation.unreadable.items())],
        pictures={name: to_png(draw()) for name, draw in pictures.items() if name not in (CONFUSION, CONFIDENCE)},
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
    has_changed_labels = bool(evaluation.current_labels)
    writer.writerow(["path", "label", "predicted", "confidence", *(["label_now"] if has_changed_labels else [])])
    classes = evaluation.classes
    labels, predicted, probabilities = evaluation.labels, evaluation.predicted, evaluation.probabilities
    for i, image in enumerate(evaluation.paths):
        if isinstance(evaluation, MultiEvaluation):
            label = JOINT.join(classes[k] for k in np.flatnonzero(labels[i]))
            predicted_label = JOINT.join(classes[k] for k in np.flatnonzero(predicted[i]))
            probability = report_data.confidence_in_set(probabilities[i], predicted[i])
        else:
            label, predicted_label = classes[labels[i]], classes[predicted[i]]
            probability = float(probabilities[i, predicted[i]])
        row = [harmless(image), harmless(label), harmless(predicted_label), f"{probability:.6f}"]
        if has_changed_labels:
            row.append(harmless(evaluation.current_labels.get(image, label)))
        writer.writerow(row)
    write_text(path, text.getvalue())


# --- What the template shows ----------------------------------------------------------------------------------

_HEADLINES = ("accuracy", "balanced_accuracy")
_LEAST_COVERED = 20  # classes
_FEW = 20  # images of a class with which its figures are rough
_OTHER_TITLES = {  # titles of figures that are not in the registry of metrics
    "ece_before_temperature": "the calibration error at temperature 1",
    "temperature": "temperature",
    "roc_auc": "area under the ROC curve, mean over classes",
    "average_precision": "average precision, mean over classes",
}


def headline(numbers: Mapping[str, Any]) -> tuple[str, str]:
    """Return the main figure, such as `95.0 %`, and in words what it is of, with its interval and other metrics."""
    quoted = headline_of(numbers)
    if quoted.value is None:
        return "No figure", quoted.words
    if numbers.get("task") != "multi":
        details = f"balanced {100 * numbers['balanced_accuracy']:.1f} %"
    else:
        others = [metric for metric in METRICS["multi"].values() if metric.name not in _HEADLINES]
        details = ", ".join(f"{metric.title} {decimals(numbers[metric.name])}" for metric in others)
    if quoted.interval is not None:
        details = f"95 %: {interval_text([100 * end for end in quoted.interval], 1)}; {details}"
    images = replace(quoted, caveats=()).described
    words = [f"{quoted.figure} on {images} ({details})", *(caveat.text for caveat in quoted.caveats)]
    return f"{100 * quoted.value:.1f} %", "; ".join(words)


def _explained(mistakes: Sequence[Explained], photographs: ReportPhotographs) -> list[tuple[str, list[dict[str, Any]]]]:
    # The worst mistakes, and the picture regions that led to them; the first picture of each is the photograph.
    explained = []
    for mistake in mistakes:
        position = int(np.searchsorted(photographs.listed, mistake.image))  # in the page's list
        link = {"data-map": position}  # by which the views find the maps of a photograph
        cells = []
        for number, (caption, data) in enumerate(mistake.pictures):
            cells.append(cell(plots.Thumbnail(data, "jpeg"), (caption,), link if number > 0 else {}))
        explained.append((mistake.title, cells))
    return explained


def _figures(evaluation: Evaluation, numbers: Mapping[str, Any]) -> dict[str, Any]:
    rows = []
    names = {name: metric.title for name, metric in METRICS["single"].items()} | _OTHER_TITLES
    for key, name in names.items():
        if numbers.get(key) is not None:
            bounds = numbers["intervals_95"].get(key)
            rows.append([name, f"{numbers[key]:.4f}", "" if bounds is None else interval_text(bounds, 4)])
    of = {"val": "validation images", "all": "all images"}.get(evaluation.split, f"{evaluation.split} images")
    return {"of": of, "rows": rows}


def _promises(numbers: Mapping[str, Any]) -> dict[str, Any] | None:
    # The measured coverage of prediction sets, and accuracy of confident predictions.
    entry = numbers.get("promises")
    if entry is None:
        return None
    coverages = [row for row in entry["coverage"] if "refused" not in row]
    accuracies = [row for row in entry["accuracy"] if "refused" not in row]
    validation = entry["validation"]
    basis = f"{validation['images']} {_kind(validation)}"
    if validation["chosen_on_them"]:
        basis += f" (also used to choose {', '.join(validation['chosen_on_them'])})"

    # The table of classes; if there are many, only of those that are covered least often.
    by_class = coverages[-1]["per_class"] if coverages else {}
    names, left_out = list(by_class), ""
    if len(by_class) > _LEAST_COVERED:
        names = sorted(by_class, key=lambda name: (by_class[name]["measured"], name))[:_LEAST_COVERED]
        left_out = f"{len(by_class):,}"
    heads, of_class = ["class"], [[name] for name in names]
    for row in coverages:
        heads += [f"covered ({row['requested']:g})", f"classes in a set ({row['requested']:g})"]
        for cells in of_class:
            sets = row["per_class"][cells[0]]
            cells += [f"{sets['measured']:.3f}", f"{sets['mean_size']:.2f}"]

    sure = []
    for row in accuracies:
        measured, interval = "none", ""
        if row["measured"] is not None:
            measured, interval = f"{row['measured']:.3f}", interval_text(row["interval_95"])
        answered = f"{row['answered']} of {row['images']}"
        sure.append([f"{row['requested']:g}", f"{row['above_confidence']:.4f}", answered, measured, interval])
    return {
        "words": "vitkit predict --coverage lists as many classes as are needed to include the right one this often. "
        f"--accuracy withholds answers so that the others are right this often. The limits were set on {basis}. The "
        "tables show what they achieve on the images of this page.",
        "kept": [
            [
                f"{row['requested']:g}",
                f"{row['measured']:.3f}",
                interval_text(row["interval_95"]),
                f"{row['mean_size']:.2f}",
                str(row["empty"]),
                str(row["images"]),
            ]
            for row in coverages
        ],
        "left_out": left_out,
        "of_class": of_class,
        "heads": heads,
        "sure": sure,
        "refused": [row["refused"] for row in (*entry["coverage"], *entry["accuracy"]) if "refused" in row],
    }


def _kind(entry: Mapping[str, Any]) -> str:
    return CROSS_VALIDATED if entry.get("folds") else VALIDATION


def _unknown(numbers: Mapping[str, Any]) -> dict[str, Any] | None:
    # How well the model notices images of none of its classes.
    entry = numbers.get("unknown")
    if entry is None:
        return None
    marked = f"If {1 - entry['accepted']:.0%} of known images may be marked"
    limits, bars = [], []
    for row in entry["limits"]:
        low, high = row["bounds"]
        basis = (
            f"{row['images']} images of {row['classes']} classes, each left out in turn, by the initial weights; "
            "the interval is for another class"
        )
        noticed, interval = 1 - row["share"], interval_text([100 - 100 * high, 100 - 100 * low], 0)
        limits.append([row["kind"], f"{100 * noticed:.0f} %", interval, basis])
        words = f"{100 * noticed:.0f} % noticed (95 %: {interval})"
        bars.append({"kind": row["kind"], "noticed": noticed, "words": words})
    sentence = "With --unknown, vitkit predict marks photographs that are unlike all that the model has learned from."
    if bars:
        sentence += f" {marked}, too, it notices:"
    return {
        "sentence": sentence,
        "bars": bars,
        "about": "The more an image differs from the nearest training images, the lower is its value in the column "
        f"familiar of vitkit predict. The value is the fraction of {entry['validation_images']} {_kind(entry)} that "
        "differ as much or more.",
        "caught": f"{marked} as unknown, too, this part of the images that belong to none of the classes is noticed:",
        "limits": limits,
        "has_classes": any(row["classes"] for row in entry["limits"]),
        "called": [
            [f"{row['level']:g}", f"{row['measured']:.3f}", interval_text(row["interval_95"]), str(row["images"])]
            for row in entry["called"]
        ],
    }
