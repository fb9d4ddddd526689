"""`vitkit eval`: how good a classifier is on labelled images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitkit.cli.arguments import ModelSource, load_model
from vitkit.errors import VitkitError

if TYPE_CHECKING:
    from vitkit.cli.progress import Bar
    from vitkit.data.source import ImageTable
    from vitkit.evaluate.metrics import Evaluation


def evaluate(
    model: ModelSource,
    data: Annotated[str | None, typer.Argument(help="Other data than the run's own; classes go by name.")] = None,
    split: Annotated[
        str | None, typer.Option("--split", help="train, val or test; by default test, else val, else all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The numbers as JSON, accuracy (0-1) first.")] = False,
) -> None:
    """Accuracy and its kin, over all images and for each class.

    Example: vitkit eval runs/digits-1
    """
    from vitkit.cli.progress import Bar
    from vitkit.evaluate import metrics

    classifier = load_model(model)
    with Bar() as bar:
        table = _table(Path(model), data, bar)
        name = split or metrics.held_out_split(table)
        outcome = metrics.evaluate(classifier, table, name, lambda done, total: bar("evaluating", done, total))
    if as_json:
        numbers = {**outcome.summary(), "engine": "eager", "precision": "float32", "per_class": outcome.per_class()}
        print(json.dumps(numbers, indent=2, ensure_ascii=False))
    else:
        _print(outcome, table)


def _table(model: Path, data: str | None, progress: Bar) -> ImageTable:
    if data is not None:
        from vitkit.data.source import read_source

        return read_source(data, progress)
    from vitkit.data.source import locate
    from vitkit.data.split import split_from_file

    if not (model / "split.json").is_file():
        raise VitkitError(f"{model} does not remember its data; name it: vitkit eval {model} DATA")
    return locate(split_from_file(model / "split.json"), progress)


def _print(outcome: Evaluation, table: ImageTable) -> None:
    summary = outcome.summary()
    print(f"{summary['images']} {outcome.split} images of {table.root} (eager, float32)")
    for name in ("accuracy", "balanced_accuracy", "top5_accuracy", "loss"):
        if name in summary:
            print(f"{name:18} {summary[name]:.4f}")
    width = max(5, *map(len, outcome.classes))
    print(f"\n{'class':{width}}  precision  recall     F1  images")
    for name, row in outcome.per_class().items():
        print(f"{name:{width}}  {row['precision']:9.3f}  {row['recall']:6.3f}  {row['f1']:5.3f}  {row['support']:6}")
    for path, reason in outcome.unreadable.items():
        print(f"note: left out {path}: {reason}")
