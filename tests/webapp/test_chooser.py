"""What the studio shows where no folder was named, and how another one is opened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fastapi.testclient import TestClient

import runs
from browser import browser, is_within, serious, served, watched
from vitkit.webapp import open_workspace
from vitkit.webapp.chooser import Studio

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]


@pytest.fixture
def studio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Studio:
    """A studio without a folder, started beside photographs of three colours."""
    runs.photos(tmp_path / "photos", images=2)
    runs.photos(tmp_path / ".hidden", images=2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITKIT_OFFLINE", "1")
    return Studio(None, tmp_path / "runs", open_workspace)


def test_folders_and_data_that_need_no_download_are_offered_and_opened(studio: Studio, tmp_path: Path) -> None:
    client = TestClient(studio)
    told = client.get("/api/chooser").json()
    assert {own["title"]: own["images"] for own in told["folders"]}["photos"] == 6
    assert not any("hidden" in own["title"] for own in told["folders"])
    assert "digits" in {own["name"] for own in told["named"]}
    assert all(own["megabytes"] == 0 for own in told["named"]), "downloads are forbidden"
    assert client.get("/api/data/all").status_code == 404
    body: dict[str, Any] = {"kind": "named", "name": "digits"}
    assert client.post("/api/chooser/open", json=body).json() == {"name": "digits"}
    assert len(client.get("/api/data/all").json()["paths"]) == 1797
    assert client.get("/api/studio").json()["labels"] == str(tmp_path / "labels" / "digits.csv")
    client.post("/api/chooser/close")
    (photos,) = (own for own in told["folders"] if own["title"] == "photos")
    client.post("/api/chooser/open", json={"kind": "folder", "name": photos["id"]})
    assert len(client.get("/api/data/all").json()["paths"]) == 6


@pytest.mark.parametrize("body", [("folder", "/etc"), ("run", ".."), ("named", "/etc"), ("named", "cifar10")])
def test_nothing_else_is_opened(studio: Studio, body: tuple[str, str]) -> None:
    client = TestClient(studio)
    answer = client.post("/api/chooser/open", json={"kind": body[0], "name": body[1]})
    assert answer.status_code == 400 and client.get("/api/studio").json()["name"] == ""


@pytest.mark.parametrize(("size", "scheme"), [("phone", "dark"), ("desk", "light")])
def test_photographs_are_brought_and_another_folder_is_opened(
    studio: Studio, browser: Browser, tmp_path: Path, size: str, scheme: str
) -> None:
    with served(studio) as address, watched(browser, size, scheme) as page:
        page.goto(address)
        page.get_by_role("region", name="Add photographs").wait_for()
        assert serious(page) == [] and is_within(page)
        page.locator("#upload-files").set_input_files(sorted((tmp_path / "photos" / "red").iterdir()))
        page.get_by_text("2 photographs of 2 · 2 without a class").wait_for()
        assert sorted(own.name for own in (tmp_path / "uploads" / "photographs-1").iterdir()) == [
            "img1.png",
            "img2.png",
        ]
        page.get_by_role("button", name="Open another").click()
        page.get_by_role("region", name="Folders and archives here").get_by_role("button", name="photos 6").click()
        page.get_by_text("6 photographs of 6").wait_for()
        assert serious(page) == [] and is_within(page)
