"""The HTTP routes of a server, as a FastAPI application.

Responses are JSON. In the OpenAPI schema, an example of each describes them; tests compare the examples with real
responses. The page at /docs loads all its files from this server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, RedirectResponse
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from swagger_ui_bundle import swagger_ui_path

import vitkit
from vitkit.serving.guard import RefusedBodyError
from vitkit.serving.questions import BadRequestError, Upload, merge_options, read_body
from vitkit.serving.service import OPTIONS, Service, openapi_request
from vitkit.system import read_json, to_json

_STATIC = Path(__file__).parent / "static"
_EXAMPLES = read_json(_STATIC / "examples.json")  # an example response of each route
_PICTURES = "Pictures"
_SERVER = "The server"
_TAGS = [
    {"name": _PICTURES, "description": "Send pictures, and get answers about them"},
    {"name": _SERVER, "description": "Which models there are, and how the server is"},
]
_LARGE_BODY = 2**20  # bytes; larger bodies are parsed in a thread, so that other requests need not wait
_FILES = {  # of the page at /docs
    **{name: swagger_ui_path / name for name in ("swagger-ui.css", "swagger-ui-bundle.js")},
    "docs.js": _STATIC / "docs.js",
}
_Handler = Callable[[Request], Awaitable[Response]]


def make_application(service: Service) -> FastAPI:
    """Create the application with the routes of a service."""
    app = FastAPI(title="vitkit", version=vitkit.__version__, docs_url=None, redoc_url=None, openapi_tags=_TAGS)
    app.openapi_version = "3.0.3"  # the version that the bundled page reads

    @app.exception_handler(HTTPException)
    async def answer_error(_: Request, error: HTTPException) -> Response:
        codes = {404: "serving.route-missing", 405: "serving.method-wrong"}
        code = codes.get(error.status_code, "serving.request-wrong")
        return _error_response(code, error.status_code, error.detail.lower(), error.headers)

    def example(name: str) -> dict[str, Any]:
        return {"content": {"application/json": {"example": _EXAMPLES[name]}}}

    routes = _Routes(service)
    for path, handler, summary in (
        ("/predict", routes.predict, "Classify pictures"),
        ("/explain", routes.explain, "Show which regions of a picture speak for a class"),
        ("/embed", routes.embed, "Compute the features of pictures"),
        ("/models", routes.models, "List the models"),
        ("/health", routes.health, "Check whether the server is running"),
        ("/ready", routes.ready, "Check whether the server accepts requests"),
        ("/metrics", routes.metrics, "Return the metrics for Prometheus"),
    ):
        responses: dict[int | str, dict[str, Any]] = {}
        if path in _EXAMPLES:  # metrics are text
            responses = {200: example(path), "4XX": example("4XX")}
        takes_pictures = path in OPTIONS
        app.add_api_route(
            path,
            _with_metrics(service, path, handler),
            methods=["POST" if takes_pictures else "GET"],
            operation_id=path[1:],
            response_model=None,  # the handlers return finished responses, which FastAPI must not validate again
            summary=summary,
            tags=[_PICTURES if takes_pictures else _SERVER],
            responses=responses,
            openapi_extra=openapi_request(path, _EXAMPLES["request"]) if takes_pictures else None,
        )

    @app.get("/", include_in_schema=False)
    async def redirect() -> RedirectResponse:
        return RedirectResponse("/docs")

    @app.get("/docs", include_in_schema=False)  # Swagger UI, whose default page would load files from another site
    async def send_page() -> FileResponse:
        return FileResponse(_STATIC / "docs.html")

    @app.get("/docs/{name}", include_in_schema=False)
    async def send_file(name: str) -> FileResponse:
        if name not in _FILES:
            raise HTTPException(404)
        return FileResponse(_FILES[name])

    return app


class _Routes:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def predict(self, request: Request) -> Response:
        uploads, options = await _read_request(self._service, request)
        answer = await self._service.predict(uploads, options)
        return _json_response(answer, _status_of(answer["predictions"]))

    async def embed(self, request: Request) -> Response:
        uploads, options = await _read_request(self._service, request)
        answer = await self._service.embed(uploads, options)
        return await asyncio.to_thread(_json_response, answer, _status_of(answer["embeddings"]))

    async def explain(self, request: Request) -> Response:
        uploads, options = await _read_request(self._service, request)
        return await asyncio.to_thread(_json_response, await self._service.explain(uploads, options))

    async def models(self, _: Request) -> Response:
        return _json_response({"models": [model.to_dict() for model in self._service.models.values()]})

    async def health(self, _: Request) -> Response:
        return _json_response({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        if self._service.is_closing:
            return _json_response({"status": "closing"}, 503)
        return _json_response({"status": "ready"})

    async def metrics(self, _: Request) -> Response:
        text = generate_latest(self._service.metrics.registry)
        return Response(text, headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})


def _status_of(rows: Sequence[Mapping[str, Any]]) -> int:
    # The request fails only if none of its pictures can be read.
    return 422 if all("error" in row for row in rows) else 200


async def _read_request(service: Service, request: Request) -> tuple[Sequence[Upload], dict[str, str]]:
    """Read the pictures and options of a request."""
    path = request.scope["path"]
    service.check_open(path)
    content_type = request.headers.get("content-type", "")
    body = await request.body()
    if len(body) > _LARGE_BODY:
        uploads, body_options = await asyncio.to_thread(read_body, content_type, body)
    else:
        uploads, body_options = read_body(content_type, body)
    return uploads, merge_options(request.scope["query_string"], body_options, OPTIONS[path])


def _with_metrics(service: Service, path: str, handler: _Handler) -> _Handler:
    """Wrap the handler of a route: errors become JSON responses, and requests are counted and timed."""
    seconds = service.metrics.seconds.labels(path)  # here, so that /metrics lists routes without requests, too

    async def wrapped(request: Request) -> Response:
        began = time.monotonic()
        try:
            response = await handler(request)
        except BadRequestError as error:
            response = _error_response(error.code, error.status, str(error))
        except ClientDisconnect:
            reason = "the connection was closed before the whole request arrived"
            response = _error_response("serving.request-incomplete", 400, reason)
        except RefusedBodyError:  # the guard answers and counts this request
            raise
        except Exception:
            logging.getLogger(__name__).exception("error: %s cannot be answered", path)
            response = _error_response("serving.internal-error", 500, "internal error: see the output of the server")
        if service.is_closing:
            response.headers["connection"] = "close"
        service.metrics.requests.labels(path, str(response.status_code)).inc()
        seconds.observe(time.monotonic() - began)
        return response

    return wrapped


def _error_response(code: str, status: int, reason: str, headers: Mapping[str, str] | None = None) -> Response:
    all_headers = dict(headers or {})
    if status == 503:
        all_headers["retry-after"] = "1"  # seconds
    return _json_response({"error": reason, "code": code}, status, all_headers)


def _json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(to_json(value).encode("utf-8", "replace"), status, headers, "application/json")
