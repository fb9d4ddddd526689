"""One function turns the fields of a dataclass into flags, so that flags, recipes and their help cannot disagree."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from vitkit.training.recipe import read_sets

PANELS = {  # the first flag of each panel of the help
    "objective": "What is learned without labels",
    "model": "What to train",
    "epochs": "Schedule and optimiser",
    "dropout": "Regularisation",
    "fit": "Pixels and augmentation",
    "layout": "Data, choice of the best, machine",
}


def with_flags_of(*owners: type[Any], but: tuple[str, ...]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one flag a field; those that are given arrive in its `flags`, by field name.

    Args:
        owners: dataclasses, whose fields are annotated with their help, and with what to show for their default if
            it is not that; defaults are left to them. Of a field that several have, the first one's counts.
        but: fields that get no flag.
    """
    offered = {name: option for own in reversed(owners) for name, option in _options(own).items()}
    options = [offered[name] for own in owners for name in _options(own) if name not in but]
    options = list(dict.fromkeys(options))

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_flags(**values: Any) -> None:
            flags = {option.name: values.pop(option.name) for option in options}
            if "model_fields" in flags:
                flags["model_fields"] = read_sets(flags["model_fields"] or ()) or None
            command(**values, flags={name: value for name, value in flags.items() if value is not None})

        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "flags"]
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + options
        with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_flags.__annotations__ = {p.name: p.annotation for p in parameters}
        return with_flags

    return decorate


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
    if field.name == "model_fields":
        return _set(panel)
    flag = "--" + field.name.replace("_", "-")
    declaration = f"{flag}/--no-{flag[2:]}" if kind is bool else flag
    option = typer.Option(declaration, help=text, show_default=shown, rich_help_panel=panel)
    optional = kind if type(None) in get_args(kind) and get_origin(kind) is not tuple else kind | None
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[optional, option]
    )


def _set(panel: str) -> inspect.Parameter:
    text = "Change a field of the model, as in --set model.position=none --set model.layers=6."
    option = typer.Option("--set", metavar="model.FIELD=VALUE", help=text, show_default=False, rich_help_panel=panel)
    return inspect.Parameter(
        "model_fields", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[list[str] | None, option]
    )


def _show(default: Any) -> str | bool:
    if default is None:
        return False
    return " ".join(map(str, default)) if isinstance(default, tuple) else str(default).lower()
