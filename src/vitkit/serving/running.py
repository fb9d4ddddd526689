"""A service behind its guard and uvicorn, in a thread."""

from __future__ import annotations

import asyncio
import socket
import threading

import uvicorn

from vitkit.serving.application import make_application
from vitkit.serving.connections import MOST_HEAD, Connection
from vitkit.serving.guard import Guard
from vitkit.serving.rules import Rules
from vitkit.serving.service import Service

_KEPT = 75  # seconds that a connection is kept without a request
_LAST = 20  # seconds in which what was accepted is answered when the server is stopped
_CONNECTIONS = 1000  # at most; fewer where fewer files may be open
_FILES = 100  # that are left for everything else
_STEP = 0.01  # seconds after which it is looked again whether the server has begun


class Running:
    """A service that can be reached, until it is stopped.

    Args:
        service: is closed with it.
        listener: a bound socket.
        rules: what is let through.
    """

    def __init__(self, service: Service, listener: socket.socket, rules: Rules) -> None:
        self._service, self._listener = service, listener
        self._server = uvicorn.Server(
            uvicorn.Config(
                Guard(make_application(service), rules, service.metrics.count_refusal),
                http=Connection,
                ws="none",
                lifespan="off",
                loop="asyncio",
                log_config=None,
                log_level="error",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=_KEPT,
                timeout_graceful_shutdown=_LAST,
                limit_concurrency=_most_connections(),
                h11_max_incomplete_event_size=MOST_HEAD,
            )
        )
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        while self.is_alive and not self._server.started:
            self._thread.join(_STEP)
        if self._failed is not None:
            self._service.close()
            raise self._failed

    @property
    def is_alive(self) -> bool:
        """Whether it can be reached still."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Take nothing more, answer what was accepted, and end."""
        self._service.begin_to_close()
        self._server.should_exit = True
        self._thread.join()
        self._service.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._server.serve([self._listener]))
        except BaseException as error:  # raised where it was started
            self._failed = error
        finally:
            self._listener.close()


def _most_connections() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return _CONNECTIONS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, min(_CONNECTIONS, files - _FILES)) if files != resource.RLIM_INFINITY else _CONNECTIONS
