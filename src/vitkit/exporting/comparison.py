"""Compare the predictions of a file with those of its model: the logits, the most probable classes, the accuracy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.exporting.card import Card

COSINE = 0.999  # minimum cosine similarity of outputs
_AGREEMENT = 0.995  # minimum fraction of equal decisions
# Maximum difference in float32, relative to the largest logit: six times the largest measured (docs/log.md). An epsilon
# of 1e-5 instead of 1e-6 in DeiT-Ti exceeds it.
_DRIFT = 3e-5
_TIE = 1e-4  # relative to the range of an image's logits: float32 cannot order classes that are closer
# Maximum rounding error of the logits: the root mean square of the differences, relative to that of the logits after
# subtracting each image's mean. It is three to five times the largest error measured for eight families with random
# weights and for DeiT-Ti on photographs (docs/log.md): 0.020 in bfloat16 (weights and layers), 0.0013 in float16.
NOISE = {"float32": 1e-4, "float16": 6e-3, "bfloat16": 6e-2, "int8": 0.2}  # INT8 is judged by its accuracy instead
_SCALE = 1 / 3  # times the noise: limit for a common factor of all logits (measured in bfloat16: 0.995 to 1.005)
_PEAK = 8  # times the noise: limit for a single logit (measured: 7 times)
_UNSURE = 4  # times the noise: with rounded weights, the order of classes that are closer may change


class Refused(VitkitError):  # noqa: N818  # a verdict rather than an error
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

    def check(self, images: str) -> None:
        """Check that the file can be accepted.

        Raises:
            Refused: it differs from the model; the message names the images.
        """
        faults = self.faults()
        if faults:
            raise Refused("exporting.logits-differ", f"{'; '.join(faults)} ({images})")

    def faults(self) -> list[str]:
        """Return the reasons for refusing the file; empty if it is accepted. NaN in any compared value is a reason."""
        faults = []
        max_noise = NOISE[self.dtype]
        if not self.cosine >= COSINE:
            faults.append(f"cosine {self.cosine:.6f} is below {COSINE}")
        if not self.agreement >= _AGREEMENT:
            faults.append(f"top-1 agreement {self.agreement:.2%} is below {_AGREEMENT:.1%}")
        if not abs(self.scale - 1) <= _SCALE * max_noise:
            faults.append(f"logits are {self.scale:.4g} times the model's")
        if self.dtype == "float32" and not self.drift <= _DRIFT:
            faults.append(f"logits differ by up to {self.difference:.2g}, {self.drift:.2%} of the largest")
        elif not (self.noise <= max_noise and self.peak <= _PEAK * max_noise):
            faults.append(
                f"logits differ by {self.noise:.2%} of their size (up to {self.peak:.2%}), more than rounding to "
                f"{self.dtype} explains ({max_noise:.1%} and {_PEAK * max_noise:.1%})"
            )
        if not self.shift <= self.shift_by_noise + _TIE:
            faults.append(
                f"probabilities differ by {self.shift:.2g} on average, where rounding to {self.dtype} would move them "
                f"by {self.shift_by_noise:.2g} at most"
            )
        return faults


def compare(model_logits: Tensor, file_logits: Tensor, card: Card, dtype: str | None = None) -> LogitComparison:
    """Compare the logits (B, K) that the model computes in float32 with those of the file with this card.

    Rounding errors of `dtype` are allowed; None is the dtype of the file's weights.

    Raises:
        Refused: the shapes differ, or the file's logits are not finite.
    """
    if model_logits.shape != file_logits.shape:
        reason = f"the file returns logits of shape {tuple(file_logits.shape)} instead of {tuple(model_logits.shape)}"
        raise Refused("exporting.logits-differ", reason)
    if model_logits.isfinite().all() and not file_logits.isfinite().all():
        raise Refused("exporting.logits-differ", "the file returns logits that are not finite")
    dtype = dtype or card.dtype
    model_logits, file_logits = model_logits.double(), file_logits.double()
    tiny = torch.finfo(torch.float32).tiny
    difference = file_logits - model_logits  # (B, K)
    largest = difference.abs().max()
    cosines = F.cosine_similarity(model_logits, file_logits, dim=1)  # (B,)
    cosines = cosines.where(difference.any(dim=1), 1.0)  # equal logits may all be 0

    centred, file_centred = _centred(model_logits, card), _centred(file_logits, card)
    size = centred.square().mean().sqrt().clamp(min=tiny)
    scale = 1.0
    if centred.any():
        scale = ((centred * file_centred).sum() / centred.square().sum()).item()
    errors = NOISE[dtype] * size / card.temperature
    unsure = 0.0 if dtype == "float32" else _UNSURE * NOISE[dtype] * size.item()

    probabilities = _probabilities(model_logits, card)
    differences = (probabilities - _probabilities(file_logits, card)).abs()
    # The total variation distance for single-label models, and the mean absolute difference for multi-label models.
    shift = differences.sum(dim=1).mean() / 2 if card.thresholds is None else differences.mean()
    return LogitComparison(
        images=len(model_logits),
        dtype=dtype,
        difference=largest.item(),
        cosine=cosines.min().item(),
        agreement=_agreement(model_logits, file_logits, card, unsure),
        drift=(largest / model_logits.abs().max().clamp(min=tiny)).item(),
        scale=scale,
        noise=(difference.square().mean().sqrt() / size).item(),
        peak=(largest / size).item(),
        shift=shift.item(),
        shift_by_noise=(errors * _sensitivity(probabilities, card)).item(),
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


def _sensitivity(p: Tensor, card: Card) -> Tensor:
    """Return a first-order upper bound of `shift` if all logits have independent errors of standard deviation 1.

    For a softmax, dp_i = p_i (e_i - sum_j p_j e_j), whose standard deviation is p_i sqrt((1 - p_i)^2 + sum_{j != i}
    p_j^2). For a sigmoid, dp = p (1 - p) e. The mean of |e| is less than the standard deviation of e, so the result is
    an upper bound.
    """
    if card.thresholds is not None:
        return (p * (1 - p)).mean()
    squares = p.square()
    deviation = p * ((1 - p).square() + squares.sum(dim=1, keepdim=True) - squares).sqrt()  # (B, K)
    return deviation.sum(dim=1).mean() / 2


def _agreement(model_logits: Tensor, file_logits: Tensor, card: Card, unsure: float) -> float:
    """Return the fraction of equal decisions. Decisions that an error of `unsure` in a logit can change are ignored."""
    if card.thresholds is not None:
        thresholds = torch.tensor(card.thresholds, dtype=torch.float64)
        first, second = _probabilities(model_logits, card), _probabilities(file_logits, card)
        is_same = (first >= thresholds) == (second >= thresholds)
        distance = (model_logits - card.temperature * thresholds.logit()).abs()  # from the threshold, as a logit
        is_tie = ((first - thresholds).abs() < _TIE) | (distance < unsure)
    elif model_logits.shape[1] == 1:
        return 1.0
    else:
        best = model_logits.topk(2, dim=1).values
        spread = model_logits.amax(dim=1) - model_logits.amin(dim=1)
        is_same = model_logits.argmax(dim=1) == file_logits.argmax(dim=1)
        is_tie = best[:, 0] - best[:, 1] < (_TIE * spread).clamp(min=unsure)
    decided = is_same[~is_tie]
    return decided.double().mean().item() if len(decided) else 1.0


@dataclass(frozen=True)
class AccuracyChange:
    """The accuracy of a file and of its model on the same labelled images.

    For a multi-label model, the accuracy of an image is the number of classes that it has and that are chosen, divided
    by the number of classes that it has or that are chosen; 1 if there are none (Godbole and Sarawagi 2004, sec. 5).

    Attributes:
        images: the number of images.
        before, after: the accuracy of the model and of the file, 0 to 1.
        drop: 95 % interval of the accuracy that the file loses on images of the same kind; negative if it gains.
        agreement: the fraction of images for which the file and the model choose the same class.
        agreement_interval: 95 % interval of the agreement.
    """

    images: int
    before: float
    after: float
    drop: tuple[float, float]
    agreement: float
    agreement_interval: tuple[float, float]

    @property
    def loss(self) -> float:
        """The accuracy that the file loses on these images."""
        return self.before - self.after


def accuracy_change(
    model_logits: Tensor, file_logits: Tensor, has_class: Tensor | None, card: Card, file_card: Card
) -> AccuracyChange | None:
    """Compare the accuracy of a file with that of its model; None if the classes of the images are unknown.

    The logits have the shape (B, K), and `has_class` says whether each image has each class (B, K). The model and the
    file have cards of their own, because they may have other temperatures and thresholds.
    """
    from vitkit.evaluation import Units, mean_interval

    if has_class is None:
        return None
    units = Units.of(len(model_logits), None)
    before, after = _decisions(model_logits, card), _decisions(file_logits, file_card)
    is_same = (before == after).all(dim=1).double()
    accuracy, file_accuracy = _accuracies(before, has_class), _accuracies(after, has_class)  # (B,), 0 to 1
    # `mean_interval` takes values from 0 to a maximum, but a difference of accuracies is from -1 to 1.
    low, high = mean_interval((accuracy - file_accuracy + 1).numpy(), 2.0, units)
    return AccuracyChange(
        images=len(model_logits),
        before=accuracy.mean().item(),
        after=file_accuracy.mean().item(),
        drop=(low - 1, high - 1),
        agreement=is_same.mean().item(),
        agreement_interval=mean_interval(is_same.numpy(), 1.0, units),
    )


def _decisions(logits: Tensor, card: Card) -> Tensor:
    """Return whether each class is chosen for each image, (B, K)."""
    if card.thresholds is None:
        return F.one_hot(logits.argmax(dim=1), logits.shape[1]).bool()
    return (logits.double() / card.temperature).sigmoid() >= torch.tensor(card.thresholds, dtype=torch.float64)


def _accuracies(decisions: Tensor, has_class: Tensor) -> Tensor:
    """Return the accuracy of each image, (B,), as `AccuracyChange` defines it; 0 or 1 for single-label models."""
    either = (decisions | has_class).sum(dim=1)
    return ((decisions & has_class).sum(dim=1).double() / either).where(either > 0, 1.0)
