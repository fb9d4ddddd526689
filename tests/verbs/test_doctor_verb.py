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
    assert said.code == 1
    assert (tmp_path / "ours.html").read_bytes() == (tmp_path / "theirs.html").read_bytes()
    told = json.loads(command("doctor", leaking, "--preprocess", "fit=pad", "--json").out)
    assert told == json.loads(json.dumps(found.to_dict()))


def test_what_the_exit_code_says_is_said(healthy: Path) -> None:
    assert vitkit.doctor(healthy).is_trustworthy
    for name in ("cat", "dog"):
        save(noise(24, 24, 99), healthy / name / "both.png")
    assert not vitkit.doctor(str(healthy)).is_trustworthy


def test_a_checkup_is_shown_in_a_line(healthy: Path) -> None:
    found = vitkit.doctor(healthy)
    assert repr(found) == f"<Checkup: {healthy}: 22 images in 2 classes, {healthy}>"
    assert "Nothing wrong was found" in found._repr_html_()


def test_progress_is_told(healthy: Path) -> None:
    steps: list[tuple[str, int, int | None]] = []
    vitkit.doctor(healthy, progress=lambda *step: steps.append(step))
    assert ("reading images", 22, 22) in steps


def test_what_is_no_choice_is_refused(healthy: Path, tmp_path: Path) -> None:
    wrong: Any = "stretch"
    with pytest.raises(vitkit.VitkitError, match="fit must be one of crop, pad, squash, squash_crop, not 'stretch'"):
        vitkit.doctor(healthy, preprocess="fit=stretch")
    with pytest.raises(vitkit.VitkitError, match="--layout 'stretch' is none of auto, classes, splits"):
        vitkit.doctor(healthy, layout=wrong)
    with pytest.raises(vitkit.VitkitError, match=r"page.pdf must end in \.html"):
        vitkit.doctor(healthy, tmp_path / "page.pdf")
