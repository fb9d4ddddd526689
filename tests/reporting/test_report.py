"""The report is one file that opens offline and shows names as they are."""

import base64
import hashlib
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from photos import noise, save
from vitkit.evaluation import Evaluation, LabelError
from vitkit.evaluation.figures import figures
from vitkit.reporting import SIDE, write_report

EVIL = "<script>alert('1')</script> & \"quotes\" 🐈"


def data_of(html: str) -> dict[str, Any]:
    """The data of the interactive views."""
    data: dict[str, Any] = json.loads(html.partition('id="data">')[2].partition("</script>")[0])
    return data


VOID = {"meta", "img", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """Tags, attributes and text of a page; an end tag that fits no start tag is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.tags, self.text = list[str](), list[tuple[str, dict[str, str | None]]](), ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def evaluation() -> Evaluation:
    return Evaluation(
        split="test",
        classes=("cat", EVIL),
        paths=("a.png", "b.png", "c.png", "d.png"),
        labels=np.array([0, 0, 1, 1]),
        probabilities=np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.2, 0.8]], np.float32),
    )


@pytest.fixture
def html(tmp_path: Path, evaluation: Evaluation) -> str:
    write_report(
        tmp_path / "report.html",
        title=f"run {EVIL}",
        evaluation=evaluation,
        numbers=figures(evaluation),
        root=tmp_path,
        facts={"data": f"/photos/{EVIL}", EVIL: "1"},
        findings=[f"3 files are odd: {EVIL}"],
        pictures={"Curves": save(noise(), tmp_path / "a.png").read_bytes(), EVIL: (tmp_path / "a.png").read_bytes()},
        label_errors=[LabelError("a.png", EVIL, "cat", 0.75, 0.2), LabelError("d.png", "cat", EVIL, 0.5, 0.4)],
        recipe=f'model = "{EVIL}"\n',
    )
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_page_is_well_formed_and_needs_nothing_from_elsewhere(html: str) -> None:
    page = Page(html)
    assert page.open == []
    assert html.startswith("<!doctype html>")
    assert {"charset": "utf-8"} in [attributes for _, attributes in page.tags]
    assert set(re.findall(r"https?://[^\s\"']*", html)) == {"http://www.w3.org/2000/svg"}, "a name, and no address"
    assert not re.search(r"url\(|@import", html)
    assert not {"link", "iframe", "object"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        assert not {"href", "srcset", "data", "onerror", "onclick"} & attributes.keys()
        assert (attributes.get("src") or "data:").startswith("data:")


def test_names_are_shown_as_they_are_and_never_as_tags(html: str) -> None:
    assert re.findall("<script[^>]*>", html) == ['<script type="application/json" id="data">', '<script type="module">']
    assert html.count("</script") == 2
    assert data_of(html)["images"]["classes"] == ["cat", EVIL]
    assert Page(html).text.count(EVIL) >= 6, "title, heading, finding, facts, caption, recipe"


def test_the_policy_lets_the_page_run_its_own_script_alone(html: str) -> None:
    (policy,) = (own["content"] or "" for _, own in Page(html).tags if "http-equiv" in own)
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    for tag, name in (("style", "style-src"), ('script type="module"', "script-src")):
        inside = html.partition(f"<{tag}>")[2].partition(f"</{tag.split()[0]}>")[0]
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}'" in policy
    assert not re.search(r"<[^>]* (style|on\w+)=", html.partition("<script")[0]), "what the policy would not let work"


def test_pictures_and_photographs_are_in_the_page(html: str, tmp_path: Path) -> None:
    pictures = [attributes["src"] or "" for tag, attributes in Page(html).tags if tag == "img"]
    data = data_of(html)
    assert len(pictures) == 2
    assert list(data["photographs"]) == ["0"] == list(data["doubts"]["photographs"]), "the other files are missing"
    for source in (*pictures, data["photographs"]["0"], data["doubts"]["photographs"]["0"]):
        kind, _, content = source.partition(";base64,")
        assert kind == "data:image/png", "photographs of few pixels lose none"
        shown = Image.open(io.BytesIO(base64.b64decode(content)))
        assert np.array_equal(*(np.asarray(one.convert("RGB")) for one in (shown, Image.open(tmp_path / "a.png"))))


def test_a_large_photograph_is_in_the_page_as_a_small_webp(tmp_path: Path, evaluation: Evaluation) -> None:
    """A page without facts, findings and pictures is well-formed, too."""
    for path in evaluation.paths:
        save(noise(900, 600), tmp_path / path)
    shown: dict[str, Any] = {"title": "t", "facts": {}, "findings": [], "pictures": {}}
    write_report(tmp_path / "r.html", evaluation=evaluation, numbers=figures(evaluation), root=tmp_path, **shown)
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert Page(text).open == []
    found = re.findall(r"data:image/webp;base64,([^\"]+)", text)
    assert len(found) == len(evaluation.paths), "each once"
    for own in found:
        assert Image.open(io.BytesIO(base64.b64decode(own))).size == (SIDE, SIDE * 2 // 3)


def test_the_page_has_the_numbers_the_mistakes_and_the_doubtful_labels_in_their_order(
    html: str, evaluation: Evaluation
) -> None:
    text, data = Page(html).text, data_of(html)
    for told in ("75.0 %", "Right for 3 of 4 photographs", "4 test images", "has only 2 images here"):
        assert told in text
    assert html.index("Right for 3 of 4") < html.index("Each class") < html.index("<h2>Details")
    assert f'<td>log loss</td><td class="number">{evaluation.loss:.4f}</td>' in html.partition("<h2>Details")[2]
    row = data["classes"]["rows"][0]
    assert [row[key] for key in ("name", "precision", "recall", "f1", "support")] == ["cat", 0.66667, 1, 0.8, 2]
    assert [1, 0, 1] in data["confusion"]["pairs"], "the confused classes"
    assert data["images"]["said"] == [0, 0, 0, 1] and data["images"]["confidence"][2] == pytest.approx(0.7)
    assert "2 labels contradict" in text and "About 0.6 of these 2 are probably right" in text
    assert data["doubts"]["score"] == [0.75, 0.5] and data["doubts"]["suggested"] == [0, 1]
    assert text.index("3 files are odd") < text.index("The run")
