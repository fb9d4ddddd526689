"""Find labels that are likely wrong, by comparing them with a classifier that has not seen the images.

The test is whether the labels disagree with the predicted probabilities *more than the probabilities themselves
predict*. Disagreement alone is no evidence against a label: of the labels with a predicted probability of 0.2, one in
five should be correct, and a probe on useless features disagrees with nearly all labels.

The statistical model has two steps. First, each label is drawn from the classifier's probabilities, which are
calibrated by a temperature and a weight of the class frequencies. Second, a fraction of the labels is replaced by
random labels. If the fitted fraction differs significantly from zero, the model gives the probability that each label
is wrong, and so the expected number of correct labels in a list.

The suspected label errors are listed in the report and in a CSV file, for people to review.
"""

from __future__ import annotations

import csv
import io
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from scipy.special import chdtrc, expit, logit, softmax
from sklearn.model_selection import KFold, StratifiedKFold
from torch import Tensor

from vitkit.data.splits import held_out_split
from vitkit.data.table import MULTI_LABEL, SINGLE_LABEL, ImageTable
from vitkit.evaluation.calibration import blocks
from vitkit.evaluation.linear_models import regress, regression_loss
from vitkit.evaluation.metrics import Evaluation
from vitkit.system.files import write_text
from vitkit.text.cells import JOINT, by_chance, harmless, plural

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
FOLDS = 5
MOST_BY_CHANCE = 2 / 3  # maximum expected fraction of correct labels in a list, so that it has not only hard images
LEVEL = 0.05  # significance level of the test for wrong labels
_PENALTIES = (0.3, 0.1, 0.03, 0.01)
_TINY = 1e-12
_BOUNDS = ((-4.0, 2.0), (-2.0, 2.0), (-12.0, -0.4))  # ln of the inverse temperature, weight of frequencies, logit
_NUMBERS = 2**18  # number of probabilities that are processed at a time
_FITTED = 2**20  # maximum number of probabilities that the parameters are fitted to


@dataclass(frozen=True)
class Disagreement:
    """An image whose label is likely wrong."""

    index: int  # of the image
    labels: tuple[int, ...]  # class numbers; exactly one, unless images may have several classes or none
    suggested: tuple[int, ...]  # class numbers that the classifier suggests instead
    doubt: float  # probability of the suggestion minus that of the label, in (0, 1]
    chance: float  # probability that the label is correct nevertheless


@dataclass(frozen=True)
class LabelNoise:
    """The agreement of labels with the predictions of a classifier that has not seen them.

    The arrays are (n,) for n images. If images may have several classes, the arrays are (n, K), with one binary
    decision per class.
    """

    p: float  # p-value of the hypothesis that all labels are correct
    wrong: Floats  # probability that each label is wrong
    suggested: Ints  # most probable class other than the label; for a binary decision, the more probable of 0 and 1
    doubt: Floats  # probability of the most probable other class, or of the opposite decision, minus that of the label

    @classmethod
    def of(
        cls, probabilities: npt.NDArray[np.floating], labels: Ints, is_usable: npt.NDArray[np.bool_] | None = None
    ) -> LabelNoise:
        """Fit the statistical model by maximum likelihood, with and without a fraction of random labels.

        Args:
            probabilities: predictions for images that the classifier was not trained on, (n, K).
            labels: classes (n,), or class indicators (n, K).
            is_usable: whether the label of each image may be used to fit the parameters, (n,); None allows all.
        """
        most = max(_FITTED // probabilities.shape[1], 1)
        used = np.arange(len(labels)) if is_usable is None else np.flatnonzero(is_usable)
        kind, known = (_SingleLabelModel if labels.ndim == 1 else _MultiLabelModel), labels[used]
        if len(used) > most:  # enough for three parameters
            used = np.sort(np.random.default_rng(0).permutation(used)[:most])
        model = kind(probabilities[used], labels[used], known)
        without = model.fit([(0.0, 0.0), (-2.0, 0.0)], is_noisy=False)
        noisy = model.fit([(*without[0], -4.0), (*without[0], -1.5)], is_noisy=True)
        ratio = max(2 * (without[1] - noisy[1]), 0.0)
        # The fraction is at the boundary of its range, so the ratio is 0 half of the time (Self and Liang 1987).
        p = float(chdtrc(1, ratio)) / 2 if ratio else 1.0
        return cls(p, *kind(probabilities, labels, known).judge(np.array(noisy[0])))


class _Model(ABC):
    """The negative log-likelihood of labels and its gradient, for one task."""

    def __init__(self, probabilities: npt.NDArray[np.floating], labels: Ints, known: Ints) -> None:
        self.probabilities, self.labels = probabilities, labels  # (n, K); classes (n,), or class indicators (n, K)
        self.frequency = self._frequency(known)
        self.prior = self._logits(self.frequency)  # (K,)

    @abstractmethod
    def _frequency(self, labels: Ints) -> Floats:
        """Return the frequency of each class, (K,), smoothed so that it is never 0 or 1."""

    @abstractmethod
    def _logits(self, p: Floats) -> Floats:
        """Convert probabilities to logits."""

    @abstractmethod
    def _probabilities(self, logits: Floats) -> Floats:
        """Convert logits (n, K) to probabilities."""

    @abstractmethod
    def _label(self, calibrated: Floats, rows: slice) -> tuple[Floats, Floats | float]:
        """Return two probabilities of each label: according to the classifier, and if all labels were random."""

    @abstractmethod
    def _suggest(self, calibrated: Floats, label: Floats, rows: slice) -> tuple[Ints, Floats]:
        """Return `LabelNoise.suggested` and `LabelNoise.doubt` for the images of a slice."""

    @abstractmethod
    def _slopes(self, slope: Floats, z: Floats, calibrated: Floats, label: Floats, rows: slice) -> tuple[float, float]:
        """Return the derivatives of the cost with respect to the logits' scale and the class frequencies' weight.

        `slope` is the derivative with respect to the logarithm of each label's probability, `z` are the logits
        (rows, K), `calibrated` the calibrated probabilities (rows, K) and `label` those of the labels.
        """

    def fit(self, starts: list[tuple[float, ...]], *, is_noisy: bool) -> tuple[tuple[float, ...], float]:
        """Minimise the cost from several starting points, and return the best parameters and their cost.

        The fraction of random labels is fitted only if `is_noisy`; otherwise it is 0.
        """

        def cost(parameters: Floats) -> tuple[float, Floats]:
            scale, fraction = float(np.exp(parameters[0])), float(expit(parameters[2])) if is_noisy else 0.0
            # Weak priors around the unchanged probabilities, so that a few labels do not change them much.
            value = float(parameters[0] ** 2 / 8 + parameters[1] ** 2 / 2)
            gradient = np.array([parameters[0] / 4, parameters[1], 0.0])
            for rows in blocks(len(self.labels), self.probabilities.shape[1], _NUMBERS):
                calibrated, z = self._calibrated(rows, parameters)
                label, at_random = self._label(calibrated, rows)
                mixed = np.maximum((1 - fraction) * label + fraction * at_random, 1e-300)
                value -= float(np.log(mixed).sum())
                by_scale, by_prior = self._slopes(-(1 - fraction) * label / mixed, z, calibrated, label, rows)
                gradient[0] += scale * by_scale
                gradient[1] += by_prior
                gradient[2] -= float(((at_random - label) / mixed).sum()) * fraction * (1 - fraction)
            return value, gradient[: len(parameters)]

        bounds = _BOUNDS if is_noisy else _BOUNDS[:2]
        results = [minimize(cost, start, jac=True, method="L-BFGS-B", bounds=bounds) for start in starts]
        best = min(results, key=lambda result: float(result.fun))
        return tuple(map(float, best.x)), float(best.fun)

    def judge(self, parameters: Floats) -> tuple[Floats, Ints, Floats]:
        """Return `wrong`, `suggested` and `doubt` of `LabelNoise` for fitted parameters."""
        fraction = float(expit(parameters[2]))
        wrong, doubt = np.empty(self.labels.shape), np.empty(self.labels.shape)
        suggested = np.empty(self.labels.shape, dtype=np.int64)
        for rows in blocks(len(self.labels), self.probabilities.shape[1], _NUMBERS):
            calibrated, _ = self._calibrated(rows, parameters)
            label, at_random = self._label(calibrated, rows)
            wrong[rows] = (
                fraction * at_random * (1 - label) / np.maximum((1 - fraction) * label + fraction * at_random, _TINY)
            )
            suggested[rows], doubt[rows] = self._suggest(calibrated, label, rows)
        return wrong, suggested, doubt

    def _calibrated(self, rows: slice, parameters: Floats) -> tuple[Floats, Floats]:
        # The calibrated probabilities and the logits before calibration, both (rows, K).
        z = self._logits(self.probabilities[rows].astype(np.float64))
        return self._probabilities(np.exp(parameters[0]) * z + parameters[1] * self.prior), z


class _SingleLabelModel(_Model):
    """Model of labels (n,), one class per image."""

    def _frequency(self, labels: Ints) -> Floats:
        classes = self.probabilities.shape[1]
        counts = np.bincount(labels, minlength=classes).astype(np.float64)
        frequency: Floats = (counts + 0.5) / (len(labels) + 0.5 * classes)
        return frequency

    def _logits(self, p: Floats) -> Floats:
        return np.log(np.maximum(p, _TINY))

    def _probabilities(self, logits: Floats) -> Floats:
        return np.asarray(softmax(logits, axis=1))

    def _label(self, calibrated: Floats, rows: slice) -> tuple[Floats, Floats | float]:
        labels = self.labels[rows]
        return calibrated[np.arange(len(labels)), labels], 1 / calibrated.shape[1]

    def _suggest(self, calibrated: Floats, label: Floats, rows: slice) -> tuple[Ints, Floats]:
        at = np.arange(len(calibrated))
        calibrated[at, self.labels[rows]] = -1.0
        suggested = calibrated.argmax(axis=1)
        return suggested, calibrated[at, suggested] - label

    def _slopes(
        self,
        slope: Floats,
        z: Floats,
        calibrated: Floats,
        label: Floats,  # noqa: ARG002
        rows: slice,
    ) -> tuple[float, float]:
        at = np.arange(len(z)), self.labels[rows]
        by_scale = float((slope * (z[at] - (calibrated * z).sum(axis=1))).sum())
        return by_scale, float((slope * (self.prior[at[1]] - calibrated @ self.prior)).sum())


class _MultiLabelModel(_Model):
    """Model of labels (n, K), one decision per class."""

    def _frequency(self, labels: Ints) -> Floats:
        frequency: Floats = (labels.sum(axis=0).astype(np.float64) + 0.5) / (len(labels) + 1.0)
        return frequency

    def _logits(self, p: Floats) -> Floats:
        return np.asarray(logit(np.clip(p, _TINY, 1 - _TINY)))

    def _probabilities(self, logits: Floats) -> Floats:
        return np.asarray(expit(logits))

    def _label(self, calibrated: Floats, rows: slice) -> tuple[Floats, Floats | float]:
        has = self.labels[rows] == 1
        return np.where(has, calibrated, 1 - calibrated), np.where(has, self.frequency, 1 - self.frequency)

    def _suggest(self, calibrated: Floats, label: Floats, rows: slice) -> tuple[Ints, Floats]:  # noqa: ARG002
        return (calibrated > 0.5).astype(np.int64), 1 - 2 * label

    def _slopes(
        self,
        slope: Floats,
        z: Floats,
        calibrated: Floats,  # noqa: ARG002
        label: Floats,
        rows: slice,
    ) -> tuple[float, float]:
        towards = slope * (1 - label) * np.where(self.labels[rows] == 1, 1.0, -1.0)
        return float((towards * z).sum()), float((towards * self.prior).sum())


def find_suspects(
    probabilities: npt.NDArray[np.floating], labels: Ints, is_usable: npt.NDArray[np.bool_] | None = None
) -> list[Disagreement]:
    """Find images whose label is likely wrong, the most doubtful first.

    Args:
        probabilities: predictions for images that the classifier was not trained on, (n, K).
        labels: classes (n,), or class indicators (n, K).
        is_usable: whether the label of each image may influence the results of other images, (n,); None if all labels
            may.

    Returns:
        The longest list of which at most two thirds of the labels are expected to be correct. It is empty if chance
        explains all disagreement.
    """
    noise = LabelNoise.of(probabilities, labels, is_usable) if len(labels) else None
    if noise is None or noise.p >= LEVEL:
        return []
    is_doubtful = noise.doubt > 0
    each = np.where(is_doubtful, noise.wrong, 0.0)  # the most probable label is never listed
    wrong = each if labels.ndim == 1 else each.max(axis=1)
    usable = np.ones(len(labels), np.bool_) if is_usable is None else is_usable
    lists = []  # one for each group of images: the longest one of which few enough labels are correct by chance
    for images in (np.flatnonzero(usable), np.flatnonzero(~usable)):
        order = images[np.argsort(-wrong[images], kind="stable")]
        by_chance = np.cumsum(1 - wrong[order]) / np.arange(1, len(order) + 1)
        allowed = np.flatnonzero((by_chance <= MOST_BY_CHANCE) & (wrong[order] > 0))
        lists.append(order[: int(allowed[-1]) + 1] if len(allowed) else order[:0])
    chosen = np.concatenate(lists)
    chosen = chosen[np.argsort(-wrong[chosen], kind="stable")]
    least = float(wrong[chosen].min()) if len(chosen) else 1.0
    suspects = []
    for i in map(int, chosen):
        if labels.ndim == 1:
            chance, doubt = 1 - float(wrong[i]), float(noise.doubt[i])
            suspects.append(Disagreement(i, (int(labels[i]),), (int(noise.suggested[i]),), doubt, chance))
            continue
        has, flipped = labels[i] == 1, each[i] >= least  # decisions at least as doubtful as the last in the list
        labelled, suggested = (tuple(map(int, np.flatnonzero(decisions))) for decisions in (has, has ^ flipped))
        suspects.append(Disagreement(i, labelled, suggested, float(noise.doubt[i][flipped].max()), 1 - float(wrong[i])))
    return suspects


def probe_out_of_fold(
    features: Tensor, labels: Tensor, classes: int, seed: int = 0, is_usable: npt.NDArray[np.bool_] | None = None
) -> Floats | None:
    """Predict the class of each image by a linear probe that was not trained on the image (cross-validation).

    Args:
        features: (n, D), of a backbone that was not trained on these labels.
        labels: classes (n,), or class indicators (n, K).
        classes: number of classes K.
        seed: seed of the folds.
        is_usable: whether the label of each image may be used for training, (n,); None allows all. Labels of test
            images must not be used. Otherwise suggestions that a user accepts would carry information about the test
            labels into the training labels.

    Returns:
        Probabilities (n, K); None if there are too few images.
    """
    task = SINGLE_LABEL if labels.ndim == 1 else MULTI_LABEL
    usable = np.ones(len(labels), np.bool_) if is_usable is None else is_usable
    used, others = np.flatnonzero(usable), np.flatnonzero(~usable)
    known = labels[used]
    if len(used) < 2 * FOLDS or int((known.sum(dim=0) if task.is_sigmoid else known.bincount()).max()) < FOLDS:
        return None
    x = (features - features.mean(dim=0)) / features.std(dim=0).clamp(min=1e-6)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class")  # its images are predicted nevertheless
        splitter = (KFold if task.is_sigmoid else StratifiedKFold)(FOLDS, shuffle=True, random_state=seed)
        folds = [
            (used[seen], np.concatenate([used[unseen], others[fold::FOLDS]]))
            for fold, (seen, unseen) in enumerate(splitter.split(used, known))
        ]
    weights = [(torch.zeros(classes, x.shape[1]), torch.zeros(classes)) for _ in folds]
    y = labels.to(x.dtype) if task.is_sigmoid else labels
    best, least = None, np.inf
    for penalty in _PENALTIES:  # from strong to weak, each starting from the result of the previous one
        logits = torch.zeros(len(x), classes)
        for number, (seen, unseen) in enumerate(folds):
            weights[number] = regress(x[seen], y[seen], penalty, *weights[number])
            weight, bias = weights[number]
            logits[unseen] = x[unseen] @ weight.T + bias
        loss = regression_loss(logits[used], y[used]).item()
        if not loss < least:
            break
        best, least = logits, loss
    if best is None:
        return None
    return (best.double().sigmoid() if task.is_sigmoid else best.double().softmax(dim=1)).numpy()


class LabelError(NamedTuple):
    """A suspected label error, as a row of the list that people review. Several classes are joined by `;`."""

    path: str  # of the image, as in its table
    label: str
    suggested: str  # by the classifier
    score: float  # probability of the suggestion minus that of the label, in (0, 1]
    # Probability that the label is correct nevertheless; the sum over a list is the expected number of correct ones.
    chance: float


def from_features(table: ImageTable, features: Tensor, labels: Tensor, seed: int = 0) -> list[LabelError]:
    """Find label errors by linear probes on features, the most doubtful first.

    The list is empty if chance explains all disagreement. Probes are not trained on labels of test images. Otherwise
    suggestions that a user accepts would carry information about the test labels into the training labels.

    Args:
        table: n images.
        features: (n, D), of a backbone that was not trained on these labels.
        labels: classes (n,), or class indicators (n, K).
        seed: seed of the folds.
    """
    held_out = held_out_split(table)
    is_usable = np.array([name is None or name != held_out for name in table.splits])
    probabilities = probe_out_of_fold(features, labels, len(table.classes), seed, is_usable)
    if probabilities is None:
        return []
    return _named(find_suspects(probabilities, labels.numpy(), is_usable), table.paths, table.classes)


def from_predictions(evaluations: Iterable[Evaluation]) -> list[LabelError]:
    """Find label errors by a model's predictions, the most doubtful first.

    The model must not have been trained on the evaluated images. All evaluations must have the same classes.
    """
    all_evaluations = list(evaluations)
    if not all_evaluations:
        return []
    probabilities, labels = all_evaluations[0].probabilities, all_evaluations[0].labels
    if len(all_evaluations) > 1:  # a single one is not copied
        probabilities = np.concatenate([evaluation.probabilities for evaluation in all_evaluations])
        labels = np.concatenate([evaluation.labels for evaluation in all_evaluations])
    paths = [path for evaluation in all_evaluations for path in evaluation.paths]
    return _named(find_suspects(probabilities, labels), paths, all_evaluations[0].classes)


def _named(suspects: Iterable[Disagreement], paths: Sequence[str], classes: Sequence[str]) -> list[LabelError]:
    # Replace indices and class numbers by paths and class names.
    errors = []
    for suspect in suspects:
        label, suggested = (
            JOINT.join(classes[i] for i in numbers) or JOINT for numbers in (suspect.labels, suspect.suggested)
        )
        errors.append(LabelError(paths[suspect.index], label, suggested, suspect.doubt, suspect.chance))
    return errors


def summary(errors: Sequence[LabelError]) -> dict[str, float]:
    """Return the number of suspected label errors, and the expected number of correct labels among them."""
    return {"listed": len(errors), "expected_by_chance": sum(error.chance for error in errors)}


def describe_errors(errors: Sequence[LabelError]) -> str:
    """Describe the suspected label errors in a clause, without a full stop."""
    if not errors:
        # Labels that are wrong in the same way in many images are learned, and then the model agrees with them.
        return "no more labels look wrong than chance explains (many that are wrong in the same way would go unnoticed)"
    looks = plural(len(errors), "label looks wrong", "labels look wrong")
    return f"{looks}; {by_chance(len(errors), sum(error.chance for error in errors))}"


def write_label_errors(path: Path, errors: Sequence[LabelError]) -> None:
    """Write a CSV file with the columns path, label, suggested, score and chance."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(LabelError._fields)
    writer.writerows((*map(harmless, error[:3]), f"{error.score:.6f}", f"{error.chance:.6f}") for error in errors)
    write_text(path, text.getvalue())
