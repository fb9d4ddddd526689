"""Photographs and runs that all tests of training may read but not change, made once."""

from pathlib import Path

import pytest

import photos
import runs
from vitkit.training import train


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.photos(tmp_path_factory.mktemp("data") / "photos")


@pytest.fixture(scope="session")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of three epochs."""
    before = photos.fingerprint(data)
    folder = train(runs.quick(data), tmp_path_factory.mktemp("runs") / "finished")
    assert photos.fingerprint(data) == before
    return folder


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on other photographs, whose weights others begin with."""
    return runs.begun(tmp_path_factory.mktemp("start"))
