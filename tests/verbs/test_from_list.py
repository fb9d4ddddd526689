"""`vitkit predict MODEL @FILE`."""

import os
from pathlib import Path
from typing import Any

import pytest

import photos
import vitkit as package
from afar import served
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.data.remote import _filesystem_of

NOT_UTF8 = os.fsdecode(b"caf\xe9.png")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    classifier = Classifier(build(image_size=(16, 16), num_classes=2), ("blue", "red"), Preprocess(size=(16, 16)))
    classifier.save("model")
    for i, name in enumerate(("a.png", "with space.png", "été 図.png", NOT_UTF8, "=1+1.png", "[x].png")):
        photos.save(photos.noise(20, 24, seed=i), tmp_path / "photos" / name)
    return tmp_path


def test_each_line_is_a_row_in_its_order(here: Path) -> None:
    lines = ["photos/été 図.png", "", "photos/a.png", "photos/nowhere.png", "   ", "photos/with space.png", "photos"]
    lines += ["photos/a.png", f"photos/{NOT_UTF8}", "photos/*.png", "photos/[x].png", " photos/a.png"]
    for end in ("\n", "\r\n"):
        Path("list.txt").write_bytes(b"\xef\xbb\xbf" + os.fsencode(end.join(lines)))  # no line end after the last
        rows = list(package.predict("model", "@list.txt"))
        assert [row.path for row in rows] == list(dict.fromkeys(line for line in lines if line.strip()))
        unreadable = {row.path: row.error for row in rows if row.error is not None}
        assert set(unreadable) == {"photos/nowhere.png", "photos", "photos/*.png", " photos/a.png"}
        assert all(unreadable.values())
    by_path = {row.path: row.confidence for row in package.predict("model", ["photos"])}
    assert all(row.confidence == pytest.approx(by_path[row.path], abs=1e-6) for row in rows if row.error is None)


@pytest.mark.parametrize(
    ("content", "arguments", "code"),
    [
        (b" \r\n\n", "@list.csv -o rows.csv", "verbs.list-empty"),
        ("a.png\n".encode("utf-16"), "@list.csv -o rows.csv", "verbs.list-unreadable"),
        (b"photos/a.png\n", "@list.csv -o ./list.csv --force", "verbs.out-in-source"),
        (b"photos/a.png\n", "photos @list.csv", "verbs.option-conflict"),
        (b"photos/a.png\n", "@-", "verbs.images-missing"),
        (b"photos/a.png\n", "-", "verbs.images-missing"),
        (b"photos/a.png\n", "photos -o s3://bucket/rows.csv", "system.path-remote"),
        (b"photos/a.png\n", "photos -o rows.parquet", "verbs.out-suffix"),
    ],
)
def test_a_list_that_is_none_or_does_not_stand_alone_is_refused_and_never_overwritten(
    vitkit: Any, here: Path, content: bytes, arguments: str, code: str
) -> None:
    Path("list.csv").write_bytes(content)
    vitkit("predict", "model", *arguments.split()).refused(code)
    assert Path("list.csv").read_bytes() == content and not Path("rows.csv").exists()


def test_addresses_fail_row_by_row_and_a_busy_server_is_asked_again(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {row.path: row.confidence for row in package.predict("model", "photos/a.png")}["photos/a.png"]
    with served(here / "photos") as site:
        try:
            lines = [f"{site.address}/a.png", f"{site.address}/nowhere.png", "photos/a.png", f"{site.address}/a.png"]
            Path("list.txt").write_text("\n".join(lines))
            package.predict("model", "@list.txt", out="rows.csv")
            package.predict("model", "@list.txt", out="rows.csv", resume=True)
            rows = list(package.predict("model", "@list.txt"))
            requests = dict(site.requests)
        finally:
            _filesystem_of.cache_clear()
    assert [(row.path, row.error is None) for row in rows] == [(lines[0], True), (lines[1], False), (lines[2], True)]
    assert rows[0].confidence == pytest.approx(expected, abs=1e-6)
    assert set(requests) == {"a.png", "nowhere.png"}, "no server is asked for anything else"
    monkeypatch.setattr("vitkit.data.remote._WAITS", (0.0, 0.0))
    with served(here / "photos") as site:
        try:
            site.fault = lambda name, before: "forbidden" if name == "a.png" else "busy"
            Path("list.txt").write_text(f"{site.address}/a.png\n{site.address}/b.png\n")
            rows = list(package.predict("model", "@list.txt"))
            requests = dict(site.requests)
        finally:
            _filesystem_of.cache_clear()
    assert "403" in (rows[0].error or "") and "gave up after 3 attempts" in (rows[1].error or "")
    assert requests == {"a.png": 1, "b.png": 3}


def test_offline_no_server_is_asked(vitkit: Any, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(here / "photos") as site:
        Path("list.txt").write_text(f"photos/a.png\n{site.address}/a.png\n")
        for switch, asked in (
            ("HF_HUB_OFFLINE", "predict model hf://datasets/me/photos"),
            ("VITKIT_OFFLINE", "predict model @list.txt -o rows.csv"),
            ("VITKIT_OFFLINE", f"doctor {site.address}"),
            ("VITKIT_OFFLINE", f"train {site.address}"),
        ):
            with monkeypatch.context() as patch:
                patch.setenv(switch, "1")
                vitkit(*asked.split()).refused("data.offline", f"{switch}=1 forbids")
        assert site.requests.total() == 0
    assert not Path("rows.csv").exists()
