"""Write an exported file. The file gets its final name only after a check that it predicts as the model does."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from vitkit.classifier import Classifier
from vitkit.errors import VitkitError
from vitkit.exporting.card import Card
from vitkit.exporting.check import (
    LogitComparison,
    Pictures,
    Refused,
    answers,
    check_card,
    check_features,
    compare,
    read_pictures,
)
from vitkit.exporting.formats import Format, format_of
from vitkit.exporting.loading import load_exported
from vitkit.inference.features import with_features
from vitkit.system.files import exclusive


@dataclass(frozen=True)
class Outcome:
    """The result of an export.

    Attributes:
        comparison: comparison of the file, computed in `precision`, with the model in float32.
        precision: the precision in which the file was computed for the comparison.
        in_bfloat16: comparison of the file computed in bfloat16; None if its runtime does not use bfloat16 here.
        size: total bytes of all files.
        seconds: duration of writing.
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
    """Write the classifier to a file, after checking that the file predicts as the classifier does.

    Args:
        classifier: a classifier with a model.
        out: the path of the file. Its suffix determines the format, one of the `FORMATS`.
        pictures: the images on which the file and the model are compared.
        force: whether to overwrite existing files.
        batch: the fixed number of images per batch that the file accepts; None for any number.
        precision: the dtype in which weights are stored: one of `DTYPES`.

    Raises:
        Refused: the predictions differ; no file is left.
        VitkitError: the format does not support the model, its runtime is not installed, another process is writing the
            file, or the file exists and `force` is False.
        OSError: the disk is full or not writable.
    """
    form, card = format_of(out), Card.of(classifier, precision)
    if not classifier.classes:
        raise VitkitError("the model has no head, so there is nothing to predict: train one, or load with num_classes")
    with _staged(out, form, force=force) as temporary:
        begun = time.perf_counter()
        model = with_features(classifier.model) if card.features else classifier.model
        form.write(model, temporary, card.to_json(), batch, getattr(torch, precision))
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
        raise Refused(f"the file cannot be read back (is the disk full?): {error}") from error
    check_card(card, exported.card)
    plain = answers(classifier, read_pictures(classifier, pictures), "asking the model")
    images = read_pictures(exported, pictures)
    comparison = compare(plain, answers(exported, images, "asking the file"), card)
    faults = comparison.faults()
    if faults:
        raise Refused(f"the file does not predict as the model does: {'; '.join(faults)} ({pictures.what})")
    if card.features:
        check_features(classifier, exported, images)
    in_bfloat16 = None
    quick = exported if form.has_fixed_precision else load_exported(path)
    if quick.precision == "bfloat16" != precision:
        in_bfloat16 = compare(plain, answers(quick, images, "asking the file in bfloat16"), card, "bfloat16")
        if faults := in_bfloat16.faults():
            raise Refused(
                f"in bfloat16, which predict would use here, the file does not predict as the model does: "
                f"{'; '.join(faults)} ({pictures.what})"
            )
    return comparison, in_bfloat16, precision


def check_free(files: Sequence[Path], *, force: bool) -> None:
    """Check that the files of an export can be created.

    Raises:
        VitkitError: a path is a folder, or a file exists and `force` is False.
    """
    for path in files:
        if path.is_dir():
            raise VitkitError(f"--out {path} is a folder; name a file")
        if path.exists() and not force:
            raise VitkitError(f"{path} exists: choose a new name, or --force to write over it")


@contextmanager
def _staged(out: Path, form: Format, *, force: bool) -> Iterator[Path]:
    """Yield a path with the same name in a temporary folder; its files are moved to `out` if the block succeeds."""
    folder = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    with exclusive(out):
        check_free(form.files(out), force=force)
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
