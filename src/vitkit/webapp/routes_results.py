"""The Results tab: runs side by side, the views of a run's report, and its doubtful labels."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field

from vitkit.data.decode import UnreadableImageError
from vitkit.errors import VitkitError
from vitkit.system.run_files import REPORT
from vitkit.webapp import results
from vitkit.webapp.results import What
from vitkit.webapp.stamps import stamp_of
from vitkit.webapp.thumbnails import Thumbnails
from vitkit.webapp.workspace import Workspace


class Decision(BaseModel):
    """What is said of some doubtful labels.

    Attributes:
        version: of the list.
        numbers: in the list.
        what: the label is right, is another, or the photograph is to be left out.
        label: the other class; empty: the suggested one.
    """

    version: str = Field(max_length=100)
    numbers: list[int] = Field(max_length=10_000)
    what: What
    label: str = Field(default="", max_length=1000)


def router(workspace: Workspace) -> APIRouter:
    """The routes of the tab."""
    routes, thumbnails = APIRouter(prefix="/api/results"), Thumbnails()

    @routes.get("/runs")
    def show_runs() -> dict[str, Any]:
        return {"runs": results.summaries(workspace)}

    @routes.get("/runs/{name}")
    def show_run(name: str) -> dict[str, Any]:
        folder = workspace.run_folder(name)
        return {**results.data_of(folder), "version": stamp_of(folder / REPORT)}

    @routes.get("/runs/{name}/beside/{other}")
    def compare(name: str, other: str) -> dict[str, Any]:
        return results.agreement(workspace.run_folder(name), workspace.run_folder(other))

    @routes.get("/runs/{name}/report")
    def send_report(name: str) -> FileResponse:
        page = workspace.run_folder(name) / REPORT
        if not page.is_file():
            raise VitkitError(f"{name} has no report yet")
        return FileResponse(page, filename=f"{name}.html")

    @routes.get("/runs/{name}/photographs/{number}")
    async def show_photograph(name: str, number: int, request: Request, large: bool = False) -> Response:
        folder = workspace.run_folder(name)
        paths = results.data_of(folder)["images"]["path"]
        if not 0 <= number < len(paths):
            raise VitkitError("there is no such photograph")
        return await _picture(results.file_of(folder, paths[number]), request, large=large)

    @routes.get("/runs/{name}/suspects/{number}")
    async def show_suspect(name: str, number: int, request: Request, large: bool = False) -> Response:
        folder = workspace.run_folder(name)
        return await _picture(results.file_of(folder, results.suspect_path(folder, number)), request, large=large)

    @routes.get("/runs/{name}/suspects")
    def show_suspects(name: str) -> dict[str, Any]:
        return results.suspects_of(workspace, workspace.run_folder(name))

    @routes.post("/runs/{name}/suspects")
    def decide(name: str, said: Decision) -> dict[str, Any]:
        folder = workspace.run_folder(name)
        results.decide(workspace, folder, said.version, said.numbers, said.what, said.label)
        return results.suspects_of(workspace, folder)

    async def _picture(file: Any, request: Request, *, large: bool) -> Response:
        try:
            made = await (thumbnails.get_large(file) if large else thumbnails.get(file, request.is_disconnected))
        except UnreadableImageError as error:
            raise VitkitError(f"the photograph cannot be read: {error}") from error
        headers = {"Cache-Control": "private, max-age=600"}
        return Response(status_code=204) if made is None else Response(made, media_type="image/jpeg", headers=headers)

    return routes
