"""Photographs and runs that all tests of training may read but not change, made once."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import runs
from vitkit.training import run


@pytest.fixture(scope="session")
def data() -> Path:
    return runs.shared_photos()


@pytest.fixture(scope="session")
def finished() -> Path:
    """An uninterrupted run of three epochs."""
    return runs.shared_run()


@pytest.fixture(scope="session")
def start() -> Path:
    """A run on other photographs, whose weights others begin with."""
    return runs.shared_start()


@pytest.fixture
def no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training ends with its model: nothing is calibrated, evaluated or reported. Shared runs are made before."""
    monkeypatch.setattr(run, "TRAINING", replace(run.TRAINING, conclude=()))


@pytest.fixture
def two_penalties() -> Iterator[None]:
    with runs.two_penalties():
        yield
