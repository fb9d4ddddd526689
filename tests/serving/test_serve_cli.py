"""`vitkit serve` as a program: what it says, whom it answers, and how it ends."""

from __future__ import annotations

import shlex
import signal
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

import warm
from serving.asking import Program, ask_all, posted, serving

EXACT = ("--backend", "eager", "--precision", "float32")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_what_was_accepted_and_takes_nothing_more(folder: Path, number: signal.Signals) -> None:
    content = (folder / "photos" / "1.jpg").read_bytes()
    with serving(warm.vitkit(), f"own={folder / 'first'}", *EXACT, "--queue", 600) as program:
        slow = _half_sent(program, posted(content))
        tallies = []
        crowd = threading.Thread(
            target=lambda: tallies.append(ask_all(program.address, [posted(content)] * 600, clients=8))
        )
        crowd.start()
        time.sleep(0.3)
        program.process.send_signal(number)
        time.sleep(0.4)
        _refused(program)
        slow.sendall(posted(content)[-100:])
        answer = slow.recv(65536)
        slow.close()
        assert answer.startswith(b"HTTP/1.1 200 OK"), answer
        assert b"connection: close" in answer
        crowd.join()
        _, told = program.process.communicate(timeout=30)
    assert (program.process.returncode, told) == (128 + number, f"stopped by {number.name}\n")
    (tally,) = tallies
    assert tally.cut == 0
    assert tally.statuses.keys() <= {200, 503} and tally.statuses[200] >= 8
    confidences = {row["confidence"] for row in tally.rows.values()}
    assert max(confidences) - min(confidences) < 1e-5  # batches of several sizes
    assert tally.refused + sum(tally.statuses.values()) == 600


def _half_sent(program: Program, request: bytes) -> socket.socket:
    own = socket.create_connection(program.address, timeout=20)
    own.sendall(request[:-100])
    time.sleep(0.1)
    return own


def _refused(program: Program) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(program.address, timeout=5)


def test_a_second_signal_does_not_wait(folder: Path) -> None:
    with serving(warm.vitkit(), folder / "first", *EXACT) as program:
        own = _half_sent(program, posted(b"x" * 1000))
        program.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert program.process.poll() is None
        began = time.monotonic()
        code, _ = program.end(signal.SIGINT)
        assert (code, time.monotonic() - began < 5) == (130, True)
        own.close()


def test_the_token_may_come_from_the_environment(folder: Path) -> None:
    token = "a-token-of-some-length"
    with serving(warm.vitkit(), folder / "first", *EXACT, VITKIT_TOKEN=token) as program:
        assert httpx.get(f"{program.url}/models").status_code == 401
        assert httpx.get(f"{program.url}/models", headers={"authorization": f"Bearer {token}"}).status_code == 200


def test_more_connections_than_files_are_refused_in_a_line(folder: Path, tmp_path: Path) -> None:
    code = "import resource, vitkit.__main__ as own; resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120)); own.main()"
    narrow = tmp_path / "vitkit"
    narrow.write_text(f'#!/bin/sh\nexec {shlex.quote(warm.python())} -c "{code}" "$@"\n')
    narrow.chmod(0o700)
    with serving(str(narrow), folder / "first", *EXACT) as program:
        with ExitStack() as idle:
            for _ in range(200):
                last = idle.enter_context(socket.create_connection(program.address, timeout=5))
            assert last.recv(100).startswith(b"HTTP/1.1 503 ")
        deadline = time.monotonic() + 5  # to notice that they are closed
        while httpx.get(f"{program.url}/models").status_code == 503:
            assert time.monotonic() < deadline
        code, told = program.end()
    assert code == 143
    assert told == "60 connections are open: further ones are refused (503)\nstopped by SIGTERM\n"
