"""A ranking that is sorted as far as it is read is the beginning of the one that is sorted as a whole."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitkit.inference import Ranking


@st.composite
def rankings(draw: st.DrawFn) -> tuple[Ranking, tuple[tuple[str, float], ...]]:
    """With ties, and what sorting all of it gives."""
    levels = draw(st.sampled_from([2, 4, 10_000]))
    numbers = draw(st.lists(st.integers(0, levels), min_size=1, max_size=30))
    p = (np.array(numbers) / levels).astype(np.float32)
    classes = tuple(f"class {i}" for i in range(len(p)))
    order = sorted(range(len(p)), key=lambda i: -p[i])  # which is stable
    return Ranking(classes, p), tuple((classes[i], float(p[i])) for i in order)


@given(rankings(), st.integers(-35, 35), st.integers(-35, 35), st.sampled_from([None, 1, 2, -1, -3]))
def test_any_part_is_that_of_the_sorted_tuple(
    drawn: tuple[Ranking, tuple[tuple[str, float], ...]], start: int, stop: int, step: int | None
) -> None:
    ranking, expected = drawn
    assert tuple(ranking) == ranking == expected and len(ranking) == len(expected)
    assert hash(ranking) == hash(expected) and repr(ranking) == repr(expected)
    assert pickle.loads(pickle.dumps(ranking)) == expected
    for part in (slice(start, stop, step), slice(None, stop), slice(start, None, step)):
        assert ranking[part] == expected[part]
    if -len(expected) <= start < len(expected):
        assert ranking[start] == expected[start]
        assert type(ranking[start][1]) is float
    else:
        with pytest.raises(IndexError):
            ranking[start]
    assert ranking != expected[1:] and ranking != list(expected)


def test_the_first_of_many_are_read_without_sorting_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    p = np.random.default_rng(0).permutation(21_843).astype(np.float32)
    sizes, argsort = [], np.argsort
    monkeypatch.setattr(np, "argsort", lambda own, **kind: sizes.append(len(own)) or argsort(own, **kind))
    ranking = Ranking(range(len(p)), p)  # type: ignore[arg-type]  # names that need no room
    assert [place for place, _ in ranking[:5]] == np.lexsort([-p])[:5].tolist()
    assert ranking[0][1] == p.max()
    assert max(sizes) == 5
