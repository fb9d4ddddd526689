"""`vitkit.evaluate`: evaluate a classifier on labelled images."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vitkit.data.layout import LayoutName
from vitkit.errors import VitkitError
from vitkit.evaluation.headline import BY_FOLDS, Headline, headline_of, value_of
from vitkit.system.files import path_or_address
from vitkit.system.progress import Progress, Say, receiver, silent
from vitkit.system.run_files import FINDINGS, REPORT, SPLIT
from vitkit.text.arguments import Only, check_arguments
from vitkit.verbs.inputs import (
    PREPROCESS,
    check_conflicts,
    exclusive_out_folder,
    open_for_labels,
    path_of,
)
from vitkit.verbs.options import Compute, Names, Promises
from vitkit.verbs.result import Notes, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitkit.classifier import Classifier
    from vitkit.data.earlier_labels import ChangesSinceRuns
    from vitkit.data.split_file import Changes
    from vitkit.data.table import ImageTable
    from vitkit.evaluation.metrics import Evaluation
    from vitkit.weights.preprocessing import PreprocessLike


@dataclass(frozen=True, repr=False)
class EvaluationResult(Result):
    """The evaluation of a classifier on labelled images.

        import vitkit

        result = vitkit.evaluate("runs/digits-1")
        print(result.figures["accuracy"], result.figures["intervals_95"]["accuracy"])  # fractions, 0 to 1

    Attributes:
        evaluation: every image with its label and probabilities.
        figures: the content of evaluation.json, with the accuracy (0 to 1) first. Images that the weights have seen in
            training are not counted.
        root: the folder of the images.
        computed: a description of the backend and precision that computed the predictions.
        report: the HTML report, or None if none was requested.
        notes: assumptions about the model, and remarks on the figures.
    """

    evaluation: Evaluation
    figures: dict[str, Any]
    root: Path
    computed: str
    report: Path | None
    notes: tuple[str, ...]

    @property
    def headline(self) -> Headline:
        """The main metric, with its interval and caveats."""
        return headline_of(self.figures)

    @property
    def accuracy(self) -> float:
        """The fraction of correct predictions, 0 to 1, or of exact matches for a multi-label model.

        Images that the weights have seen in training are not counted.

        Raises:
            VitkitError: the weights have seen every image, so no image is counted. The figures in
                `figures["with_seen"]` count these images, too.
        """
        return value_of(self.headline)

    def rows(self) -> list[dict[str, Any]]:
        """Return precision, recall and f1 (0 to 1) and support (the number of images) of each class."""
        return [{"class": name, **row} for name, row in self.figures["per_class"].items()]

    def pictures(self) -> dict[str, Callable[[], Figure]]:
        """Return the functions that draw the pictures, by caption; empty for a multi-label model.

        The pictures show the confusions, the reliability of the confidences, and the ROC curves.
        """
        from vitkit.reporting.evaluation_report import pictures_of

        return pictures_of(self.evaluation)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures."""
        return self.figures

    def lines(self) -> list[str]:
        """Return all figures with their intervals, the images that were left out, and the headline."""
        from vitkit.evaluation.figures import tta_lines
        from vitkit.evaluation.promises import trust_lines

        headline = self.headline
        total = len(self.evaluation.paths)
        images = f"{total} {headline.split} images"
        if headline.images != total:
            seen = total - headline.images
            images = f"{headline.images} of {images}, without {seen} that the weights had seen,"
        lines = [f"{images} of {path_or_address(self.root)} ({self.computed})"]
        for name, value, interval in self._summary():
            lines.append(f"{name:18} {value:.4f}" + (f" (95 %: {interval})" if interval else ""))
        lines += tta_lines(self.figures)
        lines += trust_lines(self.figures)
        width = max(5, *map(len, self.evaluation.classes))
        lines += ["", f"{'class':{width}}  precision  recall     F1  images"]
        for name, precision, recall, f1, support in self._class_rows():
            lines.append(f"{name:{width}}  {precision:>9}  {recall:>6}  {f1:>5}  {support:>6}")
        lines += [f"note: left out {path}: {reason}" for path, reason in self.evaluation.unreadable.items()]
        report = "" if self.report is None else f"; report: {self.report}"
        return [*lines, "", f"{headline.words}{report}"]

    def _summary(self) -> Iterator[tuple[str, float, str]]:
        """Yield the name, the value and the 95 % interval of each main figure. The interval is text, or empty."""
        from vitkit.text.cells import interval_text

        for name in self.evaluation.summary():
            value = self.figures[name]
            if isinstance(value, float):
                bounds = self.figures["intervals_95"].get(name)
                yield name, value, "" if bounds is None else interval_text(bounds)

    def _class_rows(self) -> Iterator[tuple[str, str, str, str, str]]:
        """Yield the name of each class with its precision, recall, F1 and number of images, as text."""
        from vitkit.text.pages import decimals

        for name, row in self.figures["per_class"].items():
            yield name, decimals(row["precision"]), decimals(row["recall"]), decimals(row["f1"]), str(row["support"])

    def __repr__(self) -> str:
        return f"<EvaluationResult: {self.headline.words}>"

    def _repr_html_(self) -> str:
        from vitkit.text.pages import table

        main = [[escape(name), f"{value:.4f}", interval] for name, value, interval in self._summary()]
        classes = [[escape(name), *numbers] for name, *numbers in self._class_rows()]
        notes = "".join(f"<p>note: {escape(note)}</p>" for note in self.notes)
        heading = f"<p>{escape(self.lines()[0])}</p>{notes}"
        figures = table(main, ("figure", "value", "95 % interval"))
        return heading + figures + table(classes, ("class", "precision", "recall", "F1", "images"))


@check_arguments
def evaluate(
    model: str | Path | Classifier,
    data: str | Path | None = None,
    *,
    data_root: Path | str | None = None,
    labels: Path | str | None = None,
    split: str | None = None,
    layout: LayoutName = "auto",
    follow_links: bool = False,
    out: Path | str | None = None,
    names: Names = Names(),
    promises: Annotated[Promises, Only(("coverage", "accuracy"))] = Promises(),
    tta: str | None = None,
    preprocess: Annotated[str | PreprocessLike | None, PREPROCESS] = None,
    compute: Annotated[Compute, Only(("backend", "precision", "device"))] = Compute(),
    force: bool = False,
    progress: Progress = silent,
) -> EvaluationResult:
    """Evaluate a classifier on labelled images, overall and for each class.

    The result has the accuracy and related figures, most with a 95 % interval. Images that the weights have seen in
    training are not counted.

        import vitkit

        print(vitkit.evaluate("runs/digits-1").accuracy)

    On the command line: `vitkit eval runs/digits-1`.

    Args:
        model: a run or model folder, a checkpoint of any published layout, an exported file, or a published name. A
            classifier in memory is accepted, too.
        data: the images to evaluate, instead of those of the run; classes are matched by name.
        data_root: the folder that now contains the run's images, which may have been renamed.
        labels: a label file (CSV: path, label), whose rows take precedence over the labels of the data or the run.
        split: `train`, `val`, `test` or `all`; by default test if it exists, else val if it exists, else all.
        layout: whether the folders in `data` are classes or splits; `auto` decides by their names.
        follow_links: also search the folders and files that links lead to outside of the folder.
        out: write report.html, evaluation.json and predictions.csv into this folder.
        names: the names of the data's classes, for a model of CLIP or SigLIP.
        promises: the promises of `vitkit.predict` that are measured: how often sets with this `coverage` contain the
            true class (by default 0.9 and 0.95), and how often labels with this `accuracy` are right (by default 0.95
            and 0.99). They are measured only on test images or other data, because they are based on the validation
            images.
        tta: average the probabilities of several views of each image: `flip` (the image and its mirror image), `crops`
            (its centre and four corners), or `flip,crops` (all ten). The images are also evaluated without these views,
            and the difference is reported with its interval and its cost. Promises are not measured
            then, because they are based on single views of the validation images.
        preprocess: the preprocessing of images, in a form that `vitkit.load` accepts; by default that of the model, or
            an assumed one if the model states none.
        compute: where and how the model computes.
        force: overwrite files in `out`.
        progress: called with the current task, the number of finished items and the total number of items.

    Raises:
        VitkitError: a value is not allowed, the model or the data cannot be read, images have classes that the model
            lacks, a name in `classes` belongs to no image, or `out` is not empty.
        OSError: `out` cannot be written.
    """
    from vitkit.data.splits import held_out_split
    from vitkit.evaluation.evaluator import earlier_figures
    from vitkit.evaluation.figures import all_figures, tta_figures
    from vitkit.evaluation.promises import trust_figures

    out, data_root = path_of(out), path_of(data_root)
    notes = Notes()
    is_of_run = data is None
    folder = Path(model) if isinstance(model, (str, Path)) else None  # may be the folder of a run
    check_conflicts({"--data-root": data_root}, {"DATA": data})
    make_classifier = open_for_labels(model, names, notes, preprocess)
    table, run_table = _labelled_images(folder, data, data_root, labels, layout, follow_links=follow_links)
    for line in (*table.overlooked, *table.unmatched, *table.corrections):
        notes(line)
    classifier = make_classifier(table)
    classifier.preprocess.check_known()
    if run_table is not None and names.classes is None:
        classes, recorded = tuple(classifier.classes), run_table.classes
        if set(classes) == set(recorded) and classes != recorded:
            raise VitkitError(
                "verbs.class-order",
                f"model.json has its classes in another order than {SPLIT}, so predictions would get wrong names: "
                "restore the file that was edited",
            )
    promised = {"coverage": promises.coverage, "accuracy": promises.accuracy}
    if tta is not None:  # raise an error for options that cannot be combined with views
        classifier.with_views(tta).rules(**promised)
    folders = set(table.folders)
    if not folders:  # a run has recorded its images, but not the folders that were searched
        folders = {(table.root / path).parent for path in table.paths} if _is_list(table) else {table.root}
    with exclusive_out_folder(out, sorted(map(str, folders)), force=force):  # before anything is computed
        if out is not None:
            _ = classifier.model  # raises an error for an exported file, as the report needs the model

        # Choose the images, and the labels that they had before.
        changes = None
        if run_table is not None and folder is not None:
            table, changes = _exclude_changed_images(folder, table, split, data_root, notes)
        split = split or held_out_split(table)
        earlier = _changes_since_run(folder, run_table, table, split, changes)
        images = table if split == "all" else table.of_split(split)

        # Predict them; with several views of each image, also with a single view.
        classifier = classifier.use(compute.backend, compute.precision, len(images), device=compute.device)
        if tta is not None and len(images):  # warm up, as the time with views is compared with that without
            next(classifier.stream([images.file(0)]))
        evaluate_with = partial(_evaluate, table=table, split=split, earlier=earlier, run=folder, run_table=run_table)
        evaluation, seconds = evaluate_with(classifier)
        seen, doubt = seen_images(classifier, folder or "the model", table, split, is_of_run=is_of_run)
        if tta is None:
            entries = trust_figures(classifier, evaluation, seen, is_of_run=is_of_run, **promised)
        else:
            single_view = evaluation
            classifier = classifier.with_views(tta)
            assert classifier.views is not None
            views = (str(classifier.views), classifier.views.count)
            evaluation, seconds_of_views = evaluate_with(classifier)
            entries = tta_figures(single_view, evaluation, seen, views, (seconds, seconds_of_views))
        # Labels in a file may have been made from predictions.
        is_from_file = labels is not None or (not is_of_run and _is_list(table))
        problems = _problems(folder if is_of_run else None, evaluation, has_labels=is_from_file)
        if problems:
            entries["problems"] = problems

        # Compute the figures.
        about = dict(classifier.computation)
        if changes is not None:
            about |= changes.to_dict()
        about |= earlier_figures(evaluation, earlier, seen)
        about |= entries
        figures = all_figures(evaluation, seen, classifier.provenance, about, doubt)
        findings = _findings(evaluation, figures)
        for finding in findings:
            notes(finding)
        report = None
        if out is not None:
            from vitkit.reporting.evaluation_report import write_evaluation

            write_evaluation(out, classifier, evaluation, table, figures, findings, partial(receiver(), "laying out"))
            report = out / REPORT
    return EvaluationResult(evaluation, figures, table.root, classifier.computed, report, tuple(notes.lines))


def _labelled_images(
    folder: Path | None,
    data: str | Path | None,
    data_root: Path | None,
    labels: str | Path | None,
    layout: LayoutName,
    *,
    follow_links: bool,
) -> tuple[ImageTable, ImageTable | None]:
    """Return the images to evaluate, and all images that the run in `folder` recorded (None with `data`)."""
    from vitkit.data.corrections import correct, read_corrected
    from vitkit.data.labels import read_labels
    from vitkit.data.split_file import images_of_run

    if data is not None:
        return read_corrected(data, labels, layout, follow_links=follow_links, may_be_one_class=True), None
    if layout != "auto" or follow_links:
        flag = "--follow-links" if follow_links else f"--layout {layout}"
        raise VitkitError(
            "verbs.option-conflict", f"{flag} applies to the folders of DATA: pass DATA, or leave out the flag"
        )
    if folder is None:
        raise VitkitError("verbs.record-missing", "a classifier in memory has no record of its data: pass the data")
    if not (folder / SPLIT).is_file():
        raise VitkitError(
            "verbs.record-missing", f"{folder} has no record of its data; pass the data: vitkit eval {folder} DATA"
        )
    recorded = images_of_run(folder / SPLIT, data_root)
    return recorded if labels is None else correct(recorded, read_labels(labels), may_add=False), recorded


def _evaluate(
    classifier: Classifier,
    *,
    table: ImageTable,
    split: str,
    earlier: ChangesSinceRuns,
    run: Path | None,
    run_table: ImageTable | None,
) -> tuple[Evaluation, float]:
    """Evaluate the classifier, and return the evaluation and its duration in seconds.

    Images of one group are not independent, which matters for intervals. For images of a run, the groups are those
    that it recorded, and the evaluation names the choices that the run made with these images. For other images, the
    groups are those of the table, with exact copies in one group.
    """
    from vitkit.data.split_file import content_numbers, groups_of_run
    from vitkit.data.splits import merge_by_scene
    from vitkit.data.table import task_of
    from vitkit.evaluation.evaluator import evaluate_with_earlier_labels
    from vitkit.evaluation.figures import chosen_on
    from vitkit.evaluation.metrics import grouped

    start = time.monotonic()
    evaluation = evaluate_with_earlier_labels(classifier, table, split, earlier, partial(receiver(), "evaluating"))
    seconds = time.monotonic() - start
    if run_table is not None and run is not None:
        chosen = chosen_on(evaluation.split, classifier.provenance.get("recipe", {}), task_of(classifier.thresholds))
        return replace(grouped(evaluation, groups_of_run(run, run_table)), chosen=chosen), seconds
    paths = evaluation.paths
    contents = content_numbers(table, paths)
    first_of_content: dict[int | str, int] = {}  # the first image of each content; an unreadable file has its own
    copy_of = [first_of_content.setdefault(contents.get(path, path), i) for i, path in enumerate(paths)]
    row_of = {path: row for row, path in enumerate(table.paths)}
    numbers = merge_by_scene(table.take([row_of[path] for path in paths]), None, copy_of)
    return grouped(evaluation, dict(zip(paths, numbers, strict=True))), seconds


def _changes_since_run(
    run: Path | None, run_table: ImageTable | None, table: ImageTable, split: str, changes: Changes | None
) -> ChangesSinceRuns:
    """Compare the labels of images in a split with those in the run, and with those before a model proposed others."""
    from vitkit.data.earlier_labels import compare_with_runs, digests_of_run, run_folders_among
    from vitkit.data.seen import read_digests

    rows = table if split == "all" else table.of_split(split)
    if run is None:
        return compare_with_runs(rows, {}, (), rows.paths)
    runs = run_folders_among([run])
    if run_table is None:  # the images are not those of the run, but may be copies of them
        return compare_with_runs(rows, read_digests(rows) if runs else {}, runs, rows.paths)
    # The run has recorded the digests of its images, so that the files need not be read.
    present = set(table.paths) - set(() if changes is None else changes.missing)
    digests = {path: digest for path, digest in digests_of_run(run, run_table).items() if path in present}
    return compare_with_runs(table, digests, runs, rows.paths)


def seen_images(
    classifier: Classifier, source: object, table: ImageTable, split: str, *, is_of_run: bool
) -> tuple[dict[str, str] | None, str]:
    """Return the images of a split that are not counted, because the weights have seen them.

    Returns:
        A dict from the path of each such image to its role in training (train or val), and the reason why the weights
        may have seen further images. The dict is None if the model has no record of the images that it has seen. The
        reason is empty if there is none.
    """
    from vitkit.data.seen import PictureRecord
    from vitkit.evaluation.figures import find_seen

    if classifier.pictures is None:
        return None, ""
    return find_seen(PictureRecord.from_bytes(classifier.pictures, source), table, split, is_of_run=is_of_run)


def _exclude_changed_images(
    folder: Path, table: ImageTable, split: str | None, root: Path | None, note: Say
) -> tuple[ImageTable, Changes]:
    """Exclude the images of the run that have changed or are missing, and note how many.

    If the model was trained on all images of the run, another note contains the cross-validated headline.

    Raises:
        VitkitError: every image has changed or is missing.
    """
    from vitkit.data.split_file import check_images, read_contents
    from vitkit.data.splits import held_out_split
    from vitkit.evaluation.registry import read_figures
    from vitkit.system.run_files import EVALUATION, FOLDS

    # Under another root, images are recognised by their content, whatever their paths are.
    contents = read_contents(folder / SPLIT) if root is None else {}
    table, changes = check_images(table, contents, (split or held_out_split(table),))
    if changes:
        if len(changes.changed) + len(changes.missing) == changes.images:
            changes.refuse()
        note(f"{changes.text}; they are left out")
    figures = next((folder / name for name in (FOLDS, EVALUATION) if (folder / name).is_file()), None)
    if figures is not None and held_out_split(table) == "all":
        headline = headline_of(read_figures(figures))
        if headline.folds or headline.split == BY_FOLDS:
            note(f"this model was trained on all images of the run; cross-validated: {headline.words}")
    return table, changes


def _problems(run: Path | None, evaluation: Evaluation, *, has_labels: bool) -> list[str]:
    """Return the problems that the run found in its images, and whether labels may be the model's predictions."""
    from vitkit.data.doctor.examine import caveats_of, read_findings

    problems = [] if run is None else caveats_of(read_findings(run / FINDINGS))
    if has_labels and evaluation.accuracy == 1:
        problems.append(
            "every label equals the prediction, as if the labels had been made from predictions of this model"
        )
    return problems


def _is_list(table: ImageTable) -> bool:
    from vitkit.data.sources import kind_of_file

    return table.storage is None and kind_of_file(table.name) is not None


def _findings(evaluation: Evaluation, figures: dict[str, Any]) -> list[str]:
    """Return remarks on the figures, for example about classes without images."""
    from vitkit.evaluation.figures import counted_part, describe
    from vitkit.evaluation.headline import describe_labels
    from vitkit.evaluation.metrics import MultiEvaluation

    sentences = list(filter(None, [describe_labels(figures), describe(figures)]))
    counted = counted_part(evaluation, figures)
    absent = counted.absent
    if not absent:
        return sentences
    names = ", ".join(absent[:10]) + (", ..." if len(absent) > 10 else "")
    areas = "mAP" if isinstance(counted, MultiEvaluation) else "areas"
    scored = sum(row["f1"] is not None for row in counted.per_class().values())
    sentence = (
        f"no image of {len(absent)} of the model's {len(counted.classes)} classes: {names}; balanced accuracy and "
        f"{areas} are means over the {len(counted.classes) - len(absent)} that occur, macro F1 over the {scored} that "
        "occur or are predicted"
    )
    return [sentence, *sentences]
