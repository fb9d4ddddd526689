"""The examples in the docstrings of the public names are Python, and call what there is."""

from __future__ import annotations

import ast
import doctest
import inspect
import textwrap

import pytest

import vitkit


def example(text: str) -> str:
    """The indented lines of a docstring before its list of arguments, without its shell commands."""
    lines = inspect.cleandoc(text).split("\nArgs:")[0].split("\nAttributes:")[0].splitlines()
    return textwrap.dedent("\n".join(line for line in lines if line.startswith("    ") or not line)).strip()


EXAMPLES = {
    name: code
    for name in vitkit.__all__
    if (code := example(inspect.getdoc(getattr(vitkit, name)) or "")) and "import " in code
}


def test_there_are_some() -> None:
    assert "train" in EXAMPLES


@pytest.mark.parametrize("name", [name for name, code in EXAMPLES.items() if ">>>" in code])
def test_a_session_prints_what_it_says(name: str) -> None:
    thing = getattr(vitkit, name)
    (found,) = doctest.DocTestFinder(recurse=False).find(thing, name, globs={name: thing})
    assert doctest.DocTestRunner().run(found) == (0, len(found.examples))


@pytest.mark.parametrize("name", [name for name, code in EXAMPLES.items() if ">>>" not in code])
def test_an_example_is_python_and_uses_public_names(name: str) -> None:
    tree = ast.parse(EXAMPLES[name])
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "vitkit":
            assert hasattr(vitkit, node.attr), node.attr
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("vitkit."):
            function = getattr(vitkit, ast.unparse(node.func).removeprefix("vitkit."), None)
            if function is not None and inspect.isfunction(function):
                names = [keyword.arg for keyword in node.keywords if keyword.arg is not None]
                inspect.signature(function).bind_partial(*node.args, **dict.fromkeys(names))
