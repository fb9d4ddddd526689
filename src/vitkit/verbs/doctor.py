"""`vitkit.doctor`: check a data set for problems before training, or review the suspected label errors of a run.

Photographs without labels are compared with the images of a run in `drift`.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.data.layout import LayoutName
from vitkit.data.preprocess import Preprocess
from vitkit.errors import VitkitError
from vitkit.evaluation.headline import describe_labels
from vitkit.system.files import public_path
from vitkit.system.progress import Progress, silent
from vitkit.system.run_files import EVALUATION, LABELS, SPLIT, folds_in
from vitkit.text.arguments import check_arguments
from vitkit.text.cells import aligned, plural
from vitkit.verbs.drift import compare_with_run
from vitkit.verbs.inputs import check_conflicts, check_out, exclusive_out, path_of
from vitkit.verbs.result import Result

if TYPE_CHECKING:
    from vitkit.classifier import Classifier
    from vitkit.data.doctor.examine import Diagnosis
    from vitkit.data.labels import Suspect
    from vitkit.data.table import ImageTable


@check_arguments
def doctor(
    data: str | Path,
    out: Path | str | None = None,
    *,
    against: str | Path | Classifier | None = None,
    labels: Path | str | None = None,
    data_root: Path | str | None = None,
    layout: LayoutName = "auto",
    follow_links: bool = False,
    force: bool = False,
    progress: Progress = silent,
) -> Result:
    """Check a data set for problems: broken files, copies across splits, copies with different labels, tiny classes.

    Every file is decoded only once: later calls recognise files by their content. If a picture is in two splits or has
    two labels, results cannot be trusted, and the command exits with 1. For a run's label_errors.csv, the suspected
    label errors are listed instead.

    With `against`, the photographs need no labels. Statistical tests compare the predicted classes and confidences of
    the photographs, and their scores for unfamiliar images, with those of the validation and test images that the run
    has recorded. If a difference is significant, the command exits with 1.

        >>> import vitkit
        >>> checkup = vitkit.doctor("digits")
        >>> checkup.is_trustworthy, checkup.rows()[0], checkup.lines()[-1]
        (True, {'class': '0', 'images': 178}, 'Ready to train: nothing wrong was found.')

    On the command line: `vitkit doctor digits`, or `vitkit doctor photos --against runs/digits-1`.

    Args:
        data: a folder, a CSV file, or the name of a data set; or the label_errors.csv of a run.
        out: also write an HTML page with pictures.
        against: a run or model folder, or a file that was exported from one: check whether the photographs in `data` (a
            folder, an image or a glob pattern) are similar to its validation and test images.
        labels: a label file (CSV: path, label), whose rows take precedence over the labels of the data. For
            label_errors.csv, the suspected label errors that the label file has decided are not listed: those with a
            row that was added since the run or that confirms the label.
        data_root: the folder that now contains the run's images, which may have been renamed; only for
            label_errors.csv.
        layout: whether the folders in `data` are classes or splits; `auto` decides by their names.
        follow_links: also search the folders and files that links lead to outside of the folder.
        force: overwrite `out`.
        progress: called with the current task, the number of finished items and the total number of items.

    Returns:
        A result with the fact `is_trustworthy`: whether results on the data can be trusted, because no picture is in
        two splits or has two labels. Further facts are `diagnosis`, the statistics and findings, and `out`. The table
        has the number of images of each class.

        For a label_errors.csv, `is_trustworthy` is True, because suspected labels may be right and the images only
        difficult. The facts are `file`, `run`, `data`, `images` (the number of the run's images), `suspects` (the
        undecided rows, the most suspicious first), `decided` (the number of the other rows, whose labels were corrected
        in the list or decided by the label file), `held_out` (the number of suspects in the split that the run was
        tested on), `consequence` (a sentence on what accepting a suggestion for them does to the test figure),
        `changed` (a description of the images whose content has changed since the run; empty if there are none),
        `notes` (about rows of the label file that match no image, and about test labels that have changed) and `out`.

        With `against`, `is_trustworthy` is the opposite of `differs`: whether any test found a significant difference,
        an adjusted p-value of at most `level`. The table has a row for each test. Further facts are `verdict` (the
        result in a sentence), `model` (its name), `images` (the number of photographs that could be read),
        `validation_images` and `test_images` (the numbers of recorded images), `level`, `tests`, `shares` (for each
        class, the fractions of the recorded images and of the photographs for which it is predicted), `unfamiliar` (the
        photographs that differ most, the least familiar first), `errors` (the reasons why other photographs could not
        be read, by path), `computed` (the backend and precision), `notes` and `out`.

    Raises:
        VitkitError: the data do not exist, fewer than two classes can be read, or `out` cannot be written.
    """
    from vitkit.data.labels import is_list_of_suspects

    out, labels, data_root = path_of(out), path_of(labels), path_of(data_root)
    if against is not None:  # the photographs have no labels
        flags = {"--labels": labels, "--data-root": data_root, "--layout": layout != "auto"}
        check_conflicts({"--against": True}, flags)
        return compare_with_run(against, data, out, follow_links=follow_links, force=force)
    if is_list_of_suspects(data):
        flags = {"--layout": layout != "auto", "--follow-links": follow_links}
        check_conflicts({"a list of suspected label errors": True}, flags)
        return _review_labels(Path(data), out, labels, data_root, force=force)
    if data_root is not None:
        raise VitkitError(
            "verbs.option-conflict", "--data-root is only for the label_errors.csv of a run: leave it out"
        )
    from vitkit.data.corrections import read_corrected
    from vitkit.data.doctor.examine import examine
    from vitkit.reporting.dataset_report import write_checkup

    table = read_corrected(str(data), None if labels is None else str(labels), layout, follow_links=follow_links)
    if out is not None:
        check_out(out, (".html",), map(str, table.folders))
    with exclusive_out(out, force=force):
        diagnosis = examine(table, Preprocess(size=(224, 224)))
        if out is not None:
            write_checkup(out, diagnosis)
    arguments = [str(data)]
    if labels is not None:
        arguments += ["--labels", str(labels)]
    if layout != "auto":
        arguments += ["--layout", layout]
    if follow_links:
        arguments.append("--follow-links")
    return _checkup(diagnosis, out, shlex.join(arguments))


def _checkup(diagnosis: Diagnosis, out: Path | None, arguments: str) -> Result:
    """Describe a data set and its findings, the worst first.

    `arguments` are the data and their flags, with which the suggested commands begin.
    """
    from vitkit.data.storage import natural_key
    from vitkit.reporting.dataset_report import pictures_of, verdict_of_data

    images = diagnosis.table
    statistics = diagnosis.to_dict()
    counts = statistics["classes"]  # the number of images of each class
    verdict = verdict_of_data(diagnosis)
    pictures = pictures_of(diagnosis)
    summary = f"{images.name}: {len(images)} images in {len(images.classes)} classes"

    lines = [f"{summary}, {images.place}"]
    if images.layout:
        lines.append(images.layout)
    width, largest = max(map(len, counts)), max(counts.values())
    for name in sorted(counts, key=natural_key):
        bar = "#" * max(1, round(40 * counts[name] / largest))
        lines.append(f"  {name:{width}}  {counts[name]:6}  {bar}")
    for heading, key in (("splits", "splits"), ("formats", "formats"), ("colours", "modes")):
        if statistics[key]:  # not all data have splits
            lines.append(f"{heading:7}  {', '.join(f'{count} {name}' for name, count in statistics[key].items())}")
    for name, unit in (("width", "pixels"), ("height", "pixels"), ("aspect", "width / height")):
        size = statistics[name]
        lines.append(f"{name:7}  {size['min']:g} to {size['max']:g}, median {size['median']:g} ({unit})")
    lines += map(str, diagnosis.findings)
    if out is not None:
        lines.append(f"with pictures: {out}")
    lines.append(f"{verdict.sentence}{'' if diagnosis.findings else ': nothing wrong was found'}.")

    if verdict.level == "good":
        next_step = f"vitkit train {arguments}"
    elif out is None:
        next_step = f"to see the pictures, vitkit doctor {arguments} --out check.html"
    else:
        next_step = f"open {shlex.quote(str(out))}"

    def html() -> str:
        from vitkit.text.pages import finding, image, table, to_png

        paragraph = f"<p>{escape(verdict.sentence)}. {escape(summary)}</p>"
        findings = "".join(finding(str(problem)) for problem in diagnosis.findings) or "<p>Nothing wrong was found.</p>"
        caption, draw = next(iter(pictures.items()))
        rows = [[escape(name), str(count)] for name, count in counts.items()]
        return paragraph + findings + image(caption, to_png(draw()), "png") + table(rows, ("class", "images"))

    return Result(
        "doctor",
        lines,
        {"diagnosis": diagnosis, "out": out, "is_trustworthy": not diagnosis.has_problems},
        json=statistics,
        rows=[{"class": name, "images": count} for name, count in counts.items()],
        pictures=pictures,
        html=html,
        next_step=next_step,
    )


_PRINTED = 20  # the number of suspects in the printed table


def _review_labels(file: Path, out: Path | None, labels: Path | None, data_root: Path | None, *, force: bool) -> Result:
    """List the undecided suspects of a label_errors.csv, and write a page with their pictures if `out` is not None."""
    from vitkit.data.labels import chance_in_words, read_suspects
    from vitkit.data.split_file import check_images, images_of_run, read_contents, split_from_file
    from vitkit.data.splits import held_out_split
    from vitkit.evaluation.registry import read_figures

    run = file.parent
    split_file = next((folder / SPLIT for folder in (run, *folds_in(run)) if (folder / SPLIT).is_file()), None)
    if split_file is None:
        raise VitkitError(
            "verbs.run-missing",
            f"{file} is not in the folder of its run, which records where the pictures are: "
            "pass the file in that folder",
        )
    table = split_from_file(split_file)
    rows = read_suspects(file)
    suspects, positions, notes = _undecided_suspects(rows, table, run, labels)
    decided = len(rows) - len(suspects)
    if (run / EVALUATION).is_file():
        changed_labels = describe_labels(read_figures(run / EVALUATION))  # of test images, since the evaluation
        notes = [changed_labels, *notes] if changed_labels else notes
    test_split = held_out_split(table)
    held_out = sum(table.splits[i] == test_split for i in positions)
    consequence = (
        f"{plural(held_out, 'of these images is', 'of these images are')} held out: if one gets another label, the "
        "test figure keeps counting its previous label, and if it is left out, it counts as the run predicted it"
    )

    # Find the images where they are now, if they can be found or must be shown.
    changed = ""  # a description of those whose content has changed
    if out is not None or data_root is not None or table.root.exists():
        images = images_of_run(split_file, data_root)
        positions = sorted(set(positions))
        # Under `data_root`, the images have been found by their content, so that it need not be compared again.
        contents = read_contents(split_file) if data_root is None else {}
        checked, changes = check_images(images.take(positions), contents)
        changed = changes.text if changes else ""
    if out is not None:
        from vitkit.reporting.dataset_report import write_suspects

        check_out(out, (".html",), [str(images.root)])
        path_now = {table.paths[i]: path for i, path in zip(positions, checked.paths, strict=True)}
        files = [images.at(path_now.get(suspect.path, suspect.path)) for suspect in suspects]
        advice = _advice(run, public_path(table.name), run.name, consequence)  # the page may be sent to others
        with exclusive_out(out, force=force):
            write_suspects(out, f"Labels to look at: {run.name}", suspects, files, advice)

    summary = f"{file}: {plural(len(suspects), 'label looks', 'labels look')} wrong, of {len(table)}"
    if decided:
        summary += f", {decided} more decided already"
    lines = [summary + chance_in_words(suspects)]
    if suspects:
        cells = [(row.score, f"{row.label} -> {row.suggested}", row.path) for row in suspects[:_PRINTED]]
        lines += aligned([("score", "label -> looks like", "path"), *cells])
    if len(suspects) > _PRINTED:
        lines.append(f"and {len(suspects) - _PRINTED} more")
    if changed:
        lines.append(f"note: {changed}: their labels were suspected for other pictures")
    lines += [f"note: {note}" for note in notes]
    if suspects:
        lines.append(_advice(run, table.name, str(run), consequence))
    if out is not None:
        lines.append(f"with pictures: {out}")

    counts = {"run": run, "data": table.name, "images": len(table), "decided": decided, "held_out": held_out}
    facts = {"file": file, "suspects": suspects, "changed": changed, "notes": tuple(notes), "out": out}
    json = {
        **counts,
        "expected_by_chance": sum(suspect.chance for suspect in suspects),
        **({"changed": changed} if changed else {}),
        "notes": notes,
        "suspects": [suspect._asdict() for suspect in suspects],
    }
    facts |= {**counts, "is_trustworthy": True, "consequence": consequence}
    return Result("doctor", lines, facts, json=json)


def _undecided_suspects(
    rows: Sequence[Suspect], table: ImageTable, run: Path, labels: Path | None
) -> tuple[tuple[Suspect, ...], list[int], list[str]]:
    """Return the suspects that nobody has decided, the positions of their images, and notes about the label file.

    A suspect is decided by the label file, or by a corrected label in the list.
    """
    from vitkit.data.corrections import CurrentLabels
    from vitkit.data.labels import PathFinder, decisions_since, read_labels

    finder = PathFinder(table.root, table.paths)
    decided: set[int] = set()
    notes: list[str] = []
    if labels is not None:
        label_file = read_labels(labels)
        for path in decisions_since(label_file, run):
            decided.update(finder.find(path))
        current = CurrentLabels(table)
        current.take(label_file)
        notes += current.describe_lost(public_path(label_file.name))
    suspects: list[Suspect] = []
    images: list[int] = []
    for row in rows:
        positions = finder.find(row.path)
        if not any(i in decided or table.name_of(i) != row.label for i in positions):
            suspects.append(row)
            images += positions
    return tuple(suspects), images, notes


def _advice(run: Path, data: str, name: str, consequence: str) -> str:
    """Return instructions for correcting labels, with commands that use these names for the data and the run."""
    if (run / LABELS).is_file():
        how = f"add rows with path and correct label (empty to leave the picture out) to a copy of {name}/{LABELS}"
    else:
        how = "copy the list and write the correct label into its column label (empty to leave the picture out)"
    return (
        "Many of these labels are right and the pictures only difficult: "
        "look at a picture before you change its label. "
        f"To correct some, {how}, and train again: vitkit train {data} --labels COPY.csv --split-from {name}. "
        f"{consequence}"
    )
