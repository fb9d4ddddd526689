"""Photographs and runs that all tests of training may read but not change, made once."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import runs
from vitkit.system import EVALUATION, write_json
from vitkit.training import Run, run
from vitkit.training.cross_validation import cross_validate
from vitkit.training.stages.calibrate import calibrate
from vitkit.training.stages.evaluate import evaluate


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
def no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training, or a fold, ends with its figures: no page, picture or list of predictions is written."""

    def write_figures(own: Run) -> None:
        write_json(own.folder / EVALUATION, own.numbers)

    conclude = (calibrate, evaluate, write_figures)
    monkeypatch.setattr(run, "TRAINING", replace(run.TRAINING, conclude=conclude))
    monkeypatch.setattr(run, "FOLDS", replace(run.FOLDS, fit=partial(cross_validate, conclude)))


@pytest.fixture
def two_penalties() -> Iterator[None]:
    with runs.two_penalties():
        yield
