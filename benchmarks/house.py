"""How far a reader of the code has to walk: `python benchmarks/house.py [--walks] [--names]`.

Three kinds of figures, counted afresh from the code at each call; `python benchmarks/house.py` prints them all.

Size: files and lines of `src`, lines a file, short files, files that one neighbour alone imports.
Walks: the files whose functions are entered, and how often the file changes from one call to the next, from a verb to
the first training step (from scratch; from a run's weights), to a loaded timm checkpoint, and to a prediction; and how
often a recipe is built and a checkpoint is looked at on the way. Functions count, the bodies of modules do not.
Names: parameters that a function does nothing with but hand on, class names that have several homes, and names that say
nothing (`own`, `told`, `asked`, `found`). Imports of modules inside rooms by tests.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "vitkit"
EMPTY_NAMES = ("own", "told", "asked", "found")
SHORT = 60  # lines

# --- Size and names, from the syntax trees -------------------------------------------------------------


def trees(folder: Path) -> dict[Path, ast.Module]:
    """Each Python file below a folder, parsed."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))}


def size(files: dict[Path, ast.Module]) -> dict[str, Any]:
    """How the code is cut into files."""
    lines = {path: path.read_text(encoding="utf-8").count("\n") for path in files}
    alone = [module for module, users in _importers(files).items() if len(users) == 1]
    return {
        "files in src": len(files),
        "lines in src": sum(lines.values()),
        "lines a file": round(sum(lines.values()) / len(files)),
        f"files under {SHORT} lines": sum(count < SHORT for count in lines.values()),
        "files that one neighbour alone imports": len(alone),
    }


def _importers(files: dict[Path, ast.Module]) -> dict[str, set[Path]]:
    """By module of the package: the files that import it."""
    modules = {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path for path in files}
    users: dict[str, set[Path]] = {name: set() for name in modules if not name.endswith("__init__")}
    for path, tree in files.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    if name in users and modules[name] != path:
                        users[name].add(path)
    return users


def names(files: dict[Path, ast.Module]) -> dict[str, Any]:
    """How things are called, and how often they are only passed on."""
    homes: dict[str, set[Path]] = {}
    empty: Counter[str] = Counter()
    handed_on = parameters = 0
    for path, tree in files.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name.lstrip("_"), set()).add(path)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                total, passed = _handed_on(node)
                parameters, handed_on = parameters + total, handed_on + passed
            empty.update(name for name in _bound(node) if name in EMPTY_NAMES)
    return {
        "parameters": parameters,
        "parameters only handed on": handed_on,
        "class names with several homes": sum(len(paths) > 1 for paths in homes.values()),
        **{f"names `{name}`": empty[name] for name in EMPTY_NAMES},
    }


def _bound(node: ast.AST) -> Iterator[str]:
    """The names that a node gives to something: by assignment, as a parameter, in a loop."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    if isinstance(node, ast.arg):
        yield node.arg


def _handed_on(function: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[int, int]:
    """How many parameters a function has, and of how many all it does is give them to other functions."""
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    mine = {argument.arg for argument in every} - {"self", "cls"}
    uses: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    for node in (inner for statement in function.body for inner in ast.walk(statement)):
        if isinstance(node, ast.Name) and node.id in mine:
            uses[node.id] += 1
        if isinstance(node, ast.Call):
            values = [*node.args, *(keyword.value for keyword in node.keywords)]
            values = [value.value if isinstance(value, ast.Starred) else value for value in values]
            passed.update(value.id for value in values if isinstance(value, ast.Name) and value.id in mine)
    return len(mine), sum(uses[name] > 0 and uses[name] == passed[name] for name in mine)


def deep_imports(tests: Path) -> int:
    """Names that tests import from modules inside a room, as in `from vitkit.room.module import name`."""
    return sum(
        len(node.names)
        for tree in trees(tests).values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("vitkit.")
        and str(node.module).count(".") >= 2
    )


# --- Walks, by running them --------------------------------------------------------------------------


class FirstStepError(Exception):
    """The training has come to its first step."""


class Walk:
    """Notes which files of the package are entered, in their order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.counted: Counter[str] = Counter()

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        """See `sys.setprofile`."""
        if event != "call" or not frame.f_code.co_filename.startswith(str(SOURCE)):
            return
        name, file = frame.f_code.co_name, frame.f_code.co_filename.removeprefix(f"{SOURCE}/")
        if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # the body of a module or of a class
            return
        self.calls.append(file)
        self.counted[f"{file}:{name}"] += 1
        if file.startswith("training/") and name == "take_step":
            raise FirstStepError

    def figures(self) -> dict[str, int]:
        """Files entered, and changes between files."""
        changes = sum(one != other for one, other in zip(self.calls, self.calls[1:], strict=False))
        builds = self.counted["training/recipe.py:build"]
        looks = sum(self.counted[name] for name in LOOKS)
        return {"files entered": len(set(self.calls)), "changes": changes, "recipes built": builds, "looks": looks}


LOOKS = ("weights/loading.py:look",)  # at a checkpoint


def _prepare(folder: Path) -> None:
    """Photographs, a run, and a checkpoint in timm's layout."""
    import numpy as np
    import torch
    from PIL import Image

    import vitkit

    rng = np.random.default_rng(0)
    for part, first in (("photos", 0), ("others", 100)):
        for label, colour in {"blue": (40, 60, 200), "green": (40, 190, 60), "red": (200, 50, 40)}.items():
            (folder / part / label).mkdir(parents=True)
            for i in range(20):
                pixels = np.clip(np.array(colour) + rng.normal(0, 30, (16, 16, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / part / label / f"{first + i}.png")
    vitkit.train(
        folder / "others",
        vitkit.Recipe(weights="none", model="vit_micro_patch8_16", epochs=1),
        out=folder / "run",
    )
    model = vitkit.create_model("vit_tiny_patch16_224", num_classes=10)
    torch.save(model.state_dict(), folder / "timm.pth")


def walk(name: str, folder: Path) -> Walk:
    """Take one walk in this process, with everything imported, so that what modules do when imported does not count."""
    import vitkit

    for path in SOURCE.rglob("*.py"):
        if path.name not in ("__main__.py", "lightning_module.py") and path.parent.name != "static":
            importlib.import_module(
                ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
            )

    quiet: dict[str, Any] = {"out": folder / f"out-{name}"}
    photos, image = folder / "photos", folder / "photos" / "red" / "0.png"
    ways = {
        "from scratch": lambda: vitkit.train(
            photos, vitkit.Recipe(weights="none", model="vit_micro_patch8_16", epochs=1, workers=0), **quiet
        ),
        "from a run": lambda: vitkit.train(
            photos, vitkit.Recipe(weights=str(folder / "run"), method="full", epochs=1, workers=0), **quiet
        ),
        "load a timm .pth": lambda: vitkit.load(folder / "timm.pth"),
        "predict": lambda: vitkit.predict(
            folder / "run", image, compute=vitkit.Compute(precision="bfloat16")
        ),  # on any CPU
    }
    taken = Walk()
    sys.setprofile(taken)
    try:
        ways[name]()
    except FirstStepError:
        pass
    finally:
        sys.setprofile(None)
    return taken


WALKS = ("from scratch", "from a run", "load a timm .pth", "predict")


def walks() -> dict[str, dict[str, int]]:
    """All of them, each in a process and with a cache of its own."""
    taken = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        _prepare(folder)
        for name in WALKS:
            command = [sys.executable, __file__, "--walk", name, "--in", place]
            environment = os.environ | {
                "XDG_CACHE_HOME": str(folder / f"cache-{name}"),
                "VITKIT_CACHE": str(folder / name),
            }
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            taken[name] = json.loads(done.stdout.splitlines()[-1])
    return taken


# --- The picture of the rooms, from their imports -----------------------------------------------------


def room_imports(files: dict[Path, ast.Module]) -> dict[str, set[str]]:
    """The rooms (packages and modules at the top) that each room imports, wherever in its code."""
    found: dict[str, set[str]] = {}
    for path, tree in files.items():
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts[0] in ("__init__", "__main__"):
            continue
        targets = found.setdefault(parts[0], set())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vitkit."):
                targets.add(str(node.module).split(".")[1])
            elif isinstance(node, ast.Import):
                targets.update(name.name.split(".")[1] for name in node.names if name.name.startswith("vitkit."))
    return {room: (targets & set(found)) - {room} for room, targets in found.items() if room != "recipes"}


def levels(imports: dict[str, set[str]]) -> list[list[str]]:
    """The rooms from those that import none upward: each stands above all that it imports."""
    left, rows = dict(imports), list[list[str]]()
    while left:
        row = sorted(room for room, targets in left.items() if not targets & set(left))
        if not row:
            raise ValueError(f"these rooms import one another in a circle: {sorted(left)}")
        rows.append(row)
        left = {room: targets for room, targets in left.items() if room not in row}
    return rows


def nearest(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """The imports that no other import of the room leads to already (the transitive reduction)."""

    def below(room: str) -> set[str]:
        return imports[room].union(*(below(each) for each in imports[room]))

    return {room: targets - set().union(*(below(each) for each in targets)) for room, targets in imports.items()}


WIDE, HIGH, STEP = 128, 34, 84  # pixels: of a room, and from one level to the next


def draw(imports: dict[str, set[str]]) -> str:
    """The rooms as an SVG: a room stands above those that it imports, with lines to the nearest of them."""
    rows = levels(imports)
    width, height = max(map(len, rows)) * (WIDE + 24) + 24, len(rows) * STEP
    centre = {
        room: (round(width * (i + 1) / (len(row) + 1)), round(height - STEP * (level + 0.5)))
        for level, row in enumerate(rows)
        for i, room in enumerate(row)
    }
    lines = [
        f'<line x1="{centre[room][0]}" y1="{centre[room][1]}" x2="{centre[target][0]}" y2="{centre[target][1]}"/>'
        for room, targets in sorted(nearest(imports).items())
        for target in sorted(targets)
    ]
    boxes = [
        f'<rect x="{x - WIDE // 2}" y="{y - HIGH // 2}" width="{WIDE}" height="{HIGH}" rx="5"/>'
        f'<text x="{x}" y="{y + 5}">{room}</text>'
        for room, (x, y) in sorted(centre.items())
    ]
    style = (
        "line{stroke:#9aa5b1;stroke-width:1.5}rect{fill:#fff;stroke:#334e68}"
        "text{font:14px sans-serif;fill:#102a43;text-anchor:middle}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
            "<title>The rooms of vitkit: each stands above the rooms that it imports</title>",
            f"<style>{style}</style>",
            f'<rect width="{width}" height="{height}" style="fill:#f7f9fb;stroke:none"/>',
            *lines,
            *boxes,
            "</svg>\n",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walk", choices=WALKS, help="take one walk in this process, and print its figures as JSON")
    parser.add_argument("--in", dest="place", type=Path, help="the folder with what the walk needs")
    parser.add_argument("--no-walks", action="store_true", help="count in the code alone")
    parser.add_argument("--picture", type=Path, metavar="SVG", help="draw which room imports which")
    asked = parser.parse_args()
    if asked.picture:
        asked.picture.write_text(draw(room_imports(trees(SOURCE))), encoding="utf-8")
        return
    if asked.walk and asked.place is None:
        parser.error("--walk takes what it needs from a folder: name it with --in, or leave both out")
    if asked.walk:
        taken = walk(asked.walk, asked.place)
        print(json.dumps({**taken.figures(), "order": list(dict.fromkeys(taken.calls))}))
        return
    files = trees(SOURCE)
    rows = {**size(files), **names(files), "deep imports in tests": deep_imports(ROOT / "tests")}
    if not asked.no_walks:
        rows |= {
            f"{walk}: {what}": count
            for walk, counts in walks().items()
            for what, count in counts.items()
            if what != "order"
        }
    for what, count in rows.items():
        print(f"{what:48} {count:>8,}")


if __name__ == "__main__":
    main()
