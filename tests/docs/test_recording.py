"""The recording of a terminal: the picture in README.md, and how a record becomes one."""

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_AMONG = sys.path.copy()
sys.path.insert(0, str(ROOT / "benchmarks"))
from recording import COLUMNS, COMMANDS, PICTURE, SECONDS, Line, drawing, shortened  # noqa: E402

sys.path[:] = _AMONG  # a benchmark has the name of a folder of tests


def rows(svg: str) -> list[tuple[str, str]]:
    """The y of each text of a picture that its last state shows, and the text."""
    tree = ElementTree.fromstring(svg)
    texts = [each for each in tree.iter() if each.tag.endswith("}text")]
    return [(each.attrib["y"], each.text or "") for each in texts if each.get("class") != "past"]


def test_the_picture_of_the_readme_is_safe_and_small() -> None:
    svg = PICTURE.read_text(encoding="utf-8")
    shown = rows(svg)
    commands = [text[2:] for _, text in shown if text.startswith("$ ")]
    assert len(commands) >= 3
    assert set(commands) <= set(COMMANDS)
    assert len(svg) < 100_000
    assert "<script" not in svg
    assert not re.search(r"/(root|home|tmp|work|Users)/|https?://(?!www\.w3\.org/2000/svg)", svg)
    assert len({y for y, _ in shown}) == len(shown), "two lines lie on each other"
    assert max(len(text) for _, text in shown[:-1]) <= COLUMNS


def test_progress_is_replaced_and_long_lines_are_wrapped() -> None:
    lines = [
        Line("vitkit x", 0, is_command=True),
        Line("reading: 1 of 2", 5),
        Line("reading: 2 of 2", 65),
        Line("a < b " * 20, 66),
        Line("", 70),
    ]
    svg = drawing(lines)
    shown = [text for _, text in rows(svg)]
    assert shown[:2] == ["$ vitkit x", "reading: 2 of 2"]
    assert "".join(shown[2:-1]) == "a < b " * 20
    assert shown[-1] == "Recorded in 70 s, shown in 20 s: long waits are shortened."
    assert "reading: 1 of 2" in svg


@pytest.mark.parametrize("seconds", [[0.0, 1.0, 100.0, 101.0], [0.0, 30.0, 60.0], [0.0, 1.0, 3.0]])
def test_only_long_waits_are_shortened(seconds: list[float]) -> None:
    times = shortened(seconds, SECONDS)
    assert times[-1] == pytest.approx(min(SECONDS, seconds[-1]), abs=1e-6)
    waits = [(b - a, d - c) for a, b, c, d in zip(seconds, seconds[1:], times, times[1:], strict=False)]
    longest = max(after for _, after in waits)
    assert all(after == pytest.approx(min(before, longest)) for before, after in waits)
