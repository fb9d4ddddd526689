"""Labels that are likely wrong: what a classifier that has not seen an image says against it.

Every image is judged by a linear probe that was fitted without it, on features of a backbone that never saw the labels
(cross-validated confident learning: Northcutt et al. 2021, arXiv 1911.00068).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from vitkit.evaluation.regression import regress

FOLDS = 5
_PENALTIES = (0.3, 0.1, 0.03, 0.01)


@dataclass(frozen=True)
class Suspect:
    """An image whose label is doubtful.

    Attributes:
        index: of the image.
        given: its label.
        suggested: the label that the others speak for.
        doubt: how much more probable the suggested label is than the given one, in (0, 1].
    """

    index: int
    given: int
    suggested: int
    doubt: float


def find_suspects(
    features: Tensor, labels: Tensor, classes: int, seed: int = 0, teaches: npt.NDArray[np.bool_] | None = None
) -> list[Suspect]:
    """The images that a probe without them would call something else, the most doubtful first.

    Args:
        features: (n, D), of a backbone that was not trained on these labels.
        labels: (n,).
        classes: K.
        seed: of the folds.
        teaches: (n,), whether an image's label may be learned from; None: each may. Those of test images may not: what
            is suggested for other images would carry them into the training.

    Returns:
        Nothing where there are too few images to say anything.
    """
    probabilities = probe_out_of_fold(features, labels, classes, seed, teaches)
    if probabilities is None:
        return []
    rows, given = np.arange(len(labels)), labels.numpy()
    own = probabilities[rows, given]
    others = probabilities.copy()
    others[rows, given] = -1
    suggested = others.argmax(axis=1)
    doubt = others[rows, suggested] - own
    order = [int(i) for i in np.argsort(-doubt, kind="stable") if doubt[i] > 0]
    return [Suspect(i, int(given[i]), int(suggested[i]), float(doubt[i])) for i in order]


def probe_out_of_fold(
    features: Tensor, labels: Tensor, classes: int, seed: int = 0, teaches: npt.NDArray[np.bool_] | None = None
) -> npt.NDArray[np.float64] | None:
    """(n, K) probabilities, each image's from a probe that did not see it; None where there are too few images."""
    may_teach = np.ones(len(labels), np.bool_) if teaches is None else teaches
    taught, others = np.flatnonzero(may_teach), np.flatnonzero(~may_teach)
    if len(taught) < 2 * FOLDS or int(labels[taught].bincount().max()) < FOLDS:
        return None
    x = (features - features.mean(dim=0)) / features.std(dim=0).clamp(min=1e-6)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class")  # it is judged all the same
        parts = StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(taught, labels[taught])
        folds = [
            (taught[seen], np.concatenate([taught[unseen], others[fold::FOLDS]]))
            for fold, (seen, unseen) in enumerate(parts)
        ]
    weights = [(torch.zeros(classes, x.shape[1]), torch.zeros(classes)) for _ in folds]
    best, least = None, np.inf
    for penalty in _PENALTIES:  # from simple to complex, each from the one before
        logits = torch.zeros(len(x), classes)
        for number, (seen, unseen) in enumerate(folds):
            weights[number] = regress(x[seen], labels[seen], penalty, *weights[number])
            weight, bias = weights[number]
            logits[unseen] = x[unseen] @ weight.T + bias
        loss = F.cross_entropy(logits[taught], labels[taught]).item()
        if loss < least:
            best, least = logits, loss
        else:
            break
    return None if best is None else best.double().softmax(dim=1).numpy()
