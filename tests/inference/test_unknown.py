"""How unfamiliar an image is: p-values that are exact for known images, scores that other implementations confirm."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from sklearn.covariance import ledoit_wolf
from sklearn.neighbors import NearestNeighbors

from clouds import far, known, seen
from vitkit.errors import VitkitError
from vitkit.inference import (
    METHODS,
    Method,
    Part,
    Seen,
    Unknown,
    check_level,
    fit_score,
    from_arrays,
    p_values,
    to_arrays,
)
from vitkit.inference.unknown import _inverse_root, _shrunk_covariance

Array = npt.NDArray[np.float64]

# --- The p-value ----------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.lists(st.integers(-2, 12), min_size=1, max_size=9))
def test_p_values_count_what_is_at_least_as_strange(calibration: list[int], scores: list[int]) -> None:
    expected = [(1 + sum(other >= score for other in calibration)) / (len(calibration) + 1) for score in scores]
    values = p_values(np.array([calibration], dtype=np.float64), np.array([scores], dtype=np.float64))
    assert values.tolist() == expected


def by_pool(pool: Array, weights: tuple[float, ...], i: int) -> float:
    """The p-value of image i of a pool (parts, n + 1), written out: the part that is at least as extreme."""
    images = range(pool.shape[1])
    least = [
        min(sum(other >= row[j] for other in row) / weight for row, weight in zip(pool, weights, strict=True))
        for j in images
    ]
    return sum(each <= least[i] for each in least) / len(images)


@settings(max_examples=60)
@given(
    st.sampled_from([(1.0,), (0.5, 0.5), (0.3, 0.7), (0.2, 0.3, 0.5)]),
    st.integers(1, 12),
    st.integers(0, 10**6),
    st.booleans(),
)
def test_p_values_are_those_of_a_pool_that_treats_all_images_alike(
    weights: tuple[float, ...], n: int, seed: int, tied: bool
) -> None:
    """So whichever of n + 1 images is the new one, at most a fraction a of them has a value of at most a: exactness."""
    rng, shape = np.random.default_rng(seed), (len(weights), n + 1)
    pool = rng.integers(0, 4, shape).astype(np.float64) if tied else rng.standard_normal(shape)
    values = [p_values(np.delete(pool, i, axis=1), pool[:, i : i + 1], weights)[0] for i in range(n + 1)]
    assert values == pytest.approx([by_pool(pool, weights, i) for i in range(n + 1)])
    for level in np.arange(1, n + 2) / (n + 1):
        assert (np.array(values) <= level + 1e-12).mean() <= level + 1e-12


@pytest.mark.parametrize("method", METHODS)
def test_few_known_images_are_called_unknown(method: Method) -> None:
    """Over calibration sets no more than requested on average, and hardly fewer, whatever the score."""
    train = known(200, 0)
    rates = []
    for seed in range(1, 150):
        values = Unknown.fit(method, train, known(99, seed)).of(known(50, 1000 + seed))
        rates.append((values <= 0.05).mean())
    margin = 4 * np.std(rates) / len(rates) ** 0.5
    assert 0.04 - margin < np.mean(rates) < 0.05 + margin  # ranks of joint tie, so that it may be a little lower


def test_a_level_that_no_image_can_reach_is_refused() -> None:
    def fitted(method: Method, images: int) -> Unknown:
        return Unknown.fit(method, known(60, 0), known(images, 1))

    check_level(fitted("neighbours", 99), 0.01)
    check_level(fitted("joint", 59), 0.05)
    for method, images, needed, least in (("neighbours", 98, 99, "0.0102"), ("joint", 298, 299, "0.0101")):
        with pytest.raises(VitkitError, match=rf"0.01 requires at least {needed} .* had {images}: .* use {least} or"):
            check_level(fitted(method, images), 0.01)  # type: ignore[arg-type]
        check_level(fitted(method, images), float(least))  # type: ignore[arg-type]
    for level in (0.0, 1.0, 1.5):
        with pytest.raises(VitkitError, match=rf"--unknown {level} must be above 0 and below 1"):
            check_level(fitted("energy", 98), level)


def test_an_image_that_is_extreme_by_one_of_two_scores_is_called_unknown_at_the_lowest_level() -> None:
    images = 39
    unknown = Unknown.fit("joint", known(60, 0), known(images, 1))
    assert unknown.of(far(50, 2)).max() <= 3 / (images + 1)


# --- The scores -----------------------------------------------------------------------------------------------


def test_energy_is_minus_the_log_sum_of_exponentials() -> None:
    images = known(20, 3)
    shifted = Seen(images.features, images.logits * 100 - 5000, images.labels)
    for each in (images, shifted):
        assert np.allclose(fit_score("energy", known(5, 0)).of(each), -logsumexp(each.logits, axis=1))


@pytest.mark.parametrize(("images", "k"), [(5, 1), (25, 2), (60, 3), (500, 3)])
def test_distances_to_neighbours_are_those_of_scikit_learn(images: int, k: int) -> None:
    train, others = known(images, 0), known(30, 2)
    score = fit_score("neighbours", train)
    assert score.nearest == k
    tree = NearestNeighbors(n_neighbors=k).fit(score.points.astype(np.float64))
    distances, _ = tree.kneighbors(others.features / np.linalg.norm(others.features, axis=1, keepdims=True))
    assert score.of(others) == pytest.approx(distances[:, -1] ** 2, abs=1e-9)


def test_mahalanobis_has_the_shrunk_covariance_of_scikit_learn() -> None:
    stretch = np.diag([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    train, images = (seen(x.features @ stretch, x.labels) for x in (known(60, 0), known(11, 1)))
    means = np.stack([train.features[train.labels == k].mean(axis=0) for k in range(3)])
    covariance, amount = ledoit_wolf(train.features - means[train.labels], assume_centered=True)
    assert 0 < amount < 1
    offsets = images.features[:, None] - means
    expected = np.einsum("nkd,de,nke->nk", offsets, np.linalg.inv(covariance), offsets).min(axis=1)
    assert np.allclose(fit_score("mahalanobis", train).of(images), expected, rtol=1e-4)


@pytest.mark.parametrize("images", [3, 40])
def test_either_root_of_the_inverse_covariance_gives_the_same_distances(images: int) -> None:
    rows = np.random.default_rng(images).standard_normal((images, 20)) * np.arange(1, 21)
    covariance, least = _shrunk_covariance(rows)
    assert 0 < least <= np.linalg.eigvalsh(covariance)[0] * (1 + 1e-9)
    for bound in (least, 0.0):  # by Cholesky's decomposition, by eigenvectors
        root = _inverse_root(covariance, bound)
        np.testing.assert_allclose(root @ root.T @ covariance, np.eye(20), atol=1e-10)


def test_more_features_than_images_give_finite_scores() -> None:
    rng = np.random.default_rng(0)
    train = Seen(rng.standard_normal((8, 50)), rng.standard_normal((8, 2)), np.arange(8) % 2)
    parts: tuple[Part, ...] = ("neighbours", "mahalanobis", "energy")
    for part in parts:
        assert np.isfinite(fit_score(part, train).of(train)).all()


# --- Storage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_score_is_stored_without_loss(method: Method) -> None:
    unknown = Unknown.fit(method, known(60, 0), known(40, 1))
    arrays, about = to_arrays(unknown)
    again = from_arrays(arrays, json.loads(json.dumps(about)))
    images = known(30, 2)
    assert np.array_equal(again.of(images), unknown.of(images))
    assert again.width == (0 if method == "energy" else 6)


def test_damaged_scores_are_refused() -> None:
    arrays, about = to_arrays(Unknown.fit("joint", known(60, 0), known(40, 1)))
    for name, array in (
        ("known", arrays["known"][:1]),
        ("known", arrays["known"] * np.nan),
        ("neighbours.points", arrays["neighbours.points"][:, :0]),
        ("neighbours.points", arrays["neighbours.points"][0]),
    ):
        with pytest.raises(ValueError, match="shape"):
            from_arrays({**arrays, name: array}, about)
    with pytest.raises(KeyError):
        from_arrays(arrays, {**about, "method": "best"})
    for k in (0, 61):
        with pytest.raises(ValueError, match=f"must count 1 to 60 neighbours, not {k}"):
            from_arrays(arrays, {**about, "nearest": {"neighbours": k}})
    for damaged in ("3", {"neighbours": "three"}, None):
        with pytest.raises((TypeError, ValueError)):
            from_arrays(arrays, {**about, "nearest": damaged})


def test_a_score_that_was_stored_without_its_number_of_neighbours_counts_ten() -> None:
    arrays, about = to_arrays(Unknown.fit("joint", known(120, 0), known(40, 1)))
    del about["nearest"]
    assert [score.nearest for score in from_arrays(arrays, about).scores] == [10, 1]


def test_it_loads_nothing_heavy() -> None:
    code = (
        "import sys, vitkit.inference.unknown\n"
        "print([name for name in ('torch', 'scipy', 'sklearn') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
