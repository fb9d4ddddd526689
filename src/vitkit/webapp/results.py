"""What a run folder tells of its model: the data of its report, doubtful labels, and how it stands beside others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from vitkit.data.label_file import EXCLUDED, Edit, add_edits, labels_so_far
from vitkit.data.split_file import split_from_file
from vitkit.data.suspects import Suspect, chance_in_words, read_suspects
from vitkit.data.whereabouts import read_contents
from vitkit.errors import VitkitError
from vitkit.reporting.report_data import data_of_report
from vitkit.system.files import from_json
from vitkit.system.run_files import EVALUATION, LABEL_ERRORS, REPORT, SPLIT
from vitkit.webapp.photographs import checked_name
from vitkit.webapp.stamps import stamp_of
from vitkit.webapp.workspace import Workspace

What = Literal["keep", "relabel", "exclude"]
MOST = 300  # doubtful labels on a page
_FIGURES = ("accuracy", "balanced_accuracy", "loss", "images", "split", "task", "chosen_on")


def summaries(workspace: Workspace) -> list[dict[str, Any]]:
    """The runs that are done with their main figures, the newest first."""
    found = []
    for name in workspace.run_names():
        try:
            numbers = from_json((workspace.runs / name / EVALUATION).read_text(encoding="utf-8"))
            bounds = numbers.get("intervals_95", {}).get("accuracy")
            own = {key: numbers[key] for key in _FIGURES if key in numbers}
        except (OSError, ValueError, AttributeError):
            continue  # it is being trained, or was stopped
        found.append(
            {"name": name, "figures": own, "interval": bounds, "report": (workspace.runs / name / REPORT).is_file()}
        )
    return found


def data_of(folder: Path) -> dict[str, Any]:
    """What the views show of a run.

    Raises:
        VitkitError: it has no report with data.
    """
    page = folder / REPORT
    return _read(page, page.stat().st_mtime_ns if page.is_file() else 0)


@lru_cache(maxsize=4)
def _read(page: Path, changed: int) -> dict[str, Any]:  # noqa: ARG001  # a new report is read anew
    return data_of_report(page)


@dataclass(frozen=True)
class _Files:
    """Where the photographs of a run are.

    Attributes:
        root: their folder.
        places: the file of each, by its path below that.
        is_multi: whether a photograph may have several classes.
    """

    root: Path
    places: dict[str, Path]
    is_multi: bool


def file_of(folder: Path, path: str) -> Path:
    """The file of a photograph that a run knows by this path.

    Raises:
        VitkitError: it knows none.
    """
    found = _files(folder).places.get(path)
    if found is None:
        raise VitkitError("there is no such photograph")
    return found


def _files(folder: Path) -> _Files:
    split = folder / SPLIT
    if not split.is_file():
        raise VitkitError(f"{folder.name} does not say where its photographs are: it has no {SPLIT}")
    return _read_files(split, split.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _read_files(split: Path, changed: int) -> _Files:  # noqa: ARG001
    table = split_from_file(split)
    return _Files(table.root, {path: table.file(i) for i, path in enumerate(table.paths)}, table.is_multi)


def agreement(first: Path, second: Path) -> dict[str, Any]:
    """How far the held-out images of two runs are the same, and who is right of those that are.

    An image is the same where its path and its content are: runs of other photographs may know others by the same path.
    """
    right = [_right(data_of(own), _contents(own)) for own in (first, second)]
    shared = right[0].keys() & right[1].keys()
    both = [(right[0][path], right[1][path]) for path in shared]
    return {
        "listed": [len(own) for own in right],
        "shared": len(shared),
        "right": [sum(own[i] for own in both) for i in (0, 1)],
        "only": [sum(a and not b for a, b in both), sum(b and not a for a, b in both)],
    }


def _contents(folder: Path) -> dict[str, str]:
    """What each image of a run is, by its path: the beginning of its digest, else where it lies."""
    files = _files(folder)
    return {path: str(file) for path, file in files.places.items()} | read_contents(folder / SPLIT)


def _right(data: dict[str, Any], contents: dict[str, str]) -> dict[tuple[str, str], bool]:
    """Whether each image is answered rightly, by path and content; classes go by name, as runs may have others."""
    images = data["images"]
    names = images["classes"]

    def named(own: int | list[int]) -> list[str]:
        return sorted(names[i] for i in (own if isinstance(own, list) else [own]))

    rows = zip(images["path"], images["true"], images["said"], strict=True)
    return {(path, contents.get(path, "")): named(true) == named(said) for path, true, said in rows}


# --- Labels that look wrong ---------------------------------------------------------------------------------


def suspects_of(workspace: Workspace, folder: Path) -> dict[str, Any]:
    """A run's doubtful labels, the most doubtful first, and what was said of them since."""
    found = _suspects(folder)
    said = {own.path: own.label for own in labels_so_far(workspace.labels).edits}
    rows = [
        {**own._asdict(), "said": said.get(own.path), "state": _state(own, said.get(own.path))} for own in found[:MOST]
    ]
    why_not, version = _why_not(workspace, folder), stamp_of(folder / LABEL_ERRORS)
    chance = chance_in_words(found)
    return {"total": len(found), "chance": chance, "suspects": rows, "why_not": why_not, "version": version}


def decide(
    workspace: Workspace, folder: Path, version: str, numbers: Sequence[int], what: What, label: str = ""
) -> None:
    """Write into the label file that labels are right, are another, or that the photographs are to be left out.

    Args:
        workspace: whose label file it is.
        folder: of the run.
        version: of the list of its doubtful labels: numbers mean the same photograph as long as it is the same.
        numbers: in the list.
        what: `keep`, `relabel` or `exclude`.
        label: for `relabel`: the class; empty: the one that is suggested.

    Raises:
        VitkitError: the list has changed, no class can be called so, or the run is of other photographs.
    """
    if reason := _why_not(workspace, folder):
        raise VitkitError(reason)
    found = _suspects(folder)
    if version != stamp_of(folder / LABEL_ERRORS) or not all(0 <= i < len(found) for i in numbers):
        raise VitkitError("the list of doubtful labels has changed: look at it anew")
    known = {own.path: own.label for own in labels_so_far(workspace.labels).edits}
    edits, is_multi = [], _files(folder).is_multi
    for own in (found[i] for i in dict.fromkeys(numbers)):
        new = {"keep": own.label, "relabel": label or own.suggested, "exclude": EXCLUDED}[what]
        if what == "relabel":
            new = checked_name(new, is_multi=is_multi)
        edits.append(Edit(own.path, new, known.get(own.path, own.label)))
    workspace.labels.parent.mkdir(parents=True, exist_ok=True)
    add_edits(workspace.labels, edits)


def suspect_path(folder: Path, number: int) -> str:
    """The path of a doubtful label's photograph.

    Raises:
        VitkitError: the list is not as long.
    """
    found = _suspects(folder)
    if not 0 <= number < len(found):
        raise VitkitError("there is no such photograph")
    return found[number].path


def _suspects(folder: Path) -> list[Suspect]:
    file = folder / LABEL_ERRORS
    return read_suspects(file) if file.is_file() else []


def _state(own: Suspect, said: str | None) -> str:
    if said is None:
        return "open"
    return "excluded" if said == EXCLUDED else "kept" if said == own.label else "relabelled"


def _why_not(workspace: Workspace, folder: Path) -> str:
    """Why nothing can be said of its labels here; empty where it can."""
    if _files(folder).root.resolve() == workspace.photographs.resolve():
        return ""
    return f"{folder.name} was trained on other photographs than those of this studio: its labels are not changed here"
