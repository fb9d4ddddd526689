"""The commands that the studio runs for its tabs, without the seconds of their imports."""

import pytest

import vitkit.webapp.predict  # noqa: F401 before a test replaces what it imports from `likeness`
import warm


@pytest.fixture
def warm_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """`vitkit predict` and `vitkit embed` begin warm; a test of how they are started does without this."""

    def begin(module: str, *arguments: str) -> list[str]:
        assert module == "vitkit"
        return [warm.vitkit(), *arguments]

    monkeypatch.setattr("vitkit.webapp.likeness.python", begin)
