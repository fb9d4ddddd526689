"""The Look tab: what a model says of any picture, where it looks, and which photographs it finds alike."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from vitkit.errors import VitkitError
from vitkit.webapp.looking import Models
from vitkit.webapp.workspace import Workspace


def router(workspace: Workspace) -> APIRouter:
    """The routes of the tab. A picture comes as the body of each question, and is kept nowhere."""
    routes, models = APIRouter(prefix="/api/look"), Models(workspace)

    @routes.get("/models")
    def show_models() -> dict[str, Any]:
        return {"models": models.names()}

    @routes.post("/see")
    async def see(run: str, request: Request) -> dict[str, Any]:
        return await run_in_threadpool(models.see, run, await _picture(request))

    @routes.post("/map")
    async def show_map(run: str, method: str, request: Request, target: str = "top") -> dict[str, Any]:
        return await run_in_threadpool(models.map, run, await _picture(request), method, target)

    @routes.post("/patch")
    async def patch(run: str, row: int, column: int, request: Request) -> dict[str, Any]:
        return await run_in_threadpool(models.patch, run, await _picture(request), row, column)

    return routes


async def _picture(request: Request) -> bytes:
    content = await request.body()
    if not content:
        raise VitkitError("there is no picture: choose one, drop it here, or paste it")
    return content
