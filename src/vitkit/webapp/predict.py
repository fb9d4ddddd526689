"""The Predict tab: predict all photographs of a folder, then correct, save, or add the predictions to the data.

`vitkit predict` computes the predictions in a separate process. Predictions and corrections are stored in the state
folder of the user. They are not stored among the runs, because a folder of runs from another person could then contain
paths of arbitrary files, which the page would show.
"""

from __future__ import annotations

import csv
import io
import itertools
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, HTMLResponse
from pydantic import BaseModel, Field
from starlette.background import BackgroundTask

from vitkit.data import Edit, Overlooked, add_edits, has_no_folders, images_below
from vitkit.errors import VitkitError
from vitkit.inference import UNKNOWN
from vitkit.model_folder import DESCRIPTION
from vitkit.system import from_json, read_json, read_text, write_json
from vitkit.text import check_rows, harmless, restored, write_workbook
from vitkit.webapp.folders import PhotoFolder, chosen, new_folder
from vitkit.webapp.likeness import Background, run_vitkit
from vitkit.webapp.photographs import Thumbnails, check_number, checked_name, photographs_in
from vitkit.webapp.results import figures_in
from vitkit.webapp.workspace import Workspace, label_file_of

_TOP = 3  # classes that are shown for a photograph
_FOLDER = "predictions"  # in the state folder
_SHEET_MOST = 2_000  # photographs on a contact sheet


@dataclass(frozen=True)
class PredictionSet:
    """The description of a set of predictions: the run, the folder, and the corrections."""

    number: int  # increases with each request
    run: str
    folder: str  # or archive of the photographs
    title: str  # of the folder on the page
    when: float  # seconds since 1970
    corrections: dict[str, str] = field(default_factory=dict)  # classes that people chose, by row number as text


@dataclass(frozen=True)
class PhotoPrediction:
    """The prediction for a photograph."""

    path: str
    ranking: tuple[tuple[str, float], ...]  # the most probable classes, the best first; empty if there is an error
    error: str = ""  # the reason why the photograph cannot be read
    familiar: float | None = None  # the fraction of known images that look no more familiar, if the model has a score


class StoredPredictions:
    """The sets of predictions of a workspace, which are stored on disk."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.folder = workspace.state_folder / _FOLDER
        self._kept: tuple[int, list[PhotoPrediction]] | None = None
        self._lock = threading.Lock()

    def all(self) -> list[PredictionSet]:
        """List the descriptions of all finished sets of predictions, the newest first."""
        return sorted(filter(None, map(self._read, self.folder.glob("*.json"))), key=lambda item: -item.number)

    def get(self, number: int) -> PredictionSet:
        """Return the description of a set of predictions."""
        item = self._read(self.folder / f"{number:06}.json")
        if item is None:
            raise VitkitError("webapp.predictions-unknown", "there is no such prediction")
        return item

    def rows(self, item: PredictionSet) -> list[PhotoPrediction]:
        """Return the prediction for each photograph in a set."""
        if self._kept is not None and self._kept[0] == item.number:
            return self._kept[1]
        named = [("label", "confidence"), *((f"label_{i}", f"confidence_{i}") for i in range(1, _TOP + 1))]
        answers, file = [], self.folder / f"{item.number:06}.csv"
        try:
            with file.open(encoding="utf-8", errors="surrogateescape", newline="") as text:
                for cells in csv.DictReader(text):
                    row = {name: restored(cell or "") for name, cell in cells.items()}
                    ranking = [(row[label], float(row[value])) for label, value in named if row.get(value)]
                    familiar = row.get("familiar") or row.get("unknown")  # files of earlier versions
                    share = float(familiar) if familiar else None
                    answers.append(PhotoPrediction(row["path"], tuple(ranking[:_TOP]), row["error"], share))
        except (OSError, csv.Error, KeyError, ValueError) as error:
            reason = "the file with these predictions is gone or damaged: predict the folder again"
            raise VitkitError("webapp.predictions-damaged", reason) from error
        self._kept = item.number, answers
        return answers

    def label(self, item: PredictionSet, number: int) -> str:
        """Return the class of a row: the correction, or else the predicted class; empty if it has neither."""
        row = self.rows(item)[number]
        return item.corrections.get(str(number), row.ranking[0][0] if row.ranking else "")

    def correct(self, number: int, rows: Sequence[int], label: str) -> dict[str, str]:
        """Correct the class of rows in a set of predictions, and return all corrections of the set by row number.

        An empty `label` restores the predicted class.
        """
        with self._lock:  # so that no correction of a concurrent request is lost
            item, texts = self.get(number), {str(row) for row in rows}
            changed = {row: name for row, name in item.corrections.items() if row not in texts}
            changed |= {str(row): label for row in rows if label}
            self.keep(replace(item, corrections=changed))
        return changed

    def keep(self, item: PredictionSet) -> None:
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
        self.keep(item)
        return item.number

    def _read(self, file: Path) -> PredictionSet | None:
        try:
            item = PredictionSet(**from_json(read_text(file)))
        except (OSError, ValueError, TypeError):
            return None
        return item if file.name == f"{item.number:06}.json" and isinstance(item.corrections, dict) else None


# --- Exports and additions to the data ------------------------------------------------------------------------


def table_of(
    stored: StoredPredictions, item: PredictionSet, withhold: float, unknown: float = 0.0
) -> tuple[list[str], list[list[str | float | None]]]:
    """Return the header and the rows of a table of predictions, one row for each photograph.

    A predicted class is withheld below the confidence `withhold`, and shown as `?` if the familiarity is at most
    `unknown`; corrected classes are always shown. The familiarity, if there is one, is the last column.
    """
    answers = stored.rows(item)
    has_familiar = any(row.familiar is not None for row in answers)
    header = ["path", "label", "confidence", "predicted", "withheld", "corrected", "error"]
    rows: list[list[str | float | None]] = []
    for number, row in enumerate(answers):
        correction, more = item.corrections.get(str(number)), [row.familiar] if has_familiar else []
        if not row.ranking:
            rows.append([_below(row.path, item.folder), correction, None, None, None, correction, row.error, *more])
            continue
        predicted, confidence = row.ranking[0]
        is_unknown = correction is None and row.familiar is not None and row.familiar <= unknown
        is_withheld = correction is None and (is_unknown or confidence < withhold)
        label = correction or (UNKNOWN if is_unknown else None if is_withheld else predicted)
        cells = [label, confidence, predicted, "yes" if is_withheld else None, correction, None, *more]
        rows.append([_below(row.path, item.folder), *cells])
    return [*header, *(["familiar"] if has_familiar else [])], rows


def contact_sheet(stored: StoredPredictions, item: PredictionSet, withhold: float, unknown: float = 0.0) -> bytes:
    """Return a self-contained page with a thumbnail and the class of each photograph, to print or to send."""
    from vitkit.reporting import gallery, thumbnails
    from vitkit.text import write_page

    rows = stored.rows(item)
    if len(rows) > _SHEET_MOST:
        reason = f"a contact sheet has at most {_SHEET_MOST:,} photographs, not {len(rows):,}"
        raise VitkitError("webapp.photographs-too-many", reason)
    captions: list[tuple[str, ...]] = []
    for path, label, confidence, _, is_withheld, correction, error, *_ in table_of(stored, item, withhold, unknown)[1]:
        if error:
            captions.append((str(error), str(path)))
            continue
        sure = "corrected" if correction else f"{100 * float(confidence or 0):.0f} %"
        captions.append(("withheld" if is_withheld and label is None else str(label), sure, str(path)))
    pictures = thumbnails((Path(row.path) for row in rows), 160)
    shown = list(zip(pictures, captions, strict=True))
    title = f"{item.title}: what {item.run} sees"
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "sheet.html"
        heading = f"<h1>{escape(title)}</h1><p>{len(rows)} photographs</p>"
        write_page(page, title, ['<div class="panel">', heading, gallery(shown), "</div>"])
        return page.read_bytes()  # bytes, because names of files need not be UTF-8


def _model_of(workspace: Workspace, run: str) -> dict[str, Any]:
    """Return the classes of a run's model in their order, and how good it was in its test; empty if it is gone."""
    folder, order = workspace.runs / run, []
    if run in workspace.model_names():
        with suppress(OSError, VitkitError, TypeError, KeyError):
            order = list(map(str, read_json(folder / DESCRIPTION)["classes"]))
    told = figures_in(folder) if order else {}
    is_sound = told and told["figures"]["split"] != "val" and told["verdict"]["level"] != "problem"
    return {"order": order, "tested": told["verdict"]["sentence"] if is_sound else ""}


def _is_inside(workspace: Workspace, item: PredictionSet) -> bool:
    return Path(item.folder).resolve().is_relative_to(workspace.photographs.resolve())


def _below(path: str, folder: str) -> str:
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
    rows = stored.rows(item)
    for number in numbers:
        check_number(number, len(rows))
    root, is_inside = Path(item.folder), _is_inside(workspace, item)
    base = workspace.photographs if is_inside else root
    edits = []
    for number in dict.fromkeys(numbers):
        if label := stored.label(item, number):
            by = "" if str(number) in item.corrections else item.run
            edits.append(Edit(_below(rows[number].path, str(base)), label, proposed_by=by))
    if is_inside:
        table = photographs_in(workspace.photographs)
        has_folder_class = {path for i, path in enumerate(table.paths) if table.name_of(i) not in ("", "unlabelled")}
        labelled = {edit.path for edit in workspace.label_file.read().edits} | has_folder_class
        edits = [edit for edit in edits if edit.path not in labelled or not edit.proposed_by]
        workspace.label_file.add(edits)
        file = workspace.labels
    else:
        file = label_file_of(root)
        add_edits(file, edits)
    return {"added": len(edits), "file": str(file), "inside": is_inside, "folder": str(root)}


def join_data(
    workspace: Workspace, stored: StoredPredictions, item: PredictionSet, numbers: Sequence[int]
) -> dict[str, Any]:
    """Create a folder with photographs of the studio and predicted ones of another folder, and describe it."""
    rows, labels = stored.rows(item), {}
    for number in numbers:
        check_number(number, len(rows))
        if label := stored.label(item, number):
            by = "" if str(number) in item.corrections else item.run
            labels[Path(_below(rows[number].path, item.folder)).as_posix()] = (label, by)
    if not labels:
        reason = "none of these photographs has a class: there is nothing to add"
        raise VitkitError("webapp.class-missing", reason)
    folder = _join(workspace, Path(item.folder), labels)
    return PhotoFolder(folder, folder.name, None).to_dict()


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
    last: list[str] = [""]  # the title of the folder that was predicted last

    @routes.get("")
    def show() -> dict[str, Any]:
        done = [
            {"number": item.number, "run": item.run, "title": item.title, "when": item.when} for item in stored.all()
        ]
        return {"models": workspace.model_names(), "done": done}

    @routes.post("")
    def start(request: PredictionRequest) -> dict[str, Any]:
        run = workspace.run_folder(request.run).name
        folder = chosen(request.folder, workspace.runs, workspace.photographs)
        if not work.is_running:
            last[0] = folder.title
            work.start("", lambda: stored.compute(run, folder.path, folder.title))
        return state()

    @routes.get("/state")
    def state() -> dict[str, Any]:
        return {**work.to_dict(), "title": last[0], "number": work.result("")}

    @routes.get("/{number}")
    def show_rows(number: int) -> dict[str, Any]:
        item = stored.get(number)
        rows = [[_below(row.path, item.folder), row.ranking, row.error, row.familiar] for row in stored.rows(item)]
        classes = sorted({label for row in stored.rows(item) for label, _ in row.ranking})
        about = {"classes": classes, "inside": _is_inside(workspace, item), **_model_of(workspace, item.run)}
        return {**asdict(item), "rows": rows, **about}

    @routes.get("/{number}/thumbnail/{row}")
    async def show_thumbnail(number: int, row: int, request: Request, large: bool = False) -> Response:
        rows = stored.rows(stored.get(number))
        check_number(row, len(rows))
        return await thumbnails.respond(Path(rows[row].path), request, large=large)

    thumbnails = Thumbnails()

    @routes.post("/{number}/correct")
    def correct(number: int, correction: Correction) -> dict[str, Any]:
        item = stored.get(number)
        for row in correction.numbers:
            check_number(row, len(stored.rows(item)))
        label = checked_name(correction.label) if correction.label else ""
        return {"corrections": stored.correct(number, correction.numbers, label)}

    @routes.post("/{number}/add")
    def add(number: int, addition: Addition) -> dict[str, Any]:
        return add_to_data(workspace, stored, stored.get(number), addition.numbers)

    @routes.post("/{number}/join")
    def make_folder_of_both(number: int, addition: Addition) -> dict[str, Any]:
        return join_data(workspace, stored, stored.get(number), addition.numbers)

    @routes.get("/{number}/table.csv")
    def send_csv(number: int, withhold: float = 0.0, unknown: float = 0.0) -> Response:
        item = stored.get(number)
        header, rows = table_of(stored, item, withhold, unknown)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header)
        for row in rows:
            writer.writerow(harmless(cell) if isinstance(cell, str) else cell for cell in row)
        content = text.getvalue().encode("utf-8", "surrogateescape")
        return Response(content, media_type="text/csv", headers=_attached("csv", item))

    @routes.get("/{number}/table.xlsx")
    def send_workbook(number: int, withhold: float = 0.0, unknown: float = 0.0) -> FileResponse:
        item = stored.get(number)
        header, rows = table_of(stored, item, withhold, unknown)
        check_rows(len(rows))
        folder = tempfile.TemporaryDirectory()
        file = Path(folder.name) / "predictions.xlsx"
        write_workbook(file, header, rows)
        return FileResponse(file, headers=_attached("xlsx", item), background=BackgroundTask(folder.cleanup))

    @routes.get("/{number}/sheet.html")
    def send_sheet(number: int, withhold: float = 0.0, unknown: float = 0.0) -> HTMLResponse:
        item = stored.get(number)
        return HTMLResponse(contact_sheet(stored, item, withhold, unknown), headers=_attached("html", item))

    return routes


def _attached(suffix: str, item: PredictionSet) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="predictions-{item.number}.{suffix}"'}


# --- Joining with the studio's photographs --------------------------------------------------------------------

# A new folder has the studio's photographs and others, and can be opened and trained on. It lies in `uploads`, next to
# the runs, and is hidden until it is complete. Photographs are hard links if the file system supports them, so that
# they take no further space; otherwise they are copies. The studio's photographs keep their relative paths, so that a
# training can keep the split of an earlier run. The label file of the new folder begins with the existing labels.


def _join(workspace: Workspace, others: Path, labels: Mapping[str, tuple[str, str]]) -> Path:
    """Create a folder with the studio's photographs and other photographs, write its label file, and return its path.

    `labels` has the photographs of `others` to add, by relative path: the class, and the run that proposed it or "".
    """
    photographs = workspace.photographs
    for folder in (photographs, others):
        if not folder.exists():
            raise VitkitError("webapp.folder-missing", f"{folder} is no longer there")
        if not folder.is_dir():
            reason = f"{folder.name} is an archive: unpack it to add photographs to its data"
            raise VitkitError("webapp.folder-invalid", reason)
    target = new_folder(workspace.runs, photographs.name, photographs)
    unfinished, file = target.with_name(f".{target.name}"), label_file_of(target)
    is_taken = file.exists()
    try:
        if is_taken:
            reason = f"{file} exists, and may belong to other photographs: rename it first"
            raise VitkitError("webapp.file-exists", reason)
        if has_no_folders(photographs):
            places = {path: f"{others.name}-{path}".replace("/", "-") for path in labels}
        else:  # in a subfolder of their own
            names = itertools.chain([others.name], (f"{others.name}-{number}" for number in itertools.count(2)))
            added = next(name for name in names if not (photographs / name).exists())
            places = {path: f"{added}/{path}" for path in labels}
        for path in images_below(photographs, Overlooked()):
            _link(photographs / path, unfinished / path)
        for path, place in places.items():
            _link(others / path, unfinished / place)
        if not set(places.values()) <= set(photographs_in(unfinished).paths):
            raise VitkitError(
                "webapp.folder-split",
                "the studio's photographs are divided into folders such as train and val, so others cannot be added: "
                "write only the label file of the others, or copy them into the folder of the training photographs",
            )
        last: dict[str, Edit] = {}
        for edit in workspace.label_file.read().edits:
            named = Path(edit.path)
            relative = named.relative_to(photographs).as_posix() if named.is_relative_to(photographs) else edit.path
            last[relative] = Edit(relative, edit.label, edit.previous, proposed_by=edit.proposed_by)
        edits = list(last.values())
        edits += [Edit(places[path], label, proposed_by=by) for path, (label, by) in labels.items()]
        file.parent.mkdir(parents=True, exist_ok=True)
        add_edits(file, edits)
        target.rmdir()
        unfinished.rename(target)
    except BaseException as error:
        for folder in (target, unfinished):
            shutil.rmtree(folder, ignore_errors=True)
        if not is_taken:
            file.unlink(missing_ok=True)
        if isinstance(error, OSError):
            reason = f"cannot write {target}: {error.strerror or error}"
            raise VitkitError("webapp.folder-unwritable", reason) from error
        raise
    return target


def _link(source: Path, target: Path) -> None:
    if not source.exists():
        raise VitkitError("webapp.photograph-missing", f"{source} is no longer there: predict the folder again")
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        reason = f"two photographs would be called {target.name}: rename one of them"
        raise VitkitError("webapp.photograph-repeated", reason)
    with suppress(OSError):  # another file system, or one without links
        os.link(source, target)
        return
    shutil.copy2(source, target)
