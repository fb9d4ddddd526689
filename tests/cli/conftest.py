"""The command line, called in this process, and a trained run for it."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import runs


class Outcome(NamedTuple):
    """What a command left: its exit code, stdout and stderr."""

    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def vitkit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`vitkit("info", "vit_tiny_patch16_224")` runs that command."""
    from vitkit.cli import main

    def command(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["vitkit", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main()
        code = caught.value.code
        return Outcome(code if isinstance(code, int) else int(code is not None), *capsys.readouterr())

    return command


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.photos(tmp_path_factory.mktemp("cli-data") / "photos")


@pytest.fixture(scope="session")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that tests may read but not change."""
    from vitkit.training import run

    return run.train(runs.quick(data), tmp_path_factory.mktemp("cli-runs") / "trained")
