"""One rule for what a value from a file, a flag or a caller may be, of every dataclass that is configured."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitkit.data import Preprocess
from vitkit.errors import VitkitError
from vitkit.model import ViTConfig
from vitkit.text import as_typed
from vitkit.training import Recipe, build


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (float, 1, 1.0),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[float, float], [0, 1], (0.0, 1.0)),
        (tuple[int, ...] | None, None, None),
        (str, Path("a"), "a"),
        (Literal["a", "b"] | None, "b", "b"),
    ],
)
def test_what_means_the_same_is_taken(hint: Any, value: Any, expected: Any) -> None:
    found = as_typed("field", hint, value)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("hint", "value", "told"),
    [
        (int, True, "a whole number, not True"),
        (int, 2.0, "a whole number"),
        (int | None, "2", "a whole number"),
        (bool, 1, "true or false, not 1"),
        (float, float("nan"), "a finite number, not nan"),
        (float, float("inf"), "a finite number"),
        (float, 10**400, "a number between"),
        (str, 3, "text, not 3"),
        (str, None, "text, not None"),
        (Literal["a", "b"], "c", "one of a, b, not 'c'"),
        (Literal["a", "b"], ["a"], "one of a, b"),
        (tuple[int, ...], [1, "2"], "a whole number, not '2'"),
        (tuple[int, ...], "12", "whole numbers, not '12'"),
        (tuple[float, float], [0.5], "2 finite numbers"),
    ],
)
def test_nothing_is_guessed(hint: Any, value: Any, told: str) -> None:
    with pytest.raises(VitkitError, match=rf"field (must be |is ).*{told}"):
        as_typed("field", hint, value)


_PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.lists(st.integers(), max_size=3)
)


@given(data=st.data(), value=_PLAIN | st.dictionaries(st.text(max_size=2), _PLAIN, max_size=2))
def test_every_configuration_takes_a_plain_value_or_refuses_it_in_a_line(data: st.DataObject, value: Any) -> None:
    """Whatever a damaged or hostile file says."""
    kind, make = data.draw(
        st.sampled_from([(ViTConfig, ViTConfig.from_dict), (Preprocess, Preprocess.from_dict), (Recipe, build)])
    )
    name = data.draw(st.sampled_from(sorted(kind.__dataclass_fields__)))
    fields: dict[str, Any] = {"size": (16, 16)} if kind is Preprocess else {}
    try:
        made = make({**fields, name: value})  # type: ignore[operator]
    except VitkitError as error:
        assert "\n" not in str(error).replace(repr(value), "").strip()
    else:
        assert getattr(made, name) is not None or value is None


def test_a_recipe_made_in_python_is_held_to_its_types_too() -> None:
    with pytest.raises(VitkitError, match="epochs must be a whole number, not '3'"):
        Recipe(epochs="3")  # type: ignore[arg-type]
    with pytest.raises(VitkitError, match="dropout must be a finite number, not inf"):
        Recipe(dropout=float("inf"))
    assert Recipe(split=[0.5, 0.25, 0.25]).split == (0.5, 0.25, 0.25)  # type: ignore[arg-type]
