"""The examples in the docstrings of the public names run, and print what they say."""

import ast
import doctest
import inspect
import json
import os
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

import runs
import vitkit
import warm

ROOT = Path(__file__).parents[2]
_LONG = {"PretrainingRun", "TrainingRun", "bench", "compare", "dry_run", "export", "lab", "pretrain", "train"}
_TEXT = {"zero_shot"}  # need the extra `text`, and CLIP or SigLIP
_NOT_HERE = {"studio"}  # runs until somebody stops it


def example(text: str) -> str:
    """The indented lines of a docstring before its list of arguments, without its shell commands."""
    lines = inspect.cleandoc(text).split("\nArgs:")[0].split("\nAttributes:")[0].splitlines()
    return textwrap.dedent("\n".join(line for line in lines if line.startswith("    ") or not line)).strip()


EXAMPLES = {name: example(inspect.getdoc(getattr(vitkit, name)) or "") for name in vitkit.__all__}
PROGRAMS = [name for name, code in EXAMPLES.items() if ">>>" not in code]


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_public_name_has_one(name: str) -> None:
    assert "import " in EXAMPLES[name]


@pytest.mark.parametrize("name", [name for name, code in EXAMPLES.items() if ">>>" in code])
def test_a_session_prints_what_it_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    thing = getattr(vitkit, name)
    (found,) = doctest.DocTestFinder(recurse=False).find(thing, name, globs={name: thing})
    assert doctest.DocTestRunner().run(found) == (0, len(found.examples))


@pytest.mark.parametrize("name", PROGRAMS)
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


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the examples name: a run, photographs, weights, and a model for images and text."""
    folder = tmp_path_factory.mktemp("examples")
    photos = runs.shared_photos()
    runs.copy_of(runs.shared_run(), folder / "runs" / "digits-1")
    for name in ("PHOTOS", "labelled"):
        (folder / name).symlink_to(photos)
    (folder / "photos").symlink_to(photos / "red")
    (folder / "photo.jpg").symlink_to(photos / "red" / "img1.png")
    (folder / "docs").symlink_to(ROOT / "docs")
    vitkit.convert(folder / "runs" / "digits-1", folder / "deit_tiny_patch16_224.pth", to="timm")
    return folder


# Each program is run in a folder of its own, in one process, which has imported already what an earlier one needed.
_RUN = """
import json, os, sys, types
for folder, program in json.loads(sys.argv[1]):
    print(folder, file=sys.stderr)
    os.chdir(folder)
    sys.modules["__main__"] = types.ModuleType("__main__")
    exec(program, sys.modules["__main__"].__dict__)
"""
SLOW = _LONG | _TEXT


@pytest.mark.parametrize("is_slow", [False, pytest.param(True, marks=pytest.mark.accept)])
def test_examples_run(is_slow: bool, place: Path, tmp_path: Path) -> None:
    programs = []
    for name in (name for name in PROGRAMS if name not in _NOT_HERE and (name in SLOW) == is_slow):
        folder = tmp_path / name
        folder.mkdir()
        for part in place.iterdir():
            (folder / part.name).symlink_to(part)
        (folder / "runs").unlink()
        shutil.copytree(place / "runs", folder / "runs")
        if name in _TEXT:
            import wordy

            wordy.siglip(folder / "siglip2-folder")
        programs.append((str(folder), EXAMPLES[name]))
    environment = os.environ | {"VITKIT_OFFLINE": "1", "BLANK_PICTURES": "1"}
    command = [warm.python(), "-c", _RUN, json.dumps(programs)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
