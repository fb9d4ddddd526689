"""Protect a local server from pages of other sites, other machines, and large or slow requests.

`Guard` is an ASGI application that wraps another one. A page of another site can make the user's browser send requests
to 127.0.0.1. Another site can also make its own domain name resolve to 127.0.0.1 (DNS rebinding). Therefore a request
must be addressed to one of the server's names (Host). A request that changes something must not come from another site
(Sec-Fetch-Site, Origin). Requests from other machines need the token.

The guard limits the size and the duration of a body while the body arrives. uvicorn limits the number of connections.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

import uvicorn

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
_Application = Callable[[Any, Receive, Send], Awaitable[None]]

_SAFE_METHODS = ("GET", "HEAD")
_MIN_BYTES_PER_SECOND = 64 * 2**10  # each such amount that arrives extends the time limit of a body by a second
_LINGER = 2.0  # seconds to receive a refused body: closing earlier would lose the answer
_DEFAULT_HEADERS = {  # added to every answer that does not set them
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"content-security-policy": (
        b"default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; object-src 'none'; "
        b"base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
}


@dataclass(frozen=True)
class Rules:
    """The requests that a server accepts."""

    names: frozenset[str]  # host names, without ports, to which requests may be addressed
    # Whether requests may also be addressed to any IP address. This is safe, because DNS rebinding requires a name.
    any_address: bool = False
    # The secret that each request needs; None if requests need none. It is sent in the header `Authorization: Bearer`
    # or in a cookie. The browser receives the cookie when it opens a page with `?token=`.
    token: str | None = field(default=None, repr=False)
    # Paths that are answered without the token and under any host name, since they reveal nothing
    open_paths: frozenset[str] = frozenset()
    max_bytes: int = 64 * 2**20  # the maximum size of a body
    # A pattern of paths whose bodies are written to disk as they arrive, and may be larger
    stored_paths: re.Pattern[str] | None = None
    max_stored_bytes: int = 0
    max_total_bytes: int = 512 * 2**20  # of all other bodies that are being read or answered at a time
    seconds: float = 20.0  # the time limit for a body; the limit is extended while a large body arrives steadily

    def is_stored(self, path: str) -> bool:
        """Return whether the bodies of requests to a path are written to disk as they arrive."""
        return self.stored_paths is not None and self.stored_paths.fullmatch(path) is not None

    def limit(self, path: str) -> int:
        """Return the maximum size of the body of a request to a path."""
        return self.max_stored_bytes if self.is_stored(path) else self.max_bytes


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address, but does not listen for connections yet.

    Raises:
        OSError: the host is not an address of this machine (`socket.gaierror`), or the port is taken.
    """
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses.sort(key=lambda entry: entry[0] != socket.AF_INET)  # IPv4 if possible
    family, kind, protocol, _, address = addresses[0]
    listener = socket.socket(family, kind, protocol)
    try:
        claim_port(listener)
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener


def claim_port(listener: socket.socket) -> None:
    """Prevent other servers from listening on the port of a socket.

    The socket can use the port immediately after another server has released it. Windows needs a different option,
    because SO_REUSEADDR lets two servers listen on the same port there.
    """
    from vitkit.system import IS_WINDOWS

    if IS_WINDOWS:
        listener.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR), 1)
    else:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def is_loopback(host: str) -> bool:
    """Return whether a server at this host can be reached only from this machine."""
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host.lower() == "localhost"


def rules_for_host(host: str, token: str | None, other_names: Iterable[str] = (), **others: Any) -> Rules:
    """Return the rules for a server at a host. If other machines can reach the host, a token is required.

    `other_names` are further names of the server, such as those that proxies and containers use; `others` are fields of
    `Rules`.
    """
    names = {"localhost", "127.0.0.1", "::1", *(name.lower() for name in other_names)}
    if is_loopback(host):
        return Rules(frozenset(names | {host.lower().strip("[]")}), token=token, **others)
    assert token, "others can reach it"
    machine = socket.gethostname().lower()
    short_name = machine.partition(".")[0]
    names |= {machine, short_name, f"{short_name}.local", host.lower()}
    return Rules(frozenset(names), any_address=True, token=token, **others)


def new_token() -> str:
    """Return a random token."""
    return secrets.token_urlsafe(32)


def server_config(application: Guard, **options: Any) -> uvicorn.Config:
    """Return the configuration of a server of a guarded application; `options` are further ones of uvicorn."""
    return uvicorn.Config(
        application,
        http="h11",
        ws="none",
        lifespan="off",
        access_log=False,
        limit_concurrency=1000,  # further connections are answered with 503
        h11_max_incomplete_event_size=16 * 2**10,  # bytes of the head of a request
        **options,
    )


class Guard:
    """An ASGI application that passes accepted requests to another application.

    Refusals are JSON: `{"error": MESSAGE, "code": CODE}`.

    Args:
        application: receives the accepted requests.
        rules: the requests to accept.
        count: called with the status of each refusal.

    Attributes:
        cookie: the name of the cookie that stores the token.
    """

    def __init__(self, application: _Application, rules: Rules, count: Callable[[int], None] = lambda _: None) -> None:
        self._application = application
        self._count = count
        self.rules = rules
        self.total_bytes = 0  # of all bodies that are being read or answered
        self._token = (rules.token or "").encode()
        # A name for each token, because the servers at all ports of a host share their cookies.
        self.cookie = f"vitkit-{hashlib.sha256(self._token).hexdigest()[:8]}"

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:  # repeated headers are joined, so that a check sees all of them
            key = name.decode("latin-1").lower()
            text = value.decode("latin-1")
            headers[key] = f"{headers[key]}; {text}" if key in headers else text
        redirection = self._token_redirection(scope, headers)
        if redirection is not None:
            await _reply(send, 303, {"error": "the token is kept in a cookie"}, redirection)
            return
        refusal = self._check_head(scope, headers)
        if refusal is not None:
            self._count(refusal.status)
            await _refuse(refusal, headers, receive, send)
            return
        body = _Body(self, receive, scope["path"])
        has_started = False  # whether the answer of the application has

        async def send_with_headers(message: Message) -> None:
            nonlocal has_started
            if not has_started and body.refusal is not None:
                return  # this is the application's answer to `RefusedBodyError`; the refusal is sent instead
            if message["type"] == "http.response.start":
                has_started = True
                message = {**message, "headers": _with_default_headers(message.get("headers", ()))}
            await send(message)

        try:
            await self._application(scope, body.receive, send_with_headers)
        except Exception:
            if body.refusal is None:
                raise
        finally:
            self.total_bytes -= body.in_memory
        if body.refusal is not None:
            self._count(body.refusal.status)
            if not has_started:
                await _refuse(body.refusal, headers, receive, send)

    # --- Origin and token -------------------------------------------------------------------------------

    def _check_head(self, scope: MutableMapping[str, Any], headers: dict[str, str]) -> _Refusal | None:
        """Check the head of a request, and return the reason to refuse it; None if it is accepted."""
        length = headers.get("content-length", "0")
        limit = self.rules.limit(scope["path"])
        if length.isdecimal() and int(length) > limit:
            return _too_large(limit)
        if "content-length" in headers and "transfer-encoding" in headers:  # a proxy may have read another length
            reason = "a request may have content-length or transfer-encoding, not both"
            return _Refusal("serving.length-ambiguous", 400, reason)
        if scope["path"] in self.rules.open_paths and scope["method"] in _SAFE_METHODS:
            return None
        if not self._is_own_host(headers.get("host")):
            name = f"{headers.get('host') or 'nothing'!r:.100}"
            reason = f"this server is not called {name}: add a name with vitkit serve --allow-host NAME"
            return _Refusal("serving.host-unknown", 421, reason)
        if _is_cross_site(scope["method"], headers):
            return _Refusal("serving.origin-foreign", 403, "requests from pages of other sites are refused")
        if self.rules.token is not None and not self._has_token(headers):
            reason = "a token is needed: in the header Authorization: Bearer TOKEN"
            return _Refusal("serving.token-missing", 401, reason)
        return None

    def _is_own_host(self, host: str | None) -> bool:
        """Return whether a Host header has one of the server's names, or an accepted IP address, and any port."""
        name = _host_name(host or "")
        if name in self.rules.names:
            return True
        if not self.rules.any_address:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _has_token(self, headers: dict[str, str]) -> bool:
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._matches(token.strip()):
            return True
        with suppress(CookieError):
            morsel = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
            return morsel is not None and self._matches(morsel.value)
        return False

    def _matches(self, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", "surrogateescape"), self._token)

    def _token_redirection(
        self, scope: MutableMapping[str, Any], headers: dict[str, str]
    ) -> list[tuple[bytes, bytes]] | None:
        """Return the headers of a redirection if a page is opened with the right `?token=`; otherwise None.

        The redirection sets the cookie and removes the token from the URL.
        """
        if self.rules.token is None or scope["method"] not in _SAFE_METHODS:
            return None
        if b"token=" not in scope["query_string"]:
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        has_token = any(name == "token" and self._matches(value) for name, value in query)
        if not has_token or not self._is_own_host(headers.get("host")):
            return None
        location = "/" + scope.get("raw_path", scope["path"].encode()).decode("latin-1").lstrip("/\\")  # //x is a host
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        if rest:
            location += f"?{rest}"
        cookie = f"{self.cookie}={self.rules.token}; Path=/; HttpOnly; SameSite=Lax"
        return [(b"location", location.encode("latin-1")), (b"set-cookie", cookie.encode())]


def _host_name(host: str) -> str:
    """Return the name in a Host header, without its port; empty if the header is malformed."""
    if host.startswith("["):  # an IPv6 address
        name, closing, port = host[1:].partition("]")
        if not closing or (port and not port.startswith(":")):
            return ""
        return name.lower()
    name, _, port = host.partition(":")
    if port and not port.isdecimal():
        return ""
    return name.lower().removesuffix(".")


def _too_large(limit: int) -> _Refusal:
    return _Refusal("serving.request-large", 413, f"a request may have {limit / 2**20:.4g} MiB at most")


class RefusedBodyError(Exception):
    """Raised when an application reads a body after the guard has refused the body."""


@dataclass(frozen=True)
class _Refusal:
    code: str
    status: int
    reason: str


class _Body:
    """The body of a request. Size and duration are checked while the application reads the body."""

    def __init__(self, guard: Guard, receive: Receive, path: str) -> None:
        self._guard = guard
        self._receive = receive
        self._path = path
        self._began = asyncio.get_running_loop().time()
        self._is_complete = False
        self.size = 0  # bytes received
        self.in_memory = 0  # those of them that are not stored
        self.refusal: _Refusal | None = None

    async def receive(self) -> Message:
        if self.refusal is not None:
            raise RefusedBodyError
        if self._is_complete:  # the next message tells that the client has disconnected
            return await self._receive()
        rules = self._guard.rules
        try:
            async with asyncio.timeout_at(self._began + rules.seconds + self.size / _MIN_BYTES_PER_SECOND):
                message = await self._receive()
        except TimeoutError:
            reason = f"the request did not come within {rules.seconds:g} seconds"
            self.refusal = _Refusal("serving.request-slow", 408, reason)
            raise RefusedBodyError from None
        if message["type"] == "http.request":
            received = len(message.get("body", b""))
            self.size += received
            if not rules.is_stored(self._path):
                self.in_memory += received
                self._guard.total_bytes += received
            limit = rules.limit(self._path)
            if self.size > limit:
                self.refusal = _too_large(limit)
            elif self._guard.total_bytes > rules.max_total_bytes:
                reason = "too much data is being received: try again later"
                self.refusal = _Refusal("serving.server-busy", 503, reason)
            self._is_complete = not message.get("more_body", False)
        if self.refusal is not None:
            raise RefusedBodyError
        return message


def _is_cross_site(method: str, headers: dict[str, str]) -> bool:
    """Return whether the browser reports that a request comes from a page of another origin.

    A link on another site to a page of this server is allowed: for such a request, the result is False.
    """
    site = headers.get("sec-fetch-site", "none")
    if site not in ("same-origin", "none"):
        return method not in _SAFE_METHODS or headers.get("sec-fetch-mode") != "navigate"
    origin = headers.get("origin")
    if method in _SAFE_METHODS or origin is None:
        return False
    host = headers.get("host", "").lower()
    return origin.lower() not in (f"http://{host}", f"https://{host}")


def _with_default_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    given = list(headers)
    names = {name.lower() for name, _ in given}
    return given + [(name, value) for name, value in _DEFAULT_HEADERS.items() if name not in names]


async def _reply(send: Send, status: int, answer: dict[str, str], extra: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Send a JSON answer.

    If the status is an error (400 or higher), the caller must end the answer later by sending an empty part of the
    body. The client receives the whole text at once, but the connection stays open until the answer ends.
    """
    body = json.dumps(answer).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *extra]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 503:
        headers.append((b"retry-after", b"2"))
    await send({"type": "http.response.start", "status": status, "headers": _with_default_headers(headers)})
    await send({"type": "http.response.body", "body": body, "more_body": status >= 400})


async def _refuse(refusal: _Refusal, headers: dict[str, str], receive: Receive, send: Send) -> None:
    """Refuse a request, and go on receiving its body for a short time.

    This is necessary because many clients read the answer only after they have sent the whole body.
    """
    answer = {"error": refusal.reason, "code": refusal.code}
    await _reply(send, refusal.status, answer, [(b"connection", b"close")])
    if "expect" not in headers and refusal.status != 408:  # otherwise the client waits, or is too slow
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER):
                while (await receive()).get("more_body", False):
                    pass
    await send({"type": "http.response.body", "body": b""})
