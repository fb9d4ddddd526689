"""`vitkit.export`, beside `vitkit export`."""

import json
from pathlib import Path
from typing import Any

import pytest

import vitkit
from cli.conftest import vitkit as command
from refusals import refused

__all__ = ["command"]


def test_function_and_command_agree(command: Any, classifier_folder: Path, tmp_path: Path) -> None:
    found = vitkit.export(classifier_folder, out=tmp_path / "ours.xml", image_size=(16, 12))
    flags = ("--image-size", "16,12", "--json")
    said = command("export", classifier_folder, "-o", tmp_path / "theirs.xml", *flags)
    told, figures = json.loads(said.out), found.to_dict()
    assert (said.code, told.keys()) == (0, figures.keys())
    for name in told.keys() - {"file", "seconds", "images_per_s"}:
        assert told[name] == figures[name], name
    assert (found.to, found.image_size, found.batch) == ("openvino", (16, 12), None)
    assert "synthetic images (no photographs were named)" in found.compared_on
    assert "OpenVINO, float32: max |Δlogit|" in found._repr_html_()
    assert (tmp_path / "ours.xml").read_bytes() == (tmp_path / "theirs.xml").read_bytes()


@pytest.mark.parametrize(
    ("is_in_memory", "options", "code", "named"),
    [
        (False, {}, "verbs.out-missing", "onnx"),
        (False, {"to": "onnx", "image_size": (0, 3)}, "verbs.option-invalid", "image_size"),
        (True, {"out": "a.onnx", "image_size": 32}, "verbs.model-in-memory", ""),
        (True, {"out": "a.onnx", "data_root": "photos"}, "exporting.run-missing", "data_root"),
    ],
)
def test_what_is_no_choice_is_refused(
    classifier_folder: Path, tmp_path: Path, monkeypatch: Any, is_in_memory: bool, options: Any, code: str, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with refused(code, named):
        vitkit.export(vitkit.load(classifier_folder) if is_in_memory else classifier_folder, **options)
    assert list(tmp_path.iterdir()) == []
