"""A model folder and photographs, and the command line in this process."""

from pathlib import Path

import pytest

from cli.conftest import data, trained, vitkit
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess

__all__ = ["data", "model", "trained", "vitkit"]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that tests may read but not change; calibrated, with names that are not ASCII."""
    folder = tmp_path_factory.mktemp("export") / "model"
    classes = ("größer", "b", "c,d", "e", "f", "g", "日本")
    Classifier(build(), classes, Preprocess(size=(12, 16), mean=(0.4, 0.5, 0.6)), temperature=1.7).save(folder)
    return folder
