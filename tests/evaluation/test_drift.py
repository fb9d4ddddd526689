"""Whether images are like those of a training: false alarms are as rare as promised, and changes are noticed."""

import numpy as np
import numpy.typing as npt
import pytest

from vitkit.evaluation import Sample, detectable_rise, drift_tests
from vitkit.evaluation.drift import _class_shares_p_value

CLASSES = ("a", "b", "c", "d")


def sample(n: int, seed: int, shares: tuple[float, ...] = (0.25, 0.25, 0.25, 0.25), shift: float = 0.0) -> Sample:
    rng = np.random.default_rng(seed)
    predicted = rng.choice(4, n, p=shares).astype(np.int64)
    distance = rng.normal(predicted * 0.1 + shift, 1.0)
    return Sample(predicted, np.clip(0.05 + 0.01 * distance + rng.normal(0, 0.01, n), 0, 1), distance)


def alarm(before: Sample, now: Sample) -> bool:
    return any(test.adjusted <= 0.05 for test in drift_tests(before, now, CLASSES))


def test_false_alarms_are_as_rare_as_promised() -> None:
    """Images of both sets are drawn in the same way. 95 % of 200 binomial draws are at most 15."""
    alarms = sum(alarm(sample(120, 2 * i), sample(90, 2 * i + 1)) for i in range(200))
    assert alarms <= 15


@pytest.mark.parametrize(
    ("changed", "name"),
    [({"shares": (0.4, 0.2, 0.2, 0.2)}, "classes"), ({"shift": 0.8}, "distance"), ({"shift": 0.8}, "confidence")],
)
def test_a_change_is_noticed_by_its_test(changed: dict[str, object], name: str) -> None:
    tests = drift_tests(sample(300, 0), sample(300, 1, **changed), CLASSES)  # type: ignore[arg-type]
    (found,) = [test for test in tests if test.name == name]
    assert found.adjusted < 0.01
    assert [test.name for test in tests] == ["classes", "confidence", "distance"]
    if name == "classes":
        assert found.before.startswith("a 2") and found.now.startswith("a ")
        assert [test.name for test in tests if test.adjusted <= 0.05] == ["classes"]


def test_the_test_of_shares_agrees_with_all_divisions() -> None:
    """Exactly, by every division of eight images."""
    from itertools import combinations

    pool = np.array([0, 0, 0, 1, 1, 1, 2, 2])
    before, now = np.bincount(pool[[0, 1, 2, 3]], minlength=4), np.bincount(pool[[4, 5, 6, 7]], minlength=4)

    def statistic(counts: npt.NDArray[np.int64]) -> float:
        both = np.bincount(pool, minlength=4)
        expected = both / 2
        return float((((counts - expected) ** 2)[both > 0] / both[both > 0]).sum())

    every = [np.bincount(pool[list(rows)], minlength=4) for rows in combinations(range(8), 4)]
    exact = np.mean([statistic(counts) >= statistic(now) - 1e-12 for counts in every])
    assert _class_shares_p_value(before, now, seed=0) == pytest.approx(exact, abs=0.02)
    assert _class_shares_p_value(now, now, seed=0) == 1.0


@pytest.mark.parametrize(
    ("shares", "earlier", "new"),
    [
        ((9, 1), 300, 30),  # far fewer new images, and a rare class
        (tuple(1 / (k + 1) for k in range(60)), 1000, 40),  # with one critical value for all
        ((1, 0), 240, 250),  # a class that was never predicted
    ],
)
def test_the_detectable_rise_is_detected_as_often_as_stated(shares: tuple[float, ...], earlier: int, new: int) -> None:
    counts = (np.array(shares) / sum(shares) * earlier).astype(np.int64)
    counts[0] += earlier - counts.sum()
    predicted, zeros = np.repeat(np.arange(len(shares)), counts), np.zeros(earlier)
    names = tuple(map(str, range(len(shares))))
    rise = detectable_rise(Sample(predicted, zeros, zeros), new, names, 0.05)
    assert rise is not None and rise.before == counts[int(rise.name)] / earlier < rise.now
    now = counts / earlier * (1 - rise.now) / (1 - rise.before)
    now[int(rise.name)] = rise.now
    rng = np.random.default_rng(1)
    drawn = rng.multinomial(new, now / now.sum(), size=100)
    found = np.mean([_class_shares_p_value(counts, row, seed=i, draws=1999) * 3 <= 0.05 for i, row in enumerate(drawn)])
    assert 0.7 < found < 0.9  # 80 % of 100 is 72 to 88 % in 95 of 100 cases, beside the chance in the simulation


def test_too_few_images_and_too_low_levels_detect_nothing() -> None:
    before = sample(240, 0)
    assert detectable_rise(before, 1, CLASSES, 0.05) is None
    assert detectable_rise(before, 1000, CLASSES, 1e-6) is None, "the test has 10,000 permutations"
    one = Sample(np.zeros(9, np.int64), np.zeros(9))
    assert detectable_rise(one, 100, ("a",), 0.05) is None
