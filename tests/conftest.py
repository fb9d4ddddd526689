"""What all tests share. Its presence puts this folder on the path, so that tests in subfolders can import `tiny`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing that another run of the tests, or the user, has put into the cache decides what happens here."""
    before = os.environ.get("VITKIT_CACHE")
    os.environ["VITKIT_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    os.environ.pop("VITKIT_CACHE")
    if before is not None:
        os.environ["VITKIT_CACHE"] = before


@pytest.fixture(autouse=True, scope="session")
def _any_processor() -> Iterator[None]:
    """Neither its bfloat16 nor what is fastest on it decides what the command line answers here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitkit.engine.best_precision", lambda: "float32")
        patch.setattr("vitkit.engine.plan.measure", lambda model: {"plain": 1.0})
        yield


@pytest.fixture(scope="module")
def blank_pictures() -> Iterator[None]:
    """For runs of which nobody looks at the pictures: drawing takes half of their time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitkit.evaluate.plots.save_figure", lambda figure, path: path.write_bytes(b"a picture"))
        yield
