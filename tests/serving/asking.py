"""A program that serves, and clients that cost little: requests made once, sent over connections that are kept."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import runs

FORM = b"xXboundaryXx"


@dataclass
class Program:
    """A `vitkit serve` of its own."""

    process: subprocess.Popen[str]
    url: str = ""

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Its exit code and what it wrote on stderr."""
        self.process.send_signal(number)
        _, told = self.process.communicate(timeout=60)
        return self.process.returncode, told


@contextmanager
def serving(vitkit: str, *arguments: object, **environment: str) -> Iterator[Program]:
    """A program that answers, on a free port."""
    process = subprocess.Popen(
        [vitkit, "serve", *map(str, arguments), "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**runs.environment(), **environment},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.match(r"serving at (http://\S+)", line)
        if found is None:
            process.kill()
            raise AssertionError(line + process.communicate()[1])
        yield Program(process, found[1])
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def posted(content: bytes, name: str = "image.jpg", path: str = "/predict?top=1") -> bytes:
    """The bytes of a request that sends a file as a form does."""
    body = (
        b"--" + FORM + f'\r\ncontent-disposition: form-data; name="image"; filename="{name}"\r\n'.encode()
        + b"content-type: image/jpeg\r\n\r\n" + content + b"\r\n--" + FORM + b"--\r\n"
    )  # fmt: skip
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
        f"content-type: multipart/form-data; boundary={FORM.decode()}\r\n\r\n"
    )
    return head.encode() + body


class Cut(Exception):
    """The connection was closed in the midst of an answer."""


class Connection:
    """One that is kept, or opened anew where the server has closed it."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._socket: socket.socket | None = None

    def ask(self, request: bytes) -> tuple[int, bytes] | None:
        """The status and the body; None where the request was not accepted: there is not a byte of an answer.

        Raises:
            Cut: the answer has no end.
        """
        head, body = b"", b""
        try:
            if self._socket is None:
                self._socket = socket.create_connection(self._address, timeout=60)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(request)
            while b"\r\n\r\n" not in head:
                piece = self._socket.recv(65536)
                if not piece:
                    raise ConnectionResetError
                head += piece
            head, _, body = head.partition(b"\r\n\r\n")
            length = int(re.search(rb"content-length: (\d+)", head)[1])  # type: ignore[index]
            while len(body) < length:
                piece = self._socket.recv(65536)
                if not piece:
                    raise ConnectionResetError
                body += piece
        except (ConnectionError, TimeoutError) as error:
            self.close()
            if head:
                raise Cut from error
            return None
        if b"connection: close" in head:
            self.close()
        return int(head.split(b" ", 2)[1]), body

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None


@dataclass
class Tally:
    """What became of requests.

    Attributes:
        statuses: how many answers of each status.
        refused: requests of which there is not a byte of an answer.
        cut: answers without an end.
        seconds: of each answer 200.
        rows: of each answer 200, by the request's number.
    """

    statuses: dict[int, int] = field(default_factory=dict)
    refused: int = 0
    cut: int = 0
    seconds: list[float] = field(default_factory=list)
    rows: dict[int, Any] = field(default_factory=dict)


def ask_all(address: tuple[str, int], requests: Sequence[bytes], clients: int, until: float = float("inf")) -> Tally:
    """Have so many clients ask, each one request after another, all of the requests or until a time."""
    tally, lock, numbers = Tally(), threading.Lock(), iter(range(len(requests)))

    def ask() -> None:
        own = Connection(address)
        while time.monotonic() < until:
            with lock:
                number = next(numbers, None)
            if number is None:
                break
            began = time.monotonic()
            try:
                answer = own.ask(requests[number])
            except Cut:
                with lock:
                    tally.cut += 1
                continue
            seconds = time.monotonic() - began
            with lock:
                if answer is None:
                    tally.refused += 1
                    continue
                tally.statuses[answer[0]] = tally.statuses.get(answer[0], 0) + 1
                if answer[0] == 200:
                    tally.seconds.append(seconds)
                    tally.rows[number] = json.loads(answer[1])["predictions"][0]
        own.close()

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tally


def counted(url: str, line: str) -> float:
    """A number of /metrics."""
    import httpx

    found = re.search(rf"^{re.escape(line)} (\S+)$", httpx.get(f"{url}/metrics", timeout=60).text, re.M)
    return float(found[1]) if found else 0.0


def resident(process: int) -> int:
    """Bytes of memory that a process holds."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def cpu_seconds(process: int) -> float:
    """That a process has spent so far, in all of its threads."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
