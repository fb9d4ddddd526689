"""`vitkit predict`: what a classifier says of images."""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitkit.cli.arguments import (
    BackendName,
    Device,
    MergeNumber,
    ModelSource,
    PlanName,
    PrecisionName,
    PreprocessText,
    tell,
)
from vitkit.cli.progress import Bar
from vitkit.cli.say import HARMLESS, say
from vitkit.errors import Interrupted, ShortageError
from vitkit.inference.prediction_files import Columns, Format, JsonLines, partial_of
from vitkit.system.files import to_json
from vitkit.verbs import predict as verb

if TYPE_CHECKING:
    from vitkit.inference.prediction import Prediction


def predict(
    model: ModelSource,
    sources: Annotated[list[str], typer.Argument(metavar="SRC...", help="Images, folders (walked), or patterns.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write to this .csv or .jsonl file.")] = None,
    pictures: Annotated[
        Path | None, typer.Option("--pictures", help="Draw each image under its class into this folder.")
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Classes to name for each image.")] = 1,
    classes: Annotated[
        str | None,
        typer.Option("--classes", help="Classes by name, with CLIP or SigLIP: 'daisy, rose', or a list's file."),
    ] = None,
    templates: Annotated[
        list[str] | None, typer.Option("--template", help="With --classes: a sentence with {}; several are averaged.")
    ] = None,
    one: Annotated[
        bool, typer.Option("--one", help="With --classes of SigLIP: each image has exactly one of them.")
    ] = False,
    reject: Annotated[
        float | None, typer.Option("--reject", help="Withhold the label below this confidence, 0 to 1.")
    ] = None,
    preprocess: PreprocessText = None,
    backend: BackendName = "auto",
    precision: PrecisionName = "auto",
    plan: PlanName = "auto",
    merge: MergeNumber = 0,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="Images at a time; by default as suits the backend.")
    ] = None,
    device: Device = "auto",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an --out that was cut short, or add what it lacks.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over --out and --pictures.")] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="CSV text as it is, though a spreadsheet or terminal may act upon it.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if an image or folder cannot be read.")] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="A JSON object a line for each image, as in a .jsonl file; with --out the counts."),
    ] = False,
) -> None:
    """The class of each image with its probability; an image that cannot be read is a row with its reason.

    Of a multi-label model the classes, joined by `;`, with the lowest of their probabilities.

    Example: vitkit predict runs/digits-1 photo.jpg
    """
    with _resumable(out), Bar() as bar:
        found = verb.predict(
            model,
            sources,
            out=out,
            pictures=pictures,
            top=top,
            classes=classes,
            templates=templates or (),
            one=one or None,
            reject=reject,
            preprocess=preprocess,
            backend=backend,
            precision=precision,
            plan=plan,
            merge=merge,
            batch_size=batch_size,
            device=device,
            resume=resume,
            force=force,
            raw=raw,
            say=tell if as_json else bar.say,
            note=tell,
            progress=bar,
            writer=_json_writer(bar) if as_json else _writer(bar),
        )
    if as_json and out is not None:
        print(to_json(found.counts()))
    else:
        for line in found.lines():
            say(line, file=sys.stderr if out is None else None)  # where the rows are on stdout
    if found.unreadable == found.images or (strict and not found.is_whole):
        raise typer.Exit(1)


@contextmanager
def _resumable(out: Path | None) -> Iterator[None]:
    """A signal is answered with the command to go on, and so is a machine that is short of something."""
    try:
        yield
    except (Interrupted, ShortageError):
        if out is None or not partial_of(out).exists():
            raise
        words = [word for word in sys.argv[1:] if word not in ("--force", "--resume")]
        words.insert(words.index("predict") + 1, "--resume")
        say(f"to go on: {shlex.join(['vitkit', *words])}")
        raise


def _writer(bar: Bar) -> verb.Writer:
    """Rows to stdout as they come, in place of the bar; a single image on a terminal in a form for people."""

    def begin(form: Format, images: int) -> verb.Write:
        bar.stop()
        if images == 1 and sys.stdout.isatty():
            return lambda prediction: _print_all(prediction, form.columns)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors=HARMLESS)  # file names may not be UTF-8
        sys.stdout.write(form.header)
        return lambda prediction: print(form.encode(prediction), end="")

    return begin


def _json_writer(bar: Bar) -> verb.Writer:
    """The rows of a JSON lines file to stdout, as they come."""

    def begin(form: Format, images: int) -> verb.Write:  # noqa: ARG001
        bar.stop()
        lines = JsonLines(form.columns)
        return lambda prediction: print(lines.encode(prediction), end="")

    return begin


def _print_all(prediction: Prediction, columns: Columns) -> None:
    """One image on a terminal: every class with its probability, and which of several it has."""
    say(prediction.path if prediction.error is None else f"{prediction.path}: {prediction.error}")
    width = max((len(label) for label, _ in prediction.ranking), default=0)
    for label, confidence in prediction.ranking:
        say(f"  {label:{width}}  {confidence:6.4f}  {'#' * round(40 * confidence)}")
    label = prediction.label or "none of them"
    if columns.multi and prediction.error is None:
        say(f"label: {label}")
    if columns.row(prediction).is_rejected:
        say(f"rejected: {label} has {prediction.confidence:.4f}, less than {columns.reject}")
