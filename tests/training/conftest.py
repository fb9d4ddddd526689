"""Photographs and runs that all tests of training may read but not change, made once."""

from pathlib import Path

import pytest

import runs


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
