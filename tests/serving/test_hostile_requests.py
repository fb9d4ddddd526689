"""Wrong, huge, slow, half-sent and hostile requests: each gets its answer within limits, and changes nothing."""

import base64
import io
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from PIL import Image

import photos as pictures
from serving.conftest import classifier
from vitkit import Compute
from vitkit.serving import Server
from vitkit.serving.serve import serve


@pytest.fixture(scope="module")
def strict() -> Iterator[Server]:
    """A server of small limits, so that tests need not wait."""
    with serve(classifier(), compute=Compute(backend="eager", precision="float32"), port=0) as running:
        guard = running._server.config.app
        guard.rules = replace(guard.rules, seconds=0.4, max_bytes=200_000)
        yield running


def exchange(server: Server, *parts: bytes | float, wait: float = 5.0) -> bytes:
    """What comes back before the connection is closed, of these bytes; a number is a pause."""
    with socket.create_connection(address(server), timeout=wait) as own:
        for part in parts:
            if isinstance(part, float):
                time.sleep(part)
            else:
                try:
                    own.sendall(part)
                except (BrokenPipeError, ConnectionResetError):
                    break
        return received(own)


def address(server: Server) -> tuple[str, int]:
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)


def received(own: socket.socket) -> bytes:
    found = b""
    try:
        while piece := own.recv(2**16):
            found += piece
    except ConnectionResetError:
        pass
    return found


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def head(path: str = "/predict", length: int = 0, *more: str, host: str = "127.0.0.1") -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"host: {host}", "content-type: image/png", f"content-length: {length}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


def png() -> bytes:
    data = io.BytesIO()
    pictures.noise().save(data, "PNG")
    return data.getvalue()


@pytest.fixture(autouse=True)
def _well(strict: Server) -> Iterator[None]:
    """Whatever it was asked, it answers as ever."""
    yield
    content = {"content": png(), "headers": {"content-type": "image/png"}}
    assert httpx.post(f"{strict.url}/predict", **content).status_code == 200


def test_a_body_that_is_half_sent_is_given_up(strict: Server) -> None:
    began = time.monotonic()
    answer = exchange(strict, head(length=1000), b"x" * 500)
    assert (status(answer), 0.3 < time.monotonic() - began < 3) == (408, True)


def test_who_is_refused_can_read_why_though_it_was_still_sending(strict: Server) -> None:
    answer = httpx.post(f"{strict.url}/predict", content=b"x" * 5_000_000, headers={"content-type": "image/png"})
    assert (answer.status_code, "MiB at most" in answer.json()["error"]) == (413, True)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 1_000_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["long head", "TLS", "two lengths", "bad chunk"],
)
def test_what_is_no_request_is_refused(strict: Server, sent: bytes) -> None:
    assert 400 <= status(exchange(strict, sent, wait=10)) < 500


def test_a_request_with_two_kinds_of_length_is_refused_and_the_connection_closed(strict: Server) -> None:
    for path in ("/predict", "/health"):
        own = head(path, 5, "transfer-encoding: chunked")
        answer = exchange(strict, own, b"0\r\n\r\n", head("/ready").replace(b"POST", b"GET"), wait=10)
        assert (status(answer), answer.count(b"HTTP/1.1 ")) == (400, 1)
        assert b"connection: close" in answer and b"serving.length-ambiguous" in answer


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few kilobytes that says it has so many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(bytes(10_000_000))
    ihdr = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", ihdr) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    "content",
    [
        bomb(60_000, 60_000),
        png()[:60],
        b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    ],
    ids=["bomb", "cut", "svg", "postscript"],
)
def test_bombs_and_damaged_pictures_are_refused(strict: Server, content: bytes) -> None:
    began = time.monotonic()
    for path in ("/predict", "/explain"):  # features are read as predictions are
        answer = httpx.post(f"{strict.url}{path}", content=content, headers={"content-type": "image/png"}, timeout=20)
        assert answer.status_code == 422, answer.text
        assert "/" not in answer.json().get("error", "")  # no place of this machine is told
    assert time.monotonic() - began < 5


def test_no_path_leads_out(strict: Server) -> None:
    for path in (
        *("/docs/../../../etc/passwd", "/docs/%2e%2e%2f%2e%2e%2fetc/passwd", "//evil.example/"),
        *("/models/../../x", "/%00", "/docs/swagger-ui.css%00", "/docs/index.html"),
    ):
        answer = exchange(strict, f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        assert status(answer) in (404, 405, 307), path
        assert b"root:" not in answer and b"evil.example" not in answer.split(b"\r\n\r\n")[0]


def test_a_name_is_no_place_on_this_machine(strict: Server, tmp_path: Path) -> None:
    victim = tmp_path / "victim.png"
    Image.new("RGB", (4, 4)).save(victim)
    before = pictures.fingerprint(tmp_path)
    for name in (str(victim), "../../etc/passwd", "<script>alert(1)</script>.png", "a\r\nb: c"):
        for content, expected in ((png(), 200), (b"nothing", 422)):
            asked = {"image": {"path": name, "data": base64.b64encode(content).decode()}}
            answer = httpx.post(f"{strict.url}/predict", json=asked)
            assert answer.status_code == expected
            assert answer.headers["content-type"] == "application/json"
            (row,) = answer.json()["predictions"]
            assert row["path"] == name and row.get("error") in (None, "not an image")
    assert pictures.fingerprint(tmp_path) == before
