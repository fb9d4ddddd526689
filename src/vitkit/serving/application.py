"""The HTTP routes of a server, as a FastAPI application.

Answers are JSON. Pydantic classes such as `PredictionsForm` describe the answers for the OpenAPI schema, and tests
compare the classes with real answers. The page at /docs loads all its files from this server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, RedirectResponse
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send
from swagger_ui_bundle import swagger_ui_path

import vitkit
from vitkit.serving.questions import BadRequestError, merge_options, read_body
from vitkit.serving.service import CONTENT_TYPE, OPTIONS, Embedded, Service, described
from vitkit.system import read_json, to_json
from vitkit.text import LOOK

_STATIC = Path(__file__).parent / "static"
_EXAMPLES = read_json(_STATIC / "examples.json")  # of answers, by route
_PICTURES, _SERVER = "Pictures", "The server"
_GROUPS = [
    {"name": _PICTURES, "description": "Send pictures, and get answers about them"},
    {"name": _SERVER, "description": "Which models there are, and how the server is"},
]
_LARGE = 2**20  # bytes of a body; larger ones are parsed in a thread
_Handle = Callable[[Request], Awaitable[Response]]


def make_application(service: Service) -> FastAPI:
    """Create the application with the routes of a service."""
    app = FastAPI(title="vitkit", version=vitkit.__version__, docs_url=None, redoc_url=None, openapi_tags=_GROUPS)
    app.openapi_version = "3.0.3"  # the version that the bundled page reads

    @app.exception_handler(HTTPException)
    async def refuse(_: Request, error: HTTPException) -> Response:
        codes = {404: "serving.route-missing", 405: "serving.method-wrong"}
        code = codes.get(error.status_code, "serving.request-wrong")
        return _refused(code, error.status_code, error.detail.lower(), error.headers)

    routes = _Routes(service)
    for path, handle, form, summary in (
        ("/predict", routes.predict, PredictionsForm, "Classify pictures"),
        ("/explain", routes.explain, ExplanationForm, "Show which regions of a picture speak for a class"),
        ("/embed", routes.embed, EmbeddingsForm, "Compute the features of pictures"),
        ("/models", routes.models, ModelsForm, "List the models"),
        ("/health", routes.health, StateForm, "Check whether the server is running"),
        ("/ready", routes.ready, StateForm, "Check whether the server accepts requests"),
        ("/metrics", routes.metrics, None, "Return the metrics for Prometheus"),
    ):
        responses: dict[int | str, dict[str, Any]] = {
            200: {"model": form, **_example(path)},
            "4XX": {"model": RefusedRequest, **_example("4XX")},
        }
        app.add_api_route(
            path,
            _counted(service, path, handle),
            methods=["POST" if path in OPTIONS else "GET"],
            operation_id=path[1:],
            response_model=None,
            summary=summary,
            tags=[_PICTURES if path in OPTIONS else _SERVER],
            responses=responses if form else None,
            openapi_extra=described(path, _EXAMPLES["request"]) if path in OPTIONS else None,
        )
    _add_pages(app)
    return app


def _example(name: str) -> dict[str, Any]:
    return {"content": {"application/json": {"example": _EXAMPLES[name]}}} if name in _EXAMPLES else {}


class _Routes:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def predict(self, request: Request) -> Response:
        answer = await self._service.predict(*await _question(self._service, request))
        return _json(answer, 422 if all("error" in row for row in answer["predictions"]) else 200)

    async def embed(self, request: Request) -> Response:
        return _Streamed(await self._service.embed(*await _question(self._service, request)))

    async def explain(self, request: Request) -> Response:
        uploads, options = await _question(self._service, request)
        form = options.get("format", "json")
        if form not in ("json", "png"):
            raise BadRequestError("serving.option-invalid", 400, f"format must be json or png, not {form!r:.80}")
        if form == "png":
            return Response(await self._service.draw(uploads, options), media_type="image/png")
        return await asyncio.to_thread(_json, await self._service.explain(uploads, options))

    async def models(self, _: Request) -> Response:
        return _json({"models": [model.to_dict() for model in self._service.models.models]})

    async def health(self, _: Request) -> Response:
        return _json({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        return _json({"status": "closing"}, 503) if self._service.is_closing else _json({"status": "ready"})

    async def metrics(self, _: Request) -> Response:
        return Response(self._service.metrics.text(), headers={"content-type": CONTENT_TYPE})


class _Streamed(StreamingResponse):
    """A JSON response that is sent picture by picture. Building the whole text would need ten times the memory."""

    def __init__(self, embedded: Embedded) -> None:
        status = 422 if all("error" in row for row in embedded.rows) else 200
        super().__init__(_pieces(embedded), status, media_type="application/json")
        self._sent = embedded.sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._sent()


def _pieces(embedded: Embedded) -> Iterator[bytes]:
    between = f'{to_json(embedded.about)[:-1]}, "embeddings": ['
    for row in embedded.rows:
        features = row["features"]
        plain = row if features is None else {**row, "features": features.tolist()}
        yield (between + to_json(plain)).encode("utf-8", "replace")
        between = ", "
    yield b"]}"


async def _question(service: Service, request: Request) -> tuple[Any, dict[str, str]]:
    """Read the pictures and options of a request."""
    service.check_open(request.scope["path"])
    body, kind = await request.body(), request.headers.get("content-type", "")
    if len(body) > _LARGE:
        uploads, beside = await asyncio.to_thread(read_body, kind, body)
    else:
        uploads, beside = read_body(kind, body)
    return uploads, merge_options(request.scope["query_string"], beside, OPTIONS[request.scope["path"]])


def _counted(service: Service, path: str, handle: _Handle) -> _Handle:
    """Wrap the function of a route, so that refused requests get a JSON answer, and requests are counted and timed."""
    seconds = service.metrics.seconds.labels(path)
    requests = service.metrics.requests

    async def counted(request: Request) -> Response:
        began = time.monotonic()
        try:
            response = await handle(request)
        except BadRequestError as error:
            response = _refused(error.code, error.status, str(error))
        except ClientDisconnect:
            reason = "the connection was closed before the whole request arrived"
            response = _refused("serving.request-incomplete", 400, reason)
        except Exception as error:
            if type(error).__module__ == "vitkit.serving.guard":
                raise
            logging.getLogger(__name__).exception("error: %s cannot be answered", path)
            response = _refused("serving.internal-error", 500, "internal error: see the output of the server")
        if service.is_closing:
            response.headers["connection"] = "close"
        requests.labels(path, str(response.status_code)).inc()
        seconds.observe(time.monotonic() - began)
        return response

    return counted


def _refused(code: str, status: int, reason: str, headers: Mapping[str, str] | None = None) -> Response:
    again = {"retry-after": "1"} if status == 503 else {}  # seconds
    return _json({"error": reason, "code": code}, status, {**(headers or {}), **again})


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = to_json(value).encode("utf-8", "replace")
    return Response(body, status, headers, "application/json")


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class RefusedRequest(_Form):
    """The answer to a request that was refused.

    `error` says what is wrong, and may be reworded. `code` names the reason, such as `serving.image-missing`, and stays
    the same.
    """

    error: str
    code: str


class Place(_Form):
    """A class with its probability."""

    label: str
    confidence: float


class PredictionForm(_Form):
    """The prediction for one picture, with the fields of `vitkit predict -o FILE.jsonl`."""

    path: str
    label: str | None
    confidence: float | None
    top: list[Place] = []
    rejected: str | None = None
    set: list[str] | None = None
    familiar: float | None = None
    error: str | None = None
    note: str | None = None


class PredictionsForm(_Form):
    """One prediction for each picture, in the order of the request."""

    model: str
    version: str
    predictions: list[PredictionForm]


class EmbeddingForm(_Form):
    """The features of one picture: one vector, or one vector per patch if the request was for `patches`."""

    path: str
    features: list[float] | list[list[float]] | None
    error: str | None = None


class EmbeddingsForm(_Form):
    """One row of features for each picture, in the order of the request."""

    model: str
    version: str
    what: str
    embeddings: list[EmbeddingForm]


class ExplanationForm(_Form):
    """The regions of a picture that speak for a class.

    `maps` has a grid for each method, with one value per patch. `box` is the part of the picture that the model saw:
    left, top, right and bottom in pixels. `heads` has a grid for each attention head of each layer in `layers`.
    """

    model: str
    version: str
    target: str
    probability: float
    top: list[Place]
    size: list[int]
    box: list[float]
    maps: dict[str, list[list[float]]]
    layers: list[int] = []
    heads: list[list[list[list[float]]]] | None = None


class ModelForm(_Form):
    """A model and the requests that it can answer."""

    name: str
    version: str
    classes: list[str]
    task: str
    backend: str
    precision: str
    image_size: list[int]
    batch: int
    answers: list[str]


class ModelsForm(_Form):
    """All models. The first one answers requests that do not name a model."""

    models: list[ModelForm]


class StateForm(_Form):
    """The state of the server."""

    status: str


_FILES = {
    **{name: swagger_ui_path / name for name in ("swagger-ui.css", "swagger-ui-bundle.js")},
    **{name: _STATIC / name for name in ("docs.css", "docs.js")},
    "dom.js": _STATIC.parents[1] / "reporting/static/dom.js",
    "look.css": LOOK,
}


def _add_pages(app: FastAPI) -> None:
    """Add the page at /docs: a form that classifies a picture, and the OpenAPI schema in the bundled Swagger UI."""

    async def page() -> Response:
        return FileResponse(_STATIC / "docs.html")

    async def file(name: str) -> Response:
        if name not in _FILES:
            raise HTTPException(404)
        return FileResponse(_FILES[name])

    async def root() -> Response:
        return RedirectResponse("/docs")

    pages: dict[str, Callable[..., Any]] = {"/": root, "/docs": page, "/docs/{name}": file}
    for path, handle in pages.items():
        app.add_api_route(path, handle, include_in_schema=False, response_model=None)
