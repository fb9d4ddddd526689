"""`vitkit.serve`: start a server that answers over HTTP, in threads of this process.

`serve` opens the models and the socket and returns a `Server`, which runs the service behind its guard with uvicorn.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

from vitkit.errors import VitkitError
from vitkit.system import Progress, silent
from vitkit.text import Between, Only, check_arguments, plural
from vitkit.verbs import Compute

if TYPE_CHECKING:
    from vitkit.classifier import Classifier
    from vitkit.serving.guard import Rules
    from vitkit.serving.service import Service

_TOKEN = re.compile(r"[A-Za-z0-9._~-]{16,512}")  # characters that headers, cookies and URLs transmit unchanged
_OPEN_PATHS = frozenset({"/health", "/ready"})  # for health checks, which have no token
_PACKAGES = ("fastapi", "uvicorn", "python_multipart", "prometheus_client", "swagger_ui_bundle")
_SHUTDOWN_SECONDS = 20  # to answer accepted requests when the server stops


@check_arguments
def serve(
    models: str | Path | Classifier | Sequence[str | Path | Classifier],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    allow_host: Sequence[str] = (),
    compute: Annotated[Compute, Only(("backend", "precision", "device", "batch_size"))] = Compute(),
    max_wait: float = 5.0,
    queue: Annotated[int, Between(1)] = 256,
    explain_queue: Annotated[int, Between(1)] = 4,
    max_values: Annotated[int, Between(1)] = 2_000_000,
    progress: Progress = silent,
) -> Server:
    """Answer other programs over HTTP: /predict, /explain, /embed, /models, /health, /ready, /metrics, /docs.

    Pictures that arrive at the same time are computed in one batch. After Ctrl-C or SIGTERM, the server answers the
    requests that it has accepted, then ends.

        import vitkit

        with vitkit.serve("runs/digits-1", port=0) as server:
            print(server.url, server.models)

    On the command line: `vitkit serve runs/digits-1`.

    Args:
        models: run or model folders, checkpoints, exported files, or published names; NAME=MODEL names a model.
            Classifiers in memory are accepted, too. Requests without a name are answered by the first model.
        host: the address to listen on. If other machines can reach it, a token is required; by default, a random one is
            created.
        port: the port to listen on; 0 chooses a free one.
        token: the secret that requests must send in the header `Authorization: Bearer`.
        allow_host: a further host name that requests may be addressed to, such as that of a proxy or a container. There
            may be several.
        compute: where and how the models compute, and the largest number of pictures in a batch.
        max_wait: the longest time in milliseconds that an idle core waits for further pictures to form a batch.
        queue: the maximum number of waiting pictures; requests beyond it are refused (503).
        explain_queue: the maximum number of pictures that wait for an explanation, which separate threads compute.
        max_values: the maximum number of values in an answer with features (pictures x patches x width); larger
            requests are refused (413).
        progress: called with the progress of loading.

    Returns:
        The server. It runs until `stop` is called or its `with` block ends; `wait` blocks until a signal arrives.

    Raises:
        VitkitError: a value is not allowed, a model cannot be loaded, the address is not available, or a package is
            missing.
    """
    if not 0 <= max_wait <= 10_000:
        raise VitkitError("serving.wait-invalid", f"--max-wait {max_wait} must be from 0 to 10000 milliseconds")
    sources: list[Any] = list(models) if isinstance(models, (list, tuple)) else [models]
    if not sources:
        raise VitkitError("serving.model-missing", "name a model to serve")
    missing = [package for package in _PACKAGES if find_spec(package) is None]
    if missing:
        reason = f"serving needs {', '.join(missing)}: pip install 'vitkit[serve]'"
        raise VitkitError("serving.package-missing", reason)
    from vitkit.serving.guard import bound_socket, is_loopback, new_token, rules_for_host
    from vitkit.serving.models import open_models
    from vitkit.serving.service import Service

    if token is None and not is_loopback(host):
        token = new_token()
    elif token is not None and not _TOKEN.fullmatch(token):
        reason = "--token must be 16 to 512 characters, each a letter, a digit or one of . _ ~ -"
        raise VitkitError("serving.token-invalid", reason)
    rules = rules_for_host(host, token, allow_host, open_paths=_OPEN_PATHS)
    if not 0 <= port <= 65535:
        raise VitkitError("serving.port-invalid", f"--port {port} must be from 0 to 65535")
    try:
        listener = bound_socket(host, port)
    except (socket.gaierror, UnicodeError) as error:
        reason = f"--host {host} is not an address of this machine: use 127.0.0.1, or 0.0.0.0 for all its addresses"
        raise VitkitError("serving.host-invalid", reason) from error
    except OSError as error:
        message = f"cannot listen at {host}, port {port} ({error.strerror}): choose another --port, 0 for any"
        raise VitkitError("serving.port-taken", message) from error
    try:
        service = Service(
            open_models(sources, compute),
            max_wait=max_wait / 1000,  # in seconds
            max_waiting=queue,
            max_explanations=explain_queue,
            max_values=max_values,
        )
        return Server(service, listener, rules)
    except BaseException:
        listener.close()
        raise


class Server:
    """Classifiers that answer over HTTP in threads of this process until they are stopped.

        import vitkit

        server = vitkit.serve("runs/digits-1")
        print(server.url)
        server.stop()

    Attributes:
        url: the address of the server.
        token: the secret that requests need; None if they need none.
        models: a line about each model.
    """

    def __init__(self, service: Service, listener: socket.socket, rules: Rules) -> None:
        import uvicorn

        from vitkit.serving.application import make_application
        from vitkit.serving.guard import Guard, server_config

        host, port = listener.getsockname()[:2]
        if ":" in host:  # an IPv6 address
            host = f"[{host}]"
        self.url = f"http://{host}:{port}"
        self.token = rules.token
        self._service = service
        self.models = tuple(
            f"{model.name} ({model.version}): {plural(len(model.classifier.classes), 'class', 'classes')}, "
            f"{model.classifier.computed}"
            for model in service.models.values()
        )
        self._listener = listener

        def count_refusal(status: int) -> None:
            service.metrics.requests.labels("refused", str(status)).inc()

        config = server_config(
            Guard(make_application(service), rules, count_refusal),
            loop="asyncio",
            log_config=None,
            log_level="error",
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,  # seconds to keep an idle connection
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        self._server = uvicorn.Server(config)
        self._start_error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        while self._thread.is_alive() and not self._server.started:
            self._thread.join(0.01)
        if self._start_error is not None:
            service.close()
            raise self._start_error

    def wait(self) -> None:
        """Wait for a signal to stop, then answer the accepted requests. A second signal stops at once.

        Raises:
            Interrupted: a signal arrived.
        """
        from vitkit.system import Deferral

        with Deferral() as deferral, self:
            while deferral.received is None and self._thread.is_alive():
                time.sleep(0.2)

    def stop(self) -> None:
        """Accept no more requests, answer the accepted ones, and end the server."""
        self._service.is_closing = True
        self._server.should_exit = True
        self._thread.join()
        self._service.close()

    def to_dict(self) -> dict[str, Any]:
        """Return the address, the token, and the entries of /models."""
        models = [model.to_dict() for model in self._service.models.values()]
        return {"url": self.url, "token": self.token, "models": models}

    def lines(self) -> list[str]:
        """Return lines with the address, the token and the models."""
        token = [] if self.token is None else [f"token: {self.token}"]
        return [f"serving at {self.url} (what can be asked: {self.url}/docs)", *token, *self.models]

    def __repr__(self) -> str:
        return f"<Server: {self.lines()[0]}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            asyncio.run(self._server.serve([self._listener]))
        except BaseException as error:  # the thread that started the server raises it
            self._start_error = error
        finally:
            self._listener.close()
