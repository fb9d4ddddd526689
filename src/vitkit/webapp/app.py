"""The web application of the studio: the page, its files, and the routes of each tab.

`Studio` is the application that is served (`webapp.studio`). If a workspace is open, it passes requests to the
application of this workspace, which `create_app` creates. Otherwise, it passes them to the chooser, which is the page
for choosing a workspace. The chooser offers folders, runs and named data sets, and receives photographs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from vitkit.data import DATASETS
from vitkit.errors import VitkitError, first_line
from vitkit.reporting import VIEWS_FOLDER
from vitkit.system import cache_folder, offline, to_json
from vitkit.text import LOOK, visible
from vitkit.webapp import folders
from vitkit.webapp.photographs import ChangedError
from vitkit.webapp.workspace import Workspace


@dataclass(frozen=True)
class Tab:
    """A tab of the studio. Its routes are in `NAME.py`, and its page is in `static/NAME.js`."""

    name: str  # the name in URLs and file names
    title: str  # the title on the tab
    about: str  # the purpose of the tab, in one line


TABS: tuple[Tab, ...] = (
    Tab("data", "Data", "See the photographs, say what they show, and find what is wrong with them."),
    Tab("train", "Train", "Teach a model the classes, and watch how it goes."),
    Tab("results", "Results", "See how good a model is, where it is wrong, and whose label may be."),
    Tab("look", "Look", "Bring any picture, and see what a model says of it and where it looks."),
    Tab("live", "Live", "Record pictures with the camera, and see a model's answers as they happen."),
    Tab("predict", "Predict", "Let a model classify a folder, correct what is wrong, and take the table along."),
    Tab("ship", "Ship", "Take a model along: its card, files for other programs, the command that serves it."),
)

_STATIC = Path(__file__).parent / "static"
_PAGE_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (  # only files of the studio, and no script in the text of a page
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
}


class _Json(JSONResponse):
    """A JSON response that every client can read, even if it contains file names that are not UTF-8 (`to_json`)."""

    def render(self, content: Any) -> bytes:
        return to_json(content).encode()


class _Files(StaticFiles):
    """Serve static files with headers that make the browser check for changes at every request."""

    def file_response(self, *arguments: Any, **named: Any) -> Response:
        response = super().file_response(*arguments, **named)
        response.headers["Cache-Control"] = "no-cache"
        return response


def create_app(workspace: Workspace, *, can_choose: bool = False) -> FastAPI:
    """Create the application of one workspace. `can_choose` offers to open another one, which requires `Studio`."""
    places = {name: str(getattr(workspace, name)) for name in ("name", "photographs", "runs", "labels", "first_run")}
    app = _create_page(TABS, {**places, "can_choose": can_choose})
    app.include_router(folders.router(workspace.runs, workspace.photographs))
    for tab in TABS:
        app.include_router(import_module(f"vitkit.webapp.{tab.name}").router(workspace))
    return app


def _create_page(tabs: Sequence[Tab], about: Mapping[str, Any], *, is_chooser: bool = False) -> FastAPI:
    """Create an application that serves the page and its files, without the routes of tabs.

    `about` are further fields in the answer of `/api/studio`. The chooser requests no photographs.
    """
    app = FastAPI(title="vitkit studio", docs_url=None, redoc_url=None, openapi_url=None, default_response_class=_Json)
    for kind in (VitkitError, HTTPException, RequestValidationError, OSError, Exception):
        app.add_exception_handler(kind, _error_response)

    @app.get("/")
    def page() -> Response:
        text = (_STATIC / "index.html").read_text(encoding="utf-8")
        if is_chooser:
            text = text.replace("<html", "<html data-chooser", 1)
        return HTMLResponse(text, headers=_PAGE_HEADERS)

    @app.get("/api/studio")
    def studio() -> dict[str, Any]:
        shown = [{**asdict(tab), "styled": (_STATIC / f"{tab.name}.css").is_file()} for tab in tabs]
        return {**about, "tabs": shown}

    app.mount("/static/views", _Files(directory=VIEWS_FOLDER), name="views")  # the views of reports
    app.mount("/static/look", _Files(directory=LOOK.parent), name="look")  # the styles of all pages of vitkit
    app.mount("/static", _Files(directory=_STATIC), name="static")
    return app


def _error_response(request: Request, error: Exception) -> Response:
    """Return a response to an exception, with a line for the page, an error code and an HTTP status."""
    if isinstance(error, VitkitError):
        status = 409 if isinstance(error, ChangedError) else 400
        code, reason = error.code, str(error)
    elif isinstance(error, HTTPException) and error.status_code == 404:
        status = 404
        code, reason = "webapp.route-missing", f"there is nothing at {request.url.path}"
    elif isinstance(error, HTTPException):
        status = error.status_code
        code, reason = "webapp.request-wrong", str(error.detail)
    elif isinstance(error, RequestValidationError):
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        status = 422
        code, reason = "webapp.field-invalid", f"{field}: {first['msg']}"
    elif isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        status = 500
        code, reason = "webapp.system-error", f"{where}{error.strerror or first_line(error)}"
    else:
        status = 500  # the server logs the traceback
        reason = f"something went wrong in the studio ({type(error).__name__}: {first_line(error)})"
        code = "webapp.internal-error"
    return _Json({"error": visible(reason), "code": code}, status)


# --- The choice of a workspace --------------------------------------------------------------------------------

_CHOOSER_TABS = (Tab("choose", "Open", "Choose photographs, a run, or a data set."),)
_ROUTES = "/api/chooser"


class _Choice(BaseModel):
    """A request to open a workspace: a folder by its identifier, or a run or data set by its name."""

    kind: Literal["folder", "run", "named"]
    name: str = Field(max_length=300)


class Studio:
    """The studio as an ASGI application. One workspace is open at a time; without one, the user chooses.

    `open_chosen` opens the workspace of a folder, a run or a named data set.
    """

    def __init__(self, workspace: Workspace | None, runs: Path, open_chosen: Callable[[str | Path], Workspace]) -> None:
        self._chooser = _create_page(_CHOOSER_TABS, {"name": "", "choosing": True}, is_chooser=True)
        self._chooser.include_router(folders.router(runs))
        routes = APIRouter(prefix=_ROUTES)
        without_photographs = Workspace(Path(), runs, Path())  # only to list the runs

        @routes.get("")
        def show() -> dict[str, Any]:
            choices = [folder.to_dict() for folder in folders.offered(runs)]
            return {"folders": choices, "runs": without_photographs.run_names(), "named": _named_datasets()}

        @routes.post("/open")
        def open_choice(choice: _Choice) -> dict[str, Any]:
            source: str | Path = choice.name
            if choice.kind == "folder":
                source = folders.find_folder(choice.name, runs).path
            elif choice.kind == "run":
                source = without_photographs.run_folder(choice.name)
            elif choice.name not in {entry["name"] for entry in _named_datasets()}:
                raise VitkitError("webapp.dataset-unknown", f"there is no data set {choice.name!r}")
            workspace = open_chosen(source)
            self._set_workspace(workspace)
            return {"name": workspace.name}

        @routes.post("/close")
        def close() -> dict[str, Any]:
            self._set_workspace(None)
            return {}

        self._chooser.include_router(routes)
        self._set_workspace(workspace)

    def _set_workspace(self, workspace: Workspace | None) -> None:
        self._studio: FastAPI | None = None if workspace is None else create_app(workspace, can_choose=True)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request to the chooser or to the application of the workspace."""
        is_for_chooser = str(scope.get("path", "")).startswith(_ROUTES)
        app = self._chooser if self._studio is None or is_for_chooser else self._studio
        await app(scope, receive, send)


def _named_datasets() -> list[dict[str, Any]]:
    """Return the named data sets that can be opened, with the megabytes that must be downloaded for each."""
    rows = []
    for entry in DATASETS.values():
        is_local = not entry.megabytes or (cache_folder() / "data" / entry.name).is_dir()
        if is_local or offline() is None:
            rows.append({"name": entry.name, "megabytes": 0 if is_local else entry.megabytes})
    return sorted(rows, key=lambda row: (row["megabytes"], row["name"]))
