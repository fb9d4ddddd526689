"""What a tiny run does not need of an experiment, and would spend half of its time on."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def _cheap_measurements() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitkit.experiments.comparison_table.ROUNDS", 1)
        patch.setattr("vitkit.experiments.lab.cost.ROUNDS", 2)
        yield


@pytest.fixture(autouse=True, scope="module")
def _cheap_reports() -> Iterator[None]:
    """The pages of single runs, which nobody reads here. `test_trained.py` uses runs that others read, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitkit.training.stages.evaluate.find_label_errors", lambda run: [])
        patch.setattr("vitkit.training.stages.report._MAX_EXPLAINED", 0)
        patch.setattr("vitkit.training.stages.report.write_report", lambda file, **_: file.write_text("<html>"))
        yield
