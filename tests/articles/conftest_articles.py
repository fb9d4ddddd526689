"""Fixtures: `row` runs the line of docs/articles.md that has the number of a test.

A test named `test_2_7_...` is that of row 2.7, and so is one whose parameter `number` is 2.7. One whose parameter is
"2.6 2.16" runs a single command with the flags of both rows.
"""

import ast
import json
import re
import shlex
import shutil
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import blank
import runs
import vitkit
from cli.conftest import Command
from once import once

PAGE = Path(__file__).parents[2] / "docs" / "articles.md"
_ROW = re.compile(r"^\| (?P<number>\d\.\d+) \| (?P<what>[^|]+) \| `(?P<line>[^`]+)` \|$", re.MULTILINE)
ROWS = {match["number"]: match["line"] for match in _ROW.finditer(PAGE.read_text(encoding="utf-8"))}
# What makes a training quick enough for a test; a row's own flags take precedence.
_TRAIN = {"--epochs": "1", "--workers": "0", "--batch-size": "8", "--precision": "float32", "--image-size": "16"}
_TRAINED = ("data-size", "position", "pooling", "norm", "optimizer", "axial")  # experiments of small models


class Pictures:
    """A data set as torchvision's are."""

    classes = ("blue", "green", "red")

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        pixels = np.random.default_rng(index).integers(0, 60, (16, 16, 3), dtype=np.uint8)
        pixels[..., 2 - index % 3] += 150
        return Image.fromarray(pixels), index % 3


def splits_of(run: Path | str) -> dict[str, dict[str, list[str]]]:
    """The images of each class in each split."""
    splits: dict[str, dict[str, list[str]]] = json.loads((Path(run) / "split.json").read_text())["splits"]
    return splits


def tiny_model(num_classes: int = 3, **options: Any) -> Any:
    return vitkit.VisionTransformer(
        **{"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 1, **options},
        num_classes=num_classes,
    )


def _make(place: Path) -> None:
    """What the lines name: photographs, weights in the layout of published files, a run with its pictures."""
    runs.photos(place / "flower_photos", images=10)
    shutil.copy(place / "flower_photos" / "red" / "img1.png", place / "tulip.png")
    Image.open(place / "tulip.png").convert("L").save(place / "grey.png")
    torch.manual_seed(0)
    in21k = tiny_model(21_843, representation_size=64)  # the published files have heads of zeros, and pre_logits
    torch.save(in21k.state_dict(), place / "vit_base_patch16_224_in21k.pth")
    torch.save(tiny_model().state_dict(), place / "model.pth")
    (place / "weights").mkdir()
    torch.save(tiny_model().state_dict(), place / "weights/model-9.pth")
    (place / "weights/class_indices.json").write_text('{"0": "blue", "1": "green", "2": "red"}')
    with pytest.MonkeyPatch.context() as patch:
        blank.real(patch.setattr)
        patch.chdir(place)
        recipe = vitkit.Recipe(**runs.quick_fields(split=(0.6, 0.2, 0.2)))
        vitkit.train("flower_photos", recipe, out="runs/flowers")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    here = runs.copy_of(once("articles", _make), tmp_path / "here")
    monkeypatch.chdir(here)
    for name, value in {"OFFLINE": "1", "CACHE": str(here / "cache")}.items():
        monkeypatch.setenv(f"VITKIT_{name}", value)
    monkeypatch.setenv("COLUMNS", "120")
    return here


@dataclass
class Done:
    """What a line left: the value of its last expression, its names, or what a command printed."""

    value: Any = None
    names: dict[str, Any] = field(default_factory=dict)
    out: str = ""
    err: str = ""
    run: Path = Path()  # of a training

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def recipe(self) -> dict[str, Any]:
        return tomllib.loads((self.run / "recipe.toml").read_text(encoding="utf-8"))


def assert_trained(done: Done, numbers: str, expected: Mapping[str, dict[str, Any] | Callable[[Done], None]]) -> None:
    """What is expected of each row: values of the recipe, or what a function asserts of the run."""
    for wanted in (expected[number] for number in numbers.split()):
        if callable(wanted):
            wanted(done)
        else:
            recipe = done.recipe()
            assert {name: recipe[name] for name in wanted} == wanted


class Row:
    """A row of the page, to be run, or the flags of several rows in one command."""

    def __init__(self, numbers: list[str], place: Path, command: Command) -> None:
        self.line, self._place, self._vitkit = ROWS[numbers[0]], place, command
        if len(numbers) > 1:
            commands = [shlex.split(ROWS[number]) for number in numbers]
            same = sum(1 for _ in takewhile(lambda words: len(set(words)) == 1, zip(*commands, strict=False)))
            self.line = shlex.join([*commands[0], *(word for words in commands[1:] for word in words[same:])])

    def __call__(self, *flags: str, **names: Any) -> Done:
        """Run the line; `flags` are added to a command, `names` are defined for Python."""
        return self._command(flags) if self.line.startswith("vitkit ") else self._python(names)

    def _python(self, names: dict[str, Any]) -> Done:
        torch.manual_seed(0)
        scope = {"json": json, "torch": torch, "nn": nn, "vitkit": vitkit, "Path": Path, "Image": Image}
        scope |= {"model": tiny_model().eval(), "images": torch.randn(2, 3, 32, 32), "dataset": Pictures(), **names}
        code = ast.parse(self.line)
        last = code.body.pop() if isinstance(code.body[-1], ast.Expr) else None
        exec(compile(code, self.line, "exec"), scope)
        value = None if last is None else eval(compile(ast.Expression(last.value), self.line, "eval"), scope)
        return Done(value, scope)

    def _command(self, flags: tuple[str, ...]) -> Done:
        words = [*shlex.split(self.line)[1:], *flags]
        if words[0] == "train" and "--resume" not in words:
            quick = _TRAIN | ({"--image-size": "32"} if "vit_base_patch16_224_in21k.pth" in words else {})
            if "probe" in words or "--recipe" in words:
                del quick["--epochs"]
            words += [word for flag, value in quick.items() if flag not in words for word in (flag, value)]
            words += runs.SIZE_FLAGS if "none" in words else []
        elif words[0] == "compare" or (words[0] == "lab" and words[1] in _TRAINED):
            words += ["--set", "workers=0", "--set", "image_size=16"]
        before = set((self._place / "runs").iterdir())
        done = self._vitkit(*words)
        assert done.code == 0, f"$ vitkit {shlex.join(words)}\n{done.out}{done.err}"
        made = sorted(set((self._place / "runs").iterdir()) - before)
        return Done(out=done.out, err=done.err, run=made[0] if made else Path())


@pytest.fixture
def row(request: pytest.FixtureRequest, place: Path, command: Command) -> Row:
    match = re.match(r"test_(\d_\d+)_|.*\[([\d. ]+)\]$", request.node.name)
    assert match is not None, "tests of rows are named by them"
    return Row((match[1] or match[2]).replace("_", ".").split(), place, command)
