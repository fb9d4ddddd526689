"""Write an exported file. The file gets its final name only after a check that it predicts as the model does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitkit.classifier import Classifier
from vitkit.data.decode import UnreadableImageError
from vitkit.errors import VitkitError
from vitkit.exporting.card import Card, instructions
from vitkit.exporting.comparison import COSINE, AccuracyChange, LogitComparison, Refused, accuracy_change, compare
from vitkit.exporting.formats import INT8, Format, Storage, format_of
from vitkit.exporting.loading import Exported, load_exported
from vitkit.exporting.pictures import Pictures
from vitkit.exporting.quantization import first_and_last, rank_by_sensitivity
from vitkit.inference.backends.graph_runner import Array
from vitkit.inference.backends.graphs import exportable_copy
from vitkit.inference.backends.pixels import Pixels
from vitkit.model.build import with_features
from vitkit.profiling.speed import interleave
from vitkit.system.files import exclusive, staged
from vitkit.system.progress import progress

_COMPARED = ("classes", "preprocess", "temperature", "thresholds", "dtype", "vitkit_version", "trust", "features")
_BATCH = 8
_FEATURES = 16  # images whose features and probabilities are compared
_ACCURACY_ROUNDING = 1e-9  # rounding of the difference of two accuracies
_MAX_ROUNDING = 1e-5  # largest difference of probabilities that the file and numpy compute from the same logits
_ROUNDS = 5  # timings of each contender
_SECONDS = 5.0  # after which no round begins


@dataclass(frozen=True)
class Int8:
    """The images and settings with which a model is quantised."""

    images: Array  # preprocessed training images (n, C, height, width), which determine the ranges of activations
    # A function that fits the temperature, the thresholds and the record of held-out predictions of a quantised model
    refit: Callable[[Exported], None]
    tests: Pictures | None = None  # labelled images on which nothing was chosen; None if there are none
    max_drop: float = 0.01  # the largest accepted loss of accuracy on the images of the comparison, from 0 to 1


@dataclass(frozen=True)
class Outcome:
    """The result of an export.

    Attributes:
        comparison: comparison of the file, computed in `precision`, with the model in float32.
        precision: the precision in which the file was computed for the comparison.
        accuracy: the accuracy of the file and of the model on the images of the comparison; None without labels.
        in_bfloat16: comparison of the file computed in bfloat16. None if the file's runtime does not choose bfloat16 on
            this machine, or if `precision` is bfloat16.
        tested: the accuracies on the test images, on which nothing was chosen; None for other precisions than INT8.
        kept: the layers that stay in floating point in INT8, besides the first and the last one.
        images_per_s: the speed of the file and of the model's backends on this machine, in batches of 8, measured in
            turn. The key `file` is first.
        size: total size of all files in bytes.
        seconds: the time that writing took.
    """

    comparison: LogitComparison
    precision: str
    accuracy: AccuracyChange | None
    in_bfloat16: LogitComparison | None = None
    tested: AccuracyChange | None = None
    kept: tuple[str, ...] = ()
    images_per_s: Mapping[str, float] = field(default_factory=dict)
    size: int = 0
    seconds: float = 0.0


def export(
    classifier: Classifier,
    out: Path,
    pictures: Pictures,
    *,
    force: bool = True,
    batch: int | None = None,
    precision: str = "float32",
    int8: Int8 | None = None,
    with_preprocess: bool = False,
) -> Outcome:
    """Export a classifier to a file, after a check that the file predicts in the same way as the classifier.

    The suffix of `out` determines the format, one of the `FORMATS`. The file and the model are compared on `pictures`.
    `batch` is the fixed number of images per batch that the file accepts; None for any number, if the format can.
    `precision`, one of `PRECISIONS`, is that of the stored weights; `int8` is only for INT8. If `with_preprocess`,
    normalisation and calibration are part of the graph: it takes pixels, and also returns probabilities.

    Raises:
        Refused: the predictions differ, or the model has an operation that files may not contain; no file is left.
        VitkitError: the format does not support the model, its runtime is not installed, another process is writing the
            file, or the file exists and `force` is False.
        OSError: the disk is full or not writable.
    """
    form = format_of(out)
    card = Card.from_classifier(classifier, precision)
    form.check(precision)
    if not classifier.classes:
        reason = "the model has no head, so there is nothing to predict: train one, or load with num_classes"
        raise VitkitError("exporting.head-missing", reason)
    pixels = None
    if with_preprocess:
        if not form.can_take_pixels(precision):
            reason = f"a {form.suffix} file with weights in {precision} cannot take pixels"
            raise VitkitError("exporting.pixels-unsupported", reason)
        pixels = Pixels(
            mean=card.preprocess.mean,
            std=card.preprocess.std,
            temperature=card.temperature,
            is_multi_label=card.thresholds is not None,
        )
    calibration = None if int8 is None else int8.images
    storage = Storage(precision, form.batch or batch, calibration, pixels=pixels)

    with _staged(out, form, force=force) as temporary:
        trial = _Trial(classifier, form, temporary, card, pictures)
        if int8 is None:
            exported = trial.write(storage)
            outcome = trial.verify(exported, storage)
        else:
            exported, outcome = _quantise(trial, storage, int8)
        if form.has_guide:
            guide = instructions(trial.card, takes_pixels=with_preprocess, file=temporary)
            form.guide(temporary).write_text(f"{guide}\n", encoding="utf-8")
        size = sum(file.stat().st_size for file in form.written_files(temporary))

        contenders = {"file": exported, "eager float32": classifier.use("eager", "float32", device="cpu")}
        if int8 is not None:
            fastest = classifier.use(device="cpu")
            contenders.setdefault(f"{fastest.backend} {fastest.precision}", fastest)
        images = torch.stack(trial.images[:_BATCH])
        works = {name: partial(contender.logits, images) for name, contender in contenders.items()}
        times = interleave(works, _ROUNDS, min_seconds=0, max_seconds=_SECONDS)  # in turn
        images_per_s = {name: timing.rate(len(images)).median for name, timing in times.items()}
    return replace(outcome, size=size, images_per_s=images_per_s)


class _Trial:
    """A file that is being written, and what it is compared with."""

    def __init__(self, classifier: Classifier, form: Format, path: Path, card: Card, pictures: Pictures) -> None:
        self.classifier = classifier
        self.form = form
        self.path = path
        self.pictures = pictures
        self.model_card = card
        self.card = card  # the card of the file; with INT8, some of its values are fitted again
        self.model = with_features(classifier.model) if card.features else classifier.model
        self.seconds = 0.0  # that writing has taken so far
        self.images, indices = read_pictures(classifier, pictures)  # each (C, height, width)
        self.has_class = _has_class(pictures, indices, card.classes)  # (B, K); None if this is unknown

    @cached_property
    def model_logits(self) -> Tensor:
        """The logits (B, K) of the model in float32."""
        return _compute_logits(self.classifier, self.images, "computing with the model")

    def write(self, storage: Storage) -> Exported:
        """Write the file, and open it again."""
        start = time.perf_counter()
        self.graph = self.form.convert(self.model, storage)
        self.form.save(self.graph, self.path, self.card.to_json())
        self.seconds += time.perf_counter() - start
        return self.open()

    def open(self) -> Exported:
        """Open the file, and check its card.

        The computation is in float32. For INT8, it is in the precision that `vitkit predict` would choose here. For
        formats whose `is_input` is False, it is in the dtype of the weights.
        """
        precision = "auto" if self.card.dtype == INT8 else "float32"
        if not self.form.is_input:
            precision = self.card.dtype
        try:
            exported = Exported(self.path, *self.form.open(self.path, precision))
        except VitkitError as error:
            cause = error.__cause__  # a `VitkitError` if the file contains something that files may not contain
            if not isinstance(cause, VitkitError):
                raise Refused(error.code, f"the written file cannot be read back: {error}") from error
            reason = f"the model cannot be exported to {self.path.suffix}: {cause}; try another format"
            raise Refused(cause.code, reason) from error
        for name in _COMPARED:
            if getattr(self.card, name) != getattr(exported.card, name):
                raise Refused("exporting.card-differs", f"the {name} in the file differs from the model's")
        return exported

    def verify(self, exported: Exported, storage: Storage) -> Outcome:
        """Compare the file with the model in float32, and in bfloat16 if its runtime would choose that."""
        images, _ = read_pictures(exported, self.pictures)
        file_logits = _compute_logits(exported, images, "computing with the file")
        try:
            comparison = compare(self.model_logits, file_logits, self.card)
            comparison.check(self.pictures.description)
        except Refused as error:
            float32 = "" if self.card.dtype == "float32" else "--precision float32, or "
            reason = f"the file does not predict as the model does: {error}; use {float32}another format"
            raise Refused(error.code, reason) from error
        sample = torch.stack(images[:_FEATURES]).numpy()
        if storage.pixels is not None:  # the file computes probabilities itself
            difference = np.abs(exported.answer(sample) - exported.runner.probabilities(sample)).max()
            if not difference <= _MAX_ROUNDING:
                reason = f"the file computes other probabilities than its logits have: up to {difference:.2g}"
                raise Refused("exporting.probabilities-differ", reason)
        if self.card.features:  # unknown images are recognised by their features
            expected = torch.tensor(self.classifier.seeing()(sample).features)
            computed = torch.tensor(exported.seeing()(sample).features)
            cosine = F.cosine_similarity(expected.double(), computed.double(), dim=1).min().item()
            if not cosine >= COSINE:
                reason = f"the file computes other features than the model: cosine {cosine:.6f} is below {COSINE}"
                raise Refused("exporting.features-differ", reason)
        in_bfloat16 = self.compare_in_bfloat16(exported, images) if self.form.is_input else None
        return self.outcome(exported, file_logits, comparison, in_bfloat16=in_bfloat16)

    def compare_in_bfloat16(self, exported: Exported, images: list[Tensor]) -> LogitComparison | None:
        """Compare the model with the file in bfloat16, if `vitkit predict` would choose that; None otherwise."""
        by_default = load_exported(self.path)
        if by_default.precision != "bfloat16" or exported.runner.precision == "bfloat16":
            return None
        rounded = _compute_logits(by_default, images, "computing with the file in bfloat16")
        comparison = compare(self.model_logits, rounded, self.card, "bfloat16")
        try:
            comparison.check(self.pictures.description)
        except Refused as error:
            raise Refused(
                error.code,
                "in bfloat16, which `vitkit predict` would use here, the file does not predict as the model does: "
                f"{error}",
            ) from error
        return comparison

    def outcome(self, exported: Exported, file_logits: Tensor, comparison: LogitComparison, **fields: Any) -> Outcome:
        change = self.accuracy_change(file_logits)
        return Outcome(comparison, exported.runner.precision, change, seconds=self.seconds, **fields)

    def accuracy_change(self, file_logits: Tensor) -> AccuracyChange | None:
        return accuracy_change(self.model_logits, file_logits, self.has_class, self.model_card, self.card)


def _quantise(trial: _Trial, storage: Storage, int8: Int8) -> tuple[Exported, Outcome]:
    """Write the file in INT8, with enough layers in floating point for an accuracy that is close to the model's."""
    if trial.has_class is None:
        reason = "INT8 is judged by its accuracy on validation images, and these have other classes"
        raise VitkitError("exporting.classes-unknown", reason)
    max_loss = int8.max_drop + _ACCURACY_ROUNDING
    changes = []  # of the attempts that lost too much accuracy
    for attempt in _attempts(trial, storage):
        trial.card = trial.model_card  # without the values that were fitted to the previous attempt
        exported = trial.write(attempt)
        file_logits = _compute_logits(exported, trial.images, "computing with the file")
        change = trial.accuracy_change(file_logits)
        if change is not None and change.loss <= max_loss:
            int8.refit(exported)
            trial.card = replace(
                trial.card, temperature=exported.temperature, thresholds=exported.thresholds, trust=exported.trust
            )
            change = trial.accuracy_change(file_logits)  # other thresholds choose other classes
        assert change is not None  # the classes are known
        if change.loss <= max_loss:
            break
        changes.append(change)
    else:
        best = max(changes, key=lambda change: change.after)
        raise Refused(
            "exporting.accuracy-lost",
            f"in INT8, the accuracy falls from {best.before:.1%} to {best.after:.1%} on "
            f"{trial.pictures.description}, even if the {len(attempt.keep)} most sensitive layers stay in floating "
            "point: use --precision float16, or allow more with --max-drop",
        )
    trial.form.save(trial.graph, trial.path, trial.card.to_json())  # with the fitted values
    exported = trial.open()
    tested = None
    if int8.tests is not None:
        images, indices = read_pictures(trial.classifier, int8.tests)
        before = _compute_logits(trial.classifier, images, "testing")
        after = _compute_logits(exported, images, "testing")
        has_class = _has_class(int8.tests, indices, trial.card.classes)
        tested = accuracy_change(before, after, has_class, trial.model_card, trial.card)
    kept = tuple(name.removeprefix("model.") for name in attempt.keep[2:])  # without the first and the last layer
    comparison = compare(trial.model_logits, file_logits, trial.card)
    return exported, trial.outcome(exported, file_logits, comparison, tested=tested, kept=kept)


def _attempts(trial: _Trial, storage: Storage) -> Iterator[Storage]:
    """Yield ways to quantise the model, with more and more layers in floating point."""
    module = exportable_copy(trial.model)
    storage = replace(storage, keep=first_and_last(module))
    yield storage
    if trial.form.int8 == "static":
        yield replace(storage, smooth=True)
    assert storage.images is not None
    ranked = rank_by_sensitivity(module, storage.images)
    count = 2
    while count < len(ranked):
        yield replace(storage, keep=(*storage.keep, *ranked[:count]))
        count *= 2


def check_free(files: Sequence[Path], *, force: bool) -> None:
    """Check that the files of an export can be created.

    Raises:
        VitkitError: a path is a folder; a file exists and `force` is False; or a file exists but the last one, which is
            the model, does not, so the file belongs to something else.
    """
    for path in files:
        if path.is_dir():
            raise VitkitError("exporting.file-invalid", f"--out {path} is a folder; name a file")
        if path.exists() and not force:
            raise VitkitError("exporting.file-exists", f"{path} exists: choose a new name, or --force to write over it")
        if path.exists() and not files[-1].exists():
            reason = f"{path} exists and does not belong to an exported {files[-1].name}: choose a new name"
            raise VitkitError("exporting.file-exists", reason)


@contextmanager
def _staged(out: Path, form: Format, *, force: bool) -> Iterator[Path]:
    """Yield a path in a temporary folder. If the `with` block succeeds, the files written there are moved to `out`."""
    with exclusive(out):
        check_free(form.written_files(out), force=force)
        with staged(out) as temporary:
            yield temporary
            for path in form.written_files(temporary):
                with path.open("rb+") as file:
                    os.fsync(file.fileno())
            # After an interruption, an .xml file with the .bin file of another export is refused as damaged.
            for path, final in zip(form.written_files(temporary), form.written_files(out), strict=True):
                path.replace(final)


# --- Computing with the model and the file ----------------------------------------------------------------------


def read_pictures(classifier: Classifier, pictures: Pictures) -> tuple[list[Tensor], list[int]]:
    """Read and preprocess the pictures as the classifier does, each to (C, height, width). Skip unreadable ones.

    Returns:
        The pictures, and their indices in `pictures`.

    Raises:
        VitkitError: none of the pictures can be read.
    """
    read: dict[int, Tensor] = {}
    for i, picture in enumerate(pictures.images):
        with suppress(UnreadableImageError):
            if isinstance(picture, Image.Image):
                read[i] = torch.from_numpy(classifier.preprocess(picture))
            else:
                read[i] = classifier.read(picture)
    if not read:
        reason = f"none of the {pictures.description} can be read: name other images with --data"
        raise VitkitError("exporting.images-unreadable", reason)
    return list(read.values()), list(read)


def _has_class(pictures: Pictures, indices: Sequence[int], classes: Sequence[str]) -> Tensor | None:
    """Return whether the pictures with these indices have each class, (B, K).

    The result is None if the classes of the pictures are unknown, or if the model lacks one of them.
    """
    if pictures.names is None:
        return None
    names = [pictures.names[i] for i in indices]
    if not set().union(*names) <= set(classes):
        return None
    return torch.tensor([[name in picture_names for name in classes] for picture_names in names])


def _compute_logits(classifier: Classifier, images: list[Tensor], step: str) -> Tensor:
    """Compute the logits of all images, (B, K), and report the progress under the name `step`.

    The first image is computed alone and the others in batches, so that single images and larger batches are tested.
    """
    logits = []
    starts = [0, *range(1, len(images), _BATCH)]
    for start, stop in pairwise([*starts, len(images)]):
        logits.append(classifier.logits(torch.stack(images[start:stop])))
        progress(step, stop, len(images))
    return torch.cat(logits)
