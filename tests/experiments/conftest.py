"""What a tiny run does not need of an experiment, and would spend half of its time on."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def _cheap_measurements() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitkit.experiments.comparison_table.ROUNDS", 1)
        patch.setattr("vitkit.experiments.lab.cost.ROUNDS", 2)
        yield
