"""The tabs of the studio, a row each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastapi import APIRouter

    from vitkit.webapp.workspace import Workspace


@dataclass(frozen=True)
class Tab:
    """One tab: its routes are in `routes_NAME.py`, its page in `static/NAME.js`.

    Attributes:
        name: in addresses and file names.
        title: on the tab.
        about: what it is for, in one line.
    """

    name: str
    title: str
    about: str

    def router(self, workspace: Workspace) -> APIRouter:
        """What it answers."""
        make: Callable[[Workspace], APIRouter] = import_module(f"vitkit.webapp.routes_{self.name}").router
        return make(workspace)

    def to_dict(self, static: Path) -> dict[str, Any]:
        """What the page is told of it; `static` is the folder of the page's files."""
        styled = (static / f"{self.name}.css").is_file()
        return {"name": self.name, "title": self.title, "about": self.about, "styled": styled}


TABS: tuple[Tab, ...] = (
    Tab("data", "Data", "See the photographs, say what they show, and find what is wrong with them."),
    Tab("train", "Train", "Teach a model the classes, and watch how it goes."),
    Tab("results", "Results", "See how good a model is, where it is wrong, and whose label may be."),
    Tab("look", "Look", "Bring any picture, and see what a model says of it and where it looks."),
    Tab("ship", "Ship", "Take a model along: its card, files for other programs, the command that serves it."),
)
