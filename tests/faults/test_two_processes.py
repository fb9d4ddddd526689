"""Ten processes at one place, for real: one works, nine say who does, and nothing is damaged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import runs
from photos import fingerprint
from vitkit.training import run
from vitkit.weights import load

pytestmark = pytest.mark.accept
MANY = 10
COMMANDS: dict[str, tuple[str, ...]] = {
    "predict": ("predict", "RUN", "PHOTOS", "-o", "answers.csv", "--backend", "eager"),
    "embed": ("embed", "RUN", "PHOTOS", "-o", "features.npz"),
    "doctor": ("doctor", "PHOTOS", "-o", "page.html"),
    "eval": ("eval", "RUN", "PHOTOS", "-o", "evaluation"),
    "explain": ("explain", "RUN", "PHOTOS/red/img1.png", "PHOTOS/blue/img2.png", "-o", "explained"),
}


def at_once(*arguments: str | Path, place: Path | None = None) -> list[tuple[int, str]]:
    """Exit code and stderr of ten processes that run the same command in a folder."""
    command = [sys.executable, "-m", "vitkit", *map(str, arguments)]
    crowd = [
        subprocess.Popen(
            command,
            cwd=place,
            env=runs.environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        for _ in range(MANY)
    ]
    return [(process.returncode, err) for process in crowd for err in [process.communicate(timeout=600)[1]]]


def assert_one_won(outcomes: list[tuple[int, str]]) -> None:
    assert sorted(code for code, _ in outcomes) == [0, *[2] * (MANY - 1)], outcomes
    for code, err in outcomes:
        assert "Traceback" not in err
        assert code == 0 or "is being written by process" in err, err


def test_ten_trainings_at_one_new_folder_and_at_a_run(tmp_path: Path) -> None:
    data = runs.photos(tmp_path / "photos")
    whole = run.train(runs.quick(data, epochs=90), tmp_path / "whole", say=lambda _: None)
    flags = [*runs.FLAGS, "--epochs", "90", "--out", tmp_path / "run"]
    for extra in ([], ["--force"]):
        assert_one_won(at_once("train", data, *flags, *extra))
        runs.assert_same_weights(tmp_path / "run", whole)
        assert runs.metrics(tmp_path / "run") == runs.metrics(whole)
        assert load(tmp_path / "run").provenance["metrics"] == load(whole).provenance["metrics"]
        assert not list((tmp_path / "run").rglob(".*"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and its photographs."""
    here = tmp_path_factory.mktemp("source")
    run.train(runs.quick(runs.photos(here / "photos", images=100)), here / "run", say=lambda _: None)
    return here


def written(place: Path) -> dict[str, bytes]:
    return {
        path.relative_to(place).as_posix(): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_ten_commands_at_a_new_place_and_at_one_that_is_taken(name: str, source: Path, tmp_path: Path) -> None:
    """Who comes when the first has ended meets what it wrote, which only --force writes over."""
    photographs = fingerprint(source / "photos")
    arguments = [
        word.replace("RUN", str(source / "run")).replace("PHOTOS", str(source / "photos")) for word in COMMANDS[name]
    ]
    alone, place = tmp_path / "alone", tmp_path / "place"
    for folder in (alone, place):
        folder.mkdir()
    command = [sys.executable, "-m", "vitkit", *arguments]
    subprocess.run(command, cwd=alone, env=runs.environment(), check=True, capture_output=True)
    for extra in ([], ["--force"]):
        outcomes = at_once(*arguments, *extra, place=place)
        won = [code for code, _ in outcomes].count(0)
        assert won == 1 or (extra and won >= 1), outcomes
        for code, err in outcomes:
            assert code == 0 or (code == 2 and len(err.splitlines()) == 1), err
            met = ("exists", "is not empty") if not extra else ()
            assert code == 0 or any(told in err for told in ("is being written by process", *met)), err
        assert written(place) == written(alone)
    assert fingerprint(source / "photos") == photographs
