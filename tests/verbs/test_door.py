"""What `vitkit.<TAB>` shows: verbs and nouns, and no module."""

import inspect
import subprocess

import pytest

import vitkit
import warm
from vitkit.cli.app import VERBS
from vitkit.text.arguments import hints_of

OWN_NAMES = {"eval": "evaluate"}
# What a caller is told, and where to; and objects, which no command line can name.
OF_PYTHON = {"progress", "hooks"}
OF_THE_SHELL = {"as_json", "sets", "dry_run", "price", "anatomy"}  # printing, and what is another call in Python
GROUPS = (vitkit.Compute, vitkit.Names, vitkit.Pretraining, vitkit.Promises, vitkit.Recipe)
FIELDS = {name for group in GROUPS for name in hints_of(group)}


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


@pytest.mark.parametrize("name", [name for name in VERBS if hasattr(vitkit, OWN_NAMES.get(name, name))])
def test_a_verb_has_the_parameters_and_defaults_of_its_command(name: str) -> None:
    flags, parameters = (
        {own.name: own.default or None for own in inspect.signature(function).parameters.values()}
        for function in (VERBS[name].function(), getattr(vitkit, OWN_NAMES.get(name, name)))
    )
    own = parameters.keys() - OF_PYTHON - {"compute", "names", "pretraining", "promises"}
    assert own <= flags.keys()
    assert flags.keys() - own - OF_THE_SHELL <= FIELDS
    assert {each: parameters[each] for each in own} == {each: flags[each] for each in own}
