"""`vitkit.predict`: classify images, in memory or into a file that can be resumed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from itertools import chain, islice
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Annotated, Any

from vitkit.data.remote import check_writable, local_copy, names_at, write_file
from vitkit.errors import VitkitError
from vitkit.inference.prediction import (
    FORMATS,
    TABLES,
    Columns,
    Csv,
    Row,
    RowFormat,
    Tally,
    WrittenRows,
    appending_rows,
    check_parquet,
    class_and_doubt,
    parquet_schema,
    partial_of,
    read_parquet,
    read_rows,
    tally_parquet,
    write_table,
    written_rows,
)
from vitkit.system.files import address_of, exclusive, path_or_address
from vitkit.system.logger import log
from vitkit.system.progress import Progress, Say, ignore, progress, reporting_to, silent
from vitkit.text.arguments import Between, check_arguments
from vitkit.text.cells import plural
from vitkit.text.workbook import check_rows
from vitkit.verbs.cluster import Cells, OpenedModel, check_cluster, computed_on_cluster, parquet_folder, write_by_ray
from vitkit.verbs.inputs import (
    PREPROCESS,
    STDIN_PATH,
    check_conflicts,
    check_not_among_images,
    check_out,
    check_suffix,
    exclusive_out_folder,
    find_pictures,
    open_named,
    path_of,
    read_list,
    read_stdin_picture,
    select_shard,
    source_folders,
    source_of_line,
    split_sources,
)
from vitkit.verbs.options import Compute, Names, Promises
from vitkit.verbs.result import Notes, Result

if TYPE_CHECKING:
    from vitkit.classifier import Classifier, Sources
    from vitkit.data.in_memory import PictureInMemory
    from vitkit.data.storage import Stored
    from vitkit.inference.prediction import Prediction
    from vitkit.reporting.plots import Album
    from vitkit.weights.preprocessing import PreprocessLike


Write = Callable[["Prediction"], None]
Source = Callable[[str], "str | Stored"]  # takes the name of an image, and returns a path or the file to read
Writer = Callable[[RowFormat, int], Write]  # called once with the format of the rows and the number of images

_CONFLICTS = {  # what options and kinds of images cannot be combined with
    "pictures in memory": ("--resume", "--pictures", "--shard", "--cluster"),
    "- (one picture on standard input)": ("other images", "--resume", "--pictures", "--cluster"),
    "@FILE (a list of images)": ("other images", "--pictures"),
    "--cluster": ("--resume", "--pictures"),
    "--resume": ("--force",),
}

# Without `out`, this writer receives the rows instead of the result. The command line prints them as they are computed.
WRITER: ContextVar[Writer | None] = ContextVar("writer", default=None)


@dataclass(frozen=True, repr=False)
class Predictions(Result):
    """The predictions of a classifier. Iterating over them yields a `Row` for each image.

    The rows are in the order of the images, except with `cluster`.

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

    @property
    def place(self) -> str:
        """Return the file or address with the rows as text; empty if they are in memory."""
        return "" if self.out is None else path_or_address(self.out)

    def __iter__(self) -> Iterator[Row]:
        if self.kept or self.out is None:
            yield from self.kept
        else:
            with local_copy(self.out) as file:
                if file.suffix.lower() == ".parquet":
                    yield from read_parquet(file, Csv(self.form.columns))
                else:
                    yield from (row for _, row in read_rows(file, self.form))

    def __len__(self) -> int:
        return self.images

    def rows(self) -> list[dict[str, Any]]:
        """Return the path, label, confidence and error of each image, and `familiar` and `set` if available."""
        return [
            {
                "path": row.path,
                "label": row.label,
                "confidence": row.confidence,
                "error": row.error,
                **({"familiar": row.familiar} if self.form.columns.has_familiar else {}),
                **({} if self.form.columns.rules.sets is None else {"set": row.set}),
            }
            for row in self
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the counts, and for each image the dict that a JSON lines file contains."""
        rows = [row.to_dict(may_reject=self.form.columns.may_reject) for row in self]
        return {**self.counts(), "notes": list(self.notes), "predictions": rows}

    def counts(self) -> dict[str, Any]:
        """Return the numbers of images, unreadable images and withheld labels, and how the labels were computed."""
        numbers = {"images": self.images, "unreadable": self.unreadable, "rejected": self.rejected}
        numbers |= {} if self.form.columns.rules.unknown is None else {"unknown": self.unknown}
        where = {} if self.out is None else {"out": self.place}
        return {**numbers, "computed": self.computed, **where}

    def lines(self) -> list[str]:
        """Return a line with the counts and how the labels were computed, and one with the number of missing labels."""
        rejected = f", {self.rejected} rejected" if self.form.columns.may_reject else ""
        rejected += "" if self.form.columns.rules.unknown is None else f", {self.unknown} of them as unknown"
        images = plural(self.images, "image", "images")
        where = "" if self.out is None else f": {self.place}"
        lines = [f"{images} ({self.unreadable} unreadable{rejected}), {self.computed}{where}"]
        unlabelled = self.rejected + self.unreadable
        if unlabelled or self.form.columns.may_reject:
            to_check = f"{unlabelled:,}" if unlabelled else "none"
            lines.append(f"{self.images - unlabelled:,} answered, {to_check} to look at.")
        return lines

    def _repr_html_(self) -> str:
        from vitkit.text.pages import table

        rows = []
        for row in islice(self, 20):
            label = row.label if row.error is None else row.error
            label = f"rejected: {row.name}" if label is None else label
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
    pictures: Path | str | None = None,
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
        sources: images, folders (including their sub-folders), or glob patterns; @FILE is a file that lists images, and
            - is the bytes of one picture on standard input. In a list, each line is a path or an address (`https://`,
            `s3://`, `hf://`); empty lines are ignored, and spaces at the ends of a line belong to the path. @- is a
            list on standard input; without `out`, each line is answered as soon as it arrives, or `batch_size` lines at
            a time. Pictures in memory are accepted, too: one or several PIL images, numpy arrays (height, width, C) or
            torch tensors (C, height, width), either uint8 from 0 to 255 or floats from 0 to 1. An array or tensor with
            four axes contains several pictures.
        out: write rows to this .csv, .jsonl, .xlsx or .parquet file. The rows of the result are then read from this
            file. Excel workbooks, Parquet files and files at an address such as s3://bucket/rows.csv are written at the
            end, so they cannot be resumed.
        pictures: write each image with its prediction as a PNG file into this folder.
        top: list this many classes for each image.
        names: the classes of a model of CLIP or SigLIP; by default, those of the model.
        promises: what is promised about labels, and which labels are withheld for it.
        tta: average the probabilities of several views of each image: `flip` (the image and its mirror image), `crops`
            (its centre and four corners), or `flip,crops` (all ten). The time grows in proportion to the number of
            views. `vitkit eval --tta` measures the gain. There is no column `familiar` with this option.
        preprocess: the preprocessing of images, as settings such as
            `resize=256,crop=224,interpolation=bilinear,mean=0.5,std=0.5`, or as the name of a publisher whose
            preprocessing is used, such as `deit` or `google`. By default, it is that of the model,
            or an assumed one if the model states none. See `vitkit.load`.
        compute: where and how the model computes. With `cluster`, the rows are written into a folder `out` of .parquet
            files, in any order.
        resume: continue an interrupted `out`, or add rows for images that it lacks.
        force: overwrite `out` and `pictures`.
        shard: predict only one part of the images, such as 2/8: the second of eight runs of consecutive images.
        progress: called with the current task, the number of finished items and the total number of items.

    Raises:
        VitkitError: a value is not allowed, the model cannot be loaded, there is no image, an output exists or is being
            written by another process, or the rows in `out` were written by another model.
        OSError: a file cannot be written.
    """
    out, pictures = path_of(out), path_of(pictures)
    check_cluster(compute, out, model)
    files, in_memory = split_sources(sources)
    listed = next((name[1:] for name in files if name.startswith("@")), None)
    request = _PredictCommand(
        model=model,
        files=tuple(files),
        in_memory=tuple(in_memory),
        listed=listed,
        lines=tuple(read_list("-")) if listed == "-" and out is not None else None,
        names=names,
        promises=promises,
        preprocess=preprocess,
        tta=tta,
        top=top,
        compute=compute,
    )
    request.check(out, pictures, shard, resume=resume, force=force)
    notes, folders = Notes(), [] if listed is not None else source_folders(files)
    if compute.cluster is None and out is not None:
        _check_out(out, folders, resume=resume)
    if listed == "-" and out is None:
        return _predict_lines(request, notes)
    if out is not None and listed is not None and out.resolve() == Path(listed).resolve():
        raise VitkitError("verbs.out-in-source", f"--out {out} is the list of images: choose another file")
    paths, is_whole = request.paths(notes)  # before the model is loaded, so that a missing file is reported at once
    paths = list(select_shard(paths, shard))
    if pictures is not None:
        check_not_among_images("--pictures", pictures, paths)
    suffix = "" if out is None else out.suffix.lower()
    if suffix == ".xlsx":
        check_rows(len(paths))
    if suffix == ".parquet":
        check_parquet()
    if compute.cluster is not None:
        assert out is not None
        with parquet_folder(out, folders, force=force) as folder:
            _, columns = request.open(notes)  # before Ray is started, so that errors are reported at once
            schema = parquet_schema(Csv(columns).names)
            open_model = partial(request.open_on_worker, len(paths))
            computation = write_by_ray(open_model, paths, schema, folder, compute)
            tally = tally_parquet(folder)
        return _result(tally, computed_on_cluster(computation), out, notes, Csv(columns), is_whole=is_whole)
    may_exist = resume or force
    advice = "continue it with --resume, or overwrite it with --force"
    locked_pictures = exclusive_out_folder("--pictures", pictures, folders, advice, may_have_files=may_exist)
    with locked_pictures, _output_file(out, may_exist=may_exist) as file:  # a temporary file if `out` is a URL
        classifier, columns = request.open(notes)
        growing_file = None if _is_table(file) else file  # gets each row as soon as it is computed
        form = FORMATS[".csv" if growing_file is None else growing_file.suffix.lower()](columns)
        written = WrittenRows(paths)
        if file is not None and resume:
            written = written_rows(file, form, paths)
            if written.file is not None:
                log.info(f"{written.tally.images} of {len(paths)} images are in {written.file}")
        classifier = request.choose_backend(classifier, len(paths), notes, written)
        if written.file is not None:
            _check_same_model(classifier, written.file, form, request.source, written.computation)
        album = None
        if pictures is not None:
            from vitkit.reporting.plots import Album

            album = Album(pictures, folders, paths)
        writer = WRITER.get() if file is None else None
        writing: AbstractContextManager[Write | None]
        if growing_file is not None:
            writing = appending_rows(growing_file, form, paths, written, classifier.computation)
        else:
            writing = nullcontext(None if writer is None else writer(form, len(paths)))
        reporting = nullcontext() if writer is None else reporting_to(silent)  # the rows show the progress
        with reporting, writing as write:
            if album is not None and written.file is not None:
                album.complete(row for _, row in read_rows(written.file, form))
            # If rows cannot be written, closing ends the threads at once, not only when the exception is deleted.
            images = in_memory or map(request.source, written.missing)
            with closing(classifier.predict(images, compute.batch_size)) as predictions:
                doubts = list[tuple[int, float]]() if columns.rules.sure is not None else None
                rows = _process_predictions(predictions, columns, album, write, written.tally, len(paths), doubts)
            if doubts:
                _note_difference(classifier, doubts, notes)
        if file is not None and growing_file is None:
            write_table(file, Csv(columns).names, rows)
    return _result(written.tally, classifier.computed, out, notes, form, is_whole=is_whole, kept=rows)


def _predict_lines(request: _PredictCommand, notes: Notes) -> Predictions:
    """Predict the images on standard input as their lines arrive: `batch_size` lines at a time, or one by one."""
    lines = read_list("-")
    lines = chain([next(lines)], lines)  # so that an error in the first line is reported before the model is loaded
    classifier, columns = request.open(notes)
    # The number of images is not known. The backend for a single image has the shortest start-up time.
    classifier = request.choose_backend(classifier, 1, notes)
    form, tally, rows = Csv(columns), Tally(), list[Row]()
    writer = WRITER.get()
    write = None if writer is None else writer(form, 0)
    doubts = list[tuple[int, float]]() if columns.rules.sure is not None else None
    with reporting_to(silent):
        while group := list(islice(lines, request.compute.batch_size or 1)):
            predictions = classifier.predict(map(request.source, group), request.compute.batch_size)
            rows += _process_predictions(predictions, columns, None, write, tally, 0, doubts)
    if doubts:
        _note_difference(classifier, doubts, notes)
    return _result(tally, classifier.computed, None, notes, form, is_whole=True, kept=rows)


def _result(
    tally: Tally,
    computed: str,
    out: Path | None,
    notes: Notes,
    form: RowFormat,
    *,
    is_whole: bool,
    kept: Sequence[Row] = (),
) -> Predictions:
    counts = (tally.images, tally.unreadable, tally.rejected)
    is_whole = is_whole and not tally.unreadable
    return Predictions(*counts, computed, is_whole, out, tuple(notes.lines), form, tuple(kept), tally.unknown)


@dataclass(frozen=True)
class _PredictCommand:
    """The arguments of `predict` that affect the rows. They can be sent to other processes.

    Most fields are arguments of `predict` under the same names. The others describe the images.
    """

    model: str | Path | Classifier
    files: tuple[str, ...]  # files, folders and patterns
    in_memory: tuple[PictureInMemory, ...]
    listed: str | None  # the file that lists the images, or `-` for standard input
    lines: tuple[str, ...] | None  # of the list on standard input; None without such a list or without `out`
    names: Names
    promises: Promises
    preprocess: str | PreprocessLike | None
    tta: str | None
    top: int
    compute: Compute

    def check(self, out: Path | None, pictures: Path | None, shard: str | None, *, resume: bool, force: bool) -> None:
        """Raise an error for arguments that are not allowed, before anything is opened."""
        given = {
            "--resume": resume,
            "--force": force,
            "--pictures": pictures,
            "--shard": shard,
            "--cluster": self.compute.cluster,
            "pictures in memory": self.in_memory,
            "- (one picture on standard input)": "-" in self.files,
            "@FILE (a list of images)": self.listed,
            "other images": len(self.files) > 1,
        }
        check_conflicts(given, _CONFLICTS)
        if not (self.files or self.in_memory):
            raise VitkitError(
                "verbs.images-missing", "there is no image: pass files, folders or patterns, or @FILE for a list"
            )
        if resume and out is None:
            raise VitkitError("verbs.option-missing", "--resume requires --out, the file to continue")
        if self.listed == "-" and out is None and shard is not None:
            raise VitkitError("verbs.option-missing", "@- is answered line by line, so --shard requires --out")

    def paths(self, note: Say) -> tuple[list[str], bool]:
        """Return the names of the images without repetitions, and whether all folders could be read."""
        if self.in_memory:
            return [picture.name for picture in self.in_memory], True
        if self.listed is not None:
            return list(read_list(self.listed) if self.lines is None else self.lines), True
        if self.files == ("-",):
            return [STDIN_PATH], True
        paths, is_whole = find_pictures(self.files, note)
        return list(dict.fromkeys(paths)), is_whole

    def source(self, path: str) -> str | Stored:
        """Return the source of an image: a path, the picture on standard input, or a remote file that a list names."""
        if self.files == ("-",):
            return read_stdin_picture()
        return path if self.listed is None else source_of_line(path)

    def open(self, note: Say) -> tuple[Classifier, Columns]:
        """Open the model, and return the classifier and the columns of its rows."""
        classifier = open_named(self.model, self.names, note, preprocess=self.preprocess)
        classifier.preprocess.check_known()
        classifier = classifier if self.tta is None else classifier.with_views(self.tta)
        promises = self.promises
        rules = classifier.rules(coverage=promises.coverage, accuracy=promises.accuracy, unknown=promises.unknown)
        for line in rules.notes():
            note(line)
        top, is_multi = min(self.top, len(classifier.classes)), classifier.task == "multi"
        return classifier, Columns(top, promises.reject, is_multi, rules, classifier.unknown is not None)

    def choose_backend(
        self, classifier: Classifier, images: int, note: Say, written: WrittenRows | None = None
    ) -> Classifier:
        """Return the classifier with the requested backend, precision and device.

        With `auto`, the backend is chosen by the total number of images. But if an earlier call has written rows, their
        backend, precision and plan are used again, so that all rows are computed in the same way.
        """
        from vitkit.classifier import computed_in_words

        use = partial(classifier.use, images=images, device=self.compute.device)
        if written is None or written.computation is None:
            return use(self.compute.backend, self.compute.precision)
        earlier = computed_in_words(written.computation)
        if self.compute.backend == self.compute.precision == "auto":
            same: dict[str, Any] = {name: value or "auto" for name, value in written.computation.items()}
            prepared = use(**same)
        else:
            prepared = use(self.compute.backend, self.compute.precision)
        now = computed_in_words(prepared.computation)
        if written.missing and now != earlier:
            rows = plural(written.tally.images, "row was", "rows were")
            note(f"{rows} computed by {earlier}, and the others are computed by {now}: numbers may differ slightly")
        return prepared

    def open_on_worker(self, images: int, computation: Mapping[str, Any] | None) -> OpenedModel:
        """Open the model in a process of a cluster, see `cluster.write_by_ray`."""
        request = self
        if computation is not None:
            compute = self.compute.replace(backend=computation["backend"], precision=computation["precision"])
            request = replace(self, compute=compute)
        classifier, columns = request.open(ignore)
        classifier = request.choose_backend(classifier, images, ignore)
        names = Csv(columns).names

        def rows(paths: Iterable[str]) -> Iterator[Cells]:
            for prediction in classifier.predict(map(self.source, paths), self.compute.batch_size):
                yield list(map(columns.row(prediction).cells().get, names))

        return classifier.computation, rows


def _process_predictions(
    predictions: Iterable[Prediction],
    columns: Columns,
    album: Album | None,
    write: Write | None,
    tally: Tally,
    images: int,
    doubts: list[tuple[int, float]] | None,
) -> list[Row]:
    """Add each prediction to the album, pass it to `write`, and count it. Without `write`, return all rows.

    If `doubts` is not None, the class and the doubt (`class_and_doubt`) of each readable image are added to it.
    """
    rows = []
    for prediction in predictions:
        row = columns.row(prediction)
        if album is not None:
            album.add(row)  # first, so that a row in the file has its picture
        if write is None:
            rows.append(row)
        else:
            write(prediction)
        tally.add(row)
        if doubts is not None and prediction.error is None:
            doubts.append(class_and_doubt(prediction))
        progress("predicting", tally.images, images)
    return rows


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


def _check_out(out: Path, folders: Sequence[str], *, resume: bool) -> None:
    if (address := address_of(out)) is not None:
        if resume:
            raise VitkitError("verbs.resume-impossible", f"--out {address}: --resume needs a file of this machine")
        check_writable(address)
        check_suffix(out, (*FORMATS, *TABLES))
        return
    check_out(out, (*FORMATS, *TABLES), folders)
    if resume and _is_table(out):
        raise VitkitError(
            "verbs.resume-impossible",
            f"--resume cannot continue {out}, which is written only at the end: use a .csv file",
        )


@contextmanager
def _output_file(out: Path | None, *, may_exist: bool) -> Iterator[Path | None]:
    """Lock and yield the file to write. For an address, yield a temporary file, and upload it at the end.

    If the upload fails, the temporary file is kept, and the error message contains its path.
    """
    if out is None:
        yield None
        return
    if (address := address_of(out)) is None:
        with exclusive(out):
            existing = next((file for file in (out, partial_of(out)) if file.exists()), None)
            if existing is not None and not may_exist:
                raise VitkitError(
                    "verbs.out-exists",
                    f"{existing} exists: continue it with --resume, overwrite it with --force, or choose another --out",
                )
            yield out
        return
    folder, _, name = address.rpartition("/")
    if not may_exist and name in names_at(folder):
        raise VitkitError(
            "verbs.out-exists", f"--out {address} exists: choose a new name, or use --force to overwrite it"
        )
    scratch, is_kept = Path(mkdtemp(prefix="vitkit-")), False
    try:
        yield scratch / name
        try:
            write_file(address, scratch / name)
        except (OSError, VitkitError) as error:
            is_kept = True
            code = error.code if isinstance(error, VitkitError) else "verbs.upload-failed"
            raise VitkitError(code, f"{error}; the rows are in {scratch / name}") from error
    finally:
        if not is_kept:
            shutil.rmtree(scratch, ignore_errors=True)


def _is_table(out: Path | None) -> bool:
    return out is not None and out.suffix.lower() in TABLES


_COMPARED = 8  # rows


def _check_same_model(
    classifier: Classifier, file: Path, form: RowFormat, source: Source, computation: Mapping[str, Any] | None
) -> None:
    """Raise an error if the rows of a file, which is to be continued, were written by another model.

    The first readable images are classified again, and all but one must get the label and the confidence of their row.
    One may differ, because a label near a threshold depends on the backend and the precision. `computation` is how the
    rows were computed, None if it is unknown.
    """
    earlier = "" if computation is None else computation["precision"]
    is_exact = earlier == classifier.computation["precision"] == "float32"
    tolerance = 1e-4 if is_exact else 0.02  # rounding to bfloat16 changes probabilities by less than the latter
    answered = (row for _, row in read_rows(file, form) if row.name is not None and row.confidence is not None)
    rows = list(islice(answered, _COMPARED))
    differing = 0
    for row, now in zip(rows, classifier.predict([source(row.path) for row in rows]), strict=True):
        if now.confidence is not None and row.confidence is not None:  # the image can still be read
            differing += now.label != row.name or abs(now.confidence - row.confidence) > tolerance
    if differing > min(1, len(rows) // 2):
        raise VitkitError(
            "verbs.rows-foreign",
            f"the rows in {file} were written by another model: use that model, or --force to start again",
        )
