"""The Ship tab: packages and files of a run's model, its card, and the command to serve it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field

from vitkit.errors import VitkitError
from vitkit.exporting import FORMATS, PACKAGES, RUNTIME_MEGABYTES, RUNTIME_URL, Format, PackageKind
from vitkit.model_folder import DESCRIPTION, WEIGHTS, version_of
from vitkit.reporting import model_card_text
from vitkit.text import markdown_blocks
from vitkit.webapp.likeness import Background
from vitkit.webapp.photographs import stamp_of
from vitkit.webapp.results import figures_in
from vitkit.webapp.workspace import Workspace
from vitkit.weights import cache_path

EXPORTS = "exports"  # below the folder of runs
CARD = "MODEL_CARD.md"
_KINDS: dict[str, Format | PackageKind] = {**PACKAGES, **FORMATS}


def write_export(workspace: Workspace, run: str, to: str) -> dict[str, Any]:
    """Export a run's model to a format, and compare the file with the model; return what was measured."""
    import vitkit

    folder = _folder(workspace, run)
    if to not in _KINDS:
        raise VitkitError("webapp.format-unknown", f"{to!r} is none of {', '.join(_KINDS)}")
    kind = _KINDS[to]
    file = workspace.runs / EXPORTS / f"{run}{kind.suffix}"
    file.parent.mkdir(parents=True, exist_ok=True)
    result = vitkit.export(folder, to, file, force=True)
    outcome, lines = result.outcome, result.lines()[:-1]
    speeds = dict(outcome.images_per_s)
    speed_of_file = speeds.pop("file", None)  # the others are speeds of the model
    if isinstance(kind, PackageKind) and kind.needs_runtime:  # browsers compute the page, and that was not timed
        speed_of_file = None
        lines = [line for line in lines if "images per second" not in line]
    return {
        # From "60 val images of digits (…)", the page shows "60 validation images".
        "compared_on": re.split(r" of | \(", result.compared_on)[0].replace(" val ", " validation "),
        "agreement": outcome.comparison.agreement,
        "lost": None if outcome.accuracy is None else outcome.accuracy.loss,
        "per_second": speed_of_file,
        "model_per_second": max(speeds.values(), default=None),
        "lines": lines,
    }


def exported(workspace: Workspace, run: str) -> list[dict[str, Any]]:
    """Return the exports of a run that exist: the formats, and the names and sizes of their files."""
    exports = []
    for kind in _KINDS.values():
        main_file = workspace.runs / EXPORTS / f"{run}{kind.suffix}"
        files = [main_file] if isinstance(kind, PackageKind) else list(kind.written_files(main_file))
        if all(file.is_file() for file in files):
            listed = [{"name": file.name, "bytes": file.stat().st_size} for file in files]
            exports.append({"to": kind.name, "files": listed})
    return exports


def card_of(workspace: Workspace, run: str) -> str:
    """Return the model card of a run's model, in Markdown."""
    from vitkit.weights import inspect

    folder = _folder(workspace, run)
    model = inspect(folder)  # raises if the model folder is damaged
    return model_card_text(run, model, version_of(folder), folder)


def _folder(workspace: Workspace, run: str) -> Path:
    if run not in workspace.classifier_names():
        raise VitkitError("webapp.run-unknown", f"there is no run {run!r} with a model")
    return workspace.runs / run


class Wanted(BaseModel):
    """A request for an export."""

    run: str = Field(max_length=300)
    to: Literal[tuple(_KINDS)]  # type: ignore[valid-type]


def router(workspace: Workspace) -> APIRouter:
    """Return the routes of the tab."""
    routes = APIRouter(prefix="/api/ship")
    work: Background[dict[str, Any]] = Background()
    last: tuple[str, str] = ("", "")  # run and format of the last export
    measured: dict[tuple[str, ...], dict[str, Any]] = {}  # by this studio, see `key_of`

    def key_of(run: str, to: str) -> tuple[str, ...]:
        """Return the run, the format, and what changes with the model."""
        return run, to, *(stamp_of(_folder(workspace, run) / name) for name in (WEIGHTS, DESCRIPTION))

    @routes.get("/models")
    def show_models() -> dict[str, Any]:
        formats: list[dict[str, Any]] = []
        for kind in _KINDS.values():
            if isinstance(kind, PackageKind):
                must_download = kind.needs_runtime and not cache_path(RUNTIME_URL).is_file()
                megabytes = RUNTIME_MEGABYTES if must_download else 0
                about = {"title": kind.title, "is_package": True, "megabytes": megabytes}
            else:
                about = {"title": kind.runtime, "is_package": False, "megabytes": 0}
            formats.append({"name": kind.name, **about})
        return {"models": workspace.classifier_names(), "formats": formats}

    @routes.get("/model")
    def show_model(run: str) -> dict[str, Any]:
        folder = _folder(workspace, run)
        return {
            "run": run,
            "card": markdown_blocks(card_of(workspace, run)),
            "command": shlex.join(["vitkit", "serve", str(folder)]),
            "model": {"bytes": (folder / WEIGHTS).stat().st_size, **figures_in(folder)},
            "exports": [
                {**export, "measured": measured.get(key_of(run, export["to"]))} for export in exported(workspace, run)
            ],
        }

    @routes.post("/export")
    def start(wanted: Wanted) -> dict[str, Any]:
        nonlocal last
        if not work.is_running:
            last = wanted.run, wanted.to

            def export() -> dict[str, Any]:
                key = key_of(wanted.run, wanted.to)
                measured[key] = write_export(workspace, wanted.run, wanted.to)
                return measured[key]

            work.start(last, export)
        return show_state()

    @routes.get("/export")
    def show_state() -> dict[str, Any]:
        return {**work.to_dict(), "run": last[0], "to": last[1], "found": work.result(last)}

    @routes.get("/file/{name}")
    def download(name: str) -> FileResponse:
        exports = [export for run in workspace.classifier_names() for export in exported(workspace, run)]
        if name not in {file["name"] for export in exports for file in export["files"]}:
            raise VitkitError("webapp.file-unknown", f"there is no exported file {name!r}")
        return FileResponse(workspace.runs / EXPORTS / name, filename=name, media_type="application/octet-stream")

    @routes.get("/card")
    def download_card(run: str) -> Response:
        disposition = f'attachment; filename="{CARD}"'
        text = card_of(workspace, run).encode("utf-8", "replace")
        return Response(text, media_type="text/markdown", headers={"Content-Disposition": disposition})

    return routes
