"""`vitkit.doctor`, beside `vitkit doctor`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import vitkit
from cli.conftest import vitkit as command
from photos import folder, noise, save

__all__ = ["command"]


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    return folder(tmp_path / "photos", {"cat": 12, "dog": 10}, 30, 30)


@pytest.fixture
def leaking(healthy: Path) -> Path:
    """A picture with two labels."""
    for name in ("cat", "dog"):
        save(noise(24, 24, 99), healthy / name / "both.png")
    return healthy


def test_function_and_command_agree(command: Any, leaking: Path, tmp_path: Path) -> None:
    found = vitkit.doctor(leaking, tmp_path / "ours.html", preprocess="fit=pad")
    said = command("doctor", leaking, "--preprocess", "fit=pad", "-o", tmp_path / "theirs.html")
    assert said.out == "".join(f"{line}\n" for line in found.lines()).replace("ours.html", "theirs.html")
    assert (said.code, found.is_trustworthy) == (1, False)
    assert (tmp_path / "ours.html").read_bytes() == (tmp_path / "theirs.html").read_bytes()
    told = json.loads(command("doctor", leaking, "--preprocess", "fit=pad", "--json").out)
    assert told == json.loads(json.dumps(found.to_dict()))


def test_a_checkup_is_shown_in_a_line(healthy: Path) -> None:
    found = vitkit.doctor(healthy)
    assert repr(found) == f"<Checkup: {healthy}: 22 images in 2 classes, {healthy}>"
    assert "Nothing wrong was found" in found._repr_html_()
