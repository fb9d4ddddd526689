"""`vitkit export`, and `predict` and `eval` of what it wrote."""

import csv
import io
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from breaking import in_card

import photos
import runs
import warm
from vitkit.data import read_source, split_to_dict
from vitkit.exporting import FORMATS, choose_pictures, onnx_format


def test_a_run_is_compared_on_its_own_validation_images(vitkit: Any, trained: Path, tmp_path: Path) -> None:
    outcome = vitkit("export", trained, "--to", "onnx", "-o", tmp_path / "run.onnx")
    assert outcome.code == 0 and "Warning" not in outcome.err  # of the converter
    first, second, accuracy, speed, last = outcome.out.splitlines()
    assert first.startswith("compared on 3 val images of ")
    assert "ONNX Runtime, float32: max |Δlogit| " in second
    assert "cosine 1.000000, top-1 agreement 100.00%" in second
    assert "on 3 images (95 %: " in accuracy and "; 100.0% get the same classes (95 %: 29.2% to 100.0%)" in accuracy
    assert speed.startswith("images per second here: file ") and ", eager float32 " in speed
    assert f"{tmp_path / 'run.onnx'}: " in last
    assert "(weights float32, 16x16 pixels, any batch)" in last


@pytest.mark.parametrize("suffix", [".onnx", ".xml"])
def test_predict_and_eval_take_the_file(vitkit: Any, trained: Path, data: Path, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"run{suffix}"
    assert vitkit("export", trained, "-o", file).code == 0
    plain = ("--backend", "eager", "--precision", "float32")
    backend = FORMATS["onnx" if suffix == ".onnx" else "openvino"].backend
    exact = ("--backend", backend, "--precision", "float32")
    found, expected = vitkit("predict", file, data, *exact), vitkit("predict", trained, data, *plain)
    assert found.code == 0
    assert f"36 images (0 unreadable), {backend}, float32" in found.err
    rows, own = (list(csv.DictReader(io.StringIO(each.out))) for each in (found, expected))
    assert [row["label"] for row in rows] == [row["label"] for row in own]
    assert all(abs(float(a["confidence"]) - float(b["confidence"])) < 1e-5 for a, b in zip(rows, own, strict=True))
    numbers = json.loads(vitkit("eval", file, data, "--json", *exact).out)
    same = json.loads(vitkit("eval", trained, data, "--split", "all", "--json", *plain).out)
    assert numbers["backend"] == backend
    assert numbers["accuracy"] == same["accuracy"]
    assert numbers["log_loss"] == pytest.approx(same["log_loss"], abs=1e-5) if "log_loss" in same else True


@pytest.mark.parametrize("verb", ["explain", "embed", "info"])
def test_what_needs_the_model_refuses_files(vitkit: Any, model: Path, data: Path, tmp_path: Path, verb: str) -> None:
    file = tmp_path / "model.onnx"
    assert vitkit("export", model, "-o", file).code == 0
    rest = {"explain": (data, "-o", tmp_path / "maps"), "embed": (data, "-o", tmp_path / "f.npz"), "info": ()}[verb]
    outcome = vitkit(verb, file, *rest)
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: {file} is ")
    assert outcome.err.count("\n") == 1


def test_without_photographs_synthetic_images_are_compared_and_named(vitkit: Any, model: Path, tmp_path: Path) -> None:
    outcome = vitkit("export", model, "-o", tmp_path / "model.onnx", "--json")
    figures = json.loads(outcome.out)
    assert figures["compared_on"] == "64 synthetic images (no photographs were named)"
    assert figures["comparison"]["images"] == 64
    assert figures["size"] == (tmp_path / "model.onnx").stat().st_size


def test_a_run_whose_photographs_are_gone_says_so(trained: Path, tmp_path: Path) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    text = (run / "split.json").read_text()
    root = json.loads(text)["root"]
    (run / "split.json").write_text(text.replace(json.dumps(root), json.dumps(str(tmp_path / "gone"))))
    chosen = choose_pictures(run, None)
    assert chosen.what.startswith("64 synthetic images (")
    assert str(tmp_path / "gone") in chosen.what


def test_at_most_200_images_of_every_class(tmp_path: Path) -> None:
    data = photos.folder(tmp_path / "data", {"a": 150, "b": 140, "c": 60}, 2, 2)
    chosen = choose_pictures("model", str(data))
    assert chosen.what == f"200 labelled images of {data}"
    counts = [sum(Path(str(path)).parent.name == name for path in chosen.those) for name in "abc"]
    assert counts == [86, 80, 34]


@pytest.mark.parametrize("folder", ["photos", ""])
def test_a_file_may_lie_beside_a_list_of_photographs(
    vitkit: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    files = [photos.save(photos.noise(20, 20, i), Path(folder, f"{i}.png")) for i in range(8)]
    rows = [f"{file},{('red', 'blue')[i % 2]}" for i, file in enumerate(files)]
    Path("labels.csv").write_text("\n".join(["path,label", *rows]))
    assert vitkit("export", model, "-o", "m.onnx", "--data", "labels.csv").code == 0
    assert Path("m.onnx").is_file()


def test_the_file_of_a_run_on_a_list_may_lie_beside_the_list(tmp_path: Path) -> None:
    data = photos.folder(tmp_path / "photos", {"a": 8, "b": 8})
    rows = [f"{file.relative_to(tmp_path)},{file.parent.name}" for file in sorted(data.rglob("*.png"))]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *rows]))
    table = read_source(tmp_path / "labels.csv")
    table = replace(table, splits=("train", "val") * 8)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "split.json").write_text(json.dumps(split_to_dict(table)))
    assert choose_pictures(tmp_path / "run", None).folders == ()


def test_another_size_and_another_format(vitkit: Any, trained: Path, tmp_path: Path) -> None:
    outcome = vitkit("export", trained, "--image-size", "16,24", "-o", tmp_path / "wide.xml", "--no-dynamic-batch")
    assert outcome.code == 0
    assert "16x24 pixels, batch 1)" in outcome.out
    assert "OpenVINO, float32: max |Δlogit|" in outcome.out


def test_the_default_name_is_the_models(vitkit: Any, model: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert vitkit("export", model, "--to", "onnx").code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_a_broken_export_exits_with_1_and_leaves_nothing(
    vitkit: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_mean(card: str) -> str:
        return card.replace("0.4, 0.5, 0.6", "0.485, 0.456, 0.406")

    in_card(other_mean)(monkeypatch, onnx_format)
    outcome = vitkit("export", model, "-o", tmp_path / "model.onnx")
    assert outcome.code == 1
    assert outcome.err == "refused: the preprocess in the file differs from the model's; nothing was written\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ((), "name the runtime: --to onnx, openvino, executorch, litert, torch, html, zip, coreml or tensorrt"),
        (
            ("-o", "model.txt"),
            "--out model.txt must end in .onnx, .xml, .pte, .tflite, .pt2, .html, .zip, .coreml or .tensorrt",
        ),
        (("--to", "onnx", "-o", "model.xml"), "--out model.xml must end in .onnx for --to onnx"),
        (("-o", "nowhere/model.onnx"), "there is no folder nowhere"),
        (("-o", "there.onnx"), "there.onnx exists: choose a new name, or --force"),
        (("-o", "half.xml"), "half.bin exists: choose a new name, or --force"),
        (("-o", "folder.onnx"), "folder.onnx is a folder"),
        (("-o", "new.onnx", "--image-size", "0"), "--image-size 0 must be one number of pixels, or height,width"),
        (("-o", "new.onnx", "--image-size", "13,16"), "not divisible by patch_size"),
        (("-o", "new.onnx", "--data", "nowhere"), "no such folder: nowhere"),
        (("-o", "photos/red/new.onnx", "--data", "photos"), "nothing is written next to the photographs"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_written(
    vitkit: Any, model: Path, tmp_path: Path, monkeypatch: Any, flags: Any, complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    runs.photos(Path("photos"), images=2)
    Path("there.onnx").write_text("mine")
    Path("half.bin").write_text("mine")
    Path("folder.onnx").mkdir()
    before = sorted(tmp_path.rglob("*"))
    outcome = vitkit("export", model, *flags)
    assert outcome.code == 2
    assert complaint in outcome.err
    assert sorted(tmp_path.rglob("*")) == before


def test_force_writes_over(vitkit: Any, model: Path, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_text("mine")
    assert vitkit("export", model, "-o", tmp_path / "model.onnx", "--force").code == 0
    assert vitkit("predict", tmp_path / "model.onnx", photos.save(photos.noise(), tmp_path / "a.png")).code == 0


def test_an_exported_file_is_not_exported_again(vitkit: Any, model: Path, tmp_path: Path) -> None:
    assert vitkit("export", model, "-o", tmp_path / "model.onnx").code == 0
    outcome = vitkit("export", tmp_path / "model.onnx", "-o", tmp_path / "model.xml")
    assert outcome.code == 2
    assert "is already an exported file" in outcome.err


ON_ITS_OWN = """
import json, resource, socket, sys
def refuse(*arguments, **names):
    print("the network was asked for", file=sys.stderr)
    raise OSError
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
limit = int(sys.argv[1])
if limit: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
from vitkit.cli.app import main
for words in json.loads(sys.argv[2]):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        if end.code: raise
"""


@pytest.mark.parametrize("suffix", [".onnx", ".xml"])
def test_a_full_disk_leaves_nothing(model: Path, tmp_path: Path, suffix: str) -> None:
    done = _on_its_own(40_000, ["export", model, "-o", tmp_path / f"model{suffix}"])
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_nothing_asks_the_network(model: Path, tmp_path: Path) -> None:
    photo = photos.save(photos.noise(), tmp_path / "a.png")
    commands = []
    for suffix in (".onnx", ".xml"):
        file = tmp_path / f"model{suffix}"
        commands += [["export", model, "-o", file], ["predict", file, photo]]
    commands.append(["predict", model, photo, "--backend", "openvino"])
    done = _on_its_own(0, *commands)
    assert done.returncode == 0, done.stderr
    assert "network" not in done.stderr


def _on_its_own(limit: int, *commands: list[Any]) -> subprocess.CompletedProcess[str]:
    words = json.dumps([[str(word) for word in command] for command in commands])
    return subprocess.run(
        [warm.python(), "-c", ON_ITS_OWN, str(limit), words],
        env=runs.environment(), capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
