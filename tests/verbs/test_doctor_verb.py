"""`vitkit.doctor`, beside `vitkit doctor`."""

import base64
import io
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import vitkit
from cli.conftest import vitkit as command
from photos import fingerprint, folder, noise, save, smooth

__all__ = ["command"]


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    return folder(tmp_path / "photos", {"cat": 12, "dog": 10}, 30, 30)


def test_function_and_command_agree_and_count(command: Any, leaks: Path, tmp_path: Path) -> None:
    before = fingerprint(leaks)
    found = vitkit.doctor(leaks, tmp_path / "ours.html")
    said = command("doctor", leaks, "-o", tmp_path / "theirs.html")
    assert said.out == "".join(f"{line}\n" for line in found.lines()).replace("ours.html", "theirs.html")
    assert (said.code, said.err, found.is_trustworthy) == (1, f"Next: open {tmp_path / 'theirs.html'}\n", False)
    assert said.out.splitlines()[-1].endswith(" to solve first, or results are wrong.")
    assert "train/cat/ramp.png = val/cat/ramp.jpg (near)" in said.out
    assert "train/cat/both.png = train/dog/both.png" in said.out
    assert (tmp_path / "ours.html").read_bytes() == (tmp_path / "theirs.html").read_bytes()
    told = json.loads(command("doctor", leaks, "--json").out)
    assert told == json.loads(json.dumps(found.to_dict()))
    assert fingerprint(leaks) == before
    save(Image.new("L", (200, 100), 7), leaks / "train" / "cat" / "grey.bmp")
    out = command("doctor", leaks).out
    for told in (
        "12 train, 2 val",
        "12 PNG, 1 BMP, 1 JPEG",
        "13 RGB, 1 L",
        "24 to 200, median 32",
        "24 to 100, median",
    ):
        assert told in out


def test_a_healthy_folder_and_one_with_warnings_exit_with_0(command: Any, healthy: Path, tmp_path: Path) -> None:
    outcome = command("doctor", healthy)
    assert (outcome.code, outcome.err) == (0, f"Next: vitkit train {healthy}\n")
    assert outcome.out.splitlines()[-1] == "Ready to train: nothing wrong was found."
    found = vitkit.doctor(healthy, tmp_path / "page.html")
    assert repr(found).startswith(f"<doctor: {healthy}: 22 images in 2 classes, {healthy}")
    assert "Nothing wrong was found" in found._repr_html_()
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert set(page.pictures()) == {"Images per class", "Sizes"}
    assert "Unreadable" not in page.text
    (healthy / "cat" / "text.jpg").write_text("not a picture")
    save(Image.open(healthy / "cat" / "cat_0.png"), healthy / "cat" / "copy.png")
    outcome = command("doctor", healthy)
    assert outcome.code == 0
    assert "warning: 1 of 24 images is unreadable and left out: cat/text.jpg (not an image)" in outcome.out
    assert "note: 1 picture is in the data more than once (1 exact); copies are kept in one split" in outcome.out
    assert "nothing wrong" not in outcome.out


@pytest.fixture
def leaks(tmp_path: Path) -> Path:
    """A val picture that is a recompressed training picture, a label conflict, and a harmless copy."""
    root = tmp_path / "leaking"
    folder(root / "train", {"cat": 3, "dog": 3}, 32, 32)
    save(smooth(64, 48), root / "train" / "cat" / "ramp.png")
    save(smooth(64, 48), root / "val" / "cat" / "ramp.jpg", quality=60)
    save(noise(24, 24, 99), root / "val" / "dog" / "own.png")
    save(noise(32, 32, 50), root / "train" / "cat" / "both.png")
    save(noise(32, 32, 50), root / "train" / "dog" / "both.png")
    save(noise(32, 32, 60), root / "train" / "dog" / "one.png")
    save(noise(32, 32, 60), root / "train" / "dog" / "two.png")
    return root


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        ("nowhere", "data.source-missing", "nowhere"),
        ("photos -o page.txt", "verbs.out-suffix", ".html"),
        ("photos -o photos/cat/page.html", "verbs.out-in-source", "photos"),
        ("photos -o old.html", "verbs.out-exists", "--force"),
        ("photos --layout splits", "data.splits-missing", "photos"),
        ("list.csv --layout splits", "data.option-unsuited", "--layout splits"),
    ],
)
def test_mistakes_exit_with_2_in_a_line_or_two_and_change_nothing(
    command: Any, healthy: Path, tmp_path: Path, monkeypatch: Any, arguments: str, code: str, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.html").write_text("precious")
    (tmp_path / "list.csv").write_text("path,label\nphotos/cat/cat_0.png,cat\nphotos/dog/dog_0.png,dog\n")
    before = fingerprint(tmp_path)
    outcome = command("doctor", *arguments.split())
    outcome.refused(code, named)
    assert outcome.out == "" and fingerprint(tmp_path) == before


def test_a_csv_forbids_the_folders_of_its_images_alone(command: Any, healthy: Path, tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    rows = [f"../photos/{path.parent.name}/{path.name},{path.parent.name}" for path in sorted(healthy.rglob("*.png"))]
    (tmp_path / "lists" / "all.csv").write_text("\n".join(["path,label", *rows]))
    (tmp_path / "link").symlink_to(healthy)
    for source, out in ((healthy, tmp_path / "link"), (tmp_path / "link", healthy)):
        command("doctor", source, "-o", out / "page.html").refused("verbs.out-in-source")
    table = tmp_path / "lists" / "all.csv"
    command("doctor", table, "-o", healthy / "dog" / "page.html").refused("verbs.out-in-source")
    assert command("doctor", table, "-o", table.with_name("page.html")).code == 0


class Page(HTMLParser):
    """The attributes of each tag, in order, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def pictures(self) -> dict[str, Image.Image]:
        found = {}
        for tag, attributes in self.tags:
            if tag == "img":
                kind, _, content = str(attributes["src"]).partition(";base64,")
                assert kind in ("data:image/png", "data:image/jpeg", "data:image/webp")
                picture = Image.open(io.BytesIO(base64.b64decode(content)))
                assert kind.endswith(str(picture.format).lower())
                found[str(attributes["alt"])] = picture
        return found


def test_the_page_is_one_file_with_the_pictures_of_the_copies(command: Any, leaks: Path, tmp_path: Path) -> None:
    for name in ("large", "again"):
        save(smooth(1500, 700), leaks / "train" / "cat" / f"{name}.png")
    (tmp_path / "page.html").write_text("old")
    command("doctor", leaks, "-o", tmp_path / "page.html", "--force")
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    page = Page(html)
    assert "http:" not in html and "https:" not in html
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert all(str(attributes.get("href", "#")).startswith("#") for _, attributes in page.tags), "its contents"
    assert all(str(attributes.get("src", "data:")).startswith("data:") for _, attributes in page.tags)
    pictures = page.pictures()
    for path in (
        *("train/cat/ramp.png", "val/cat/ramp.jpg", "train/cat/both.png", "train/dog/both.png"),
        *("train/dog/one.png", "train/dog/two.png"),
    ):
        assert path in pictures
        assert path in page.text
    assert pictures["val/cat/ramp.jpg"].size == (64, 48) and pictures["train/cat/large.png"].size == (160, 75)
    assert len(html) < 400_000
    assert not any("own.png" in name for name in pictures), "only what is there more than once"
    assert "15 images in 2 classes" in " ".join(page.text.split())


def test_the_doctor_says_how_the_folders_are_read(command: Any, tmp_path: Path) -> None:
    intel = tmp_path / "archive"  # splits as a well-known one has them
    for split, images in (("train", 3), ("test", 2)):
        folder(intel / f"seg_{split}" / f"seg_{split}", {"sea": images, "street": images}, 30, 30)
    outcome = command("doctor", intel, "-o", tmp_path / "page.html")
    line = "folders read as splits: train in seg_train/seg_train/, test in seg_test/seg_test/"
    assert line in outcome.out.splitlines()
    assert line in (tmp_path / "page.html").read_text()
    told = json.loads(command("doctor", intel, "--json").out)
    assert (told["layout"], told["classes"]) == (line, {"sea": 5, "street": 5})
