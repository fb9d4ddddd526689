"""The score for unknown images is fitted at the end of a training, and its limits are measured and stated."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from clouds import far, known
from refusals import refused
from vitkit.training import LEFT_OUT, LabelledFeatures, fit_unknown, make_pictures
from vitkit.training.unknown import _prediction_interval


def test_the_share_that_passes_is_measured_with_its_interval() -> None:
    unknown = fit_unknown(known(300, 0), known(200, 1), {"far": far(100, 2)})
    (limit,) = unknown.limits
    assert (limit.kind, limit.images) == ("far", 100)
    assert limit.bounds[0] <= (unknown.p_values(far(2000, 3)) > 0.05).mean() <= limit.bounds[1]
    alike = fit_unknown(known(300, 0), known(200, 1), {"alike": known(400, 2)}).limits[0]
    assert alike.bounds[0] <= 0.95 <= alike.bounds[1] + 0.05, "known images under another name pass, and it is said"
    exact = binomtest(round(limit.share * limit.images), limit.images).proportion_ci(0.95, "exact")
    assert limit.bounds == pytest.approx((exact.low, exact.high))


def before(n: int, seed: int, spread: float) -> LabelledFeatures:
    """Images of five classes as the initial weights see them: clouds, some of which are close together."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 5, n)
    return LabelledFeatures(spread * np.eye(5, 8)[labels] + rng.standard_normal((n, 8)), labels)


def in_folds(train: LabelledFeatures, folds: int) -> Any:
    fold = np.arange(len(train.labels)) % folds
    pairs = [(train.select(fold != k), train.select(fold == k)) for k in range(folds)]
    return fit_unknown(train.features, [(a.features, b.features) for a, b in pairs], {}, (train, pairs))


def test_classes_are_left_out_of_the_initial_weights_alone() -> None:
    """Trained features know the class that is left out, and would flatter the score."""
    unknown = fit_unknown(known(300, 0), known(200, 1), {}, (before(300, 0, 0.0), before(200, 1, 0.0)))
    (limit,) = unknown.limits
    assert (limit.kind, limit.classes) == (LEFT_OUT, 5)
    assert 0.8 < limit.share <= 1  # features that say nothing
    assert limit.bounds[0] < 0.95 <= limit.bounds[1]
    assert not fit_unknown(known(300, 0), known(200, 1), {}).limits
    easy = fit_unknown(known(300, 0), known(200, 1), {}, (before(300, 0, 20.0), before(200, 1, 20.0)))
    assert easy.limits[0].share < 0.1
    (limit,) = in_folds(before(200, 0, 20.0), 4).limits
    assert (limit.kind, limit.classes, limit.images) == (LEFT_OUT, 5, 200) and limit.share < 0.1
    lonely = in_folds(LabelledFeatures(known(12, 0), np.array([0] * 11 + [1])), 3)  # one image is left in the folds
    assert lonely.known.shape == (12,)
    assert not lonely.limits, "one class says nothing about another one"


def test_the_interval_for_another_class_covers_it() -> None:
    """Over many sets of classes that differ, the prediction interval contains the share of one more class."""
    rng, hits, rounds = np.random.default_rng(0), 0, 400
    for _ in range(rounds):
        angles = np.clip(rng.normal(0.8, 0.2, 6), 0, np.pi / 2)
        *shares, another = np.sin(angles) ** 2
        low, high = _prediction_interval(np.array(shares), np.full(5, 1e6))
        hits += low <= another <= high
    assert 0.92 < hits / rounds < 0.98
    low, high = _prediction_interval(np.zeros(4), np.full(4, 10.0))
    assert low == 0 < high  # ten images that are all noticed do not show that every image is


def test_few_validation_images_lower_what_is_accepted_and_none_are_refused() -> None:
    unknown = fit_unknown(known(300, 0), known(10, 1), {"far": far(100, 2)})
    assert unknown.accepted == pytest.approx(1 - 1 / 11)
    assert unknown.limits[0].share < 0.2  # at 0.05, every image would pass
    assert fit_unknown(known(300, 0), known(1, 1), {"alike": known(400, 2)}).accepted == pytest.approx(0.5)
    with refused("training.held-out-missing"):
        fit_unknown(known(50, 0), known(0, 1), {})


def test_made_pictures_keep_the_statistics_of_the_images() -> None:
    images = np.random.default_rng(0).normal(2.0, 3.0, (12, 3, 16, 20)).astype(np.float32)
    made, again = make_pictures(images), make_pictures(images)
    names = [f"patterns: {p}{c}" for p in ("stripes", "checks", "rings", "dots") for c in ("", " in any colours")]
    assert made.keys() == {"noise", "clouds", "shuffled patches", *names}
    for kind, pictures in made.items():
        assert (pictures.shape, pictures.dtype) == ((3 if kind in names else 12, *images.shape[1:]), np.float32)
        assert np.isfinite(pictures).all() and not np.array_equal(pictures, images)
        assert np.array_equal(pictures, again[kind])
    assert {len(own) for own in make_pictures(images[:1, :, :8, :8]).values()} == {1}, "an image suffices"
    assert np.array_equal(np.sort(made["shuffled patches"].ravel()), np.sort(images.ravel()))
    assert abs(made["noise"].mean() - 2) < 0.1 and abs(made["noise"].std() - 3) < 0.1
    for picture in np.concatenate([made[name] for name in names]):  # mixtures of two colours
        rows = picture.reshape(3, -1).T.astype(np.float64)
        assert np.linalg.matrix_rank(rows - rows[0], tol=1e-3) <= 1
        assert images.min() - 1e-3 <= rows.min() <= rows.max() <= images.max() + 1e-3


def test_the_interval_of_several_sorts_is_for_another_sort() -> None:
    sorts = {f"patterns: {name}": known(100, i) if name == "alike" else far(100, i) for i, name in enumerate("abc")}
    alike = sorts | {"patterns: alike": known(100, 9)}
    (limit,) = fit_unknown(known(300, 0), known(200, 1), sorts).limits
    assert (limit.kind, limit.images, limit.sorts, limit.classes) == ("patterns", 300, 3, 0)
    assert limit.share < 0.1 and limit.bounds[1] < 0.4
    (limit,) = fit_unknown(known(300, 0), known(200, 1), alike).limits
    assert limit.sorts == 4 and 0.2 < limit.share < 0.4 and limit.bounds[1] > 0.9


def test_the_spectrum_of_clouds_falls_like_that_of_photographs() -> None:
    """Amplitude as a power of frequency, by least squares over all frequencies."""
    images = np.random.default_rng(0).normal(0, 1, (8, 3, 64, 64)).astype(np.float32)
    amplitude = np.abs(np.fft.rfft2(make_pictures(images)["clouds"])).mean(axis=(0, 1)).ravel()[1:]
    frequency = np.hypot(np.fft.fftfreq(64)[:, None], np.fft.rfftfreq(64)[None]).ravel()[1:]
    assert np.polyfit(np.log(frequency), np.log(amplitude), 1)[0] == pytest.approx(-1, abs=0.05)
