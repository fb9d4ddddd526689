"""Generate the arguments, flags and help of a command from the signature and the docstring of its function.

A parameter becomes an argument or a flag if its value can be typed as text. In a union, the first type of this kind
counts: `Path | str` is read as a path, and `str | Path` as text, which may also be a name.

The help of a parameter is the first sentence of its entry under `Args:`. Further sentences are for callers from Python.
Parameters in backticks are replaced by their flags. The paragraph `On the command line: ...` is the example.

Marks in `Annotated` change the defaults: a text replaces the help, for help that depends on a table, and a `Between` is
the range. Fields of recipes become flags in the same way.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from vitkit.text.arguments import Between, unannotated

PANELS = {  # the first flag of each panel of the help
    "objective": "What is learned without labels",
    "model": "What to train",
    "epochs": "Schedule and optimiser",
    "dropout": "Regularisation",
    "fit": "Pixels and augmentation",
    "layout": "Data, choice of the best, machine",
}
_FLAGS = {  # flags whose names differ from those of their parameters
    "out": ("--out", "-o"),
    "templates": ("--template",),
    "show": ("--open/--no-open",),
    "model_fields": ("--set",),
    "as_json": ("--json",),
}
_ARGUMENTS = {  # names in the help; an argument whose name ends in ... can be repeated
    "model": "MODEL",
    "models": "MODEL...",
    "others": "OTHER...",
    "sources": "SRC...",
    "destination": "DST",
    "text": "TEXT",
    "name": "NAME",
}
_METAVARS = {
    **_ARGUMENTS,
    "preprocess": "TEXT|FILE",
    "target": "CLASS|top|N",
    "recipe": "FILE|NAME",
    "weights": "WEIGHTS",
    "time": "TIME",
    "select_time": "TIME",
}
_WORDS = {int: "N", float: "NUMBER", str: "TEXT", Path: "PATH"}  # names of values of a type
_ENVIRONMENT = {"token": "VITKIT_TOKEN"}
_TYPES = {"str": str, "int": int, "float": float, "bool": bool, "Path": Path, "Sequence[str]": list[str]}


def parameters_of(
    function: Callable[..., Any],
    flags: Collection[str] = (),
    exclude: Collection[str] = (),
    metavars: Mapping[str, str] | None = None,
) -> list[inspect.Parameter]:
    """Return the arguments and flags of a function's command, as parameters for typer.

    Args:
        function: a public function.
        flags: positional parameters that are flags on the command line, as `out` always is.
        exclude: parameters that are not offered on the command line.
        metavars: placeholders of values in the help, in addition to those that all commands have in common.
    """
    plain, metavar_of = inspect.unwrap(function), {**_METAVARS, **(metavars or {})}
    entries, written = _entries(inspect.getdoc(plain) or ""), _spelling(function, flags)
    options = []
    for parameter in inspect.signature(plain).parameters.values():
        kind, marks = _read(parameter.annotation, plain.__globals__)
        if kind is None or parameter.name in exclude:
            continue
        text = next((mark for mark in marks if isinstance(mark, str)), None)
        settings: dict[str, Any] = {"help": text or _as_help(entries.get(parameter.name, ""), written)}
        if _is_argument(parameter, flags):
            settings["metavar"] = metavar_of.get(parameter.name, parameter.name.upper())
            options.append(_argument(parameter, kind, settings))
            continue
        named = metavar_of.get(parameter.name) if parameter.name not in _ARGUMENTS else None
        settings["metavar"] = named or _word(kind)
        if parameter.name in _ENVIRONMENT:
            settings |= {"envvar": _ENVIRONMENT[parameter.name], "show_envvar": True}
        for between in marks:
            if isinstance(between, Between):
                settings |= {"min": between.low, "max": None if between.high == math.inf else between.high}
        options.append(_flag(parameter, kind, settings))
    return options


def parameters_of_fields(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return a flag for each dataclass field that the function accepts as a keyword (`add_recipe_fields`)."""
    owners, exclude = getattr(function, "recipe_fields", ((), ()))
    offered = {name: option for owner in reversed(owners) for name, option in _options(owner).items()}
    names = dict.fromkeys(field.name for owner in owners for field in dataclasses.fields(owner))
    return [offered[name] for name in names if name not in exclude]


def switch(name: str, text: str) -> inspect.Parameter:
    """Return a flag that is not a parameter of the function, such as --json."""
    return _parameter(name, bool, typer.Option(*_flags_of(name), help=text), default=False)


def description_of(function: Callable[..., Any], flags: Collection[str] = ()) -> str:
    """Return the description in a command's help, without the paragraphs for callers from Python."""
    text = (inspect.getdoc(inspect.unwrap(function)) or "").partition("\nArgs:\n")[0].rstrip()
    paragraphs = [part for part in text.split("\n\n") if not part.startswith(" ") and "`vitkit." not in part]
    shown = "\n\n".join(paragraphs).replace("On the command line: ", "Example: ")
    shown = re.sub(r"(Example: .*)`\.$", r"\1`", shown)
    return _in_flags(shown, _spelling(function, flags))


def sentence_of(file: Path, name: str) -> str:
    """Return the first sentence of a function's docstring.

    The file is searched as text, because importing or parsing it would take longer.
    """
    text = file.read_text(encoding="utf-8")
    begun = text.index('    """', text.index(f"\ndef {name}(")) + len('    """')
    paragraph = " ".join(text[begun : text.index('"""', begun)].partition("\n\n")[0].split())
    shown = re.sub(r"`(\w+)`", lambda match: _flags_of(match[1])[0], paragraph)
    sentence, stop, _ = shown.partition(". ")
    return sentence + stop.strip()


def _flags_of(name: str) -> tuple[str, ...]:
    return _FLAGS.get(name, ("--" + name.replace("_", "-"),))


def _is_argument(parameter: inspect.Parameter, flags: Collection[str]) -> bool:
    return parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.name not in ("out", *flags)


def _spelling(function: Callable[..., Any], flags: Collection[str]) -> dict[str, str]:
    """Return how each parameter is written on the command line, such as MODEL or --out."""
    parameters = inspect.signature(function).parameters.values()
    arguments = {p.name: _ARGUMENTS.get(p.name, p.name.upper()) for p in parameters if _is_argument(p, flags)}
    return {p.name: _flags_of(p.name)[0].split("/")[0] for p in parameters} | arguments


def _in_flags(text: str, written: Mapping[str, str]) -> str:
    """Replace parameters in backticks by their spelling on the command line, and remove all other backticks."""
    return re.sub(r"`([^`]+)`", lambda match: written.get(match[1], match[1]), text)


def _entries(doc: str) -> dict[str, str]:
    """Return the entry of each parameter under `Args:`, as one line."""
    section = re.split(r"\n\n(?=\S)", doc.partition("\nArgs:\n")[2])[0]
    parts = re.split(r"^ {4}(\w+): ", section, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def _as_help(entry: str, written: Mapping[str, str]) -> str:
    sentence = re.split(r"(?<=\.)\s+(?=[A-Z`])", entry)[0]
    return _in_flags(sentence if sentence.startswith("`") else sentence[:1].upper() + sentence[1:], written)


def _read(annotation: Any, known: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Return the type of a parameter's flag, and the marks of `Annotated`.

    The type is None if values cannot be typed as text. Annotations are read as text, because importing some of the
    types takes seconds.
    """
    kind, marks = unannotated(annotation, known)
    parts = (_type(ast.unparse(part), known) for part in _alternatives(ast.parse(kind, mode="eval").body))
    return next((part for part in parts if part is not None), None), marks


def _alternatives(node: ast.expr) -> list[ast.expr]:
    return [*_alternatives(node.left), node.right] if isinstance(node, ast.BinOp) else [node]


def _type(name: str, known: dict[str, Any]) -> Any:
    alias = known.get(name)
    return alias if get_origin(alias) is Literal else _TYPES.get(name)


def _parameter(name: str, kind: Any, info: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _argument(parameter: inspect.Parameter, kind: Any, settings: dict[str, Any]) -> inspect.Parameter:
    kind = list[str] if (settings["metavar"] or "").endswith("...") else kind
    default = parameter.default
    if default in (None, ()):
        kind, default = kind | None, None
    return _parameter(parameter.name, kind, typer.Argument(**settings), default)


def _flag(parameter: inspect.Parameter, kind: Any, settings: dict[str, Any]) -> inspect.Parameter:
    written, default = _flags_of(parameter.name), parameter.default
    if kind is bool:
        is_pair = default is True and "/" not in written[0]
        written, default = (f"{written[0]}/--no-{written[0][2:]}",) if is_pair else written, bool(default)
    elif default in (None, ()):
        kind, default = kind | None, None
    return _parameter(parameter.name, kind, typer.Option(*written, **settings), default)


def _options(dataclass: type[Any]) -> dict[str, inspect.Parameter]:
    hints = get_type_hints(dataclass, include_extras=True)
    options, panel = {}, ""
    for field in dataclasses.fields(dataclass):
        panel = PANELS.get(field.name, panel)
        kind, text, *marks = get_args(hints[field.name])
        shown = next((mark for mark in marks if isinstance(mark, str)), _show(field.default))
        options[field.name] = _option(field, kind, text, panel, shown)
    return options


def _option(field: dataclasses.Field[Any], kind: Any, text: str, panel: str, shown: str | bool) -> inspect.Parameter:
    (flag,) = _flags_of(field.name)
    settings: dict[str, Any] = {"help": text, "show_default": shown, "rich_help_panel": panel}
    settings["metavar"] = _METAVARS.get(field.name) or _word(kind)
    if field.name == "model_fields":
        kind = list[str]
        settings["help"] = "Change a field of the model, for example --set model.position=none --set model.layers=6."
        settings |= {"metavar": "model.FIELD=VALUE", "show_default": False}
    if field.name == "model":
        settings["autocompletion"] = _model_names
    declaration = f"{flag}/--no-{flag[2:]}" if kind is bool else flag
    optional = kind if type(None) in get_args(kind) and get_origin(kind) is not tuple else kind | None
    return _parameter(field.name, optional, typer.Option(declaration, **settings), None)


def _model_names(incomplete: str) -> list[str]:
    """Return the model names that begin with an incomplete word, for completion in the shell."""
    from vitkit.model.names import list_models

    return [name for name in list_models() if name.startswith(incomplete)]


def _word(kind: Any) -> str | None:
    """Return the name of a flag's value in the help; None for choices and switches, which typer describes itself."""
    if get_origin(kind) is tuple:
        return " ".join(_WORDS.get(each, "TEXT") for each in get_args(kind) if each is not Ellipsis)
    parts = [part for part in get_args(kind) or (kind,) if part is not type(None)]
    return _WORDS.get(parts[0]) if len(parts) == 1 else None


def _show(default: Any) -> str | bool:
    if default is None:
        return False
    return " ".join(map(str, default)) if isinstance(default, tuple) else str(default).lower()
