"""`vitkit.export`, beside `vitkit export`."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import vitkit
from cli.conftest import vitkit as command
from vitkit.exporting import load_exported

__all__ = ["command"]


def without_seconds(text: str) -> str:
    return re.sub(r"in \d+\.\d s|images per second here: .*", "", text)


def test_function_and_command_agree(command: Any, classifier_folder: Path, tmp_path: Path) -> None:
    found = vitkit.export(classifier_folder, out=tmp_path / "ours.xml", image_size=(16, 12), dynamic_batch=False)
    flags = ("--image-size", "16,12", "--no-dynamic-batch")
    said = command("export", classifier_folder, "-o", tmp_path / "theirs.xml", *flags)
    ours = "".join(f"{line}\n" for line in found.lines())
    assert without_seconds(said.out).replace("theirs", "ours") == without_seconds(ours)
    assert said.code == 0
    assert (found.to, found.image_size, found.batch) == ("openvino", (16, 12), 1)
    assert (tmp_path / "ours.xml").read_bytes() == (tmp_path / "theirs.xml").read_bytes()
    told = json.loads(
        command("export", classifier_folder, "-o", tmp_path / "theirs.xml", *flags, "--force", "--json").out
    )
    figures = found.to_dict()
    assert told.keys() == figures.keys()
    for name in told.keys() - {"file", "seconds", "images_per_s"}:
        assert told[name] == figures[name], name


def test_a_classifier_in_memory_is_written(classifier_folder: Path, tmp_path: Path) -> None:
    found = vitkit.export(vitkit.load(classifier_folder), "openvino", tmp_path / "own.xml")
    assert "synthetic images (no photographs were named)" in found.compared_on
    assert load_exported(found.file).classes == tuple("abcdefg")
    assert repr(found).startswith(f"<export: {tmp_path / 'own.xml'}: 0.")
    assert "OpenVINO, float32: max |Δlogit|" in found._repr_html_()


def test_what_is_no_choice_is_refused(classifier_folder: Path) -> None:
    for options, complaint in (
        ({}, "name the runtime: to onnx, openvino, executorch, litert, torch, html, zip, coreml or tensorrt"),
        ({"out": "a.h5"}, r"out a\.h5 must end in \.onnx, \.xml, \.pte, \.tflite, \.pt2, \.html, \.zip, \.coreml or"),
        ({"to": "onnx", "image_size": (0, 3)}, "image_size 0,3 must be one number of pixels"),
    ):
        with pytest.raises(vitkit.VitkitError, match=complaint):
            vitkit.export(classifier_folder, **options)


def test_what_only_a_folder_has_is_refused_of_a_classifier(
    classifier_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for options, complaint in (
        ({"to": "onnx"}, r"a classifier in memory has no name: name a file with out=FILE\.onnx"),
        ({"out": "a.onnx", "image_size": 32}, "the size of a classifier in memory is fixed"),
        ({"out": "a.onnx", "data_root": "photos"}, "data_root applies to the images of a run"),
    ):
        with pytest.raises(vitkit.VitkitError, match=complaint):
            vitkit.export(vitkit.load(classifier_folder), **options)
    assert list(tmp_path.iterdir()) == []
