"""The command line beside the functions, and a trained run for both."""

from pathlib import Path

import pytest

from cli.conftest import Command, Outcome, data, trained, vitkit
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess

__all__ = ["Command", "Outcome", "data", "trained", "vitkit"]


@pytest.fixture(scope="module")
def classifier_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model folder of a small calibrated classifier without photographs."""
    folder = tmp_path_factory.mktemp("classifier") / "model"
    Classifier(build(), tuple("abcdefg"), Preprocess(size=(12, 16)), temperature=1.7).save(folder)
    return folder
