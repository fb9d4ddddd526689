"""What is chosen to be labelled: every kind of picture early, what is hard to tell later, and nothing unasked."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitkit.evaluation import PER_CLASS, choose_next


def blobs(each: int, kinds: int, size: int = 12, noise: float = 0.1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points about `kinds` directions, and which of them each is about."""
    generator = np.random.default_rng(seed)
    middles = np.eye(size)[:kinds]
    kind = np.repeat(np.arange(kinds), each)
    return middles[kind] + noise * generator.standard_normal((len(kind), size)), kind


def test_the_first_labels_are_of_one_picture_of_each_kind() -> None:
    x, kind = blobs(30, 8)
    chosen = choose_next(x, [None] * len(x), 8)
    assert sorted(kind[chosen]) == list(range(8))


def test_kinds_without_a_label_come_before_those_with_one() -> None:
    x, kind = blobs(20, 6)
    labels = [str(kind[i]) if i in (0, 20, 40) else None for i in range(len(x))]
    assert sorted(kind[choose_next(x, labels, 3)]) == [3, 4, 5]


def test_with_enough_labels_what_is_between_classes_is_asked() -> None:
    x, kind = blobs(2 * PER_CLASS, 2, noise=0.02)
    between = np.concatenate([0.5 * x[:1] + 0.5 * x[-1:] + 0.002 * np.random.default_rng(1).standard_normal((5, 12))])
    every = np.concatenate([x, between])
    labels = [None if i % 2 else str(kind[i]) for i in range(len(x))] + [None] * 5
    assert sum(label is not None for label in labels) >= 2 * PER_CLASS
    assert min(choose_next(every, labels, 1)) >= len(x)


def test_what_is_asked_at_once_is_not_the_same_thing_many_times() -> None:
    """Ten copies of the picture that is hardest to tell, and another that is a little less hard."""
    x, kind = blobs(2 * PER_CLASS, 2, noise=0.02)
    hard = np.zeros((12, 12))
    hard[:10, [0, 1]] = 1.0
    hard[10:, [0, 1, 5]] = 1.0, 0.99, 2.0
    labels = [None if i % 2 else str(kind[i]) for i in range(len(x))] + [None] * 12
    chosen = choose_next(np.concatenate([x, hard]), labels, 2)
    assert len({i >= len(x) + 10 for i in chosen if i >= len(x)}) == 2


@settings(max_examples=40)
@given(data=st.data())
def test_whatever_there_is_the_choice_is_allowed_and_the_same_again(data: st.DataObject) -> None:
    n, size = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 4))
    count = data.draw(st.integers(1, 12))
    values = st.sampled_from([0.0, 1.0, -1.0, 0.5, 1e6, 1e-9])
    x = np.array(data.draw(st.lists(st.lists(values, min_size=size, max_size=size), min_size=n, max_size=n)))
    kinds = st.sampled_from([None, None, "a", "b", 3])
    labels = data.draw(st.lists(kinds, min_size=n, max_size=n))
    allowed = data.draw(st.none() | st.lists(st.booleans(), min_size=n, max_size=n))
    chosen = choose_next(x, labels, count, 0, allowed)
    free = {i for i in range(n) if labels[i] is None and (allowed is None or allowed[i])}
    assert len(chosen) == len(set(chosen)) == min(count, len(free))
    assert set(chosen) <= free
    assert chosen == choose_next(x, labels, count, 0, allowed)


def test_many_pictures_are_chosen_from_in_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitkit.evaluation.label_choice._MOST", 100)
    x, kind = blobs(100, 5)
    chosen = choose_next(x, [None] * len(x), 5)
    assert sorted(kind[chosen]) == [0, 1, 2, 3, 4]
    assert len(choose_next(x, [None] * len(x), 150)) == 150


@pytest.mark.parametrize(
    ("x", "labels", "count"),
    [(np.zeros((2, 2)), [None], 1), (np.zeros(3), [None] * 3, 1), (np.zeros((2, 2)), [None] * 2, 0)],
)
def test_sizes_that_do_not_fit_are_refused(x: np.ndarray, labels: list[None], count: int) -> None:
    with pytest.raises(ValueError, match="to choose"):
        choose_next(x, labels, count)


def test_features_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        choose_next(np.array([[np.nan, 0.0]]), [None], 1)


def test_it_loads_without_torch() -> None:
    code = (
        "import sys\nimport numpy as np\nfrom vitkit.evaluation.label_choice import choose_next\n"
        "choose_next(np.eye(4), ['a', 'b', None, None], 1)\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
