"""Write an exported file. The file gets its final name only after a check that it predicts as the model does."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitkit.classifier import Classifier
from vitkit.data.decode import UnreadableImageError
from vitkit.data.layout import LayoutName
from vitkit.data.sources import kind_of_file, read_source
from vitkit.data.split_file import images_of_run, look_over, read_contents
from vitkit.data.storage import Place, is_there
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.exporting.card import Card
from vitkit.exporting.formats import Format, format_of
from vitkit.exporting.loading import Exported, load_exported
from vitkit.model.build import with_features
from vitkit.system.files import exclusive, staged
from vitkit.system.progress import progress
from vitkit.system.run_files import SPLIT


@dataclass(frozen=True)
class Outcome:
    """The result of an export.

    Attributes:
        comparison: comparison of the file, computed in `precision`, with the model in float32.
        precision: the precision in which the file was computed for the comparison.
        in_bfloat16: comparison of the file computed in bfloat16. None if the file's runtime does not choose bfloat16 on
            this machine, or if `precision` is bfloat16.
        size: total size of all files in bytes.
        seconds: the time that writing took.
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
    """Export a classifier to a file, after a check that the file predicts in the same way as the classifier.

    Args:
        classifier: a classifier with a model.
        out: the path of the file. Its suffix determines the format, one of the `FORMATS`.
        pictures: the images on which the file and the model are compared.
        force: whether to overwrite existing files.
        batch: the fixed number of images per batch that the file accepts; None for any number.
        precision: the dtype in which weights are stored: one of `DTYPES`.

    Raises:
        Refused: the predictions differ, or the model has an operation that files may not contain; no file is left.
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
    precision = "float32" if form.is_input else card.dtype
    try:
        exported = Exported(path, *form.open(path, precision))
    except VitkitError as error:
        reason = error.__cause__
        if not isinstance(reason, VitkitError):
            raise Refused(f"the written file cannot be read back: {error}") from error
        raise Refused(f"the model cannot be exported to {path.suffix}: {reason}; try another format") from error
    _check_card(card, exported.card)
    plain = _answers(classifier, _read_pictures(classifier, pictures), "asking the model")
    images = _read_pictures(exported, pictures)
    comparison = compare(plain, _answers(exported, images, "asking the file"), card)
    faults = comparison.faults()
    if faults:
        raise Refused(f"the file does not predict as the model does: {'; '.join(faults)} ({pictures.what})")
    if card.features:
        _check_features(classifier, exported, images)
    in_bfloat16 = None
    quick = load_exported(path) if form.is_input else exported
    if quick.precision == "bfloat16" != precision:
        in_bfloat16 = compare(plain, _answers(quick, images, "asking the file in bfloat16"), card, "bfloat16")
        if faults := in_bfloat16.faults():
            raise Refused(
                f"in bfloat16, which `vitkit predict` would use here, the file does not predict as the model does: "
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
    """Yield a path in a temporary folder. If the `with` block succeeds, the files written there are moved to `out`."""
    with exclusive(out):
        check_free(form.files(out), force=force)
        with staged(out) as temporary:
            yield temporary
            for written, final in zip(form.files(temporary), form.files(out), strict=True):
                with written.open("rb+") as file:
                    os.fsync(file.fileno())
                written.replace(final)


# --- The images of the comparison -----------------------------------------------------------------------------

_MOST = 200  # maximum number of images; with `_AGREEMENT`, one of 200 may be classified differently
_SYNTHETIC = 64


@dataclass(frozen=True)
class Pictures:
    """Images, as files or in memory.

    Attributes:
        what: description of the images for users.
        those: the images.
        folders: the folders that are searched for photographs; no file may be written there.
    """

    what: str
    those: tuple[Place | Image.Image, ...]
    folders: tuple[Path, ...] = ()


def choose_pictures(
    model: str | Path | None, data: str | None, layout: LayoutName = "auto", root: Path | None = None
) -> Pictures:
    """Choose the images for the comparison.

    These are validation images of `data` if it is given, and otherwise those of the run. If neither is available,
    synthetic images are generated.

    Args:
        model: the path of the exported model; None if it is in memory.
        data: the source of images; None for the images of the run.
        layout: how to interpret the folders of `data`.
        root: the folder with the run's images if they were moved.

    Raises:
        VitkitError: the data does not exist, or the root contains none of the run's images.
    """
    if data is not None:
        return _of_table(read_source(data, layout), {})
    if layout != "auto":
        raise VitkitError(f"--layout {layout} applies to the folders of --data: name --data, or leave out the flag")
    if model is None and root is not None:
        raise VitkitError("--data-root applies to the images of a run: name a run folder as the model")
    if model is None:
        return _made_up("no photographs were named")
    split = Path(model) / SPLIT
    if root is not None:
        return _of_table(images_of_run(split, root), {})
    if not split.is_file():
        return _made_up("no photographs were named")
    try:
        return _of_table(images_of_run(split), read_contents(split))
    except VitkitError as error:  # the run has moved to another machine
        return _made_up(str(error))


def _of_table(table: ImageTable, contents: Mapping[str, str]) -> Pictures:
    """Choose validation images (otherwise test images, otherwise any) that have not changed.

    Args:
        table: the images.
        contents: hash of each image's content at training time, by path; images that differ are not used.

    Raises:
        VitkitError: no image is left.
    """
    name = next((split for split in ("val", "test") if split in table.splits), None)
    checked, changes = look_over(table, contents, None if name is None else (name,))
    rows = [i for i in range(len(table)) if (name is None or table.splits[i] == name) and is_there(checked.file(i))]
    if not rows:
        changes.refuse()
    step = max(1, len(rows) / _MOST)
    chosen = [rows[int(i * step)] for i in range(min(_MOST, len(rows)))]  # every class, because rows are sorted by it
    is_list = table.storage is None and kind_of_file(table.name) is not None  # whose folders nobody searches
    folders = () if is_list else table.folders or (table.root,)
    return Pictures(
        f"{len(chosen)} {name or 'labelled'} images of {table.name}", tuple(map(table.file, chosen)), folders
    )


def _made_up(reason: str) -> Pictures:
    return Pictures(f"{_SYNTHETIC} synthetic images ({reason})", tuple(map(_blobs, range(_SYNTHETIC))))


def _blobs(seed: int) -> Image.Image:
    """Generate a picture of smooth colour patches with some noise, of random size and aspect ratio."""
    rng = np.random.default_rng(seed)
    width, height = (int(side) for side in rng.integers(200, 500, 2))
    coarse = rng.integers(0, 256, (*rng.integers(2, 12, 2), 3), dtype=np.uint8)
    smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    grain = rng.integers(-20, 21, (height, width, 3), dtype=np.int16)
    return Image.fromarray(np.clip(np.asarray(smooth) + grain, 0, 255).astype(np.uint8))


# --- The comparison of a file with its model ------------------------------------------------------------------

_COSINE, _AGREEMENT = 0.999, 0.995  # minimum values
_DRIFT = 1e-3  # maximum difference in float32, relative to the largest logit
_TIE = 1e-4  # relative to the range of an image's logits: float32 cannot order classes that are closer
# Maximum rounding error of the logits: the root mean square of the differences, relative to that of the logits after
# subtracting each image's mean. It is three to five times the largest error measured for eight families with random
# weights and for DeiT-Ti on photographs (docs/log.md): 0.020 in bfloat16 (weights and layers), 0.0013 in float16.
NOISE = {"float32": 1e-3, "float16": 6e-3, "bfloat16": 6e-2}
_SCALE = 1 / 3  # times the noise: limit for a common factor of all logits (measured in bfloat16: 0.995 to 1.005)
_PEAK = 8  # times the noise: limit for a single logit (measured: 7 times)
_UNSURE = 4  # times the noise: with rounded weights, the order of classes that are closer may change
_BATCH = 8
_FEATURES = 16  # images whose features are compared


class Refused(VitkitError):  # noqa: N818  # a verdict
    """An exported file was refused: its predictions differ from those of the model, or it cannot be read back."""


@dataclass(frozen=True)
class LogitComparison:
    """The differences between the logits of the model and of the file on the same images.

    Attributes:
        images: the number of images.
        dtype: the dtype whose rounding errors are allowed.
        difference: the largest absolute difference between a logit of the model and the same logit of the file.
        cosine: the cosine similarity between the model's and the file's logits of an image, the lowest of all images.
        agreement: the fraction of images with the same most probable class; for a multi-label model, the fraction of
            equal decisions for or against a class. Near-ties that rounding to the dtype can decide are left out.
        drift: `difference` relative to the largest absolute logit.
        scale: the factor by which the file's logits differ from the model's, fitted by least squares.
        noise: the root mean square of the differences, divided by the root mean square of the model's centred logits
            (`_centred`).
        peak: `difference` divided by the root mean square of the model's centred logits.
        shift: the average difference of the probabilities. This is the total variation distance, averaged over images;
            for a multi-label model, it is the mean absolute difference over classes and images.
        shift_by_noise: the `shift` that errors of the size `NOISE` would cause, to first order.
    """

    images: int
    dtype: str
    difference: float
    cosine: float
    agreement: float
    drift: float
    scale: float
    noise: float
    peak: float
    shift: float
    shift_by_noise: float

    def faults(self) -> list[str]:
        """Return the reasons for refusing the file; empty if it is accepted. NaN in any compared value is a reason."""
        faults, most = [], NOISE[self.dtype]
        if not self.cosine >= _COSINE:
            faults.append(f"cosine {self.cosine:.6f} is below {_COSINE}")
        if not self.agreement >= _AGREEMENT:
            faults.append(f"top-1 agreement {self.agreement:.2%} is below {_AGREEMENT:.1%}")
        if not abs(self.scale - 1) <= _SCALE * most:
            faults.append(f"logits are {self.scale:.4g} times the model's")
        if self.dtype == "float32" and not self.drift <= _DRIFT:
            faults.append(f"logits differ by up to {self.difference:.2g}, {self.drift:.2%} of the largest")
        elif not (self.noise <= most and self.peak <= _PEAK * most):
            faults.append(
                f"logits differ by {self.noise:.2%} of their size (up to {self.peak:.2%}), more than rounding to "
                f"{self.dtype} explains ({most:.1%} and {_PEAK * most:.1%})"
            )
        if not self.shift <= self.shift_by_noise + _TIE:
            faults.append(
                f"probabilities differ by {self.shift:.2g} on average, where rounding to {self.dtype} would move them "
                f"by {self.shift_by_noise:.2g} at most"
            )
        return faults


def _read_pictures(classifier: Classifier, pictures: Pictures) -> list[Tensor]:
    """Read and preprocess the pictures as the classifier does, each to (C, height, width). Skip unreadable ones.

    Raises:
        VitkitError: none of the pictures can be read.
    """
    read = [image for picture in pictures.those if (image := _read(classifier, picture)) is not None]
    if not read:
        raise VitkitError(f"none of the {pictures.what} can be read: name other images with --data")
    return read


def _read(classifier: Classifier, picture: Place | Image.Image) -> Tensor | None:
    if isinstance(picture, Image.Image):
        return torch.from_numpy(classifier.preprocess(picture))
    try:
        return classifier.read(picture)
    except UnreadableImageError:
        return None


def _answers(classifier: Classifier, images: list[Tensor], what: str) -> Tensor:
    """Compute the logits of all images, (B, K).

    The first image is computed alone and the others in batches, so that single images and larger batches are tested.
    """
    batches = [images[:1], *(images[i : i + _BATCH] for i in range(1, len(images), _BATCH))]
    rows, done = [], 0
    for batch in batches:
        rows.append(classifier.logits(torch.stack(batch)))
        done += len(batch)
        progress(what, done, len(images))
    return torch.cat(rows)


def compare(ours: Tensor, theirs: Tensor, card: Card, dtype: str | None = None) -> LogitComparison:
    """Compare the logits (B, K) of the model with those of the file.

    Args:
        ours: the logits that the model computes in float32.
        theirs: the logits that the file computes.
        card: the card of the file.
        dtype: the dtype whose rounding errors are allowed; None for the dtype of the file's weights.

    Raises:
        Refused: the shapes differ, or the file's logits are not finite.
    """
    if ours.shape != theirs.shape:
        raise Refused(f"the file returns logits of shape {tuple(theirs.shape)} instead of {tuple(ours.shape)}")
    if ours.isfinite().all() and not theirs.isfinite().all():
        raise Refused("the file returns logits that are not finite")
    ours, theirs, dtype = ours.double(), theirs.double(), dtype or card.dtype
    tiny = torch.finfo(torch.float32).tiny
    difference = theirs - ours  # (B, K)
    mine, other = _centred(ours, card), _centred(theirs, card)
    size = mine.square().mean().sqrt().clamp(min=tiny)
    errors = NOISE[dtype] * size / card.temperature
    return LogitComparison(
        images=len(ours),
        dtype=dtype,
        difference=difference.abs().max().item(),
        cosine=F.cosine_similarity(ours, theirs, dim=1).where(difference.any(dim=1), 1.0).min().item(),
        agreement=_agreement(ours, theirs, card, 0.0 if dtype == "float32" else _UNSURE * NOISE[dtype] * size.item()),
        drift=(difference.abs().max() / ours.abs().max().clamp(min=tiny)).item(),
        scale=((mine * other).sum() / mine.square().sum()).item() if mine.any() else 1.0,
        noise=(difference.square().mean().sqrt() / size).item(),
        peak=(difference.abs().max() / size).item(),
        shift=_distance(_probabilities(ours, card), _probabilities(theirs, card), card),
        shift_by_noise=(errors * _sensitivity(_probabilities(ours, card), card)).item(),
    )


def _centred(logits: Tensor, card: Card) -> Tensor:
    """Subtract the mean of each image's logits (B, K), which does not affect a softmax.

    Logits of multi-label models are returned unchanged.
    """
    is_single = card.thresholds is None and logits.shape[1] > 1
    return logits - logits.mean(dim=1, keepdim=True) if is_single else logits


def _probabilities(logits: Tensor, card: Card) -> Tensor:
    logits = logits / card.temperature
    return logits.softmax(dim=1) if card.thresholds is None else logits.sigmoid()


def _distance(ours: Tensor, theirs: Tensor, card: Card) -> float:
    """Return the average distance between two arrays of probabilities (B, K).

    This is the total variation distance for single-label models, and the mean absolute difference for multi-label
    models.
    """
    differences = (ours - theirs).abs()
    return (differences.sum(dim=1).mean() / 2 if card.thresholds is None else differences.mean()).item()


def _sensitivity(p: Tensor, card: Card) -> Tensor:
    """Return a first-order upper bound of `_distance` if all logits have independent errors of standard deviation 1.

    For a softmax, dp_i = p_i (e_i - sum_j p_j e_j), whose standard deviation is p_i sqrt((1 - p_i)^2 + sum_{j != i}
    p_j^2). For a sigmoid, dp = p (1 - p) e. The mean of |e| is less than the standard deviation of e, so the result is
    an upper bound.
    """
    if card.thresholds is not None:
        return (p * (1 - p)).mean()
    squares = p.square()
    deviation = p * ((1 - p).square() + squares.sum(dim=1, keepdim=True) - squares).sqrt()  # (B, K)
    return deviation.sum(dim=1).mean() / 2


def _agreement(ours: Tensor, theirs: Tensor, card: Card, unsure: float) -> float:
    """Return the fraction of equal decisions. Decisions that an error of `unsure` in a logit can change are ignored."""
    if card.thresholds is not None:
        limits = torch.tensor(card.thresholds, dtype=torch.float64)
        first, second = (_probabilities(logits, card) for logits in (ours, theirs))
        distance = (ours - card.temperature * limits.logit()).abs()
        same = (first >= limits) == (second >= limits)
        is_tie = ((first - limits).abs() < _TIE) | (distance < unsure)
    elif ours.shape[1] == 1:
        return 1.0
    else:
        best = ours.topk(2, dim=1).values
        spread = ours.amax(dim=1) - ours.amin(dim=1)
        same = ours.argmax(dim=1) == theirs.argmax(dim=1)
        is_tie = best[:, 0] - best[:, 1] < (_TIE * spread).clamp(min=unsure)
    decided = same[~is_tie]
    return decided.double().mean().item() if len(decided) else 1.0


def _check_features(classifier: Classifier, exported: Classifier, images: list[Tensor]) -> None:
    """Check that a file computes the features from which unknown images are recognised.

    Raises:
        Refused: the cosine similarity between the file's and the model's features of an image is too low.
    """
    pixels = torch.stack(images[:_FEATURES]).numpy()
    ours, theirs = (torch.from_numpy(each.seeing()(pixels).features.copy()) for each in (classifier, exported))
    cosine = F.cosine_similarity(ours.double(), theirs.double(), dim=1).min().item()
    if not cosine >= _COSINE:
        raise Refused(f"the file computes other features than the model: cosine {cosine:.6f} is below {_COSINE}")


def _check_card(ours: Card, theirs: Card) -> None:
    """Check that the card of a file describes the model.

    Raises:
        Refused: a field differs.
    """
    for name in ("classes", "preprocess", "temperature", "thresholds", "dtype", "vitkit_version", "trust", "features"):
        if getattr(ours, name) != getattr(theirs, name):
            raise Refused(f"the {name} in the file differs from the model's")
