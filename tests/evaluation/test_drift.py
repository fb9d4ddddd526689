"""Whether images are like those of a training: false alarms are as rare as promised, and changes are noticed."""

import numpy as np
import numpy.typing as npt
import pytest

from vitkit.evaluation import Sample, drift_tests
from vitkit.evaluation.drift import _class_shares_p_value

CLASSES = ("a", "b", "c", "d")


def sample(n: int, seed: int, shares: tuple[float, ...] = (0.25, 0.25, 0.25, 0.25), shift: float = 0.0) -> Sample:
    rng = np.random.default_rng(seed)
    predicted = rng.choice(4, n, p=shares).astype(np.int64)
    distance = rng.normal(predicted * 0.1 + shift, 1.0)
    return Sample(predicted, np.clip(0.05 + 0.01 * distance + rng.normal(0, 0.01, n), 0, 1), distance)


def alarm(before: Sample, now: Sample) -> bool:
    return any(test.adjusted <= 0.05 for test in drift_tests(before, now, CLASSES))


def test_false_alarms_are_as_rare_as_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of both sets are drawn in the same way. 95 % of 200 binomial draws are at most 15."""
    monkeypatch.setattr("vitkit.evaluation.drift._DRAWS", 999)
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
