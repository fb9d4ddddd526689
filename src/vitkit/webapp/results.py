"""The Results tab: a list of runs, the views of a run's report, and its suspected label errors."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
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
from vitkit.evaluation import BY_FOLDS, counted_figures, headline_of, read_figures, verdict_of
from vitkit.reporting import data_of_report
from vitkit.system import EVALUATION, FOLDS, LABEL_ERRORS, REPORT, SPLIT
from vitkit.text import JOINT
from vitkit.webapp.photographs import Thumbnails, check_number, check_there, checked_name, stamp_of, until_changed
from vitkit.webapp.workspace import Workspace

What = Literal["keep", "relabel", "exclude"]
AGAIN = {  # what training again does, by `is_cross_tested`
    False: "Every photograph stays in its split, so the figures can be compared.",
    True: (
        "Every photograph is tested by a layer that was trained without it again, so the figures can be compared; this "
        "requires to train only the last layer of the model that this run began from."
    ),
}
_MOST = 300  # maximum number of suspected label errors on a page
_BESIDE = ("balanced_accuracy", "loss")  # figures next to the headline


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
    """Return a run's main evaluation result with its interval and caveats, and a few further measures.

    Empty if the run has no evaluation yet, or if its file is being written or damaged.
    """
    file = next((file for name in (EVALUATION, FOLDS) if (file := folder / name).is_file()), None)
    if file is None:
        return {}
    try:
        numbers = read_figures(file)
        quoted, counted = headline_of(numbers), counted_figures(numbers)
        beside = {name: counted[name] for name in _BESIDE if name in counted}
        beside = {name: value["mean"] if quoted.folds else value for name, value in beside.items()}
        verdict = asdict(verdict_of(numbers))
    except (OSError, VitkitError, TypeError, KeyError, AttributeError):
        return {}  # the file is just being written, or is damaged
    figures = {"figure": quoted.figure, "accuracy": quoted.value, **beside}
    return {
        "figures": {**figures, "images": quoted.images, "split": quoted.split},
        "interval": None if quoted.interval is None else list(quoted.interval),
        "caveats": [caveat.text for caveat in quoted.caveats],
        "verdict": verdict,
    }


def is_cross_tested(folder: Path) -> bool:
    """Return whether a run tested each photograph by a head that was trained without it, and set none aside."""
    return figures_in(folder).get("figures", {}).get("split") == BY_FOLDS


_report_data = until_changed(data_of_report)


def data_of(folder: Path) -> dict[str, Any]:
    """Return the data of the interactive views in a run's report."""
    return _report_data(folder / REPORT)


def file_of(folder: Path, path: str) -> Place:
    """Return the file of a photograph that the run lists under this path."""
    photographs = _read_split(folder / SPLIT)
    place = photographs.places.get(path)
    if place is None:
        raise VitkitError("webapp.photograph-unknown", "there is no such photograph")
    if not is_unchanged(place, photographs.contents.get(path)):
        reason = f"{path} is no longer the photograph that {folder.name} recorded: the file was changed or deleted"
        raise VitkitError("webapp.photograph-changed", reason)
    return place


class _RunPhotographs(NamedTuple):
    root: Path  # the folder of the photographs
    places: dict[str, Place]  # the file of each photograph, by its path relative to the root
    contents: dict[str, str]  # the digest of each photograph's content when the run began, by the same path
    task: Task


@until_changed
def _read_split(split: Path) -> _RunPhotographs:
    if not split.is_file():
        reason = f"{split.parent.name} does not say where its photographs are: it has no {split.name}"
        raise VitkitError("webapp.split-missing", reason)
    table = split_from_file(split)
    places = {path: table.file(i) for i, path in enumerate(table.paths)}
    return _RunPhotographs(table.root, places, read_contents(split), table.task)


def agreement(first: Path, second: Path) -> dict[str, Any]:
    """Compare the predictions of two runs on the held-out images that both reports contain.

    Images count as the same if both path and content are equal, since runs on other photographs may use the same paths.
    Images that the weights of either run had seen are left out.

    Returns:
        `listed`, the number of images in each report; `shared`, the number of images in both reports; and, among the
        shared images, how many each run classifies correctly (`right`), and how many only this run does (`only`).
    """
    right = [_correctness(run) for run in (first, second)]
    shared = right[0].keys() & right[1].keys()
    both = [(right[0][path], right[1][path]) for path in shared]
    return {
        "listed": [len(run) for run in right],
        "shared": len(shared),
        "right": [sum(pair[i] for pair in both) for i in (0, 1)],
        "only": [sum(a and not b for a, b in both), sum(b and not a for a, b in both)],
    }


def _correctness(folder: Path) -> dict[tuple[str, str], bool]:
    """Return whether a run classifies each held-out image correctly, by path and content.

    Without a digest, the content is given by the location. Classes are compared by name.
    """
    images, photographs, seen = data_of(folder)["images"], _read_split(folder / SPLIT), set[str]()
    with suppress(OSError, VitkitError):  # reports of earlier versions include images that the weights had seen
        seen = set((read_figures(folder / EVALUATION).get("seen") or {"paths": ()})["paths"])
    contents = {path: str(file) for path, file in photographs.places.items()} | photographs.contents

    def names(numbers: int | list[int]) -> list[str]:
        return sorted(images["classes"][i] for i in (numbers if isinstance(numbers, list) else [numbers]))

    rows = zip(images["path"], images["true"], images["said"], strict=True)
    return {(path, contents.get(path, "")): names(true) == names(said) for path, true, said in rows if path not in seen}


# --- Suspected label errors ---------------------------------------------------------------------------------


def suspects_of(workspace: Workspace, folder: Path) -> dict[str, Any]:
    """Return a run's suspected label errors, the most suspicious first, with the users' decisions since the run."""
    suspects = _suspects(folder)
    decided = {path: edit.label for path, edit in decisions_since(workspace.label_file.read(), folder).items()}
    rows = []
    for item in suspects[:_MOST]:
        label = decided.get(item.path)
        state = "open" if label is None else "excluded" if label == EXCLUDED else "relabelled"
        rows.append({**item._asdict(), "said": label, "state": "kept" if label == item.label else state})
    about = {"why_not": _why_not(workspace, folder), "version": stamp_of(folder / LABEL_ERRORS)}
    about["again"] = AGAIN[is_cross_tested(folder)]
    return {"total": len(suspects), "chance": chance_in_words(suspects), "suspects": rows, **about}


def decide(
    workspace: Workspace, folder: Path, version: str, numbers: Sequence[int], what: What, label: str = ""
) -> None:
    """Write decisions about suspected label errors into the label file.

    The numbers are positions in the version `version` of the run's list of suspects. `what` is `keep` if the labels are
    right, `relabel` to change them (to `label`, or to the suggested class if it is empty), or `exclude`.
    """
    suspects = _suspects(folder)
    if version != stamp_of(folder / LABEL_ERRORS) or not all(0 <= i < len(suspects) for i in numbers):
        raise VitkitError("webapp.suspects-changed", "the list of suspected label errors has changed: load it again")
    decisions = []
    for item in (suspects[i] for i in dict.fromkeys(numbers)):
        new = {"keep": item.label, "relabel": label or item.suggested, "exclude": EXCLUDED}[what]
        decisions.append((item.path, item.label, item.suggested, new))
    _write(workspace, folder, decisions)


def _write(workspace: Workspace, folder: Path, decisions: Sequence[tuple[str, str, str, str]]) -> None:
    """Write labels that people gave to photographs of a run; those that follow the model are marked as proposed by it.

    A decision has the path of the photograph, its label in the run, the class that the model predicts or suggests, and
    the new label.
    """
    if reason := _why_not(workspace, folder):
        raise VitkitError("webapp.photographs-foreign", reason)
    known = {item.path: item.label for item in workspace.label_file.read().edits}
    task, edits = _read_split(folder / SPLIT).task, []
    check_there([workspace.photographs / path for path, *_ in decisions])
    for path, label, shown, new in decisions:
        file_of(folder, path)
        chosen = new if new in (EXCLUDED, label) else checked_name(new, task)
        by = folder.name if chosen != label and chosen in (shown, EXCLUDED) else ""
        edits.append(Edit(path, chosen, known.get(path, label), proposed_by=by))
    workspace.label_file.add(edits)


# --- Labels of the photographs on which the run was tested --------------------------------------------------


def labels_of(workspace: Workspace, folder: Path) -> dict[str, Any]:
    """Return the labels that photographs in a run's report were given since the run, by path (`now`).

    `why_not` is the reason why labels of this run cannot be changed here; empty if they can.
    """
    paths = set(data_of(folder)["images"]["path"])
    since = decisions_since(workspace.label_file.read(), folder)
    now = {path: edit.label for path, edit in since.items() if path in paths}
    return {"now": now, "why_not": _why_not(workspace, folder)}


def correct(workspace: Workspace, folder: Path, version: str, number: int, label: str) -> None:
    """Correct the label of a photograph in a run's report, by adding a row to the label file.

    `number` is its position in the version `version` of the report. An empty `label` excludes the photograph.
    """
    images = data_of(folder)["images"]
    if version != stamp_of(folder / REPORT) or not 0 <= number < len(images["path"]):
        raise VitkitError("webapp.report-changed", "the report of this run has changed: load it again")
    indices = [images[column][number] for column in ("true", "said")]
    indices = [own if isinstance(own, list) else [own] for own in indices]
    true, shown = (JOINT.join(images["classes"][i] for i in own) for own in indices)
    _write(workspace, folder, [(images["path"][number], true, shown, label)])


def _suspects(folder: Path) -> list[Suspect]:
    file = folder / LABEL_ERRORS
    return read_suspects(file) if file.is_file() else []


def _why_not(workspace: Workspace, folder: Path) -> str:
    """Return the reason why the labels of this run cannot be edited in this studio; empty if they can."""
    if _read_split(folder / SPLIT).root.resolve() == workspace.photographs.resolve():
        return ""
    return f"{folder.name} was trained on other photographs than those of this studio: its labels are not changed here"


class Decision(BaseModel):
    """A decision about suspected label errors; see `decide`."""

    version: str = Field(max_length=100)
    numbers: list[int] = Field(max_length=10_000)
    what: What
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

    @routes.get("/runs/{name}/beside/{other}")
    def compare(name: str, other: str) -> dict[str, Any]:
        return agreement(workspace.run_folder(name), workspace.run_folder(other))

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
        suspects = _suspects(folder)
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
