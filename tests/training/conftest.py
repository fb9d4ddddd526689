"""Photographs for the runs of a file of tests, which may read but not change them."""

from pathlib import Path

import pytest

import runs


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.photos(tmp_path_factory.mktemp("data") / "photos")
