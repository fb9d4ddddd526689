"""docs/paper.md names only what exists, and calls nothing missing that exists."""

import inspect
import pkgutil
import re
from pathlib import Path

import vitkit

SOURCE = Path(vitkit.__file__).parent
PAPER = (SOURCE.parents[1] / "docs" / "paper.md").read_text(encoding="utf-8")
CODE = re.compile(r"`([^`\n]+)`")
# A code span that points into a file, such as `model.py:Attention.project`.
REFERENCES = sorted({span for span in CODE.findall(PAPER) if ".py:" in span})


def assert_defined(reference: str) -> None:
    """The module defines the name itself; what methods set on `self` is in the source of the class."""
    file, _, name = reference.partition(".py:")
    module = pkgutil.resolve_name(f"vitkit.{file.replace('/', '.')}")
    top, _, member = name.partition(".")
    assert re.search(rf"^((async )?def|class) {top}\b|^{top}\b.* = ", inspect.getsource(module), re.MULTILINE)
    if member:
        assert re.search(rf"\b(def {member}|self\.{member}|{member}: )", inspect.getsource(getattr(module, top)))


def test_references_exist_and_cover_the_equations() -> None:
    for reference in REFERENCES:
        assert_defined(reference)
    expected = {"model/vit.py:VisionTransformer.embed", "model/vit.py:Attention.project", "model/names.py:VARIANTS"}
    assert expected <= set(REFERENCES)


def test_what_is_not_yet_there_is_not_there() -> None:
    waiting = [line for line in PAPER.splitlines() if "not yet" in line]
    files = [span for line in waiting for span in CODE.findall(line) if span.endswith((".py", "/"))]
    assert [file for file in files if (SOURCE / file).exists()] == [], "docs/paper.md says 'not yet' of them"
