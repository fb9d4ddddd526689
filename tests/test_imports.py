"""Imports between rooms form a DAG, and what must start fast imports nothing heavy.

Every import counts, those inside functions and under `if TYPE_CHECKING:` too: who reads a room must know the rooms
below it, whenever they are loaded. The package's own `__init__` is a door, not a room: it hands out names of them all.
"""

from __future__ import annotations

import ast
import functools
import importlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import vitkit

SOURCE = Path(__file__).parents[1] / "src" / "vitkit"

# The plan of the house: each room (a top-level module or package of vitkit) and the rooms it may import. A new room or
# a new edge is a decision: write it down here first. Every room may read the package's __version__.
PLAN: dict[str, set[str]] = {
    "__init__": set(),
    "errors": set(),
    "recipes": set(),
    "system": {"errors"},
    "text": {"errors", "system"},
    "data": {"errors", "system", "text"},
    "model": {"errors", "system", "text"},
    "model_folder": {"errors", "system"},
    "inference": {"data", "errors", "model", "system", "text"},
    "explanation": {"data", "errors", "model", "system", "text"},
    "classifier": {"data", "errors", "explanation", "inference", "model", "model_folder", "system", "text"},
    "weights": {"classifier", "data", "errors", "inference", "model", "model_folder", "system", "text"},
    "language": {"classifier", "data", "errors", "model", "model_folder", "system", "text", "weights"},
    "evaluation": {"classifier", "data", "errors", "inference", "system", "text"},
    "reporting": {"classifier", "data", "errors", "evaluation", "inference", "system", "text"},
    "exporting": {"classifier", "data", "errors", "evaluation", "inference", "model", "profiling", "system", "text"},
    "profiling": {"errors", "inference", "model", "reporting", "system"},
    "training": {
        *("classifier", "data", "errors", "evaluation", "explanation", "inference", "language", "model"),
        *("model_folder", "reporting", "system", "text", "weights"),
    },
}
PLAN["verbs"] = set(PLAN) - {"__init__", "recipes"}
PLAN["experiments"] = set(PLAN) - {"__init__", "recipes"}
PLAN["serving"] = set(PLAN) - {"__init__", "recipes", "experiments"}
PLAN["webapp"] = set(PLAN) - {"__init__", "recipes"}
PLAN["cli"] = set(PLAN) - {"__init__", "recipes"}
PLAN["__main__"] = {"cli", "system"}
MOST_ROOMS = 24


def module_imports(root: Path) -> dict[str, set[str]]:
    """Each module of the package in folder `root`, and the package's modules that it imports anywhere in its code.

    A name that is no module and that only the package's lazy `__getattr__` can answer (`from vitkit import ViTConfig`)
    is kept as it stands: it hides which room is meant.
    """
    files = {_module_name(path, root): path for path in sorted(root.rglob("*.py"))}
    graph: dict[str, set[str]] = {root.name: set()}
    for module, path in files.items():
        if module == root.name:
            continue
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        names = {
            name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for name in _names(node, package)
        }
        graph[module] = {_resolve(name, files, root.name) for name in names if f"{name}.".startswith(f"{root.name}.")}
    return graph


@functools.cache
def the_house() -> dict[str, set[str]]:
    """Its imports, read once."""
    return module_imports(SOURCE)


def _module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _names(node: ast.Import | ast.ImportFrom, package: str) -> list[str]:
    """The dotted names that a statement in `package` imports, relative ones made absolute."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    base = ".".join([*above, *([node.module] if node.module else [])])
    return [f"{base}.{alias.name}" for alias in node.names]


def _resolve(name: str, modules: Mapping[str, Path], package: str) -> str:
    home, _, member = name.rpartition(".")
    if name in modules or home not in modules:
        return name
    return name if home == package and not member.startswith("__") else home


def room(module: str) -> str:
    """`vitkit.data.sources` is in room `data`."""
    return [*module.split("."), "__init__"][1]


def cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """The modules of one cycle, the first of them again at the end; empty when there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def forbidden(graph: Mapping[str, set[str]], plan: Mapping[str, set[str]]) -> list[str]:
    """Edges between rooms that the plan lacks, and rooms that it does not know."""
    found = [f"room {name} is not in the plan" for name in {room(module) for module in graph} - set(plan)]
    for module, targets in graph.items():
        allowed = plan.get(room(module), set()) | {room(module), "__init__"}
        found += [f"{module} imports {target}" for target in targets if room(target) not in allowed]
    return sorted(found)


# Rooms that could be packages of their own: of the others, they use only what these export.
APART = ("experiments", "serving", "webapp")


def exports() -> dict[str, set[str]]:
    """The public names of each room that is a package, and under "" those of vitkit itself."""
    rooms = [path.parent.name for path in SOURCE.glob("*/__init__.py") if path.parent.name != "recipes"]
    found = {name: set(importlib.import_module(f"vitkit.{name}").__all__) for name in rooms}
    found["system"] |= {"lazily", "public_names"}  # by which all packages import their names
    return found | {"": {*vitkit.__all__, "__version__"}}


def hidden_names(root: Path, rooms: Iterable[str], exported: Mapping[str, set[str]]) -> list[str]:
    """What these rooms use of other rooms, but those do not export: modules, and names that are in no public list.

    A room that is a single module exports its names without an underscore.
    """
    found = []
    for path in (path for name in rooms for path in sorted((root / name).rglob("*.py"))):
        module = _module_name(path, root)
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        used = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                used |= {name for name in _names(node, package) if name.startswith(f"{root.name}.")}
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == root.name:
                used.add(f"{root.name}.{node.attr}")
        for name in used:
            own, *rest = name.split(".")[1:]
            if own == room(module):
                continue
            if not rest:
                is_public = own in exported[""]
            elif own in exported:
                is_public = len(rest) == 1 and rest[0] in exported[own]
            else:
                is_public = len(rest) == 1 and rest[0] != "*" and not rest[0].startswith("_")
            found += [] if is_public else [f"{module} uses {name}"]
    return sorted(found)


def test_modules_and_the_plan_have_no_cycle() -> None:
    assert cycle(the_house()) == cycle(PLAN) == []


def test_rooms_import_what_the_plan_allows() -> None:
    assert forbidden(the_house(), PLAN) == []


def test_rooms_apart_use_what_others_export() -> None:
    assert hidden_names(SOURCE, APART, exports()) == []


def test_what_a_room_exports_exists() -> None:
    """And no module of the room has the same name, which would hide it once the module is loaded."""
    for name, names in exports().items():
        home = importlib.import_module(f"vitkit.{name}" if name else "vitkit")
        assert [each for each in sorted(names) if not hasattr(home, each)] == []
        if name:
            modules = {module.split(".")[2] for module in the_house() if module.startswith(f"vitkit.{name}.")}
            assert names & modules == set(), name


def test_the_collector_sees_the_house_and_its_few_rooms() -> None:
    graph = the_house()
    parts = {"config", "layers", "position"}
    assert {"vitkit.errors", *(f"vitkit.model.{part}" for part in parts)} <= graph["vitkit.model.vit"]
    assert "vitkit.training.run" in graph["vitkit.verbs.train"]  # inside a function
    assert graph["vitkit"] == set()
    assert set(PLAN) == {room(module) for module in graph}
    assert len(PLAN) <= MOST_ROOMS


def test_the_checks_can_fail() -> None:
    assert "vitkit.__main__ imports vitkit.cli.app" in forbidden(the_house(), PLAN | {"__main__": set()})
    assert forbidden(the_house(), {name: own for name, own in PLAN.items() if name != "data"})[-1].startswith("vitkit.")
    assert cycle(the_house() | {"vitkit.errors": {"vitkit.data"}}) != []
    assert any("uses vitkit.data." in line for line in hidden_names(SOURCE, ["verbs"], exports()))


# --- What must start fast ---------------------------------------------------------------------------

_SERVERS = {"fastapi", "starlette", "uvicorn"}
_SLOW = {"lightning", "lightning_fabric", "pytorch_lightning", "torchmetrics", "torchvision", *_SERVERS}


def loaded_after(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after running `code`."""
    report = "\nimport sys\nsys.stderr.write('\\n' + ' '.join(name for name in list(sys.modules) if '.' not in name))"
    environment = os.environ | {"PYTHONPATH": str(SOURCE.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code + report], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def command(*arguments: str) -> str:
    """Code that runs the command line in its process and fails unless it succeeds."""
    return (
        f"import sys\nsys.argv = ['vitkit', *{arguments!r}]\n"
        "from vitkit.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
    )


def test_what_needs_no_arrays_imports_none() -> None:
    light = (
        "import vitkit, vitkit.model.config, vitkit.errors, vitkit.explanation.methods, vitkit.data.sources\n"
        "import vitkit.inference.backends.registry, vitkit.weights.formats, vitkit.exporting.formats\n"
        "vitkit.ViTConfig, vitkit.list_models()\n"
    )
    found = loaded_after(light + command("--help"))
    assert "vitkit" in found and found & (_SLOW | {"torch", "numpy", "onnxruntime", "openvino"}) == set()


def test_what_needs_torch_or_opens_files_for_other_runtimes_imports_nothing_slow() -> None:
    files = "import json, vitkit.classifier, vitkit.exporting.loading, vitkit.inference.unknown\nimport sys\n"
    files += f"found = {_SLOW | {'torch', 'onnxruntime', 'openvino', 'scipy', 'sklearn'}!r} & set(sys.modules)\n"
    files += "assert not found, found\nimport vitkit.model.vit, vitkit.profiling.model_info\n"
    found = loaded_after(files + command("models") + command("info", "vit_tiny_patch16_224"))
    assert "torch" in found and found & _SLOW == set()


def test_no_two_files_of_tests_have_one_name() -> None:
    """pytest takes the second for the first, and collects neither in some orders."""
    names = sorted(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, other in itertools.pairwise(names) if name == other] == []
