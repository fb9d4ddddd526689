"""`vitkit predict`: what a classifier says of images."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from vitkit.cli.arguments import ModelSource, load_model
from vitkit.errors import VitkitError

if TYPE_CHECKING:
    from vitkit.classifier import Prediction


def predict(
    model: ModelSource,
    sources: Annotated[list[str], typer.Argument(metavar="SRC...", help="Images, folders (walked), or patterns.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write to this .csv or .jsonl file.")] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Classes to name for each image.")] = 1,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Images at a time.")] = 32,
    force: Annotated[bool, typer.Option("--force", help="Write over --out.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if any image cannot be read.")] = False,
) -> None:
    """The class of each image with its probability; an image that cannot be read is a row with its reason.

    Example: vitkit predict runs/digits-1 photo.jpg
    """
    if out is not None:
        _check_out(out, force=force)
    from vitkit.data.source import find_images

    paths = find_images(sources)  # what is not there should be said before the model is loaded
    from vitkit.cli.progress import Bar

    classifier = load_model(model)
    rows = failed = 0
    with Bar() as bar, _writer(out, min(top, len(classifier.classes)), is_single=len(paths) == 1) as write:
        for prediction in classifier.predict(paths, batch_size):
            write(prediction)
            rows += 1
            failed += prediction.error is not None
            if out is not None:
                bar("predicting", rows, len(paths))
    if out is not None:
        print(f"{rows} images ({failed} unreadable), eager, float32: {out}")
    if failed == rows or (strict and failed):
        raise typer.Exit(1)


def _check_out(out: Path, *, force: bool) -> None:
    if out.suffix.lower() not in (".csv", ".jsonl"):
        raise VitkitError(f"--out {out} must end in .csv or .jsonl")
    if out.exists() and not force:
        raise VitkitError(f"--out {out} exists: choose a new name, or --force to write over it")
    if not out.parent.is_dir():
        raise VitkitError(f"--out {out}: there is no folder {out.parent}")


@contextmanager
def _writer(out: Path | None, top: int, *, is_single: bool) -> Iterator[Callable[[Prediction], None]]:
    if out is not None:
        from vitkit.files import replacing

        with replacing(out) as temporary, _open(temporary) as file:
            yield _csv_writer(file, top) if out.suffix.lower() == ".csv" else _jsonl_writer(file, top)
    elif is_single and sys.stdout.isatty():
        yield _print_all
    else:
        yield _csv_writer(sys.stdout, top)


def _open(path: Path) -> TextIO:
    return path.open("w", encoding="utf-8", errors="surrogateescape", newline="")  # file names may not be UTF-8


def _csv_writer(file: TextIO, top: int) -> Callable[[Prediction], None]:
    writer = csv.writer(file, lineterminator="\n")
    further = [f"{name}_{rank}" for rank in range(2, top + 1) for name in ("label", "confidence")]
    writer.writerow(["path", "label", "confidence", "error", *further])

    def write(prediction: Prediction) -> None:
        first, *others = _cells(prediction, top)
        writer.writerow([prediction.path, *first, prediction.error, *(cell for other in others for cell in other)])

    return write


def _cells(prediction: Prediction, top: int) -> Iterable[tuple[str, str]]:
    ranking = prediction.ranking[:top] or [("", None)] * top
    return [(label, "" if confidence is None else f"{confidence:.6f}") for label, confidence in ranking]


def _jsonl_writer(file: TextIO, top: int) -> Callable[[Prediction], None]:
    def write(prediction: Prediction) -> None:
        row: dict[str, Any] = {"path": prediction.path, "label": prediction.label, "confidence": prediction.confidence}
        if prediction.error is not None:
            row["error"] = prediction.error
        elif top > 1:
            row["top"] = [{"label": label, "confidence": p} for label, p in prediction.ranking[:top]]
        file.write(json.dumps(row, ensure_ascii=False) + "\n")

    return write


def _print_all(prediction: Prediction) -> None:
    """One image on a terminal: every class with its probability."""
    print(prediction.path if prediction.error is None else f"{prediction.path}: {prediction.error}")
    width = max((len(label) for label, _ in prediction.ranking), default=0)
    for label, confidence in prediction.ranking:
        print(f"  {label:{width}}  {confidence:6.4f}  {'#' * round(40 * confidence)}")
