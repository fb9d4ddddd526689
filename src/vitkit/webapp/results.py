"""The Results tab: a list of runs, the views of a run's report, and its suspected label errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field

from vitkit.data import (
    EXCLUDED,
    Edit,
    Place,
    Suspect,
    Task,
    chance_in_words,
    decisions_since,
    is_unchanged,
    read_contents,
    read_suspects,
    split_from_file,
)
from vitkit.errors import VitkitError
from vitkit.evaluation import BY_FOLDS, headline_of, read_figures, verdict_of
from vitkit.reporting import data_of_report
from vitkit.system import EVALUATION, FOLDS, LABEL_ERRORS, REPORT, SPLIT
from vitkit.text import JOINT
from vitkit.webapp.photographs import Thumbnails, check_exist, check_number, clean_class_name, file_cache, stamp_of
from vitkit.webapp.workspace import Workspace

Choice = Literal["keep", "relabel", "exclude"]
_MAX_SUSPECTS = 300  # maximum number of suspected label errors on a page


def summaries(workspace: Workspace) -> list[dict[str, Any]]:
    """Return the main evaluation results of the finished runs, newest first."""
    rows = []
    for name in workspace.run_names():
        folder = workspace.runs / name
        # A cross-validation has no views itself. A run without figures is still training, or was stopped.
        if (folder / EVALUATION).is_file() and (figures := figures_in(folder)):
            rows.append({"name": name, **figures, "report": (folder / REPORT).is_file()})
    return rows


def figures_in(folder: Path) -> dict[str, Any]:
    """Return a run's main evaluation result with its interval and caveats.

    Empty if the run has no evaluation yet, or if its file is being written or damaged.
    """
    files = [folder / name for name in (EVALUATION, FOLDS) if (folder / name).is_file()]
    if not files:
        return {}
    try:
        numbers = read_figures(files[0])
        headline = headline_of(numbers)
        figures = {"figure": headline.figure, "accuracy": headline.value}
        balanced = numbers.get("balanced_accuracy")
        if balanced is not None:
            figures["balanced_accuracy"] = balanced["mean"] if headline.folds else balanced  # the mean over the folds
        verdict = asdict(verdict_of(numbers))
    except (OSError, VitkitError, TypeError, KeyError, AttributeError):
        return {}
    return {
        "figures": {**figures, "images": headline.images, "split": headline.split},
        "interval": None if headline.interval is None else list(headline.interval),
        "caveats": [caveat.text for caveat in headline.caveats],
        "verdict": verdict,
    }


def is_cross_tested(folder: Path) -> bool:
    """Return whether a run tested each photograph by a head that was trained without it, instead of a test split."""
    return figures_in(folder).get("figures", {}).get("split") == BY_FOLDS


_report_data = file_cache(data_of_report)


def data_of(folder: Path) -> dict[str, Any]:
    """Return the data of the interactive views in a run's report."""
    return _report_data(folder / REPORT)


def file_of(folder: Path, path: str) -> Place:
    """Return the file of a photograph that the run lists under this path."""
    photographs = _read_split(folder / SPLIT)
    file = photographs.files.get(path)
    if file is None:
        raise VitkitError("webapp.photograph-unknown", "there is no such photograph")
    if not is_unchanged(file, photographs.digests.get(path)):
        reason = f"{path} is no longer the photograph that {folder.name} recorded: the file was changed or deleted"
        raise VitkitError("webapp.photograph-changed", reason)
    return file


class _RunPhotographs(NamedTuple):
    root: Path  # the folder of the photographs
    files: dict[str, Place]  # the file of each photograph, by its path relative to the root
    digests: dict[str, str]  # the digest of each photograph's content when the run began, by the same path
    task: Task


@file_cache
def _read_split(split: Path) -> _RunPhotographs:
    if not split.is_file():
        reason = f"{split.parent.name} does not say where its photographs are: it has no {split.name}"
        raise VitkitError("webapp.split-missing", reason)
    table = split_from_file(split)
    files = {path: table.file(i) for i, path in enumerate(table.paths)}
    return _RunPhotographs(table.root, files, read_contents(split), table.task)


# --- Suspected label errors ---------------------------------------------------------------------------------


def suspects_of(workspace: Workspace, folder: Path) -> dict[str, Any]:
    """Return a run's suspected label errors, the most suspicious first, with the users' decisions since the run."""
    suspects = _read_suspects(folder)
    decisions = decisions_since(workspace.label_file.read(), folder)
    rows = []
    for suspect in suspects[:_MAX_SUSPECTS]:
        label = decisions[suspect.path].label if suspect.path in decisions else None
        states = {None: "open", EXCLUDED: "excluded", suspect.label: "kept"}
        rows.append({**suspect._asdict(), "said": label, "state": states.get(label, "relabelled")})
    return {
        "total": len(suspects),
        "chance": chance_in_words(suspects),
        "suspects": rows,
        "why_not": _why_read_only(workspace, folder),
        "version": stamp_of(folder / LABEL_ERRORS),
    }


def decide(
    workspace: Workspace, folder: Path, version: str, numbers: Sequence[int], what: Choice, label: str = ""
) -> None:
    """Write decisions about suspected label errors into the label file.

    The numbers are positions in the version `version` of the run's list of suspects. `what` is `keep` if the labels are
    right, `relabel` to change them (to `label`, or to the suggested class if it is empty), or `exclude`.
    """
    suspects = _read_suspects(folder)
    if version != stamp_of(folder / LABEL_ERRORS) or not all(0 <= i < len(suspects) for i in numbers):
        raise VitkitError("webapp.suspects-changed", "the list of suspected label errors has changed: load it again")
    decisions = []
    for i in dict.fromkeys(numbers):
        suspect = suspects[i]
        new = {"keep": suspect.label, "relabel": label or suspect.suggested, "exclude": EXCLUDED}[what]
        decisions.append(_NewLabel(suspect.path, suspect.label, suspect.suggested, new))
    _write_decisions(workspace, folder, decisions)


class _NewLabel(NamedTuple):
    path: str
    before: str  # the label in the run
    predicted: str  # the class that the model predicts or suggests
    label: str


def _write_decisions(workspace: Workspace, folder: Path, decisions: Sequence[_NewLabel]) -> None:
    """Write labels that people gave to photographs of a run; those that follow the model are marked as proposed by it.

    Nothing is written if a photograph has changed since the run.
    """
    if reason := _why_read_only(workspace, folder):
        raise VitkitError("webapp.photographs-foreign", reason)
    current = {edit.path: edit.label for edit in workspace.label_file.read().edits}
    task = _read_split(folder / SPLIT).task
    check_exist([workspace.photographs / decision.path for decision in decisions])
    edits = []
    for path, before, predicted, new in decisions:
        file_of(folder, path)  # raises if the photograph has changed since the run
        label = new if new in (EXCLUDED, before) else clean_class_name(new, task)
        follows_model = label != before and label in (predicted, EXCLUDED)
        proposed_by = folder.name if follows_model else ""
        edits.append(Edit(path, label, current.get(path, before), proposed_by=proposed_by))
    workspace.label_file.add(edits)


# --- Labels of the photographs on which the run was tested --------------------------------------------------


def labels_of(workspace: Workspace, folder: Path) -> dict[str, Any]:
    """Return the labels of photographs in a run's report that were changed since the run.

    `now` has the new labels by path. `why_not` is the reason why labels of this run cannot be changed here; empty if
    they can.
    """
    paths = set(data_of(folder)["images"]["path"])
    decisions = decisions_since(workspace.label_file.read(), folder)
    now = {path: edit.label for path, edit in decisions.items() if path in paths}
    return {"now": now, "why_not": _why_read_only(workspace, folder)}


def correct(workspace: Workspace, folder: Path, version: str, number: int, label: str) -> None:
    """Correct the label of a photograph in a run's report, by adding a row to the label file.

    `number` is its position in the version `version` of the report. An empty `label` excludes the photograph.
    """
    images = data_of(folder)["images"]
    if version != stamp_of(folder / REPORT) or not 0 <= number < len(images["path"]):
        raise VitkitError("webapp.report-changed", "the report of this run has changed: load it again")

    def classes(indices: int | list[int]) -> str:  # a list if an image may have several classes
        if isinstance(indices, int):
            return images["classes"][indices]
        return JOINT.join(images["classes"][i] for i in indices)

    true, predicted = classes(images["true"][number]), classes(images["said"][number])
    _write_decisions(workspace, folder, [_NewLabel(images["path"][number], true, predicted, label)])


def _read_suspects(folder: Path) -> list[Suspect]:
    file = folder / LABEL_ERRORS
    return read_suspects(file) if file.is_file() else []


def _why_read_only(workspace: Workspace, folder: Path) -> str:
    """Return the reason why the labels of this run cannot be edited in this studio; empty if they can."""
    if _read_split(folder / SPLIT).root.resolve() == workspace.photographs.resolve():
        return ""
    return f"{folder.name} was trained on other photographs than those of this studio: its labels are not changed here"


class Decision(BaseModel):
    """A decision about suspected label errors; see `decide`."""

    version: str = Field(max_length=100)
    numbers: list[int] = Field(max_length=10_000)
    what: Choice
    label: str = Field(default="", max_length=1000)


class Correction(BaseModel):
    """The label of a photograph in a report; see `correct`."""

    version: str = Field(max_length=100)
    label: str = Field(max_length=1000)


def router(workspace: Workspace) -> APIRouter:
    """Return the routes of the tab."""
    routes, thumbnails = APIRouter(prefix="/api/results"), Thumbnails()

    @routes.get("/runs")
    def show_runs() -> dict[str, Any]:
        return {"runs": summaries(workspace)}

    @routes.get("/runs/{name}")
    def show_run(name: str) -> dict[str, Any]:
        folder = workspace.run_folder(name)
        return {**data_of(folder), "version": stamp_of(folder / REPORT)}

    @routes.get("/runs/{name}/report")
    def send_report(name: str) -> FileResponse:
        page = workspace.run_folder(name) / REPORT
        if not page.is_file():
            raise VitkitError("webapp.report-missing", f"{name} has no report yet")
        return FileResponse(page, filename=f"{name}.html")

    @routes.get("/runs/{name}/photographs/{number}")
    async def show_photograph(name: str, number: int, request: Request, large: bool = False) -> Response:
        folder = workspace.run_folder(name)
        paths = data_of(folder)["images"]["path"]
        check_number(number, len(paths))
        return await thumbnails.respond(file_of(folder, paths[number]), request, large=large)

    @routes.get("/runs/{name}/labels")
    def show_labels(name: str) -> dict[str, Any]:
        return labels_of(workspace, workspace.run_folder(name))

    @routes.post("/runs/{name}/photographs/{number}/label")
    def correct_label(name: str, number: int, correction: Correction) -> dict[str, Any]:
        folder = workspace.run_folder(name)
        correct(workspace, folder, correction.version, number, correction.label)
        return labels_of(workspace, folder)

    @routes.get("/runs/{name}/suspects/{number}")
    async def show_suspect(name: str, number: int, request: Request, large: bool = False) -> Response:
        folder = workspace.run_folder(name)
        suspects = _read_suspects(folder)
        check_number(number, len(suspects))
        return await thumbnails.respond(file_of(folder, suspects[number].path), request, large=large)

    @routes.get("/runs/{name}/suspects")
    def show_suspects(name: str) -> dict[str, Any]:
        return suspects_of(workspace, workspace.run_folder(name))

    @routes.post("/runs/{name}/suspects")
    def decide_suspects(name: str, decision: Decision) -> dict[str, Any]:
        folder = workspace.run_folder(name)
        decide(workspace, folder, decision.version, decision.numbers, decision.what, decision.label)
        return suspects_of(workspace, folder)

    return routes
