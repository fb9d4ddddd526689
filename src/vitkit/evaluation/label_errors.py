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
from vitkit.data.table import ImageTable
from vitkit.evaluation.calibration import blocks
from vitkit.evaluation.linear_models import regress, regression_loss
from vitkit.evaluation.metrics import Evaluation
from vitkit.system.files import write_text
from vitkit.text.cells import JOINT, false_alarms_in_words, harmless, plural

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
FOLDS = 5
MAX_CORRECT_FRACTION = 2 / 3  # expected in a list of suspected labels, so that these are not only of hard images
LEVEL = 0.05  # significance level of the test for wrong labels
_PENALTIES = (0.3, 0.1, 0.03, 0.01)
_TINY = 1e-12
_BOUNDS = ((-4.0, 2.0), (-2.0, 2.0), (-12.0, -0.4))  # ln of the inverse temperature, weight of frequencies, logit
_MAX_FITTED = 2**20  # maximum number of probabilities that the parameters are fitted to


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
        used = np.arange(len(labels)) if is_usable is None else np.flatnonzero(is_usable)
        usable_labels = labels[used]
        max_images = max(_MAX_FITTED // probabilities.shape[1], 1)  # enough for three parameters
        if len(used) > max_images:
            used = np.sort(np.random.default_rng(0).permutation(used)[:max_images])
        model = _Model(probabilities[used], labels[used], usable_labels)
        # Each fit starts from two points, because the cost can have several minima.
        plain, plain_cost = model.fit([(0.0, 0.0), (-2.0, 0.0)], is_noisy=False)
        noisy, noisy_cost = model.fit([(*plain, -4.0), (*plain, -1.5)], is_noisy=True)
        ratio = max(2 * (plain_cost - noisy_cost), 0.0)  # of the likelihoods, as twice the difference of logarithms
        # The fraction is at the boundary of its range, so the ratio is 0 half of the time (Self and Liang 1987).
        p = float(chdtrc(1, ratio)) / 2 if ratio else 1.0
        wrong, suggested, doubt = _Model(probabilities, labels, usable_labels).assess(np.array(noisy))
        return cls(p, wrong, suggested, doubt)


class _Model:
    """The negative log-likelihood of labels and its gradient.

    Labels are classes (n,), or class indicators (n, K), which are one binary decision per class.
    """

    def __init__(self, probabilities: npt.NDArray[np.floating], labels: Ints, usable_labels: Ints) -> None:
        self.probabilities = probabilities
        self.labels = labels
        self.is_multi = labels.ndim == 2
        classes = probabilities.shape[1]
        # The frequency of each class, (K,), smoothed so that it is never 0 or 1. Labels of test images do not count.
        if self.is_multi:
            self.frequency = (usable_labels.sum(axis=0).astype(np.float64) + 0.5) / (len(usable_labels) + 1.0)
        else:
            counts = np.bincount(usable_labels, minlength=classes).astype(np.float64)
            self.frequency = (counts + 0.5) / (len(usable_labels) + 0.5 * classes)
        self.prior = self._logits(self.frequency)  # (K,)

    def _logits(self, p: Floats) -> Floats:
        if self.is_multi:
            return np.asarray(logit(np.clip(p, _TINY, 1 - _TINY)))
        return np.asarray(np.log(np.maximum(p, _TINY)))

    def _calibrated(self, rows: slice, parameters: Floats) -> tuple[Floats, Floats]:
        # The calibrated probabilities and the logits before calibration, both (rows, K).
        z = self._logits(self.probabilities[rows].astype(np.float64))
        logits = np.exp(parameters[0]) * z + parameters[1] * self.prior
        calibrated = expit(logits) if self.is_multi else softmax(logits, axis=1)
        return np.asarray(calibrated), z

    def _label(self, calibrated: Floats, rows: slice) -> tuple[Floats, Floats | float]:
        # Two probabilities of each label: according to the classifier, and if all labels were random.
        labels = self.labels[rows]
        if self.is_multi:
            has = labels == 1
            return np.where(has, calibrated, 1 - calibrated), np.where(has, self.frequency, 1 - self.frequency)
        return calibrated[np.arange(len(labels)), labels], 1 / calibrated.shape[1]

    def fit(self, starts: list[tuple[float, ...]], *, is_noisy: bool) -> tuple[tuple[float, ...], float]:
        """Minimise the cost from several starting points, and return the best parameters and their cost.

        The fraction of random labels is fitted only if `is_noisy`; otherwise it is 0.
        """

        def cost(parameters: Floats) -> tuple[float, Floats]:
            scale = float(np.exp(parameters[0]))
            fraction = float(expit(parameters[2])) if is_noisy else 0.0
            # Weak priors around the unchanged probabilities, so that a few labels do not change them much.
            value = float(parameters[0] ** 2 / 8 + parameters[1] ** 2 / 2)
            gradient = np.array([parameters[0] / 4, parameters[1], 0.0])
            for rows in blocks(*self.probabilities.shape):
                calibrated, z = self._calibrated(rows, parameters)
                label, at_random = self._label(calibrated, rows)
                mixed = np.maximum((1 - fraction) * label + fraction * at_random, 1e-300)
                value -= float(np.log(mixed).sum())
                # The chain rule: the derivatives by ln `label`, by the logits, and by the parameters.
                slope = -(1 - fraction) * label / mixed
                labels = self.labels[rows]
                if self.is_multi:
                    by_logit = slope * (1 - label) * np.where(labels == 1, 1.0, -1.0)
                    by_scale = (by_logit * z).sum()
                    by_prior = (by_logit * self.prior).sum()
                else:
                    z_of_label = z[np.arange(len(z)), labels]
                    by_scale = (slope * (z_of_label - (calibrated * z).sum(axis=1))).sum()
                    by_prior = (slope * (self.prior[labels] - calibrated @ self.prior)).sum()
                gradient[0] += scale * float(by_scale)
                gradient[1] += float(by_prior)
                gradient[2] -= float(((at_random - label) / mixed).sum()) * fraction * (1 - fraction)
            return value, gradient[: len(parameters)]

        bounds = _BOUNDS if is_noisy else _BOUNDS[:2]
        results = [minimize(cost, start, jac=True, method="L-BFGS-B", bounds=bounds) for start in starts]
        best = min(results, key=lambda result: float(result.fun))
        return tuple(map(float, best.x)), float(best.fun)

    def assess(self, parameters: Floats) -> tuple[Floats, Ints, Floats]:
        """Return `wrong`, `suggested` and `doubt` of `LabelNoise` for fitted parameters."""
        fraction = float(expit(parameters[2]))
        wrong = np.empty(self.labels.shape)
        doubt = np.empty(self.labels.shape)
        suggested = np.empty(self.labels.shape, dtype=np.int64)
        for rows in blocks(*self.probabilities.shape):
            calibrated, _ = self._calibrated(rows, parameters)
            label, at_random = self._label(calibrated, rows)
            # Bayes' theorem: the probability that the label is random and differs from the one that it replaced.
            mixed = np.maximum((1 - fraction) * label + fraction * at_random, _TINY)
            wrong[rows] = fraction * at_random * (1 - label) / mixed
            if self.is_multi:
                suggested[rows] = calibrated > 0.5
                doubt[rows] = 1 - 2 * label
            else:
                row = np.arange(len(calibrated))
                calibrated[row, self.labels[rows]] = -1.0  # so that the label is not suggested
                suggested[rows] = calibrated.argmax(axis=1)
                doubt[rows] = calibrated[row, suggested[rows]] - label
        return wrong, suggested, doubt


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
    if not len(labels):
        return []
    noise = LabelNoise.of(probabilities, labels, is_usable)
    if noise.p >= LEVEL:
        return []
    decision_wrong = np.where(noise.doubt > 0, noise.wrong, 0.0)  # the most probable label is never listed
    wrong = decision_wrong if labels.ndim == 1 else decision_wrong.max(axis=1)  # of each image
    if is_usable is None:
        listed = _longest_list(np.arange(len(labels)), wrong)
    else:  # two lists, so that neither kind of labels influences how many of the other are listed
        usable = _longest_list(np.flatnonzero(is_usable), wrong)
        others = _longest_list(np.flatnonzero(~is_usable), wrong)
        listed = np.concatenate([usable, others])
        listed = listed[np.argsort(-wrong[listed], kind="stable")]
    suspects = []
    for i in listed.tolist():
        if labels.ndim == 1:
            label: tuple[int, ...] = (int(labels[i]),)
            suggested: tuple[int, ...] = (int(noise.suggested[i]),)
            doubt = float(noise.doubt[i])
        else:
            # The suggestion changes the decisions that are at least as likely wrong as the last image of the list.
            is_changed = decision_wrong[i] >= wrong[listed[-1]]
            has_class = labels[i] == 1
            label = tuple(np.flatnonzero(has_class).tolist())
            suggested = tuple(np.flatnonzero(has_class ^ is_changed).tolist())
            doubt = float(noise.doubt[i][is_changed].max())
        suspects.append(Disagreement(i, label, suggested, doubt, chance=1 - float(wrong[i])))
    return suspects


def _longest_list(images: Ints, wrong: Floats) -> Ints:
    # The longest list of these images, the most doubtful first, that has the required fraction of wrong labels.
    order = images[np.argsort(-wrong[images], kind="stable")]
    correct_fraction = np.cumsum(1 - wrong[order]) / np.arange(1, len(order) + 1)  # of the list up to each image
    ends = np.flatnonzero((correct_fraction <= MAX_CORRECT_FRACTION) & (wrong[order] > 0))
    return order[: int(ends[-1]) + 1] if len(ends) else order[:0]


def probe_out_of_fold(
    features: Tensor, labels: Tensor, classes: int, seed: int = 0, is_usable: npt.NDArray[np.bool_] | None = None
) -> Floats | None:
    """Return out-of-fold predictions: each image is predicted by a linear probe that was not trained on it.

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
    is_multi = labels.ndim == 2
    usable = np.ones(len(labels), np.bool_) if is_usable is None else is_usable
    used, others = np.flatnonzero(usable), np.flatnonzero(~usable)
    used_labels = labels[used]
    class_counts = used_labels.sum(dim=0) if is_multi else used_labels.bincount()
    if len(used) < 2 * FOLDS or int(class_counts.max()) < FOLDS:
        return None

    splitter = (KFold if is_multi else StratifiedKFold)(FOLDS, shuffle=True, random_state=seed)
    folds = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class")  # its images are predicted nevertheless
        for fold, (train, test) in enumerate(splitter.split(used, used_labels)):
            # Images whose label may not be used are distributed over the folds, but are never trained on.
            folds.append((used[train], np.concatenate([used[test], others[fold::FOLDS]])))

    x = (features - features.mean(dim=0)) / features.std(dim=0).clamp(min=1e-6)
    y = labels.to(x.dtype) if is_multi else labels
    probes = [(torch.zeros(classes, x.shape[1]), torch.zeros(classes)) for _ in folds]  # weights and biases
    best_logits = None
    best_loss = np.inf
    for penalty in _PENALTIES:  # from strong to weak, each starting from the result of the previous one
        logits = torch.zeros(len(x), classes)
        for fold, (train, test) in enumerate(folds):
            weight, bias = regress(x[train], y[train], penalty, *probes[fold])
            probes[fold] = weight, bias
            logits[test] = x[test] @ weight.T + bias
        loss = regression_loss(logits[used], y[used]).item()
        if not loss < best_loss:  # also if it is NaN
            break
        best_loss = loss
        best_logits = logits.double()
    if best_logits is None:
        return None
    return (best_logits.sigmoid() if is_multi else best_logits.softmax(dim=1)).numpy()


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
    return _name_suspects(find_suspects(probabilities, labels.numpy(), is_usable), table.paths, table.classes)


def from_predictions(evaluations: Iterable[Evaluation]) -> list[LabelError]:
    """Find label errors by a model's predictions, the most doubtful first.

    The model must not have been trained on the evaluated images. All evaluations must have the same classes.
    """
    all_evaluations = list(evaluations)
    if not all_evaluations:
        return []
    probabilities = np.concatenate([evaluation.probabilities for evaluation in all_evaluations])
    labels = np.concatenate([evaluation.labels for evaluation in all_evaluations])
    paths = [path for evaluation in all_evaluations for path in evaluation.paths]
    return _name_suspects(find_suspects(probabilities, labels), paths, all_evaluations[0].classes)


def _name_suspects(suspects: Iterable[Disagreement], paths: Sequence[str], classes: Sequence[str]) -> list[LabelError]:
    # Replace indices and class numbers by paths and class names.
    errors = []
    for suspect in suspects:
        label = JOINT.join(classes[i] for i in suspect.labels) or JOINT  # an image may have no class
        suggested = JOINT.join(classes[i] for i in suspect.suggested) or JOINT
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
    return f"{looks}; {false_alarms_in_words(len(errors), sum(error.chance for error in errors))}"


def write_label_errors(path: Path, errors: Sequence[LabelError]) -> None:
    """Write a CSV file with the columns path, label, suggested, score and chance."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(LabelError._fields)
    for error in errors:
        texts = [harmless(error.path), harmless(error.label), harmless(error.suggested)]
        writer.writerow([*texts, f"{error.score:.6f}", f"{error.chance:.6f}"])
    write_text(path, text.getvalue())
