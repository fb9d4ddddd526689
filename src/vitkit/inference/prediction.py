"""Predictions, and the files that store them: CSV and JSON Lines.

A `Ranking` orders the classes of one image by probability. It sorts only as many classes as are requested.

A file has one row for each prediction. Paths may contain line ends and bytes that are not UTF-8. Rows of CSV and JSON
Lines files are first appended to `NAME.partial` next to the final file. After an interruption, a later run resumes from
the partial file and ignores an incomplete record at its end. `NAME.partial.json` says how its rows were computed.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from vitkit.errors import VitkitError
from vitkit.inference.trust import NO_RULES, UNKNOWN, PredictionRules, uncertainty_of
from vitkit.system.files import from_json, read_json, replacing, to_json, write_json
from vitkit.text.cells import JOINT, harmless, restored, visible

ClassProbability = tuple[str, float]


class Ranking(Sequence[ClassProbability]):
    """All classes of one image with their probabilities, most probable first.

    Ties keep the order of the classes. A ranking equals the tuple of its (class, probability) pairs, and has the same
    hash.

    Attributes:
        classes: the K class names.
        probabilities: the probability of each class, (K,).
    """

    def __init__(self, classes: Sequence[str], probabilities: npt.NDArray[np.float32]) -> None:
        self.classes = classes
        self.probabilities = probabilities

    def __len__(self) -> int:
        return len(self.probabilities)

    @overload
    def __getitem__(self, index: int) -> ClassProbability: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ClassProbability, ...]: ...
    def __getitem__(self, index: int | slice) -> ClassProbability | tuple[ClassProbability, ...]:
        ranks = range(len(self))[index]
        if isinstance(ranks, int):
            return self._top(ranks + 1)[ranks]
        top = self._top(max(ranks, default=-1) + 1)
        return tuple(top[i] for i in ranks)

    def __iter__(self) -> Iterator[ClassProbability]:
        return iter(self._top(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Ranking, tuple)) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def _top(self, count: int) -> tuple[ClassProbability, ...]:
        """Return the `count` most probable classes without sorting the others."""
        p, K = self.probabilities, len(self)
        if count == 1:
            order = np.array([p.argmax()])
        else:
            candidates = np.arange(K)
            if 0 < count < K:
                lowest = np.partition(p, K - count)[K - count]  # the `count`-th highest probability
                candidates = np.flatnonzero(p >= lowest)  # more than `count` if there are ties
            order = candidates[np.argsort(-p[candidates], kind="stable")][:count]
        return tuple((self.classes[i], float(p[i])) for i in order)


@dataclass(frozen=True)
class Prediction:
    """The prediction for one image.

        >>> from vitkit import Classifier, Preprocess, create_model
        >>> from PIL import Image
        >>> model = create_model("vit_micro_patch4_16", num_classes=2)
        >>> classifier = Classifier(model, ["cat", "dog"], Preprocess(size=(16, 16)))
        >>> prediction = next(classifier.predict([Image.new("RGB", (40, 30))]))
        >>> prediction.label == prediction.ranking[0][0], prediction.error is None
        (True, True)

    Attributes:
        path: the path as the caller named it.
        label: the most probable class; None if there is no prediction. For a multi-label model, all classes that reach
            their thresholds, in the order of the classes and separated by `;`; "" if no class reaches its threshold.
        confidence: the probability of the label. For a label of several classes, the lowest of their probabilities. For
            the label "", 1 minus the highest probability of all classes.
        ranking: every class with its probability, the most probable first (`Ranking`).
        error: the reason why there is no prediction: the image cannot be read, or the model's output is not finite.
            None if there is a prediction.
        familiar: the familiarity of the image, its p-value (`unknown.Unknown`): the fraction of known images, in
            (0, 1], that look no more familiar to the model. A low value means that the image is strange. None if the
            model has no score for unknown images.
    """

    path: str
    label: str | None = None
    confidence: float | None = None
    ranking: Sequence[tuple[str, float]] = ()
    error: str | None = None
    familiar: float | None = None

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: the five most probable classes, with a bar for each."""
        title = f"<b>{escape(self.path)}</b>"
        if self.error is not None:
            return f"<div>{title}: {escape(self.error)}</div>"
        bars = "".join(
            f'<tr><td>{escape(name)}</td><td>{confidence:.3f}</td><td style="min-width: 12em">'
            f'<div style="width: {100 * confidence:.1f}%; height: 0.8em; background: #4477aa"></div></td></tr>'
            for name, confidence in self.ranking[:5]
        )
        familiar = "" if self.familiar is None else f"<div>familiar: {self.familiar:.3f} (low is strange)</div>"
        return f"<div>{title}: {escape(self.label or '')}</div><table>{bars}</table>{familiar}"


def rank(
    path: str, ranking: Ranking, thresholds: npt.NDArray[np.float64] | None, familiar: float | None = None
) -> Prediction:
    """Return the prediction for the image at `path` with this ranking.

    For a multi-label model, `thresholds` has the threshold of each class, (K,), and `familiar` is ignored.
    """
    if thresholds is None:
        label, confidence = ranking[0]
        return Prediction(path, label, confidence, ranking, familiar=familiar)
    p = ranking.probabilities
    chosen = np.flatnonzero(p >= thresholds)
    if not len(chosen):
        return Prediction(path, "", float(1 - p.max()), ranking)
    label = JOINT.join(ranking.classes[i] for i in chosen.tolist())
    return Prediction(path, label, float(p[chosen].min()), ranking)


ENCODING = ("utf-8", "surrogateescape")  # file names may contain bytes that are not UTF-8
_CSV_ROUNDING = 1e-6  # CSV files store confidences with six decimal places


class Row(NamedTuple):
    """The row of one image in a prediction file.

    Attributes:
        path: the path as the caller named it.
        name: the label of the prediction (see `Prediction`), even if it is withheld; None if there is no prediction.
        confidence: the probability of the label (see `Prediction`).
        is_rejected: whether the label is withheld, for example because of low confidence.
        error: the reason why there is no prediction; None if there is one.
        top: the most probable classes with their probabilities; empty unless more than one class was requested.
        set: the prediction set, which contains the true class with the requested probability. The most probable class
            is first. None if no sets were requested.
        familiar: see `Prediction`.
        is_unknown: whether the image is called unknown. Its label is then `?`.
    """

    path: str
    name: str | None = None
    confidence: float | None = None
    is_rejected: bool = False
    error: str | None = None
    top: tuple[ClassProbability, ...] = ()
    set: tuple[str, ...] | None = None
    familiar: float | None = None
    is_unknown: bool = False

    @property
    def label(self) -> str | None:
        """Return `?` for an unknown image, None for a rejected label, and otherwise `name`."""
        if self.is_unknown:
            return UNKNOWN
        return None if self.is_rejected else self.name

    def cells(self) -> dict[str, str | float | None]:
        """Return the row of the prediction in a table, by column name; None is an empty cell."""
        rejected = None
        if self.is_rejected:
            rejected = self.name or JOINT  # an empty cell would mean that the label is not rejected
        cells: dict[str, str | float | None] = {
            "path": self.path,
            "label": self.label,
            "confidence": self.confidence,
            "error": self.error,
            "familiar": self.familiar,
            "set": None if self.set is None else JOINT.join(self.set),
            "rejected": rejected,
        }
        for rank, (label, confidence) in enumerate(self.top, 1):
            cells[f"label_{rank}"] = label
            cells[f"confidence_{rank}"] = confidence
        return cells

    def to_dict(self, *, may_reject: bool) -> dict[str, Any]:
        """Return the row as the object of a JSON line, with the key `rejected` if `may_reject`."""
        row: dict[str, Any] = {"path": self.path, "label": self.label, "confidence": self.confidence}
        if may_reject:
            row["rejected"] = self.name if self.is_rejected else None
        if self.familiar is not None:
            row["familiar"] = self.familiar
        if self.error is not None:
            row["error"] = self.error
        elif self.set is not None:
            row["set"] = list(self.set)
        if self.error is None and self.top:
            row["top"] = [{"label": label, "confidence": confidence} for label, confidence in self.top]
        return row

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Row:
        """Create a row from the object that `to_dict` returns."""
        rejected = row.get("rejected")
        is_rejected = rejected is not None
        return cls(
            path=row["path"],
            name=rejected if is_rejected else row["label"],
            confidence=row["confidence"],
            is_rejected=is_rejected,
            error=row.get("error"),
            top=tuple((entry["label"], entry["confidence"]) for entry in row.get("top", ())),
            set=tuple(row["set"]) if "set" in row else None,
            familiar=row.get("familiar"),
            is_unknown=is_rejected and row["label"] == UNKNOWN,
        )


@dataclass(frozen=True)
class Columns:
    """The columns of a prediction file, and the rules by which labels are withheld.

    Attributes:
        top: the number of most probable classes with their own columns.
        reject: the confidence below which the label is withheld; None for no rejection.
        multi: whether the model is multi-label, so that the label may differ from the most probable class.
        rules: the rules for prediction sets and for withheld labels.
        has_familiar: whether the model has a score for unknown images, which adds the column `familiar`.
    """

    top: int = 1
    reject: float | None = None
    multi: bool = False
    rules: PredictionRules = NO_RULES
    has_familiar: bool = False

    @property
    def may_reject(self) -> bool:
        """Return whether labels may be withheld."""
        return self.reject is not None or self.rules.sure is not None or self.rules.unknown is not None

    @property
    def limit(self) -> float:
        """Return the confidence below which labels are withheld; 0 if confidence does not matter."""
        sure = 0.0 if self.rules.sure is None else self.rules.sure.confidence
        return max(self.reject or 0.0, sure)

    @property
    def ranks(self) -> range:
        """Return the ranks for which there are columns `label_RANK` and `confidence_RANK`."""
        if self.top == 1:
            return range(0)
        first = 1 if self.multi else 2  # the label of a multi-label model may not be the most probable class
        return range(first, self.top + 1)

    def row(self, prediction: Prediction) -> Row:
        """Return the row of a prediction."""
        if prediction.error is not None:
            return Row(prediction.path, error=prediction.error)
        prediction_set = None
        if self.rules.sets is not None:
            ranking = _ranking_of(prediction)
            members = np.flatnonzero(self.rules.sets.contains(ranking.probabilities[None])[0])
            order = np.argsort(-ranking.probabilities[members], kind="stable")
            prediction_set = tuple(ranking.classes[i] for i in members[order])
        is_unknown = self._is_unknown(prediction.familiar)
        is_rejected = is_unknown
        if not is_rejected and self.reject is not None:
            assert prediction.confidence is not None
            is_rejected = prediction.confidence < self.reject
        if not is_rejected and self.rules.sure is not None:
            is_rejected = not self.rules.sure.answers(_ranking_of(prediction).probabilities[None])[0]
        return Row(
            path=prediction.path,
            name=prediction.label,
            confidence=prediction.confidence,
            is_rejected=is_rejected,
            top=tuple(prediction.ranking[: self.top]) if self.top > 1 else (),
            set=prediction_set,
            familiar=prediction.familiar,
            is_unknown=is_unknown,
        )

    def _is_unknown(self, familiar: float | None) -> bool:
        level = self.rules.unknown
        return level is not None and familiar is not None and familiar <= level + _CSV_ROUNDING

    def is_consistent_with(self, row: Row) -> bool:
        """Return whether this run would withhold, or not withhold, the label of a row just as the earlier run did."""
        if row.confidence is None:
            return not row.is_rejected
        if row.is_unknown != self._is_unknown(row.familiar):
            return False
        if row.is_unknown:
            return True
        could_be_either = self.may_reject and abs(row.confidence - self.limit) <= _CSV_ROUNDING
        return could_be_either or row.is_rejected == (row.confidence < self.limit)


def _ranking_of(prediction: Prediction) -> Ranking:
    assert isinstance(prediction.ranking, Ranking)
    return prediction.ranking


def class_and_doubt(prediction: Prediction) -> tuple[int, float]:
    """Return the index of the most probable class, and 1 minus its probability, without rounding it to 0."""
    probabilities = _ranking_of(prediction).probabilities
    return int(probabilities.argmax()), float(uncertainty_of(probabilities[None])[0])


@dataclass(frozen=True)
class Csv:
    """Rows as CSV: `path,label,confidence,error[,familiar][,rejected][,set][,label_2,confidence_2 ...]`.

    For a multi-label model, the additional columns start with `label_1`, and a rejected label without any class is
    written as `;`. Text is escaped so that spreadsheets and terminals do not interpret it (`text.cells.harmless`).
    """

    columns: Columns

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        names = ["path", "label", "confidence", "error"]
        if self.columns.has_familiar:
            names.append("familiar")
        if self.columns.may_reject:
            names.append("rejected")
        if self.columns.rules.sets is not None:
            names.append("set")
        for rank in self.columns.ranks:
            names += [f"label_{rank}", f"confidence_{rank}"]
        return names

    @property
    def header(self) -> str:
        """The record before the rows."""
        return _csv_record(self.names)

    @property
    def opening(self) -> str:
        """The beginning of every file of this format."""
        return self.header

    def encode(self, prediction: Prediction) -> str:
        """Return the CSV record of a prediction, with its line end."""
        cells = self.columns.row(prediction).cells()
        texts = list[str | None]()
        for name in self.names:
            cell = cells.get(name)
            if isinstance(cell, str):
                texts.append(harmless(cell))
            else:
                texts.append(None if cell is None else f"{cell:.6f}")
        return _csv_record(texts)

    def decode(self, record: str) -> Row:
        """Parse a complete record; raise ValueError, TypeError or csv.Error if it does not have these columns."""
        values = next(csv.reader([record], strict=True))
        cells = dict(zip(self.names, map(restored, values), strict=True))
        if not cells["confidence"]:
            return Row(cells["path"], error=cells["error"])
        confidence = float(cells["confidence"])
        rejected = cells.get("rejected")
        name = rejected or cells["label"]
        if rejected == JOINT and self.columns.multi:
            name = ""
        top = list[ClassProbability]()
        if self.columns.top > 1:
            if 1 not in self.columns.ranks:  # the label is the most probable class
                top.append((name, confidence))
            for rank in self.columns.ranks:
                if cells[f"confidence_{rank}"]:  # empty if there are fewer classes
                    top.append((cells[f"label_{rank}"], float(cells[f"confidence_{rank}"])))
        prediction_set = None
        if "set" in cells:
            prediction_set = tuple(member for member in cells["set"].split(JOINT) if member)
        familiar = cells.get("familiar")
        return Row(
            path=cells["path"],
            name=name,
            confidence=confidence,
            is_rejected=bool(rejected),
            top=tuple(top),
            set=prediction_set,
            familiar=float(familiar) if familiar else None,
            is_unknown=bool(rejected) and cells["label"] == UNKNOWN,
        )

    def records(self, stream: BinaryIO) -> Iterator[bytes]:
        """Yield the complete records up to the end of the file; skip an incomplete last record."""
        record = bytearray()
        is_quoted = False  # whether the end of the line is between quotes, as part of a file name
        for line in stream:
            record += line
            if line.count(b'"') % 2 == 1:
                is_quoted = not is_quoted
            if line.endswith(b"\n") and not is_quoted:
                yield bytes(record)
                record.clear()


@dataclass(frozen=True)
class JsonLines:
    """Rows as JSON Lines, one object per line; the methods do the same as those of `Csv`.

    Every object has the keys path, label and confidence. The keys rejected, familiar, error, set and top are present
    only where they apply.
    """

    columns: Columns
    header: ClassVar[str] = ""
    opening: ClassVar[str] = '{"path": "'

    def encode(self, prediction: Prediction) -> str:
        return to_json(self.columns.row(prediction).to_dict(may_reject=self.columns.may_reject)) + "\n"

    def decode(self, record: str) -> Row:
        row = from_json(record)
        if not isinstance(row, dict):
            raise ValueError("not an object")
        keys = {"path", "label", "confidence"}
        if self.columns.may_reject:
            keys.add("rejected")
        if row.get("confidence") is None:
            keys.add("error")
        else:
            if self.columns.has_familiar:
                keys.add("familiar")
            if self.columns.top > 1:
                keys.add("top")
            if self.columns.rules.sets is not None:
                keys.add("set")
        if set(row) != keys:
            raise ValueError("other keys")
        if "top" in row and len(row["top"]) != self.columns.top:
            raise ValueError("another number of classes")
        return Row.from_dict(row)

    def records(self, stream: BinaryIO) -> Iterator[bytes]:
        return (line for line in stream if line.endswith(b"\n"))


RowFormat = Csv | JsonLines
FORMATS: dict[str, Callable[..., RowFormat]] = {".csv": Csv, ".jsonl": JsonLines}
_MAX_SHOWN = 100  # maximum number of characters of the first line in an error message


def _csv_record(cells: Sequence[str | None]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerow(cells)  # cells with \r or \n are quoted
    return text.getvalue().removesuffix("\r\n") + "\n"


@dataclass
class Tally:
    """Counts of images: all, unreadable, rejected and unknown ones."""

    images: int = 0
    unreadable: int = 0
    rejected: int = 0
    unknown: int = 0

    def add(self, row: Row) -> None:
        """Count an image."""
        self.images += 1
        self.unreadable += row.name is None
        self.rejected += row.is_rejected
        self.unknown += row.is_unknown


@dataclass(frozen=True)
class WrittenRows:
    """The rows that an earlier run has written, and the paths that have no row yet.

    Attributes:
        missing: the paths without a row, in order.
        file: the file with the rows; None if there are none yet.
        size: the number of bytes up to the end of the last complete row.
        is_in_order: whether the rows belong to the first paths, in the order of the paths.
        tally: the counts of the images that have a row.
        computation: how the rows were computed, as in `Classifier.computation`; None if it is unknown.
    """

    missing: Sequence[str]
    file: Path | None = None
    size: int = 0
    is_in_order: bool = True
    tally: Tally = field(default_factory=Tally)
    computation: Mapping[str, Any] | None = None


def partial_of(out: Path) -> Path:
    """Return the path of the partial file, which becomes `out` when it is complete."""
    return out.with_name(f"{out.name}.partial")


def _computation_of(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.json")


def written_rows(out: Path, form: RowFormat, paths: Sequence[str]) -> WrittenRows:
    """Read the rows of an earlier run from the partial file or, if there is none, from the finished file `out`.

    `paths` are the images that need a row, without duplicates.

    Raises:
        VitkitError: the file has rows that this run would not write.
    """
    partial = partial_of(out)
    file = partial if partial.exists() else out
    if not file.exists():
        return WrittenRows(paths)
    tally = Tally()
    size = 0
    is_in_order = True
    has_row = dict.fromkeys(paths, False)
    expected = iter(paths)
    for span, row in read_rows(file, form):
        if row.path not in has_row:
            raise VitkitError(
                "inference.row-unexpected",
                f"{file} has a row for {row.path}, which is not among the sources: add it, remove its row, "
                "or start again with --force",
            )
        if not form.columns.is_consistent_with(row):
            raise _rows_differ(file, f"{row.path} has another rejection threshold")
        is_in_order = is_in_order and row.path == next(expected, None)
        if not has_row[row.path]:  # if two processes ran at once, there may be two rows for a path
            tally.add(row)
        has_row[row.path] = True
        size = span.stop
    missing = [path for path in paths if not has_row[path]]
    computation = None
    if file == partial and _computation_of(partial).exists():
        computation = read_json(_computation_of(partial))
    return WrittenRows(missing, file, size=size, is_in_order=is_in_order, tally=tally, computation=computation)


def read_rows(file: Path, form: RowFormat) -> Iterator[tuple[slice, Row]]:
    """Yield the byte range and content of each complete row of a file.

    Raises:
        VitkitError: the file is not in this format.
    """
    opening = form.opening.encode()
    end = len(form.header.encode())  # of the previous record
    with file.open("rb") as stream:
        if not opening.startswith(stream.read(len(opening))):
            stream.seek(0)
            first = visible(stream.readline(_MAX_SHOWN).decode(*ENCODING).rstrip())
            raise _rows_differ(file, f"it begins with {first} instead of {opening.decode()[:_MAX_SHOWN].rstrip()}")
        stream.seek(end)
        for record in form.records(stream):
            start = end
            end += len(record)
            try:
                row = form.decode(record.decode(*ENCODING))
            except (ValueError, TypeError, csv.Error) as error:
                raise _rows_differ(file, f"bytes {start} to {end} are not a row of this format") from error
            yield slice(start, end), row


@contextmanager
def appending_rows(
    out: Path, form: RowFormat, paths: Sequence[str], existing: WrittenRows, computation: Mapping[str, Any]
) -> Iterator[Callable[[Prediction], None]]:
    """Yield a function that appends the row of a prediction to the partial file.

    The block must add the rows that are missing in `existing`, the rows of an earlier run, in order. After it, `out`
    has one row for each path, in the order of `paths`, which has no duplicates. If the block raises an exception, a
    partial file with rows is kept, and a partial file without rows is deleted. A later run repeats the `computation` of
    the added rows (`Classifier.computation`).

    Raises:
        OSError: the file cannot be written; the error names the file.
    """
    partial = partial_of(out)
    write_json(_computation_of(partial), computation)
    if existing.file == out:
        shutil.copyfile(out, partial)
    with partial.open("ab", buffering=0) as file:  # written rows are in the file even if the process is killed
        file.truncate(existing.size)  # remove an incomplete last row
        try:
            if existing.size == 0:
                _append(file, form.header)
            yield lambda prediction: _append(file, form.encode(prediction))
        except BaseException:
            if partial.stat().st_size <= len(form.header):
                partial.unlink()
                _computation_of(partial).unlink()
            raise
        os.fsync(file.fileno())
    if existing.is_in_order:
        partial.replace(out)
    else:
        spans = {row.path: span for span, row in read_rows(partial, form)}
        with partial.open("rb") as rows, replacing(out) as temporary, temporary.open("wb") as ordered:
            ordered.write(form.header.encode())
            for path in paths:
                rows.seek(spans[path].start)
                ordered.write(rows.read(spans[path].stop - spans[path].start))
        partial.unlink()
    _computation_of(partial).unlink()


def _append(file: FileIO, text: str) -> None:
    rest = memoryview(text.encode(*ENCODING))
    try:
        while rest:
            rest = rest[file.write(rest) :]
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}; --resume continues from there", file.name) from error


def _rows_differ(file: Path, reason: str) -> VitkitError:
    return VitkitError(
        "inference.rows-differ",
        f"the rows in {file} do not fit ({reason}): use the model and the --top, --reject, --coverage, --accuracy and "
        "--unknown of before, or start again with --force",
    )
