"""The choice of the score for unknown images at the end of a training, and what is said of its limits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binomtest, t

from clouds import far, known
from vitkit.errors import VitkitError
from vitkit.inference import METHODS, Seen
from vitkit.training import LEFT_OUT, fit_unknown, make_strangers
from vitkit.training.strangers import _best, _Detection, _for_another

Array = npt.NDArray[np.float64]


def test_the_best_score_is_chosen_and_measured_on_other_strangers() -> None:
    unknown = fit_unknown(known(300, 0), known(200, 1), {"far": far(100, 2)})
    assert unknown.passing[unknown.method] <= unknown.passing["joint"]
    assert unknown.method != "energy"  # which cannot see that direction
    assert {limit.kind: limit.images for limit in unknown.limits}["far"] == 50  # the other half chose
    fresh = unknown.of(far(2000, 3))
    limit = unknown.limits[0]
    assert limit.bounds[0] <= (fresh > 0.05).mean() <= limit.bounds[1]
    exact = binomtest(round(limit.share * limit.images), limit.images).proportion_ci(0.95, "exact")
    assert limit.bounds == pytest.approx((exact.low, exact.high))


def before(n: int, seed: int, spread: float = 1.0) -> Seen:
    """Images of five classes as the initial weights see them: clouds, some of which are close together."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 5, n)
    return Seen(spread * np.eye(5, 8)[labels] + rng.standard_normal((n, 8)), np.empty((n, 0)), labels)


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


def test_the_interval_for_another_class_covers_it() -> None:
    """Over many sets of classes that differ, the prediction interval contains the share of one more class."""
    rng, hits, rounds = np.random.default_rng(0), 0, 400
    for _ in range(rounds):
        angles = np.clip(rng.normal(0.8, 0.2, 6), 0, np.pi / 2)
        *shares, another = np.sin(angles) ** 2
        low, high = _for_another(np.array(shares), np.full(5, 1e6))
        hits += low <= another <= high
    assert 0.92 < hits / rounds < 0.98
    shares = np.array([0.2, 0.5, 0.4])
    angles = np.arcsin(np.sqrt(shares))
    reach = t.ppf(0.975, 2) * angles.std(ddof=1) * (4 / 3) ** 0.5
    expected = np.sin(np.clip([angles.mean() - reach, angles.mean() + reach], 0, np.pi / 2)) ** 2
    assert _for_another(shares, np.full(3, 1e6)) == pytest.approx(tuple(expected))
    low, high = _for_another(np.zeros(4), np.full(4, 10.0))
    assert low == 0 < high  # ten images that are all noticed do not show that every image is


@pytest.mark.parametrize(("best", "expected"), [("energy", "energy"), ("none", "joint")])
def test_another_method_must_be_clearly_better_than_the_combination(best: str, expected: str) -> None:
    def trials(share: float, seed: int) -> list[_Detection]:
        rng, none = np.random.default_rng(seed), np.empty(0, bool)
        kinds = [*"abcd", *[LEFT_OUT] * 4]
        return [_Detection(kind, rng.random(50) < share, none) for kind in kinds]

    every = {method: trials(0.2 if method == best else 0.5, i) for i, method in enumerate(METHODS)}
    assert _best(every) == expected


def test_few_validation_images_lower_what_is_accepted() -> None:
    unknown = fit_unknown(known(300, 0), known(10, 1), {"far": far(100, 2)})
    assert unknown.accepted == pytest.approx(1 - {1: 1, 2: 3}[len(unknown.scores)] / 11)
    assert unknown.limits[0].share < 0.2  # at 0.05, every image would pass


@pytest.mark.parametrize("images", [1, 2])
def test_with_hardly_any_validation_image_no_limit_is_stated(images: int) -> None:
    unknown = fit_unknown(known(300, 0), known(images, 1), {"alike": known(400, 2)})
    assert (unknown.method, unknown.accepted, unknown.limits) == ("joint", 0.0, ())


def test_strangers_that_look_known_are_said_to_pass() -> None:
    """A guard against a report that flatters: these are known images under another name."""
    unknown = fit_unknown(known(300, 0), known(200, 1), {"alike": known(400, 2)})
    limit = unknown.limits[0]
    assert limit.kind == "alike"
    assert limit.bounds[0] <= 0.95 <= limit.bounds[1] + 0.05


def test_one_class_and_no_images() -> None:
    images = known(50, 0)
    single = Seen(images.features, images.logits[:, :1], np.zeros(50, np.int64))
    assert [limit.kind for limit in fit_unknown(single, single, {"far": far(10, 1)}).limits] == ["far"]
    with pytest.raises(VitkitError, match="no held-out images"):
        fit_unknown(images, images.at(np.zeros(50, bool)), {})


def test_a_class_is_not_left_out_if_only_one_image_would_remain_in_the_folds() -> None:
    images, labels = known(12, 0), np.array([0] * 11 + [1])
    train = Seen(images.features, images.logits[:, :2], labels)
    fold = np.arange(12) % 3
    parts = [(train.at(fold != k), train.at(fold == k)) for k in range(3)]
    unknown = fit_unknown(train, parts, {}, (train, parts))
    assert unknown.known.shape[1] == 12
    assert not unknown.limits, "one class says nothing about another one"


# --- Pictures of strangers ------------------------------------------------------------------------------------


def test_strangers_keep_the_statistics_of_the_images() -> None:
    images = np.random.default_rng(0).normal(2.0, 3.0, (12, 3, 16, 20)).astype(np.float32)
    made = make_strangers(images)
    sorts = {name for name in made if name.startswith("patterns: ")}
    assert set(made) - sorts == {"noise", "clouds", "shuffled patches"}
    assert sorts == {
        f"patterns: {p}{c}" for p in ("stripes", "checks", "rings", "dots") for c in ("", " in any colours")
    }
    for kind, pictures in made.items():
        assert (pictures.shape, pictures.dtype) == ((3 if kind in sorts else 12, *images.shape[1:]), np.float32)
        assert np.isfinite(pictures).all()
        assert not np.array_equal(pictures, images)
        again = make_strangers(images)[kind]
        assert np.array_equal(pictures, again)
    shuffled = made["shuffled patches"]
    assert np.array_equal(np.sort(shuffled.ravel()), np.sort(images.ravel()))
    assert abs(made["noise"].mean() - 2) < 0.1
    assert abs(made["noise"].std() - 3) < 0.1
    for picture in np.concatenate([made[sort] for sort in sorts]):  # mixtures of two colours
        rows = picture.reshape(3, -1).T.astype(np.float64)
        assert np.linalg.matrix_rank(rows - rows[0], tol=1e-3) <= 1
        assert images.min() - 1e-3 <= rows.min() <= rows.max() <= images.max() + 1e-3


def test_an_image_suffices_for_strangers() -> None:
    made = make_strangers(np.random.default_rng(0).random((1, 3, 8, 8)).astype(np.float32))
    assert {len(pictures) for pictures in made.values()} == {1}


def test_the_interval_of_several_sorts_is_for_another_sort() -> None:
    sorts = {f"patterns: {name}": known(100, i) if name == "alike" else far(100, i) for i, name in enumerate("abc")}
    alike = sorts | {"patterns: alike": known(100, 9)}
    (limit,) = fit_unknown(known(300, 0), known(200, 1), sorts).limits
    assert (limit.kind, limit.images, limit.sorts, limit.classes) == ("patterns", 150, 3, 0)
    assert limit.share < 0.1 and limit.bounds[1] < 0.4
    (limit,) = fit_unknown(known(300, 0), known(200, 1), alike).limits
    assert limit.sorts == 4 and 0.2 < limit.share < 0.4 and limit.bounds[1] > 0.9


@pytest.mark.parametrize(("kind", "slope"), [("clouds", -1.0), ("noise", 0.0)])
def test_the_spectrum_of_clouds_falls_like_that_of_photographs(kind: str, slope: float) -> None:
    """Amplitude as a power of frequency, by least squares over all frequencies."""
    images = np.random.default_rng(0).normal(0, 1, (8, 3, 64, 64)).astype(np.float32)
    pictures = make_strangers(images)[kind]
    amplitude = np.abs(np.fft.rfft2(pictures)).mean(axis=(0, 1)).ravel()[1:]
    frequency = np.hypot(np.fft.fftfreq(64)[:, None], np.fft.rfftfreq(64)[None]).ravel()[1:]
    assert np.polyfit(np.log(frequency), np.log(amplitude), 1)[0] == pytest.approx(slope, abs=0.05)
