"""Confidence thresholds with a guaranteed accuracy: selective classification.

The threshold comes from fixed-sequence testing on held-out images (Angelopoulos et al. 2021, Learn then Test, arXiv
2110.01052, section 3). The images are sorted by confidence, the highest first. The m-th hypothesis states that
predictions more confident than that of the (m + 1)-th image are less accurate than required. It is tested with the
number of errors among the first m images. The hypothesis is rejected if predictions of exactly the required accuracy
would make at most so many errors with a probability of at most `RISK`. This is the one-sided binomial test of Clopper
and Pearson (1934).

The tested values of m are the smallest ones that allow 0, 1, 2, ... errors, and finally the number of all images. They
do not depend on the labels. Testing stops at the first hypothesis that is not rejected. The last rejected hypothesis
determines the threshold. If accuracy never falls as confidence rises, the accuracy above the threshold is lower than
required with a probability of at most `RISK`.

This module imports only numpy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from vitkit.errors import VitkitError
from vitkit.inference.conformal import Floats, HeldOut, doubt_of

RISK = 0.05  # probability that the guarantee does not hold
_NO_LIMIT = 2.0  # more than any doubt


@dataclass(frozen=True)
class SureThreshold:
    """A confidence threshold above which predictions have a guaranteed accuracy.

    Attributes:
        accuracy: the guaranteed accuracy.
        doubt: an image is answered if the probability of its most probable class is above 1 - doubt. This form stores
            thresholds near 1 with more digits.
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
        is_sure: npt.NDArray[np.bool_] = doubt_of(probabilities) < self.doubt
        return is_sure

    def in_words(self) -> str:
        """Describe the threshold in a line."""
        return (
            f"--accuracy {self.accuracy}: predictions with a confidence above {max(self.confidence, 0):.6g} are given, "
            f"which {self.answered} of {self.images} {self.kind} have ({self.share:.1%}), {self.wrong} of them "
            f"wrong; with a probability of {1 - RISK:.0%}, at least {self.accuracy:.4g} of such predictions are right"
        )


def sure_threshold(held_out: HeldOut, accuracy: float, risk: float = RISK) -> SureThreshold:
    """Return a threshold above which predictions have the requested accuracy with a probability of at least 1 - risk.

    Args:
        held_out: the model's predictions of held-out images.
        accuracy: the accuracy of answered images, above 0 and below 1.
        risk: the highest allowed probability that the accuracy is lower than requested.

    Raises:
        VitkitError: the images do not show that any threshold has this accuracy; or `accuracy` is not between 0 and 1.
    """
    if not 0 < accuracy < 1:
        raise VitkitError(f"--accuracy {accuracy} must be above 0 and below 1")
    n = len(held_out)
    if n < (needed := answers_needed(accuracy, risk)):
        raise VitkitError(
            f"--accuracy {accuracy} requires at least {needed} {held_out.kind}, even if all are right, and the run "
            f"had {n}; at most {most_accuracy(n, risk):.3g} can be shown"
        )
    doubts = np.sort(held_out.doubt)  # ascending: the most confident first
    wrong = np.sort(held_out.doubt[held_out.predicted != held_out.label])
    best: SureThreshold | None = None
    for m in _sequence(n, accuracy, risk):
        answered = int(np.searchsorted(doubts, doubts[m - 1], side="right"))  # more than m if confidences are equal
        errors = int(np.searchsorted(wrong, doubts[m - 1], side="right"))
        if binomial_tail(errors, answered, 1 - accuracy) > risk:
            break
        limit = float(doubts[answered]) if answered < n else _NO_LIMIT
        best = SureThreshold(accuracy, limit, answered, errors, n, held_out.kind)
    if best is None:
        first = int((wrong <= doubts[needed - 1]).sum())
        raise VitkitError(
            f"--accuracy {accuracy} cannot be promised: of the {needed} most confident {held_out.kind} {first} "
            f"{'is' if first == 1 else 'are'} wrong, and none of them may be; request less"
        )
    return best


def answers_needed(accuracy: float, risk: float = RISK) -> int:
    """Return the smallest number of answers that can show an accuracy, if all of them are right."""
    return math.ceil(math.log(risk) / math.log(accuracy) - 1e-9)


def most_accuracy(images: int, risk: float = RISK) -> float:
    """Return the highest accuracy that this number of answers can show, if all of them are right."""
    return risk ** (1 / images) if images else 0.0


def binomial_tail(k: int, n: int, p: float) -> float:
    """Return the probability of at most k successes in n trials that succeed with probability p, 0 < p < 1."""
    if k >= n:
        return 1.0
    i = np.arange(k + 1)
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    logs: Floats = factorials[n] - factorials[i] - factorials[n - i] + i * math.log(p) + (n - i) * math.log1p(-p)
    highest = logs.max()
    return min(1.0, float(np.exp(highest + np.log(np.exp(logs - highest).sum()))))


@lru_cache(maxsize=64)
def _sequence(images: int, accuracy: float, risk: float) -> tuple[int, ...]:
    """Return the values of m to test: the smallest ones that allow 0, 1, 2, ... errors, and finally `images`."""
    tested, m, errors = list[int](), answers_needed(accuracy, risk), 0
    while m < images:
        if binomial_tail(errors, m, 1 - accuracy) <= risk:
            tested.append(m)
            errors += 1
        m += 1
    return (*tested, images)
