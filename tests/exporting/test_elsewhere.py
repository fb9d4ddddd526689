"""Folders for Core ML and TensorRT: what they contain, what `verify.py` finds, and what is never lost."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitkit
from refusals import refused
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.exporting import elsewhere

WITH_ONNX_RUNTIME = """
import onnxruntime
from pathlib import Path
_SESSION = onnxruntime.InferenceSession(Path(__file__).with_name("model.onnx"))
def logits(images):
    return _SESSION.run(["logits"], {"images": images})[0]
"""


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return Classifier(build(), tuple("abcdefg"), Preprocess(size=(12, 16)), temperature=1.7)


@pytest.fixture
def folder(classifier: Classifier, tmp_path: Path) -> Path:
    """An unverified folder for TensorRT, whose model ONNX Runtime computes."""
    folder = Path(vitkit.export(classifier, out=tmp_path / "a.tensorrt").file)
    (folder / "model.py").write_text(WITH_ONNX_RUNTIME)
    return folder


def verify(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "verify.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)


def test_a_folder_says_that_it_was_not_verified(classifier: Classifier, tmp_path: Path) -> None:
    models = pytest.importorskip("coremltools.models")
    found = vitkit.export(classifier, out=tmp_path / "a.coreml", precision="float16")
    assert [path.name for path in tmp_path.iterdir()] == ["a.coreml.unverified"] == [found.file.name]
    assert "Not verified: Core ML needs macOS." in found.lines()[-2]
    expected = {"expected.npz", "model.json", "model.mlpackage", "model.py", "verify.py"}
    assert {path.name for path in found.file.iterdir()} == expected
    described = models.MLModel(str(found.file / "model.mlpackage"), skip_model_load=True).get_spec().description
    inputs = [(value.name, list(value.type.multiArrayType.shape)) for value in described.input]
    assert inputs == [("images", [1, 3, 12, 16])]
    assert [value.name for value in described.output] == ["logits"]
    assert json.loads(described.metadata.userDefined["vitkit"])["classes"] == list("abcdefg")


def test_the_script_verifies_the_model_and_renames_the_folder(folder: Path, classifier: Classifier) -> None:
    stored = np.load(folder / "expected.npz")
    assert len(stored["images"]) == 32
    expected = classifier.model(torch.from_numpy(stored["images"])).detach().numpy()
    assert np.abs(stored["logits"] - expected).max() < 1e-5
    for fault in ("images[:, ::-1]", "images * 1.1", "images * float('nan')"):
        script = WITH_ONNX_RUNTIME.replace('"images": images', f'"images": ({fault}).astype("float32")')
        (folder / "model.py").write_text(script)
        ran = verify(folder)
        assert ran.returncode == 1 and "the model does not compute what the original did" in ran.stderr
        assert folder.is_dir()
    (folder / "model.py").write_text(WITH_ONNX_RUNTIME)
    ran = verify(folder)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith("verified\n")
    assert not folder.exists() and folder.with_suffix("").is_dir()


def test_a_runtime_that_is_installed_verifies_at_once(
    classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    static = tmp_path / "static"
    static.mkdir()
    (static / "tensorrt.py").write_text(WITH_ONNX_RUNTIME)
    (static / "verify.py").write_text((elsewhere._STATIC / "verify.py").read_text())
    monkeypatch.setattr(elsewhere, "_STATIC", static)
    here = elsewhere.replace(elsewhere.ELSEWHERE["tensorrt"], is_here=lambda: True)
    monkeypatch.setitem(elsewhere.ELSEWHERE, "tensorrt", here)
    found = vitkit.export(classifier, out=tmp_path / "a.tensorrt")
    assert (found.file.name, found.to_dict()["is_verified"]) == ("a.tensorrt", True)
    (static / "tensorrt.py").write_text(WITH_ONNX_RUNTIME.replace("[0]", "[0] + 1"))
    before = (found.file / "model.onnx").read_bytes()
    with refused("exporting.check-failed"):
        vitkit.export(classifier, out=tmp_path / "a.tensorrt", force=True)
    assert (found.file / "model.onnx").read_bytes() == before, "what was there is kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tensorrt", "static"]


def test_only_folders_of_vitkit_are_replaced(folder: Path, classifier: Classifier) -> None:
    out = folder.with_suffix("")
    with refused("exporting.file-exists", "a.tensorrt.unverified"):
        vitkit.export(classifier, out=out)
    vitkit.export(classifier, out=out, force=True)
    assert "polygraphy" in (folder / "model.py").read_text()
    (folder / "verify.py").unlink()
    with refused("exporting.folder-foreign", "a.tensorrt.unverified"):
        vitkit.export(classifier, out=out, force=True)
    assert (folder / "model.onnx").is_file()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"out": "a.coreml", "precision": "int8"}, "exporting.precision-unsupported"),
        ({"out": "a.tensorrt", "precision": "float16"}, "exporting.precision-unsupported"),
        ({"out": "a.tensorrt", "dynamic_batch": False}, "verbs.option-conflict"),
        ({"out": "a.coreml"}, "exporting.package-missing"),
    ],
)
def test_what_cannot_be_written_is_refused(
    classifier: Classifier, options: dict[str, Any], code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if code == "exporting.package-missing":
        monkeypatch.setattr("vitkit.exporting.formats.find_spec", lambda _: None)
    with refused(code):
        vitkit.export(classifier, **options)
    assert list(tmp_path.iterdir()) == []
