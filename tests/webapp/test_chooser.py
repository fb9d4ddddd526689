"""What the studio shows where no folder was named, and how another one is opened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fastapi.testclient import TestClient

import runs
from browser import browser, is_within, serious, served, watched
from vitkit.errors import VitkitError
from vitkit.webapp import open_workspace
from vitkit.webapp.app import Studio

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


def test_folders_and_data_that_need_no_download_are_offered_and_opened_and_no_others(
    studio: Studio, tmp_path: Path
) -> None:
    client = TestClient(studio)
    told = client.get("/api/chooser").json()
    assert {own["title"]: own["images"] for own in told["folders"]}["photos"] == 6
    assert not any("hidden" in own["title"] for own in told["folders"])
    assert "digits" in {own["name"] for own in told["named"]}
    assert all(own["megabytes"] == 0 for own in told["named"]), "downloads are forbidden"
    for kind, name in (("folder", "/etc"), ("run", ".."), ("named", "/etc"), ("named", "cifar10")):
        answer = client.post("/api/chooser/open", json={"kind": kind, "name": name})
        assert answer.status_code == 400 and client.get("/api/studio").json()["name"] == ""
    assert client.get("/api/data/all").status_code == 404
    body: dict[str, Any] = {"kind": "named", "name": "digits"}
    assert client.post("/api/chooser/open", json=body).json() == {"name": "digits"}
    assert len(client.get("/api/data/all").json()["paths"]) == 1797
    assert client.get("/api/studio").json()["labels"] == str(tmp_path / "labels" / "digits.csv")
    client.post("/api/chooser/close")
    (photos,) = (own for own in told["folders"] if own["title"] == "photos")
    client.post("/api/chooser/open", json={"kind": "folder", "name": photos["id"]})
    assert len(client.get("/api/data/all").json()["paths"]) == 6


@pytest.mark.usefixtures("studio")  # for what lies beside this one
def test_photographs_are_brought_here_after_a_download_that_fails(browser: Browser, tmp_path: Path) -> None:
    def opened(chosen: str | Path) -> Any:
        if chosen == "digits":
            raise VitkitError("cannot download digits: there is no network")
        return open_workspace(chosen, runs=tmp_path / "runs")

    offline = Studio(None, tmp_path / "runs", opened)
    with served(offline) as address, watched(browser, "phone", "dark", expected=("400",)) as page:
        page.goto(address)
        page.get_by_role("button", name="digits").click()
        page.get_by_text("digits was not opened: cannot download digits: there is no network").wait_for()
        page.get_by_text("Choose files instead").wait_for()
        assert page.locator("#fails .line").count() == 0
        assert serious(page) == [] and is_within(page)
        page.locator("#upload-files").set_input_files(sorted((tmp_path / "photos" / "red").iterdir()))
        page.get_by_text("2 photographs of 2 · 2 without a class").wait_for()
        sent = {own.name for own in (tmp_path / "uploads" / "photographs-1").iterdir()}
        assert sent == {"img1.png", "img2.png"}
        page.get_by_role("button", name="Open another").click()
        page.get_by_role("region", name="Folders and archives here").get_by_role("button", name="photos 6").click()
        page.get_by_text("6 photographs of 6").wait_for()


def test_no_two_files_that_are_sent_meet_under_one_name(studio: Studio, tmp_path: Path) -> None:
    """Nor by a name that is longer than a file's may be."""
    uploads = tmp_path / "uploads"
    for names in (
        ("漢" * 150 + ".jpg", "é" * 400 + ".jpg", "🌻" * 90 + "/" + "🌻" * 90 + ".png"),
        ("n" * 150 + "1.png", "n" * 150 + "2.png"),
        ("a/b/c/d/e.png", "x/c/d/e.png"),
    ):
        with TestClient(studio) as client:
            folder = client.post("/api/folders/new", json={"name": "漢" * 150}).json()
            for name in names:
                answer = client.post(f"/api/folders/{folder['id']}/files", params={"name": name}, content=name.encode())
                assert answer.status_code == 200, answer.text
        found = [path for path in (uploads / folder["title"]).rglob("*") if path.is_file()]
        assert sorted(path.read_text() for path in found) == sorted(names)
        assert all(len(path.relative_to(uploads).parts) <= 4 for path in found)
