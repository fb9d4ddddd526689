"""Labels that are likely wrong: what a classifier that has not seen an image says against it.

A mistake is no evidence against a label: of images whose label has a probability of 0.2, each fifth should have it.
Nor are many mistakes: a probe on features that say nothing disagrees with nearly all labels. So it is asked whether the
labels disagree with the probabilities *more than the probabilities themselves let expect*, by a model with three
parameters: each label was drawn by the classifier's probabilities, at a temperature and a weight of the classes'
frequencies that are fitted with it, but a part of the labels was drawn anew by lot. Is that part told from none, the
model says of each label how probable it is that it is wrong, and so how many of a list are right by chance.

Images whose label is likely wrong, for people to look at: as rows of a CSV file and in the report.
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

from vitkit.data.table import ImageTable
from vitkit.data.task import MULTI_LABEL, SINGLE_LABEL
from vitkit.evaluation.calibration import blocks
from vitkit.evaluation.linear_models import regress, regression_loss
from vitkit.evaluation.metrics import Evaluation, held_out_split
from vitkit.system.files import write_text
from vitkit.text.cells import JOINT, by_chance, harmless, plural

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
FOLDS = 5
MOST_BY_CHANCE = 2 / 3  # of a list: more would be a list of hard images
LEVEL = 0.05  # of the test of whether any label is wrong
_PENALTIES = (0.3, 0.1, 0.03, 0.01)
_TINY = 1e-12
_BOUNDS = ((-4.0, 2.0), (-2.0, 2.0), (-12.0, -0.4))  # ln of the inverse temperature, weight of frequencies, logit
_NUMBERS = 2**18  # probabilities at a time
_FITTED = 2**20  # probabilities that the parameters are fitted to, at most


@dataclass(frozen=True)
class Suspect:
    """An image whose label is doubtful.

    Attributes:
        index: of the image.
        given: its classes: one, unless images may have several or none.
        suggested: those that the classifier speaks for.
        doubt: how much more probable what is suggested is than what is given, in (0, 1].
        chance: how probable it is that the label is right all the same.
    """

    index: int
    given: tuple[int, ...]
    suggested: tuple[int, ...]
    doubt: float
    chance: float


@dataclass(frozen=True)
class LabelNoise:
    """What a classifier's probabilities say of labels that it has not seen.

    All but the first are of n images, (n,), or of the decisions on each class where an image may have several, (n, K).

    Attributes:
        p: how probable labels as unlikely as these are if all are right.
        wrong: how probable it is that a label is wrong.
        suggested: the most probable other class; of a decision, the one that the classifier speaks for, 0 or 1.
        doubt: how much more probable that is than the label; below 0 where it is less.
    """

    p: float
    wrong: Floats
    suggested: Ints
    doubt: Floats

    @classmethod
    def of(
        cls, probabilities: npt.NDArray[np.floating], labels: Ints, teaches: npt.NDArray[np.bool_] | None = None
    ) -> LabelNoise:
        """Fit the three parameters by maximum likelihood, and once more without a label that is drawn by lot.

        Args:
            probabilities: of images that the classifier did not learn, (n, K).
            labels: their classes, (n,), or 1 where an image has a class, (n, K).
            teaches: (n,), whether an image's label may be fitted to; None: each may.
        """
        most = max(_FITTED // probabilities.shape[1], 1)
        taught = np.arange(len(labels)) if teaches is None else np.flatnonzero(teaches)
        kind, known = (_SingleLabel if labels.ndim == 1 else _MultiLabel), labels[taught]
        if len(taught) > most:  # as many tell as much of three numbers
            taught = np.sort(np.random.default_rng(0).permutation(taught)[:most])
        model = kind(probabilities[taught], labels[taught], known)
        without = model.fit([(0.0, 0.0), (-2.0, 0.0)], is_noisy=False)
        found = model.fit([(*without[0], -4.0), (*without[0], -1.5)], is_noisy=True)
        ratio = max(2 * (without[1] - found[1]), 0.0)
        # The part is at the edge of what it may be, so the ratio is 0 half of the time (Self and Liang 1987).
        p = float(chdtrc(1, ratio)) / 2 if ratio else 1.0
        return cls(p, *kind(probabilities, labels, known).verdicts(np.array(found[0])))


class _Model(ABC):
    """The negative log-likelihood of labels, and its gradient, for one task.

    Args:
        probabilities: (n, K).
        labels: (n,) classes, or (n, K) 1 where an image has a class.
        taught: labels that tell how frequent each class is.
    """

    def __init__(self, probabilities: npt.NDArray[np.floating], labels: Ints, taught: Ints) -> None:
        self.probabilities, self.labels = probabilities, labels
        self.frequency = self._frequency(taught)
        self.prior = self._logits(self.frequency)  # (K,)

    @abstractmethod
    def _frequency(self, labels: Ints) -> Floats:
        """How frequent each class is, (K,), never quite 0 or 1."""

    @abstractmethod
    def _logits(self, p: Floats) -> Floats:
        """Probabilities as logits."""

    @abstractmethod
    def _softened(self, logits: Floats) -> Floats:
        """Logits as probabilities, (n, K)."""

    @abstractmethod
    def _label(self, calibrated: Floats, rows: slice) -> tuple[Floats, Floats | float]:
        """The probability of each label, and the one that it has where labels are drawn at random."""

    @abstractmethod
    def _suggest(self, calibrated: Floats, label: Floats, rows: slice) -> tuple[Ints, Floats]:
        """The label that the classifier speaks for instead, and by how much it is more probable."""

    @abstractmethod
    def _slopes(self, slope: Floats, z: Floats, calibrated: Floats, label: Floats, rows: slice) -> tuple[float, float]:
        """The gradient by the scale of the logits and by the weight of the frequencies.

        Args:
            slope: the gradient by the logarithm of each label's probability.
            z: logits, (rows, K).
            calibrated: the probabilities of now, (rows, K).
            label: that of each label.
            rows: which images.
        """

    def fit(self, starts: list[tuple[float, ...]], *, is_noisy: bool) -> tuple[tuple[float, ...], float]:
        """The best parameters from several starts, and what they cost."""

        def cost(parameters: Floats) -> tuple[float, Floats]:
            value, gradient = self._cost(parameters)
            return value, gradient[: len(parameters)]

        bounds = _BOUNDS if is_noisy else _BOUNDS[:2]
        found = [minimize(cost, start, jac=True, method="L-BFGS-B", bounds=bounds) for start in starts]
        best = min(found, key=lambda own: float(own.fun))
        return tuple(map(float, best.x)), float(best.fun)

    def verdicts(self, parameters: Floats) -> tuple[Floats, Ints, Floats]:
        """How probable each label is to be wrong, what is suggested, and by how much that is more probable."""
        part = float(expit(parameters[2]))
        wrong, doubt = np.empty(self.labels.shape), np.empty(self.labels.shape)
        suggested = np.empty(self.labels.shape, dtype=np.int64)
        for rows in self._blocks():
            calibrated, _ = self._calibrated(rows, parameters)
            label, lot = self._label(calibrated, rows)
            wrong[rows] = part * lot * (1 - label) / np.maximum((1 - part) * label + part * lot, _TINY)
            suggested[rows], doubt[rows] = self._suggest(calibrated, label, rows)
        return wrong, suggested, doubt

    def _blocks(self) -> list[slice]:
        images, classes = self.probabilities.shape
        return list(blocks(images, classes, _NUMBERS))

    def _calibrated(self, rows: slice, parameters: Floats) -> tuple[Floats, Floats]:
        """Probabilities, and the logits that they had, (rows, K)."""
        z = self._logits(self.probabilities[rows].astype(np.float64))
        return self._softened(np.exp(parameters[0]) * z + parameters[1] * self.prior), z

    def _cost(self, parameters: Floats) -> tuple[float, Floats]:
        scale, part = float(np.exp(parameters[0])), float(expit(parameters[2])) if len(parameters) > 2 else 0.0
        # Weak priors around what the classifier says as it is: a few labels are no reason to rewrite it.
        value = float(parameters[0] ** 2 / 8 + parameters[1] ** 2 / 2)
        gradient = np.array([parameters[0] / 4, parameters[1], 0.0])
        for rows in self._blocks():
            calibrated, z = self._calibrated(rows, parameters)
            label, lot = self._label(calibrated, rows)
            mixed = np.maximum((1 - part) * label + part * lot, 1e-300)
            value -= float(np.log(mixed).sum())
            by_scale, by_prior = self._slopes(-(1 - part) * label / mixed, z, calibrated, label, rows)
            gradient[0] += scale * by_scale
            gradient[1] += by_prior
            gradient[2] -= float(((lot - label) / mixed).sum()) * part * (1 - part)
        return value, gradient


class _SingleLabel(_Model):
    """Labels (n,), one class each."""

    def _frequency(self, labels: Ints) -> Floats:
        classes = self.probabilities.shape[1]
        counts = np.bincount(labels, minlength=classes).astype(np.float64)
        frequency: Floats = (counts + 0.5) / (len(labels) + 0.5 * classes)
        return frequency

    def _logits(self, p: Floats) -> Floats:
        return np.log(np.maximum(p, _TINY))

    def _softened(self, logits: Floats) -> Floats:
        found: Floats = softmax(logits, axis=1)
        return found

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


class _MultiLabel(_Model):
    """Labels (n, K), a decision for each class."""

    def _frequency(self, labels: Ints) -> Floats:
        frequency: Floats = (labels.sum(axis=0).astype(np.float64) + 0.5) / (len(labels) + 1.0)
        return frequency

    def _logits(self, p: Floats) -> Floats:
        found: Floats = logit(np.clip(p, _TINY, 1 - _TINY))
        return found

    def _softened(self, logits: Floats) -> Floats:
        found: Floats = expit(logits)
        return found

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
    probabilities: npt.NDArray[np.floating], labels: Ints, teaches: npt.NDArray[np.bool_] | None = None
) -> list[Suspect]:
    """The images whose label is likely wrong, the most doubtful first; none where chance explains all.

    Args:
        probabilities: of images that the classifier did not learn, (n, K).
        labels: their classes, (n,), or 1 where an image has a class, (n, K).
        teaches: (n,), whether what is said of others may rest on an image's label; None: on each.

    Returns:
        As many as have, all in all, no more than two thirds of right labels among them.
    """
    noise = LabelNoise.of(probabilities, labels, teaches) if len(labels) else None
    if noise is None or noise.p >= LEVEL:
        return []
    is_doubtful = noise.doubt > 0
    each = np.where(is_doubtful, noise.wrong, 0.0)  # of a label that is the most probable, nothing is said
    wrong = each if labels.ndim == 1 else each.max(axis=1)
    may_teach = np.ones(len(labels), np.bool_) if teaches is None else teaches
    chosen = np.concatenate([_list_of(wrong, group) for group in (may_teach, ~may_teach)])
    chosen = chosen[np.argsort(-wrong[chosen], kind="stable")]
    least = float(wrong[chosen].min()) if len(chosen) else 1.0
    found = []
    for i in map(int, chosen):
        if labels.ndim == 1:
            chance, doubt = 1 - float(wrong[i]), float(noise.doubt[i])
            found.append(Suspect(i, (int(labels[i]),), (int(noise.suggested[i]),), doubt, chance))
            continue
        has, flipped = labels[i] == 1, each[i] >= least  # decisions that are as doubtful as the last of the list
        given, suggested = (tuple(map(int, np.flatnonzero(own))) for own in (has, has ^ flipped))
        found.append(Suspect(i, given, suggested, float(noise.doubt[i][flipped].max()), 1 - float(wrong[i])))
    return found


def _list_of(wrong: Floats, group: npt.NDArray[np.bool_]) -> Ints:
    """The most doubtful images of a group, as many as hold no more than two thirds of right labels."""
    own = np.flatnonzero(group)
    order = own[np.argsort(-wrong[own], kind="stable")]
    by_chance = np.cumsum(1 - wrong[order]) / np.arange(1, len(order) + 1)
    short = np.flatnonzero((by_chance <= MOST_BY_CHANCE) & (wrong[order] > 0))
    return order[: int(short[-1]) + 1] if len(short) else order[:0]


def probe_out_of_fold(
    features: Tensor, labels: Tensor, classes: int, seed: int = 0, teaches: npt.NDArray[np.bool_] | None = None
) -> Floats | None:
    """(n, K) probabilities, each image's from a linear probe that did not see it (cross-validated).

    Args:
        features: (n, D), of a backbone that was not trained on these labels.
        labels: (n,), or 1 where an image has a class, (n, K).
        classes: K.
        seed: of the folds.
        teaches: (n,), whether an image's label may be learned from; None: each may. Those of test images may not: what
            is suggested for other images would carry them into the training.

    Returns:
        None where there are too few images to say anything.
    """
    task = SINGLE_LABEL if labels.ndim == 1 else MULTI_LABEL
    may_teach = np.ones(len(labels), np.bool_) if teaches is None else teaches
    taught, others = np.flatnonzero(may_teach), np.flatnonzero(~may_teach)
    own = labels[taught]
    if len(taught) < 2 * FOLDS or int((own.sum(dim=0) if task.is_sigmoid else own.bincount()).max()) < FOLDS:
        return None
    x = (features - features.mean(dim=0)) / features.std(dim=0).clamp(min=1e-6)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class")  # it is judged all the same
        dealer = (KFold if task.is_sigmoid else StratifiedKFold)(FOLDS, shuffle=True, random_state=seed)
        folds = [
            (taught[seen], np.concatenate([taught[unseen], others[fold::FOLDS]]))
            for fold, (seen, unseen) in enumerate(dealer.split(taught, own))
        ]
    weights = [(torch.zeros(classes, x.shape[1]), torch.zeros(classes)) for _ in folds]
    y = labels.to(x.dtype) if task.is_sigmoid else labels
    best, least = None, np.inf
    for penalty in _PENALTIES:  # from simple to complex, each from the one before
        logits = torch.zeros(len(x), classes)
        for number, (seen, unseen) in enumerate(folds):
            weights[number] = regress(x[seen], y[seen], penalty, *weights[number])
            weight, bias = weights[number]
            logits[unseen] = x[unseen] @ weight.T + bias
        loss = regression_loss(logits[taught], y[taught]).item()
        if loss < least:
            best, least = logits, loss
        else:
            break
    if best is None:
        return None
    return (best.double().sigmoid() if task.is_sigmoid else best.double().softmax(dim=1)).numpy()


class Doubt(NamedTuple):
    """An image whose label is doubtful.

    Attributes:
        path: as the table has it.
        label: its class; several are joined by `;`.
        suggested: the class that it looks like, or the classes.
        score: how much more probable what is suggested is than what is given, in (0, 1].
        chance: how probable it is that the label is right all the same. Over a list they add up to the number of
            labels that are expected to be right.
    """

    path: str
    label: str
    suggested: str
    score: float
    chance: float


def from_features(table: ImageTable, features: Tensor, labels: Tensor, seed: int = 0) -> list[Doubt]:
    """By linear probes that did not see the image, the most doubtful first; none where chance explains all.

    The labels of test images teach no probe: what is suggested for others would carry them into the training.

    Args:
        table: n images.
        features: (n, D), of a backbone that was not trained on these labels.
        labels: (n,), or 1 where an image has a class, (n, K).
        seed: of the folds.
    """
    held_out = held_out_split(table)
    teaches = np.array([name is None or name != held_out for name in table.splits])
    probabilities = probe_out_of_fold(features, labels, len(table.classes), seed, teaches)
    if probabilities is None:
        return []
    return _named(find_suspects(probabilities, labels.numpy(), teaches), table.paths, table.classes)


def from_predictions(evaluations: Iterable[Evaluation]) -> list[Doubt]:
    """By what a model says of images that it was not trained on, the most doubtful first."""
    every = list(evaluations)
    if not every:
        return []
    probabilities, labels = every[0].probabilities, every[0].labels
    if len(every) > 1:
        probabilities = np.concatenate([own.probabilities for own in every])
        labels = np.concatenate([own.labels for own in every])
    paths = [path for own in every for path in own.paths]
    return _named(find_suspects(probabilities, labels), paths, every[0].classes)


def _named(suspects: Iterable[Suspect], paths: Sequence[str], classes: Sequence[str]) -> list[Doubt]:
    doubts = []
    for own in suspects:
        given, suggested = (JOINT.join(classes[i] for i in each) or JOINT for each in (own.given, own.suggested))
        doubts.append(Doubt(paths[own.index], given, suggested, own.doubt, own.chance))
    return doubts


def summary(doubts: Sequence[Doubt]) -> dict[str, float]:
    """How many labels are listed, and how many of them are expected to be right: as evaluation.json has it."""
    return {"listed": len(doubts), "expected_by_chance": sum(own.chance for own in doubts)}


def in_words(doubts: Sequence[Doubt]) -> str:
    """The same as a clause, without an end."""
    if not doubts:
        return "no more labels look wrong than chance explains"
    looks = plural(len(doubts), "label looks wrong", "labels look wrong")
    return f"{looks}; {by_chance(len(doubts), sum(own.chance for own in doubts))}"


def write_doubts(path: Path, doubts: Sequence[Doubt]) -> None:
    """A CSV file with the columns path, label, suggested, score, chance."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Doubt._fields)
    writer.writerows((*map(harmless, own[:3]), f"{own.score:.6f}", f"{own.chance:.6f}") for own in doubts)
    write_text(path, text.getvalue())
