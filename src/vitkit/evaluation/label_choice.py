"""Choose which pictures to label next.

With few labels, `choose_next` selects pictures that represent many other pictures, because the uncertainty of a
classification head is not informative yet (Hacohen et al. 2022, arXiv 2202.02794).

With more labels, `choose_next` selects pictures with the smallest margin between the two most probable classes. The
selected pictures are spread over the feature space, so that a batch has no near-duplicates (Citovsky et al. 2021, arXiv
2107.14263).

This module does not need PyTorch.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

from vitkit.data.picture import QUIET

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

PER_CLASS = 8  # smallest average number of labels per class for which pictures are selected by margin
_CANDIDATES_PER_PICTURE = 8  # candidates with small margins for each requested picture
_MOST = 10_000  # maximum number of pictures to choose from, sampled at random if there are more
_MOST_CLUSTERS = 512
_PENALTY = 1 / 30  # regularisation of the head's weights, for features of length 1


def choose_next(
    features: npt.NDArray[np.floating],
    labels: Sequence[Hashable | None],
    count: int,
    seed: int = 0,
    may_choose: Sequence[bool] | None = None,
) -> list[int]:
    """Choose the pictures whose labels are expected to improve a classifier most, the most informative first.

    Args:
        features: features of a backbone that is not trained on these labels, (n, D), at any scale.
        labels: labels of the pictures, (n,); None for a picture without a label.
        count: number of pictures to choose, at least 1.
        seed: seed of the clustering.
        may_choose: whether each picture may be chosen, (n,); by default every picture without a label.

    Returns:
        Indices of pictures without labels. There are fewer than `count` if too few pictures are left.

    Raises:
        ValueError: the sizes do not match, or a feature is not finite.
    """
    x = np.asarray(features, np.float64)
    is_allowed = np.ones(len(labels), bool) if may_choose is None else np.asarray(may_choose, bool)
    if x.ndim != 2 or not len(x) == len(labels) == len(is_allowed) or count < 1:
        raise ValueError(
            "features must be (n, D), with n labels, n values of may_choose, and at least 1 to choose, "
            f"not {x.shape} with {len(labels)} labels and {count} to choose"
        )
    if not np.isfinite(x).all():
        raise ValueError("features must be finite")
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    is_labelled = np.array([label is not None for label in labels], bool)
    labelled = np.flatnonzero(is_labelled)
    pool = np.flatnonzero(~is_labelled & is_allowed)
    if len(pool) <= count:
        return [int(i) for i in pool]
    generator = np.random.default_rng(seed)
    if len(pool) > _MOST:
        pool = np.sort(generator.choice(pool, max(_MOST, count), replace=False))
    label_names = [str(label) for label in labels if label is not None]
    classes, class_numbers = np.unique(label_names, return_inverse=True)
    if len(classes) < 2 or len(labelled) < PER_CLASS * len(classes):
        # Pictures near the centre of their cluster, from clusters with few labelled pictures, and large ones.
        pictures = np.concatenate([x[pool], x[labelled]])
        cluster, distance = _clusters(pictures, min(len(labelled) + count, _MOST_CLUSTERS), seed)
        size = np.bincount(cluster)
        labelled_count = np.bincount(cluster[len(pool) :], minlength=len(size))  # in each cluster
        cluster, distance = cluster[: len(pool)], distance[: len(pool)]
        ranks = _ranks(cluster, distance) + labelled_count[cluster]  # labelled pictures have the first ranks
        order = np.lexsort((distance, -size[cluster], ranks))[:count]  # the last key is the first criterion
    else:
        # Pictures with small margins, from different clusters as far as possible.
        from sklearn.linear_model import LogisticRegression

        with QUIET:  # approximate convergence is enough for choosing
            head = LogisticRegression(C=1 / _PENALTY, max_iter=300).fit(x[labelled], class_numbers)
        probabilities = np.sort(head.predict_proba(x[pool]), axis=1)
        margin = probabilities[:, -1] - probabilities[:, -2]  # between the two highest probabilities
        candidates = np.argsort(margin, kind="stable")[: _CANDIDATES_PER_PICTURE * count]
        weights = 1 - margin[candidates] + 1e-3  # positive also for a margin of 1
        cluster, distance = _clusters(x[pool[candidates]], min(count, _MOST_CLUSTERS), seed, weights)
        chosen = candidates[np.lexsort((margin[candidates], _ranks(cluster, distance)))[:count]]
        order = chosen[np.argsort(margin[chosen], kind="stable")]
    return [int(i) for i in pool[order]]


def _clusters(x: Floats, count: int, seed: int, weights: Floats | None = None) -> tuple[Ints, Floats]:
    """Cluster features (n, D) by k-means. Return each picture's cluster and distance to the centre, both (n,)."""
    from sklearn.cluster import KMeans

    count = min(count, len(np.unique(x, axis=0)))  # there cannot be more clusters than different pictures
    with QUIET:  # nearly equal pictures form fewer clusters
        means = KMeans(count, n_init=3, random_state=seed).fit(x, sample_weight=weights)
    cluster = means.labels_.astype(np.int64)
    return cluster, np.linalg.norm(x - means.cluster_centers_[cluster], axis=1)


def _ranks(cluster: Ints, distance: Floats) -> Ints:
    """Return the rank (n,) of each picture within its cluster, by distance from the centre, starting at 0."""
    order = np.lexsort((distance, cluster))
    first = np.searchsorted(cluster[order], np.arange(cluster.max() + 1))
    ranks = np.empty(len(cluster), np.int64)
    ranks[order] = np.arange(len(cluster)) - first[cluster[order]]
    return ranks
