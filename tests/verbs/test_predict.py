"""`vitkit.predict`: what `vitkit predict` does, from Python."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import vitkit as package
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.errors import VitkitError
from vitkit.inference.backends import registry
from vitkit.weights import load

CLASSES = ("blue", "green", "<red>")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Random weights, which answer at once."""
    Classifier(build(image_size=(16, 16), num_classes=3), CLASSES, Preprocess(size=(16, 16))).save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def photos(data: Path, tmp_path: Path) -> Path:
    """Three photographs and a file that is none."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in (1, 2, 3):
        (folder / f"{i}.png").write_bytes((data / "red" / f"img{i}.png").read_bytes())
    (folder / "4.png").write_text("not a picture")
    return folder


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl"])
@pytest.mark.parametrize(
    ("values", "flags"),
    [({}, ()), ({"top": 2, "reject": 0.4}, ("--top", 2, "--reject", 0.4)), ({"top": 9}, ("--top", 9))],
)
def test_function_and_command_write_the_same_file(
    vitkit: Any, model: Path, photos: Path, tmp_path: Path, name: str, values: dict[str, Any], flags: tuple[Any, ...]
) -> None:
    own, other = tmp_path / f"own-{name}", tmp_path / f"other-{name}"
    found = package.predict(model, photos, out=own, **values)
    outcome = vitkit("predict", model, photos, *flags, "-o", other)
    assert own.read_bytes() == other.read_bytes()
    assert outcome.out == f"{found.lines()[0].removesuffix(str(own))}{other}\n"
    in_memory = package.predict(str(model), [str(photos)], **values)
    assert (len(found), found.is_whole) == (len(in_memory), in_memory.is_whole) == (4, False)
    for row, kept in zip(found, in_memory, strict=True):
        assert (row.path, row.label, row.name, row.error) == (kept.path, kept.label, kept.name, kept.error)
        assert [label for label, _ in row.top] == [label for label, _ in kept.top]
        assert row.confidence == (None if kept.confidence is None else pytest.approx(kept.confidence, abs=1e-6))
    if name.endswith(".jsonl"):
        assert found.to_dict()["predictions"] == [json.loads(line) for line in own.read_text().splitlines()]


def test_predictions_are_shown_in_a_line_and_in_a_notebook(model: Path, photos: Path) -> None:
    found = package.predict(model, photos, backend="eager", precision="float32")
    assert repr(found) == "<Predictions: 4 images (1 unreadable), eager, float32>"
    page = found._repr_html_()
    assert page.count("<tr>") == 5
    assert "<red>" not in page
    assert "not an image" in page
    json.dumps(found.to_dict())


@pytest.fixture
def stopped(model: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The rows of an uninterrupted prediction with OpenVINO, of which out.csv.partial has the first.

    `auto` is OpenVINO for the four images, but not for the three that remain.
    """
    pytest.importorskip("openvino")
    for name, row in registry.BACKENDS.items():
        monkeypatch.setitem(registry.BACKENDS, name, replace(row, auto_from=min(row.auto_from, 4)))
    whole, out = tmp_path / "whole.csv", tmp_path / "out.csv"
    package.predict(model, photos, out=whole, batch_size=1)

    def stop(task: str, done: int, of: int) -> None:
        if (task, done) == ("predicting", 1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        package.predict(model, photos, out=out, batch_size=1, progress=stop)
    assert len((tmp_path / "out.csv.partial").read_bytes().splitlines()) == 2
    return whole.read_bytes()


def test_the_rest_is_computed_as_the_whole_would_be(
    model: Path, photos: Path, tmp_path: Path, stopped: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    openvino = registry.BACKENDS["openvino"]
    monkeypatch.setitem(registry.BACKENDS, "openvino", replace(openvino, auto_from=500))  # as another version might
    found = package.predict(model, photos, out=tmp_path / "out.csv", batch_size=1, resume=True)
    assert found.computed.startswith("openvino")
    assert (tmp_path / "out.csv").read_bytes() == stopped
    assert [path.name for path in tmp_path.glob("out.csv*")] == ["out.csv"]


def test_rows_without_a_record_are_continued_as_the_whole_would_be_computed(
    model: Path, photos: Path, tmp_path: Path, stopped: bytes
) -> None:
    (tmp_path / "out.csv.partial.json").unlink()
    found = package.predict(model, photos, out=tmp_path / "out.csv", batch_size=1, resume=True)
    assert found.computed.startswith("openvino")
    assert (tmp_path / "out.csv").read_bytes() == stopped


def test_a_backend_that_is_gone_is_not_replaced_in_silence(
    model: Path, photos: Path, tmp_path: Path, stopped: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.csv"
    monkeypatch.setattr(registry, "find_spec", lambda _: None)
    with pytest.raises(VitkitError, match=r"out.csv.partial were computed by openvino.*needs openvino.*--backend"):
        package.predict(model, photos, out=out, resume=True)
    found = package.predict(model, photos, out=out, backend="eager", resume=True)
    assert any("1 row was computed by" in note and "openvino" in note and "eager" in note for note in found.notes)


@pytest.mark.parametrize("record", ["{", "[]", '{"backend": "openvino"}', '{"backend": 1, "precision": 2}'])
def test_a_damaged_record_is_told_in_a_line(
    model: Path, photos: Path, tmp_path: Path, stopped: bytes, record: str
) -> None:
    (tmp_path / "out.csv.partial.json").write_text(record)
    with pytest.raises(VitkitError, match=r"out.csv.partial.json"):
        package.predict(model, photos, out=tmp_path / "out.csv", resume=True)


def test_the_rest_is_computed_by_the_plan_of_the_first_rows(
    model: Path, photos: Path, tmp_path: Path, stopped: bytes
) -> None:
    computation = {"backend": "eager", "precision": "float32", "plan": "folded-fused"}
    (tmp_path / "out.csv.partial.json").write_text(json.dumps(computation))
    found = package.predict(model, photos, out=tmp_path / "out.csv", resume=True)
    assert found.computed == "eager, float32, plan folded-fused"


def test_rows_of_an_earlier_version_are_continued_unless_it_merged_patches(
    model: Path, photos: Path, tmp_path: Path, stopped: bytes
) -> None:
    record = tmp_path / "out.csv.partial.json"
    computation = json.loads(record.read_text())
    record.write_text(json.dumps(computation | {"merge": 2}))
    with pytest.raises(VitkitError, match=r"out.csv.partial do not fit \(they were computed with --merge"):
        package.predict(model, photos, out=tmp_path / "out.csv", resume=True)
    record.write_text(json.dumps(computation | {"merge": 0}))
    package.predict(model, photos, out=tmp_path / "out.csv", batch_size=1, resume=True)
    assert (tmp_path / "out.csv").read_bytes() == stopped


def test_notes_are_told_and_kept(model: Path, photos: Path) -> None:
    (photos / ".hidden").mkdir()
    (photos / "1.png").rename(photos / ".hidden" / "1.png")
    told: list[str] = []
    found = package.predict(model, photos, note=told.append)
    assert list(found.notes) == told
    assert any(".hidden" in note for note in told)


def test_a_writer_gets_each_prediction_and_none_is_kept(model: Path, photos: Path) -> None:
    began: list[int] = []
    seen: list[str] = []

    def begin(form: Any, images: int) -> Any:
        began.append(images)
        return lambda prediction: seen.append(form.encode(prediction))

    found = package.predict(model, photos, writer=begin)
    assert (began, len(seen), found.kept, found.images) == ([4], 4, (), 4)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"top": 0}, "--top must be at least 1, not 0"),
        ({"batch_size": 0}, "--batch-size must be at least 1"),
        ({"backend": "fastest"}, "fastest"),
        ({"precision": "float16"}, "float16"),
        ({"out": "out.txt"}, "must end in .csv or .jsonl"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_made(
    model: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(VitkitError, match=told):
        package.predict(model, "photos", **values)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("folder", ["photos", "photos/drawn"])
def test_pictures_of_a_single_photograph_do_not_land_among_others(
    model: Path, photos: Path, tmp_path: Path, folder: str
) -> None:
    before = {path: path.read_bytes() for path in photos.iterdir()}
    with pytest.raises(VitkitError, match=r"--pictures .* nothing is written next to the photographs"):
        package.predict(model, photos / "1.png", pictures=tmp_path / folder, force=True)
    assert {path: path.read_bytes() for path in photos.iterdir()} == before


def test_a_folder_beside_a_photograph_in_the_current_folder_is_no_folder_among_photographs(
    model: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos)
    package.predict(model, "1.png", pictures="drawn")
    assert [path.name for path in Path("drawn").iterdir()] == ["1.png.png"]


def test_no_thread_is_left_if_rows_cannot_be_written(model: Path, data: Path) -> None:
    before = set(threading.enumerate())

    def refuse(_: str, done: int, __: int) -> None:
        if done:
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left") as caught:  # which refers to everything that was computing
        package.predict(load(model).use("eager"), [str(data)] * 3, batch_size=1, progress=refuse)
    assert caught.value is not None and set(threading.enumerate()) <= before
