"""The description of a server's routes for people: a page whose every part comes from this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse
from starlette.exceptions import HTTPException
from swagger_ui_bundle import swagger_ui_path

_FILES = ("swagger-ui.css", "swagger-ui-bundle.js")
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>vitkit: what this server answers</title><link rel="icon" href="data:,">
<link rel="stylesheet" href="/docs/swagger-ui.css"></head>
<body><main id="page"></main><script src="/docs/swagger-ui-bundle.js"></script><script src="/docs/begin.js"></script>
</body></html>
"""
_BEGIN = """
SwaggerUIBundle({url: "/openapi.json", dom_id: "#page", validatorUrl: null, deepLinking: true,
                 syntaxHighlight: {activated: false}});
"""


def add_pages(app: FastAPI) -> None:
    """The description for people, whose files are the bundled ones."""

    async def page() -> Response:
        return HTMLResponse(_PAGE)

    async def begin() -> Response:
        return Response(_BEGIN, media_type="text/javascript")

    async def file(name: str) -> Response:
        if name not in _FILES:
            raise HTTPException(404)
        return FileResponse(swagger_ui_path / name)

    async def root() -> Response:
        return RedirectResponse("/docs")

    pages: dict[str, Callable[..., Any]] = {
        "/": root, "/docs": page, "/docs/begin.js": begin, "/docs/{name}": file,
    }  # fmt: skip
    for path, handle in pages.items():
        app.add_api_route(path, handle, include_in_schema=False, response_model=None)
