"""The Live tab: pictures of classes from a camera that shows known pictures, and a model's answers to them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

import photos as pictures
import runs
import tiny
from browser import browser, served, shorten, watched, with_camera
from tiny import build
from vitkit import weights
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.webapp import Workspace, open_workspace
from vitkit.webapp.app import Studio

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]
RED = Image.new("RGB", (320, 240), (200, 30, 40))


@pytest.fixture(scope="module")
def camera(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser whose camera shows red."""
    with with_camera(browser, RED, folder=tmp_path_factory.mktemp("camera")) as other:
        yield other


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    data = runs.photos(tmp_path / "photos", images=2)
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "first"
    for seed in range(40):
        pictures.save(pictures.noise(30, 40, seed), tmp_path / "known" / f"{seed}.png")
    classifier = Classifier(build(), tuple("abcdefg"), Preprocess(size=(12, 16)))
    tiny.with_score(classifier, tmp_path / "known").save(run)
    (run / "recipe.toml").write_text("", encoding="utf-8")
    return open_workspace(data, runs=tmp_path / "runs")


@pytest.fixture
def studio(place: Workspace) -> Studio:
    return Studio(place, place.runs, lambda chosen: open_workspace(chosen, runs=place.runs))


def test_an_answer_is_that_of_predict_by_a_model_that_is_opened_once(
    studio: Studio, place: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []
    load = weights.load
    monkeypatch.setattr(weights, "load", lambda folder: opened.append(folder) or load(folder))
    file, client = pictures.save(pictures.smooth(60, 40), tmp_path / "frame.jpg"), TestClient(studio)
    for address in ("/api/live/answer", "/api/look/see", "/api/live/answer"):
        answer = client.post(address, params={"run": "first"}, content=file.read_bytes())
        assert answer.status_code == 200, answer.text
    assert opened == [place.runs / "first"]
    told, own = answer.json(), load(place.runs / "first")
    (expected,) = own.predict(file)
    assert told["label"] == expected.label
    assert told["confidence"] == pytest.approx(expected.confidence, abs=1e-6)
    assert expected.familiar is not None and told["familiar"] == pytest.approx(expected.familiar, abs=1e-6)
    assert [(top["label"], top["chosen"], top["place"]) for top in told["top"]] == [
        (name, name == expected.label, own.classes.index(name)) for name, _ in expected.ranking[:5]
    ]
    for run, content in (("first", b""), ("first", b"nothing"), ("../photos", file.read_bytes())):
        assert client.post("/api/live/answer", params={"run": run}, content=content).status_code == 400


def test_the_button_held_records_pictures(camera: Browser, studio: Studio, tmp_path: Path) -> None:
    with served(studio) as address, watched(camera) as page:
        shorten(page, "camera.js", PAUSE=50, MOST=12)
        page.goto(f"{address}/#live")
        page.get_by_role("button", name="Start the camera").click()
        page.get_by_label("Picture of the camera").wait_for()
        page.locator(".live-said").wait_for()
        page.get_by_text("It may show none of the classes").wait_for()
        assert page.locator(".bars .bar[data-tone]").count() > 1, "in the colours of their classes"
        page.get_by_label("Name of the class").first.fill("red/thing")
        button = page.get_by_role("button", name="Hold to record").first
        button.hover()
        page.mouse.down()
        page.get_by_text("12 pictures", exact=True).wait_for()
        page.mouse.up()
        page.get_by_label("Name of the class").nth(1).fill("other")
        page.get_by_role("button", name="Hold to record").nth(1).focus()
        began = time.monotonic()
        page.keyboard.down("Space")
        page.wait_for_timeout(150)
        page.keyboard.up("Space")
        held = time.monotonic() - began  # longer on a busy machine
        page.get_by_text("Stop the camera").click()
        page.get_by_role("button", name="Use these photographs").click()
        page.get_by_role("button", name="red_thing 12").wait_for()
    files = sorted((tmp_path / "uploads" / "recorded-1").rglob("*.jpg"))
    red = [file for file in files if file.parent.name == "red_thing"]
    assert len(red) == 12 and 1 <= len(files) - 12 < max(10, 2 + held / 0.05)
    with Image.open(red[0]) as image:
        assert (image.format, image.size) == ("JPEG", RED.size)
        assert np.abs(np.asarray(image).mean(axis=(0, 1)) - RED.getpixel((0, 0))).max() < 12


SLOWLY = """
window.streams = [];
const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
navigator.mediaDevices.getUserMedia = async (wanted) => {
  await new Promise((next) => { setTimeout(next, 300); });
  window.streams.push(await ask(wanted));
  return window.streams.at(-1);
};
"""
RUNNING = "streams.flatMap((own) => own.getTracks()).filter((own) => own.readyState === 'live').length"


def test_a_camera_is_started_once_and_never_stays_on(camera: Browser, studio: Studio) -> None:
    with served(studio) as address, watched(camera) as page:
        page.add_init_script(SLOWLY)
        page.goto(f"{address}/#live")
        start = page.get_by_role("button", name="Start the camera")
        start.dblclick()
        page.get_by_role("button", name="Stop the camera").click()
        start.wait_for()
        assert page.evaluate("streams.length") == 1 and page.evaluate(RUNNING) == 0
        start.click()  # the tab is left while the browser asks
        page.get_by_role("link", name="Look").click()
        page.wait_for_function("() => streams.length === 2")
        page.wait_for_function(f"() => {RUNNING} === 0")
        page.get_by_role("link", name="Live").click()
        start.click()
        page.get_by_role("button", name="Stop the camera").wait_for()
        end = "{ own.stop(); own.dispatchEvent(new Event('ended')); }"
        page.evaluate(f"streams.at(-1).getTracks().forEach((own) => {end})")
        page.get_by_text("The camera does not answer any more").wait_for()
        start.wait_for()
