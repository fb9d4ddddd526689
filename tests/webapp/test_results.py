"""The Results tab: what a run folder tells, in the page and by its routes; labels that people judge."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fastapi.testclient import TestClient

import runs
from browser import browser, is_within, serious, served, watched
from vitkit.data import Edit, add_edits, labels_so_far
from vitkit.evaluation import LabelError, write_label_errors
from vitkit.system import LABEL_ERRORS, PREDICTIONS
from vitkit.training import train
from vitkit.webapp import Workspace, create_app, open_workspace
from vitkit.webapp.ship import card_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]  # a fixture


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photographs of nothing that can be learned, and two runs of them on one split."""
    root = tmp_path_factory.mktemp("studio")
    data = runs.photos(root / "photos", images=16, noise=2000.0)
    fields: dict[str, Any] = {"epochs": 1, "split": (0.4, 0.2, 0.4)}
    first = train(runs.quick(data, **fields), root / "runs" / "first")
    train(runs.quick(data, seed=1, split_from=str(first), epochs=1), root / "runs" / "second")
    return root


@pytest.fixture
def place(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """The studio of these runs, with three labels to look at, whose label file is new."""
    monkeypatch.chdir(tmp_path)
    doubts = [LabelError(f"red/img{i}.png", "red", "blue", 0.9 - i / 10, 0.25 * i) for i in (1, 2, 3)]
    write_label_errors(trained / "runs" / "first" / LABEL_ERRORS, doubts)
    return open_workspace(trained / "photos", runs=trained / "runs")


@pytest.fixture
def client(place: Workspace) -> Iterator[TestClient]:
    with TestClient(create_app(place)) as own:
        yield own


@contextmanager
def restored(*files: Path) -> Iterator[None]:
    """What these files contain is as before in the end."""
    kept = {own: own.read_bytes() for own in files}
    try:
        yield
    finally:
        for own, content in kept.items():
            own.write_bytes(content)


def said(place: Workspace) -> dict[str, str]:
    return {own.path: own.label for own in labels_so_far(place.labels).edits}


def test_runs_stand_side_by_side_with_their_own_figures(client: TestClient, place: Workspace) -> None:
    told = {own["name"]: own for own in client.get("/api/results/runs").json()["runs"]}
    assert told.keys() == {"first", "second"}
    for name, own in told.items():
        kept = json.loads((place.runs / name / "evaluation.json").read_text())
        assert own["figures"]["accuracy"] == kept["accuracy"] and own["figures"]["images"] == kept["images"]
        assert own["interval"] == kept["intervals_95"]["accuracy"]


def test_no_list_shows_a_figure_of_photographs_seen_before(client: TestClient, place: Workspace, trained: Path) -> None:
    seen = {"images": 12, "trained_on": 12, "chosen_by": 0, "paths": []}
    spoilt = {"accuracy": 0.95, "balanced_accuracy": 0.95, "images": 16, "split": "test", "seen": seen}
    rest = {"accuracy": 0.25, "balanced_accuracy": 0.3, "images": 4, "split": "test"}
    rest |= {"intervals_95": {"accuracy": [0, 0.8]}}
    numbers = {**rest, "seen": seen, "with_seen": spoilt, "without_seen": rest}
    shutil.copytree(trained / "runs" / "first", trained / "runs" / "spoilt")
    file = trained / "runs" / "spoilt" / "evaluation.json"
    try:
        file.write_text(json.dumps(numbers))
        for address in ("/api/results/runs", "/api/train/runs"):
            (own,) = (own for own in client.get(address).json()["runs"] if own["name"] == "spoilt")
            assert (own["figures"]["accuracy"], own["figures"]["balanced_accuracy"]) == (0.25, 0.3)
            assert own["caveats"] == ["without 12 that the weights had seen; with them 0.9500"]
        card = card_of(place, "spoilt")
        assert "On 4 test photographs" in card and "- accuracy: 25.0 %" in card and "95.0 %" not in card
        assert "without 12 that the weights had seen" in card
        none = {"accuracy": None, "balanced_accuracy": None, "images": 0, "intervals_95": {}, "without_seen": None}
        file.write_text(json.dumps(numbers | none))
        (own,) = (own for own in client.get("/api/results/runs").json()["runs"] if own["name"] == "spoilt")
        assert own["figures"]["accuracy"] is None and "had seen all 12 test images" in own["caveats"][0]
        assert "- accuracy:" not in card_of(place, "spoilt")
    finally:
        shutil.rmtree(trained / "runs" / "spoilt")


def test_an_overwritten_photograph_is_not_shown_so(client: TestClient, place: Workspace, trained: Path) -> None:
    path = client.get("/api/results/runs/first").json()["images"]["path"][0]
    suspect, file = client.get("/api/results/runs/first/suspects").json(), trained / "photos" / path
    files = {file, trained / "photos" / suspect["suspects"][0]["path"]}
    decision = {"version": suspect["version"], "numbers": [0], "what": "exclude"}
    with restored(*files):
        for own in files:
            own.write_bytes((trained / "photos" / "green" / "img9.png").read_bytes())
        for address in ("photographs/0", "suspects/0"):
            answer = client.get(f"/api/results/runs/first/{address}")
            assert (answer.status_code, answer.json()["code"]) == (400, "webapp.photograph-changed")
        assert client.post("/api/results/runs/first/suspects", json=decision).status_code == 400
        for own in files:
            own.unlink()
        answer = client.post("/api/results/runs/first/suspects", json=decision)
        assert (answer.status_code, answer.json()["code"]) == (400, "webapp.photograph-missing")
    rows = (doubts := place.runs / "first" / LABEL_ERRORS).read_text().splitlines(keepends=True)
    doubts.write_text("".join([rows[0], *rows[2:]]))  # somebody took the first one out: the numbers mean others now
    answer = client.post("/api/results/runs/first/suspects", json=decision)
    assert (answer.status_code, answer.json()["code"]) == (400, "webapp.suspects-changed")
    assert not place.labels.exists()


def test_the_views_get_what_the_report_has_and_photographs_by_number(client: TestClient, place: Workspace) -> None:
    data = client.get("/api/results/runs/first").json()
    with (place.runs / "first" / PREDICTIONS).open(newline="") as text:
        rows = [(own["path"], own["label"], own["predicted"]) for own in csv.DictReader(text)]
    names, images = data["images"]["classes"], data["images"]
    columns = ([names[i] for i in images[column]] for column in ("true", "said"))
    assert list(zip(images["path"], *columns, strict=True)) == rows
    for large in ("", "?large=true"):
        answer = client.get(f"/api/results/runs/first/photographs/0{large}")
        assert answer.status_code == 200 and answer.headers["content-type"] == "image/jpeg"
    for address in (f"first/photographs/{len(rows)}", "first/photographs/-1", "%2e%2e", ".studio/report"):
        assert client.get(f"/api/results/runs/{address}").status_code in (400, 404)


def test_a_report_that_was_tampered_with_leads_to_no_other_file(client: TestClient, place: Workspace) -> None:
    page = place.runs / "second" / "report.html"
    text = page.read_text()
    path = json.loads(text.partition('id="data">')[2].partition("</script>")[0])["images"]["path"][0]
    with restored(page):
        page.write_text(text.replace(json.dumps(path), '"../runs/first/curves.png"'))
        answer = client.get("/api/results/runs/second/photographs/0")
        assert (answer.status_code, answer.json()["code"]) == (400, "webapp.photograph-unknown")
        page.write_text("<html>")
        assert client.get("/api/results/runs/second").json()["code"] == "reporting.page-empty"


def test_labels_are_kept_changed_and_left_out_in_the_label_file(client: TestClient, place: Workspace) -> None:
    address = "/api/results/runs/first/suspects"
    told = client.get(address).json()
    assert [own["state"] for own in told["suspects"]] == ["open"] * 3
    assert "about 1.5 of these 3" in told["chance"]
    version = told["version"]
    client.post(address, json={"version": version, "numbers": [0], "what": "keep"})
    client.post(address, json={"version": version, "numbers": [1], "what": "relabel"})
    told = client.post(address, json={"version": version, "numbers": [2], "what": "exclude"}).json()
    assert said(place) == {"red/img1.png": "red", "red/img2.png": "blue", "red/img3.png": ""}
    assert [own["state"] for own in told["suspects"]] == ["kept", "relabelled", "excluded"]
    said_green = {"version": version, "numbers": [1], "what": "relabel", "label": "green"}
    told = client.post(address, json=said_green).json()
    assert said(place)["red/img2.png"] == "green" and told["suspects"][1]["said"] == "green"
    edits = labels_so_far(place.labels).edits
    assert [own.previous for own in edits] == ["red", "red", "red", "blue"], "what it was until then"
    assert [own.proposed_by for own in edits] == ["", "first", "first", ""], "a class of one's own is not the model's"
    for wrong in ({"numbers": [3], "what": "keep"}, {"numbers": [0], "what": "relabel", "label": "a;b"}):
        assert client.post(address, json={"version": version, **wrong}).status_code == 400
    assert len(labels_so_far(place.labels).edits) == 4


def test_a_label_is_corrected_where_its_prediction_is_shown(client: TestClient, place: Workspace) -> None:
    address = "/api/results/runs/first"
    data = client.get(address).json()
    images, version = data["images"], data["version"]
    wrong = next(i for i, (true, given) in enumerate(zip(images["true"], images["said"], strict=True)) if true != given)
    path, true, given = images["path"][wrong], *(images["classes"][images[name][wrong]] for name in ("true", "said"))
    other = next(name for name in images["classes"] if name not in (true, given))
    assert client.get(f"{address}/labels").json() == {"now": {}, "why_not": ""}
    for label in (given, other, "new", true, ""):
        body = {"version": version, "label": label}
        told = client.post(f"{address}/photographs/{wrong}/label", json=body).json()
        assert told["now"] == {path: label} == said(place)
    edits = [(own.label, own.previous, own.proposed_by) for own in labels_so_far(place.labels).edits]
    expected = [(given, true, "first"), (other, given, ""), ("new", other, ""), (true, "new", ""), ("", true, "first")]
    assert edits == expected
    assert client.post("/api/data/undo").status_code == 200 and said(place)[path] == true
    for number, body in (
        (len(images["path"]), {"version": version, "label": true}),
        (wrong, {"version": "earlier", "label": true}),
    ):
        answer = client.post(f"{address}/photographs/{number}/label", json=body)
        assert answer.status_code == 400 and len(labels_so_far(place.labels).edits) == 4


@pytest.fixture
def fixed(trained: Path, place: Workspace) -> Iterator[Path]:
    """A third run, whose test labels are what the first one's model says of them."""
    with (place.runs / "first" / PREDICTIONS).open(newline="") as text:
        said = [own for own in csv.DictReader(text) if own["label"] != own["predicted"]]
    labels = trained / "fixed.csv"
    add_edits(labels, [Edit(own["path"], own["predicted"], proposed_by="first") for own in said[1:]])
    add_edits(labels, [Edit(said[0]["path"], "", proposed_by="first")])
    recipe = runs.quick(place.photographs, split_from=str(place.runs / "first"), labels=str(labels), epochs=1)
    folder = train(recipe, place.runs / "fixed")
    yield folder
    shutil.rmtree(folder)
    labels.unlink()


def test_the_figure_of_the_labels_of_before_stands_in_front(
    place: Workspace, fixed: Path, client: TestClient, browser: Browser
) -> None:
    kept = json.loads((fixed / "evaluation.json").read_text())
    told = {own["name"]: own for own in client.get("/api/results/runs").json()["runs"]}
    value = kept["headline"]["value"]
    assert told["fixed"]["figures"]["accuracy"] == value < kept["with_labels_now"]["accuracy"]
    (caveat,) = [text for text in told["fixed"]["caveats"] if "changed since first" in text]
    assert f"with today's labels {kept['with_labels_now']['accuracy']:.4f}" in caveat
    assert not any("since first" in text for text in told["first"]["caveats"])
    assert caveat in client.get("/api/train/runs/fixed").json()["caveats"]
    card = card_of(place, "fixed")
    assert "changed since first" in card and f"{100 * value:.1f} %" in card
    with served(create_app(place)) as address, watched(browser, "desk", "light") as page:
        page.goto(f"{address}/#results/fixed")
        page.wait_for_selector("[data-view=embedding] canvas, [data-view=threshold] input")
        verdict = page.get_by_role("region", name="Verdict")
        assert f"{100 * value:.1f} %" in verdict.inner_text() and caveat in verdict.inner_text()
        assert verdict.evaluate("own => own.parentElement.firstElementChild === own"), "it is first"
        assert page.get_by_text("now: ").count() > 0
        page.goto(f"{address}/#train/fixed")
        page.locator("p.soft", has_text=caveat).wait_for()
        assert is_within(page)


def test_same_names_elsewhere_are_other_photographs(place: Workspace, tmp_path: Path) -> None:
    others = runs.photos(tmp_path / "others", images=16, noise=100.0)  # the same paths
    split = runs.copy_of(place.runs / "first", place.runs / "third") / "split.json"
    told = json.loads(split.read_text())
    contents = {path: digest[::-1] for path, digest in told["contents"].items()}
    split.write_text(json.dumps(told | {"root": str(others), "contents": contents}))
    (split.parent / LABEL_ERRORS).unlink()
    address, labels = "/api/results/runs/first", tmp_path / "own.csv"
    shutil.rmtree(place.runs / "third")
    client = TestClient(create_app(open_workspace(others, runs=place.runs, labels=labels)))
    assert client.get("/api/data/all").json()["doubts"] == {}, "those of a run of other photographs"
    assert "other photographs" in client.get(f"{address}/suspects").json()["why_not"]
    body = {"version": client.get(address).json()["version"], "label": "red"}
    assert client.post(f"{address}/photographs/0/label", json=body).status_code == 400
    assert not labels.exists()


def test_the_tab_shows_what_is_clicked_and_labels(place: Workspace, browser: Browser) -> None:
    with served(create_app(place)) as address, watched(browser, "phone", "dark") as page:
        page.goto(f"{address}/#results/first")
        page.wait_for_selector("[data-view=embedding] canvas, [data-view=threshold] input")
        assert is_within(page)
        assert serious(page) == []
        cell = page.locator(".matrix button").first
        cell.click()
        shown = page.locator("dialog[open] .card")
        assert shown.count() == int(cell.inner_text())
        shown.locator("img").evaluate_all("(images) => Promise.all(images.map((own) => own.decode()))")
        shown.first.click()
        enlarged = page.locator("dialog[open]").last
        buttons = enlarged.get_by_role("group", name="Your label").get_by_role("button")
        assert [own.strip() for own in buttons.all_inner_texts()] == ["1\nblue", "2\ngreen", "3\nred", "Leave out"]
        assert "your label: blue" in enlarged.inner_text() and not said(place)
        page.keyboard.press("2")
        enlarged.get_by_text("your label now: green").wait_for()
        (path,) = said(place)
        assert path in enlarged.inner_text() and said(place)[path] == "green"
        assert serious(page, "dialog[open]") == [] and is_within(page)
        enlarged.get_by_role("button", name="Undo").click()
        enlarged.get_by_text("your label now: green").wait_for(state="detached")
        assert not said(place)
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
        page.locator(".suspects > li").nth(1).get_by_role("button", name="It is blue").click()
        page.locator(".suspects > li[data-state=relabelled]").wait_for()
        assert said(place) == {"red/img2.png": "blue"}
        page.get_by_role("button", name="Train again with these labels").click()
        page.wait_for_selector("#split")
        assert page.locator("#split").input_value() == "first"
