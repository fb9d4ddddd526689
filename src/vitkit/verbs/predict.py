"""`vitkit.predict`: classify images, in memory or into a file that can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from html import escape
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vitkit.data.remote import RemoteFile
from vitkit.data.storage import Stored
from vitkit.errors import VitkitError
from vitkit.inference.prediction import (
    FORMATS,
    Columns,
    Csv,
    Row,
    RowFormat,
    Tally,
    WrittenRows,
    appending_rows,
    class_and_doubt,
    partial_of,
    read_rows,
    written_rows,
)
from vitkit.system.files import address_of, exclusive
from vitkit.system.logger import log
from vitkit.system.progress import Progress, Say, progress, reporting_to, silent
from vitkit.text.arguments import Between, check_arguments
from vitkit.text.cells import plural
from vitkit.text.workbook import check_rows, write_workbook
from vitkit.verbs.inputs import (
    PREPROCESS,
    check_conflicts,
    check_out,
    find_pictures,
    open_named,
    path_of,
    read_list,
    select_shard,
    source_folders,
    split_sources,
)
from vitkit.verbs.options import Compute, Names, Promises
from vitkit.verbs.result import Notes, Result

if TYPE_CHECKING:
    from vitkit.classifier import Classifier, Sources
    from vitkit.inference.prediction import Prediction
    from vitkit.weights.preprocessing import PreprocessLike


Write = Callable[["Prediction"], None]
Source = Callable[[str], str | Stored]  # takes the name of an image, and returns a path or the file to read
Writer = Callable[[RowFormat, int], Write]  # called once with the format of the rows and the number of images

# Without `out`, this writer receives the rows instead of the result. The command line prints them as they are computed.
WRITER: ContextVar[Writer | None] = ContextVar("writer", default=None)
_WORKBOOK = ".xlsx"  # written at the end, so that it cannot be resumed


@dataclass(frozen=True, repr=False)
class Predictions(Result):
    """The predictions of a classifier. Iterating over them yields a `Row` for each image.

    A row has the `path` of the image, its `label` (None if it was rejected or the image cannot be read), its
    `confidence`, an `error` if the image cannot be read, and the `top` classes if more than one was requested. Its
    `familiar` is the fraction of validation images that look no more familiar to the model than this image (low is
    strange), or None if the model has no such score. Probabilities that are read from a file are rounded as in the
    file.

        import vitkit

        for row in vitkit.predict("runs/digits-1", "photos"):
            print(row.path, row.label, row.confidence, row.error)

    Attributes:
        images: the number of images.
        unreadable: the number of images that could not be read.
        rejected: the number of labels that were withheld, including those of unknown images.
        computed: a description of the backend and precision that computed the predictions.
        is_whole: whether every image and every folder could be read.
        out: the file with the rows; None if they are in memory.
        notes: assumptions about the model, and folders that were left out.
        form: the format of the rows.
        kept: the rows if they are in memory. The rows of an Excel workbook are always in memory.
        unknown: the number of images with the label for unknown images.
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
        if self.kept or self.out is None:
            yield from self.kept
        else:
            yield from (row for _, row in read_rows(self.out, self.form))

    def __len__(self) -> int:
        return self.images

    def rows(self) -> list[dict[str, Any]]:
        """Return the path, label, confidence and error of each image, and `familiar` and `set` if available."""
        columns = self.form.columns
        names = ["path", "label", "confidence", "error"]
        if columns.has_familiar:
            names.append("familiar")
        if columns.rules.sets is not None:
            names.append("set")
        return [{name: getattr(row, name) for name in names} for row in self]

    def to_dict(self) -> dict[str, Any]:
        """Return the counts, and for each image the dict that a JSON lines file contains."""
        rows = [row.to_dict(may_reject=self.form.columns.may_reject) for row in self]
        return {**self.counts(), "notes": list(self.notes), "predictions": rows}

    def counts(self) -> dict[str, Any]:
        """Return the numbers of images, unreadable images and withheld labels, and how the labels were computed."""
        counts: dict[str, Any] = {"images": self.images, "unreadable": self.unreadable, "rejected": self.rejected}
        if self.form.columns.rules.unknown is not None:
            counts["unknown"] = self.unknown
        counts["computed"] = self.computed
        if self.out is not None:
            counts["out"] = str(self.out)
        return counts

    def lines(self) -> list[str]:
        """Return a line with the counts and how the labels were computed, and one with the number of missing labels."""
        columns = self.form.columns
        counts = f"{self.unreadable} unreadable"
        if columns.may_reject:
            counts += f", {self.rejected} rejected"
        if columns.rules.unknown is not None:
            counts += f", {self.unknown} of them as unknown"
        line = f"{plural(self.images, 'image', 'images')} ({counts}), {self.computed}"
        lines = [line if self.out is None else f"{line}: {self.out}"]
        unlabelled = self.rejected + self.unreadable
        if unlabelled or columns.may_reject:
            to_check = f"{unlabelled:,}" if unlabelled else "none"
            lines.append(f"{self.images - unlabelled:,} answered, {to_check} to look at.")
        return lines

    def _repr_html_(self) -> str:
        from vitkit.text.pages import table

        rows = []
        for row in islice(self, 20):
            if row.error is not None:
                label = row.error
            elif row.label is None:
                label = f"rejected: {row.name}"
            else:
                label = row.label
            confidence = "" if row.confidence is None else f"{row.confidence:.4f}"
            rows.append([escape(row.path), escape(label), confidence])
        more = f"<p>... and {self.images - len(rows)} more</p>" if self.images > len(rows) > 0 else ""
        summary = "".join(f"<p>{escape(line)}</p>" for line in self.lines())
        return summary + table(rows, ("path", "label", "confidence")) + more


@check_arguments
def predict(
    model: str | Path | Classifier,
    sources: str | Sources = (),
    *,
    out: Path | str | None = None,
    top: Annotated[int, Between(1)] = 1,
    names: Names = Names(),
    promises: Promises = Promises(),
    tta: str | None = None,
    preprocess: Annotated[str | PreprocessLike | None, PREPROCESS] = None,
    compute: Compute = Compute(),
    resume: bool = False,
    force: bool = False,
    shard: str | None = None,
    progress: Progress = silent,
) -> Predictions:
    """Classify images: each image gets a row with a class and its probability, or the reason why it cannot be read.

    A multi-label model may predict several classes for an image. The label then contains all of them, joined by `;`,
    and the confidence is the lowest of their probabilities.

        import vitkit

        for row in vitkit.predict("runs/digits-1", "docs/pictures"):
            print(row.path, row.label, row.confidence)

    On the command line: `vitkit predict runs/digits-1 photo.jpg`.

    Args:
        model: a run or model folder, a checkpoint of any published layout, an exported file, or a published name. A
            classifier in memory is accepted, too.
        sources: images, folders (including their sub-folders), or glob patterns; @FILE is a file that lists images. In
            a list, each line is a path or an address (`https://`, `s3://`, `hf://`); empty lines are ignored, and
            spaces at the ends of a line belong to the path. Pictures in memory are accepted, too: one or several PIL
            images, numpy arrays (height, width, C) or torch tensors (C, height, width), either uint8 from 0 to 255 or
            floats from 0 to 1. An array or tensor with four axes contains several pictures.
        out: write rows to this .csv, .jsonl or .xlsx file. The rows of the result are then read from this file. Excel
            workbooks are written at the end, so they cannot be resumed.
        top: list this many classes for each image.
        names: the classes of a model of CLIP or SigLIP; by default, those of the model.
        promises: what is promised about labels, and which labels are withheld for it.
        tta: average the probabilities of several views of each image: `flip` (the image and its mirror image), `crops`
            (its centre and four corners), or `flip,crops` (all ten). The time grows in proportion to the number of
            views. `vitkit eval --tta` measures the gain. There is no column `familiar` with this option.
        preprocess: the preprocessing of images, in a form that `vitkit.load` accepts; by default that of the model, or
            an assumed one if the model states none.
        compute: where and how the model computes.
        resume: continue an interrupted `out`, or add rows for images that it lacks.
        force: overwrite `out`.
        shard: predict only one part of the images, such as 2/8: the second of eight runs of consecutive images.
        progress: called with the current task, the number of finished items and the total number of items.

    Raises:
        VitkitError: a value is not allowed, the model cannot be loaded, there is no image, an output exists or is being
            written by another process, or the rows in `out` were written by another model.
        OSError: a file cannot be written.
    """
    out = path_of(out)
    files, in_memory = split_sources(sources)
    listed = next((name[1:] for name in files if name.startswith("@")), None)  # the file that lists the images
    check_conflicts({"pictures in memory": in_memory}, {"--resume": resume, "--shard": shard})
    check_conflicts({"@FILE (a list of images)": listed}, {"other images": len(files) > 1})
    check_conflicts({"--resume": resume}, {"--force": force})
    if not files and not in_memory:
        raise VitkitError(
            "verbs.images-missing", "there is no image: pass files, folders or patterns, or @FILE for a list"
        )
    if "-" in files or listed == "-":
        raise VitkitError(
            "verbs.images-missing", "nothing is read from standard input: pass files, or @FILE for a list of them"
        )
    if resume and out is None:
        raise VitkitError("verbs.option-missing", "--resume requires --out, the file to continue")
    is_workbook = out is not None and out.suffix.lower() == _WORKBOOK
    if out is not None:
        check_out(out, (*FORMATS, _WORKBOOK), source_folders(files) if listed is None else [])
        if resume and is_workbook:
            raise VitkitError(
                "verbs.resume-impossible",
                f"--resume cannot continue {out}, which is written only at the end: use a .csv file",
            )
        if listed is not None and out.resolve() == Path(listed).resolve():
            raise VitkitError("verbs.out-in-source", f"--out {out} is the list of images: choose another file")

    # Find the images before the model is loaded, so that a missing file is reported at once.
    notes = Notes()
    has_all_folders = True
    if in_memory:
        paths = [picture.name for picture in in_memory]
    elif listed is not None:
        paths = read_list(listed)
    else:
        paths, has_all_folders = find_pictures(files, notes)
        paths = list(dict.fromkeys(paths))
    paths = list(select_shard(paths, shard))
    if is_workbook:
        check_rows(len(paths))

    def source(path: str) -> str | Stored:
        if listed is not None and address_of(path) is not None:
            return Stored(RemoteFile(path), "")
        return path

    with _exclusive_rows(out, may_exist=resume or force):
        classifier = open_named(model, names, notes, preprocess=preprocess)
        classifier.preprocess.check_known()
        if tta is not None:
            classifier = classifier.with_views(tta)
        rules = classifier.rules(coverage=promises.coverage, accuracy=promises.accuracy, unknown=promises.unknown)
        for line in rules.notes():
            notes(line)

        # Read the rows that an earlier call has written, to continue them.
        is_multi, has_familiar = classifier.task == "multi", classifier.unknown is not None
        columns = Columns(min(top, len(classifier.classes)), promises.reject, is_multi, rules, has_familiar)
        suffix = ".csv" if out is None or is_workbook else out.suffix.lower()
        form = FORMATS[suffix](columns)
        written = written_rows(out, form, paths) if out is not None and resume else WrittenRows(paths)
        tally = written.tally
        if written.file is not None:
            log.info(f"{tally.images} of {len(paths)} images are in {written.file}")
        classifier = _choose_backend(classifier, compute, len(paths), written, notes)
        if written.file is not None:
            _check_same_model(classifier, written, form, source)

        # Rows are written to the file or printed as soon as they are computed; otherwise, they stay in memory.
        writing: AbstractContextManager[Write | None] = nullcontext()
        reporting: AbstractContextManager[None] = nullcontext()
        if out is None:
            writer = WRITER.get()
            if writer is not None:
                writing = nullcontext(writer(form, len(paths)))
                reporting = reporting_to(silent)  # printed rows show the progress
        elif not is_workbook:
            writing = appending_rows(out, form, paths, written, classifier.computation)
        images = in_memory or map(source, written.missing)
        # If rows cannot be written, closing ends the threads at once, not only when the exception is deleted.
        with reporting, writing as write, closing(classifier.predict(images, compute.batch_size)) as predictions:
            rows, doubts = _write_rows(predictions, columns, write, tally, len(paths))
        if doubts:
            _note_difference(classifier, doubts, notes)
        if out is not None and is_workbook:
            header = Csv(columns).names
            cells_of_rows = (row.cells() for row in rows)
            write_workbook(out, header, ([cells.get(name) for name in header] for cells in cells_of_rows))
    return Predictions(
        images=tally.images,
        unreadable=tally.unreadable,
        rejected=tally.rejected,
        computed=classifier.computed,
        is_whole=has_all_folders and not tally.unreadable,
        out=out,
        notes=tuple(notes.lines),
        form=form,
        kept=tuple(rows),
        unknown=tally.unknown,
    )


@contextmanager
def _exclusive_rows(out: Path | None, *, may_exist: bool) -> Iterator[None]:
    """Lock the file to write in a `with` block; None is not locked."""
    if out is None:
        yield
        return
    with exclusive(out):
        existing = next((file for file in (out, partial_of(out)) if file.exists()), None)
        if existing is not None and not may_exist:
            raise VitkitError(
                "verbs.out-exists",
                f"{existing} exists: continue it with --resume, overwrite it with --force, or choose another --out",
            )
        yield


def _write_rows(
    predictions: Iterable[Prediction], columns: Columns, write: Write | None, tally: Tally, images: int
) -> tuple[list[Row], list[tuple[int, float]]]:
    """Pass each prediction to `write`, and count it. Without `write`, return all rows.

    Also return the class and the doubt (`class_and_doubt`) of each readable image, if uncertain labels are withheld.
    """
    rows, doubts = list[Row](), list[tuple[int, float]]()
    for prediction in predictions:
        row = columns.row(prediction)
        if write is None:
            rows.append(row)
        else:
            write(prediction)
        tally.add(row)
        if columns.rules.sure is not None and prediction.error is None:
            doubts.append(class_and_doubt(prediction))
        progress("predicting", tally.images, images)
    return rows, doubts


def _choose_backend(
    classifier: Classifier, compute: Compute, images: int, written: WrittenRows, note: Say
) -> Classifier:
    """Return the classifier with the requested backend, precision and device.

    With `auto`, the backend is chosen by the total number of images. But if an earlier call has written rows, their
    backend, precision and plan are used again, so that all rows are computed in the same way.
    """
    from vitkit.classifier import computed_in_words

    requested: dict[str, Any] = {"backend": compute.backend, "precision": compute.precision}
    earlier = written.computation
    if earlier is not None and compute.backend == compute.precision == "auto":
        requested = {name: value or "auto" for name, value in earlier.items()}
    classifier = classifier.use(**requested, images=images, device=compute.device)
    if earlier is not None and written.missing:
        before, now = computed_in_words(earlier), computed_in_words(classifier.computation)
        if now != before:
            rows = plural(written.tally.images, "row was", "rows were")
            note(f"{rows} computed by {before}, and the others are computed by {now}: numbers may differ slightly")
    return classifier


def _note_difference(classifier: Classifier, doubts: Sequence[tuple[int, float]], note: Say) -> None:
    """Add a note if the images differ significantly from the run's images, so that --accuracy may not hold.

    `doubts` are pairs of the predicted class and its doubt. Both are compared with those of the validation and test
    images, as `vitkit doctor --against` does.
    """
    import numpy as np

    from vitkit.evaluation.drift import LEVEL, Sample, drift_tests

    assert classifier.held_out is not None
    before = Sample.recorded(classifier.held_out)
    predicted, doubt = zip(*doubts, strict=True)
    now = Sample(np.array(predicted), np.array(doubt))
    tests = [test for test in drift_tests(before, now, classifier.classes) if test.adjusted <= LEVEL]
    if tests:
        images = plural(len(doubts), "photograph differs", "photographs differ")
        note(
            f"{images} from the images of the run ({', '.join(test.title for test in tests)}), so --accuracy promises "
            "nothing about them: `vitkit doctor PHOTOS --against RUN` shows how they differ"
        )


_COMPARED = 8  # rows


def _check_same_model(classifier: Classifier, written: WrittenRows, form: RowFormat, source: Source) -> None:
    """Raise an error if the rows of a file, which is to be continued, were written by another model.

    The first readable images are classified again, and all but one must get the label and the confidence of their row.
    One may differ, because a label near a threshold depends on the backend and the precision.
    """
    file = written.file
    assert file is not None
    earlier = "" if written.computation is None else written.computation["precision"]
    is_exact = earlier == classifier.computation["precision"] == "float32"
    tolerance = 1e-4 if is_exact else 0.02  # rounding to bfloat16 changes probabilities by less than the latter
    answered = (row for _, row in read_rows(file, form) if row.name is not None and row.confidence is not None)
    rows = list(islice(answered, _COMPARED))
    differing = 0
    for row, now in zip(rows, classifier.predict([source(row.path) for row in rows]), strict=True):
        if now.confidence is None or row.confidence is None:  # the image can no longer be read
            continue
        if now.label != row.name or abs(now.confidence - row.confidence) > tolerance:
            differing += 1
    allowed = 1 if len(rows) > 1 else 0
    if differing > allowed:
        raise VitkitError(
            "verbs.rows-foreign",
            f"the rows in {file} were written by another model: use that model, or --force to start again",
        )
