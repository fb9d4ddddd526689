"""docs/paper.md names only what exists, and calls nothing missing that exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "vitkit"
PAPER = ROOT / "docs" / "paper.md"

_CODE = re.compile(r"`([^`\n]+)`")
_REFERENCE = re.compile(r"(?P<file>[\w/]+\.py):(?P<name>[A-Za-z_]\w*(\.[A-Za-z_]\w*)?)")


def references(text: str) -> list[str]:
    """Every code span that points into a file, such as `model.py:Attention.project`, well formed or not."""
    return sorted({span for span in _CODE.findall(text) if ".py:" in span})


def names_in(source: str) -> set[str]:
    """What a module defines: `name`, `Class` and `Class.member`, among the members what methods set on `self`."""
    names: set[str] = set()
    for node in ast.parse(source).body:
        names |= _defined(node)
        if isinstance(node, ast.ClassDef):
            members = set().union(*(_defined(child) for child in node.body), _set_on_self(node))
            names |= {f"{node.name}.{member}" for member in members}
    return names


def _defined(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    return set()


def _set_on_self(node: ast.ClassDef) -> set[str]:
    return {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute)
        and isinstance(part.ctx, ast.Store)
        and isinstance(part.value, ast.Name)
        and part.value.id == "self"
    }


def problem(reference: str, source: Path) -> str | None:
    """What is wrong with a reference, or None."""
    parsed = _REFERENCE.fullmatch(reference)
    if parsed is None:
        return f"{reference} is not of the form file.py:Name or file.py:Class.member"
    path = source / parsed["file"]
    if not path.is_file():
        return f"{reference}: there is no {parsed['file']}"
    if parsed["name"] not in names_in(path.read_text(encoding="utf-8")):
        return f"{reference}: {parsed['file']} defines no {parsed['name']}"
    return None


@pytest.mark.parametrize("reference", references(PAPER.read_text(encoding="utf-8")))
def test_reference_exists(reference: str) -> None:
    assert problem(reference, SOURCE) is None


def test_paper_covers_the_equations() -> None:
    found = references(PAPER.read_text(encoding="utf-8"))
    assert {"model/vit.py:VisionTransformer.embed", "model/vit.py:Attention.project", "model/names.py:VARIANTS"} <= set(
        found
    )


def test_what_is_not_yet_there_is_not_there() -> None:
    waiting = [line for line in PAPER.read_text(encoding="utf-8").splitlines() if "not yet" in line]
    files = [span for line in waiting for span in _CODE.findall(line) if span.endswith((".py", "/"))]
    there = [file for file in files if (SOURCE / file).exists()]
    assert not there, f"docs/paper.md says 'not yet' of {', '.join(there)}"


@pytest.mark.parametrize(
    ("reference", "complaint"),
    [
        ("room.py:Thing", None),
        ("room.py:Thing.field", None),
        ("room.py:Thing.method", None),
        ("room.py:Thing.left", None),
        ("room.py:TABLE", None),
        ("inner/room.py:nested", "there is no inner/room.py"),
        ("room.py:Path", "defines no Path"),  # imported, not defined
        ("room.py:local", "defines no local"),
        ("room.py:Thing.missing", "defines no Thing.missing"),
        ("room.py:Thing()", "not of the form"),
    ],
)
def test_a_wrong_reference_is_found(tmp_path: Path, reference: str, complaint: str | None) -> None:
    (tmp_path / "room.py").write_text(
        "from pathlib import Path\n"
        "TABLE: dict[str, int] = {}\n"
        "class Thing:\n"
        "    field: int = 0\n"
        "    def method(self):\n"
        "        self.left, self.right = 1, 2\n"
        "        local = 3\n"
        "        return local\n",
        encoding="utf-8",
    )
    found = problem(reference, tmp_path)
    assert found is None if complaint is None else complaint in str(found)
