"""What the Data tab asks: every edit is on disk before it is answered, and no request reaches another file."""

import csv
import io
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

import runs
from vitkit.data import Edit, add_edits, labels_so_far, read_source, split_to_dict, undo_edits
from vitkit.evaluation import LabelError, write_label_errors
from vitkit.system import write_json
from vitkit.webapp import Photographs, Workspace, create_app, open_workspace
from vitkit.webapp import data as data_tab
from vitkit.webapp import photographs as thumbnails

HOSTILE = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' OR 1=1 --", "=1+1", "日本語 ", "a" * 180)


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(own): (own.stat().st_size, own.stat().st_mtime_ns) for own in sorted(folder.rglob("*"))}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.photos(tmp_path_factory.mktemp("data") / "photos", images=4)


@pytest.fixture
def place(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    """A workspace beside the photographs, which are as before in the end."""
    monkeypatch.chdir(tmp_path)
    before = tree(photos)
    yield open_workspace(photos)
    assert tree(photos) == before


@pytest.fixture
def client(place: Workspace) -> TestClient:
    return TestClient(create_app(place), raise_server_exceptions=False)


def ask(client: TestClient, path: str, **body: Any) -> dict[str, Any]:
    answer = client.post(f"/api/data/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def everything(client: TestClient) -> dict[str, Any]:
    return dict(client.get("/api/data/all").json())


def opened(place: Workspace, folder: Path) -> TestClient:
    """The studio of a copy of the photographs, which may be changed."""
    if not folder.exists():
        shutil.copytree(place.photographs, folder)
    return TestClient(create_app(Workspace(folder, place.runs, place.labels)))


def classes(told: dict[str, Any]) -> list[str]:
    return [own["name"] for own in told["classes"]]


def said(all_: dict[str, Any]) -> list[str]:
    """The class of each photograph."""
    return [{-1: "none", -2: "out"}.get(own) or all_["names"][own] for own in all_["labels"]]


def test_a_label_is_on_disk_when_answered_and_others_know_it(client: TestClient, place: Workspace) -> None:
    found = everything(client)
    version = found["version"]
    assert [(own["name"], own["count"]) for own in found["classes"]] == [("blue", 4), ("green", 4), ("red", 4)]
    assert said(found) == [path.split("/")[0] for path in found["paths"]]
    assert found["can_undo"] is False
    ask(client, "labels", version=version, images=[0, 5], label="violet")
    ask(client, "labels", version=version, images=[1], label="")
    rows = list(csv.DictReader(io.StringIO(place.labels.read_text(encoding="utf-8"))))
    assert [(row["path"], row["label"], row["previous"]) for row in rows] == [
        ("blue/img1.png", "violet", "blue"),
        ("green/img2.png", "violet", "green"),
        ("blue/img2.png", "", "blue"),
    ]
    again = said(everything(TestClient(create_app(place))))
    assert (again[0], again[5], again[1], again[2]) == ("violet", "violet", "out", "blue")
    for i, name in enumerate(HOSTILE):  # any printable name comes back as it was
        ask(client, "labels", version=version, images=[i], label=name)
    names = [name.strip() for name in HOSTILE]
    assert said(everything(TestClient(create_app(place))))[: len(names)] == names
    add_edits(place.labels, [Edit("azure/img1.png", "green")])  # a folder that was renamed
    (line,) = everything(client)["unmatched"]
    assert line.startswith("1 path of photos.csv ") and "azure/img1.png" in line


def test_undo_goes_back_step_by_step_and_survives_the_server(client: TestClient, place: Workspace) -> None:
    version = everything(client)["version"]
    ask(client, "labels", version=version, images=[0, 1, 2], label="violet")
    ask(client, "labels", version=version, images=[3], label="")
    other = TestClient(create_app(place))
    assert said(everything(other))[:4] == ["violet", "violet", "violet", "out"]
    assert said(ask(other, "undo"))[:4] == ["violet", "violet", "violet", "blue"]
    assert said(ask(other, "undo"))[:4] == ["blue"] * 4


def test_classes_are_added_renamed_and_merged(client: TestClient, place: Workspace) -> None:
    assert classes(ask(client, "classes/rename", old="red", new=" amber ")) == ["blue", "green", "amber"]
    assert classes(ask(client, "classes/rename", old="blue", new="green")) == ["green", "amber"]
    assert said(everything(client)).count("green") == 8
    assert classes(ask(client, "undo")) == ["blue", "green", "amber"]
    for old, new, code in (
        *(("green", name, "webapp.class-invalid") for name in (" ", "a;b", "unlabelled")),
        ("nothing", "red", "data.class-missing"),
    ):
        answer = client.post("/api/data/classes/rename", json={"old": old, "new": new})
        assert (answer.status_code, answer.json()["code"]) == (400, code), new


def test_number_keys_keep_the_order_in_which_classes_were_created(client: TestClient, place: Workspace) -> None:
    version = everything(client)["version"]

    def give(label: str | None, *images: int) -> list[str]:
        return classes(ask(client, "labels", version=version, images=images, label=label))

    give("tulip", 0)
    assert give("aster", 1) == ["blue", "green", "red", "tulip", "aster"]
    assert classes(everything(TestClient(create_app(place)))) == ["blue", "green", "red", "tulip", "aster"]
    assert give("dasiy", 2)[5:] == ["dasiy"]
    assert classes(ask(client, "undo")) == ["blue", "green", "red", "tulip", "aster"], "a class that was a slip is gone"


def test_what_is_wrong_changes_nothing(client: TestClient, place: Workspace) -> None:
    version = everything(client)["version"]
    wrong: tuple[dict[str, Any], ...] = (
        {"images": [12], "label": "red"},
        {"images": [-1], "label": "red"},
        {"images": ["../../etc/passwd"], "label": "red"},
        {"images": [0], "label": "red", "version": "0" * 16},
        {"images": [0], "label": "x" * 100_000},
    )
    codes = {400: "photograph-unknown", 409: "photographs-changed", 422: "field-invalid"}
    for body in wrong:
        answer = client.post("/api/data/labels", json={"version": version, **body})
        assert answer.json()["code"] == f"webapp.{codes[answer.status_code]}", body
        assert not place.labels.exists()


def test_no_address_leads_out_of_the_workspace(client: TestClient, place: Workspace) -> None:
    (place.runs.parent / "secret.txt").write_text("a secret")
    for path in (
        *("/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd", "/static/%2fetc%2fpasswd"),
        *("/api/data/thumbnail/x/..%2f..%2fetc%2fpasswd", "/api/data/picture/x/999", "/api/train/runs/.."),
        *("/api/train/runs/..%2f..%2fetc/samples", "/api/train/runs/.studio", "/etc/passwd"),
    ):
        answer = client.get(path)
        assert answer.status_code in (400, 404, 409, 422), answer.text
        assert "secret" not in answer.text
        assert "root:" not in answer.text


def test_thumbnails_are_made_once_and_anew_for_another_picture(
    place: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = opened(place, tmp_path / "own")
    version = everything(own)["version"]
    address = f"/api/data/thumbnail/{version}/3"
    first = own.get(address)
    assert first.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(first.content)).size == (16, 16)
    shrunk = thumbnails._shrink
    monkeypatch.setattr(thumbnails, "_shrink", lambda *_: pytest.fail("it is made a second time"))
    assert own.get(address).content == first.content
    monkeypatch.setattr(thumbnails, "_shrink", shrunk)
    Image.new("RGB", (500, 100), "green").save(tmp_path / "own" / "blue" / "img4.png")
    assert Image.open(io.BytesIO(own.get(address).content)).size == (256, 51)
    # A browser keeps what came from an address, and one studio follows another at the same port.
    versions = [everything(opened(place, tmp_path / name))["version"] for name in ("own", "two")]
    assert len({version, *versions}) == 3, "pictures of two folders never have one address"


def test_what_is_no_picture_is_shown_as_none_and_found_by_the_doctor(place: Workspace, tmp_path: Path) -> None:
    shutil.copytree(place.photographs, tmp_path / "own")
    (tmp_path / "own" / "red" / "img2.png").write_bytes(b"no picture")
    own = opened(place, tmp_path / "own")  # which begins to list the folder
    all_ = everything(own)
    broken = all_["paths"].index("red/img2.png")
    for kind in ("thumbnail", "picture"):
        answer = own.get(f"/api/data/{kind}/{all_['version']}/{broken}")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "image/svg+xml")
        assert "script" not in answer.text
    assert list(checked(own)["found"]["unreadable"]) == [str(broken)]


def checked(client: TestClient) -> dict[str, Any]:
    ask(client, "check")
    while (told := client.get("/api/data/check").json())["running"]:
        pass
    assert told["error"] == ""
    return dict(told)


def test_the_check_begins_with_a_verdict_on_the_labels_of_that_moment(place: Workspace, tmp_path: Path) -> None:
    heap = tmp_path / "heap"
    heap.mkdir()
    for own in sorted(place.photographs.rglob("*.png")):
        shutil.copy(own, heap / f"{own.parent.name}-{own.name}")
    shutil.copy(heap / "blue-img1.png", heap / "copy.png")
    client = opened(place, heap)
    paths, version = (everything(client)[name] for name in ("paths", "version"))

    def give(name: str, label: str | None) -> dict[str, Any]:
        images = [i for i, path in enumerate(paths) if path.startswith(name)]
        return ask(client, "labels", version=version, images=images, label=label)

    found = checked(client)["found"]
    assert found["verdict"]["level"] == "note" and "two classes" in found["verdict"]["sentence"] and not found["is_old"]
    assert give("blue", "blue")["classes"][0]["name"] == "blue"
    refused = client.post("/api/train/start", json={"weights": "none"})
    assert (refused.status_code, refused.json()["code"]) == (400, "webapp.classes-too-few")
    give("red", "red")
    give("green", "red")
    assert said(give("green", None)).count("none") == 5, "a label is taken back"
    assert client.get("/api/data/check").json()["found"]["is_old"]
    found = checked(client)["found"]
    assert found["verdict"] == {"level": "warning", "sentence": "1 thing to look at first"}  # both classes are small
    assert not found["is_old"] and "problem" not in {own["severity"] for own in found["findings"]}
    assert [own["conflict"] for own in found["copies"]] == [False], "no class is no other class"
    give("copy", "red")
    found = checked(client)["found"]
    assert found["verdict"]["level"] == "problem" and found["copies"][0]["conflict"]


def test_without_a_label_file_that_was_there_nothing_is_shown_or_trained(place: Workspace, tmp_path: Path) -> None:
    """A stick that was pulled out: the folders' classes would pass for what was said."""
    first = TestClient(create_app(place), raise_server_exceptions=False)
    ask(first, "labels", version=everything(first)["version"], images=[0], label="wasp")
    kept = place.labels.rename(tmp_path / "kept.csv")
    other = TestClient(create_app(place), raise_server_exceptions=False)
    for client in (first, other):
        for answer in (client.get("/api/data/all"), client.post("/api/train/start", json={"weights": "none"})):
            assert (answer.status_code, answer.json()["code"]) == (400, "webapp.labels-missing")
    assert not place.labels.exists()
    kept.rename(place.labels)
    assert said(everything(other))[0] == "wasp"


@pytest.fixture
def theirs(place: Workspace, client: TestClient) -> TestClient:
    """A second studio of the same photographs and label file, which began as the first one did."""
    everything(client)
    other = TestClient(create_app(open_workspace(place.photographs)), raise_server_exceptions=False)
    everything(other)
    return other


def rows(place: Workspace) -> list[tuple[str, str]]:
    return [(own.path, own.label) for own in labels_so_far(place.labels).edits]


def test_two_studios_undo_their_own_steps(client: TestClient, theirs: TestClient, place: Workspace) -> None:
    version = everything(client)["version"]
    ask(client, "labels", version=version, images=[0, 3], label="mine")
    ask(theirs, "labels", version=version, images=[1, 2, 3], label="theirs")
    told = ask(client, "undo")
    assert said(told)[:4] == ["blue", "theirs", "theirs", "theirs"]
    assert rows(place) == [("blue/img2.png", "theirs"), ("blue/img3.png", "theirs"), ("blue/img4.png", "theirs")]
    assert everything(client)["can_undo"] is False
    ask(client, "undo")  # a page that has not heard of it yet
    assert len(rows(place)) == 3
    again = TestClient(create_app(open_workspace(place.photographs)))  # a studio of tomorrow undoes what it finds
    assert said(ask(again, "undo"))[:3] == ["blue", "blue", "blue"]


def test_rows_that_a_spreadsheet_wrote_over_are_put_back(client: TestClient, place: Workspace) -> None:
    """It had read the file before the studio appended to it."""
    version = everything(client)["version"]
    ask(client, "labels", version=version, images=[0], label="mine")
    old = place.labels.read_text()
    ask(client, "labels", version=version, images=[1, 2], label="mine")
    ask(client, "labels", version=version, images=[3], label="mine")
    place.labels.write_text(old.replace("\n", "\r\n") + "blue/img4.png,theirs\r\nred/img1.png,theirs\r\n")
    told = everything(client)
    assert said(told)[:4] == ["mine", "mine", "mine", "theirs"]
    (news,) = told["news"]
    assert news.startswith("3 rows ") and str(place.labels) in news and "2 of them put back" in news
    assert everything(client)["news"] == []
    assert said(ask(client, "undo"))[:4] == ["mine", "blue", "blue", "theirs"], "the rows by hand are not undone"
    undo_edits(place.labels)  # from Python, or by hand: what somebody takes out stays out
    kept = rows(place)
    assert said(everything(client))[:4] == [dict(kept).get(f"blue/img{i}.png", "blue") for i in (1, 2, 3, 4)]
    assert rows(place) == kept


def test_a_photograph_that_is_gone_gets_no_label(place: Workspace, tmp_path: Path) -> None:
    client = opened(place, tmp_path / "own")
    version = everything(client)["version"]
    (tmp_path / "own" / "blue" / "img1.png").unlink()
    answer = client.post("/api/data/labels", json={"version": version, "images": [5, 0], "label": "red"})
    assert (answer.status_code, answer.json()["code"]) == (400, "webapp.photograph-missing")
    answer = client.post("/api/data/classes/rename", json={"old": "blue", "new": "azure"})
    assert answer.status_code == 400
    assert not place.labels.exists()
    ask(client, "labels", version=version, images=[1, 5], label="red")
    shutil.copy(tmp_path / "own" / "red" / "img1.png", tmp_path / "own" / "blue" / "new.png")
    assert len(client.get("/api/data/all?anew=true").json()["paths"]) == 12, "what comes later is seen when asked for"
    answer = client.post("/api/data/labels", json={"version": version, "images": [0], "label": "red"})
    assert answer.status_code == 409


@pytest.fixture
def doubtful(place: Workspace) -> None:
    """A run that doubts three labels."""
    folder = place.runs / "first"
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text("")
    write_json(folder / "split.json", split_to_dict(replace(read_source(place.photographs), splits=("test",) * 12)))
    write_label_errors(
        folder / "label_errors.csv", [LabelError(f"blue/img{i}.png", "blue", "red", 0.9, 0.1) for i in (1, 2, 3)]
    )


@pytest.mark.usefixtures("doubtful")
def test_who_follows_a_suggestion_that_is_shown_has_not_labelled_alone(client: TestClient, place: Workspace) -> None:
    version = everything(client)["version"]
    for image, label in ((0, "red"), (1, ""), (2, "green"), (3, "red")):
        ask(client, "labels", version=version, images=[image], label=label)
    ask(client, "labels", version=version, images=[2], label="red")  # which is no longer shown as doubtful
    assert [own.proposed_by for own in labels_so_far(place.labels).edits] == ["first", "first", "", "", ""]


@pytest.mark.usefixtures("doubtful")
def test_a_label_of_the_file_is_no_decision_but_a_later_row_is(client: TestClient, place: Workspace) -> None:
    """The run was trained on labels of the label file: these are the ones that it suspects."""
    add_edits(place.labels, [Edit(f"blue/img{i}.png", "blue") for i in (1, 2)])
    shutil.copy(place.labels, place.runs / "first" / "labels.csv")
    told = everything(client)
    assert sorted(told["doubts"]) == ["0", "1", "2"] and told["decided"] == []
    assert told["doubts"]["0"]["suggested"] == "red" and float(told["doubts"]["0"]["score"]) == 0.9
    address = "/api/results/runs/first/suspects"
    assert {own["state"] for own in client.get(address).json()["suspects"]} == {"open"}
    kept = ask(client, "labels", version=told["version"], images=[0], label="blue")  # the class that it has
    assert kept["decided"] == [0]
    assert labels_so_far(place.labels).edits[-1][:3] == ("blue/img1.png", "blue", "blue")
    assert ask(client, "labels", version=told["version"], images=[1], label="green")["decided"] == [0, 1]
    assert [own["state"] for own in client.get(address).json()["suspects"]] == ["kept", "relabelled", "open"]
    rows = len(labels_so_far(place.labels).edits)
    ask(client, "labels", version=told["version"], images=[0, 4], label="blue")
    assert len(labels_so_far(place.labels).edits) == rows + 1, "a confirmation is written once"
    shutil.copy(place.labels, place.runs / "first" / "labels.csv")  # a later run that suspects the same label
    assert everything(client)["decided"] == [0], "what was confirmed stays decided"


def predict_blue(arguments: list[str], out: Path) -> None:
    """In the place of `vitkit predict RUN FILE ... --out FILE`."""
    verb, run, *files = arguments
    assert (verb, Path(run).name) == ("predict", "first")
    rows = [f"{file},blue,0.{99 - i}0" for i, file in enumerate(files)]
    out.write_text("path,label,confidence,error\n" + "\n".join(rows) + "\n")


@pytest.mark.usefixtures("doubtful")
def test_what_a_model_suggests_for_photographs_without_a_class_is_marked_when_it_is_accepted(
    client: TestClient, place: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_tab, "run_vitkit", predict_blue)
    version = everything(client)["version"]
    assert client.post("/api/data/suggest").json()["code"] == "webapp.model-missing"
    (place.runs / "first" / "model.json").write_text("{}")
    assert client.post("/api/data/suggest").json()["code"] == "webapp.class-everywhere"
    ask(client, "labels", version=version, images=[4, 5, 6, 7], label=None)
    ask(client, "suggest")
    while (told := client.get("/api/data/suggest").json())["running"]:
        time.sleep(0.01)
    assert told["found"] == {"4": ["blue", 0.99], "5": ["blue", 0.98], "6": ["blue", 0.97], "7": ["blue", 0.96]}
    ask(client, "labels", version=version, images=[4], label="blue", run="first", suggested=[4])
    ask(client, "labels", version=version, images=[5], label="red")
    groups = [{"label": "blue", "images": [4, 5, 6, 7]}]
    accepted = ask(client, "accept", version=version, run="first", groups=groups)
    assert said(accepted)[4:8] == ["blue", "red", "blue", "blue"]
    edits = labels_so_far(place.labels).edits[4:]
    assert [(own.label, own.proposed_by) for own in edits] == [("blue", "first"), ("red", ""), *[("blue", "first")] * 2]
    assert client.get("/api/data/suggest").json()["found"] == {}
    assert said(ask(client, "undo"))[4:8] == ["blue", "red", "none", "none"], "all that was accepted is one step"
    for path, body in (
        ("accept", {"run": "../runs", "groups": groups}),
        ("labels", {"run": "first", "images": [4], "label": "red", "suggested": [12]}),
    ):
        assert client.post(f"/api/data/{path}", json={"version": version, **body}).status_code == 400


def test_random_edits_and_their_undoing_agree_with_a_dictionary(place: Workspace) -> None:
    """An oracle of its own: labels as a list, and the lists before each step."""
    rng, photographs = random.Random(0), Photographs(place)
    state = photographs.read()
    expected, before = list(state.labels), []
    for _ in range(40):
        if before and rng.random() < 0.25:
            expected = before.pop()
            state = photographs.undo()
        else:
            label = rng.choice(("red", "blue", "new", "", "unlabelled", "<b>"))
            images = rng.sample(range(len(expected)), rng.randint(1, 4))
            if any(expected[i] != label for i in images):
                before.append(list(expected))
            for i in images:
                expected[i] = label
            state = photographs.label(state.version, images, label)
        assert list(state.labels) == expected
    assert list(Photographs(place).read().labels) == expected
