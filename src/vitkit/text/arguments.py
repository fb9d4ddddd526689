"""Check arguments of functions and fields of dataclasses against their annotations, with messages of one line.

Annotations are read as text, because importing some of the types takes seconds. If an annotation contains an unknown
type, its argument is not checked. Without these checks, `load("")` would read the current folder, `explain(5)` would
open a file descriptor, and passing text instead of a number would end in a traceback.

The values of dataclass fields come from files, flags and callers. `settle_types` converts all fields in the
`__post_init__` of a frozen dataclass. `as_typed` and `from_text` convert single values.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import math
import numbers
import operator
import os
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

from vitkit.errors import VitkitError
from vitkit.system.progress import NotebookBar, display_of_notebook, receiver, reporting_to, silent

_P = ParamSpec("_P")
_T = TypeVar("_T")
_NAMED = ("Classifier", "Preprocess")  # types that annotations may name without importing them
_PHRASES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "True or False",
    "str": "text",
    "path": "a path",
    "pair": "two whole numbers",
    "Sequence[str]": "a list of texts",
    "Sequence[int]": "a list of whole numbers",
    "None": "None",
}


def check_arguments(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function so that it checks its arguments against its annotations.

    Values of a wrong type, values outside their range, and empty paths are refused. Integers are accepted as floats,
    and numpy scalars as Python numbers. If the caller passes `progress`, it receives all progress that is reported
    during the call. Otherwise, a function with a parameter `progress` shows a progress bar in notebooks.
    """
    signature = inspect.signature(function)
    kinds: dict[str, tuple[str, ...]] = {}
    ranges: dict[str, Between] = {}
    for name, parameter in signature.parameters.items():
        annotation, marks = unannotated(parameter.annotation, function.__globals__)
        accepted = _kinds(annotation, function.__globals__)
        if accepted is not None:
            kinds[name] = accepted
        ranges.update((name, mark) for mark in marks if isinstance(mark, Between))

    @functools.wraps(function)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:  # Python's message is better
            return function(*args, **kwargs)
        for name, value in bound.arguments.items():
            if name in kinds:
                bound.arguments[name] = _as_one_of(name, kinds[name], value)
            between, taken = ranges.get(name), bound.arguments[name]
            if between is not None and taken is not None and not between.low <= taken <= between.high:
                bound_text = f"least {between.low:g}" if taken < between.low else f"most {between.high:g}"
                raise VitkitError(f"--{name.replace('_', '-')} must be at {bound_text}, not {taken}")
        with ExitStack() as stack:
            if "progress" in bound.arguments:
                stack.enter_context(reporting_to(bound.arguments["progress"]))
            elif "progress" in signature.parameters and receiver() is silent and (display := display_of_notebook()):
                stack.enter_context(reporting_to(stack.enter_context(NotebookBar(display))))
            return function(*bound.args, **bound.kwargs)

    return checked


def unannotated(annotation: Any, known: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Split the text of an annotation `Annotated[type, *marks]` into the type, as text, and the list of marks.

    The marks are evaluated in the namespace `known`. Any other annotation is returned unchanged, without marks.
    """
    if not isinstance(annotation, str) or not annotation.startswith("Annotated["):
        return annotation, []
    inner = ast.parse(annotation, mode="eval").body
    assert isinstance(inner, ast.Subscript)
    assert isinstance(inner.slice, ast.Tuple)
    kind, *marks = inner.slice.elts
    return ast.unparse(kind), [eval(ast.unparse(mark), known) for mark in marks]  # noqa: S307  # a module's own text


def path_text(path: object, what: str) -> str:
    """Return a path that is not empty as text; `what` names it in error messages."""
    if not isinstance(path, (str, os.PathLike)):
        raise VitkitError(f"{what} must be a path, not {type_of(path)}")
    text = os.fsdecode(path)
    if not text:
        raise VitkitError(f'{what} is empty (""): pass a path ("." is the current folder)')
    if "\0" in text:
        raise VitkitError(f"{what} has a null byte: {text!r:.80}")
    return text


def type_of(value: object) -> str:
    """Describe a value for an error message: text and short values by their `repr`, other values by their type."""
    if isinstance(value, str):
        return f"{value!r:.40}"
    kind = value if isinstance(value, type) else type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    is_short = value is None or (isinstance(value, (bool, int, float)) and len(repr(value)) < 40)
    return f"the class {name}" if isinstance(value, type) else f"{value!r}" if is_short else name


def _kinds(annotation: object, known: dict[str, Any]) -> tuple[str, ...] | None:
    """Return the kinds of values that an annotation allows, such as `int`; None if it contains an unknown type."""
    if not isinstance(annotation, str):
        return None
    kinds: list[str] = []
    known_kinds = ("int", "float", "bool", "str", "Path", "None", "Sequence[str]", "Sequence[int]", *_NAMED)
    for part in map(str.strip, re.split(r"\|(?![^\[]*\])", annotation)):  # `str | Sequence[int | None]` has two parts
        origin, inner = get_origin(known.get(part)), get_args(known.get(part))
        if part in known_kinds:
            kinds.append(part)
        elif origin is Literal and all(isinstance(option, str) for option in inner):
            kinds.append("str")
        elif part == "tuple[int, int]" or (origin, inner) == (tuple, (int, int)):
            kinds.append("pair")
        else:
            return None
    if {"str", "Path"} <= set(kinds):
        kinds = ["path", *(kind for kind in kinds if kind not in ("str", "Path"))]
    return tuple(dict.fromkeys(kinds)) or None


def _as_one_of(name: str, kinds: Sequence[str], value: object) -> object:
    for kind in kinds:
        fits, taken = _fitted(name, kind, value)
        if fits:
            return taken
    *others, last = [_PHRASES.get(kind, f"a {kind}") for kind in kinds]
    expected = f"{', '.join(others)} or {last}" if others else last
    raise VitkitError(f"{name} must be {expected}, not {type_of(value)}")


def _fitted(name: str, kind: str, value: object) -> tuple[bool, object]:
    """Return whether a value is of a kind, and the value itself, with a numpy number or bool as a Python object.

    An empty path, or one with a null byte, is refused.
    """
    is_bool = isinstance(value, bool) or type(value).__name__ == "bool_"
    if kind == "path":
        is_path = isinstance(value, (str, os.PathLike))
        return is_path, path_text(value, name) and value if is_path else value
    if kind == "int":
        is_whole = isinstance(value, numbers.Integral) and not is_bool
        return is_whole, operator.index(value) if is_whole else value  # type: ignore[arg-type]
    if kind == "float":
        is_number = isinstance(value, numbers.Real) and not is_bool
        return is_number, float(value) if is_number and not isinstance(value, int) else value  # type: ignore[arg-type]
    if kind == "bool":
        is_flag = is_bool or (isinstance(value, int) and value in (0, 1))
        return is_flag, bool(value) if is_flag else value
    if kind in ("str", "None"):
        return (isinstance(value, str) if kind == "str" else value is None), value
    if kind == "pair" or kind.startswith("Sequence"):
        is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview))
        if not is_list or (kind == "pair" and len(value) != 2):  # type: ignore[arg-type]
            return False, value
        if kind == "Sequence[str]":  # a text in it may be the name of a file
            return all(isinstance(item, (str, os.PathLike)) for item in value), value  # type: ignore[attr-defined]
        return all(_fitted("", "int", item)[0] for item in value), value  # type: ignore[attr-defined]
    return any(base.__name__ == kind for base in type(value).__mro__), value


# --- Fields of dataclasses ------------------------------------------------------------------------------------

_LARGEST_WHOLE, _LARGEST = 2**63, 1e300  # a comparison with the second excludes NaN and infinity


@dataclass(frozen=True)
class Between:
    """A mark for the `Annotated` type of a field or parameter. Values must be in this range, or None."""

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
        VitkitError: the value has another type, or is beyond the range of 64-bit integers.
    """
    is_optional = type(None) in get_args(hint)
    if value is None and is_optional:
        return None
    kind = next(option for option in get_args(hint) if option is not type(None)) if is_optional else hint
    if get_origin(kind) is Literal and any(type(value) is type(each) and value == each for each in get_args(kind)):
        return value
    if get_origin(kind) is tuple and isinstance(value, (list, tuple)):
        kinds = get_args(kind)
        kinds = kinds[:1] * len(value) if kinds[1:] == (...,) else kinds
        if len(value) == len(kinds):
            return tuple(as_typed(name, part_kind, part) for part_kind, part in zip(kinds, value, strict=True))
    if type(value) is int and abs(value) > _LARGEST_WHOLE:
        raise VitkitError(f"{name} must be a number between -2^63 and 2^63")
    if kind is float and is_number(value):
        return float(value)
    if kind in (int, str, bool) and type(value) is kind:
        return value
    if kind is str and isinstance(value, Path):
        return str(value)
    raise VitkitError(f"{name} must be {_expected(kind)}, not {shown(value)}")


def from_text(name: str, hint: Any, text: str) -> Any:
    """Convert text, such as the value of a flag, to a field's type (see `as_typed`).

    `3,4,9` becomes a tuple. `none` becomes None if the field is optional.
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

    Call this function in `__post_init__`. Fields whose names are in `exclude` are not converted.
    """
    for name, hint in hints_of(instance.__class__).items():
        if name not in exclude:
            object.__setattr__(instance, name, as_typed(name, hint, getattr(instance, name)))
    for name, within in _ranges(instance.__class__):
        value = getattr(instance, name)
        if value is not None and not within.low <= value <= within.high:
            raise VitkitError(f"{name} must be between {within.low:g} and {within.high:g}, not {value:g}")


@cache
def hints_of(kind: Any) -> dict[str, Any]:
    """Return the type of each field of a dataclass, by name."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


@cache
def _ranges(kind: Any) -> list[tuple[str, Between]]:
    hints = get_type_hints(kind, include_extras=True)
    marks = ((name, mark) for name, hint in hints.items() for mark in getattr(hint, "__metadata__", ()))
    return [(name, mark) for name, mark in marks if isinstance(mark, Between)]
