"""The picture of a terminal in README.md."""

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).parents[2]
_AMONG = sys.path.copy()
sys.path.insert(0, str(ROOT / "benchmarks"))
from recording import COLUMNS, COMMANDS, PICTURE  # noqa: E402

sys.path[:] = _AMONG  # a benchmark has the name of a folder of tests


def test_the_picture_of_the_readme_is_safe_and_small() -> None:
    svg = PICTURE.read_text(encoding="utf-8")
    texts = [each for each in ElementTree.fromstring(svg).iter() if each.tag.endswith("}text")]
    shown = [(each.attrib["y"], each.text or "") for each in texts if each.get("class") != "past"]
    commands = [text[2:] for _, text in shown if text.startswith("$ ")]
    assert len(commands) >= 3
    assert set(commands) <= set(COMMANDS)
    assert len(svg) < 100_000
    assert "<script" not in svg
    assert not re.search(r"/(root|home|tmp|work|Users)/|https?://(?!www\.w3\.org/2000/svg)", svg)
    assert len({y for y, _ in shown}) == len(shown), "two lines lie on each other"
    assert max(len(text) for _, text in shown[:-1]) <= COLUMNS
