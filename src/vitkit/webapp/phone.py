"""Send photographs from a phone: the page that the phone opens, and the QR code of its address.

The address contains a token of its own. The guard of the server lets it open this page and the routes that receive
photographs, and nothing else of the studio (`OPEN_TO_PHONES`).
"""

from __future__ import annotations

import io
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse

from vitkit.webapp.app import PAGE_HEADERS, STATIC

SENDING_PAGE = "/send"
OPEN_TO_PHONES = r"/send|/static/[\w./-]+|/api/folders/new|/api/folders/[0-9a-f]{16}/files"
_QUIET_ZONE = 4  # modules around the code, as ISO/IEC 18004 requires


def router(link: str | None) -> APIRouter:
    """Return the routes of the page that phones open, and of the QR code that leads to it.

    Args:
        link: the address of the page with its token; None if phones cannot reach the studio.
    """
    routes = APIRouter()

    @routes.get("/api/phone")
    def show_code() -> dict[str, Any]:
        return {} if link is None else {"link": link, "svg": _qr_code(link)}

    @routes.get(SENDING_PAGE)
    def sending_page() -> Response:
        return HTMLResponse((STATIC / "send.html").read_text(encoding="utf-8"), headers=PAGE_HEADERS)

    return routes


def _qr_code(text: str) -> str:
    """Return a QR code as SVG."""
    import segno

    code, svg = segno.make(text, error="m", micro=False), io.BytesIO()
    code.save(svg, kind="svg", xmldecl=False, scale=4, border=_QUIET_ZONE, dark="#000", light="#fff")
    return svg.getvalue().decode()
