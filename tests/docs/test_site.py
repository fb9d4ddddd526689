"""The documentation site in a real browser: it builds without warnings, everybody can read it, and search finds."""

from __future__ import annotations

import functools
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browser import browser, is_within, serious, watched

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.accept
__all__ = ["browser"]  # a fixture
ROOT = Path(__file__).parents[2]
PAGES = (
    *("index.html", "guide/studio.html", "guide/timm-and-lightning.html", "notebooks/6-your-photographs.html"),
    *("paper.html", "house.html", "results.html", "decisions/index.html", "reference/recipe.html"),
    *("reference/files.html", "reference/commands/train.html", "reference/functions/train.html"),
    *("reference/classes/ViTConfig.html", "live/report.html", "live/attention.html"),
)
SEARCHES = {
    "exif": "guide/your-data",
    "freeze": "guide/fine-tuning",
    "class order": "guide/predicting",
    "onnx": "guide/export",
    "out of memory": "guide/fine-tuning",
    "my own loss": "guide/own-parts",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("zensical", reason="`make site` installs it")
    folder = tmp_path_factory.mktemp("site") / "site"
    program = "import sys; sys.path.insert(0, sys.argv[1]); import documentation; from pathlib import Path\n"
    program += "documentation.build(Path(sys.argv[2]))"
    done = subprocess.run(
        [sys.executable, "-c", program, ROOT / "benchmarks", folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def first_result(page: Page, text: str) -> str:
    """The address of the first result of a search."""
    page.locator(".md-search__button").first.click()
    page.get_by_role("combobox", name="Search").fill(text)
    link = page.get_by_role("option").first
    link.wait_for()
    return link.get_attribute("href") or ""


@pytest.mark.parametrize(("size", "scheme"), [("phone", "dark"), ("desk", "light")])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_usable(address: str, browser: Browser, name: str, size: str, scheme: str) -> None:
    with watched(browser, size, scheme) as page:
        page.goto(f"{address}/{name}")
        assert is_within(page)
        assert serious(page) == []


@pytest.mark.parametrize("text", SEARCHES)
def test_a_search_leads_to_the_right_page(address: str, browser: Browser, text: str) -> None:
    with watched(browser) as page:
        page.goto(f"{address}/index.html")
        assert SEARCHES[text] in first_result(page, text)


def test_every_link_leads_somewhere(site: Path, browser: Browser) -> None:
    pages = sorted(set(site.rglob("*.html")) - {site / "404.html"})  # whose links are for a server
    with watched(browser) as page:
        for path in pages:
            page.goto(path.as_uri())
            targets = page.evaluate(
                "[...document.querySelectorAll('article a[href], nav a[href]')].map((a) => a.href)"
                ".filter((href) => href.startsWith('file:'))"
            )
            missing = {each for each in targets if not Path(each.partition("#")[0].removeprefix("file://")).exists()}
            assert missing == set(), path.name
