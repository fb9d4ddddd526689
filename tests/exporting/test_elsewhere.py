"""Folders for Core ML and TensorRT: what they contain, what `verify.py` finds, and what is never lost."""

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import runs
import vitkit
from exporting.ready import plain
from once import once
from refusals import refused
from vitkit.exporting import elsewhere

WITH_ONNX_RUNTIME = """
import onnxruntime
from pathlib import Path
_SESSION = onnxruntime.InferenceSession(Path(__file__).with_name("model.onnx"))
def logits(images):
    return _SESSION.run(["logits"], {"images": images})[0]
"""


def written() -> Path:
    """An unverified folder for TensorRT, which tests may read but not change."""

    def make(place: Path) -> None:
        place.mkdir()
        vitkit.export(plain(), out=place / "a.tensorrt")

    return once("tensorrt", make) / "a.tensorrt.unverified"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy, whose model ONNX Runtime computes."""
    folder = runs.copy_of(written(), tmp_path / "a.tensorrt.unverified")
    (folder / "model.py").write_text(WITH_ONNX_RUNTIME)
    return folder


def test_a_folder_says_that_it_was_not_verified(tmp_path: Path) -> None:
    models = pytest.importorskip("coremltools.models")
    found = vitkit.export(plain(), out=tmp_path / "a.coreml", precision="float16")
    assert [path.name for path in tmp_path.iterdir()] == ["a.coreml.unverified"] == [found.file.name]
    assert "Not verified: Core ML needs macOS." in found.lines()[-2]
    expected = {"expected.npz", "model.json", "model.mlpackage", "model.py", "verify.py"}
    assert {path.name for path in found.file.iterdir()} == expected
    described = models.MLModel(str(found.file / "model.mlpackage"), skip_model_load=True).get_spec().description
    inputs = [(value.name, list(value.type.multiArrayType.shape)) for value in described.input]
    assert inputs == [("images", [1, 3, 12, 16])]
    assert [value.name for value in described.output] == ["logits"]
    assert json.loads(described.metadata.userDefined["vitkit"])["classes"] == list("abcdefg")


def test_the_script_verifies_the_model_and_renames_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, model = np.load(folder / "expected.npz"), plain().model

    def logits(images: Any) -> Any:
        return model(torch.from_numpy(images)).detach().numpy()

    assert len(stored["images"]) == 32
    assert np.abs(stored["logits"] - logits(stored["images"])).max() < 1e-5
    for fault in (lambda images: images[:, ::-1].copy(), lambda images: images * 1.1, lambda images: images * np.nan):
        found = logits(fault(stored["images"]).astype(np.float32))
        monkeypatch.setitem(sys.modules, "model", SimpleNamespace(logits=lambda _, found=found: found))
        with pytest.raises(SystemExit, match="the model does not compute what the original did"):
            runpy.run_path(str(folder / "verify.py"))
        assert folder.is_dir()
    command = [sys.executable, "verify.py"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith("verified\n")
    assert not folder.exists() and folder.with_suffix("").is_dir()


def test_a_runtime_that_is_installed_verifies_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    static = runs.copy_of(elsewhere._STATIC, tmp_path / "static")
    (static / "tensorrt.py").write_text(WITH_ONNX_RUNTIME)
    monkeypatch.setattr(elsewhere, "_STATIC", static)
    here = elsewhere.replace(elsewhere.ELSEWHERE["tensorrt"], can_verify_here=lambda: True, write=copy_model)
    monkeypatch.setitem(elsewhere.ELSEWHERE, "tensorrt", here)
    found = vitkit.export(plain(), out=tmp_path / "a.tensorrt")
    assert (found.file.name, found.to_dict()["is_verified"]) == ("a.tensorrt", True)
    (static / "tensorrt.py").write_text(WITH_ONNX_RUNTIME.replace("[0]", "[0] + 1"))
    before = (found.file / "model.onnx").read_bytes()
    with refused("exporting.check-failed"):
        vitkit.export(plain(), out=tmp_path / "a.tensorrt", force=True)
    assert (found.file / "model.onnx").read_bytes() == before, "what was there is kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tensorrt", "static"]


def copy_model(_classifier: Any, folder: Path, *_: Any) -> None:
    shutil.copy(written() / "model.onnx", folder)


def test_only_folders_of_vitkit_are_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, own = folder.with_suffix(""), plain()
    copying = elsewhere.replace(elsewhere.ELSEWHERE["tensorrt"], write=copy_model)
    monkeypatch.setitem(elsewhere.ELSEWHERE, "tensorrt", copying)
    with refused("exporting.file-exists", "a.tensorrt.unverified"):
        vitkit.export(own, out=out)
    vitkit.export(own, out=out, force=True)
    assert "polygraphy" in (folder / "model.py").read_text()
    (folder / "verify.py").unlink()
    with refused("exporting.folder-foreign", "a.tensorrt.unverified"):
        vitkit.export(own, out=out, force=True)
    assert (folder / "model.onnx").is_file()
