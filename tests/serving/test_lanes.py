"""What one who asks for much costs the others: explanations have their own threads, answers a size, stopping an end."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from serving.conftest import classifier
from serving.test_batching import Doubling, workers
from serving.test_hostile_requests import address
from vitkit import Compute
from vitkit.explanation import explanation
from vitkit.serving import Computation, Server
from vitkit.serving import serve as running_module
from vitkit.serving import service as service_module
from vitkit.serving.serve import serve

Asking = Callable[..., "Future[httpx.Response]"]
PLAIN = Compute(backend="eager", precision="float32")


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.005)


@pytest.fixture
def server() -> Iterator[Server]:
    with serve(classifier(), compute=PLAIN, port=0, explain_queue=3) as own:
        yield own


@pytest.fixture
def picture(folder: Path) -> bytes:
    return (folder / "photos" / "0.png").read_bytes()


@pytest.fixture
def ask(server: Server, picture: bytes) -> Iterator[Asking]:
    """Asks in a thread."""
    with ThreadPoolExecutor(16) as pool:

        def post(path: str, pictures: int = 1) -> Future[httpx.Response]:
            own = [("image", (f"{i}.png", picture, "image/png")) for i in range(pictures)]
            return pool.submit(httpx.post, f"{server.url}{path}", files=own, timeout=60)

        yield post


def test_explanations_keep_no_prediction_waiting(server: Server, ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, plain = threading.Event(), explanation.explain
    monkeypatch.setattr(explanation, "explain", lambda *asked: gate.wait(60) and plain(*asked))
    service = server._service
    at_work = len(service.explainers._threads)
    asked = [ask("/explain?method=all") for _ in range(at_work)]
    until(lambda: service.explainers.working == at_work)  # more at once could wait, and the last one be refused
    asked += [ask("/explain?method=all") for _ in range(3)]
    until(lambda: (service.explainers.working, service.explainers.waiting) == (at_work, 3))
    refused = ask("/explain").result()
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    for _ in range(3):
        assert ask("/predict", 2).result().status_code == 200
        assert ask("/embed").result().status_code == 200
    assert not any(own.done() for own in asked)
    gate.set()
    assert [own.result().status_code for own in asked] == [200] * len(asked)


def test_a_request_that_does_not_end_does_not_keep_a_server_from_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_module, "_SHUTDOWN_SECONDS", 0.3)
    head = b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n"
    with serve(classifier(), compute=PLAIN, port=0) as own, socket.create_connection(address(own), timeout=60) as other:
        other.sendall(head + b"x" * 1000)
        until(lambda: own._server.config.app.total_bytes > 0)
        stopping = threading.Thread(target=own.stop, daemon=True)
        stopping.start()
        stopping.join(15)  # the body itself may take 20 seconds
        assert not stopping.is_alive()


def test_what_nobody_waits_for_is_not_computed() -> None:
    double, own = Doubling(), workers()
    work = Computation("a", 1, double)

    async def leave() -> None:
        double.gate.clear()
        first = asyncio.create_task(own.submit(work, [1]))
        while not own.working:
            await asyncio.sleep(0.001)
        gone = asyncio.create_task(own.submit(work, [2, 3]))
        last = asyncio.create_task(own.submit(work, [4]))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        double.gate.set()
        assert await asyncio.gather(first, last) == [[2], [8]]

    asyncio.run(leave())
    own.close()
    assert double.batches == [[1], [4]]
    assert (own.waiting, own.working) == (0, 0)


def numbers(server: Server) -> int:
    """Of a picture's patches."""
    config = server._service.models["model"].classifier.model.config
    return int(config.patches * config.hidden_size)


def test_answers_have_a_size_that_is_said_before_anything_is_computed(
    server: Server, ask: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, each = server._service, numbers(server)
    service.max_values = 3 * each + 1
    answer = ask("/embed?what=patches", 3).result()
    assert answer.status_code == 200
    assert np.asarray(answer.json()["embeddings"][2]["features"]).size == each
    answer = ask("/embed?what=patches", 4).result()
    assert (answer.status_code, answer.json()["code"]) == (413, "serving.answer-large")
    assert ask("/embed?what=head", 4).result().status_code == 200
    monkeypatch.setattr(service_module, "_MAX_RANKED", 10)
    for top, status in ((5, 200), (7, 413)):
        assert ask(f"/predict?top={top}", 2).result().status_code == status
