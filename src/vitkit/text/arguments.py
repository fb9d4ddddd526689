"""Check options of dataclasses and arguments of functions against their type hints, with messages of one line.

Without these checks, `load("")` would read the current folder, `explain(5)` would open a file descriptor, and passing
text instead of a number would end in a traceback.

`Options` is the base class of frozen dataclasses whose fields are options. It converts the fields, checks their ranges,
and remembers which of them the caller has set. `check_arguments` does the same for the arguments of a function.
`as_typed` and `from_text` convert single values.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import difflib
import functools
import inspect
import math
import numbers
import operator
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from vitkit.errors import VitkitError, WrongTypeError
from vitkit.system.progress import NotebookBar, display_of_notebook, receiver, reporting_to, silent
from vitkit.text.cells import one_of

_P = ParamSpec("_P")
_T = TypeVar("_T")
_CHECKED_BY_NAME = ("Classifier", "Datasets", "Preprocess")  # importing these classes would take seconds
_MAX_INT, _MAX_FLOAT = 2**63, 1e300  # NaN and infinity are not below _MAX_FLOAT


def _cached(function: Callable[[Any], _T]) -> Callable[[Any], _T]:
    return functools.cache(function)  # typed so that mypy accepts classes as arguments


@dataclass(frozen=True)
class Between:
    """A constraint in the `Annotated` type of an option: its value must be in this range, or None."""

    low: float
    high: float = math.inf

    @property
    def description(self) -> str:
        """The range, as in `at least 1`."""
        return f"at least {self.low:g}" if self.high == math.inf else f"between {self.low:g} and {self.high:g}"


@dataclass(frozen=True)
class Only:
    """A mark for a parameter whose type is a class of options: the function only uses these fields of it."""

    names: tuple[str, ...]


class _Documented(type):
    # The metaclass of `Options` adds the docstring of each field to that of the class, so that `help` shows it. The
    # source is parsed only when the docstring is read, because this takes longer than the import.

    @property
    def __doc__(cls) -> str | None:  # type: ignore[override]
        text: str | None = cls.__dict__.get("__doc__")
        is_defined = getattr(sys.modules[cls.__module__], cls.__name__, None) is cls
        if text is None or not is_defined:
            return text
        wrap = partial(textwrap.fill, width=112, initial_indent="    ", subsequent_indent="        ")
        fields = [wrap(f"{name}: {entry}") for name, entry in help_of(cls).items()]
        return "\n".join([f"{inspect.cleandoc(text)}\n", "Attributes:", *fields]) if fields else text

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        with _naming_arguments(cls):
            return super().__call__(*args, **kwargs)


class Options(metaclass=_Documented):
    """The base class of frozen dataclasses whose fields are options.

    The docstring below each field is its help on the command line and in the reference.

    Attributes:
        given: the fields that were set when the object was created, each with the source of its value: a file, or an
            empty text for the caller. All other fields have their defaults.
    """

    given: Mapping[str, str]

    def __new__(cls, **given: Any) -> Self:
        """Create the object. A misspelt name raises an error with a suggestion."""
        cls.check_names(given)
        return super().__new__(cls).with_given(dict.fromkeys(given, ""))

    def __post_init__(self) -> None:
        """Convert the fields to their types, and check their ranges. An empty text raises an error."""
        coerce_types(self)
        for name, value in self.to_dict().items():
            if value == "":
                raise VitkitError("text.path-empty", f'{name} is empty (""): leave it out')

    @classmethod
    def check_names(cls, names: Iterable[str]) -> None:
        """Raise an error for a name that is not a field, and suggest a similar field."""
        known = hints_of(cls)
        for name in names:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                advice = f" (did you mean {close[0]}?)" if close else f"; known: {', '.join(known)}"
                raise VitkitError("text.field-unknown", f"unknown field {name!r}{advice}")

    def replace(self, **changes: Any) -> Self:
        """Return a copy with changed fields, which also count as `given`.

        Raises:
            VitkitError: a field is unknown, of the wrong type, or out of range.
        """
        self.check_names(changes)
        changed = dataclasses.replace(self, **changes)  # type: ignore[type-var]  # subclasses are dataclasses
        return changed.with_given({**self.given, **dict.fromkeys(changes, "")})

    def with_given(self, given: Mapping[str, str]) -> Self:
        """Set the attribute `given` of a new object, and return the object."""
        object.__setattr__(self, "given", given)
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the value of each field by name, in the order of the class."""
        return {name: getattr(self, name) for name in hints_of(type(self))}

    def set_fields(self) -> dict[str, Any]:
        """Return the values of the fields that were set, by name."""
        return {name: getattr(self, name) for name in self.given}


def coerce_types(instance: Any, exclude: tuple[str, ...] = ()) -> None:
    """Convert the fields of a frozen dataclass to their types, and check their ranges, except those in `exclude`."""
    for name, hint in hints_of(type(instance)).items():
        if name not in exclude:
            object.__setattr__(instance, name, as_typed(name, hint, getattr(instance, name)))


@_cached
def hints_of(owner: Callable[..., Any]) -> dict[str, Any]:
    """Return the type of each field of a dataclass, or of each parameter of a function, by name.

    Marks in `Annotated` are kept. A type that is imported only for type checkers, because its import takes
    seconds, is represented by an empty class of the same name.
    """
    if isinstance(owner, type):
        hints = get_type_hints(owner, include_extras=True)
        return {field.name: hints[field.name] for field in dataclasses.fields(owner)}
    function = inspect.unwrap(owner)
    return get_type_hints(function, localns=_Namespace(function.__globals__), include_extras=True)


class _Namespace(dict[str, Any]):
    """Names in type hints, of which an unknown name that is no builtin is one that was not imported."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, None) or type(name, (_NotImported,), {})


class _NotImported:
    """The base class of the empty classes that represent types which are not imported; hints may subscribe them."""

    def __class_getitem__(cls, _: Any) -> Any:
        return cls


@_cached
def help_of(kind: type[Options]) -> dict[str, str]:
    """Return the docstring of each field, as one line."""
    texts = {}
    for owner in reversed(kind.__mro__[:-2]):  # all but `Options` and `object`
        statements = _parsed(owner.__module__).body
        definition = next(node for node in statements if isinstance(node, ast.ClassDef) and node.name == owner.__name__)
        for field, text in pairwise(definition.body):  # the docstring is the statement below the field
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(field.target, ast.Name):
                texts[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return texts


@_cached
def _parsed(module: str) -> Any:
    return ast.parse(Path(str(sys.modules[module].__file__)).read_text(encoding="utf-8"))


def check_arguments(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function so that it checks its arguments against its annotations.

    Values of a wrong type, values outside their range, and empty paths raise an error. Integers are accepted as floats,
    and numpy scalars as Python numbers. If the caller passes `progress`, it receives all progress that is reported
    during the call. Otherwise, a function with a parameter `progress` shows a progress bar in notebooks.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        hints = hints_of(function)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            _check_misplaced_fields(signature, hints, kwargs)
            return function(*args, **kwargs)  # which raises Python's own message
        for name, value in bound.arguments.items():
            bound.arguments[name] = as_typed(name, hints.get(name, Any), value)
        with ExitStack() as stack:
            if "progress" in bound.arguments:
                stack.enter_context(reporting_to(bound.arguments["progress"]))
            elif "progress" in signature.parameters and receiver() is silent:
                display = display_of_notebook()
                if display is not None:
                    bar = stack.enter_context(NotebookBar(display))
                    stack.enter_context(reporting_to(bar))
            stack.enter_context(_naming_arguments(function))
            return function(*bound.args, **bound.kwargs)

    return checked


def _check_misplaced_fields(signature: inspect.Signature, hints: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise an error for a name that is not a parameter of the function, but a field of one of its option classes."""
    for name in names:
        if name in signature.parameters:
            continue
        for parameter in signature.parameters:
            for kind in option_classes(hints[parameter]):
                if name in hints_of(kind):
                    raise WrongTypeError(
                        "text.field-misplaced",
                        f"{name} is a field of vitkit.{kind.__name__}: "
                        f"pass {parameter}=vitkit.{kind.__name__}({name}=...)",
                    )


KEEP_FLAGS: ContextVar[bool] = ContextVar("KEEP_FLAGS", default=False)
"""Whether error messages name options as flags, such as `--out`, for the command line, or otherwise as `out`."""


@contextmanager
def _naming_arguments(owner: Callable[..., Any]) -> Iterator[None]:
    """Replace flags in error messages by the parameters of a function or the fields of a class, unless KEEP_FLAGS."""
    try:
        yield
    except VitkitError as error:
        if not KEEP_FLAGS.get():
            error.args = (error.code, _flags_as_arguments(str(error), hints_of(owner)))
        raise


def _flags_as_arguments(message: str, hints: Mapping[str, Any]) -> str:
    """Write the flags in a message as arguments: `--out` as `out`, `--out DIR` as `out=DIR`, `--force` as `force=True`.

    The part of the message from the first command on, such as `vitkit predict --tta`, is not changed.
    """
    hint_of = dict(hints)  # of each parameter and each field
    for hint in hints.values():
        for kind in option_classes(hint):
            hint_of.update(hints_of(kind))

    def as_argument(match: re.Match[str]) -> str:
        flag, value = match.groups()
        name = flag.replace("-", "_")
        if name not in hint_of:
            name = f"{name}s"  # such as `templates`, whose flag may be repeated
        if name not in hint_of:
            return match[0]
        if alternatives(hint_of[name])[0] == [bool]:
            return f"{name}=True{value}"
        return name + value.replace(" ", "=")

    command = re.search(r"`?vitkit [a-z]+ ", message)
    end = len(message) if command is None else command.start()
    return re.sub(r"(?<![\w-])--([a-z][a-z-]*[a-z])((?: [A-Z]{2,}\S*)?)", as_argument, message[:end]) + message[end:]


# --- Single values --------------------------------------------------------------------------------------------


def as_typed(name: str, hint: Any, value: Any) -> Any:
    """Convert a value to the type of an option, or raise an error.

    Whole numbers are converted to floats, lists to tuples, numpy scalars to Python numbers, and paths to text if the
    type is `str` but not `Path`. There are no other conversions. If the type contains a class that cannot be checked,
    every value is accepted.

    Args:
        name: the option's name, for messages.
        hint: the option's type: int, float, bool, str, Path, a Literal, a tuple, a sequence, a class of options, a
            union of these, or one of these `Annotated` with `Between`.
        value: a value from TOML, JSON, a flag or a caller.

    Raises:
        WrongTypeError: the value has another type.
        VitkitError: the value is out of range, or not one of the choices.
    """
    kinds, marks = alternatives(hint)
    if not all(map(_can_be_checked, kinds)):
        return value
    if value is None and NoneType in kinds:
        return None
    if isinstance(value, (str, os.PathLike)) and Path in kinds:
        path_text(value, name)  # raises an error for text that cannot be a path
    for kind in kinds:
        converted = _convert(kind, value)
        if converted is not _UNFIT:
            break
    else:
        others = [kind for kind in kinds if kind is not NoneType]
        expected = dict.fromkeys(map(_expected, others))  # without repetitions
        message = f"{name} must be {one_of(tuple(expected))}, not {type_of(value)}"
        if isinstance(value, str) and any(get_origin(kind) is Literal for kind in others):
            raise VitkitError("text.value-wrong", message)  # the type is right, but the value is not a choice
        raise WrongTypeError("text.value-wrong", message)
    for mark in marks:
        if isinstance(mark, Between) and not mark.low <= converted <= mark.high:
            raise VitkitError("text.value-outside", f"{name} must be {mark.description}, not {converted:g}")
        if isinstance(mark, Only):
            unused = [field for field in converted.given if field not in mark.names]
            if unused:
                raise VitkitError("text.option-unused", f"{unused[0]} has no effect here: leave it out")
    return converted


def from_text(name: str, hint: Any, text: str) -> Any:
    """Convert text, such as the value of a flag, to an option's type (see `as_typed`).

    `3,4,9` becomes a tuple. `none` becomes None if the option can be None.
    """
    kinds, _ = alternatives(hint)
    if text == "none" and NoneType in kinds:
        return None
    kind = next(kind for kind in kinds if kind is not NoneType)
    value: Any = text
    if get_origin(kind) is tuple:
        part_kind = get_args(kind)[0]
        value = [from_text(name, part_kind, part.strip()) for part in text.split(",")] if text else []
    elif kind is bool:
        value = {"true": True, "false": False}.get(text.lower(), text)
    elif kind in (int, float):
        with suppress(ValueError):
            value = kind(text)
    return as_typed(name, hint, value)


def alternatives(hint: Any) -> tuple[list[Any], list[Any]]:
    """Return the types that a hint allows, and the marks of `Annotated`."""
    marks: list[Any] = []
    if get_origin(hint) is Annotated:
        hint, *marks = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return list(get_args(hint)), marks
    return [hint], marks


def option_classes(hint: Any) -> list[type[Options]]:
    """Return the classes of options among the types that a hint allows."""
    kinds, _ = alternatives(hint)
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Options)]


def _can_be_checked(kind: Any) -> bool:
    if get_origin(kind) is Sequence:
        return get_args(kind)[0] in (str, int)
    if not isinstance(kind, type) or kind is Any:
        return get_origin(kind) in (Literal, tuple)
    return not issubclass(kind, _NotImported) or kind.__name__ in _CHECKED_BY_NAME


_UNFIT = object()


def _convert(kind: Any, value: Any) -> Any:
    """Convert a value to a type without loss; return `_UNFIT` if this is impossible."""
    origin = get_origin(kind)
    if origin is Literal:
        is_choice = any(type(value) is type(choice) and value == choice for choice in get_args(kind))
        return value if is_choice else _UNFIT
    if origin is tuple:
        if not _is_list(value):
            return _UNFIT
        kinds = get_args(kind)
        if kinds[1:] == (...,):
            kinds = kinds[:1] * len(value)
        if len(value) != len(kinds):
            return _UNFIT
        parts = tuple(map(_convert, kinds, value))
        return _UNFIT if any(part is _UNFIT for part in parts) else parts
    if origin is Sequence:
        if not _is_list(value):
            return _UNFIT
        (item_kind,) = get_args(kind)
        if item_kind is str:  # the texts may be names of files
            fits = all(isinstance(item, (str, os.PathLike)) for item in value)
        else:
            fits = all(_convert(item_kind, item) is not _UNFIT for item in value)
        return value if fits else _UNFIT

    is_bool = type(value).__name__ in ("bool", "bool_")  # of Python and numpy
    if kind is bool:
        return bool(value) if is_bool else _UNFIT
    if kind is int:
        if is_bool or not isinstance(value, numbers.Integral) or abs(int(value)) > _MAX_INT:
            return _UNFIT
        return operator.index(value)
    if kind is float:
        if is_bool or not isinstance(value, numbers.Real):
            return _UNFIT
        # numpy compares in its own precision, in which _MAX_FLOAT may be infinite; some integers are too large for it.
        number = value if isinstance(value, int) else float(value)
        return float(number) if abs(number) < _MAX_FLOAT else _UNFIT
    if kind is Path:
        return value if isinstance(value, (str, os.PathLike)) else _UNFIT
    if kind is str and isinstance(value, Path):
        return str(value)
    # A class of `_CHECKED_BY_NAME` is represented by an empty class, so that only the names can be compared.
    fits = any(base is kind or base.__name__ == kind.__name__ for base in type(value).__mro__)
    return value if fits else _UNFIT


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview))


def _expected(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) in (tuple, Sequence):
        first, *rest = get_args(kind)
        plural = {int: "whole numbers", float: "numbers", str: "texts"}[first]
        if get_origin(kind) is Sequence:
            return f"a list of {plural}"
        return plural if rest == [...] else f"{1 + len(rest)} {plural}"
    words = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text", Path: "a path"}
    return words.get(kind, f"a {kind.__name__}")


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number and not a bool."""
    return type(value) in (int, float) and abs(value) < _MAX_FLOAT


def path_text(path: object, what: str) -> str:
    """Return a path that is not empty as text; `what` names it in error messages."""
    if not isinstance(path, (str, os.PathLike)):
        raise WrongTypeError("text.type-wrong", f"{what} must be a path, not {type_of(path)}")
    text = os.fsdecode(path)
    if not text:
        raise VitkitError("text.path-empty", f'{what} is empty (""): pass a path ("." is the current folder)')
    if "\0" in text:
        raise VitkitError("text.path-invalid", f"{what} has a null byte: {text!r:.80}")
    return text


def type_of(value: object) -> str:
    """Describe a value for an error message: text and short values by their `repr`, other values by their type."""
    if isinstance(value, str):
        return f"{value!r:.40}"
    kind = value if isinstance(value, type) else type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, type):
        return f"the class {name}"
    parts = value if isinstance(value, (list, tuple)) else [value]
    is_plain = all(isinstance(part, (bool, int, float, str, NoneType)) for part in parts)
    return repr(value) if is_plain and len(repr(value)) < 40 else name
