"""Check the arguments of public functions against their annotations, and refuse wrong types with a one-line message.

Annotations are read as text, because importing some of the types takes seconds. An annotation that contains an unknown
type is not checked. Without these checks, `load("")` would read the current folder, `explain(5)` would open a file
descriptor, and text instead of a number would end in a traceback.
"""

from __future__ import annotations

import ast
import functools
import inspect
import numbers
import operator
import os
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Literal, ParamSpec, TypeVar, get_args, get_origin

from vitkit.errors import VitkitError
from vitkit.system.notebooks import NotebookBar, display_of_notebook
from vitkit.system.progress import receiver, reporting_to, silent
from vitkit.text.fields import Between

P = ParamSpec("P")
T = TypeVar("T")
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


def check_arguments(function: Callable[P, T]) -> Callable[P, T]:
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
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:  # Python's message is better
            return function(*args, **kwargs)
        for name, value in bound.arguments.items():
            if name in kinds:
                bound.arguments[name] = _as_one_of(name, kinds[name], value)
            if name in ranges:
                _check_range(name, ranges[name], bound.arguments[name])
        with ExitStack() as stack:
            if "progress" in bound.arguments:
                stack.enter_context(reporting_to(bound.arguments["progress"]))
            elif "progress" in signature.parameters and receiver() is silent and (display := display_of_notebook()):
                stack.enter_context(reporting_to(stack.enter_context(NotebookBar(display))))
            return function(*bound.args, **bound.kwargs)

    return checked


def unannotated(annotation: Any, known: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Split `Annotated[type, *marks]`, given as text, into the type as text and the list of marks.

    Any other annotation is returned unchanged, with an empty list.

    Args:
        annotation: the annotation of a parameter, as text.
        known: the namespace in which the marks are evaluated.
    """
    if not isinstance(annotation, str) or not annotation.startswith("Annotated["):
        return annotation, []
    inner = ast.parse(annotation, mode="eval").body
    assert isinstance(inner, ast.Subscript)
    assert isinstance(inner.slice, ast.Tuple)
    kind, *marks = inner.slice.elts
    return ast.unparse(kind), [eval(ast.unparse(mark), known) for mark in marks]  # noqa: S307  # a module's own text


def _check_range(name: str, between: Between, value: Any) -> None:
    if value is None or between.low <= value <= between.high:
        return
    flag = "--" + name.replace("_", "-")
    if value < between.low:
        raise VitkitError(f"{flag} must be at least {between.low:g}, not {value}")
    raise VitkitError(f"{flag} must be at most {between.high:g}, not {value}")


def path_text(path: object, what: str) -> str:
    """Return a path as text.

    Args:
        path: the path that a caller passed.
        what: the name of the path in error messages.

    Raises:
        VitkitError: `path` is not a path, is empty, or contains a null byte.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise VitkitError(f"{what} must be a path, not {type_of(path)}")
    text = os.fsdecode(path)
    if not text:
        raise VitkitError(f'{what} is empty (""); . is this folder')
    if "\0" in text:
        raise VitkitError(f"{what} has a null byte: {text!r:.80}")
    return text


def type_of(value: object) -> str:
    """Describe a value for an error message: by its `repr` if it is text or short, otherwise by its type."""
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
    for part in re.split(r"\|(?![^\[]*\])", annotation):  # `str | Sequence[int | None]` has two parts
        part_kinds = _kind(part.strip(), known)
        if part_kinds is None:
            return None
        kinds += part_kinds
    if {"str", "Path"} <= set(kinds):
        kinds = ["path", *(kind for kind in kinds if kind not in ("str", "Path"))]
    return tuple(dict.fromkeys(kinds)) or None


def _kind(part: str, known: dict[str, Any]) -> list[str] | None:
    if part in ("int", "float", "bool", "str", "Path", "None", *_NAMED):
        return [part]
    if part in ("Sequence[str]", "Sequence[int]"):
        return [part]
    alias = known.get(part)
    origin, inner = get_origin(alias), get_args(alias)
    if origin is Literal:
        return ["str"] if all(isinstance(option, str) for option in inner) else None
    return ["pair"] if part == "tuple[int, int]" or (origin, inner) == (tuple, (int, int)) else None


def _as_one_of(name: str, kinds: Sequence[str], value: object) -> object:
    for kind in kinds:
        fits, taken = _fitted(name, kind, value)
        if fits:
            return taken
    *others, last = [_PHRASES.get(kind, f"a {kind}") for kind in kinds]
    expected = f"{', '.join(others)} or {last}" if others else last
    raise VitkitError(f"{name} must be {expected}, not {type_of(value)}")


def _is_a(kind: str, value: object) -> bool:
    return isinstance(value, (str, os.PathLike)) if kind == "path" else _fitted("", kind, value)[0]


def _fitted(name: str, kind: str, value: object) -> tuple[bool, object]:
    """Return whether a value is of a kind, and the value, which is converted if the answer is True."""
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
        inner = "path" if kind == "Sequence[str]" else "int"  # a text may name a file
        is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview))
        fits = is_list and all(_is_a(inner, item) for item in value)  # type: ignore[attr-defined]
        return fits and (kind != "pair" or len(value) == 2), value  # type: ignore[arg-type]
    return any(base.__name__ == kind for base in type(value).__mro__), value
