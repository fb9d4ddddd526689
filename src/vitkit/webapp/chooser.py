"""The page to choose what the studio opens, and the page with which phones send photographs.

The first page, the chooser, offers folders, runs and named data sets, and receives photographs. `Studio` is the
application that is served. It passes requests to the chooser, or to the application of the workspace that was chosen.

The link to the page for phones is shown as a QR code and contains a separate token. With this token, the guard of the
server opens only that page and its routes (`OPEN_TO_PHONES`). A phone that creates a folder receives a random key, and
can send photographs only to folders whose keys it has. Answers to phones contain no paths.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field

from vitkit.data.named import DATASETS
from vitkit.errors import VitkitError
from vitkit.system.environment import cache_folder, offline
from vitkit.webapp import folders
from vitkit.webapp.app import PAGE_HEADERS, STATIC, Tab, create_app, create_page
from vitkit.webapp.workspace import Workspace

_TABS = (Tab("choose", "Open", "Choose photographs, a run, or a data set."),)
_ROUTES, _PHONE = "/api/chooser", "/api/phone"
SENDING_PAGE = "/send"
OPEN_TO_PHONES = r"/send|/send/new|/send/[0-9a-f]{32}/files|/static/[\w./-]+"
_QUIET_ZONE = 4  # modules around a QR code, as ISO/IEC 18004 requires


class Choice(BaseModel):
    """What to open: a folder by its identifier, a run or a data set by its name."""

    kind: Literal["folder", "run", "named"]
    name: str = Field(max_length=300)


class Studio:
    """The studio of one workspace at a time, as an ASGI application.

    Args:
        workspace: the workspace to begin with; None to let the user choose.
        runs: the folder of runs.
        opened: a function that opens the workspace of a folder, a run or a named data set.
        phone_link: the address with which phones send photographs; None if they cannot reach the studio.
    """

    def __init__(
        self,
        workspace: Workspace | None,
        runs: Path,
        opened: Callable[[str | Path], Workspace],
        phone_link: str | None = None,
    ) -> None:
        self._runs, self._opened = runs, opened
        self._chooser = create_page(_TABS, {"name": "", "choosing": True}, is_chooser=True)
        self._chooser.include_router(folders.router(runs))
        self._chooser.include_router(_phone_router(phone_link))
        self._chooser.include_router(self._sending_router())
        self._chooser.include_router(self._router())
        self._show(workspace)

    def _show(self, workspace: Workspace | None) -> None:
        self._photographs = None if workspace is None else workspace.photographs
        self._studio: FastAPI | None = None if workspace is None else create_app(workspace, can_choose=True)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request to the chooser or to the application of the workspace."""
        is_of_chooser = str(scope.get("path", "")).startswith((_ROUTES, _PHONE, SENDING_PAGE))
        app = self._chooser if self._studio is None or is_of_chooser else self._studio
        await app(scope, receive, send)

    def _router(self) -> APIRouter:
        routes = APIRouter(prefix=_ROUTES)

        @routes.get("")
        def show() -> dict[str, Any]:
            names = Workspace(Path(), self._runs, Path()).run_names()
            choices = [folder.to_dict() for folder in folders.offered(self._runs)]
            return {"folders": choices, "runs": names, "named": _named()}

        @routes.post("/open")
        def open_(choice: Choice) -> dict[str, Any]:
            workspace = self._opened(self._source(choice))
            self._show(workspace)
            return {"name": workspace.name}

        @routes.post("/close")
        def close() -> dict[str, Any]:
            self._show(None)
            return {}

        return routes

    def _sending_router(self) -> APIRouter:
        """Return the routes with which phones send photographs. They stay valid when another workspace is opened."""
        routes = APIRouter(prefix=SENDING_PAGE)
        made: dict[str, Path] = {}  # folders by key; only the phone that created the folder has the key

        @routes.post("/new")
        def make(new: folders.NewFolder) -> dict[str, Any]:
            try:
                path = folders.new_folder(self._runs, new.name, self._photographs)
            except (VitkitError, OSError) as error:
                raise VitkitError("the studio cannot receive photographs: ask the person who started it") from error
            made[key := secrets.token_hex(16)] = path
            return {"id": key, "title": path.name}

        @routes.post("/{key}/files")
        async def add(key: str, name: str, request: Request, offset: int = 0, last: bool = True) -> dict[str, Any]:
            if key not in made:
                raise VitkitError("the studio was started again, or this is not your folder: scan the code again")
            target = folders.target_in(made[key], name)
            size = await folders.receive(target, request.stream(), offset, is_last=last)
            return {"name": target.name, "bytes": size}

        return routes

    def _source(self, choice: Choice) -> str | Path:
        if choice.kind == "folder":
            return folders.chosen(choice.name, self._runs).path
        if choice.kind == "run":
            return Workspace(Path(), self._runs, Path()).run_folder(choice.name)
        if choice.name not in {entry["name"] for entry in _named()}:
            raise VitkitError(f"there is no data set {choice.name!r}")
        return choice.name


def _named() -> list[dict[str, Any]]:
    """Return the named data sets that can be opened, with the size of the download that each needs."""
    rows = []
    for entry in DATASETS.values():
        is_here = not entry.megabytes or (cache_folder() / "data" / entry.name).is_dir()
        if is_here or offline() is None:
            rows.append({"name": entry.name, "megabytes": 0 if is_here else entry.megabytes})
    return sorted(rows, key=lambda row: (row["megabytes"], row["name"]))


def _phone_router(link: str | None) -> APIRouter:
    """Return the routes of the page for phones and of the QR code with its link.

    Args:
        link: the link to the page with the token; None if phones cannot reach the studio.
    """
    routes = APIRouter()

    @routes.get(_PHONE)
    def show_code() -> dict[str, Any]:
        return {} if link is None else {"link": link, "svg": _qr_code(link)}

    @routes.get(SENDING_PAGE)
    def sending_page() -> Response:
        return HTMLResponse((STATIC / "send.html").read_text(encoding="utf-8"), headers=PAGE_HEADERS)

    return routes


def _qr_code(text: str) -> str:
    """Return a QR code as SVG."""
    import segno

    code, svg = segno.make(text, error="m", micro=False), io.BytesIO()
    code.save(svg, kind="svg", xmldecl=False, scale=4, border=_QUIET_ZONE, dark="#000", light="#fff")
    return svg.getvalue().decode()
