"""Add the fields of a recipe to the signature and the docstring of a function that accepts them as keywords.

Type checkers and editors read the same fields from the `TypedDict`s next to the dataclasses. A test compares the two.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any, get_args, get_type_hints

from vitkit.training.recipe import Recipe


def add_recipe_fields(
    function: Callable[..., Any],
    exclude: Collection[str] = ("data",),
    owners: Sequence[type[Any]] = (Recipe,),
    heading: str = "Fields of the recipe",
) -> None:
    """Replace the `**fields` in the signature and docstring of a function by the fields of dataclasses.

    Args:
        function: the function; it is changed in place.
        exclude: the fields that it does not accept.
        owners: the dataclasses. If several have a field of the same name, the first one counts.
        heading: the heading of the fields in the docstring.
    """
    entries, seen = "", set(exclude)
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
            entries += f"\n        {field.name}: {text}"
    function.recipe_fields = (tuple(owners), tuple(exclude))  # type: ignore[attr-defined]  # for the flags (cli.flags)
    function.__signature__ = inspect.signature(function).replace(parameters=parameters)  # type: ignore[attr-defined]
    function.__doc__ = f"{(function.__doc__ or '').rstrip()}\n\n    {heading}:{entries}\n    "
