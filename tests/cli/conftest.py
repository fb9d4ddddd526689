"""The command line, called in this process, and a trained run for it."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import runs


class _Told(NamedTuple):
    code: int
    out: str
    err: str


class Outcome(_Told):
    """What a command left: its exit code, stdout and stderr, and the code of the error that ended it."""

    reason: str | None = None

    def refused(self, reason: str | None, *named: str) -> None:
        """It ended with this error (None of a usage error), in a line or two after notes, which name these things."""
        told = [line for line in self.err.splitlines() if not line.startswith("note: ")]
        assert (self.code, self.reason) == (2, reason), self.err
        assert told[0].startswith("error: ") and len(told) <= 2, self.err
        assert [name for name in named if name not in self.err] == [], self.err


Command = Callable[..., Outcome]


@pytest.fixture
def vitkit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`vitkit("info", "vit_tiny_patch16_224")` runs that command."""
    from vitkit.cli import app, main

    reasons: list[str | None] = []
    describe = app._describe

    def noted(error: BaseException) -> str:
        reasons.append(getattr(error, "code", None))
        return describe(error)

    monkeypatch.setattr(app, "_describe", noted)

    def command(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["vitkit", *map(str, arguments)])
        capsys.readouterr()
        reasons.clear()
        with pytest.raises(SystemExit) as caught:
            main()
        code = caught.value.code
        outcome = Outcome(code if isinstance(code, int) else int(code is not None), *capsys.readouterr())
        outcome.reason = reasons[-1] if reasons else None
        return outcome

    return command


@pytest.fixture(scope="session")
def data() -> Path:
    return runs.shared_photos()


@pytest.fixture(scope="session")
def trained() -> Path:
    """A finished run that tests may read but not change."""
    return runs.shared_run()
