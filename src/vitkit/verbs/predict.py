"""`vitkit.predict`: classify images, in memory or into a file that can be resumed.

`predict` is the verb, and `Predictions` its result. `_is_same_model` decides whether the same model has written the
rows of an interrupted file.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from html import escape
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vitkit.errors import VitkitError
from vitkit.inference.conformal import SetScore
from vitkit.inference.prediction import (
    FORMATS,
    Columns,
    Csv,
    Row,
    RowFormat,
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
from vitkit.text.workbook import check_rows, write_workbook
from vitkit.verbs.inputs import (
    PREPROCESS,
    BackendName,
    PlanName,
    PrecisionName,
    check_choice,
    check_out,
    exclusive_out_folder,
    find_pictures,
    path_of,
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


Write = Callable[["Prediction"], None]
Writer = Callable[[RowFormat, int], Write]  # called once with the format of the rows and the number of images

_SHOWN = 20  # rows in a notebook
_WORKBOOK = ".xlsx"


@dataclass(frozen=True, repr=False)
class Predictions(Result):
    """The predictions of a classifier. Iterating over them yields a `Row` for each image, in order.

    A row has the `path` of the image, its `label` (None if it was rejected or the image cannot be read), its
    `confidence`, an `error` if the image cannot be read, and the `top` classes if more than one was requested. Its
    `unknown` is the fraction of known images that look at least as unfamiliar, or None if the model cannot tell.
    Probabilities that are read from a file have the digits of the file.

        import vitkit

        for row in vitkit.predict("runs/digits-1", "photos"):
            print(row.path, row.label, row.confidence, row.error)

    Attributes:
        images: the number of images.
        unreadable: the number of images that could not be read.
        rejected: the number of labels that were withheld, those of unknown images included.
        computed: the backend and precision that computed the predictions, in words.
        is_whole: whether every image and every folder could be read.
        out: the file with the rows; None if they are in memory.
        notes: assumptions about the model, and places that could not be searched for images.
        form: the format of the rows.
        kept: the rows if they are in memory, as those of a workbook are.
        unknown: the number of images that are called unknown.
    """

    images: int
    unreadable: int
    rejected: int
    computed: str
    is_whole: bool
    out: Path | None
    notes: tuple[str, ...]
    form: RowFormat = field(compare=False)
    kept: tuple[Row, ...] = ()
    unknown: int = 0

    def __iter__(self) -> Iterator[Row]:
        return (
            iter(self.kept)
            if self.out is None or _is_workbook(self.out)
            else (row for _, row in read_rows(self.out, self.form))
        )

    def __len__(self) -> int:
        return self.images

    def rows(self) -> list[dict[str, Any]]:
        """Return the path, label, confidence and error of each image, and its set of classes if requested."""
        return [
            {
                "path": row.path,
                "label": row.label,
                "confidence": row.confidence,
                "error": row.error,
                **({"unknown": row.unknown} if self.form.columns.has_unknown else {}),
                **({} if self.form.columns.rules.sets is None else {"set": row.set}),
            }
            for row in self
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the counts, and for each image the dict that a JSON lines file contains."""
        rows = [row.to_dict(may_reject=self.form.columns.may_reject) for row in self]
        return {**self.counts(), "notes": list(self.notes), "predictions": rows}

    def counts(self) -> dict[str, Any]:
        """Return the numbers of images, unreadable images and rejected labels, and how they were computed."""
        numbers = {"images": self.images, "unreadable": self.unreadable, "rejected": self.rejected}
        numbers |= {} if self.form.columns.rules.unknown is None else {"unknown": self.unknown}
        where = {} if self.out is None else {"out": str(self.out)}
        return {**numbers, "computed": self.computed, **where}

    def lines(self) -> list[str]:
        """Return one line with the counts and how the predictions were computed."""
        rejected = f", {self.rejected} rejected" if self.form.columns.may_reject else ""
        rejected += "" if self.form.columns.rules.unknown is None else f", {self.unknown} of them as unknown"
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
    coverage: float | None = None,
    set_score: SetScore = "lac",
    set_by_class: bool = False,
    accuracy: float | None = None,
    unknown: float | None = None,
    tta: str | None = None,
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
    """Classify images; each gets a row with its class and probability, or with the reason why it cannot be read.

    A multi-label model gives each image several classes, joined by `;`, with the lowest of their probabilities.

        import vitkit

        for row in vitkit.predict("runs/digits-1", "docs/pictures"):
            print(row.path, row.label, row.confidence)

    On the command line: `vitkit predict runs/digits-1 photo.jpg`.

    Args:
        model: a run or model folder, a checkpoint of any published layout, an exported file, or a published name. A
            classifier in memory is accepted, too.
        sources: images, folders (including their sub-folders), or patterns. Pictures in memory are accepted, too: one
            or several PIL images, numpy arrays (height, width, C) or torch tensors (C, height, width), either uint8
            from 0 to 255 or floats from 0 to 1. An array or tensor with four axes contains several pictures.
        out: write the rows to this .csv, .jsonl or .xlsx file. The result then reads its rows from it. An Excel
            workbook is written at the end, so it cannot be resumed.
        pictures: write each image with its prediction as a PNG file into this folder.
        top: the number of classes to list for each image.
        classes: names of classes for a model of CLIP or SigLIP, such as 'daisy, rose', or a file that lists them. The
            model needs no training for them (see `vitkit.zero_shot`). A list is accepted, too; the file is a .txt,
            .csv, .tsv or .json file.
        templates: with `classes`, a sentence with {} in place of the class name; the vectors of several sentences are
            averaged. By default the published sentences.
        one: with `classes`, predict exactly one class for each image; by default as the model was trained.
        reject: withhold labels whose confidence is below this value from 0 to 1.
        coverage: add a column `set` with classes that contain the true one in at least this fraction of images, such
            as 0.95. It requires enough validation images in the run.
        set_score: the method that chooses the classes of a set: `lac` for the smallest sets, which may be empty, or
            `aps` or `raps` for sets that are never empty. Sets of `lac` are empty if the model is right more often than
            requested; with `aps` and `raps`, more sets than requested contain the true class.
        set_by_class: make the coverage hold for each class, not only for all images together.
        accuracy: withhold the labels of uncertain predictions, so that at least this fraction of the others is right,
            such as 0.99. The threshold is chosen by the run's validation images, so that this holds with a probability
            of 95 %.
        unknown: give the label ? to images that look less familiar than nearly all validation images of the run: those
            whose value in the column unknown is at most this number, such as 0.01. As many images of known classes get
            this label.
        tta: average the probabilities of several views of each image: `flip` (the image and its mirror image), `crops`
            (its centre and four corners), or `flip,crops` (all ten). It takes that many times longer. `vitkit eval
            --tta` measures the gain. There is no column `unknown` then.
        preprocess: the preprocessing of images, if the model does not specify it or should use another: settings such
            as `resize=256,crop=224,interpolation=bilinear,mean=0.5,std=0.5`, the name of a publisher whose weights use
            it, such as `deit` or `google`, or a JSON file. See `vitkit.load`.
        backend: the library that computes; `auto` is the fastest that is installed and worth its start-up time.
        precision: `float32`, `bfloat16`, or `auto` for bfloat16 if the hardware multiplies such numbers.
        plan: how the backend eager computes on a CPU; `auto` is the fastest, which is measured once per machine.
        merge: the number of patches to merge with similar ones in every layer, which is faster and slightly less
            accurate (token merging, arXiv 2210.09461).
        batch_size: the number of images in a batch; by default a value that suits the backend.
        device: the device to compute on: `cpu`, `cuda`, `mps`, or `auto` for a CUDA GPU if there is one, else the CPU.
        resume: continue an interrupted `out`, or add the images that are missing from it.
        force: overwrite `out` and `pictures`.
        raw: write CSV text unchanged, even if a spreadsheet or terminal could interpret it as a command.
        say: called with a line about the rows that `out` already contains.
        note: called with each of the result's notes as it arises.
        progress: called with the current task, the number of finished items and their total.
        writer: receives the rows if there is no `out`, instead of the result. It is called once with the format of the
            rows and the number of images, and returns a function that is called with each prediction.

    Raises:
        VitkitError: a value is not allowed, the model cannot be loaded, there is no image, an output exists or is being
            written by another process, or the rows in `out` were written by another model.
        OSError: a file cannot be written.
    """
    names, held = split_sources(sources)
    out, pictures = path_of(out), path_of(pictures)
    if held and (resume or pictures is not None):
        raise VitkitError(f"--{'resume' if resume else 'pictures'} requires files, and these are pictures in memory")
    if reject is not None and not 0 <= reject <= 1:
        raise VitkitError(f"--reject {reject} must be from 0 to 1")
    check_choice("--device", device, DeviceName)
    check_choice("--set-score", set_score, SetScore)
    folders = source_folders(names)
    _check_out(out, folders, resume=resume, force=force)
    notes = Notes(note)
    listed, is_whole = ([picture.name for picture in held], True) if held else find_pictures(names, notes)
    paths = list(dict.fromkeys(listed))  # before the model is loaded, so that a missing file is reported at once
    if _is_workbook(out):
        check_rows(len(paths))
    may_exist = resume or force
    with _exclusive_pictures(pictures, folders, may_exist=may_exist), nullcontext() if out is None else exclusive(out):
        _check_free(out, may_exist=may_exist)
        classifier = open_named(model, classes, templates, notes, one=one, preprocess=preprocess)
        classifier.preprocess.check_known()
        classifier = classifier if tta is None else classifier.with_views(tta)
        if unknown is not None and merge:
            raise VitkitError("--unknown is fitted to features of all patches, and --merge changes them: leave out one")
        rules = classifier.rules(
            coverage=coverage, set_score=set_score, by_class=set_by_class, accuracy=accuracy, unknown=unknown
        )
        for line in rules.notes():
            notes(line)
        has_unknown = not merge and classifier.unknown is not None
        columns = Columns(min(top, len(classifier.classes)), reject, classifier.task == "multi", rules, has_unknown)
        gathered = None if _is_workbook(out) else out  # the file that grows row by row
        form = FORMATS[".csv" if gathered is None else gathered.suffix.lower()](columns, is_raw=raw)
        stock = _take_stock(classifier, out, form, paths, say) if out is not None and resume else Stock(paths)
        classifier = classifier.use(backend, precision, len(stock.missing), merge, plan, notes, device)
        album = None if pictures is None else _open_album(pictures, folders, paths)
        receiver = writer if out is None else None
        rows_show_progress = receiver is not None
        reporting = reporting_to(silent) if rows_show_progress else nullcontext()
        with reporting, _writing(gathered, form, paths, stock, receiver) as write:
            if album is not None and stock.file is not None:
                album.complete(row for _, row in read_rows(stock.file, form))
            predictions = classifier.predict(held or stock.missing, batch_size)
            kept = _answer(predictions, columns, album, write, stock.tally, len(paths))
        if out is not None and gathered is None:
            _write_workbook(out, columns, kept)
    tally = stock.tally
    counts = (tally.images, tally.unreadable, tally.rejected)
    is_whole = is_whole and not tally.unreadable
    lines, rows = tuple(notes.lines), tuple(kept)
    return Predictions(*counts, classifier.computed, is_whole, out, lines, form, rows, tally.unknown)


def _answer(
    predictions: Iterable[Prediction],
    columns: Columns,
    album: Album | None,
    write: Write | None,
    tally: Tally,
    images: int,
) -> list[Row]:
    """Draw, count and write each prediction; without `write`, collect the rows and return them."""
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


def _check_out(out: Path | None, folders: Sequence[str], *, resume: bool, force: bool) -> None:
    if resume and force:
        raise VitkitError("--resume continues an existing file and --force overwrites it: use only one of them")
    if out is None:
        if resume:
            raise VitkitError("--resume requires --out, the file to continue")
        return
    check_out(out, (*FORMATS, _WORKBOOK), folders)
    if resume and _is_workbook(out):
        raise VitkitError(f"--resume cannot continue {out}, which is written at the end: use a .csv")


def _check_free(out: Path | None, *, may_exist: bool) -> None:
    if out is None or may_exist:
        return
    if out.exists():
        raise VitkitError(
            f"--out {out} exists: choose a new name, use --resume to add missing images, or --force to overwrite it"
        )
    if partial_of(out).exists():
        raise VitkitError(f"{partial_of(out)} is incomplete: use --resume to continue it, or --force to start again")


def _exclusive_pictures(
    pictures: Path | None, folders: Sequence[str], *, may_exist: bool
) -> AbstractContextManager[None]:
    or_else = "continue it with --resume, or overwrite it with --force"
    return exclusive_out_folder("--pictures", pictures, folders, or_else, may_hold=may_exist)


def _take_stock(classifier: Classifier, out: Path, form: RowFormat, paths: Sequence[str], say: Say) -> Stock:
    """Return the rows that an earlier run of this model has left."""
    stock = take_stock(out, form, paths)
    if stock.file is not None:
        if not _is_same_model(classifier, stock.file, form):
            raise VitkitError(
                f"the rows in {stock.file} were written by another model: use that model, or --force to start again"
            )
        say(f"{stock.tally.images} of {len(paths)} images are in {stock.file}")
    return stock


def _open_album(folder: Path, sources: Sequence[str], paths: Sequence[str]) -> Album:
    from vitkit.reporting.gallery import Album

    return Album(folder, sources, paths)


@contextmanager
def _writing(
    out: Path | None, form: RowFormat, paths: Sequence[str], stock: Stock, writer: Writer | None
) -> Iterator[Write | None]:
    """Yield a function that is called with each prediction, or None if the rows are kept in memory."""
    if out is not None:
        with gathering(out, form, paths, stock) as write:
            yield write
    else:
        yield None if writer is None else writer(form, len(paths))


def _is_workbook(out: Path | None) -> bool:
    return out is not None and out.suffix.lower() == _WORKBOOK


def _write_workbook(out: Path, columns: Columns, rows: Sequence[Row]) -> None:
    """Write the rows with the columns of a .csv file."""
    names = Csv(columns).names
    write_workbook(out, names, ([_sheet_cells(row)[name] for name in names] for row in rows))


def _sheet_cells(row: Row) -> dict[str, str | float | None]:
    rejected = row.name or JOINT if row.is_rejected else None
    cells: dict[str, str | float | None] = defaultdict(lambda: None)
    cells |= {"path": row.path, "label": row.label, "confidence": row.confidence, "error": row.error}
    cells |= {"rejected": rejected, "unknown": row.unknown, "set": None if row.set is None else JOINT.join(row.set)}
    for rank, (label, confidence) in enumerate(row.top, 1):
        cells |= {f"label_{rank}": label, f"confidence_{rank}": confidence}
    return cells


def _cells(row: Row) -> tuple[str, str, str]:
    label = row.label if row.error is None else row.error
    rejected = f"rejected: {row.name}" if label is None else label
    return row.path, rejected, "" if row.confidence is None else f"{row.confidence:.4f}"


_SAME = 1e-3  # probabilities of the same model differ less than this between machines and batch sizes
_COMPARED = 8  # rows that are compared, and classes of each


def _is_same_model(classifier: Classifier, file: Path, form: RowFormat) -> bool:
    """Return whether the rows of a file were written by this classifier.

    The first readable image is classified again; if label and confidence agree, the answer is yes. Otherwise another
    backend or precision may have computed the rows, so several of them are compared: their mean difference may be up to
    twice the change that rounding to bfloat16 causes in this model.
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
        if len(rows) == _COMPARED:
            break
    if not rows:
        return True
    rounded = classifier.use("eager", "bfloat16", images=len(exact)).predict([prediction.path for prediction in exact])
    noise = max(_noise(prediction, other) for prediction, other in zip(exact, rounded, strict=True))
    distances = [_distance(classifier, *row, prediction) for row, prediction in zip(rows, exact, strict=True)]
    return sum(distances) / len(distances) <= 2 * max(noise, _SAME)


def _noise(exact: Prediction, rounded: Prediction) -> float:
    """Return the largest difference between the logits of the most probable classes."""
    other = dict(rounded.ranking)
    return max(abs(_logit(probability) - _logit(other[name])) for name, probability in exact.ranking[:_COMPARED])


def _distance(classifier: Classifier, name: str, confidence: float, prediction: Prediction) -> float:
    """Return the difference between the logits of a row and of the classifier's new prediction for the same classes."""
    probabilities = dict(prediction.ranking)
    if classifier.thresholds is None:
        return abs(_logit(probabilities[name]) - _logit(confidence)) if name in probabilities else math.inf
    assert prediction.confidence is not None
    if name == prediction.label:
        return abs(_logit(prediction.confidence) - _logit(confidence))
    thresholds = dict(zip(classifier.classes, classifier.thresholds, strict=True))
    # Classes that only one of the two has may lie at their thresholds.
    flipped = set(name.split(JOINT)) ^ set((prediction.label or "").split(JOINT)) - {""}
    return max(
        (abs(_logit(probabilities[label]) - _logit(thresholds[label])) if label in thresholds else math.inf)
        for label in flipped - {""}
    )


def _logit(probability: float) -> float:
    """Return the logit of a probability, limited to values that six digits distinguish from 0 and 1."""
    probability = min(max(probability, 1e-4), 1 - 1e-4)
    return math.log(probability / (1 - probability))
