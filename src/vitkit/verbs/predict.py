"""`vitkit.predict`: what a classifier says of images.

Whether rows of predictions that are in a file are a classifier's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from html import escape
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vitkit.errors import VitkitError
from vitkit.inference.prediction_files import (
    FORMATS,
    Columns,
    Format,
    Row,
    Stock,
    Tally,
    gathering,
    partial_of,
    read_rows,
    take_stock,
)
from vitkit.system.environment import DeviceName
from vitkit.system.files import exclusive
from vitkit.system.progress import Progress, Say, ignore, progress, reporting_to, silent
from vitkit.text.arguments import check_arguments
from vitkit.text.cells import JOINT, plural
from vitkit.text.fields import Between
from vitkit.verbs.inputs import (
    PREPROCESS,
    BackendName,
    PlanName,
    PrecisionName,
    check_choice,
    check_out,
    find_pictures,
    path_of,
    sole_out_folder,
    source_folders,
    split_sources,
)
from vitkit.verbs.result import Notes, Result
from vitkit.verbs.words import open_named

if TYPE_CHECKING:
    from vitkit.classifier import Classifier, Sources
    from vitkit.inference.prediction import Prediction
    from vitkit.reporting.gallery import Album
    from vitkit.weights.preprocessing import PreprocessLike


_SAME = 1e-3  # a model's probabilities differ less from one machine or batch to another
_LOOKED_AT = 8  # rows, and classes of each


def is_by(classifier: Classifier, file: Path, form: Format) -> bool:
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


Write = Callable[["Prediction"], None]
Writer = Callable[[Format, int], Write]  # how rows are written, and for how many images, before the first of them

_SHOWN = 20  # rows in a notebook


@dataclass(frozen=True, repr=False)
class Predictions(Result):
    """What a classifier says of images: iterate over it for a `Row` an image, in order.

    A row has the image's `path`, the `label` (None where it was rejected, or could not be read), its `confidence`,
    the `error` if it could not be read, and the `top` classes where more than one was asked for. Of rows that are in
    a file, probabilities have the file's digits.

    Attributes:
        images: how many there are.
        unreadable: how many of them could not be read.
        rejected: how many labels were withheld.
        computed: what computed them and in what precision.
        is_whole: whether every image could be read, and every folder looked into.
        out: the file that the rows are in; None: they are in memory.
        notes: what was assumed of the model, and where images were not looked for.
    """

    images: int
    unreadable: int
    rejected: int
    computed: str
    is_whole: bool
    out: Path | None
    notes: tuple[str, ...]
    form: Format = field(compare=False)
    kept: tuple[Row, ...] = ()

    def __iter__(self) -> Iterator[Row]:
        return iter(self.kept) if self.out is None else (row for _, row in read_rows(self.out, self.form))

    def __len__(self) -> int:
        return self.images

    def to_dict(self) -> dict[str, Any]:
        """The counts, and a dict an image, as a line of a JSON lines file has it."""
        may_reject = self.form.columns.reject is not None
        rows = [row.to_dict(may_reject=may_reject) for row in self]
        return {**self.counts(), "notes": list(self.notes), "predictions": rows}

    def counts(self) -> dict[str, Any]:
        """What became of the images, in numbers, and what computed it, in words."""
        numbers = {"images": self.images, "unreadable": self.unreadable, "rejected": self.rejected}
        where = {} if self.out is None else {"out": str(self.out)}
        return {**numbers, "computed": self.computed, **where}

    def lines(self) -> list[str]:
        """What became of the images, and what computed it, in a line."""
        rejected = "" if self.form.columns.reject is None else f", {self.rejected} rejected"
        images = plural(self.images, "image", "images")
        where = "" if self.out is None else f": {self.out}"
        return [f"{images} ({self.unreadable} unreadable{rejected}), {self.computed}{where}"]

    def _repr_html_(self) -> str:
        from vitkit.text.html import table

        rows = [[escape(cell) for cell in _cells(row)] for row in islice(self, _SHOWN)]
        more = f"<p>... and {self.images - len(rows)} more</p>" if self.images > len(rows) > 0 else ""
        return f"<p>{escape(self.lines()[0])}</p>" + table(rows, ("path", "label", "confidence")) + more


@check_arguments
def predict(
    model: str | Path | Classifier,
    sources: str | Sources,
    *,
    out: Path | str | None = None,
    pictures: Path | str | None = None,
    top: Annotated[int, Between(1)] = 1,
    classes: str | Sequence[str] | None = None,
    templates: Sequence[str] = (),
    one: bool | None = None,
    reject: float | None = None,
    preprocess: Annotated[str | PreprocessLike | None, PREPROCESS] = None,
    backend: BackendName = "auto",
    precision: PrecisionName = "auto",
    plan: PlanName = "auto",
    merge: Annotated[int, Between(0)] = 0,
    batch_size: Annotated[int | None, Between(1)] = None,
    device: DeviceName = "auto",
    resume: bool = False,
    force: bool = False,
    raw: bool = False,
    say: Say = ignore,
    note: Say = ignore,
    progress: Progress = silent,
    writer: Writer | None = None,
) -> Predictions:
    """The class of each image with its probability; an image that cannot be read is a row with its reason.

    Of a multi-label model the classes, joined by `;`, with the lowest of their probabilities.

        import vitkit

        for row in vitkit.predict("runs/digits-1", "docs/pictures"):
            print(row.path, row.label, row.confidence)

    On the command line: `vitkit predict runs/digits-1 photo.jpg`.

    Args:
        model: run or model folder, checkpoint of any published layout, exported file, or published name. A classifier
            in memory will do, too.
        sources: images, folders (walked), or patterns. Or pictures in memory: PIL images, numpy arrays (height, width,
            C) or torch tensors (C, height, width), uint8 from 0 to 255 or floats from 0 to 1. One or several; an array
            or tensor of four axes is several.
        out: write to this .csv or .jsonl file. The result reads its rows from there.
        pictures: draw each image under its class into this folder.
        top: classes to name for each image, at least 1.
        classes: classes by name, with CLIP or SigLIP: 'daisy, rose', or a list's file. No training is needed
            (`vitkit.zero_shot`); a list will do, too, and the file is .txt, .csv, .tsv or .json.
        templates: with `classes`: a sentence with {} in the place of the name; several are averaged. By default those
            that were published.
        one: with `classes`: each image has exactly one of them; by default as the model was trained.
        reject: withhold the label below this confidence, 0 to 1.
        preprocess: how images are read, where the model does not say it: settings such as
            `resize=256,crop=224,interpolation=bilinear,mean=0.5,std=0.5`, whose weights they are (google, augreg, deit,
            torchvision or dinov2), or a JSON file that says it. As of `vitkit.load`.
        backend: what computes; `auto`: the fastest that is installed and worth its start.
        precision: `float32`, `bfloat16` or `auto`: bfloat16 where the hardware multiplies such numbers.
        plan: how backend eager computes on a CPU; `auto`: the fastest, as measured here once.
        merge: merge so many patches with others in every layer: quicker, a little less accurate (arXiv 2210.09461).
        batch_size: images at a time; by default as suits the backend.
        device: `cpu`, `cuda` or `mps`, where it is computed; `auto`: a CUDA GPU if there is one, else the CPU.
        resume: go on with an `out` that was cut short, or add what it lacks.
        force: write over `out` and `pictures`.
        raw: CSV text as it is, though a spreadsheet or terminal may act upon it.
        say: told what an earlier run left in `out`.
        note: told each of the result's notes as it comes.
        progress: told what is being done, how many are done, of how many.
        writer: where there is no `out`: called once with how rows are written and the number of images; what it gives
            takes each prediction as it comes. No row is kept then.

    Raises:
        VitkitError: a value is not allowed, the model cannot be loaded, there is no image, or something else than an
            image, a file or folder is there already or another process writes it, or the rows in `out` are another
            model's.
        OSError: a file cannot be written.
    """
    names, held = split_sources(sources)
    out, pictures = path_of(out), path_of(pictures)
    if held and (resume or pictures is not None):
        raise VitkitError(f"--{'resume' if resume else 'pictures'} is about files, and these are pictures in memory")
    _check_reject(reject)
    check_choice("--device", device, DeviceName)
    folders = source_folders(names)
    _check_out(out, folders, resume=resume, force=force)
    notes = Notes(note)
    found, is_whole = ([own.name for own in held], True) if held else find_pictures(names, notes)
    paths = list(dict.fromkeys(found))  # what is not there should be said before the model is loaded
    may_exist = resume or force
    with _sole_pictures(pictures, folders, may_exist=may_exist), nullcontext() if out is None else exclusive(out):
        _check_free(out, may_exist=may_exist)
        classifier = open_named(model, classes, templates, notes, one=one, preprocess=preprocess)
        classifier.preprocess.check_known()
        columns = Columns(min(top, len(classifier.classes)), reject, classifier.task == "multi")
        form = FORMATS[".csv" if out is None else out.suffix.lower()](columns, is_raw=raw)
        stock = _take_stock(classifier, out, form, paths, say) if out is not None and resume else Stock(paths)
        classifier = classifier.use(backend, precision, len(stock.missing), merge, plan, notes, device)
        album = None if pictures is None else _open_album(pictures, folders, paths)
        rows_show_progress = out is None and writer is not None
        watching = reporting_to(silent) if rows_show_progress else nullcontext()
        with watching, _writing(out, form, paths, stock, writer) as write:
            if album is not None and stock.file is not None:
                album.complete(row for _, row in read_rows(stock.file, form))
            predictions = classifier.predict(held or stock.missing, batch_size)
            kept = _answer(predictions, columns, album, write, stock.tally, len(paths))
    tally = stock.tally
    counts = (tally.images, tally.unreadable, tally.rejected)
    is_whole = is_whole and not tally.unreadable
    return Predictions(*counts, classifier.computed, is_whole, out, tuple(notes.lines), form, tuple(kept))


def _answer(
    predictions: Iterable[Prediction],
    columns: Columns,
    album: Album | None,
    write: Write | None,
    tally: Tally,
    images: int,
) -> list[Row]:
    """Draw, write and count each prediction as it comes; the rows, where nothing writes them."""
    kept = []
    for prediction in predictions:
        row = columns.row(prediction)
        if album is not None:
            album.add(row)  # first, so that a row in the file has its picture
        if write is None:
            kept.append(row)
        else:
            write(prediction)
        tally.add(row)
        progress("predicting", tally.images, images)
    return kept


def _check_reject(reject: float | None) -> None:
    if reject is not None and not 0 <= reject <= 1:
        raise VitkitError(f"--reject {reject} must be from 0 to 1")


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


def _take_stock(classifier: Classifier, out: Path, form: Format, paths: Sequence[str], say: Say) -> Stock:
    """What an earlier run of this model left."""
    stock = take_stock(out, form, paths)
    if stock.file is not None:
        if not is_by(classifier, stock.file, form):
            raise VitkitError(
                f"the rows in {stock.file} come from another model: give the one they are by, or --force to begin anew"
            )
        say(f"{stock.tally.images} of {len(paths)} images are in {stock.file}")
    return stock


def _open_album(folder: Path, sources: Sequence[str], paths: Sequence[str]) -> Album:
    from vitkit.reporting.gallery import Album

    return Album(folder, sources, paths)


@contextmanager
def _writing(
    out: Path | None, form: Format, paths: Sequence[str], stock: Stock, writer: Writer | None
) -> Iterator[Write | None]:
    """What takes each prediction; None where rows are to be kept."""
    if out is not None:
        with gathering(out, form, paths, stock) as write:
            yield write
    else:
        yield None if writer is None else writer(form, len(paths))


def _cells(row: Row) -> tuple[str, str, str]:
    label = row.label if row.error is None else row.error
    rejected = f"rejected: {row.name}" if label is None else label
    return row.path, rejected, "" if row.confidence is None else f"{row.confidence:.4f}"
