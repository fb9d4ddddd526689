"""An export beside others: one that was killed before, and one that is at work on the same file."""

import os
from pathlib import Path

import pytest

from refusals import refused
from vitkit.exporting import format_of
from vitkit.exporting.writing import _staged
from vitkit.system import exclusive


def test_what_a_killed_export_left_is_removed_by_the_next_of_that_name(tmp_path: Path) -> None:
    out, another = tmp_path / "a.pt2", tmp_path / ".b.pt2.77.tmp"
    for left in (tmp_path / ".a.pt2.77.tmp", tmp_path / f".a.pt2.{os.getpid()}.tmp", another):
        left.mkdir()
        (left / "a.pt2").write_text("half")
    with _staged(out, format_of(out), force=False) as temporary:
        temporary.write_text("whole")
    assert out.read_text() == "whole"
    assert sorted(path.name for path in tmp_path.iterdir()) == [another.name, "a.pt2"]


def test_a_file_that_another_process_exports_or_wrote_meanwhile_is_left_to_it(tmp_path: Path) -> None:
    out = tmp_path / "a.pt2"
    with exclusive(out), refused("system.path-locked", "a.pt2"), _staged(out, format_of(out), force=True):
        pytest.fail("two at once")
    assert list(tmp_path.iterdir()) == []
    out = tmp_path / "a.xml"
    for name in ("a.xml", "a.bin"):
        (tmp_path / name).write_text("another's")
        with refused("exporting.file-exists", name), _staged(out, format_of(out), force=False):
            pytest.fail("written over")
        assert [path.read_text() for path in tmp_path.iterdir()] == ["another's"]
        (tmp_path / name).unlink()
