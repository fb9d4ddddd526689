"""Held-out images as points on a page: images that the model sees alike lie together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from vitkit.classifier import Classifier
from vitkit.data.storage import Place
from vitkit.evaluation.metrics import Evaluation
from vitkit.evaluation.multilabel import MultiEvaluation

LaidOut: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]  # numbers of m images, and points (m, 2)

MOST = 500  # images; more are neither legible nor quick
_FEWEST, _COMPONENTS = 20, 50


def embed(
    classifier: Classifier, evaluation: Evaluation, root: Place, progress: Callable[[int, int], None], seed: int = 0
) -> LaidOut | None:
    """Some of the images of an evaluation, and where they are on the page.

    Args:
        classifier: whose features they are laid out by.
        evaluation: of the images.
        root: the folder, or storage, that its paths are relative to.
        progress: told how many are done, of how many.
        seed: of the choice and the layout.

    Returns:
        Numbers of m <= 500 images, (m,), and their points, (m, 2); None where there are too few to say
        anything, or where images may have several classes.
    """
    if isinstance(evaluation, MultiEvaluation):
        return None
    n = len(evaluation.paths)
    chosen = np.sort(np.random.default_rng(seed).permutation(n)[:MOST])
    kept, features = [], []
    paths = (root / evaluation.paths[i] for i in chosen)
    stream = classifier.embed(paths, precision=classifier.precision)  # a picture needs no more than answers do
    for done, (i, (_, outcome)) in enumerate(zip(chosen.tolist(), stream, strict=True), start=1):
        if not isinstance(outcome, str):  # it was readable a moment ago
            kept.append(i)
            features.append(outcome)
        progress(done, len(chosen))
    points = lay_out(np.stack(features), seed) if features else None
    return None if points is None else (np.array(kept), points)


def lay_out(features: npt.NDArray[np.float32], seed: int = 0) -> npt.NDArray[np.float32] | None:
    """(n, D) features to (n, 2) points, by t-SNE of their first 50 principal components (van der Maaten & Hinton 2008).

    Returns:
        None of fewer than 20 images, or where all are alike.
    """
    n = len(features)
    if n < _FEWEST or not np.isfinite(features).all() or np.allclose(features, features[0]):
        return None
    reduced = PCA(min(_COMPONENTS, n - 1, features.shape[1]), random_state=seed).fit_transform(features)
    perplexity = min(30.0, (n - 1) / 3)
    tsne = TSNE(init="pca", perplexity=perplexity, random_state=seed)
    with threadpool_limits(1):  # a step of so few points is short: threads would only wait for one another
        points: npt.NDArray[np.float32] = tsne.fit_transform(reduced)
    return points.astype(np.float32)
