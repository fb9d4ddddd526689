"""The Predict tab: predict all photographs of a folder, then correct, save, or add the predictions to the data.

`vitkit predict` computes the predictions in a separate process. Predictions and corrections are stored in the state
folder of the user. They are not stored among the runs, because a folder of runs from another person could then contain
paths of arbitrary files, which the page would show.
"""

from __future__ import annotations

import csv
import io
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field
from starlette.background import BackgroundTask

from vitkit.data import Edit, add_edits
from vitkit.errors import VitkitError
from vitkit.model_folder import DESCRIPTION
from vitkit.system import from_json, read_json, read_text, write_json
from vitkit.text import check_rows, harmless, restored, write_workbook
from vitkit.webapp.folders import find_folder
from vitkit.webapp.likeness import Background, run_vitkit
from vitkit.webapp.photographs import Thumbnails, check_number, clean_class_name, file_cache, photographs_in
from vitkit.webapp.workspace import Workspace, label_file_of

_TOP = 3  # classes that are shown for a photograph
_FOLDER = "predictions"  # in the state folder


@dataclass(frozen=True)
class PredictionSet:
    """The description of a set of predictions: the run, the folder, and the corrections."""

    number: int  # increases with each request
    run: str
    folder: str  # the folder or archive of the photographs
    title: str  # the title of the folder on the page
    when: float  # seconds since 1970
    corrections: dict[str, str] = field(default_factory=dict)  # classes that people chose, by row number as text


@dataclass(frozen=True)
class PhotoPrediction:
    """The prediction for a photograph."""

    path: str
    ranking: tuple[tuple[str, float], ...]  # the most probable classes, the best first; empty if there is an error
    error: str = ""  # the reason why the photograph cannot be read
    familiar: float | None = None  # the fraction of known images that look no more familiar, if the model has a score


@file_cache
def _read_predictions(file: Path) -> list[PhotoPrediction]:
    columns = [("label", "confidence")]
    columns += [(f"label_{rank}", f"confidence_{rank}") for rank in range(1, _TOP + 1)]
    predictions = []
    with file.open(encoding="utf-8", errors="surrogateescape", newline="") as text:
        for cells in csv.DictReader(text):
            row = {name: restored(cell or "") for name, cell in cells.items()}
            ranking = [(row[label], float(row[confidence])) for label, confidence in columns if row.get(confidence)]
            familiar = float(row["familiar"]) if row.get("familiar") else None
            predictions.append(PhotoPrediction(row["path"], tuple(ranking[:_TOP]), row["error"], familiar))
    return predictions


class StoredPredictions:
    """The sets of predictions of a workspace, which are stored on disk."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.folder = workspace.state_folder / _FOLDER
        self._lock = threading.Lock()

    def all(self) -> list[PredictionSet]:
        """List the descriptions of all finished sets of predictions, the newest first."""
        read = [self._read(file) for file in self.folder.glob("*.json")]
        return sorted((item for item in read if item is not None), key=lambda item: -item.number)

    def get(self, number: int) -> PredictionSet:
        """Return the description of a set of predictions."""
        item = self._read(self.folder / f"{number:06}.json")
        if item is None:
            raise VitkitError("webapp.predictions-unknown", "there is no such prediction")
        return item

    def rows(self, item: PredictionSet) -> list[PhotoPrediction]:
        """Return the prediction for each photograph in a set."""
        return _read_predictions(self.folder / f"{item.number:06}.csv")

    def correct(self, number: int, rows: Sequence[int], label: str) -> dict[str, str]:
        """Correct the class of rows in a set of predictions, and return all corrections of the set by row number.

        An empty `label` restores the predicted class.
        """
        with self._lock:  # so that no correction of a concurrent request is lost
            item = self.get(number)
            corrections = dict(item.corrections)
            for row in map(str, rows):
                if label:
                    corrections[row] = label
                else:
                    corrections.pop(row, None)
            self.write(replace(item, corrections=corrections))
        return corrections

    def write(self, item: PredictionSet) -> None:
        """Write the description of a set of predictions, with its corrections, to disk."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(self.folder / f"{item.number:06}.json", asdict(item))

    def compute(self, run: str, folder: Path, title: str) -> int:
        """Predict all photographs of a folder with a run's model; return the number of the new set of predictions."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        numbers = [int(file.stem) for file in self.folder.glob("*.csv") if file.stem.isdecimal()]
        item = PredictionSet(max(numbers, default=0) + 1, run, str(folder), title, time.time())
        out = self.folder / f"{item.number:06}.csv"
        source = str(self.workspace.run_folder(run))
        run_vitkit(["predict", source, str(folder), "--top", str(_TOP)], out)
        self.write(item)
        return item.number

    def _read(self, file: Path) -> PredictionSet | None:
        with suppress(OSError, ValueError, TypeError):  # such as a file of another version
            return PredictionSet(**from_json(read_text(file)))
        return None


# --- The table, and additions to the data ---------------------------------------------------------------------


def prediction_table(
    stored: StoredPredictions, item: PredictionSet
) -> tuple[list[str], list[list[str | float | None]]]:
    """Return the header and the rows of a table of predictions, one row for each photograph.

    The label is the corrected or else the predicted class. The familiarity, if there is one, is the last column.
    """
    predictions = stored.rows(item)
    has_familiar = any(prediction.familiar is not None for prediction in predictions)
    header = ["path", "label", "confidence", "predicted", "corrected", "error"]
    if has_familiar:
        header.append("familiar")
    rows: list[list[str | float | None]] = []
    for number, prediction in enumerate(predictions):
        path = _relative_path(prediction.path, item.folder)
        predicted, confidence = prediction.ranking[0] if prediction.ranking else (None, None)
        correction = item.corrections.get(str(number))
        row = [path, correction or predicted, confidence, predicted, correction, prediction.error or None]
        if has_familiar:
            row.append(prediction.familiar)
        rows.append(row)
    return header, rows


def _is_inside(workspace: Workspace, item: PredictionSet) -> bool:
    return Path(item.folder).resolve().is_relative_to(workspace.photographs.resolve())


def _relative_path(path: str, folder: str) -> str:
    return os.path.relpath(path, folder) if Path(path).is_relative_to(folder) else path


def add_to_data(
    workspace: Workspace, stored: StoredPredictions, item: PredictionSet, numbers: Sequence[int]
) -> dict[str, Any]:
    """Write the classes of photographs into a label file; return what was added, for the page.

    Photographs in the studio's folder are added to its label file if they have no class yet or if a person corrected
    the predicted class. Photographs of another folder are added to the label file of that folder, `labels/FOLDER.csv`,
    which the studio uses when it opens the folder. Predicted classes that nobody corrected are recorded as proposed by
    the run.
    """
    is_inside = _is_inside(workspace, item)
    base = str(workspace.photographs) if is_inside else item.folder
    edits = []
    rows = stored.rows(item)
    for number in dict.fromkeys(numbers):
        check_number(number, len(rows))
        path = Path(_relative_path(rows[number].path, base)).as_posix()
        correction, ranking = item.corrections.get(str(number)), rows[number].ranking
        if correction is not None:
            edits.append(Edit(path, correction))
        elif ranking:
            best, _ = ranking[0]
            edits.append(Edit(path, best, proposed_by=item.run))
    if is_inside:
        table = photographs_in(workspace.photographs)
        labelled = {path for i, path in enumerate(table.paths) if table.name_of(i) not in ("", "unlabelled")}
        labelled |= {edit.path for edit in workspace.label_file.read().edits}
        edits = [edit for edit in edits if edit.path not in labelled or not edit.proposed_by]
        workspace.label_file.add(edits)
        file = workspace.labels
    else:
        file = label_file_of(Path(item.folder))
        add_edits(file, edits)
    return {"added": len(edits), "file": str(file), "inside": is_inside}


# --- Routes ----------------------------------------------------------------------------------------------------


class PredictionRequest(BaseModel):
    """A request to predict the classes of all photographs in a folder."""

    run: str = Field(max_length=300)
    folder: str = Field(max_length=64)


class Correction(BaseModel):
    """The class that a person chose for some photographs; an empty label restores the predicted class."""

    numbers: list[int] = Field(max_length=1_000_000)
    label: str = Field(max_length=1000)


class Addition(BaseModel):
    """A request to add the classes of photographs to the data."""

    numbers: list[int] = Field(max_length=1_000_000)


def router(workspace: Workspace) -> APIRouter:
    """Return the routes of the tab."""
    routes, stored = APIRouter(prefix="/api/predict"), StoredPredictions(workspace)
    work: Background[int] = Background()
    thumbnails = Thumbnails()
    last_title = ""  # the title of the folder that was predicted last

    @routes.get("")
    def show() -> dict[str, Any]:
        done = [
            {"number": item.number, "run": item.run, "title": item.title, "when": item.when} for item in stored.all()
        ]
        return {"models": workspace.classifier_names(), "done": done}

    @routes.post("")
    def start(request: PredictionRequest) -> dict[str, Any]:
        nonlocal last_title
        run = workspace.run_folder(request.run).name
        folder = find_folder(request.folder, workspace.runs, workspace.photographs)
        if not work.is_running:
            last_title = folder.title
            work.start("", lambda: stored.compute(run, folder.path, folder.title))
        return state()

    @routes.get("/state")
    def state() -> dict[str, Any]:
        return {**work.to_dict(), "title": last_title, "number": work.result("")}

    @routes.get("/{number}")
    def show_rows(number: int) -> dict[str, Any]:
        item = stored.get(number)
        predictions = stored.rows(item)
        rows = [[_relative_path(row.path, item.folder), row.ranking, row.error, row.familiar] for row in predictions]
        classes = sorted({label for row in predictions for label, _ in row.ranking})
        order: list[str] = []  # the classes of the model, whose places determine the colours; empty without the model
        if item.run in workspace.classifier_names():
            with suppress(OSError, VitkitError, TypeError, KeyError):
                order = list(map(str, read_json(workspace.runs / item.run / DESCRIPTION)["classes"]))
        shown = {"rows": rows, "classes": classes, "order": order, "inside": _is_inside(workspace, item)}
        return {**asdict(item), **shown}

    @routes.get("/{number}/thumbnail/{row}")
    async def show_thumbnail(number: int, row: int, request: Request, large: bool = False) -> Response:
        rows = stored.rows(stored.get(number))
        check_number(row, len(rows))
        return await thumbnails.respond(Path(rows[row].path), request, large=large)

    @routes.post("/{number}/correct")
    def correct(number: int, correction: Correction) -> dict[str, Any]:
        item = stored.get(number)
        for row in correction.numbers:
            check_number(row, len(stored.rows(item)))
        label = clean_class_name(correction.label) if correction.label else ""
        return {"corrections": stored.correct(number, correction.numbers, label)}

    @routes.post("/{number}/add")
    def add(number: int, addition: Addition) -> dict[str, Any]:
        return add_to_data(workspace, stored, stored.get(number), addition.numbers)

    @routes.get("/{number}/table.csv")
    def send_csv(number: int) -> Response:
        item = stored.get(number)
        header, rows = prediction_table(stored, item)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header)
        for row in rows:
            writer.writerow(harmless(cell) if isinstance(cell, str) else cell for cell in row)
        content = text.getvalue().encode("utf-8", "surrogateescape")
        return Response(content, media_type="text/csv", headers=_attachment("csv", item))

    @routes.get("/{number}/table.xlsx")
    def send_workbook(number: int) -> FileResponse:
        item = stored.get(number)
        header, rows = prediction_table(stored, item)
        check_rows(len(rows))
        folder = tempfile.TemporaryDirectory()
        file = Path(folder.name) / "predictions.xlsx"
        write_workbook(file, header, rows)
        return FileResponse(file, headers=_attachment("xlsx", item), background=BackgroundTask(folder.cleanup))

    return routes


def _attachment(suffix: str, item: PredictionSet) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="predictions-{item.number}.{suffix}"'}
