"""Consoles that lack characters, or whose reader has gone."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tiny
import warm
from photos import noise, save
from vitkit.classifier import Classifier
from vitkit.cli import HARMLESS, prepare_streams
from vitkit.cli.say import say
from vitkit.data import Preprocess


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of classes that no old console can show, and photographs with hostile names."""
    here = tmp_path_factory.mktemp("consoles")
    model = tiny.build(num_classes=3)
    size = model.config.image_size
    Classifier(model, ("=cat", "\x1b]0;dog\x07", "Δ鳥"), Preprocess(size=size)).save(here / "model")
    (here / "photos").mkdir()
    for i, name in enumerate(("=1+1.png", "\x1b[31mred.png", "Δ.png", "plain.png")):
        save(noise(20, 20, i), here / "photos" / name)
    return here


def shell(place: Path, command: str, *, begins: str, encoding: str = "utf-8") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["bash", "-c", f'vitkit() {{ {begins} "$@"; }}; {command}'],
        cwd=place, env=os.environ | {"PYTHONIOENCODING": encoding}, capture_output=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_any_text_can_be_said_on_any_console(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    data = io.BytesIO()
    stream = io.TextIOWrapper(data, encoding=encoding)
    monkeypatch.setattr(sys, "__stdout__", stream)
    prepare_streams()
    assert stream.errors == HARMLESS
    say("Δ 鳥 \x1b[2J \udcff", file=stream, flush=True)
    written = data.getvalue()
    assert b"\x1b" not in written and b"\\x1b[2J \xff" in written
    assert ("Δ".encode() in written) == (encoding == "utf-8")


def test_redirected_output_is_utf_8_in_any_code_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    data = io.BytesIO()
    stream = io.TextIOWrapper(data, encoding="cp1252")
    monkeypatch.setattr(sys, "__stdout__", stream)
    prepare_streams()
    say("Δ 鳥", file=stream, flush=True)
    assert data.getvalue().decode().strip() == "Δ 鳥"


def test_rows_for_an_ascii_console_hold_escapes(place: Path) -> None:
    done = shell(place, "vitkit predict model photos --backend eager", begins=warm.vitkit(), encoding="ascii")
    assert done.returncode == 0, done.stderr
    assert b"\\u0394.png" in done.stdout and b"\x1b" not in done.stdout and len(done.stdout.splitlines()) == 5


@pytest.mark.parametrize(
    ("command", "codes"),
    [
        ("vitkit models | true; exit ${PIPESTATUS[0]}", (0, 141)),
        ("vitkit models > /dev/full", (2,)),
    ],
)
def test_a_reader_that_is_gone_ends_the_command_quietly(place: Path, command: str, codes: tuple[int, ...]) -> None:
    done = shell(place, command, begins=f"{sys.executable} -m vitkit")
    assert done.returncode in codes
    assert b"Traceback" not in done.stderr and b"Exception" not in done.stderr
