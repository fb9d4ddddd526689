"""Add the fields of a recipe to the signature and the help of a function that takes them as keywords.

Type checkers and editors read the same fields from the `TypedDict`s beside the dataclasses; a test holds them equal.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any, get_args, get_type_hints

from vitkit.training.recipe import Recipe


def add_recipe_fields(
    function: Callable[..., Any],
    but: Collection[str] = ("data",),
    owners: Sequence[type[Any]] = (Recipe,),
    heading: str = "Fields of the recipe",
) -> None:
    """Let the signature and the help of a function have fields in the place of its `**fields`.

    Args:
        function: which.
        but: fields that it does not take.
        owners: dataclasses whose fields they are; of a field that several have, the first one's counts.
        heading: over the fields in the help.
    """
    told, seen = "", set(but)
    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
    for owner in owners:
        hints = get_type_hints(owner, include_extras=True)
        for field in dataclasses.fields(owner):
            if field.name in seen:
                continue
            seen.add(field.name)
            kind, text, *_ = get_args(hints[field.name])
            keyword = inspect.Parameter.KEYWORD_ONLY
            parameters.append(inspect.Parameter(field.name, keyword, default=field.default, annotation=kind))
            told += f"\n        {field.name}: {text}"
    function.recipe_fields = (tuple(owners), tuple(but))  # type: ignore[attr-defined]  # which cli.flags makes flags of
    function.__signature__ = inspect.signature(function).replace(parameters=parameters)  # type: ignore[attr-defined]
    function.__doc__ = f"{(function.__doc__ or '').rstrip()}\n\n    {heading}:{told}\n    "
