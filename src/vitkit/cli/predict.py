"""`vitkit predict`: what a classifier says of images."""

from __future__ import annotations

import io
import math
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitkit.cli.arguments import (
    BackendName,
    MergeNumber,
    ModelSource,
    PlanName,
    PrecisionName,
    find_pictures,
    load_model,
    tell,
)
from vitkit.cli.say import HARMLESS, say
from vitkit.data.sources import JOINT
from vitkit.errors import Interrupted, ShortageError, VitkitError
from vitkit.inference.prediction_files import FORMATS, Columns, Format
from vitkit.inference.resumable import Stock, Tally, gathering, partial_of, read_rows, take_stock
from vitkit.system.files import sole
from vitkit.verbs.inputs import source_folders
from vitkit.verbs.places import check_out, sole_out_folder

if TYPE_CHECKING:
    from vitkit.classifier import Classifier
    from vitkit.inference.prediction import Prediction
    from vitkit.reporting.album import Album

_SAME = 1e-3  # a model's probabilities differ less from one machine or batch to another
_LOOKED_AT = 8  # rows, and classes of each


def predict(
    model: ModelSource,
    sources: Annotated[list[str], typer.Argument(metavar="SRC...", help="Images, folders (walked), or patterns.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write to this .csv or .jsonl file.")] = None,
    pictures: Annotated[
        Path | None, typer.Option("--pictures", help="Draw each image under its class into this folder.")
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Classes to name for each image.")] = 1,
    reject: Annotated[
        float | None, typer.Option("--reject", help="Withhold the label below this confidence, 0 to 1.")
    ] = None,
    backend: BackendName = "auto",
    precision: PrecisionName = "auto",
    plan: PlanName = "auto",
    merge: MergeNumber = 0,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="Images at a time; by default as suits the backend.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an --out that was cut short, or add what it lacks.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over --out and --pictures.")] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="CSV text as it is, though a spreadsheet or terminal may act upon it.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if an image or folder cannot be read.")] = False,
) -> None:
    """The class of each image with its probability; an image that cannot be read is a row with its reason.

    Of a multi-label model the classes, joined by `;`, with the lowest of their probabilities.

    Example: vitkit predict runs/digits-1 photo.jpg
    """
    if reject is not None and not 0 <= reject <= 1:
        raise VitkitError(f"--reject {reject} must be from 0 to 1")
    folders = source_folders(sources)
    _check_out(out, folders, resume=resume, force=force)
    found, is_whole = find_pictures(sources)
    paths = list(dict.fromkeys(found))  # what is not there should be said before the model is loaded
    from vitkit.cli.progress import Bar

    may_exist = resume or force
    with _sole_pictures(pictures, folders, may_exist=may_exist), nullcontext() if out is None else sole(out):
        _check_free(out, may_exist=may_exist)
        classifier = load_model(model)
        columns = Columns(min(top, len(classifier.classes)), reject, classifier.task == "multi")
        form = FORMATS[".csv" if out is None else out.suffix.lower()](columns, is_raw=raw)
        stock = _take_stock(classifier, out, form, paths) if out is not None and resume else Stock(paths)
        classifier = classifier.use(backend, precision, len(stock.missing), merge, plan, tell)
        album = None if pictures is None else _open_album(pictures, folders, paths)
        tally = stock.tally
        with _resumable(out), Bar() as bar, _writer(out, form, paths, stock) as write:
            if album is not None and stock.file is not None:
                album.complete(row for _, row in read_rows(stock.file, form))
            for prediction in classifier.predict(stock.missing, batch_size):
                row = columns.row(prediction)
                if album is not None:
                    album.add(row)  # first, so that a row in the file has its picture
                write(prediction)
                tally.add(row)
                if out is not None:
                    bar("predicting", tally.images, len(paths))
    _conclude(tally, out, columns, classifier)
    if tally.unreadable == tally.images or (strict and (tally.unreadable or not is_whole)):
        raise typer.Exit(1)


def _check_out(out: Path | None, folders: Sequence[str], *, resume: bool, force: bool) -> None:
    if resume and force:
        raise VitkitError("--resume goes on with what is there, --force writes over it: give one of them")
    if out is None:
        if resume:
            raise VitkitError("--resume needs the --out that it is to go on with")
        return
    check_out(out, FORMATS, folders)


def _check_free(out: Path | None, *, may_exist: bool) -> None:
    if out is None or may_exist:
        return
    if out.exists():
        raise VitkitError(
            f"--out {out} exists: choose a new name, --resume to add what it lacks, or --force to write over it"
        )
    if partial_of(out).exists():
        raise VitkitError(f"{partial_of(out)} was cut short: --resume to go on with it, or --force to begin anew")


def _sole_pictures(pictures: Path | None, folders: Sequence[str], *, may_exist: bool) -> AbstractContextManager[None]:
    or_else = "--resume to go on, or --force to write over it"
    return sole_out_folder("--pictures", pictures, folders, or_else, may_hold=may_exist)


def _take_stock(classifier: Classifier, out: Path, form: Format, paths: Sequence[str]) -> Stock:
    """What an earlier run of this model left."""
    stock = take_stock(out, form, paths)
    if stock.file is not None:
        if not _is_by(classifier, stock.file, form):
            raise VitkitError(
                f"the rows in {stock.file} come from another model: give the one they are by, or --force to begin anew"
            )
        say(f"{stock.tally.images} of {len(paths)} images are in {stock.file}")
    return stock


def _is_by(classifier: Classifier, file: Path, form: Format) -> bool:
    """Whether the rows are the classifier's.

    What it says again of the first image that can be read decides, where that agrees to the digits. Else the rows may
    be by another backend or precision, and several may differ by as much as rounding to bfloat16 changes this model.
    """
    rows: list[tuple[str, float]] = []
    exact: list[Prediction] = []
    for _, row in read_rows(file, form):
        if row.name is None or row.confidence is None:
            continue
        prediction = next(classifier.predict(row.path))
        if prediction.confidence is None:
            continue
        if not rows and prediction.label == row.name and abs(prediction.confidence - row.confidence) <= _SAME:
            return True
        rows.append((row.name, row.confidence))
        exact.append(prediction)
        if len(rows) == _LOOKED_AT:
            break
    if not rows:
        return True
    rounded = classifier.use("eager", "bfloat16", images=len(exact)).predict([prediction.path for prediction in exact])
    noise = max(_noise(prediction, other) for prediction, other in zip(exact, rounded, strict=True))
    distances = [_distance(classifier, *row, prediction) for row, prediction in zip(rows, exact, strict=True)]
    return sum(distances) / len(distances) <= 2 * max(noise, _SAME)


def _noise(exact: Prediction, rounded: Prediction) -> float:
    """The largest difference between the logits of the most probable classes."""
    other = dict(rounded.ranking)
    return max(abs(_logit(own) - _logit(other[name])) for name, own in exact.ranking[:_LOOKED_AT])


def _distance(classifier: Classifier, name: str, confidence: float, prediction: Prediction) -> float:
    """Between the logits of a row's confidence and of what the classifier now says of the same classes."""
    probabilities = dict(prediction.ranking)
    if classifier.thresholds is None:
        return abs(_logit(probabilities[name]) - _logit(confidence)) if name in probabilities else math.inf
    assert prediction.confidence is not None
    if name == prediction.label:
        return abs(_logit(prediction.confidence) - _logit(confidence))
    thresholds = dict(zip(classifier.classes, classifier.thresholds, strict=True))
    flipped = set(name.split(JOINT)) ^ set((prediction.label or "").split(JOINT)) - {""}  # may lie at their thresholds
    return max(
        (abs(_logit(probabilities[own]) - _logit(thresholds[own])) if own in thresholds else math.inf)
        for own in flipped - {""}
    )


def _logit(probability: float) -> float:
    """Of a probability that six digits can tell from 0 and 1."""
    probability = min(max(probability, 1e-4), 1 - 1e-4)
    return math.log(probability / (1 - probability))


def _open_album(folder: Path, sources: Sequence[str], paths: Sequence[str]) -> Album:
    from vitkit.reporting.album import Album

    return Album(folder, sources, paths)


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


@contextmanager
def _writer(
    out: Path | None, form: Format, paths: Sequence[str], stock: Stock
) -> Iterator[Callable[[Prediction], None]]:
    if out is not None:
        with gathering(out, form, paths, stock) as write:
            yield write
    elif len(paths) == 1 and sys.stdout.isatty():
        yield lambda prediction: _print_all(prediction, form.columns)
    else:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors=HARMLESS)  # file names may not be UTF-8
        sys.stdout.write(form.header)
        yield lambda prediction: print(form.encode(prediction), end="")


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


def _conclude(tally: Tally, out: Path | None, columns: Columns, classifier: Classifier) -> None:
    """What became of the images, and what computed it; on stderr where the rows are on stdout."""
    rejected = "" if columns.reject is None else f", {tally.rejected} rejected"
    images = "1 image" if tally.images == 1 else f"{tally.images} images"
    line = f"{images} ({tally.unreadable} unreadable{rejected}), {classifier.computed}"
    if out is None:
        say(line, file=sys.stderr)
    else:
        say(f"{line}: {out}")
