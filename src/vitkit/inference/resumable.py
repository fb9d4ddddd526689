"""A file of rows that is long in the making and survives being killed.

Rows gather in `NAME.partial` beside the final file. A record that was cut short at its end does not count, so that
a later run can go on from wherever this one broke off.
"""

from __future__ import annotations

import csv
import os
import shutil
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.errors import VitkitError
from vitkit.inference.prediction_files import ENCODING, Format, Row
from vitkit.system.files import replacing

if TYPE_CHECKING:
    from vitkit.inference.prediction import Prediction


@dataclass
class Tally:
    """How many images there were, and what became of them."""

    images: int = 0
    unreadable: int = 0
    rejected: int = 0

    def add(self, row: Row) -> None:
        """Count an image."""
        self.images += 1
        self.unreadable += row.name is None
        self.rejected += row.is_rejected


@dataclass(frozen=True)
class Stock:
    """What there is of a file of rows, and what it lacks.

    Attributes:
        missing: the paths without a row, in order.
        file: where the rows are; None when there are none yet.
        size: bytes to the end of the last whole row.
        is_in_order: the rows are those of the first paths.
        tally: of the rows.
    """

    missing: Sequence[str]
    file: Path | None = None
    size: int = 0
    is_in_order: bool = True
    tally: Tally = field(default_factory=Tally)


def partial_of(out: Path) -> Path:
    """Where the rows gather until all of them are there."""
    return out.with_name(f"{out.name}.partial")


def take_stock(out: Path, form: Format, paths: Sequence[str]) -> Stock:
    """What an earlier run left, in the partial file or else in the finished one.

    Args:
        out: the finished file.
        form: how this run writes.
        paths: the images that are to have a row; each is named once.

    Raises:
        VitkitError: the rows there cannot be among those of this run.
    """
    file = next((file for file in (partial_of(out), out) if file.exists()), None)
    if file is None:
        return Stock(paths)
    size, is_in_order, tally = 0, True, Tally()
    has_row, order = dict.fromkeys(paths, False), iter(paths)
    for span, row in read_rows(file, form):
        if row.path not in has_row:
            raise VitkitError(
                f"{file} has a row of {row.path}, which is not among the sources: name it too, take out its row, "
                "or --force to begin anew"
            )
        if not form.columns.agree_with(row):
            raise _misfit(file, f"{row.path} was judged by another threshold")
        is_in_order = is_in_order and row.path == next(order, None)
        if not has_row[row.path]:  # two processes may have written it
            tally.add(row)
        has_row[row.path], size = True, span.stop
    return Stock([path for path, is_done in has_row.items() if not is_done], file, size, is_in_order, tally)


def read_rows(file: Path, form: Format) -> Iterator[tuple[slice, Row]]:
    """Each whole row of a file, and the bytes where it is.

    Raises:
        VitkitError: the file holds something else.
    """
    opening, end = form.opening.encode(), len(form.header.encode())
    with file.open("rb") as stream:
        if not opening.startswith(stream.read(len(opening))):
            raise _misfit(file, "it begins otherwise")
        stream.seek(end)
        for record in form.records(stream):
            start, end = end, end + len(record)
            try:
                row = form.decode(record.decode(*ENCODING))
            except (ValueError, TypeError, csv.Error) as error:
                raise _misfit(file, f"bytes {start} to {end} are no such row") from error
            yield slice(start, end), row


@contextmanager
def gathering(out: Path, form: Format, paths: Sequence[str], stock: Stock) -> Iterator[Callable[[Prediction], None]]:
    """A function that adds a prediction's row; when the block ends well, `out` has a row for each path, in order.

    Where the block does not end well, the partial file stays, if it has rows.

    Args:
        out: the finished file.
        form: how rows are written.
        paths: the images of the finished file, in order; each is named once.
        stock: what there is already; the block adds what it says to be missing, in order.

    Raises:
        OSError: the file cannot be written; it is named.
    """
    partial = partial_of(out)
    if stock.file == out:
        shutil.copyfile(out, partial)
    with partial.open("ab", buffering=0) as file:  # what was written is in the file, whatever kills the process
        file.truncate(stock.size)
        try:
            if stock.size == 0:
                _append(file, form.header)
            yield lambda prediction: _append(file, form.encode(prediction))
        except BaseException:
            if partial.stat().st_size <= len(form.header):
                partial.unlink()
            raise
        os.fsync(file.fileno())
    if stock.is_in_order:
        partial.replace(out)
    else:
        _put_in_order(partial, out, form, paths)


def _append(file: FileIO, text: str) -> None:
    rest = memoryview(text.encode(*ENCODING))
    try:
        while rest:
            rest = rest[file.write(rest) :]
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}; --resume goes on from there", file.name) from error


def _put_in_order(partial: Path, out: Path, form: Format, paths: Sequence[str]) -> None:
    """Write `out` from the rows of `partial`, one for each path; in memory are only the places of the rows."""
    number = {path: i for i, path in enumerate(paths)}
    starts = array("q", bytes(8 * len(paths)))
    for span, row in read_rows(partial, form):
        starts[number[row.path]] = span.start
    with partial.open("rb") as rows, replacing(out) as temporary, temporary.open("wb") as file:
        file.write(form.header.encode())
        for start in starts:
            rows.seek(start)
            file.write(next(form.records(rows)))
    partial.unlink()


def _misfit(file: Path, reason: str) -> VitkitError:
    return VitkitError(
        f"the rows in {file} do not fit ({reason}): give the --top and --reject of before, or --force to begin anew"
    )
