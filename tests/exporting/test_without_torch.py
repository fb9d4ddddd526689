"""An exported file is predicted where PyTorch cannot even be imported, as where it can."""

import csv
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import photos
import runs
from exporting.ready import exported, plain
from vitkit.exporting import Exported, Pictures, export

_IMAGES = 20  # several batches
_COMMAND = """
import sys
sys.modules["torch"] = None  # importing it is an error
sys.argv = ["vitkit", "predict", sys.argv[1], *sys.argv[2].split(), "--precision", "float32", "--top", "7"]
from vitkit.cli.app import main
try:
    main()
finally:
    assert not [name for name in sys.modules if name.startswith("torch.")]
"""


@pytest.mark.parametrize(("suffix", "task"), [(".onnx", "single"), (".xml", "multi")])
def test_a_file_is_predicted_without_torch(suffix: str, task: str, tmp_path: Path) -> None:
    classifier, file = plain(), exported(suffix)
    if task == "multi":
        classifier.thresholds = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
        file = tmp_path / f"model{suffix}"
        export(classifier, file, Pictures("two", (photos.noise(), photos.noise(seed=1))))
    names = [f"{i:02}.png" for i in range(_IMAGES)]
    for i, name in enumerate(names):
        photos.save(photos.noise(24, 20, i), tmp_path / name)
    (tmp_path / "07.png").write_bytes(b"no picture")
    done = subprocess.run(
        [sys.executable, "-c", _COMMAND, str(file), " ".join(names)],
        cwd=tmp_path, env=runs.environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr  # one picture cannot be read
    assert f"{_IMAGES} images (1 unreadable)" in done.stderr
    rows = list(csv.DictReader(done.stdout.splitlines()))
    for row, expected in zip(rows, classifier.predict([tmp_path / name for name in names]), strict=True):
        assert row["error"] == (expected.error or "")
        first = 1 if task == "multi" else 2
        told = {row[f"label_{i}"]: row[f"confidence_{i}"] for i in range(first, 8)}
        known = dict(expected.ranking)
        for name, probability in told.items():
            if expected.error is None:
                assert float(probability) == pytest.approx(known[name], abs=1e-5)


class Fixed:
    """A runner that answers the same logits, whatever it is shown."""

    def __init__(self, logits: np.ndarray) -> None:
        self.logits = logits

    def compute(self, images: np.ndarray) -> np.ndarray:
        return self.logits[: len(images)]

    def __call__(self, images: Tensor) -> Tensor:
        return torch.from_numpy(self.compute(images.numpy()))


numbers = st.floats(width=32, allow_nan=True, allow_infinity=True) | st.floats(-30, 30, width=32)


@given(logits=st.lists(numbers, min_size=7, max_size=7), temperature=st.floats(1e-3, 1e3), is_multi=st.booleans())
def test_probabilities_are_those_of_a_classifier(logits: list[float], temperature: float, is_multi: bool) -> None:
    thresholds = (0.5,) * 7 if is_multi else None
    runner = Fixed(np.array([logits, [0.0] * 7], np.float32))
    model = replace(plain(), temperature=temperature, thresholds=thresholds)
    model.runner = runner  # type: ignore[assignment]
    exported = object.__new__(Exported)
    exported.runner, exported.temperature, exported.thresholds = runner, temperature, thresholds  # type: ignore[assignment]
    found, expected = exported.probabilities(torch.zeros(2, 1)), model.probabilities(torch.zeros(2, 1))
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6, equal_nan=True)
    assert math.isfinite(found[1].sum().item())
