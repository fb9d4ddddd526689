"""`vitkit train --teacher`: a run that imitates another, and the ways in which it cannot."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import runs
from vitkit.weights import load

FLAGS = (*runs.FLAGS, "--model", "deit_micro_distilled_patch8_16", "--epochs", 1)


def test_a_run_imitates_another_and_needs_it_to_go_on(vitkit: Any, data: Path, trained: Path, tmp_path: Path) -> None:
    teacher, out = runs.copy_of(trained, tmp_path / "teacher"), tmp_path / "run"
    done = vitkit("train", data, *FLAGS, "--teacher", teacher, "--distillation", "soft", "--out", out)
    assert (done.code, done.err) == (0, "")
    assert load(out).provenance["teacher"]["name"] == teacher.name
    assert vitkit("eval", out).code == 0
    assert vitkit("train", "--resume", out).code == 0

    shutil.rmtree(teacher)
    outcome = vitkit("train", "--resume", out)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == f"error: teacher: no such file, folder or published weights: {teacher}\n"
    assert vitkit("eval", out).code == 0


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--teacher", "nowhere"), "--teacher: no such file, folder or published weights: nowhere"),
        (("--teacher", "resnet18:nowhere.pth"), "--teacher resnet18:nowhere.pth: no such file: nowhere.pth"),
        (("--distillation", "soft"), "--distillation needs a teacher (--teacher): leave it out"),
        (("--distill-alpha", "2"), "--distill-alpha must be between 0 and 1, not 2"),
    ],
)
def test_what_cannot_be_imitated_is_told_in_a_line_and_leaves_nothing(
    vitkit: Any, data: Path, tmp_path: Path, flags: tuple[str, ...], complaint: str
) -> None:
    outcome = vitkit("train", data, *FLAGS, *flags, "--out", tmp_path / "run")
    assert (outcome.code, outcome.out, outcome.err) == (2, "", f"error: {complaint}\n")
    assert not (tmp_path / "run").exists()


def test_a_run_does_not_write_over_its_teacher(vitkit: Any, data: Path, trained: Path, tmp_path: Path) -> None:
    teacher = runs.copy_of(trained, tmp_path / "teacher")
    outcome = vitkit("train", data, *FLAGS, "--teacher", teacher, "--out", teacher, "--force")
    assert outcome.code == 2
    assert outcome.err == f"error: --out {teacher} would overwrite the teacher {teacher}: choose a new name\n"
    runs.assert_same_weights(teacher, trained)
