"""How unfamiliar an image is: p-values that are exact for known images, scores that other implementations confirm."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors

from clouds import far, known
from refusals import refused
from vitkit.inference import Neighbours, Unknown, check_level, from_arrays, p_values, to_arrays


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.lists(st.integers(-2, 12), min_size=1, max_size=9))
def test_p_values_count_what_is_at_least_as_strange(calibration: list[int], scores: list[int]) -> None:
    expected = [(1 + sum(other >= score for other in calibration)) / (len(calibration) + 1) for score in scores]
    values = p_values(np.array(calibration, dtype=np.float64), np.array(scores, dtype=np.float64))
    assert values.tolist() == expected


@settings(max_examples=60)
@given(st.integers(1, 12), st.integers(0, 10**6), st.booleans())
def test_p_values_are_exact_whichever_image_is_the_new_one(n: int, seed: int, tied: bool) -> None:
    """At most a fraction a of n + 1 images has a value of at most a."""
    rng = np.random.default_rng(seed)
    pool = rng.integers(0, 4, n + 1).astype(np.float64) if tied else rng.standard_normal(n + 1)
    values = np.array([p_values(np.delete(pool, i), pool[i : i + 1])[0] for i in range(n + 1)])
    for level in np.arange(1, n + 2) / (n + 1):
        assert (values <= level + 1e-12).mean() <= level + 1e-12


def test_few_known_images_are_called_unknown() -> None:
    """Over calibration sets no more than requested on average, and hardly fewer, whatever the score."""
    train = known(200, 0)
    rates = []
    for seed in range(1, 150):
        values = Unknown.fit(train, known(99, seed)).p_values(known(50, 1000 + seed))
        rates.append((values <= 0.05).mean())
    margin = 4 * np.std(rates) / len(rates) ** 0.5
    assert 0.04 - margin < np.mean(rates) < 0.05 + margin


def test_a_level_that_no_image_can_reach_is_refused() -> None:
    def fitted(images: int) -> Unknown:
        return Unknown.fit(known(60, 0), known(images, 1))

    check_level(fitted(99), 0.01)
    check_level(fitted(19), 0.05)
    with refused("inference.images-too-few", "99", "98", "0.0102"):
        check_level(fitted(98), 0.01)
    check_level(fitted(98), 0.0102)
    for level in (0.0, 1.0, 1.5):
        with refused("inference.share-outside"):
            check_level(fitted(98), level)
    assert fitted(39).p_values(far(50, 2)).max() <= 1 / 40, "what is unlike all has the lowest value"


@pytest.mark.parametrize(("images", "k"), [(5, 1), (25, 2), (60, 3), (500, 3)])
def test_distances_to_neighbours_are_those_of_scikit_learn(images: int, k: int) -> None:
    train, others = known(images, 0), known(30, 2)
    score = Neighbours.fit(train)
    assert score.nearest == k
    tree = NearestNeighbors(n_neighbors=k).fit(score.points.astype(np.float64))
    distances, _ = tree.kneighbors(others / np.linalg.norm(others, axis=1, keepdims=True))
    assert score.distances(others) == pytest.approx(distances[:, -1] ** 2, abs=1e-9)


def test_more_features_than_images_give_finite_scores() -> None:
    train = np.random.default_rng(0).standard_normal((8, 50))
    assert np.isfinite(Neighbours.fit(train).distances(np.vstack([train, np.zeros((1, 50))]))).all()


def test_a_score_is_stored_without_loss() -> None:
    unknown = Unknown.fit(known(60, 0), known(40, 1))
    arrays, about = to_arrays(unknown)
    again = from_arrays(arrays, json.loads(json.dumps(about)))
    assert np.array_equal(again.p_values(known(30, 2)), unknown.p_values(known(30, 2)))
