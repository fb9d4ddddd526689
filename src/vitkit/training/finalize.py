"""The last step of a run: confidences, and thresholds, that suit the validation images. It alone changes the model.

Classes of unequal size: how much their images count in training, and for which shares of them a model then speaks. A
model that was trained as if the classes were alike says how probable each would be if they were. Its log-odds of
class k are too high by the logarithm of what k's images counted for; taking that off gives the probabilities for the
data as they come (Saerens, Latinne & Decaestecker 2002, eq. 2.4; Menon et al. 2021, arXiv 2007.07314, sec. 4.1). It
is taken off the heads' biases, so whatever reads, converts or exports the model has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitkit.classifier import Classifier
from vitkit.data.table import ImageTable
from vitkit.data.task import SINGLE_LABEL, Task
from vitkit.errors import VitkitError
from vitkit.evaluation.calibration import Calibration, Floats, calibrate, log_odds, to_probabilities
from vitkit.evaluation.evaluator import evaluate
from vitkit.evaluation.figures import BALANCE, differ_much
from vitkit.evaluation.metrics import Evaluation
from vitkit.evaluation.multilabel import MultiEvaluation, best_thresholds
from vitkit.model.build import Model

Balance = Literal["loss", "sampler", "none"]


def settle_balance(
    balance: Literal["auto", "loss", "sampler", "none"], counts: Sequence[int]
) -> tuple[Balance, str | None]:
    """How the classes are balanced, and a line that says so where `auto` decides to.

    Args:
        balance: what was asked for.
        counts: training images of each class; those of classes without any do not count.
    """
    if balance != "auto":
        return balance, None
    if not differ_much(counts):
        return "none", None
    occurring = [count for count in counts if count]
    return "loss", (
        f"balance loss: classes have {min(occurring)} to {max(occurring)} training images, so rare ones weigh more"
        " (--balance none to leave it)"
    )


def class_weights(counts: Sequence[int], task: Task = SINGLE_LABEL) -> Tensor:
    """(K,) weights, inverse to the classes' images, whose mean over all training images is 1.

    Args:
        counts: training images of each class; a class without any has weight 0.
        task: of the images. Where an image may have several classes, no weight is below 1.
    """
    images = torch.tensor(counts, dtype=torch.float64)
    inverse = torch.where(images > 0, images.sum() / images.clamp(min=1), 0.0)
    weights = (inverse / (images > 0).sum()).float()
    return weights.clamp(min=task.least_weight)


@dataclass(frozen=True)
class Standing:
    """For which shares of the classes a model speaks, and what its heads' biases were given so that it does.

    Attributes:
        balance: how its training balanced the classes.
        prior: whose probabilities it gives: those of data like the training images, or of classes all alike.
        counts: training images of each class.
        shift: (K,) what is to be added to calibrated logits.
        heads: the heads that learned from labels, which get it; a head that learns from a teacher alone has learned
            what that says of an image, however much the image counted.
        strength: the part of `shift` that validation images want; 1 is what theory says of a model that has learned
            all there is to learn. One that has learned its training images by heart heeds weights less (Byrd & Lipton
            2019, arXiv 1812.03372).
        in_head: (K,) what has been added to each of `heads`, at the temperature of now.
    """

    balance: Balance
    prior: Literal["data", "uniform"]
    counts: tuple[int, ...]
    shift: tuple[float, ...]
    heads: tuple[str, ...]
    strength: float = 1.0
    in_head: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """In plain JSON types."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Standing:
        typed: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
        return cls(**typed)

    def settled(self, temperature: float, strength: float) -> Standing:
        """The same, where `in_head` gives `strength` of the shift to logits that are then divided by `temperature`."""
        return replace(self, strength=strength, in_head=tuple(temperature * strength * own for own in self.shift))


def stand(
    counts: Sequence[int],
    balance: Balance,
    prior: Literal["data", "uniform"],
    model: Model,
    *,
    task: Task = SINGLE_LABEL,
    has_teacher: bool = False,
) -> Standing:
    """What the model's logits need after a training that balances classes so, to be for this prior.

    Args:
        counts: training images of each class.
        balance: of the training.
        prior: what the probabilities are to be for.
        model: whose heads get it.
        task: of the images.
        has_teacher: a second head learns from a teacher.
    """
    learned = log_weights(counts, balance, task)
    wanted = log_weights(counts, "loss") if prior == "uniform" else torch.zeros_like(learned)
    heads = tuple(name for name in ("head", "head_dist") if getattr(model, name) is not None)
    shift = tuple((wanted - learned).tolist())
    own = heads[:1] if has_teacher else heads
    return Standing(balance, prior, tuple(counts), shift, own).settled(1.0, 1.0)


def log_weights(counts: Sequence[int], balance: Balance, task: Task = SINGLE_LABEL) -> Tensor:
    """(K,) logarithms of how much more an image of each class counts in training, by weight or by being shown.

    A class without an image is treated as if it had one.
    """
    if balance == "none":
        return torch.zeros(len(counts))
    return class_weights([max(own, 1) for own in counts], task).log()


def shift_answers(model: Model, standing: Standing) -> Tensor:
    """(K,) what `standing` adds to the model's logits, which are the mean of its heads'."""
    heads = sum(getattr(model, name) is not None for name in ("head", "head_dist"))
    return torch.tensor(standing.in_head) * (len(standing.heads) / max(heads, 1))


@torch.no_grad()
def give_heads(model: Model, standing: Standing, amount: Sequence[float]) -> None:
    """Add (K,) numbers to the biases of the heads."""
    for name in standing.heads:
        bias = model.get_parameter(f"{name}.bias")
        bias.add_(torch.tensor(amount).to(bias))


@contextmanager
def standing_so(model: Model, standing: Standing) -> Iterator[None]:
    """The model as it is to be saved; afterwards the one in training again, to the bit."""
    kept = {name: model.get_parameter(f"{name}.bias").detach().clone() for name in standing.heads}
    give_heads(model, standing, standing.in_head)
    try:
        yield
    finally:
        with torch.no_grad():
            for name, bias in kept.items():
                model.get_parameter(f"{name}.bias").copy_(bias)


Labels = npt.NDArray[np.int64]


def keep_standing(classifier: Classifier, standing: Standing) -> None:
    """Write down what the heads that are saved have been given."""
    classifier.provenance[BALANCE] = standing.to_dict()


def standing_of(classifier: Classifier) -> Standing | None:
    """What a run's model was given; None of a model that no run has made."""
    found = classifier.provenance.get(BALANCE)
    return None if found is None else Standing.from_dict(found)


def settle_confidence(
    folder: Path, classifier: Classifier, table: ImageTable, progress: Callable[[int, int], None]
) -> Evaluation | None:
    """Fit the temperature, how much of a shift of the classes' shares holds, and thresholds, and save them.

    Doing so again changes nothing.

    Args:
        folder: of the model.
        classifier: that lies there; it is changed too.
        table: whose validation images decide.
        progress: told how many of them have been looked at.

    Returns:
        The validation images as they are said now; None without any that can be read, which leaves temperature 1.
    """
    if "val" not in table.splits:
        return settle_by(folder, classifier, None)
    return settle_by(folder, classifier, lambda: evaluate(classifier, table, "val", progress))


def settle_by(folder: Path, classifier: Classifier, ask: Callable[[], Evaluation] | None) -> Evaluation | None:
    """`settle_confidence` by what the classifier, asked so, says of validation images; None: there are none."""
    before = classifier.temperature, classifier.thresholds, standing_of(classifier)
    classifier.temperature = 1.0
    seen: Evaluation | None = None
    if ask is not None:
        with suppress(VitkitError):  # none of them can be read
            seen = _settle(classifier, ask())
    if (classifier.temperature, classifier.thresholds, standing_of(classifier)) != before:
        classifier.save(folder)
    return seen


def _settle(classifier: Classifier, plain: Evaluation) -> Evaluation | None:
    known = np.isfinite(plain.probabilities).all(axis=1)  # logits that overflow tell nothing
    if not known.any():
        return None
    standing = standing_of(classifier)
    logits = log_odds(plain.probabilities, plain.labels)
    now, shift = _shifts(classifier, standing)
    found = calibrate(logits[known] - now, plain.labels[known], shift, _weights(standing, plain.labels[known]))
    _apply(classifier, standing, found)
    probabilities = to_probabilities((logits - now) / found.temperature + found.strength * shift, plain.labels)
    if not isinstance(plain, MultiEvaluation):
        return replace(plain, probabilities=probabilities, temperature=found.temperature)
    classifier.thresholds = best_thresholds(plain.labels[known], probabilities[known])
    return replace(plain, probabilities=probabilities, thresholds=classifier.thresholds)


def _shifts(classifier: Classifier, standing: Standing | None) -> tuple[Floats, Floats]:
    """What the classifier's logits have been given, and the whole of what they may be given once calibrated, (K,)."""
    if standing is None:
        return np.zeros(len(classifier.classes)), np.zeros(len(classifier.classes))
    whole = standing.settled(1.0, 1.0)
    now, shift = (shift_answers(classifier.model, own).double().numpy() for own in (standing, whole))
    return now, shift


def _weights(standing: Standing | None, labels: Labels) -> Floats | None:
    """What each image counts: where the classes are to be alike, as if there were as many images of each."""
    if standing is None or standing.prior == "data" or labels.ndim > 1:
        return None
    weights: Floats = class_weights([max(own, 1) for own in standing.counts]).double().numpy()[labels]
    return weights / weights.mean()


def _apply(classifier: Classifier, standing: Standing | None, found: Calibration) -> None:
    classifier.temperature = found.temperature
    if standing is not None and any(standing.shift):
        after = standing.settled(found.temperature, found.strength)
        pairs = zip(after.in_head, standing.in_head, strict=True)
        give_heads(classifier.model, standing, [new - old for new, old in pairs])
        keep_standing(classifier, after)
