"""`vitkit eval`: how good a classifier is on labelled images."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitkit.cli.arguments import (
    BackendName,
    DataRoot,
    FolderLayout,
    MergeNumber,
    ModelSource,
    PlanName,
    PrecisionName,
    load_model,
    tell,
)
from vitkit.cli.say import say
from vitkit.errors import VitkitError
from vitkit.system.files import to_json
from vitkit.verbs.places import sole_out_folder

if TYPE_CHECKING:
    from vitkit.cli.progress import Bar
    from vitkit.data.sources import ImageTable
    from vitkit.evaluation.metrics import Evaluation

_SHOWN = 10  # names of absent classes


def evaluate(
    model: ModelSource,
    data: Annotated[str | None, typer.Argument(help="Other data than the run's own; classes go by name.")] = None,
    data_root: DataRoot = None,
    split: Annotated[
        str | None, typer.Option("--split", help="train, val or test; by default test, else val, else all.")
    ] = None,
    layout: FolderLayout = "auto",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write report.html, evaluation.json and predictions.csv into this folder."),
    ] = None,
    backend: BackendName = "auto",
    precision: PrecisionName = "auto",
    plan: PlanName = "auto",
    merge: MergeNumber = 0,
    force: Annotated[bool, typer.Option("--force", help="Write over what is in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The numbers as JSON, accuracy (0-1) first.")] = False,
) -> None:
    """Accuracy and its kin, over all images and for each class.

    Example: vitkit eval runs/digits-1
    """
    from vitkit.cli.progress import Bar
    from vitkit.data.pictures import PictureRecord
    from vitkit.data.whereabouts import groups_of_run
    from vitkit.evaluation import evaluator, metrics, unseen
    from vitkit.evaluation.chosen import chosen_on

    classifier = load_model(model)
    with Bar() as bar, ExitStack() as hold:
        table = _table(Path(model), data, layout, data_root, bar)
        hold.enter_context(_sole_out(out, table, force=force))  # before the model is asked
        if out is not None:
            _ = classifier.model  # the report looks inside; an exported file says that it has none
        name = split or metrics.held_out_split(table)
        images = len(table) if name == "all" else len(table.of_split(name))
        classifier = classifier.use(backend, precision, images, merge, plan, tell)
        outcome = evaluator.evaluate(classifier, table, name, partial(bar, "evaluating"))
        if data is None:
            outcome = metrics.grouped(outcome, groups_of_run(Path(model), table))
            chosen = chosen_on(name, classifier.provenance.get("recipe", {}), is_multi=classifier.task == "multi")
            outcome = replace(outcome, chosen=chosen)
        seen = None
        if classifier.pictures is not None:
            record = PictureRecord.from_bytes(classifier.pictures, model)
            seen = unseen.find_seen(record, table, name, bar, is_own=data is None)
        found = unseen.all_figures(outcome, seen, classifier.provenance.get("balance"))
        computed = {"backend": classifier.backend, "precision": classifier.precision, "merge": merge}
        numbers = {"accuracy": found["accuracy"], **computed, **found}
        notes = [*_notes(outcome), *filter(None, [unseen.describe(numbers)])]
        for note in notes:
            say(f"note: {note}", file=sys.stderr)
        if out is not None:
            from vitkit.reporting.writing import write_evaluation

            write_evaluation(out, classifier, outcome, table, numbers, notes, partial(bar, "laying out"))
    if as_json:
        print(to_json(numbers, indent=2))
    else:
        _print(outcome, table, numbers, classifier.computed)
        if out is not None:
            say(f"\nreport: {out / 'report.html'}")


def _table(model: Path, data: str | None, layout: FolderLayout, root: Path | None, progress: Bar) -> ImageTable:
    if data is not None:
        if root is not None:
            raise VitkitError(f"--data-root says where the run's own images are; leave it out, or {data}")
        from vitkit.data.sources import read_source

        return read_source(data, progress, layout)
    from vitkit.data.whereabouts import images_of_run

    if layout != "auto":
        raise VitkitError(f"--layout {layout} is about the folders of DATA: name it, or leave out the flag")
    if not (model / "split.json").is_file():
        raise VitkitError(f"{model} does not remember its data; name it: vitkit eval {model} DATA")
    return images_of_run(model / "split.json", root, progress)


def _sole_out(out: Path | None, table: ImageTable, *, force: bool) -> AbstractContextManager[None]:
    folders = set(table.folders)
    if not folders:  # a run knows where its images are, not how they were found
        is_list = Path(table.name).suffix.lower() in (".csv", ".tsv")
        folders = {table.file(i).parent for i in range(len(table))} if is_list else {table.root}
    return sole_out_folder("--out", out, map(str, folders), "or --force to write over what is in it", may_hold=force)


def _notes(outcome: Evaluation) -> list[str]:
    """What the reader of the figures should know."""
    from vitkit.evaluation.multilabel import MultiEvaluation

    if not outcome.absent:
        return []
    names = ", ".join(outcome.absent[:_SHOWN]) + (", ..." if len(outcome.absent) > _SHOWN else "")
    there = len(outcome.classes) - len(outcome.absent)
    absent = f"no image of {len(outcome.absent)} of the model's {len(outcome.classes)} classes: {names}"
    areas = "mAP" if isinstance(outcome, MultiEvaluation) else "areas"
    said = sum(row["f1"] is not None for row in outcome.per_class().values())
    f1 = f"macro F1 over the {said} that occur or are predicted"
    return [f"{absent}; balanced accuracy and {areas} are means over the {there} that occur, {f1}"]


def _operating_lines(numbers: dict[str, Any]) -> list[str]:
    """Where classes differ much in size: what the answers come to for their shares in training, and for equal ones."""
    from vitkit.evaluation.operating import SHARES

    points = numbers.get("operating_points", {})
    return [
        f"for classes {shares}: accuracy {points[name]['accuracy']:.4f}, "
        f"balanced {points[name]['balanced_accuracy']:.4f}{' (chosen)' if name == points['chosen'] else ''}"
        for name, shares in SHARES.items()
        if name in points
    ]


def _print(outcome: Evaluation, table: ImageTable, numbers: dict[str, Any], computed: str) -> None:
    from vitkit.evaluation.figures import interval_text
    from vitkit.text.html import decimals

    say(f"{numbers['images']} {outcome.split} images of {table.root} ({computed})")
    if outcome.chosen:
        say(f"validation: chosen on these images: {', '.join(outcome.chosen)}")
    for name, value in numbers.get("cross_fitted", {}).items():
        say(f"{name:18} {decimals(value)} with cross-fitted thresholds")
    for name, value in outcome.summary().items():
        if isinstance(value, float):
            bounds = numbers["intervals_95"].get(name)
            interval = "" if bounds is None else f" (95 %: {interval_text(bounds)})"
            say(f"{name:18} {value:.4f}{interval}")
    for line in _operating_lines(numbers):
        say(line)
    width = max(5, *map(len, outcome.classes))
    say(f"\n{'class':{width}}  precision  recall     F1  images")
    for name, row in outcome.per_class().items():
        precision, recall, f1 = (decimals(row[key]) for key in ("precision", "recall", "f1"))
        say(f"{name:{width}}  {precision:>9}  {recall:>6}  {f1:>5}  {row['support']:6}")
    for path, reason in outcome.unreadable.items():
        say(f"note: left out {path}: {reason}")
