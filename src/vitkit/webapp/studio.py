"""`vitkit studio`: serve the studio of a workspace, or a page to choose a workspace, and open the browser."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import sys
import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from vitkit.errors import VitkitError
from vitkit.system import STUDIO_PORT, log
from vitkit.text import Between, check_arguments

if TYPE_CHECKING:
    from vitkit.serving import Rules
    from vitkit.webapp.app import Studio
    from vitkit.webapp.workspace import Workspace

EVERY_ADDRESS = "0.0.0.0"  # noqa: S104  # only if the user requests it
_PACKAGES = ("fastapi", "uvicorn", "multipart")


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
) -> None:
    """Label photographs and train models in a browser, on this machine.

    The studio requires pip install 'vitkit[studio]'.

    Photographs are only read, labels are saved at once, and trainings continue when the page or the studio is closed.

        import vitkit

        vitkit.studio("photos", show=False)  # returns when it is stopped (Ctrl-C)

    On the command line: `vitkit studio PHOTOS`.

    Args:
        source: a folder or archive of photographs, labelled or not, the name of a data set, or a run; by default, the
            page lets you choose.
        runs: the folder that contains run folders; by default the parent of the run, or the folder runs.
        labels: the label file; by default labels/NAME.csv, named after the folder of photographs.
        weights: a further model or file of weights to start trainings from; there may be several.
        host: the address to listen on. With any other address than 127.0.0.1, requests need the token in the link.
        port: the port; by default 8420, or the next free one.
        show: open the page in the browser.

    Raises:
        VitkitError: the packages of the studio are not installed, the folder does not exist, the folder of runs or the
            label file would lie among the photographs, or the port is taken.
    """
    if any(importlib.util.find_spec(name) is None for name in _PACKAGES):
        raise VitkitError("webapp.package-missing", "the studio needs a web server: pip install 'vitkit[studio]'")
    from vitkit.serving import is_loopback, new_token, rules_for_host
    from vitkit.webapp.app import Studio
    from vitkit.webapp.folders import MAX_BYTES
    from vitkit.webapp.workspace import open_workspace

    def open_chosen(chosen: str | Path) -> Workspace:
        # If `source` was given, `labels` is its label file, and not that of other photographs.
        has_labels = source is None or Path(chosen).absolute() == Path(source).absolute()
        return open_workspace(chosen, runs, labels if has_labels else None, tuple(weights or ()))

    workspace = None if source is None else open_chosen(source)
    runs_folder = Path("runs" if runs is None else runs).absolute() if workspace is None else workspace.runs
    token = None if is_loopback(host) else new_token()
    with _listener_at(host, port) as listener:
        name = f"[{host}]" if ":" in host else host
        if host in (EVERY_ADDRESS, "::"):
            name = socket.gethostname()
        query = "" if token is None else f"?token={token}"
        link = f"http://{name}:{listener.getsockname()[1]}/{query}"
        title, advice = "studio", "choose a folder in the page"
        if workspace is not None:
            title, advice = f"studio of {workspace.photographs}", f"labels: {workspace.labels}"
        log.info(f"{title}: {link}")
        log.info(f"{advice}; runs: {runs_folder}; Ctrl-C ends the studio, but not trainings")
        application = Studio(workspace, runs_folder, open_chosen)
        stored = re.compile(r"/api/folders/[^/]+/files")  # photographs and archives that are sent
        rules = rules_for_host(host, token, stored_paths=stored, max_stored_bytes=MAX_BYTES)
        _serve(application, listener, rules, link if show else None)


def _listener_at(host: str, port: int | None) -> socket.socket:
    """Return a socket that is bound to the port. If `port` is None, try 20 ports from 8420 on, then any free one."""
    from vitkit.serving import bound_socket

    numbers = [*range(STUDIO_PORT, STUDIO_PORT + 20), 0] if port is None else [port]
    for number in numbers:
        try:
            return bound_socket(host, number)
        except socket.gaierror as error:
            reason = f"--host {host} is not an address of this machine ({error.strerror})"
            raise VitkitError("webapp.host-invalid", reason) from error
        except OSError as error:
            last_error = error
    at_port = "" if port is None else f", port {port}"
    reason = (last_error.strerror or str(last_error)).lower()
    message = f"cannot listen at {host}{at_port}: {reason}; use another --host or --port"
    raise VitkitError("webapp.port-taken", message) from last_error


def _serve(application: Studio, listener: socket.socket, rules: Rules, link: str | None) -> None:
    import uvicorn

    from vitkit.serving import Guard, server_config

    names = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")  # without one, the browser would open in this terminal
    has_screen = sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in names)
    if link is not None and has_screen:
        listener.listen()  # so that the browser can connect before the server has started
        threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()
    config = server_config(Guard(application, rules), log_level="warning", timeout_graceful_shutdown=2)
    uvicorn.Server(config).run([listener])
