"""The Data tab: photographs and their classes, findings of the check-up (`vitkit doctor`), suspected label errors.

The tab also shows similar photographs, suggests classes, and chooses photographs to label next.
"""

from __future__ import annotations

import csv
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from vitkit.data import (
    EXCLUDED,
    MULTI_LABEL,
    UNLABELLED,
    ImageTable,
    Suspect,
    decisions_since,
    examine,
    read_suspects,
    split_from_file,
    table_of,
)
from vitkit.errors import VitkitError
from vitkit.model_folder import DESCRIPTION
from vitkit.system import LABEL_ERRORS, SPLIT, to_json
from vitkit.text import Verdict, restored
from vitkit.webapp.likeness import Background, Likeness, next_labels, run_vitkit
from vitkit.webapp.photographs import (
    Photographs,
    State,
    SuspectLabels,
    Thumbnails,
    check_number,
    file_cache,
)
from vitkit.webapp.workspace import Workspace

_MAX_FILES = 500  # photographs that are passed by name; if there are more, the whole folder is predicted
_Predicted = dict[int, tuple[str, float]]  # the class and its confidence, by number of the photograph


class Suggestions:
    """Suggested classes for the photographs without a class: the predictions of the newest run, kept in memory.

    `vitkit predict` computes the predictions in a separate process. An accepted suggestion is recorded as proposed by
    the run (docs/decisions/0028-label-files.md). Suggestions contain no information about test labels, because the run
    was trained on its training split alone, and the next run keeps this split.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.work: Background[_Predicted] = Background()

    def start(self, state: State, run: str) -> None:
        """Start to predict the photographs without a class, unless a prediction is running."""
        if not run:
            reason = "no model is trained on these photographs yet: train one first"
            raise VitkitError("webapp.model-missing", reason)
        numbers = [i for i, label in enumerate(state.labels) if label == UNLABELLED]
        if not numbers:
            raise VitkitError("webapp.class-everywhere", "every photograph has a class already")

        def predict() -> _Predicted:
            number_of = {str(state.table.file(i)): i for i in numbers}
            sources = list(number_of) if len(number_of) <= _MAX_FILES else [str(self.workspace.photographs)]
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "suggestions.csv"
                run_vitkit(["predict", str(self.workspace.run_folder(run)), *sources], out)
                suggestions = {}
                with out.open(encoding="utf-8", errors="surrogateescape", newline="") as text:
                    for cells in csv.DictReader(text):
                        row = {name: restored(cell or "") for name, cell in cells.items()}
                        if row["path"] in number_of and row["label"] and row["confidence"]:  # not an unreadable one
                            suggestions[number_of[row["path"]]] = (row["label"], float(row["confidence"]))
            return suggestions

        self.work.start((state.version, run), predict)

    def to_dict(self, state: State, run: str) -> dict[str, Any]:
        """Return the progress, and the suggestions of a run for photographs that still have no class.

        The suggestions are None until they are computed for this run and list of photographs.
        """
        predicted = self.work.result((state.version, run))
        if predicted is not None:
            predicted = {i: suggestion for i, suggestion in predicted.items() if state.labels[i] == UNLABELLED}
        return {**self.work.to_dict(), "run": run, "version": state.version, "found": predicted}


def diagnose(state: State) -> dict[str, Any]:
    """Check the photographs with their current labels as `vitkit doctor` does, without excluded photographs.

    Returns:
        The verdict, the findings, the copies and the unreadable photographs. Photographs are given by number.
    """
    from vitkit.reporting import verdict_of_data  # here, because the module imports matplotlib, which takes long

    table = state.table
    kept = [i for i, label in enumerate(state.labels) if label != EXCLUDED]
    rows = [(table.paths[i], state.labels[i], table.splits[i]) for i in kept]
    if not rows:
        raise VitkitError("webapp.photographs-excluded", "all photographs are left out")
    classes = {label for _, label, _ in rows} - {UNLABELLED}
    if len(classes) < 2:  # too few classes: the doctor treats the photographs as unlabelled
        rows = [(path, UNLABELLED, None) for path, _, _ in rows]
    diagnosis = examine(table_of(table.name, table.root, rows, table.storage))
    number_of = {path: i for i, path in enumerate(table.paths)}
    numbers = [number_of[path] for path in diagnosis.table.paths]  # the diagnosis counts without excluded photographs
    copies = [
        {"images": [numbers[i] for i in group.images], "leak": group.is_leak, "conflict": group.is_conflict}
        for group in diagnosis.copies
    ]
    verdict = verdict_of_data(diagnosis)
    if verdict.level == "good" and len(classes) < 2:
        verdict = Verdict("note", "Nothing is wrong, but a training requires two classes")
    unreadable = {str(number_of[path]): reason for path, reason in diagnosis.unreadable.items()}
    findings = [{"severity": finding.severity, "text": finding.text} for finding in diagnosis.findings]
    return {"verdict": asdict(verdict), "unreadable": unreadable, "copies": copies, "findings": findings}


def suspect_labels_of(workspace: Workspace, table: ImageTable) -> SuspectLabels:
    """Return the suspected label errors of the newest run that searched for them, with the decisions about them.

    The result is empty if no run on these photographs has searched for label errors.
    """
    for name in _runs_of(workspace, table):
        folder = workspace.runs / name
        if (folder / LABEL_ERRORS).exists():
            suspects = _suspects_in(folder / LABEL_ERRORS)
            decided = decisions_since(workspace.label_file.read(), folder) if suspects else {}
            return SuspectLabels(name, suspects, frozenset(suspects.keys() & decided.keys()))
    return SuspectLabels()


@file_cache
def _suspects_in(file: Path) -> Mapping[str, Suspect]:
    try:
        return {item.path: item for item in read_suspects(file)}
    except (OSError, VitkitError):
        return {}


_table_of = file_cache(split_from_file, 8)


def _runs_of(workspace: Workspace, table: ImageTable) -> Iterator[str]:
    """Yield the name of each run that was trained on these photographs, newest first.

    Runs in the same folder that were trained on other photographs are left out, even if they use the same paths.
    """
    for name in workspace.run_names():
        with suppress(VitkitError, OSError):
            if _table_of(workspace.runs / name / SPLIT).root == table.root:
                yield name


_MAX_IMAGES = 1_000_000


class LabelRequest(BaseModel):
    """A request to set the class of photographs.

    `run` suggested this class for the photographs in `suggested`. A label of "" excludes, and None removes the class.
    """

    version: str = Field(max_length=64)
    images: list[int] = Field(max_length=_MAX_IMAGES)
    label: str | None = Field(max_length=1000)
    run: str = Field(default="", max_length=300)
    suggested: list[int] = Field(default=[], max_length=_MAX_IMAGES)


class Group(BaseModel):
    """Photographs for which the same class is suggested."""

    label: str = Field(max_length=1000)
    images: list[int] = Field(max_length=_MAX_IMAGES)


class Accepted(BaseModel):
    """A request to accept several suggestions of a run together."""

    version: str = Field(max_length=64)
    run: str = Field(max_length=300)
    groups: list[Group] = Field(max_length=100_000)


class Renamed(BaseModel):
    """A request to rename a class."""

    old: str = Field(max_length=1000)
    new: str = Field(max_length=1000)


class NextQuery(BaseModel):
    """A request for photographs to label next."""

    count: int = Field(default=24, ge=1, le=1000)


def router(workspace: Workspace) -> APIRouter:
    """Return the routes of the tab."""
    routes, photographs, thumbnails = APIRouter(prefix="/api/data"), Photographs(workspace), Thumbnails()

    def begin() -> None:
        with suppress(VitkitError, OSError):  # the first request reports the error
            photographs.read()

    threading.Thread(target=begin, daemon=True).start()

    @routes.get("/all")
    def show_all(anew: bool = False) -> Response:
        state = photographs.read(relist=anew)
        suspected = suspect_labels_of(workspace, state.table)
        number_of = {path: i for i, path in enumerate(state.table.paths)}
        doubts = {
            number_of[path]: {"label": own.label, "suggested": own.suggested, "score": own.score, "run": suspected.run}
            for path, own in suspected.suspects.items()
            if path in number_of
        }
        layout = [state.table.layout] if state.table.layout else []
        answer = {
            "paths": state.table.paths,
            "is_trained": bool(newest_model(workspace, state.table)),
            "doubts": doubts,
            "notes": [*layout, *state.table.overlooked],
            "multi": state.table.task is MULTI_LABEL,
            **_labels_for_page(photographs, state),
        }
        return Response(to_json(answer), media_type="application/json")  # FastAPI would validate thousands of rows

    @routes.get("/labels")
    def show_labels() -> dict[str, Any]:
        return _labels_for_page(photographs, photographs.read())

    @routes.post("/labels")
    def label(request: LabelRequest) -> dict[str, Any]:
        text = UNLABELLED if request.label is None else request.label
        suspected = suspect_labels_of(workspace, photographs.read().table)
        run = workspace.run_folder(request.run).name if request.run else ""
        suggested = frozenset(request.suggested if run else ())
        state = photographs.label(request.version, request.images, text, suspected, suggested, run)
        return _labels_for_page(photographs, state)

    @routes.post("/accept")
    def accept(accepted: Accepted) -> dict[str, Any]:
        run = workspace.run_folder(accepted.run).name
        groups = [(group.label, group.images) for group in accepted.groups]
        return _labels_for_page(photographs, photographs.accept(accepted.version, run, groups))

    @routes.post("/undo")
    def undo() -> dict[str, Any]:
        return _labels_for_page(photographs, photographs.undo())

    @routes.post("/classes/rename")
    def rename_class(renamed: Renamed) -> dict[str, Any]:
        return _labels_for_page(photographs, photographs.rename(renamed.old, renamed.new))

    @routes.get("/thumbnail/{version}/{number}")
    async def thumbnail(version: str, number: int, request: Request) -> Response:
        return await thumbnails.respond(photographs.file(version, number), request, large=False)

    @routes.get("/picture/{version}/{number}")
    async def picture(version: str, number: int, request: Request) -> Response:
        return await thumbnails.respond(photographs.file(version, number), request, large=True)

    _add_search_routes(routes, photographs, workspace)
    return routes


def _add_search_routes(routes: APIRouter, photographs: Photographs, workspace: Workspace) -> None:
    """Add the routes for tasks that look at all photographs.

    These are the check-up (`vitkit doctor`), similar photographs, suggested classes, and what to label next.
    """
    likeness, doctor = Likeness(workspace), Background[tuple[list[str], dict[str, Any]]]()
    suggestions = Suggestions(workspace)

    @routes.post("/check")
    def check() -> dict[str, Any]:
        state = photographs.read()
        doctor.start(state.version, lambda: (list(state.labels), diagnose(state)))
        return doctor.to_dict()

    @routes.get("/check")
    def show_check() -> dict[str, Any]:
        state = photographs.read()
        labels, diagnosis = doctor.result(state.version) or (None, None)
        found = None if diagnosis is None else {**diagnosis, "is_old": labels != list(state.labels)}
        return {**doctor.to_dict(), "found": found}

    @routes.post("/look")
    def look(download: bool = False) -> dict[str, Any]:
        table = photographs.read().table
        likeness.start(table, may_download=download)
        return likeness.to_dict(table)

    @routes.get("/look")
    def show_look() -> dict[str, Any]:
        return likeness.to_dict(photographs.read().table)

    @routes.get("/alike/{number}")
    def alike(number: int) -> dict[str, Any]:
        state = photographs.read()
        check_number(number, len(state.table))
        return {"version": state.version, "images": likeness.alike(state.table, number)}

    @routes.post("/suggest")
    def suggest() -> dict[str, Any]:
        state = photographs.read()
        suggestions.start(state, newest_model(workspace, state.table))
        return suggestions.to_dict(state, newest_model(workspace, state.table))

    @routes.get("/suggest")
    def show_suggestions() -> dict[str, Any]:
        state = photographs.read()
        return suggestions.to_dict(state, newest_model(workspace, state.table))

    @routes.post("/next")
    def next_(query: NextQuery) -> dict[str, Any]:
        state = photographs.read()
        return {"version": state.version, **next_labels(state, likeness.features(state.table), query.count)}


def newest_model(workspace: Workspace, table: ImageTable) -> str:
    """Return the name of the newest run on these photographs that has a model; empty if there is none."""
    runs = _runs_of(workspace, table)
    return next((name for name in runs if (workspace.runs / name / DESCRIPTION).is_file()), "")


def _labels_for_page(photographs: Photographs, state: State) -> dict[str, Any]:
    """Return the classes, the labels and the state of the label file as JSON.

    Each label is an index in the entry `names`; -1 stands for no class, and -2 for a photograph that is excluded.
    """
    classes = photographs.classes(state)
    labels = set(state.labels) - {EXCLUDED, UNLABELLED}
    names = state.table.task.label_names([entry["name"] for entry in classes], labels)
    index = {UNLABELLED: -1, EXCLUDED: -2} | {name: i for i, name in enumerate(names)}
    file = photographs.workspace.label_file
    decided = suspect_labels_of(photographs.workspace, state.table).decided
    return {
        "version": state.version,
        "classes": classes,
        "names": names,
        "unmatched": state.unmatched,
        "news": file.news(),
        "decided": [i for i, path in enumerate(state.table.paths) if path in decided],
        "can_undo": file.can_undo,
        "labels": [index[label] for label in state.labels],
    }
