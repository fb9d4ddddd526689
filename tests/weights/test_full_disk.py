"""Converting onto a disk that is full: a line that names the file, and nothing half-written."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch

from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.model import VisionTransformer, config_for
from vitkit.weights import write


@pytest.mark.parametrize(
    ("name", "to"),
    [("a", "folder"), ("a.npz", "npz"), ("a.pth", "timm"), ("a.safetensors", "timm"), ("a", "timm"), ("a", "hf")],
)
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, name: str, to: str) -> None:
    torch.manual_seed(0)
    config = config_for("vit_micro_patch8_16", 3)
    classifier = Classifier(VisionTransformer(config), ("a", "b", "c"), Preprocess(size=config.image_size))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(OSError, match=r"File too large|cannot write .*a"):
            write(classifier, tmp_path / name, to)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
