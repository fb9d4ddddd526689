"""Clients of a server that cost little: requests made once, sent over connections that are kept."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORM = b"xXboundaryXx"


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


class CutError(Exception):
    """The connection was closed in the midst of an answer."""


class Connection:
    """One that is kept, or opened anew where the server has closed it."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._socket: socket.socket | None = None

    def ask(self, request: bytes) -> tuple[int, bytes] | None:
        """The status and the body; None where the request was not accepted: there is not a byte of an answer.

        Raises:
            CutError: the answer has no end.
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
                raise CutError from error
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
            except CutError:
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


def resident(process: int) -> int:
    """Bytes of memory that a process holds."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def cpu_seconds(process: int) -> float:
    """That a process has spent so far, in all of its threads."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
