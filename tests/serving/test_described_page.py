"""The page at /docs in a real browser: it draws, asks nobody else, and can be tried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from browser import browser, watched
from vitkit.serving import Server

__all__ = ["browser"]


def test_the_page_describes_every_route_and_asks_this_server_alone(
    browser: Any, server: Server, folder: Path, tmp_path: Path
) -> None:
    with watched(browser) as page:
        page.goto(f"{server.url}/")
        page.locator(".opblock").first.wait_for()
        assert page.locator(".opblock").count() == 7
        page.locator(".opblock-summary", has_text="/models").click()
        page.get_by_role("button", name="Try it out").click()
        page.get_by_role("button", name="Execute").click()
        page.locator(".live-responses-table .response").first.wait_for()
        assert "several" in page.locator(".live-responses-table").inner_text()
        page.screenshot(path=tmp_path / "docs.png", full_page=True)
