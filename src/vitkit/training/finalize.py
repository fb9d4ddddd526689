"""Calibration of a trained model on validation images or by cross-validation, and correction of its class priors.

Calibration is the last change of a trained model. It fits the temperature, the strength of the prior correction, and
the thresholds. It also records the predictions for the validation images. On these predictions,
`vitkit predict --coverage` and `--accuracy` base their promises about new images, such as a minimum accuracy
(docs/decisions/0039-promises.md).

A model whose training gave rare classes more weight predicts as if all classes were equally frequent. The log-odds that
it predicts for class k are too high by the logarithm of the weight of an image of class k. After subtracting this
logarithm, the probabilities match the class frequencies of the data (Saerens, Latinne & Decaestecker 2002, eq. 2.4;
Menon et al. 2021, arXiv 2007.07314, sec. 4.1). The logarithm is subtracted from the biases of the heads, so that every
export of the model includes the correction.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitkit.classifier import Classifier
from vitkit.data.splits import is_imbalanced
from vitkit.data.table import SINGLE_LABEL, Task
from vitkit.errors import VitkitError
from vitkit.evaluation.calibration import calibrate, log_odds, to_probabilities
from vitkit.evaluation.figures import BALANCE
from vitkit.evaluation.headline import BY_FOLDS
from vitkit.evaluation.metrics import Evaluation, MultiEvaluation, best_thresholds, grouped
from vitkit.inference.trust import MAX_IMAGES, HeldOut, RecordedTests, Trust
from vitkit.inference.unknown import Unknown
from vitkit.model.build import Model
from vitkit.model_folder import read_description
from vitkit.system.files import write_bytes
from vitkit.system.run_files import OUT_OF_FOLD

Balance = Literal["loss", "sampler", "none"]


def resolve_balance(balance: Balance | Literal["auto"], counts: Sequence[int]) -> tuple[Balance, str | None]:
    """Decide how the classes are balanced, from the field of the recipe and the training images of each class.

    Return the balance, and a message for the user if `auto` has chosen to balance.
    """
    if balance != "auto":
        return balance, None
    if not is_imbalanced(counts):
        return "none", None
    nonzero = [count for count in counts if count]
    return "loss", (
        f"balance loss: classes have {min(nonzero)} to {max(nonzero)} training images, so rare ones weigh more"
        " (--balance none to leave it)"
    )


def class_weights(counts: Sequence[int], task: Task = SINGLE_LABEL) -> Tensor:
    """Return weights (K,) of the classes that are inversely proportional to the number of their training images.

    In the single-label task, the mean of the weights over all training images is 1. A class without images has the
    lowest possible weight, which is 0. In the multi-label task, weights below 1 are raised to 1.
    """
    images = torch.tensor(counts, dtype=torch.float64)
    inverse = torch.where(images > 0, images.sum() / images.clamp(min=1), 0.0)
    weights = (inverse / (images > 0).sum()).float()
    return weights.clamp(min=task.min_weight)


@dataclass(frozen=True)
class PriorCorrection:
    """The class prior that a model's predictions assume, and the shift of the head biases that produces this prior."""

    balance: Balance  # how the training balanced the classes
    prior: Literal["data", "uniform"]  # the class frequencies that the probabilities assume: in training, or equal
    counts: tuple[int, ...]  # training images of each class
    shift: tuple[float, ...]  # the full correction (K,), to be added to calibrated logits
    # The corrected heads, which are those that learned from labels. A head that learned only from a teacher imitates
    # its outputs, which do not depend on the weights of the images.
    heads: tuple[str, ...]
    # The fraction of `shift` that fits the validation images best. In theory it is 1 for a model that has learned the
    # true probabilities. The weights have less effect on a model that has memorised its training images (Byrd & Lipton
    # 2019, arXiv 1812.03372).
    strength: float = 1.0
    in_head: tuple[float, ...] = ()  # the shift (K,) that was added to the biases; depends on temperature and strength

    def to_dict(self) -> dict[str, Any]:
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> PriorCorrection:
        typed: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
        return cls(**typed)

    def at(self, temperature: float, strength: float) -> PriorCorrection:
        """Return the correction for a model whose logits are divided by this temperature."""
        return replace(self, strength=strength, in_head=tuple(temperature * strength * value for value in self.shift))


def prior_correction(
    counts: Sequence[int],
    balance: Balance,
    prior: Literal["data", "uniform"],
    model: Model,
    *,
    task: Task = SINGLE_LABEL,
    has_teacher: bool = False,
) -> PriorCorrection:
    """Return the correction, at full strength, that gives a model the requested class prior after its training.

    The arguments are as for `PriorCorrection`. With `has_teacher`, the second head learns from a teacher alone.
    """
    # Weights in the training add their logarithms to the logits. With those of balance "loss", the prior is uniform.
    learned = log_weights(counts, balance, task)
    desired = log_weights(counts, "loss") if prior == "uniform" else torch.zeros_like(learned)
    shift = tuple((desired - learned).tolist())
    heads = tuple(name for name in ("head", "head_dist") if getattr(model, name) is not None)
    if has_teacher:
        heads = heads[:1]
    return PriorCorrection(balance, prior, tuple(counts), shift, heads).at(1.0, 1.0)


def log_weights(counts: Sequence[int], balance: Balance, task: Task = SINGLE_LABEL) -> Tensor:
    """Return the logarithms (K,) of the relative weight of an image of each class in the loss or in the sampler.

    A class without images is treated as if it had one image.
    """
    if balance == "none":
        return torch.zeros(len(counts))
    return class_weights([max(count, 1) for count in counts], task).log()


def logit_shift(model: Model, correction: PriorCorrection) -> Tensor:
    """Return the shift (K,) that the correction adds to the logits of the model, which are the mean over all heads."""
    heads = sum(getattr(model, name) is not None for name in ("head", "head_dist"))
    return torch.tensor(correction.in_head) * (len(correction.heads) / max(heads, 1))


@torch.no_grad()
def shift_head_bias(model: Model, correction: PriorCorrection, amount: Sequence[float]) -> None:
    """Add `amount` (K,) to the biases of the corrected heads."""
    for name in correction.heads:
        bias = model.get_parameter(f"{name}.bias")
        bias.add_(torch.tensor(amount).to(bias))


@contextmanager
def with_correction(model: Model, correction: PriorCorrection) -> Iterator[None]:
    """Apply the correction to the model inside the context, and restore the exact original biases afterwards."""
    original = {name: model.get_parameter(f"{name}.bias").detach().clone() for name in correction.heads}
    shift_head_bias(model, correction, correction.in_head)
    try:
        yield
    finally:
        with torch.no_grad():
            for name, bias in original.items():
                model.get_parameter(f"{name}.bias").copy_(bias)


def correction_of(classifier: Classifier) -> PriorCorrection | None:
    """Return the correction recorded in a classifier; None if it was not trained by a run."""
    stored = classifier.provenance.get(BALANCE)
    return None if stored is None else PriorCorrection.from_dict(stored)


@dataclass(frozen=True)
class ValidationFacts:
    """Information about the validation images of a run that their evaluation does not contain."""

    chosen: tuple[str, ...] = ()  # choices that the run made with these images (`evaluation.figures.chosen_on`)
    groups: Mapping[str, int] = field(default_factory=dict)  # group number, by path, of each copy or dependent image
    seen: Mapping[str, Any] = field(default_factory=dict)  # images that the weights had been trained on, by path
    # The number of folds if the predictions are out-of-fold predictions, each by a model that was trained without the
    # image; 0 if the model itself predicted the images.
    folds: int = 0


def calibrate_on(
    classifier: Classifier,
    evaluate_now: Callable[[], Evaluation] | None,
    facts: ValidationFacts,
    fit_unknown: Callable[[Classifier, Sequence[str]], Unknown | None] | None = None,
) -> Evaluation | None:
    """Fit the temperature, the strength of the prior correction, the thresholds and the record of held-out predictions.

    The classifier is changed in place; calibrating twice gives the same result. `evaluate_now` evaluates it on the
    validation images; it is None if there are none. `fit_unknown` fits the score for unknown images, given the
    classifier and the paths of the validation images that the weights had not seen; None omits the score.

    Return the evaluation of the validation images after calibration. If none can be read, the temperature is 1 and the
    result is None.
    """
    classifier.temperature, classifier.trust = 1.0, None
    if evaluate_now is None:
        return None
    try:
        uncalibrated = evaluate_now()
    except VitkitError as error:
        if error.code != "evaluation.images-unreadable":
            raise
        return None
    is_finite = np.isfinite(uncalibrated.probabilities).all(axis=1)  # without the images whose logits overflow
    if not is_finite.any():
        return None

    logits = log_odds(uncalibrated.probabilities, uncalibrated.labels)
    labels = uncalibrated.labels[is_finite]
    current_shift = full_shift = np.zeros(len(classifier.classes))
    weights = None  # of the images
    correction = correction_of(classifier)
    if correction is not None:
        current_shift = logit_shift(classifier.model, correction).double().numpy()  # the logits contain it already
        full_shift = logit_shift(classifier.model, correction.at(1.0, 1.0)).double().numpy()
        if correction.prior == "uniform" and labels.ndim == 1:
            weights = class_weights([max(count, 1) for count in correction.counts]).double().numpy()[labels]
            weights /= weights.mean()
    fit = calibrate(logits[is_finite] - current_shift, labels, full_shift, weights)
    classifier.temperature = fit.temperature
    if correction is not None and any(correction.shift):
        after = correction.at(fit.temperature, fit.strength)
        change = [new - old for new, old in zip(after.in_head, correction.in_head, strict=True)]
        shift_head_bias(classifier.model, correction, change)
        classifier.provenance[BALANCE] = after.to_dict()

    logits = (logits - current_shift) / fit.temperature + fit.strength * full_shift
    probabilities = to_probabilities(logits, uncalibrated.labels)
    if isinstance(uncalibrated, MultiEvaluation):
        classifier.thresholds = best_thresholds(labels, probabilities[is_finite])
        return replace(uncalibrated, probabilities=probabilities, thresholds=classifier.thresholds)
    calibrated = replace(uncalibrated, probabilities=probabilities, temperature=fit.temperature)

    # From the predictions for images that the weights had not seen, `vitkit predict` derives guarantees for new images.
    chosen = _independent_images(grouped(calibrated, facts.groups), facts.seen)
    if len(chosen):
        paths = [calibrated.paths[i] for i in chosen.tolist()]
        unknown = None if fit_unknown is None else fit_unknown(classifier, paths)
        probabilities, labels = calibrated.probabilities[chosen], calibrated.labels[chosen]
        held_out = HeldOut.from_probabilities(probabilities, labels, facts.chosen, facts.folds)
        classifier.trust = Trust(held_out, unknown).to_bytes()
    return calibrated


def _independent_images(evaluation: Evaluation, seen: Mapping[str, Any]) -> npt.NDArray[np.int64]:
    """Return the indices of images that are new to the weights and have finite predictions, one image per group.

    If there are more than MAX_IMAGES, a random choice of them is returned.
    """
    is_new = np.array([path not in seen for path in evaluation.paths])
    chosen = np.flatnonzero(is_new & np.isfinite(evaluation.probabilities).all(axis=1))
    if evaluation.groups:
        _, first = np.unique(np.array(evaluation.groups)[chosen], return_index=True)
        chosen = chosen[np.sort(first)]
    if len(chosen) > MAX_IMAGES:
        chosen = np.sort(np.random.default_rng(0).permutation(chosen)[:MAX_IMAGES])
    return chosen


def record_tests(classifier: Classifier, tests: Evaluation, seen: Mapping[str, Any] | None) -> None:
    """Add the predictions for the test images to the classifier's record of held-out predictions, if it has one.

    Nothing is done if the tests have other classes. `seen` contains the test images that the weights had been trained
    on before the run, by path; None if this is unknown.
    """
    if classifier.held_out is None or classifier.classes != tests.classes:
        return
    chosen = _independent_images(tests, seen or {})
    if len(chosen):
        predictions = RecordedTests.from_probabilities(tests.probabilities[chosen])
        classifier.trust = replace(classifier.held_out, tests=predictions).to_bytes()


# --- Out-of-fold predictions ----------------------------------------------------------------------------------

_METADATA_KEY = "out_of_fold"  # the key of the file's metadata


@dataclass(frozen=True, eq=False)
class OutOfFold:
    """Predictions for n images, each by a model that was not trained on the image.

    They calibrate the final model of a cross-validation, which is trained on all images and has none left for its
    calibration. docs/decisions/0046-final-models.md describes the guarantees that follow. The predictions are stored as
    logits without the temperature and the prior correction of the folds' models, because both differ for the final one.
    """

    classes: tuple[str, ...]
    paths: tuple[str, ...]  # (n,)
    labels: npt.NDArray[np.int64]  # classes (n,), or class indicators (n, K)
    logits: npt.NDArray[np.float32]  # (n, K), before the temperature and without any correction of the class prior
    folds: int  # the number of folds, which is the number of models
    fold: npt.NDArray[np.int64]  # the fold of each image, (n,)
    # Logits (n, K) of the same images from a nested cross-validation, if there was one, each by a model that was not
    # fitted or selected on the image, and the temperature of the model that predicted each fold in it, (folds,).
    tested: npt.NDArray[np.float32] | None = None
    temperatures: npt.NDArray[np.float64] | None = None

    @classmethod
    def of_folds(cls, evaluations: Sequence[Evaluation], folders: Sequence[Path], model: Model) -> OutOfFold:
        """Collect the predictions of a cross-validation from the evaluation and the model folder of each fold.

        `model` is any model with the architecture of the folds' models.
        """
        logits_of_folds = []
        for evaluation, folder in zip(evaluations, folders, strict=True):
            description = read_description(folder)
            # Undo the calibration: the temperature, and then the correction of the class prior.
            logits = log_odds(evaluation.probabilities, evaluation.labels) * description["temperature"]
            stored = description["provenance"].get(BALANCE)
            if stored is not None:
                logits -= logit_shift(model, PriorCorrection.from_dict(stored)).double().numpy()
            logits_of_folds.append(logits.astype(np.float32))
        return cls(
            classes=evaluations[0].classes,
            paths=tuple(path for evaluation in evaluations for path in evaluation.paths),
            labels=np.concatenate([evaluation.labels for evaluation in evaluations]),
            logits=np.concatenate(logits_of_folds),
            folds=len(evaluations),
            fold=np.repeat(np.arange(len(evaluations)), [len(evaluation.labels) for evaluation in evaluations]),
        )

    def evaluation(self, classifier: Classifier) -> Evaluation:
        """Return the evaluation of `logits` at temperature 1, with the prior correction of a classifier."""
        correction = correction_of(classifier)
        shift = 0.0 if correction is None else logit_shift(classifier.model, correction).double().numpy()
        # The shape of the labels determines whether the probabilities are those of a softmax or of sigmoids.
        probabilities = to_probabilities(self.logits.astype(np.float64) + shift, self.labels)
        fields = ("train", self.classes, self.paths, self.labels, probabilities)
        if classifier.thresholds is None:
            return Evaluation(*fields)
        return MultiEvaluation(*fields, thresholds=classifier.thresholds)

    def tests(self, *, is_calibrated: bool = True) -> Evaluation | None:
        """Return the evaluation of the predictions `tested`, which no selection biases; None if there are none.

        With `is_calibrated`, each model's temperature is applied.
        """
        if self.tested is None or self.temperatures is None:
            return None
        logits = self.tested.astype(np.float64)
        if is_calibrated:
            logits /= self.temperatures[self.fold][:, None]
        return Evaluation(BY_FOLDS, self.classes, self.paths, self.labels, to_probabilities(logits, self.labels))

    def write(self, folder: Path) -> None:
        """Write the predictions into the folder of the run."""
        from safetensors.numpy import save

        arrays = {
            "labels": self.labels.astype(np.int32),
            "logits": self.logits,
            "fold": self.fold.astype(np.int32),
            "tested": self.tested,
            "temperatures": self.temperatures,
        }
        stored = {name: np.ascontiguousarray(array) for name, array in arrays.items() if array is not None}
        metadata = json.dumps({"classes": self.classes, "paths": self.paths, "folds": self.folds})
        write_bytes(folder / OUT_OF_FOLD, save(stored, {_METADATA_KEY: metadata}))

    @classmethod
    def read(cls, folder: Path) -> OutOfFold | None:
        """Read the predictions in the folder of a run; return None if there are none.

        Raises:
            VitkitError: the file is damaged.
        """
        from safetensors import SafetensorError, safe_open

        file = folder / OUT_OF_FOLD
        if not file.is_file():
            return None
        try:
            with safe_open(file, "numpy") as stored:
                metadata = json.loads(stored.metadata()[_METADATA_KEY])
                names = stored.keys()  # a file cannot be iterated
                arrays: dict[str, Any] = {name: stored.get_tensor(name) for name in names}
            arrays |= {name: arrays[name].astype(np.int64) for name in ("labels", "fold")}
            return cls(tuple(metadata["classes"]), tuple(metadata["paths"]), folds=metadata["folds"], **arrays)
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            message = f"{file} is damaged: {error}; delete it to compute it again with --resume"
            raise VitkitError("training.predictions-damaged", message) from error
