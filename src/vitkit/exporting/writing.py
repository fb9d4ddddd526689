"""Write an exported file. It receives its name only after it was read back and predicts as the model does."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from vitkit.classifier import Classifier
from vitkit.errors import VitkitError
from vitkit.exporting.card import Card
from vitkit.exporting.check import LogitComparison, Pictures, Refused, answers, check_card, compare, read_pictures
from vitkit.exporting.formats import Format, format_of
from vitkit.exporting.loading import load_exported
from vitkit.system.files import exclusive


@dataclass(frozen=True)
class Outcome:
    """The result of an export.

    Attributes:
        comparison: the comparison of the file, computed in `precision`, with the model in float32.
        precision: the precision in which the file was compared.
        in_bfloat16: the same of the file computed in bfloat16, where its runtime does so here.
        size: bytes of all its files.
        seconds: the seconds that writing took.
    """

    comparison: LogitComparison
    precision: str
    in_bfloat16: LogitComparison | None
    size: int
    seconds: float


def export(
    classifier: Classifier,
    out: Path,
    pictures: Pictures,
    *,
    force: bool = True,
    batch: int | None = None,
    precision: str = "float32",
) -> Outcome:
    """Write the classifier to a file of the format that its suffix names, if it then answers as the classifier does.

    Args:
        classifier: has a model.
        out: ends as one of the `FORMATS` does.
        pictures: what both are asked about.
        force: write over what is there.
        batch: the only number of images that it is to take; None: any number.
        precision: the precision in which weights are stored: one of `DTYPES`.

    Raises:
        Refused: the answers differ; nothing is left.
        VitkitError: the model cannot be kept in this format, or its runtime is not installed; another process writes
            the file, or it is there and is not to be written over.
        OSError: the disk is full or not writable.
    """
    form, card = format_of(out), Card.of(classifier, precision)
    if not classifier.classes:
        raise VitkitError("the model has no head, so there is nothing to predict: train one, or load with num_classes")
    with _staged(out, form, force=force) as temporary:
        begun = time.perf_counter()
        form.write(classifier.model, temporary, card.to_json(), batch, getattr(torch, precision))
        seconds = time.perf_counter() - begun
        comparison, in_bfloat16, computed = _verify(classifier, temporary, form, card, pictures)
        size = sum(file.stat().st_size for file in form.files(temporary))
    return Outcome(comparison, computed, in_bfloat16, size, seconds)


def _verify(
    classifier: Classifier, path: Path, form: Format, card: Card, pictures: Pictures
) -> tuple[LogitComparison, LogitComparison | None, str]:
    precision = card.dtype if form.has_fixed_precision else "float32"
    try:
        exported = load_exported(path, precision)
    except VitkitError as error:
        raise Refused(f"the file does not read back (is the disk full?): {error}") from error
    check_card(card, exported.card)
    plain = answers(classifier, read_pictures(classifier, pictures), "asking the model")
    images = read_pictures(exported, pictures)
    comparison = compare(plain, answers(exported, images, "asking the file"), card)
    faults = comparison.faults()
    if faults:
        raise Refused(f"the file does not answer as the model does: {'; '.join(faults)} ({pictures.what})")
    in_bfloat16 = None
    quick = exported if form.has_fixed_precision else load_exported(path)
    if quick.precision == "bfloat16" != precision:
        in_bfloat16 = compare(plain, answers(quick, images, "asking the file in bfloat16"), card, "bfloat16")
        if faults := in_bfloat16.faults():
            raise Refused(
                f"in bfloat16, as predict would ask it here, the file does not answer as the model does: "
                f"{'; '.join(faults)} ({pictures.what})"
            )
    return comparison, in_bfloat16, precision


def check_free(out: Path, form: Format, *, force: bool) -> None:
    """Refuse a place that is taken.

    Raises:
        VitkitError: a folder is there, or a file that is not to be written over.
    """
    for path in form.files(out):
        if path.is_dir():
            raise VitkitError(f"--out {path} is a folder; name a file")
        if path.exists() and not force:
            raise VitkitError(f"{path} exists: choose a new name, or --force to write over it")


@contextmanager
def _staged(out: Path, form: Format, *, force: bool) -> Iterator[Path]:
    """Yield a path of the same name in a temporary folder; its files are moved into place if the block succeeds."""
    folder = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    with exclusive(out):
        check_free(out, form, force=force)
        yield from _in_turn(out, form, folder)


def _in_turn(out: Path, form: Format, folder: Path) -> Iterator[Path]:
    folder.mkdir()
    try:
        yield folder / out.name
        for written, final in zip(form.files(folder / out.name), form.files(out), strict=True):
            with written.open("rb+") as file:
                os.fsync(file.fileno())
            written.replace(final)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
