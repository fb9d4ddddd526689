"""Lay out held-out images as points in the plane, so that images with similar features are close together."""

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
from vitkit.evaluation.metrics import Evaluation, MultiEvaluation

LaidOut: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]  # indices of m images, and points (m, 2)

MOST = 500  # images; more are neither legible nor quick
_FEWEST, _COMPONENTS = 20, 50


def embed(
    classifier: Classifier, evaluation: Evaluation, root: Place, progress: Callable[[int, int], None], seed: int = 0
) -> LaidOut | None:
    """Compute features of at most 500 images and lay them out as points in the plane.

    Args:
        classifier: classifier whose features determine the layout.
        evaluation: evaluation of the images.
        root: folder or storage that the paths of the evaluation are relative to.
        progress: called with the number of images done and the total.
        seed: seed of the choice of images and of t-SNE.

    Returns:
        Indices of m <= 500 images, (m,), and their points, (m, 2). None if there are too few images, or if images may
        have several classes.
    """
    if isinstance(evaluation, MultiEvaluation):
        return None
    n = len(evaluation.paths)
    chosen = np.sort(np.random.default_rng(seed).permutation(n)[:MOST])
    kept, features = [], []
    paths = (root / evaluation.paths[i] for i in chosen)
    stream = classifier.embed(paths, precision=classifier.precision)  # as for predictions
    for done, (i, (_, outcome)) in enumerate(zip(chosen.tolist(), stream, strict=True), start=1):
        if not isinstance(outcome, str):  # a string is the reason why the file has become unreadable
            kept.append(i)
            features.append(outcome)
        progress(done, len(chosen))
    points = lay_out(np.stack(features), seed) if features else None
    return None if points is None else (np.array(kept), points)


def lay_out(features: npt.NDArray[np.float32], seed: int = 0) -> npt.NDArray[np.float32] | None:
    """Map features (n, D) to points (n, 2) by PCA to 50 components and t-SNE (van der Maaten & Hinton 2008).

    Returns:
        Points (n, 2), or None if there are fewer than 20 images or all features are alike.
    """
    n = len(features)
    if n < _FEWEST or not np.isfinite(features).all() or np.allclose(features, features[0]):
        return None
    reduced = PCA(min(_COMPONENTS, n - 1, features.shape[1]), random_state=seed).fit_transform(features)
    perplexity = min(30.0, (n - 1) / 3)
    tsne = TSNE(init="pca", perplexity=perplexity, random_state=seed)
    with threadpool_limits(1):  # with so few points, more threads only wait for each other
        points: npt.NDArray[np.float32] = tsne.fit_transform(reduced)
    return points.astype(np.float32)
