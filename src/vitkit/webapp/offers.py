"""Models to begin from that can be had here: those of runs, local files, and published weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitkit.errors import VitkitError
from vitkit.model_folder import DESCRIPTION
from vitkit.system.cache import offline
from vitkit.webapp.workspace import Workspace

_SUFFIXES = (".pth", ".safetensors", ".npz", ".pt", ".bin", ".ckpt")
_PUBLISHED = (  # one of each size that people ask for, the smallest first; the command line knows them all
    ("deit_tiny_patch16_224.fb_in1k", "small and quick"),
    ("deit_small_patch16_224.fb_in1k", "middling"),
    ("vit_small_patch16_224.augreg_in21k_ft_in1k", "middling, of more photographs"),
    ("vit_base_patch16_224.augreg_in21k_ft_in1k", "large and slow"),
)


@dataclass(frozen=True)
class Offer:
    """Something to begin from.

    Attributes:
        source: as `--weights` takes it.
        title: for people.
        kind: `run`, `file`, `published` or `none`.
        is_here: whether it needs no download.
    """

    source: str
    title: str
    kind: str
    is_here: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"source": self.source, "title": self.title, "kind": self.kind, "here": self.is_here}


def offers(workspace: Workspace) -> list[Offer]:
    """What can be had, what is here first; where downloading is forbidden, nothing else."""
    return [*_files(workspace), *_runs(workspace), *_published()]


def offered(workspace: Workspace, source: str) -> Offer:
    """The one that the page names.

    Raises:
        VitkitError: it was not offered: the page names no files of its own.
    """
    for own in offers(workspace):
        if own.source == source:
            return own
    raise VitkitError(f"{source!r} is not among the models that can be had here")


def best_eyes(workspace: Workspace) -> Offer | None:
    """The one whose features tell pictures apart: of a large set of pictures rather than of the few here."""
    here = [own for own in offers(workspace) if own.is_here]
    return next((own for kind in ("file", "published", "run") for own in here if own.kind == kind), None)


def _files(workspace: Workspace) -> list[Offer]:
    """Those that were named, and those that lie where the studio was started."""
    named = [Offer(own, Path(own).name, "file") for own in workspace.weights]
    known = {str(Path(own.source).resolve()) for own in named}
    lying = sorted(own for own in Path.cwd().iterdir() if own.suffix in _SUFFIXES and own.is_file())
    return named + [Offer(str(own), own.name, "file") for own in lying if str(own.resolve()) not in known]


def _runs(workspace: Workspace) -> list[Offer]:
    names = [own for own in workspace.run_names() if (workspace.runs / own / DESCRIPTION).is_file()]
    return [Offer(str(workspace.runs / own), f"run {own}", "run") for own in names]


def _published() -> list[Offer]:
    from vitkit.weights.catalog import find
    from vitkit.weights.download import cache_path

    found = []
    for name, about in _PUBLISHED:
        entry = find(name)
        if entry is None:
            continue
        is_here = entry.url is not None and cache_path(entry.url).is_file()
        if is_here or offline() is None:
            found.append(Offer(name, f"{name.partition('.')[0]}: {about}", "published", is_here))
    return sorted(found, key=lambda own: not own.is_here)
