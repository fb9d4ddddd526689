"""`vitkit export`, and `predict` and `eval` of what it wrote."""

import csv
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from breaking import in_card

import photos
import runs
from exporting.ready import exported
from vitkit.data import read_source, split_to_dict
from vitkit.exporting import FORMATS, choose_pictures, openvino_format


@pytest.mark.parametrize("to", ["openvino", pytest.param("onnx", marks=pytest.mark.accept)])
def test_predict_and_eval_take_the_file_and_nothing_asks_the_network(
    vitkit: Any, trained: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    asked: list[Any] = []

    def refuse(*arguments: Any, **_: Any) -> None:
        asked.append(arguments)
        raise OSError

    for name in ("socket.connect", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(f"socket.{name}", refuse)
    file = tmp_path / f"run{FORMATS[to].suffix}"
    outcome = vitkit("export", trained, "-o", file)
    assert outcome.code == 0 and "Warning" not in outcome.err  # of the converter
    assert outcome.out.startswith("compared on 3 val images of ") and f"{file}: " in outcome.out.splitlines()[-1]
    exact = ("--backend", to, "--precision", "float32")
    found = vitkit("predict", file, data, *exact)
    expected = vitkit("predict", trained, data, "--backend", "eager", "--precision", "float32")
    assert found.code == 0 and f"36 images (0 unreadable), {to}, float32" in found.err
    rows, own = (list(csv.DictReader(io.StringIO(each.out))) for each in (found, expected))
    assert [row["label"] for row in rows] == [row["label"] for row in own]
    assert all(abs(float(a["confidence"]) - float(b["confidence"])) < 1e-5 for a, b in zip(rows, own, strict=True))
    numbers = json.loads(vitkit("eval", file, data, "--json", *exact).out)
    assert numbers["backend"] == to
    assert numbers["accuracy"] == sum(Path(row["path"]).parent.name == row["label"] for row in rows) / len(rows)
    assert asked == []


def test_what_needs_the_model_refuses_files(vitkit: Any, data: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    file = exported(".xml")
    maps, features = ("explain", data, "-o", "maps"), ("embed", data, "-o", "f.npz")
    for verb, *flags in (maps, features, ("info",), ("export", "-o", "model.onnx")):
        outcome = vitkit(verb, file, *flags)
        assert outcome.code == 2, verb
        assert outcome.err.startswith(f"error: {file} is ") and outcome.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_without_photographs_synthetic_images_are_compared_and_named(
    vitkit: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.xml").write_text("mine")
    figures = json.loads(vitkit("export", model, "--to", "openvino", "--json", "--force").out)
    assert figures["file"] == "model.xml", "the default name is the model's"
    assert figures["compared_on"] == "64 synthetic images (no photographs were named)"
    assert figures["comparison"]["images"] == 64
    assert figures["size"] == sum(path.stat().st_size for path in tmp_path.iterdir() if path.suffix != ".json")


def test_what_a_file_is_compared_on(trained: Path, tmp_path: Path) -> None:
    """At most 200 images of every class; synthetic ones for a run whose photographs are gone."""
    data = photos.folder(tmp_path / "data", {"a": 150, "b": 140, "c": 60}, 2, 2)
    chosen = choose_pictures("model", str(data))
    assert chosen.description == f"200 labelled images of {data}"
    counts = [sum(Path(str(path)).parent.name == name for path in chosen.images) for name in "abc"]
    assert counts == [86, 80, 34]
    run = shutil.copytree(trained, tmp_path / "run")
    text = (run / "split.json").read_text()
    root = json.loads(text)["root"]
    (run / "split.json").write_text(text.replace(json.dumps(root), json.dumps(str(tmp_path / "gone"))))
    chosen = choose_pictures(run, None)
    assert chosen.description.startswith("64 synthetic images (") and str(tmp_path / "gone") in chosen.description


def test_a_file_may_lie_beside_a_list_of_photographs(tmp_path: Path) -> None:
    """One that is named, or that of a run."""
    data = photos.folder(tmp_path / "photos", {"a": 8, "b": 8})
    rows = [f"{file.relative_to(tmp_path)},{file.parent.name}" for file in sorted(data.rglob("*.png"))]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *rows]))
    table = replace(read_source(tmp_path / "labels.csv"), splits=("train", "val") * 8)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "split.json").write_text(json.dumps(split_to_dict(table)))
    assert choose_pictures(None, str(tmp_path / "labels.csv")).folders == ()
    assert choose_pictures(tmp_path / "run", None).folders == ()


def test_a_broken_export_exits_with_1_and_leaves_nothing(
    vitkit: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_card("0.4, 0.5, 0.6", "0.485, 0.456, 0.406")(monkeypatch, openvino_format)
    outcome = vitkit("export", model, "-o", tmp_path / "model.xml")
    assert outcome.code == 1
    assert outcome.err.startswith("refused: ") and outcome.err.endswith("; nothing was written\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--to onnx -o model.xml", "--out model.xml must end in"),
        ("-o nowhere/model.onnx", "there is no folder nowhere"),
        ("-o there.onnx", "there.onnx exists"),
        ("-o half.xml", "half.bin exists"),
        ("-o folder.onnx", "folder.onnx is a folder"),
        ("-o new.onnx --image-size 13,16", "not divisible by patch_size"),
        ("-o photos/red/new.onnx --data photos", "next to the photographs"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_written(
    vitkit: Any, model: Path, tmp_path: Path, monkeypatch: Any, flags: str, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    runs.photos(Path("photos"), images=2)
    Path("there.onnx").write_text("mine")
    Path("half.bin").write_text("mine")
    Path("folder.onnx").mkdir()
    before = photos.fingerprint(tmp_path)
    outcome = vitkit("export", model, *flags.split())
    assert outcome.code == 2 and named in outcome.err
    assert photos.fingerprint(tmp_path) == before


def test_a_full_disk_leaves_nothing(vitkit: Any, model: Path, tmp_path: Path) -> None:
    with runs.files_of_at_most(40_000):
        outcome = vitkit("export", model, "-o", tmp_path / "model.xml")
    assert outcome.code == 2 and outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
