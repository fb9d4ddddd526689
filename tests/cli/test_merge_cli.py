"""`--merge`: predict and eval with fewer tokens."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from vitkit.errors import VitkitError
from vitkit.inference import merge
from vitkit.weights import load


def test_prediction_is_the_merging_doubles(vitkit: Any, trained: Path, data: Path, tmp_path: Path) -> None:
    outcome = vitkit("predict", trained, data / "red", "--merge", 2, "--precision", "float32", "-o", tmp_path / "a.csv")
    assert outcome.code == 0
    classifier = load(trained)
    double = merge(classifier.model, 2)
    with (tmp_path / "a.csv").open(newline="") as stream:
        for row in csv.DictReader(stream):
            logits = double(classifier.read(row["path"])[None])[0].double()
            assert classifier.classes[int(logits.argmax())] == row["label"]
            temperature = classifier.temperature
            assert (logits / temperature).softmax(0).max().item() == pytest.approx(float(row["confidence"]), abs=1e-4)


def test_evaluation_takes_it_too(vitkit: Any, trained: Path) -> None:
    numbers = json.loads(vitkit("eval", trained, "--merge", 1, "--json").out)
    assert numbers["backend"] == "eager"
    assert 0 <= numbers["accuracy"] <= 1


@pytest.mark.parametrize("backend", ["openvino", "onnx", "compile"])
def test_other_backends_are_refused(vitkit: Any, trained: Path, data: Path, backend: str) -> None:
    outcome = vitkit("predict", trained, data / "red", "--merge", 2, "--backend", backend)
    assert outcome.code == 2
    assert f"--merge requires backend eager: leave out --backend {backend}" in outcome.err


def test_from_python_the_plain_model_stays_as_it_is(trained: Path) -> None:
    classifier = load(trained)
    images = torch.randn(2, 3, 16, 16)
    merging = classifier.use(precision="float32", merge=2)
    assert not torch.equal(merging.logits(images), classifier.logits(images))
    assert torch.equal(classifier.logits(images), classifier.model(images))
    with pytest.raises(VitkitError, match="0 or more"):
        classifier.use(merge=-1)
    most = classifier.model.config.patches // 2
    assert classifier.use(merge=most).computed.endswith(f"merging {most} patches a layer")
    with pytest.raises(VitkitError, match=f"a layer merges at most half of the {2 * most} patches: up to {most}$"):
        classifier.use(merge=most + 1)
