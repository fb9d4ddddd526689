"""A real browser for tests of pages, and what every page must be: silent, at home on this machine, and usable."""

from __future__ import annotations

import contextlib
import re
import shutil
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from PIL import Image
    from playwright.sync_api import Browser, Page, Route

CHROMIUM = next(
    (own for name in ("chromium", "chromium-browser", "google-chrome") if (own := shutil.which(name))), None
)
SIZES = {"phone": (360, 740), "tablet": (800, 900), "desk": (1400, 900)}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, for the tests of one file: while it is there, no other event loop runs in this thread."""
    if CHROMIUM is None:
        pytest.skip("there is no chromium to test pages with")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@contextlib.contextmanager
def with_camera(browser: Browser, picture: Image.Image, folder: Path) -> Iterator[Browser]:
    """Another Chromium, whose camera shows a picture (320 x 240), twenty times a second."""
    file = folder / "camera.y4m"
    frame = _yuv(picture.convert("RGB").resize((320, 240)))
    file.write_bytes(b"YUV4MPEG2 W320 H240 F20:1 Ip A1:1 C420mpeg2\n" + frame)
    shown = f"--use-file-for-fake-video-capture={file}"
    switches = ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream", shown]
    found = browser.browser_type.launch(executable_path=CHROMIUM, args=switches)
    yield found
    found.close()


def _yuv(picture: Image.Image) -> bytes:
    """A frame in the limited range of video: 16 to 235 for brightness, 16 to 240 for colours."""
    y, *colours = picture.convert("YCbCr").split()
    brightness = y.point([round(16 + 219 * value / 255) for value in range(256)])
    limited = [round(128 + 224 * (value - 128) / 255) for value in range(256)]
    halves = [colour.resize((160, 120)).point(limited) for colour in colours]
    return b"FRAME\n" + brightness.tobytes() + b"".join(half.tobytes() for half in halves)


@contextlib.contextmanager
def watched(
    browser: Browser,
    size: str = "desk",
    scheme: str = "light",
    expected: tuple[str, ...] = (),
    *,
    has_script: bool = True,
) -> Iterator[Page]:
    """A page, which must have said nothing in the console and asked nobody else by the end.

    Args:
        browser: which.
        size: one of SIZES.
        scheme: light or dark.
        expected: parts of console messages that are meant to come.
        has_script: False: as where scripts are switched off.
    """
    width, height = SIZES[size]
    viewport: Any = {"width": width, "height": height}
    context = browser.new_context(
        viewport=viewport, color_scheme=scheme, accept_downloads=True, java_script_enabled=has_script
    )  # type: ignore[arg-type]
    context.set_default_timeout(20_000)
    said: list[str] = []
    asked: set[str] = set()
    page = context.new_page()
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    context.on(
        "request",
        lambda request: (
            asked.add(urlsplit(request.url).hostname or "")
            if urlsplit(request.url).scheme not in ("data", "blob", "file", "about")
            else None
        ),
    )
    try:
        yield page
        assert [own for own in said if not any(part in own for part in expected)] == []
        assert asked <= {"127.0.0.1"}
    finally:
        context.close()


def shorten(page: Page, script: str, **waits: int) -> None:
    """Give constants of one of the studio's scripts, which are milliseconds that it waits, other values."""

    def changed(route: Route) -> None:
        answer = route.fetch()
        text = answer.text()
        for name, milliseconds in waits.items():
            text, found = re.subn(rf"^const {name} = \d+;", f"const {name} = {milliseconds};", text, flags=re.MULTILINE)
            assert found == 1, f"{script} has no {name}"
        route.fulfill(response=answer, body=text)

    page.route(f"**/static/{script}", changed)


def violations(page: Page, within: str = "", rules: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """What axe finds in a page or in a part of it, by all of its rules or by some. Colours take most of the time."""
    from axe_playwright_python.base import AXE_SCRIPT

    if not page.evaluate("'axe' in window"):
        page.evaluate(f"{AXE_SCRIPT}\n;0")
    options = {"resultTypes": ["violations"]} | ({"runOnly": list(rules)} if rules else {})
    run = "async ([where, options]) => (await axe.run(where || document, options)).violations"
    return list(page.evaluate(run, [within, options]))


def serious(page: Page, within: str = "") -> list[str]:
    """What keeps people from using a page, or a part of it."""
    return [
        f"{own['id']}: {own['help']} {[node['html'][:200] for node in own['nodes'][:3]]}"
        for own in violations(page, within)
        if own["impact"] in ("serious", "critical")
    ]


def is_within(page: Page) -> bool:
    """Whether nothing sticks out at the side."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


@contextlib.contextmanager
def served(application: Any) -> Iterator[str]:
    """The address of an ASGI application, served by this process."""
    import socket

    import uvicorn

    with socket.socket(proto=socket.IPPROTO_TCP) as listener:  # as the studio's own
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = uvicorn.Server(
            uvicorn.Config(application, log_level="error", lifespan="off", ws="none", timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)
