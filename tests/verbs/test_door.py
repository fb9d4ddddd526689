"""What `vitkit.<TAB>` shows: verbs and nouns, and no module."""

from __future__ import annotations

import inspect
import subprocess
import sys

import vitkit


def test_every_listed_name_is_a_class_or_a_function() -> None:
    assert dir(vitkit) == sorted(vitkit.__all__)
    for name in dir(vitkit):
        thing = getattr(vitkit, name)
        assert inspect.isclass(thing) or inspect.isfunction(thing), name
        assert thing.__name__ == name
        assert inspect.getdoc(thing), name


def test_a_verb_stays_a_function_once_all_rooms_are_loaded() -> None:
    code = (
        "import vitkit.cli.app, vitkit.weights, vitkit.training.run, vitkit.exporting, types\n"
        "modules = [name for name in dir(vitkit) if isinstance(getattr(vitkit, name), types.ModuleType)]\n"
        "assert modules == [], modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
