"""`vitkit predict MODEL @FILE`, and Parquet."""

import csv
import io
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

import photos
import runs
import vitkit as package
import warm
from afar import served
from refusals import refused
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.data.remote import _filesystem_of
from vitkit.text import restored

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


def test_standard_input(vitkit: Any, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"photos/a.png\nphotos/with space.png\n"
    Path("list.txt").write_bytes(text)
    exact = ("--precision", "float32")  # in bfloat16, batches of one and of two images are rounded differently
    written = vitkit("predict", "model", "@list.txt", *exact).out
    for flags in ((), ("-o", "rows.csv"), ("-o", "rows.csv", "--force", "--shard", "1/1")):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text)))
        outcome = vitkit("predict", "model", "@-", *exact, *flags)
        assert outcome.code == 0 and written == (Path("rows.csv").read_text() if flags else outcome.out)


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_each_line_of_standard_input_is_answered_before_the_next(here: Path, flags: tuple[str, ...]) -> None:
    command = [warm.vitkit(), "predict", "model", "@-", *flags]
    with subprocess.Popen(command, env=runs.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdin is not None and program.stdout is not None
        for number, path in enumerate(("photos/a.png", "photos/nowhere.png", "photos/with space.png")):
            program.stdin.write(f"{path}\n".encode())
            program.stdin.flush()
            if number == 0 and not flags:
                assert program.stdout.readline().startswith(b"path,label,confidence")
            assert path.encode() in program.stdout.readline()
        program.stdin.close()
        assert program.stdout.read() == b""
    assert program.returncode == 1  # one of them is nowhere


def test_a_picture_may_come_from_standard_input(vitkit: Any, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(content: bytes | None, *flags: str) -> Any:
        monkeypatch.setattr(sys, "stdin", None if content is None else SimpleNamespace(buffer=io.BytesIO(content)))
        return vitkit("predict", "model", *flags)

    content = Path("photos/a.png").read_bytes()
    expected = vitkit("predict", "model", "photos/a.png").out
    assert answers(content, "-").out == expected.replace("photos/a.png", "standard input")
    assert answers(content, "-", "-o", "rows.csv").code == 0
    assert Path("rows.csv").read_text() == expected.replace("photos/a.png", "standard input")
    damaged = answers(b"not a picture", "-")
    assert (damaged.code, "\nstandard input,,,not an image" in damaged.out) == (1, True)
    answers(b"", "-").refused("verbs.input-empty")
    for source in ("-", "@-"):
        answers(None, source).refused("verbs.input-closed", source)
    for flags in (("-", "photos"), ("-", "--pictures", "drawn"), ("-", "-o", "new.csv", "--resume")):
        answers(content, *flags).refused("verbs.option-conflict")


@pytest.mark.parametrize(
    ("content", "arguments", "code"),
    [
        (b" \r\n\n", "@list.csv -o rows.csv", "verbs.list-empty"),
        ("a.png\n".encode("utf-16"), "@list.csv -o rows.csv", "verbs.list-unreadable"),
        (b"photos/a.png\n", "@list.csv -o ./list.csv --force", "verbs.out-in-source"),
        (b"photos/a.png\n", "photos @list.csv", "verbs.option-conflict"),
    ],
)
def test_a_list_that_is_none_or_does_not_stand_alone_is_refused_and_never_overwritten(
    vitkit: Any, here: Path, content: bytes, arguments: str, code: str
) -> None:
    Path("list.csv").write_bytes(content)
    vitkit("predict", "model", *arguments.split()).refused(code, "list")
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
            ("VITKIT_OFFLINE", "predict model photos -o s3://bucket/rows.csv"),
            ("VITKIT_OFFLINE", f"doctor {site.address}"),
            ("VITKIT_OFFLINE", f"train {site.address}"),
        ):
            with monkeypatch.context() as patch:
                patch.setenv(switch, "1")
                vitkit(*asked.split()).refused("data.offline", f"{switch}=1 forbids")
        assert site.requests.total() == 0
    assert not Path("rows.csv").exists()


def test_parquet_has_the_cells_of_the_csv_file(vitkit: Any, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("photos/text.png").write_text("not a picture")
    confidences = sorted(row.confidence for row in package.predict("model", "photos") if row.confidence is not None)
    flags = ("--top", 2, "--reject", (confidences[0] + confidences[-1]) / 2)
    assert vitkit("predict", "model", "photos", *flags, "-o", "rows.csv").code == 1
    outcome = vitkit("predict", "model", "photos", *flags, "-o", "rows.parquet")
    assert (outcome.code, outcome.out.split()[0]) == (1, "7")
    table = pq.read_table("rows.parquet")
    types = {"path": "string", "label": "string", "confidence": "double", "confidence_2": "double"}
    assert {name: str(table.schema.field(name).type) for name in types} == types
    with Path("rows.csv").open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        rows = list(csv.DictReader(file))
    assert table.column_names == list(rows[0])
    for row, cells in zip(rows, table.to_pylist(), strict=True):
        for name, cell in cells.items():
            if name.startswith("confidence"):
                assert row[name] == ("" if cell is None else f"{cell:.6f}")
            else:
                assert (cell or "") == restored(row[name]).encode("utf-8", "backslashreplace").decode()
    vitkit("predict", "model", "photos", "-o", "rows.parquet").refused("verbs.out-exists")
    vitkit("predict", "model", "photos", "-o", "rows.parquet", "--resume").refused("verbs.resume-impossible")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with refused("inference.package-missing", "pip install 'vitkit[parquet]'"):
        package.predict("nowhere", "photos", out="other.parquet")  # before the model is opened
