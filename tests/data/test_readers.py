"""What other processes find in files is what this one finds, whatever becomes of them."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from once import once
from photos import folder, noise, save
from vitkit.data import FactDatabase, Facts, scan
from vitkit.data import file_facts as module


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))


def photographs(root: Path) -> None:
    folder(root, {"cat": 70})
    for ending in ("jpg", "gif", "bmp", "tif", "webp", "ppm"):
        save(noise(40, 30), root / f"a.{ending}")
    Image.effect_noise((2000, 1500), 60).save(root / "large.png", compress_level=1)
    (root / "cut.png").write_bytes((root / "cat" / "cat_0.png").read_bytes()[:100])
    (root / "text.jpg").write_text("no picture")
    (root / "empty.png").touch()
    os.mkfifo(root / "pipe.png")


@pytest.fixture(scope="module")
def files() -> list[Path]:
    """Of every kind: pictures, damaged ones, none at all."""
    root = once("files of every kind", photographs)
    return [*sorted(file for file in root.rglob("*.*") if file.suffix), root / "missing.png"]


def look(files: list[Path], **options: Any) -> list[Facts]:
    with FactDatabase() as database:
        return scan(files, database, **options)


@pytest.fixture(scope="module")
def truth(files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Facts]:
    """What this process finds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITKIT_CACHE", str(tmp_path_factory.mktemp("another")))
        return look(files)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, truth: list[Facts]) -> list[str]:
    """The names of the files that this process looks at, from now on; two others take what they can."""
    names: list[str] = []
    original = module.picture_of

    def spy(file: Path, *args: Any, **options: Any) -> Any:
        names.append(file.name)
        return original(file, *args, **options)

    monkeypatch.setattr(module, "picture_of", spy)
    monkeypatch.setattr(module, "_MANY", 1)
    monkeypatch.setattr(module.os, "cpu_count", lambda: 2)
    return names


def test_other_processes_find_and_remember_the_same(
    files: list[Path], truth: list[Facts], here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    assert look(files, progress=lambda *own: told.append(own)) == truth
    assert here == [], "others did it"
    assert told[-1] == (len(files), len(files)) and told == sorted(told)
    monkeypatch.setattr(module, "_MANY", 10**9)
    assert look(files) == truth
    assert here == [], "what they found is remembered"


def test_a_picture_that_is_too_large_for_one_of_several_is_looked_at_here(
    files: list[Path], truth: list[Facts], here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEAST_BUDGET", 4 * 2**20)
    assert look(files) == truth
    assert here == ["large.png"]


def test_a_process_that_is_killed_costs_time_alone(
    files: list[Path], truth: list[Facts], here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[module._Reader] = []
    original = module._Reader.examine

    def kill(reader: module._Reader, batch: Any) -> Any:
        facts = original(reader, batch)
        started.append(reader)
        reader.worker._process.send_signal(signal.SIGKILL)
        return facts

    monkeypatch.setattr(module._Reader, "examine", kill)
    assert look(files) == truth
    assert started and here, "the rest was looked at here"
    assert all(reader.worker._process.returncode is not None for reader in started), "none is left behind"


@pytest.mark.parametrize("command", [["/no/such/program"], ["-c", "1 / 0"], ["-c", "print('hello')"]])
def test_where_no_process_can_be_had_this_one_looks(
    files: list[Path], truth: list[Facts], here: list[str], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    command = [sys.executable, *command] if command[0] == "-c" else command
    monkeypatch.setattr("vitkit.system.processes.python_command", lambda _: command)
    assert look(files) == truth and here
