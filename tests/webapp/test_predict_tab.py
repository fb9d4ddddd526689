"""The Predict tab: a folder is sent, predicted, corrected, saved and added to the data."""

from __future__ import annotations

import csv
import io
import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fastapi.testclient import TestClient

import photos as pictures
import vitkit
import warm
from browser import browser, is_within, serious, served, watched
from test_text import read as read_workbook
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess, labels_so_far
from vitkit.webapp import Workspace, create_app, likeness, open_workspace

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]
NAMES = ("a", "b", "c", "d", "e", "f", "<script>alert(1)</script>")


@pytest.fixture(autouse=True)
def _predict_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of `vitkit predict RUN FOLDER --top COUNT --out FILE`."""

    def predict(arguments: list[str], out: Path) -> None:
        verb, run, folder, flag, count = arguments
        assert (verb, flag) == ("predict", "--top")
        vitkit.predict(run, folder, out=out, top=int(count))

    monkeypatch.setattr("vitkit.webapp.predict.run_vitkit", predict)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Photographs in two classes and some without, a run with an untrained model, and a folder of new photographs."""
    pictures.folder(tmp_path / "photos", {"a": 2, "b": 2, "unlabelled": 2})
    pictures.folder(tmp_path / "new", {"x": 3})
    shutil.copy(tmp_path / "new" / "x" / "x_0.png", tmp_path / "new" / "=1+1.png")
    (tmp_path / "new" / "broken.png").write_text("no picture")
    run = tmp_path / "runs" / "first"
    Classifier(build(), NAMES, Preprocess(size=(12, 16))).save(run)
    (run / "recipe.toml").write_text("", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return open_workspace("photos", runs=Path("runs"))


@pytest.fixture
def client(place: Workspace) -> Iterator[TestClient]:
    with TestClient(create_app(place), raise_server_exceptions=False) as own:
        yield own


def predicted(client: TestClient, folder: str) -> dict[str, Any]:
    listed = {own["title"]: own for own in client.get("/api/folders").json()["folders"]}
    answer = client.post("/api/predict", json={"run": "first", "folder": listed[folder]["id"]})
    assert answer.status_code == 200, answer.text
    while (state := client.get("/api/predict/state").json())["running"]:
        time.sleep(0.05)
    assert not state["error"]
    return dict(client.get(f"/api/predict/{state['number']}").json())


def test_a_folder_is_predicted_corrected_and_saved_as_predict_does(
    client: TestClient, place: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command itself."""
    monkeypatch.setattr("vitkit.webapp.predict.run_vitkit", likeness.run_vitkit)
    monkeypatch.setattr(likeness, "python_command", warm.starting())
    told = predicted(client, "new")
    rows = {path: (ranking, error) for path, ranking, error, _ in told["rows"]}
    assert set(rows) == {"=1+1.png", "broken.png", *(f"x/x_{i}.png" for i in range(3))}
    assert rows["broken.png"][0] == [] and rows["broken.png"][1]
    model = vitkit.load(place.runs / "first")
    for path, (ranking, _) in rows.items():
        if ranking:
            (expected,) = model.predict(Path("new") / path)
            assert [name for name, _ in ranking] == [name for name, _ in expected.ranking[:3]]
            assert [part for _, part in ranking] == pytest.approx([part for _, part in expected.ranking[:3]], abs=0.02)
    number, order = told["number"], [path for path, *_ in told["rows"]]
    body = {"numbers": [order.index("x/x_1.png")], "label": "z"}
    corrected = client.post(f"/api/predict/{number}/correct", json=body)
    assert corrected.json()["corrections"] == {str(order.index("x/x_1.png")): "z"}
    address = f"/api/predict/{number}/table"
    table = list(csv.DictReader(io.StringIO(client.get(f"{address}.csv").text)))
    expected = {path: ranking[0][0] if ranking else "" for path, (ranking, _) in rows.items()} | {"x/x_1.png": "z"}
    assert {row["path"].removeprefix("'"): row["label"] for row in table} == expected
    (place.runs / "a.xlsx").write_bytes(client.get(f"{address}.xlsx").content)
    book = read_workbook(place.runs / "a.xlsx")
    assert list(book[0].values()) == list(table[0])
    assert {row["A"]: row.get("B", "") for row in book[1:]} == expected
    again = TestClient(create_app(place))
    (done,) = again.get("/api/predict").json()["done"]
    assert (done["number"], done["run"], done["title"]) == (number, "first", "new")
    assert again.get(f"/api/predict/{number}").json()["corrections"] == corrected.json()["corrections"]


def test_what_is_added_to_the_data_is_marked_and_no_label_is_written_over(client: TestClient, place: Workspace) -> None:
    told = predicted(client, "photos")
    order = [path for path, *_ in told["rows"]]
    mine, theirs = order.index("unlabelled/unlabelled_0.png"), order.index("unlabelled/unlabelled_1.png")
    client.post(f"/api/predict/{told['number']}/correct", json={"numbers": [mine], "label": "b"})
    answer = client.post(f"/api/predict/{told['number']}/add", json={"numbers": list(range(len(order)))}).json()
    assert (answer["added"], answer["inside"]) == (2, True), "those in class folders keep their class"
    edits = {own.path: (own.label, own.proposed_by) for own in labels_so_far(place.labels).edits}
    assert edits == {order[mine]: ("b", ""), order[theirs]: (told["rows"][theirs][1][0][0], "first")}
    other = predicted(client, "new")
    answer = client.post(f"/api/predict/{other['number']}/add", json={"numbers": [0]}).json()
    assert not answer["inside"] and answer["file"] == str(place.labels.with_name("new.csv"))
    (edit,) = labels_so_far(Path(answer["file"])).edits
    assert (edit.path, edit.proposed_by) == (other["rows"][0][0], "first")


def test_photographs_that_are_sent_come_into_a_new_folder_alone(client: TestClient, place: Workspace) -> None:
    picture = (place.photographs / "a" / "a_0.png").read_bytes()
    made = [client.post("/api/folders/new", json={"name": name}).json() for name in ("../../etc", "../../etc", "trip")]
    uploads = place.runs.parent / "uploads"
    assert sorted(own.name for own in uploads.iterdir()) == ["_.._etc-1", "_.._etc-2", "trip-1"]
    address = f"/api/folders/{made[2]['id']}/files"

    def send(name: str, content: bytes) -> Any:
        return client.post(address, params={"name": name}, content=content)

    for name in ("day/one.png", "two.png"):
        assert send(name, picture).json() == {"name": Path(name).name}
    for name in ("../up.png", "/etc/x.png", "a/../../b.png", "x.sh", "", "..", "day/one.png"):
        assert send(name, b"other").status_code in (200, 400), name
    assert send("empty.png", b"").status_code == 400
    found = {own.relative_to(uploads / "trip-1").as_posix() for own in (uploads / "trip-1").rglob("*") if own.is_file()}
    assert found == {"day/one.png", "two.png", "etc/x.png"}
    assert all((uploads / "trip-1" / name).read_bytes() == picture for name in ("two.png", "day/one.png"))
    assert client.post("/api/folders/0123/files", params={"name": "a.png"}, content=picture).status_code == 400


def test_a_prediction_leads_to_no_other_file_and_keeps_all_corrections(client: TestClient, place: Workspace) -> None:
    told = predicted(client, "new")
    assert client.get(f"/api/predict/{told['number']}/thumbnail/0").headers["content-type"] == "image/jpeg"
    for path in ("0", "9", "../1", f"{told['number']}/thumbnail/-1", f"{told['number']}/thumbnail/99"):
        assert client.get(f"/api/predict/{path}").status_code in (400, 404, 422)
    numbers, address = range(len(told["rows"])), f"/api/predict/{told['number']}/correct"
    with ThreadPoolExecutor(len(numbers)) as pool:
        list(pool.map(lambda i: client.post(address, json={"numbers": [i], "label": f"class {i}"}), numbers))
    found = client.get(f"/api/predict/{told['number']}").json()["corrections"]
    assert found == {str(i): f"class {i}" for i in numbers}, "corrections at the same moment are all kept"
    for body in ({"run": "first", "folder": "/etc"}, {"run": "..", "folder": ""}):
        assert client.post("/api/predict", json=body).status_code == 400


def test_a_folder_is_dropped_and_corrected(place: Workspace, browser: Browser) -> None:
    with served(create_app(place)) as address, watched(browser, "phone", "dark") as page:
        page.goto(f"{address}/#predict")
        files = sorted((place.runs.parent / "new").rglob("x_*.png"))
        page.locator("#upload-files").set_input_files(files)
        page.get_by_role("heading", name="photographs-1, by first").wait_for(timeout=60_000)
        rows = page.locator("li[data-row]")
        assert rows.count() == 3
        page.wait_for_function("() => [...document.querySelectorAll('li img')].some((image) => image.naturalWidth)")
        verdict = page.get_by_role("region", name="Verdict")
        verdict.get_by_text("0 sure, 3 to look at").wait_for()
        rows.get_by_role("button", name="x_1.png").click()
        enlarged = page.get_by_role("dialog", name="Photograph")
        assert serious(page, "dialog[open]") == [] and is_within(page)
        enlarged.get_by_label("Correct class of x_1.png").fill("mine")
        page.keyboard.press("Tab")
        enlarged.get_by_text("corrected: mine").wait_for()
        page.keyboard.press("Escape")
        verdict.get_by_text("1 sure, 2 to look at").wait_for()
        verdict.get_by_role("button", name="Show the 2 to look at").click()
        assert rows.count() == 2 and page.get_by_label("Which photographs").input_value() == "look"
        page.get_by_text("Filter and order").click()
        assert serious(page) == [] and is_within(page)
        with page.expect_download() as download:
            page.get_by_role("link", name="CSV").click()
        text = Path(str(download.value.path())).read_text()
        assert ",mine" in text
        page.get_by_label("Which photographs").select_option("corrected")
        page.get_by_role("button", name="Add the 1 shown to the data").click()
        page.get_by_text("1 label written").wait_for()
    assert [own.label for own in labels_so_far(place.labels.with_name("photographs-1.csv")).edits] == ["mine"]


def test_a_familiar_photograph_is_told_from_a_strange_one(place: Workspace, browser: Browser) -> None:
    stored = place.state_folder / "predictions"
    stored.mkdir(parents=True)
    item = {"number": 1, "run": "first", "folder": str(place.photographs), "title": "photos", "when": 0.0}
    rows = ("a/a_0.png,a,0.99,,0.969", "a/a_1.png,a,0.99,,0.004", "b/b_0.png,b,0.3,,0.9", "x.png,,,not a photograph,")
    table = ["path,label,confidence,error,familiar", *(f"{place.photographs}/{row}" for row in rows), ""]
    (stored / "000001.json").write_text(json.dumps(item | {"corrections": {}}))
    (stored / "000001.csv").write_text("\n".join(table))
    with TestClient(create_app(place)) as own:
        assert [row[3] for row in own.get("/api/predict/1").json()["rows"]] == [0.969, 0.004, 0.9, None]
    with served(create_app(place)) as address, watched(browser) as page:
        page.goto(f"{address}/#predict")
        page.get_by_text("1 sure, 3 to look at").wait_for()
        photographs = page.locator("li[data-row]").get_by_role("button")
        shown = [str(own.get_attribute("aria-label")) for own in photographs.all()]
        strange = "a/a_1.png, a, 99 %, familiarity 0.4 %, to look at"
        assert shown[0] == "x.png, cannot be read, to look at" and strange in shown[1:3]
        assert shown[3] == "a/a_0.png, a, 99 %, familiarity 96.9 %"
        page.get_by_label("Order").select_option("familiar")
        assert photographs.first.get_attribute("aria-label") == strange, "the strange photograph is first"
        with page.expect_download() as download:
            page.get_by_role("link", name="CSV").click()
        saved = list(csv.DictReader(io.StringIO(Path(str(download.value.path())).read_text())))
    assert [(row["label"], row["familiar"]) for row in saved[:2]] == [("a", "0.969"), ("a", "0.004")]
