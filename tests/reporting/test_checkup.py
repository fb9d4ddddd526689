"""The doctor's page: every picture that is there more than once beside its copies, the gravest first."""

import base64
import io
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from photos import folder, noise, save, smooth
from vitkit.data import examine, read_source
from vitkit.data.doctor.examine import Finding
from vitkit.reporting import dataset_report as checkup
from vitkit.reporting import write_checkup
from vitkit.text.verdict import Verdict


def page_of(root: Path, target: Path) -> str:
    write_checkup(target, examine(read_source(root)))
    return target.read_text(encoding="utf-8")


def shown(html: str) -> list[str]:
    """What the pictures are called, in the order of the page."""
    return [
        unescape(name) for name in re.findall(r'<img alt="([^"]*)" src="data:image/(?:webp|png);base64,[^"]*"', html)
    ]


def test_groups_are_under_the_gravest_thing_that_is_wrong_with_them(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    for part in ("train", "val"):
        folder(root / part, {"a": 2}, 30, 30)
        save(noise(30, 30, 77 + len(part)), root / part / "b" / "own.png")
    save(noise(30, 30, 500), root / "train" / "a" / "x.png")
    save(noise(30, 30, 500), root / "val" / "b" / "x.png")  # conflict and leak
    html = page_of(root, tmp_path / "page.html")
    conflict, leak = html.index("One picture, two classes"), html.index("One picture, two splits")
    assert conflict < leak
    assert "Copies" not in html
    leaks = [f"{part}/a/a_{i}.png" for i in (0, 1) for part in ("train", "val")]
    assert shown(html) == ["train/a/x.png", "val/b/x.png", *leaks]
    assert 'train: <span class="chip" data-tone="0">a</span><br>train/a/x.png' in html
    assert 'val: <span class="chip" data-tone="1">b</span><br>val/b/x.png' in html


def test_names_are_escaped_wherever_they_stand(tmp_path: Path) -> None:
    root = tmp_path / "<script>&photos"
    for name in ('<b>"bold"', "a&b"):
        for i in range(2):
            save(noise(20, 20, i + len(name)), root / name / f"<i>'{i}\".png")
        save(noise(20, 20, len(name)), root / name / "copy<u>.png")
        (root / name / "<em>.jpg").write_text("not a picture")
    (root / "a&b" / "notes.txt").touch()
    html = page_of(root, tmp_path / "page.html")
    for tag in ("<script", "<b>", "<i>", "<u>", "<em>"):
        assert tag not in html
    assert len(shown(html)) == 4
    assert '<b>"bold"/copy<u>.png' in shown(html)
    assert "&lt;em&gt;.jpg" in html
    assert "a&amp;b" in html
    for name, what in (("ignored", "1 not an image format"), ("format", "6 PNG"), ("colours", "6 RGB")):
        assert f"<td>{name}</td><td>{what}</td>" in html


@pytest.mark.parametrize(
    ("severities", "level", "sentence"),
    [
        (("note", "note"), "good", "Ready to train"),
        (("warning", "note"), "warning", "1 thing to look at first"),
        (("problem", "problem", "warning", "note"), "problem", "2 problems to solve first, or results are wrong"),
    ],
)
def test_the_verdict_counts_what_comes_first(
    tmp_path: Path, severities: tuple[Any, ...], level: str, sentence: str
) -> None:
    plain = examine(read_source(folder(tmp_path / "photos", {"a": 3, "b": 3})))
    diagnosis = replace(plain, findings=tuple(Finding(severity, "told") for severity in severities))
    assert checkup.verdict_of_data(diagnosis) == Verdict(level, sentence)
    write_checkup(tmp_path / "page.html", diagnosis)
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert html.index(sentence) < html.index("Images per class") < html.index("<h2>Details")


def test_many_groups_and_large_ones_are_cut_and_a_picture_that_went_since_leaves_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkup, "_SHOWN", 2)
    root = folder(tmp_path / "photos", {"a": 4, "b": 4})
    for i in range(3):
        for copy in range(8 if i == 0 else 1):
            save(Image.open(root / "a" / f"a_{i}.png"), root / "a" / f"z{i}{copy}.png")
    diagnosis = examine(read_source(root))
    (root / "a" / "z10.png").unlink()
    write_checkup(tmp_path / "page.html", diagnosis)
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Copies (the first 2 of 3)" in html
    assert len(shown(html)) == 6 + 1 and "<figure><p>no such file</p>" in html
    assert "and 3 more" in html


def test_pictures_are_shown_upright_whole_and_small(tmp_path: Path) -> None:
    root = folder(tmp_path / "photos", {"a": 2, "b": 2})
    exif = Image.Exif()
    exif[0x0112] = 6
    for copy in "12":
        save(smooth(400, 300), root / "a" / f"turned{copy}.jpg", exif=exif)
        save(Image.linear_gradient("L").resize((1, 4000)), root / "b" / f"hair{copy}.png")
    html = page_of(root, tmp_path / "page.html")
    sizes = {}
    for name, content in re.findall(r'<img alt="([^"]*)" src="data:image/webp;base64,([^"]*)"', html):
        sizes[name] = Image.open(io.BytesIO(base64.b64decode(content))).size
    assert (sizes["a/turned1.jpg"], sizes["b/hair1.png"]) == ((120, 160), (1, 160))
