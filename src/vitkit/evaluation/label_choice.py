"""Which pictures to label next: such as many others are like, while labels are few; then such as a head is unsure of.

While few pictures have labels a head knows too little to say what it is unsure of, and pictures that stand for many
others teach the most (Hacohen et al. 2022, arXiv 2202.02794). With more labels the smallest margin between the two most
probable classes does, spread over what the pictures show, so that one batch does not ask the same thing twice (Citovsky
et al. 2021, arXiv 2107.14263). Nothing here needs PyTorch.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

from vitkit.data.decode import QUIET

Floats = npt.NDArray[np.float64]

PER_CLASS = 8  # labelled pictures of a class, on average, from which on the head is asked
_SPREAD = 8  # times as many unsure pictures as are asked for, among which the choice is spread out
_MOST = 10_000  # pictures that clusters are made of; of more, so many are drawn
_MOST_CLUSTERS = 512
_PENALTY = 1 / 30  # on the head's weights; features have length 1


def choose_next(
    features: npt.NDArray[np.floating],
    labels: Sequence[Hashable | None],
    count: int,
    seed: int = 0,
    may_choose: Sequence[bool] | None = None,
) -> list[int]:
    """The pictures whose labels would teach the most, those that teach most first.

    Args:
        features: (n, D), of a backbone that is not trained on these labels, of any scale.
        labels: (n,), None where a picture has none yet.
        count: how many are asked for, at least 1.
        seed: of the clusters.
        may_choose: (n,), whether a picture may be chosen at all; None: each that has no label may.

    Returns:
        Indices of pictures without labels; fewer than `count` where no more are left.

    Raises:
        ValueError: the sizes do not fit, or a feature is not finite.
    """
    x = np.asarray(features, np.float64)
    if x.ndim != 2 or len(labels) != len(x) or (may_choose is not None and len(may_choose) != len(x)) or count < 1:
        raise ValueError(f"features of {x.shape} with {len(labels)} labels, and {count} to choose")
    if not np.isfinite(x).all():
        raise ValueError("features must be finite")
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    known = np.array([label is not None for label in labels], bool)
    free = ~known if may_choose is None else ~known & np.asarray(may_choose, bool)
    chosen, pool = np.flatnonzero(known), np.flatnonzero(free)
    if len(pool) <= count:
        return [int(i) for i in pool]
    generator = np.random.default_rng(seed)
    if len(pool) > _MOST:
        pool = np.sort(generator.choice(pool, max(_MOST, count), replace=False))
    given = [str(label) for label in labels if label is not None]
    classes = sorted(set(given))
    if len(classes) < 2 or len(chosen) < PER_CLASS * len(classes):
        found = pool[_representative(x[pool], x[chosen], count, seed)]
    else:
        number = {name: k for k, name in enumerate(classes)}
        y = np.array([number[name] for name in given])
        found = pool[_unsure(x[pool], x[chosen], y, count, seed)]
    return [int(i) for i in found]


def _representative(pool: Floats, known: Floats, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Indices into the pool (n, D): the middles of the largest clusters that no known picture (m, D) is in."""
    everything = np.concatenate([pool, known])
    own, distance = _clusters(everything, min(len(known) + count, _MOST_CLUSTERS), seed)
    covered = np.bincount(own[len(pool) :], minlength=own.max() + 1)
    size = np.bincount(own)
    own, distance = own[: len(pool)], distance[: len(pool)]
    turn = _ranks(own, distance) + covered[own]
    return np.lexsort((distance, -size[own], turn))[:count]


def _unsure(pool: Floats, known: Floats, y: npt.NDArray[np.int64], count: int, seed: int) -> npt.NDArray[np.int64]:
    """Indices into the pool (n, D): those with the smallest margins, spread out, the least sure first."""
    margin = _margins(pool, known, y)
    unsure = np.argsort(margin, kind="stable")[: _SPREAD * count]
    own, distance = _clusters(pool[unsure], min(count, _MOST_CLUSTERS), seed, weights=1 - margin[unsure] + 1e-3)
    spread = unsure[np.lexsort((margin[unsure], _ranks(own, distance)))[:count]]
    return spread[np.argsort(margin[spread], kind="stable")]


def _margins(pool: Floats, known: Floats, y: npt.NDArray[np.int64]) -> Floats:
    """(n,) the probability of the most probable class less that of the next, by a linear head on what is known."""
    from sklearn.linear_model import LogisticRegression

    with QUIET:  # nearly there is good enough to choose by
        head = LogisticRegression(C=1 / _PENALTY, max_iter=300).fit(known, y)
    ordered = np.sort(head.predict_proba(pool), axis=1)
    return np.asarray(ordered[:, -1] - ordered[:, -2])


def _clusters(x: Floats, count: int, seed: int, weights: Floats | None = None) -> tuple[npt.NDArray[np.int64], Floats]:
    """Of each picture (n, D) its cluster and the distance to its middle, (n,) each."""
    from sklearn.cluster import KMeans

    count = min(count, len(np.unique(x, axis=0)))
    with QUIET:  # of pictures that are all but equal there are fewer
        means = KMeans(count, n_init=3, random_state=seed).fit(x, sample_weight=weights)
    own = means.labels_.astype(np.int64)
    return own, np.linalg.norm(x - means.cluster_centers_[own], axis=1)


def _ranks(own: npt.NDArray[np.int64], distance: Floats) -> npt.NDArray[np.int64]:
    """(n,) how many of its cluster are nearer to the middle than a picture."""
    order = np.lexsort((distance, own))
    first = np.searchsorted(own[order], np.arange(own.max() + 1))
    ranks = np.empty(len(own), np.int64)
    ranks[order] = np.arange(len(own)) - first[own[order]]
    return ranks
