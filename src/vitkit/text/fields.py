"""Convert values from files, flags and callers to the annotated types of dataclass fields.

`settle_types` converts all fields in the `__post_init__` of a frozen dataclass. `as_typed` and `from_text` convert
single values.
"""

from __future__ import annotations

import dataclasses
import math
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from vitkit.errors import VitkitError

_LARGEST_WHOLE, _LARGEST = 2**63, 1e300  # comparison with it excludes NaN and infinity


@dataclass(frozen=True)
class Between:
    """A mark for the `Annotated` type of a field or parameter: a value that is not None must be in this range."""

    low: float
    high: float = math.inf


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number and not a bool."""
    return type(value) in (int, float) and abs(value) < _LARGEST


def shown(value: object) -> str:
    """Return the `repr` of a value for a message, on one line and cut to 80 characters."""
    return " ".join(repr(value).split())[:80]


def as_typed(name: str, hint: Any, value: Any) -> Any:
    """Convert a value to a field's type, or refuse it.

    Whole numbers are converted to floats, lists to tuples, and paths to text. There are no other conversions.

    Args:
        name: the field's name, for messages.
        hint: the field's type: int, float, bool, str, a Literal of texts, a tuple of these, or a union of one of them
            with None.
        value: a value from TOML, JSON, a flag or a caller.

    Raises:
        VitkitError: the value has another type, or is far too large.
    """
    is_optional = type(None) in get_args(hint)
    if value is None and is_optional:
        return None
    kind = next(option for option in get_args(hint) if option is not type(None)) if is_optional else hint
    if get_origin(kind) is Literal and any(
        type(value) is type(option) and value == option for option in get_args(kind)
    ):
        return value
    if get_origin(kind) is tuple and isinstance(value, (list, tuple)):
        kinds = get_args(kind)
        kinds = kinds[:1] * len(value) if kinds[1:] == (...,) else kinds
        if len(value) == len(kinds):
            return tuple(as_typed(name, part_kind, part) for part_kind, part in zip(kinds, value, strict=True))
    if type(value) is int and abs(value) > _LARGEST_WHOLE:
        raise VitkitError(f"{name} is far too large a number")
    if kind is float and is_number(value):
        return float(value)
    if kind in (int, str, bool) and type(value) is kind:
        return value
    if kind is str and isinstance(value, Path):
        return str(value)
    raise VitkitError(f"{name} must be {_expected(kind)}, not {shown(value)}")


def from_text(name: str, hint: Any, text: str) -> Any:
    """Convert text, such as the value of a flag, to a field's type.

    `3,4,9` becomes a tuple. `none` becomes None if the field is optional.

    Args:
        name: the field's name, for messages.
        hint: the field's type, as for `as_typed`.
        text: the text as it was typed.

    Raises:
        VitkitError: the text cannot be converted to this type.
    """
    kind = hint
    if type(None) in get_args(hint):
        if text == "none":
            return None
        kind = next(option for option in get_args(hint) if option is not type(None))
    if get_origin(kind) is tuple:
        part_kind = get_args(kind)[0]
        return as_typed(
            name, kind, [from_text(name, part_kind, part.strip()) for part in text.split(",")] if text else []
        )
    value: Any = text
    if kind is bool:
        value = {"true": True, "false": False}.get(text.lower(), text)
    elif kind in (int, float):
        with suppress(ValueError):
            value = kind(text)
    return as_typed(name, kind, value)


def _expected(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    if get_origin(kind) is tuple:
        first, *rest = get_args(kind)
        plural = {int: "whole numbers", float: "finite numbers"}[first]
        return plural if rest == [...] else f"{1 + len(rest)} {plural}"
    return {int: "a whole number", float: "a finite number", bool: "true or false", str: "text"}[kind]


def settle_types(instance: Any, exclude: tuple[str, ...] = ()) -> None:
    """Convert the fields of a frozen dataclass to their annotated types, and check their `Between` ranges.

    Call this function in `__post_init__`.

    Args:
        instance: the dataclass instance.
        exclude: names of fields that are not converted.

    Raises:
        VitkitError: a value has another type, or is outside its range; the message names the field.
    """
    for name, hint in hints_of(instance.__class__).items():
        if name not in exclude:
            object.__setattr__(instance, name, as_typed(name, hint, getattr(instance, name)))
    for name, within in _ranges(instance.__class__).items():
        value = getattr(instance, name)
        if value is not None and not within.low <= value <= within.high:
            raise VitkitError(f"{name} must be between {within.low:g} and {within.high:g}, not {value:g}")


@cache
def hints_of(kind: Any) -> dict[str, Any]:
    """Return the type of each field of a dataclass, by name."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


@cache
def _ranges(kind: Any) -> dict[str, Between]:
    hints = get_type_hints(kind, include_extras=True)
    return {
        name: mark
        for name, hint in hints.items()
        for mark in getattr(hint, "__metadata__", ())
        if isinstance(mark, Between)
    }
