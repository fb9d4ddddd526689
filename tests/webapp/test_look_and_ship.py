"""The Look and Ship tabs: what they answer, and their pages in a real browser."""

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

import photos as pictures
from browser import browser, is_within, serious, served, watched
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess, read_source, split_to_dict
from vitkit.exporting import load_exported
from vitkit.serving import Guard, rules_for_host
from vitkit.text import markdown_blocks
from vitkit.webapp import Workspace, create_app, open_workspace
from vitkit.weights import load

__all__ = ["browser"]

HOSTILE = "<script>alert(1)</script>"
NAMES = ("a", "b", "c", "d", "e", "f", HOSTILE)
FIGURES = ("cells => cells.map((own) => own.dataset.title)", "cells => cells.map((own) => own.innerText)")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Photographs, and a run with a model that was never trained."""
    root = tmp_path_factory.mktemp("look")
    pictures.folder(root / "photos", {"a": 3, "b": 3})
    run = root / "runs" / "first"
    record = {"data": "photos", "data_hash": "0" * 64, "recipe": {"model": "tiny", "method": "full", "seed": 0}}
    Classifier(build(), NAMES, Preprocess(size=(12, 16)), provenance=record).save(run)
    (run / "recipe.toml").write_text("", encoding="utf-8")
    table = read_source(root / "photos")
    split = split_to_dict(table)
    split["splits"] = {"train": {"a": ["a/a_0.png"], "b": []}, "test": {"a": [], "b": ["b/b_0.png"]}}
    (run / "split.json").write_text(json.dumps(split), encoding="utf-8")
    found = {"accuracy": 0.9, "images": 20, "split": "test", "intervals_95": {"accuracy": [0.8, 0.95]}}
    confused = [{"true": HOSTILE, "predicted": "b*", "count": 2, "share": 0.1}]
    (run / "evaluation.json").write_text(json.dumps({**found, "confused": confused}), encoding="utf-8")
    return open_workspace(root / "photos", runs=root / "runs", labels=root / "labels.csv")


@pytest.fixture(scope="module")
def client(place: Workspace) -> TestClient:
    return TestClient(create_app(place), raise_server_exceptions=False)


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("picture") / "picture.jpg"
    pictures.smooth(60, 40).save(file)
    return file


def ask(client: TestClient, what: str, file: Path, **query: Any) -> Any:
    answer = client.post(f"/api/look/{what}", params={"run": "first", **query}, content=file.read_bytes())
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_picture_is_answered_as_predict_does(client: TestClient, place: Workspace, picture: Path) -> None:
    assert client.get("/api/look/models").json() == {"models": ["first"]}
    seen = ask(client, "see", picture)
    (expected,) = load(place.runs / "first").predict(picture)
    assert seen["label"] == expected.label
    assert seen["confidence"] == pytest.approx(expected.confidence, abs=1e-6)
    assert [place["label"] for place in seen["top"]] == [label for label, _ in expected.ranking]
    assert (seen["size"], seen["grid"]) == ([60, 40], [3, 4])
    assert seen["picture"].startswith("data:image/jpeg;base64,")
    assert [method["name"] for method in seen["methods"]][:2] == ["gradient", "rollout"]


def test_a_pretrained_model_begins_trainings_and_is_asked_nothing(place: Workspace, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(place.runs, tmp_path / "runs"))
    shutil.copytree(copy / "first", copy / "pretrained")
    told = json.loads((copy / "pretrained" / "model.json").read_text(encoding="utf-8"))
    (copy / "pretrained" / "model.json").write_text(json.dumps({**told, "classes": []}), encoding="utf-8")
    client = TestClient(create_app(open_workspace(place.photographs, runs=copy, labels=place.labels)))
    for tab in ("look/models", "predict", "ship/models"):
        assert client.get(f"/api/{tab}").json()["models"] == ["first"], tab
    offers = client.get("/api/train/offers").json()["offers"]
    assert {"run first", "run pretrained"} <= {own["title"] for own in offers}


def test_a_map_is_that_of_explain_and_nothing_is_kept(client: TestClient, place: Workspace, picture: Path) -> None:
    before = pictures.fingerprint(place.photographs.parent)
    found = ask(client, "map", picture, method="gradient", target="b")
    expected = load(place.runs / "first").explain(picture, "gradient", "b")
    values = np.maximum(expected.maps["gradient"], 0)
    np.testing.assert_allclose(np.array(found["map"]), 255 * values / (values.max() or 1), atol=0.51)
    assert found["target"] == "b"
    left, top, right, bottom = expected.box
    assert found["box"] == pytest.approx([left / 60, top / 40, right / 60, bottom / 40])
    assert pictures.fingerprint(place.photographs.parent) == before


def test_a_patch_has_a_map_for_every_head_of_every_layer(client: TestClient, picture: Path) -> None:
    found = ask(client, "patch", picture, row=1, column=2)
    layers = np.array(found["layers"])
    assert (layers.shape, found["numbers"]) == ((3, 4, 3, 4), [0, 1, 2])
    assert layers.max(axis=(2, 3)).tolist() == [[255] * 4] * 3
    means = np.array(found["means"])
    assert means.shape == (3, 3, 4) and means.max(axis=(1, 2)).tolist() == [255] * 3


def test_what_cannot_be_looked_at_is_told_in_a_line(client: TestClient, picture: Path) -> None:
    content = picture.read_bytes()
    for what, query, body, code in (
        ("see", {}, b"", "webapp.picture-missing"),
        ("see", {}, b"nothing", "data.image-unreadable"),
        ("see", {"run": "../../etc"}, content, "webapp.run-unknown"),
        ("map", {"method": "nothing"}, content, "webapp.method-unknown"),
        ("map", {"method": "rollout", "target": HOSTILE * 3}, content, "explanation.class-missing"),
        ("patch", {"row": 9, "column": 0}, content, "explanation.patch-missing"),
    ):
        answer = client.post(f"/api/look/{what}", params={"run": "first", **query}, content=body)
        assert (answer.status_code, answer.json()["code"]) == (400, code), answer.text


@pytest.fixture(scope="module")
def exported(client: TestClient) -> Any:
    assert client.get("/api/ship/model?run=first").json()["exports"] == []
    client.post("/api/ship/export", json={"run": "first", "to": "openvino"})
    while (state := client.get("/api/ship/export").json())["running"]:
        time.sleep(0.02)
    return state


def test_an_export_is_checked_and_can_be_downloaded(
    client: TestClient, exported: Any, place: Workspace, tmp_path: Path
) -> None:
    assert (exported["error"], exported["found"]["agreement"]) == ("", 1.0)
    told = client.get("/api/ship/model?run=first").json()
    (made,) = told["exports"]
    measured = made["measured"]
    assert (measured["agreement"], measured["compared_on"]) == (1.0, exported["found"]["compared_on"])
    assert min(measured["per_second"], measured["model_per_second"]) > 0
    assert told["model"]["bytes"] == (place.runs / "first" / "model.safetensors").stat().st_size
    assert told["model"]["figures"]["accuracy"] == 0.9, "that of the run, not of the check"
    names = [file["name"] for file in made["files"]]
    assert sorted(names) == ["first.bin", "first.xml"]
    for name in names:
        answer = client.get(f"/api/ship/file/{name}")
        (tmp_path / name).write_bytes(answer.content)
        assert name in answer.headers["content-disposition"]
    assert load_exported(tmp_path / "first.xml").classes == NAMES
    for name in ("recipe.toml", "..%2Ffirst%2Frecipe.toml", "second.onnx"):
        assert client.get(f"/api/ship/file/{name}").status_code in (400, 404)
    (again,) = TestClient(create_app(place)).get("/api/ship/model?run=first").json()["exports"]
    assert (again["files"], again["measured"]) == (made["files"], None), "of another studio"


def test_the_card_says_what_is_known_and_acts_on_no_name(client: TestClient, place: Workspace) -> None:
    told = client.get("/api/ship/model?run=first").json()
    card = client.get("/api/ship/card?run=first").text
    assert "90.0 % (95 % interval 80.0 to 95.0 %)" in card
    assert "1 training, 1 test" in card
    assert "<script>" not in card and "\\<script\\>" in card
    assert str(place.runs.parent) not in card
    assert told["command"] == f"vitkit serve {place.runs / 'first'}"
    assert told["card"] == [list(block) for block in markdown_blocks(card)]


@pytest.mark.usefixtures("exported")
def test_a_picture_is_brought_and_looked_into(browser: Any, place: Workspace, picture: Path) -> None:
    guarded = Guard(create_app(place), rules_for_host("127.0.0.1", None))
    with served(guarded) as address, watched(browser, "phone", "dark") as page:
        page.goto(f"{address}/#ship")
        page.get_by_role("heading", name="Model card").wait_for()
        assert "90.0 %" in page.get_by_role("region", name="Verdict").inner_text()
        card = page.get_by_role("region", name="Model card")
        items = card.get_by_role("listitem").all_inner_texts()
        assert HOSTILE in items and "accuracy: 90.0 % (95 % interval 80.0 to 95.0 %)" in items
        assert "\\" not in card.inner_text() and "##" not in card.inner_text()
        row = page.locator("tr[data-form=openvino]")
        row.get_by_role("link", name="Download first.xml").wait_for()
        figures = dict(zip(*(row.locator("td[data-title]").evaluate_all(own) for own in FIGURES), strict=True))
        assert "B" in figures["Size"] and figures["Accuracy"] == "not measured"
        assert is_within(page) and serious(page) == []
        page.goto(f"{address}/#look")
        page.set_input_files("#look-file", str(picture))
        page.get_by_role("heading", name="Where it looks").wait_for()
        assert page.locator(".look-class").count() == 7
        assert page.get_by_text(HOSTILE).count() > 0
        map_of = "Evidence for this class, {}".format
        page.get_by_role("img", name=map_of(page.locator(".look-class .cut").first.inner_text()), exact=True).wait_for()
        other = page.locator(".look-class .cut").nth(1)
        other.click()
        page.get_by_role("img", name=map_of(other.inner_text()), exact=True).wait_for()
        page.locator(".look-patches").click(position={"x": 100, "y": 100})
        told = page.get_by_role("region", name="What a patch attends to").get_by_role("status")
        told.get_by_text(re.compile(r"^The patch in row \d, column \d\.$")).wait_for()
        groups = (page.get_by_role("group", name=name, exact=True) for name in ("Layers", "Heads"))
        layers, heads = (group.get_by_role("button") for group in groups)
        assert [own.get_attribute("aria-pressed") for own in layers.all()] == ["false", "false", "true"]
        layers.first.focus()
        page.keyboard.press("Enter")
        heads.nth(2).click()
        page.get_by_role("img", name="Layer 0, head 2: what the patch").wait_for()
        assert is_within(page) and serious(page) == []
