"""The Ship tab: a model's card, its exports with what their check found, and the command that serves it."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field

from vitkit.exporting.formats import FORMATS
from vitkit.webapp.background import Background
from vitkit.webapp.shipping import (
    CARD,
    export_file,
    exported,
    model_card,
    serve_command,
    shippable,
    write_export,
)
from vitkit.webapp.workspace import Workspace


class Wanted(BaseModel):
    """An export that is asked for."""

    run: str = Field(max_length=300)
    to: Literal[tuple(FORMATS)]  # type: ignore[valid-type]


def router(workspace: Workspace) -> APIRouter:
    """The routes of the tab."""
    routes = APIRouter(prefix="/api/ship")
    work: Background[dict[str, Any]] = Background()
    last: list[tuple[str, str]] = []  # what the last export was of

    @routes.get("/models")
    def show_models() -> dict[str, Any]:
        forms = [{"name": form.name, "runtime": form.runtime, "suffix": form.suffix} for form in FORMATS.values()]
        return {"models": shippable(workspace), "formats": forms}

    @routes.get("/model")
    def show_model(run: str) -> dict[str, Any]:
        card, command = model_card(workspace, run), serve_command(workspace, run)
        return {"run": run, "card": card, "command": command, "exports": exported(workspace, run)}

    @routes.post("/export")
    def start(wanted: Wanted) -> dict[str, Any]:
        if not work.is_running:
            last[:] = [(wanted.run, wanted.to)]
            work.start(last[0], lambda progress: write_export(workspace, wanted.run, wanted.to, progress))
        return _state()

    @routes.get("/export")
    def show_state() -> dict[str, Any]:
        return _state()

    def _state() -> dict[str, Any]:
        run, to = last[0] if last else ("", "")
        return {**work.to_dict(), "run": run, "to": to, "found": work.result(last[0]) if last else None}

    @routes.get("/file/{name}")
    def download(name: str) -> FileResponse:
        return FileResponse(export_file(workspace, name), filename=name, media_type="application/octet-stream")

    @routes.get("/card")
    def download_card(run: str) -> Response:
        disposition = f'attachment; filename="{CARD}"'
        text = model_card(workspace, run).encode("utf-8", "replace")
        return Response(text, media_type="text/markdown", headers={"Content-Disposition": disposition})

    return routes
