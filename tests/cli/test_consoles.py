"""Consoles that lack characters, or whose reader has gone."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

from vitkit.cli import HARMLESS, prepare_streams
from vitkit.cli.say import say


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


@pytest.mark.parametrize(
    ("command", "codes"),
    [
        ("vitkit models | true; exit ${PIPESTATUS[0]}", (0, 141)),
        ("vitkit models > /dev/full", (2,)),
    ],
)
def test_a_reader_that_is_gone_ends_the_command_quietly(tmp_path: Path, command: str, codes: tuple[int, ...]) -> None:
    shell = ["bash", "-c", f'vitkit() {{ {sys.executable} -m vitkit "$@"; }}; {command}']
    done = subprocess.run(shell, cwd=tmp_path, capture_output=True, timeout=120, check=False)
    assert done.returncode in codes
    assert b"Traceback" not in done.stderr and b"Exception" not in done.stderr
