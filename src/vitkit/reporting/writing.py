"""An evaluation as a folder: the report, the figures, and what was said of each image."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitkit.classifier import Classifier
from vitkit.data.table import ImageTable
from vitkit.evaluation.chosen import by_name_in_words
from vitkit.evaluation.embedding import embed
from vitkit.evaluation.metrics import Evaluation
from vitkit.evaluation.multilabel import MultiEvaluation
from vitkit.evaluation.unseen import counted_in
from vitkit.reporting.evaluation_report import draw, write_report
from vitkit.system.files import without_place, write_json, write_text
from vitkit.system.run_files import EVALUATION, PREDICTIONS, REPORT
from vitkit.text.cells import JOINT, harmless
from vitkit.text.html import to_png


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
        folder: made if need be.
        classifier: whose evaluation it is.
        evaluation: of it, on all images; the report is of those that count.
        table: the images.
        numbers: the figures (figures.py).
        findings: what the reader should know of them.
        progress: told of how many images the features are computed, of how many.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_predictions(folder / PREDICTIONS, evaluation)
    evaluation = counted_in(evaluation, numbers)
    laid_out = embed(classifier, evaluation, table.root, progress)
    pictures = draw(evaluation, laid_out)
    config, preprocess = classifier.model.config, classifier.preprocess
    h, w = config.image_size
    write_report(
        folder / REPORT,
        title=f"evaluation on {without_place(table.name)}",
        evaluation=evaluation,
        numbers=numbers,
        root=table.root,
        facts={
            "model": f"{config.in_words}, {len(classifier.classes)} classes",
            **by_name_in_words(classifier.provenance),
            "data": f"{table.root.name}: {len(evaluation.labels)} {evaluation.split} images",
            "pixels": f"{h}x{w}, {preprocess.fit}, {preprocess.interpolation}",
            "computed": classifier.computed,
        },
        findings=[*findings, *(f"left out {path}: {reason}" for path, reason in evaluation.unreadable.items())],
        pictures={caption: to_png(picture) for caption, picture in pictures.items()},
        laid_out=laid_out,
    )
    write_json(folder / EVALUATION, numbers)


def write_predictions(path: Path, evaluation: Evaluation) -> None:
    """A CSV file with the columns path, label, predicted, confidence; several classes of an image are joined by `;`.

    Where models proposed labels, the label is that of before, and there is a column label_now.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("path", "label", "predicted", "confidence", *(["label_now"] if evaluation.since else [])))
    classes = evaluation.classes
    for i, (own, true, said) in enumerate(zip(evaluation.paths, evaluation.labels, evaluation.predicted, strict=True)):
        row = evaluation.probabilities[i]
        if isinstance(evaluation, MultiEvaluation):
            names = [JOINT.join(name for name, has in zip(classes, one, strict=True) if has) for one in (true, said)]
            confidence = float(row[said == 1].min()) if said.any() else 1 - float(row.max())
        else:
            names, confidence = [classes[true], classes[said]], float(row[said])
        now = [harmless(evaluation.since.get(own, names[0]))] if evaluation.since else []
        writer.writerow((*map(harmless, (own, *names)), f"{confidence:.6f}", *now))
    write_text(path, text.getvalue())
