"""What an editor knows of the functions that take the fields of a recipe; what a type checker knows is in calls.py."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest

import vitkit
from vitkit.training import PretrainingFields, recipe

TAKES: dict[Callable[..., Any], Any] = {
    vitkit.train: recipe.RecipeFields,
    vitkit.pretrain: PretrainingFields,
    vitkit.compare: recipe.ComparedFields,
    vitkit.lab: recipe.ComparedFields,
    vitkit.dry_run: recipe.RecipeFields,
}


def kinds(hint: Any) -> set[Any]:
    """The alternatives of a union, with the contents of literals one by one."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    parts = get_args(hint) if type(hint) is type(int | None) or get_origin(hint) is Union else (hint,)
    return {option for part in parts for option in (get_args(part) if "Literal" in str(get_origin(part)) else (part,))}


@pytest.mark.parametrize("function", TAKES, ids=lambda function: function.__name__)
def test_the_typed_keywords_are_those_of_the_signature(function: Callable[..., Any]) -> None:
    plain = inspect.signature(inspect.unwrap(function)).parameters
    shown = {p.name: p for p in inspect.signature(function).parameters.values() if p.name not in plain}
    hints = get_type_hints(TAKES[function])
    assert hints.keys() == shown.keys()
    for name, parameter in shown.items():
        if name == "model_fields":  # any mapping serves as a dict
            continue
        assert kinds(parameter.annotation) - {type(None)} <= kinds(hints[name]), name


def test_the_signature_of_train_has_the_fields_with_their_defaults() -> None:
    parameters = inspect.signature(vitkit.train).parameters
    assert (parameters["epochs"].default, parameters["epochs"].annotation) == (50, int)
    assert parameters["epochs"].kind is inspect.Parameter.KEYWORD_ONLY
    assert "fields" not in parameters
