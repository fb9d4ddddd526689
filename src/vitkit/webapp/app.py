"""The studio as an application: the page, its files, and the routes of each tab.

The tabs of the studio, a row each.

`vitkit.studio`: opens a workspace, serves it on this machine, and shows it in the browser.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from vitkit.errors import VitkitError, first_line
from vitkit.reporting import evaluation_report as views
from vitkit.serving.guard import Guard, is_loopback, new_token, rules_of
from vitkit.system.files import to_json
from vitkit.system.progress import Say
from vitkit.text.arguments import check_arguments
from vitkit.text.cells import visible
from vitkit.webapp.photographs import GoneError
from vitkit.webapp.workspace import Workspace, open_workspace

if TYPE_CHECKING:
    from fastapi import APIRouter

    from vitkit.webapp.workspace import Workspace


@dataclass(frozen=True)
class Tab:
    """One tab: its routes are in `NAME.py`, its page in `static/NAME.js`.

    Attributes:
        name: in addresses and file names.
        title: on the tab.
        about: what it is for, in one line.
    """

    name: str
    title: str
    about: str

    def router(self, workspace: Workspace) -> APIRouter:
        """What it answers."""
        make: Callable[[Workspace], APIRouter] = import_module(f"vitkit.webapp.{self.name}").router
        return make(workspace)

    def to_dict(self, static: Path) -> dict[str, Any]:
        """What the page is told of it; `static` is the folder of the page's files."""
        styled = (static / f"{self.name}.css").is_file()
        return {"name": self.name, "title": self.title, "about": self.about, "styled": styled}


TABS: tuple[Tab, ...] = (
    Tab("data", "Data", "See the photographs, say what they show, and find what is wrong with them."),
    Tab("train", "Train", "Teach a model the classes, and watch how it goes."),
    Tab("results", "Results", "See how good a model is, where it is wrong, and whose label may be."),
    Tab("look", "Look", "Bring any picture, and see what a model says of it and where it looks."),
    Tab("ship", "Ship", "Take a model along: its card, files for other programs, the command that serves it."),
)


STATIC = Path(__file__).parent / "static"
_CONTENT = (  # nothing from elsewhere, and no script but the studio's own files, whatever a name may hold
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


class Json(JSONResponse):
    """JSON that every reader takes, whatever bytes the names of files have (`system.files.to_json`)."""

    def render(self, content: Any) -> bytes:
        return to_json(content).encode()


class _Files(StaticFiles):
    """Files that the browser asks for anew, and is answered that they have not changed."""

    def file_response(self, *arguments: Any, **named: Any) -> Response:
        response = super().file_response(*arguments, **named)
        response.headers["Cache-Control"] = "no-cache"
        return response


def create_app(workspace: Workspace) -> FastAPI:
    """The application of one workspace."""
    app = FastAPI(title="vitkit studio", docs_url=None, redoc_url=None, openapi_url=None, default_response_class=Json)
    app.add_exception_handler(VitkitError, _refuse)
    app.add_exception_handler(GoneError, _refuse_gone)
    app.add_exception_handler(HTTPException, _refuse_http)
    app.add_exception_handler(RequestValidationError, _refuse_form)
    app.add_exception_handler(OSError, _refuse_system)
    app.add_exception_handler(Exception, _fail)

    @app.get("/")
    def page() -> FileResponse:
        headers = {"Cache-Control": "no-cache", "Content-Security-Policy": _CONTENT}
        return FileResponse(STATIC / "index.html", headers=headers)

    @app.get("/api/studio")
    def studio() -> dict[str, Any]:
        return {**workspace.to_dict(), "tabs": [tab.to_dict(STATIC) for tab in TABS]}

    for tab in TABS:
        app.include_router(tab.router(workspace))
    app.mount("/static/views", _Files(directory=views.FOLDER), name="views")  # as in reports
    app.mount("/static", _Files(directory=STATIC), name="static")
    return app


def _line(status: int, text: str) -> Response:
    return Json({"error": visible(text)}, status)


def _refuse(request: Request, error: Exception) -> Response:  # noqa: ARG001
    return _line(400, str(error))


def _refuse_gone(request: Request, error: Exception) -> Response:  # noqa: ARG001
    return _line(410, str(error))


def _refuse_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    nothing = f"there is nothing at {request.url.path}"
    return _line(error.status_code, nothing if error.status_code == 404 else str(error.detail))


def _refuse_form(request: Request, error: Exception) -> Response:  # noqa: ARG001
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return _line(422, f"{'.'.join(map(str, first['loc']))}: {first['msg']}")


def _refuse_system(request: Request, error: Exception) -> Response:  # noqa: ARG001
    assert isinstance(error, OSError)
    where = f"{error.filename}: " if error.filename else ""
    return _line(500, f"{where}{error.strerror or first_line(error)}")


def _fail(request: Request, error: Exception) -> Response:  # noqa: ARG001
    """What nobody has thought of: a line for the page; the server shows the traceback to who looks for the cause."""
    return _line(500, f"something went wrong in the studio ({type(error).__name__}: {first_line(error)})")


PORT = 8420  # and the next free one where it is taken
_TRIED = 20  # ports
_NEEDED = ("fastapi", "uvicorn", "multipart")


@check_arguments
def studio(
    source: str | Path | None = None,
    *,
    runs: str | Path | None = None,
    labels: str | Path | None = None,
    weights: Sequence[str] | None = None,
    host: str = "127.0.0.1",
    port: int | None = None,
    show: bool = True,
    say: Say = print,
) -> None:
    """Label, train, look and ship in a browser, on this machine; comes back when it is stopped (Ctrl-C).

    Photographs are only read. What you say of them goes to the label file at once; trainings are processes of their own
    and go on when the page, or the studio, is closed.

    Args:
        source: folder of photographs, or a run; by default the newest run in `runs`.
        runs: the folder of run folders; by default that of the run, else `runs`.
        labels: the label file; by default `labels/NAME.csv`, after the folder of photographs.
        weights: files of weights, or models, to begin trainings from, beside the known ones.
        host: the address to listen at; any but this machine's own (127.0.0.1) asks for the token in the link.
        port: by default 8420, or the next that is free.
        show: open the page in the browser.
        say: takes each line of what there is to tell.

    Raises:
        VitkitError: what the studio needs is not installed, there is no such folder, its own places would lie among the
            photographs, or the port is taken.
    """
    if any(importlib.util.find_spec(name) is None for name in _NEEDED):
        raise VitkitError("the studio needs a web server: pip install 'vitkit[studio]'")
    workspace = open_workspace(source, runs, labels, tuple(weights or ()))
    token = None if is_loopback(host) else new_token()
    with _listen(host, port) as listener:
        link = f"http://{_called(host)}:{listener.getsockname()[1]}/{f'?token={token}' if token else ''}"
        say(f"studio of {workspace.photographs}: {link}")
        say(f"labels: {workspace.labels}; runs: {workspace.runs}; Ctrl-C ends the studio, trainings go on")
        _serve(workspace, listener, host, token, link if show else None)


def _has_screen() -> bool:
    """Whether a browser would open in a window, and not in this terminal."""
    named = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in named)


def _called(host: str) -> str:
    """How a link names a host; of one that stands for all addresses, the machine."""
    if host in ("0.0.0.0", "::"):  # noqa: S104  # what the user has asked for
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _listen(host: str, port: int | None) -> socket.socket:
    """A socket at the port, or at the first that is free where none is asked for.

    Raises:
        VitkitError: there is no such address here, or the port is taken.
    """
    try:
        family = socket.getaddrinfo(host, port or PORT, type=socket.SOCK_STREAM)[0][0]
    except OSError as error:
        raise VitkitError(f"--host {host} is no address of this machine ({error.strerror})") from error
    for number in (port,) if port is not None else (*range(PORT, PORT + _TRIED), 0):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
            listener.listen()
        except OSError as error:
            listener.close()
            last = error
        else:
            return listener
    raise VitkitError(f"cannot listen at {host}, port {port}: {(last.strerror or str(last)).lower()}") from last


def _serve(workspace: Workspace, listener: socket.socket, host: str, token: str | None, link: str | None) -> None:
    import uvicorn

    from vitkit.serving.guard import MOST_HEAD, Connection

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if link is not None and _has_screen():
                threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()

    guarded = Guard(create_app(workspace), rules_of(host, token))
    config = uvicorn.Config(
        guarded,
        http=Connection,
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=2,
        h11_max_incomplete_event_size=MOST_HEAD,
    )
    Server(config).run([listener])
