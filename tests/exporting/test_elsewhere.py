"""Folders for Core ML and TensorRT: what they contain, what `verify.py` finds, and what is never lost."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import vitkit
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.exporting import Refused, elsewhere

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
    found = vitkit.export(classifier, out=tmp_path / "a.coreml")
    assert found.file == tmp_path / "a.coreml.unverified"
    assert "Not verified: Core ML needs macOS." in found.lines()[-2]
    assert found.lines()[-1].startswith("expected.npz contains images (64 synthetic images")
    assert sorted(path.name for path in found.file.iterdir()) == [
        "expected.npz",
        "model.json",
        "model.mlpackage",
        "model.py",
        "verify.py",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["a.coreml.unverified"]


def test_the_core_ml_model_has_named_inputs_and_outputs_and_its_card(classifier: Classifier, tmp_path: Path) -> None:
    models = pytest.importorskip("coremltools.models")
    folder = Path(vitkit.export(classifier, out=tmp_path / "a.coreml", precision="float16").file)
    described = models.MLModel(str(folder / "model.mlpackage"), skip_model_load=True).get_spec().description
    assert [(value.name, list(value.type.multiArrayType.shape)) for value in described.input] == [
        ("images", [1, 3, 12, 16])
    ]
    assert [value.name for value in described.output] == ["logits"]
    assert json.loads(described.metadata.userDefined["vitkit"])["classes"] == list("abcdefg")


def test_the_script_verifies_the_model_and_renames_the_folder(folder: Path) -> None:
    ran = verify(folder)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith("verified\n")
    assert not folder.exists()
    assert folder.with_suffix("").is_dir()


@pytest.mark.parametrize("fault", ["images[:, ::-1]", "images * 1.1", "images * float('nan')"])
def test_the_script_refuses_another_computation(folder: Path, fault: str) -> None:
    script = WITH_ONNX_RUNTIME.replace('"images": images', f'"images": ({fault}).astype("float32")')
    (folder / "model.py").write_text(script)
    ran = verify(folder)
    assert ran.returncode == 1
    assert "the model does not compute what the original did" in ran.stderr
    assert folder.is_dir()


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
    (static / "tensorrt.py").write_text(WITH_ONNX_RUNTIME + "    logits = 3\n")
    wrong = WITH_ONNX_RUNTIME.replace("[0]", "[0] + 1")
    (static / "tensorrt.py").write_text(wrong)
    before = (found.file / "model.onnx").read_bytes()
    with pytest.raises(Refused, match="could not be verified: the model does not compute what the original did"):
        vitkit.export(classifier, out=tmp_path / "a.tensorrt", force=True)
    assert (found.file / "model.onnx").read_bytes() == before, "what was there is kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tensorrt", "static"]


def test_only_folders_of_vitkit_are_replaced(folder: Path, classifier: Classifier) -> None:
    out = folder.with_suffix("")
    with pytest.raises(vitkit.VitkitError, match=r"a\.tensorrt\.unverified exists: choose a new name, or force"):
        vitkit.export(classifier, out=out)
    vitkit.export(classifier, out=out, force=True)
    assert "polygraphy" in (folder / "model.py").read_text()
    (folder / "verify.py").unlink()
    with pytest.raises(vitkit.VitkitError, match=r"a\.tensorrt\.unverified was not written by vitkit export"):
        vitkit.export(classifier, out=out, force=True)
    assert (folder / "model.onnx").is_file()


def test_expected_logits_are_those_of_the_model(folder: Path, classifier: Classifier) -> None:
    import torch

    stored = np.load(folder / "expected.npz")
    assert len(stored["images"]) == 32
    expected = classifier.model(torch.from_numpy(stored["images"])).detach().numpy()
    assert np.abs(stored["logits"] - expected).max() < 1e-5


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"out": "a.coreml", "precision": "int8"}, "to coreml stores weights in float32 or float16, not int8"),
        ({"out": "a.tensorrt", "precision": "float16"}, "to tensorrt stores weights in float32, not float16"),
        ({"out": "a.tensorrt", "dynamic_batch": False}, "dynamic-batch cannot be combined with to tensorrt"),
    ],
)
def test_what_cannot_be_written_is_said(
    classifier: Classifier, options: dict[str, object], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(vitkit.VitkitError, match=complaint):
        vitkit.export(classifier, **options)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_is_missing_is_named(
    classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitkit.exporting.formats.find_spec", lambda _: None)
    with pytest.raises(vitkit.VitkitError, match=r"to coreml needs coremltools: pip install 'vitkit\[coreml\]'"):
        vitkit.export(classifier, out=tmp_path / "a.coreml")
    assert list(tmp_path.iterdir()) == []
