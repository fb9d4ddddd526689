"""What `vitkit.<TAB>` shows: verbs and nouns, and no module."""

import inspect
import subprocess
from collections.abc import Callable
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest

import vitkit
import warm
from vitkit.cli import function_of
from vitkit.cli.app import VERBS
from vitkit.training import PretrainingFields, recipe
from vitkit.training.recipe import SET_ONLY

OWN_NAMES = {"eval": "evaluate"}
# What a caller is told, and where to; and objects, which no command line can name.
OF_PYTHON = {"note", "progress", "say", "writer", "train_dataset", "val_dataset", "class_names", "callbacks", "loggers"}
OF_PYTHON |= {"loss", "augment", "make_optimizer", "confirm"}
OF_DATASETS = {"train": {"preprocess"}}  # what goes with those objects
OF_THE_SHELL = {"as_json", "strict", "yes"}  # how it is printed, and with which code it ends
OWN_FUNCTIONS = {"train": {"dry_run", "price"}}  # flags of the shell that are a function in Python


def test_every_listed_name_is_a_class_or_a_function() -> None:
    assert dir(vitkit) == sorted(vitkit.__all__)
    for name in dir(vitkit):
        thing = getattr(vitkit, name)
        assert inspect.isclass(thing) or inspect.isfunction(thing), name
        assert thing.__name__ == name
        assert inspect.getdoc(thing), name


def test_a_verb_stays_a_function_once_all_rooms_are_loaded() -> None:
    code = (
        "import vitkit.cli.app, vitkit.weights, vitkit.training.run, vitkit.exporting, sys, types\n"
        "assert len([name for name in sys.modules if name.startswith('vitkit.')]) > 150, 'the rooms are not loaded'\n"
        "modules = [name for name in dir(vitkit) if isinstance(getattr(vitkit, name), types.ModuleType)]\n"
        "assert modules == [], modules"
    )
    done = subprocess.run([warm.python(), "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


COMMANDS: dict[str, Any] = {verb: function_of(verb) for verb in VERBS}


@pytest.mark.parametrize("name", [name for name in COMMANDS if hasattr(vitkit, OWN_NAMES.get(name, name))])
def test_a_verb_has_the_parameters_and_defaults_of_its_command(name: str) -> None:
    flags, parameters = (
        {own.name: own.default or None for own in inspect.signature(function).parameters.values()}
        for function in (COMMANDS[name], getattr(vitkit, OWN_NAMES.get(name, name)))
    )
    of_the_shell = OF_THE_SHELL | OWN_FUNCTIONS.get(name, set())
    assert parameters.keys() - OF_PYTHON - OF_DATASETS.get(name, set()) - set(SET_ONLY) == flags.keys() - of_the_shell
    # The defaults of these are the recipe's on both sides, None where none is given.
    if name not in ("pretrain", "train", "compare", "lab"):
        assert {own: parameters[own] for own in parameters.keys() & flags.keys()} == {
            own: flags[own] for own in parameters.keys() & flags.keys()
        }


# --- What an editor knows of the functions that take the fields of a recipe -----------------------------


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
