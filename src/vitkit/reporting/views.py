"""The interactive views of an evaluation: plain JavaScript modules in `static/`, put into a page as one script.

Each module imports nothing but names of its neighbours, in lines of their own, and exports by `export class` or
`export function`. A server hands them out as they are; a page that must need nothing else holds them joined, in the
order in which they need one another. What each view is given is told at its head, and written by `report_data`.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([a-z_]+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=class |function )", re.MULTILINE)
_EXPORTED = re.compile(r"^export (?:class|function) (\w+)", re.MULTILINE)


FOLDER = Path(__file__).parent / "static"  # from which a server hands them out


def static(name: str) -> str:
    """The text of a file in `static/`."""
    return (FOLDER / name).read_text(encoding="utf-8")


@cache
def script() -> str:
    """All that the report needs, as one module without imports."""
    return "".join(_with_needs("report", set()))


@cache
def styles() -> str:
    """How the views look."""
    return static("views.css")


def _with_needs(name: str, done: set[str]) -> list[str]:
    done.add(name)
    text = static(f"{name}.js")
    before = [piece for need in _IMPORT.findall(text) if need not in done for piece in _with_needs(need, done)]
    own, given = _EXPORT.sub("", _IMPORT.sub("", text)), ", ".join(_EXPORTED.findall(text))
    return [
        *before,
        f"const {{ {given} }} = (() => {{\n{own}\nreturn {{ {given} }};\n}})();\n",
    ]  # its other names are its own
