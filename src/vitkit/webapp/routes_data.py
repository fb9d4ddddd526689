"""The Data tab: photographs, their classes, what is wrong with them, and what is like what."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from vitkit.data.decode import UnreadableImageError
from vitkit.data.label_file import EXCLUDED
from vitkit.data.pictures import UNLABELLED
from vitkit.errors import VitkitError
from vitkit.system.files import to_json
from vitkit.webapp.background import Background
from vitkit.webapp.findings import diagnose, doubted, doubts_of, splits_of
from vitkit.webapp.likeness import Likeness
from vitkit.webapp.next_labels import next_labels
from vitkit.webapp.photographs import Photographs, State
from vitkit.webapp.thumbnails import Thumbnails
from vitkit.webapp.workspace import Workspace

_KEPT = "private, max-age=300"  # the address changes with the folder, the list and the files in it
_MANY = 1_000_000


class Said(BaseModel):
    """What is said of some photographs: a class; empty: leave them out; None: they have no class."""

    version: str = Field(max_length=64)
    images: list[int] = Field(max_length=_MANY)
    label: str | None = Field(max_length=1000)


class Renamed(BaseModel):
    """A class that is to be called otherwise."""

    old: str = Field(max_length=1000)
    new: str = Field(max_length=1000)


class Named(BaseModel):
    """A class."""

    name: str = Field(max_length=1000)


class Asked(BaseModel):
    """How many photographs are wanted."""

    count: int = Field(default=24, ge=1, le=1000)


def router(workspace: Workspace) -> APIRouter:
    """The routes of the tab."""
    routes, photographs = APIRouter(prefix="/api/data"), Photographs(workspace)
    photographs.begin()

    @routes.get("/all")
    def show_all(anew: bool = False) -> Response:
        state = photographs.read(anew=anew)
        splits, run = splits_of(workspace, state.table)
        doubts = {str(i): own for i, own in doubted(workspace, state.table).items()}
        notes = [state.table.layout, *state.table.overlooked] if state.table.layout else list(state.table.overlooked)
        own: dict[str, Any] = {
            "paths": state.table.paths,
            "splits": splits,
            "split_of": run,
            "doubts": doubts,
            "notes": notes,
        }
        own |= {"multi": state.table.is_multi, **_labels(photographs, state)}
        return Response(to_json(own), media_type="application/json")  # thousands of rows, as they are

    @routes.get("/labels")
    def show_labels() -> dict[str, Any]:
        return _labels(photographs, photographs.read())

    @routes.post("/labels")
    def label(said: Said) -> dict[str, Any]:
        text = UNLABELLED if said.label is None else said.label
        doubts = doubts_of(workspace, photographs.read().table)
        return _labels(photographs, photographs.label(said.version, said.images, text, doubts))

    @routes.post("/undo")
    def undo() -> dict[str, Any]:
        return _labels(photographs, photographs.undo())

    @routes.post("/redo")
    def redo() -> dict[str, Any]:
        return _labels(photographs, photographs.redo())

    @routes.post("/classes/add")
    def add_class(named: Named) -> dict[str, Any]:
        photographs.add_class(named.name)
        return _labels(photographs, photographs.read())

    @routes.post("/classes/remove")
    def remove_class(named: Named) -> dict[str, Any]:
        photographs.remove_class(named.name)
        return _labels(photographs, photographs.read())

    @routes.post("/classes/rename")
    def rename_class(renamed: Renamed) -> dict[str, Any]:
        return _labels(photographs, photographs.rename(renamed.old, renamed.new))

    _add_searches(routes, photographs, workspace)
    _add_pictures(routes, photographs)
    return routes


def _add_searches(routes: APIRouter, photographs: Photographs, workspace: Workspace) -> None:
    """What is found by looking at the photographs: what is wrong with them, what is alike, what to label next."""
    likeness, doctor = Likeness(workspace), Background[dict[str, Any]]()

    @routes.post("/check")
    def check() -> dict[str, Any]:
        state = photographs.read()
        doctor.start(state.version, lambda progress: diagnose(state, progress))
        return doctor.to_dict()

    @routes.get("/check")
    def checked() -> dict[str, Any]:
        return {**doctor.to_dict(), "found": doctor.result(photographs.read().version)}

    @routes.post("/look")
    def look() -> dict[str, Any]:
        table = photographs.read().table
        likeness.start(table)
        return likeness.to_dict(table)

    @routes.get("/look")
    def looked() -> dict[str, Any]:
        return likeness.to_dict(photographs.read().table)

    @routes.get("/alike/{number}")
    def alike(number: int) -> dict[str, Any]:
        state = photographs.read()
        _check(state, number)
        return {"version": state.version, "images": likeness.alike(state.table, number)}

    @routes.post("/next")
    def next_(asked: Asked) -> dict[str, Any]:
        state = photographs.read()
        return {"version": state.version, **next_labels(state, likeness.features(state.table), asked.count)}


def _add_pictures(routes: APIRouter, photographs: Photographs) -> None:
    thumbnails = Thumbnails()

    @routes.get("/thumbnail/{version}/{number}")
    async def thumbnail(version: str, number: int, request: Request) -> Response:
        file = photographs.file(version, number)
        try:
            made = await thumbnails.get(file, request.is_disconnected)
        except UnreadableImageError as error:
            return _unreadable(error)
        if made is None:
            return Response(status_code=204, headers={"Cache-Control": "no-store"})
        return Response(made, media_type="image/jpeg", headers={"Cache-Control": _KEPT})

    @routes.get("/picture/{version}/{number}")
    async def picture(version: str, number: int) -> Response:
        try:
            made = await thumbnails.get_large(photographs.file(version, number))
        except UnreadableImageError as error:
            return _unreadable(error)
        return Response(made, media_type="image/jpeg", headers={"Cache-Control": _KEPT})


def _unreadable(error: UnreadableImageError) -> Response:
    """No error of the studio's: the page shows that there is no picture, and the console stays clean."""
    drawn = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64"><rect width="64" height="64" fill="#9994"/>'
        '<path d="M20 20l24 24M44 20L20 44" stroke="#c44" stroke-width="4"/></svg>'
    )
    told = str(error).encode("ascii", "replace").decode().replace("\n", " ").replace("\r", " ")[:200]
    return Response(drawn, media_type="image/svg+xml", headers={"Cache-Control": "no-cache", "X-Unreadable": told})


def _check(state: State, number: int) -> None:
    if not 0 <= number < len(state.table):
        raise VitkitError("there is no such photograph")


def _labels(photographs: Photographs, state: State) -> dict[str, Any]:
    """Each photograph's class as a number in `classes`; -1: it has none, -2: it is left out."""
    classes = photographs.classes(state)
    if state.table.is_multi:
        names = sorted(set(state.labels) - {EXCLUDED, UNLABELLED})  # sets of classes, joined
    else:
        names = [own["name"] for own in classes]
    number = {UNLABELLED: -1, EXCLUDED: -2} | {name: i for i, name in enumerate(names)}
    said = photographs.workspace.said
    undo = {"can_undo": said.can_undo, "can_redo": said.can_redo}
    own = {"version": state.version, "classes": classes, "names": names}
    own |= {"unmatched": state.unmatched, "news": said.news()}
    return {**own, **undo, "labels": [number[label] for label in state.labels]}
