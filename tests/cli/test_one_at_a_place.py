"""Commands that write to one place: the first has it from before it looks what is there until all is written."""

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from photos import fingerprint
from refusals import refused
from vitkit.system import exclusive, exclusive_in

COMMANDS = {
    "embed": ("embed", "{run}", "{photos}", "-o", "out.npz"),
    "doctor": ("doctor", "{photos}", "-o", "out.html"),
    "predict": ("predict", "{run}", "{photos}", "-o", "out.csv"),
    "export": ("export", "{run}", "-o", "out.xml"),
    "convert": ("convert", "{run}", "out.npz"),
    "eval": ("eval", "{run}", "-o", "out"),
    "explain": ("explain", "{run}", "{photos}/red/img1.png", "-o", "out"),
    "anatomy": ("explain", "{run}", "--anatomy", "-o", "out"),
}
SWIFT = ("embed", "predict", "convert", "explain")  # one for each way to lock


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prepared(name: str, run: Path, photos: Path) -> tuple[list[str], Path, AbstractContextManager[None]]:
    """The command, what it writes, and that as another process would hold it: to a lock this process is another."""
    out = Path(next(word for word in COMMANDS[name] if word.startswith("out")))
    words = [word.format(run=run, photos=photos) for word in COMMANDS[name]]
    return words, out, exclusive(out) if out.suffix else exclusive_in(out)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_place_that_another_process_has_is_left_to_it(
    vitkit: Any, trained: Path, data: Path, here: Path, name: str
) -> None:
    """What is there is for the one to judge who has the place, so the other hears of it, and not of what is there."""
    words, out, held = prepared(name, trained, data)
    if out.suffix:
        out.write_text("earlier")
    else:
        out.mkdir()
        (out / "report.html").write_text("earlier")
    flags = ["--force"] if name == "export" else []  # it looks before it loads the model, too
    photographs = fingerprint(data)
    with held:
        before = fingerprint(here)
        outcome = vitkit(*words, *flags)
        outcome.refused("system.path-locked", str(os.getpid()))
        assert outcome.out == ""
        assert fingerprint(here) == before
    assert fingerprint(data) == photographs


@pytest.mark.parametrize("name", SWIFT)
def test_a_place_is_held_until_all_is_written_and_free_again_then(
    vitkit: Any, trained: Path, data: Path, here: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    photographs, seen = fingerprint(data), []

    def look(file: int) -> None:
        with refused("system.path-locked"), prepared(name, trained, data)[2]:
            pass
        seen.append(file)

    monkeypatch.setattr(os, "fsync", look)  # ends the writing of every file
    assert vitkit(*prepared(name, trained, data)[0]).code == 0
    assert seen
    assert not [path for path in here.rglob(".*") if path.name.endswith((".lock", ".tmp"))]
    assert fingerprint(data) == photographs


def test_a_command_that_fails_leaves_no_folder_and_keeps_an_empty_one(vitkit: Any, trained: Path, here: Path) -> None:
    (here / "broken.png").write_bytes(b"no picture")
    (here / "mine").mkdir()
    for out in ("new/deep/er", "mine"):
        assert vitkit("explain", trained, "broken.png", "-o", out).code == 1
    assert sorted(path.name for path in here.iterdir()) == ["broken.png", "mine"]
