"""The Live tab: record pictures of classes with the camera, and see a model's live predictions.

Recorded pictures are sent to the routes of `folders`, like photographs that are dropped on the page. Frames for live
predictions are not stored.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from vitkit.webapp.look import models_of, read_picture
from vitkit.webapp.workspace import Workspace


def router(workspace: Workspace) -> APIRouter:
    """Return the routes of the tab."""
    routes, models = APIRouter(prefix="/api/live"), models_of(workspace)

    @routes.post("/answer")
    async def answer(run: str, request: Request) -> dict[str, Any]:
        return await run_in_threadpool(models.classify_frame, run, await read_picture(request))

    return routes
