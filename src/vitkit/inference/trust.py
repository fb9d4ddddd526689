"""A classifier's predictions for held-out images, and the guarantees for new predictions that follow from them.

`HeldOut` records how a trained model ranked the classes of images that it was not trained on. From this record,
`class_sets` derives prediction sets that contain the true class with a given probability (conformal prediction), and
`sure_threshold` derives a confidence above which predictions have a given accuracy (selective classification). `Trust`
is the content of `trust.safetensors` in a model folder. `rules_for` converts a user's requests to rules for
predictions. It refuses requests for which there are too few held-out images.

This module imports only numpy.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from vitkit.errors import VitkitError
from vitkit.inference.unknown import METHOD, Unknown, check_level, from_arrays, to_arrays

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
VALIDATION = "validation images"
CROSS_VALIDATED = "cross-validated images"
_TOLERANCE = 1e-9  # (n + 1) c may be rounded up to just above a whole number, which `ceil` would raise by 1


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The predictions for n independent labelled images by weights that were not trained on them.

    Attributes:
        label: true class of each image, (n,).
        predicted: most probable class, (n,).
        rest: 1 minus the probability of the true class, (n,), computed without rounding it to 0.
        doubt: 1 minus the probability of the most probable class, (n,).
        chosen: the settings that were chosen on these images, such as `temperature`.
        folds: number of folds if the images were predicted by cross-validation, else 0. With folds, the model itself
            was trained on all of these images. Each image was predicted by another model, which was trained without the
            fold of the image.
    """

    label: Ints
    predicted: Ints
    rest: Floats
    doubt: Floats
    chosen: tuple[str, ...] = ()
    folds: int = 0

    @classmethod
    def from_probabilities(
        cls, probabilities: npt.NDArray[np.float32], labels: Ints, chosen: tuple[str, ...] = (), folds: int = 0
    ) -> HeldOut:
        """Create the record from probabilities (n, K) and true classes (n,)."""
        label = labels.astype(np.int64)
        return cls(
            label=label,
            predicted=probabilities.argmax(axis=1).astype(np.int64),
            rest=_complements(probabilities)[np.arange(len(label)), label],
            doubt=uncertainty_of(probabilities),
            chosen=chosen,
            folds=folds,
        )

    def __len__(self) -> int:
        return len(self.label)

    @property
    def kind(self) -> str:
        """The name of these images in messages."""
        return CROSS_VALIDATED if self.folds else VALIDATION


# --- Prediction sets with a guaranteed coverage ---------------------------------------------------------------

# The score of a class is 1 minus its predicted probability (least ambiguous set-valued classifier, Sadinle et al. 2019,
# arXiv 1609.00451), which gives the smallest sets; they can be empty. A set contains every class whose score is at most
# a quantile of the scores of the held-out images' true classes. For n held-out images and a coverage of c, the quantile
# is the ceil((n + 1) c)-th smallest of these scores. If scores are distinct, the set of a new image from the same
# distribution contains its class with a probability from c to c + 1 / (n + 1), whatever the model (Vovk et al. 2005;
# Angelopoulos & Bates 2021, arXiv 2107.07511, theorem 1). The probability is over the held-out images and the new one.
# The sets are deterministic.


@dataclass(frozen=True)
class ClassSets:
    """A rule that assigns each image a set of classes.

    Attributes:
        coverage: the requested fraction of sets that contain the true class.
        limit: the highest score with which a class is in a set.
        images: number of held-out images that determine the limit.
    """

    coverage: float
    limit: float
    images: int

    def contains(self, probabilities: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
        """Return whether each class is in the set of each image, (n, K), from probabilities (n, K)."""
        contained: npt.NDArray[np.bool_] = _complements(probabilities) <= self.limit
        return contained


def class_sets(held_out: HeldOut, coverage: float) -> ClassSets:
    """Return a rule for sets that contain the true class with the probability `coverage`, above 0 and below 1.

    Raises:
        VitkitError: there are too few images, so that every set would contain all classes; or the coverage is not
            between 0 and 1.
    """
    if not 0 < coverage < 1:
        raise VitkitError("inference.share-outside", f"--coverage {coverage} must be above 0 and below 1")
    n, needed = len(held_out), images_needed(coverage)
    if n < needed:
        raise VitkitError(
            "inference.images-too-few",
            f"--coverage {coverage} requires at least {needed} {held_out.kind}, and the run had {n}: "
            f"every set would contain all classes; at most {n / (n + 1):.3g} is possible",
        )
    return ClassSets(coverage, quantile(held_out.rest, coverage), n)


def quantile(scores: Floats, coverage: float) -> float:
    """Return the ceil((n + 1) coverage)-th smallest of n scores; infinity if there are fewer scores."""
    k = math.ceil((len(scores) + 1) * coverage - _TOLERANCE)
    return float(np.partition(scores, k - 1)[k - 1]) if k <= len(scores) else math.inf


def images_needed(coverage: float) -> int:
    """Return the smallest number of held-out images for which `quantile` is finite."""
    return max(1, math.ceil(coverage / (1 - coverage) - _TOLERANCE))


def uncertainty_of(probabilities: npt.NDArray[np.float32]) -> Floats:
    """Return 1 minus the probability (n,) of the most probable class, without rounding it to 0."""
    p = probabilities.astype(np.float64)
    total = p.sum(axis=1)
    doubt: Floats = (total - p.max(axis=1)) / total
    return doubt


def _complements(probabilities: npt.NDArray[np.float32]) -> Floats:
    """Return 1 minus the probability of each class (n, K), without rounding it to 0."""
    p = probabilities.astype(np.float64)
    total = p.sum(axis=1, keepdims=True)  # not exactly 1 in float32, but 1 up to 1e-7
    rest: Floats = (total - p) / total
    return rest


# --- Thresholds with a guaranteed accuracy --------------------------------------------------------------------

# The threshold comes from fixed-sequence testing on held-out images (Angelopoulos et al. 2021, Learn then Test, arXiv
# 2110.01052, section 3). The images are sorted by confidence, the highest first. The m-th hypothesis states that
# predictions more confident than that of the (m + 1)-th image are less accurate than required. It is tested with the
# number of errors among the first m images. The hypothesis is rejected if predictions of exactly the required accuracy
# would make at most this number of errors with a probability of at most `RISK`. This is the one-sided binomial test of
# Clopper and Pearson (1934).
#
# The tested values of m are the smallest ones that allow 0, 1, 2, ... errors, and finally the number of all images.
# They do not depend on the labels. Testing stops at the first hypothesis that is not rejected. The last rejected
# hypothesis determines the threshold. If accuracy never falls as confidence rises, the accuracy above the threshold is
# lower than required with a probability of at most `RISK`.

RISK = 0.05  # probability that the guarantee does not hold
_ALL_ANSWERED = 2.0  # a value of `SureThreshold.doubt` that is above any doubt


@dataclass(frozen=True)
class SureThreshold:
    """A confidence threshold above which predictions have a guaranteed accuracy.

    Attributes:
        accuracy: the guaranteed accuracy.
        doubt: 1 minus the threshold, which keeps more digits than a threshold near 1. An image is answered, that is,
            its prediction is given, if the probability of its most probable class is above the threshold.
        answered: number of held-out images that are answered.
        wrong: number of answered held-out images whose prediction is wrong.
        images: number of held-out images.
        kind: the name of the held-out images in messages.
    """

    accuracy: float
    doubt: float
    answered: int
    wrong: int
    images: int
    kind: str = "validation images"

    @property
    def share(self) -> float:
        """The fraction of images that is answered."""
        return self.answered / self.images

    @property
    def confidence(self) -> float:
        """The confidence above which images are answered."""
        return 1 - self.doubt

    def answers(self, probabilities: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
        """Return whether images with these probabilities are answered: (n, K) -> (n,)."""
        is_sure: npt.NDArray[np.bool_] = uncertainty_of(probabilities) < self.doubt
        return is_sure

    def description(self) -> str:
        return (
            f"--accuracy {self.accuracy}: predictions with a confidence above {max(self.confidence, 0):.6g} are given, "
            f"which {self.answered} of {self.images} {self.kind} have ({self.share:.1%}), {self.wrong} of them "
            f"wrong; with a probability of {1 - RISK:.0%}, at least {self.accuracy:.4g} of such predictions are right, "
            f"for photographs like the {self.kind}; `vitkit doctor PHOTOS --against RUN` tests "
            "whether yours are"
        )


def sure_threshold(held_out: HeldOut, accuracy: float, risk: float = RISK) -> SureThreshold:
    """Return a threshold above which predictions have the requested accuracy with a probability of at least 1 - risk.

    Raises:
        VitkitError: there is no threshold for which the held-out images show this accuracy; or `accuracy` is not
            between 0 and 1.
    """
    if not 0 < accuracy < 1:
        raise VitkitError("inference.share-outside", f"--accuracy {accuracy} must be above 0 and below 1")
    n, needed = len(held_out), answers_needed(accuracy, risk)
    if n < needed:
        raise VitkitError(
            "inference.images-too-few",
            f"--accuracy {accuracy} requires at least {needed} {held_out.kind}, even if all are right, and the run "
            f"had {n}; at most {risk ** (1 / n) if n else 0:.3g} can be shown",
        )
    doubts = np.sort(held_out.doubt)  # ascending: the most confident first
    wrong = np.sort(held_out.doubt[held_out.predicted != held_out.label])
    best: SureThreshold | None = None
    for m in _tested_counts(n, accuracy, risk):
        highest = doubts[m - 1]  # of the m most confident images
        answered = int(np.searchsorted(doubts, highest, side="right"))  # more than m if confidences are equal
        errors = int(np.searchsorted(wrong, highest, side="right"))
        if binomial_tail(errors, answered, 1 - accuracy) > risk:
            break
        limit = float(doubts[answered]) if answered < n else _ALL_ANSWERED
        best = SureThreshold(accuracy, doubt=limit, answered=answered, wrong=errors, images=n, kind=held_out.kind)
    if best is None:
        errors = int((wrong <= doubts[needed - 1]).sum())
        raise VitkitError(
            "inference.accuracy-unproven",
            f"--accuracy {accuracy} cannot be promised: of the {needed} most confident {held_out.kind} {errors} "
            f"{'is' if errors == 1 else 'are'} wrong, and none of them may be; request a lower accuracy",
        )
    return best


def answers_needed(accuracy: float, risk: float = RISK) -> int:
    """Return the smallest number of answered images that suffices to guarantee an accuracy if all answers are right."""
    return math.ceil(math.log(risk) / math.log(accuracy) - _TOLERANCE)


def binomial_tail(k: int, n: int, p: float) -> float:
    """Return the probability of at most k successes in n trials that succeed with probability p, 0 < p < 1."""
    from scipy.special import bdtr

    return float(bdtr(k, n, p))


@lru_cache(maxsize=64)
def _tested_counts(images: int, accuracy: float, risk: float) -> tuple[int, ...]:
    """Return the numbers m for which `sure_threshold` tests the errors among the m most confident images.

    For each of 0, 1, 2, ... errors, m is the smallest number of images that shows the accuracy in spite of these
    errors. The last m is `images`, the number of all images.
    """
    tested = list[int]()
    errors = 0
    for m in range(answers_needed(accuracy, risk), images):
        if binomial_tail(errors, m, 1 - accuracy) <= risk:
            tested.append(m)
            errors += 1
    return (*tested, images)


# --- The record of a classifier, and the rules for its predictions --------------------------------------------

_VERSION = 2  # version 1 also had the columns above and rank, for other kinds of sets
_STORED = "the predictions of held-out images (trust.safetensors)"
_KEY = "trust"  # the only key of the file's metadata
UNKNOWN = "?"  # the label of an image that is called unknown
NOT_FITTED = "one with one class per image that `vitkit train` fitted to validation images, or an export of it"
MAX_IMAGES = 20_000  # held-out images that are stored; more hardly change a quantile


@dataclass(frozen=True, eq=False)
class RecordedTests:
    """The predictions for m test images of a run.

    Guarantees do not use these predictions. `vitkit doctor --against` compares new predictions with them.

    Attributes:
        predicted: most probable class, (m,).
        doubt: 1 minus the probability of this class, (m,).
    """

    predicted: Ints
    doubt: Floats

    @classmethod
    def from_probabilities(cls, probabilities: npt.NDArray[np.float32]) -> RecordedTests:
        """Create the record from probabilities (m, K)."""
        return cls(probabilities.argmax(axis=1).astype(np.int64), uncertainty_of(probabilities))

    def __len__(self) -> int:
        return len(self.predicted)


@dataclass(frozen=True, eq=False)
class Trust:
    """The record of a classifier's predictions for images that its weights were not trained on.

    Attributes:
        held_out: the predictions from which guarantees are derived (`rules_for`).
        unknown: the out-of-distribution detector with its scores of held-out images; None if none was fitted.
        tests: the predictions for the test images; None if there are none.
    """

    held_out: HeldOut
    unknown: Unknown | None = None
    tests: RecordedTests | None = None

    def to_bytes(self) -> bytes:
        """Return the record as the content of a .safetensors file."""
        from safetensors.numpy import save

        held_out = self.held_out
        tensors: dict[str, npt.NDArray[Any]] = {
            "held_out.label": held_out.label.astype(np.int32),
            "held_out.predicted": held_out.predicted.astype(np.int32),
            "held_out.rest": held_out.rest,
            "held_out.doubt": held_out.doubt,
        }
        about: dict[str, Any] = {"format_version": _VERSION, "chosen": list(held_out.chosen)}
        if held_out.folds:
            about["folds"] = held_out.folds
        if self.unknown is not None:
            arrays, about["unknown"] = to_arrays(self.unknown)
            for name, array in arrays.items():
                tensors[f"unknown.{name}"] = array
        if self.tests is not None:
            tensors["tests.predicted"] = self.tests.predicted.astype(np.int32)
            tensors["tests.doubt"] = self.tests.doubt
        tensors = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
        return save(tensors, {_KEY: json.dumps(about)})  # one key, because safetensors writes several in random order

    @classmethod
    def from_bytes(cls, data: bytes) -> Trust:
        """Parse the result of `to_bytes`. Its checksum in the model folder or the exported file was verified before.

        Raises:
            VitkitError: a later version of vitkit wrote it.
        """
        from safetensors.numpy import load

        length = int.from_bytes(data[:8], "little")  # of the JSON header, which follows these 8 bytes
        about = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][_KEY])
        if about["format_version"] > _VERSION:
            reason = f"{_STORED} were written by a newer version of vitkit: upgrade vitkit"
            raise VitkitError("inference.record-newer", reason)
        tensors = load(data)
        held_out = HeldOut(
            label=tensors["held_out.label"].astype(np.int64),
            predicted=tensors["held_out.predicted"].astype(np.int64),
            rest=tensors["held_out.rest"],
            doubt=tensors["held_out.doubt"],
            chosen=tuple(about["chosen"]),
            folds=about.get("folds", 0),
        )
        unknown = None
        if about.get("unknown", {}).get("method") == METHOD:
            arrays = {name.removeprefix("unknown."): array for name, array in tensors.items()}
            unknown = from_arrays(arrays, about["unknown"])
        tests = None
        if "tests.predicted" in tensors:
            tests = RecordedTests(tensors["tests.predicted"].astype(np.int64), tensors["tests.doubt"])
        return cls(held_out, unknown, tests)


@lru_cache(maxsize=8)
def parsed(data: bytes) -> Trust:
    """Return `Trust.from_bytes(data)`, cached for the last eight models."""
    return Trust.from_bytes(data)


@dataclass(frozen=True)
class PredictionRules:
    """The rules for prediction sets and for withheld labels.

    Attributes:
        sets: the rule for prediction sets; None if no sets are requested.
        sure: the confidence threshold for labels of a guaranteed accuracy; None if no accuracy is requested.
        unknown: the highest p-value of an image that is called unknown; None to call no image unknown.
        chosen: the settings that were chosen on the held-out images, such as `temperature`.
        folds: the number of folds if the held-out images were predicted by cross-validation (`HeldOut`), else 0.
    """

    sets: ClassSets | None = None
    sure: SureThreshold | None = None
    unknown: float | None = None
    chosen: tuple[str, ...] = ()
    folds: int = 0

    def notes(self) -> list[str]:
        """Return lines of text that explain the rules; an empty list if there are no rules."""
        lines = []
        kind = CROSS_VALIDATED if self.folds else VALIDATION
        if self.sets is not None:
            lines.append(
                f"--coverage {self.sets.coverage}: sets by {self.sets.images} {kind}; a set is to contain "
                f"the true class {self.sets.coverage:.4g} of the time, for photographs like those"
            )
        if self.sure is not None:
            lines.append(self.sure.description())
        if self.unknown is not None:
            lines.append(
                f"--unknown {self.unknown}: an image is called {UNKNOWN} if it looks less familiar than all but "
                f"{self.unknown:.4g} of the {kind}, as that part of known images does, too"
            )
        if self.folds and (self.sets is not None or self.sure is not None):
            lines.append(
                f"the model was trained on these images too, and each was predicted by a model of the other folds (of "
                f"{self.folds}): this holds as far as such models are alike, and has no guarantee"
            )
        if self.chosen:
            lines.append(f"the same {kind} were used to choose: {', '.join(self.chosen)}")
        return lines


NO_RULES = PredictionRules()


def rules_for(
    trust: Trust | None, *, coverage: float | None = None, accuracy: float | None = None, unknown: float | None = None
) -> PredictionRules:
    """Return the rules that a user requests: the coverage of sets, the accuracy of labels, the level of unknown images.

    Raises:
        VitkitError: the held-out images are missing or too few, or do not show the accuracy; the model has no score for
            unknown images; or a value is not between 0 and 1.
    """
    if coverage is None and accuracy is None and unknown is None:
        return NO_RULES
    if unknown is not None:
        if trust is None or trust.unknown is None:
            reason = f"--unknown requires a model with a score for unknown images: {NOT_FITTED}"
            raise VitkitError("inference.record-missing", reason)
        check_level(trust.unknown, unknown)
    if trust is None:
        flag = "coverage" if coverage is not None else "accuracy"
        raise VitkitError(
            "inference.record-missing",
            f"--{flag} requires a model that knows how it predicted held-out images: use one that `vitkit train` "
            "calibrated on validation images with one class each, or an export of it",
        )
    held_out = trust.held_out
    return PredictionRules(
        sets=None if coverage is None else class_sets(held_out, coverage),
        sure=None if accuracy is None else sure_threshold(held_out, accuracy),
        unknown=unknown,
        chosen=held_out.chosen,
        folds=held_out.folds,
    )
