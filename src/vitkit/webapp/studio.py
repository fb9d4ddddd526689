"""`vitkit studio`: open a workspace, serve its web application (`webapp.app`) on this machine, and open the browser."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from vitkit.errors import VitkitError
from vitkit.system.progress import Say
from vitkit.text.arguments import check_arguments
from vitkit.text.fields import Between

if TYPE_CHECKING:
    from vitkit.webapp.workspace import Workspace

PORT = 8420  # and the next free one where it is taken
_TRIED = 20  # ports
_NEEDED = ("fastapi", "uvicorn", "multipart")


@check_arguments
def studio(
    source: Path | str | None = None,
    *,
    runs: Path | str | None = None,
    labels: Path | str | None = None,
    weights: Sequence[str] | None = None,
    host: str = "127.0.0.1",
    port: Annotated[int | None, Between(0, 65535)] = None,
    show: bool = True,
    say: Say = print,
) -> None:
    """Label, train, look and ship in a browser, on this machine. Needs: pip install 'vitkit[studio]'.

    Photographs are only read, labels are kept at once, and trainings go on when the page or the studio is closed.

    `vitkit.studio("photos")` comes back when it is stopped (Ctrl-C).

    On the command line: `vitkit studio PHOTOS`.

    Args:
        source: folder or archive of photographs, labelled or not, or a run; by default the newest run in `runs`.
        runs: the folder of run folders; by default that of the run, else runs.
        labels: the label file; by default labels/NAME.csv, after the folder of photographs.
        weights: a file of weights, or a model, to begin trainings from, beside the known ones; there may be several.
        host: the address to listen on. Any address but this machine's own (127.0.0.1) requires the link's token.
        port: the port; the default is 8420, or the next free one.
        show: open the page in the browser.
        say: takes each line of what there is to tell.

    Raises:
        VitkitError: what the studio needs is not installed, there is no such folder, its own places would lie among the
            photographs, or the port is taken.
    """
    if any(importlib.util.find_spec(name) is None for name in _NEEDED):
        raise VitkitError("the studio needs a web server: pip install 'vitkit[studio]'")
    from vitkit.serving.guard import is_loopback, new_token
    from vitkit.webapp.workspace import open_workspace

    workspace = open_workspace(source, runs, labels, tuple(weights or ()))
    token = None if is_loopback(host) else new_token()
    with _listen(host, port) as listener:
        link = f"http://{_called(host)}:{listener.getsockname()[1]}/{f'?token={token}' if token else ''}"
        say(f"studio of {workspace.photographs}: {link}")
        say(f"labels: {workspace.labels}; runs: {workspace.runs}; Ctrl-C ends the studio, trainings go on")
        _serve(workspace, listener, host, token, link if show else None)


def _has_screen() -> bool:
    """Return whether a browser would open in a window instead of in this terminal."""
    named = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in named)


def _called(host: str) -> str:
    """Return the host to use in a link; the machine's name if the host stands for all addresses."""
    if host in ("0.0.0.0", "::"):  # noqa: S104  # what the user has asked for
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _listen(host: str, port: int | None) -> socket.socket:
    """Return a socket at the port, or at the first free one if none was requested.

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

    from vitkit.serving.guard import MOST_HEAD, Connection, Guard, rules_of
    from vitkit.webapp.app import create_app

    class StudioServer(uvicorn.Server):
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
    StudioServer(config).run([listener])
