"""What an editor and a type checker know of the functions that take the fields of a recipe."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest

import vitkit
from vitkit.training import PretrainingFields, recipe

TAKES: dict[Callable[..., Any], Any] = {
    vitkit.train: recipe.RecipeFields,
    vitkit.pretrain: PretrainingFields,
    vitkit.compare: recipe.ComparedFields,
    vitkit.lab: recipe.ComparedFields,
    vitkit.plan: recipe.PlannedFields,
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


SOURCE = Path(__file__).parents[2] / "src"
OTHERS = (
    "torch",
    "torchvision",
    "numpy",
    "PIL",
    "matplotlib",
    "scipy",
    "sklearn",
    "rich",
    "fastapi",
    "uvicorn",
    "typer",
)
SKIPPED = "[mypy-{0}.*]\nfollow_imports = skip\nignore_missing_imports = True\n"  # which would take a minute to read
WRONG = {  # lines that are wrong, and what is said of each
    'vitkit.train("digits", epoch=2)': 'Unexpected keyword argument "epoch" for "train"',
    'vitkit.train("digits", epochs="2")': 'Argument "epochs" to "train" has incompatible type "str"',
    'vitkit.train("digits", method="lore")': 'Argument "method" to "train" has incompatible type',
    'vitkit.pretrain("digits", mixup=0.5)': 'Unexpected keyword argument "mixup" for "pretrain"',
    'vitkit.compare("digits", ["a", "b"], folds=5)': 'Unexpected keyword argument "folds" for "compare"',
    'vitkit.lab("head", epohcs=1)': 'Unexpected keyword argument "epohcs" for "lab"',
    'vitkit.plan("digits", lr="1e-3")': 'Argument "lr" to "plan" has incompatible type "str"',
    'vitkit.predict("run", "x.png", topp=5)': 'Unexpected keyword argument "topp" for "predict"',
}
RIGHT = [
    'vitkit.train("digits", epochs=2, lr=1, weights=["a", "b"], select_time="5m", crop_scale=(0.2, 1))',
    'vitkit.pretrain("digits", objective="mae", mask=0.5, epochs=1)',
    'vitkit.compare("digits", ["a", "b"], epochs=1, devices=2, method="full")',
    'vitkit.lab("head", model="vit_micro_patch4_16", seed=1)',
    'vitkit.plan("digits", images=100, devices=8, epochs=3)',
]


def test_a_type_checker_finds_mistyped_keywords_and_wrong_types(tmp_path: Path) -> None:
    file, config, lines = tmp_path / "calls.py", tmp_path / "mypy.ini", ["import vitkit", *WRONG, *RIGHT]
    file.write_text("\n".join(lines) + "\n")
    config.write_text(f"[mypy]\nfollow_imports = silent\nmypy_path = {SOURCE}\n" + "".join(map(SKIPPED.format, OTHERS)))
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run([*command, str(file)], capture_output=True, text=True, timeout=300, check=False)
    found = {int(line.split(":")[1]): line for line in done.stdout.splitlines() if ": error: " in line}
    expected = dict(enumerate(WRONG.values(), start=2))
    assert found.keys() == expected.keys(), done.stdout + done.stderr
    for number, message in expected.items():
        assert message in found[number]
