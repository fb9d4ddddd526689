"""The commands of docs/guide/words.md run, with tiny models of random weights in the place of the published ones."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import wordy
from photos import noise, save

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "words.md"
CLASSES = ("daisy", "rose", "tulip")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    wordy.clip(tmp_path / "clip-vit-base-patch32")
    wordy.siglip(tmp_path / "siglip-base-patch16-224")
    for i, name in enumerate(CLASSES * 6):
        save(noise(16, 16, i), tmp_path / "photos" / f"{i}.png")
        save(noise(16, 16, i), tmp_path / "labelled" / name / f"{i}.png")
    (tmp_path / "PHOTOS").symlink_to("labelled")
    (tmp_path / "names.txt").write_text("\n".join(CLASSES))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_and_program_runs(place: Path, vitkit: Any) -> None:
    text = PAGE.read_text(encoding="utf-8")
    commands = [line[2:] for line in text.splitlines() if line.startswith("$ vitkit ")]
    assert len(commands) == 6
    for command in commands:
        quickly = ("--epochs", 1) if command.startswith("vitkit train") else ()
        outcome = vitkit(*shlex.split(command)[1:], *quickly)
        assert outcome.code == 0, outcome.err
    (program,) = re.findall(r"^```py\n(.*?)^```$", text, re.M | re.S)
    exec(compile(program, str(PAGE), "exec"), {})
    assert (place / "flowers" / "model.json").is_file()
    assert (place / "answers.csv").is_file()
