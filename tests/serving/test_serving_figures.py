"""What `vitkit serve` promises: what an image costs, how long it takes, and that nothing accepted is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from serving.asking import Tally, ask_all, counted, posted, resident, serving

pytestmark = pytest.mark.accept
VITKIT = str(Path(sys.executable).with_name("vitkit"))
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "serving.py"
EXACT = ("--backend", "eager", "--precision", "float32")


@pytest.mark.skipif("VITKIT_TEST_DATA" not in os.environ, reason="VITKIT_TEST_DATA is not set")
def test_an_image_costs_what_it_costs_predict_and_a_fifth_more(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(BENCHMARK), "--json", str(tmp_path / "row.json")], check=True, timeout=600)
    row = json.loads((tmp_path / "row.json").read_text())
    assert row["errors"] == 0
    assert float(row["ratio"]) <= 1.2, row
    assert float(row["p99_in_full_batches"]) <= 4, row
    held = [int(own) for own in row["resident_mib"].split()]
    assert max(held) <= 1.03 * held[0], row


@pytest.mark.parametrize("after", [0.5, 1.5, 3.0])
def test_ten_thousand_requests_across_a_signal_lose_none_that_was_accepted(folder: Path, after: float) -> None:
    requests = [posted((folder / "photos" / f"{i % 4 * 2 + 1}.jpg").read_bytes(), f"{i}.jpg") for i in range(10_000)]
    with serving(VITKIT, f"own={folder / 'first'}", *EXACT, "--queue", 64) as program:
        ask_all(program.address, requests[:64], 8)
        tallies = list[Tally]()
        crowd = threading.Thread(target=lambda: tallies.append(ask_all(program.address, requests, clients=32)))
        crowd.start()
        time.sleep(after)
        program.process.send_signal(signal.SIGTERM)
        crowd.join()
        _, told = program.process.communicate(timeout=60)
    assert (program.process.returncode, told) == (128 + signal.SIGTERM, "stopped by SIGTERM\n")
    (tally,) = tallies
    assert tally.cut == 0  # no answer without an end
    assert tally.statuses.keys() <= {200, 503} and tally.statuses[200] > 0
    assert tally.refused > 0  # the door was closed before all had been asked
    assert tally.refused + sum(tally.statuses.values()) == 10_000
    assert all(row["path"] == f"{number}.jpg" for number, row in tally.rows.items())


@pytest.fixture(scope="module")
def crowded(folder: Path) -> Iterator[object]:
    with serving(VITKIT, f"own={folder / 'first'}", *EXACT) as program:
        yield program


def test_a_crowd_beyond_the_queue_is_refused_and_memory_stays_flat(folder: Path, crowded: object) -> None:
    program = crowded
    content = (folder / "photos" / "1.jpg").read_bytes()
    requests = [posted(content)] * 4000
    held = []
    for _ in range(5):
        tally = ask_all(program.address, requests, clients=64)  # type: ignore[attr-defined]
        assert tally.cut == tally.refused == 0 and tally.statuses.keys() <= {200, 503}
        held.append(resident(program.process.pid))  # type: ignore[attr-defined]
    assert max(held) <= 1.05 * held[0], held
    assert counted(program.url, "vitkit_images_waiting") == 0  # type: ignore[attr-defined]


def test_hostile_requests_by_the_thousand_leave_it_as_it_was(folder: Path, crowded: object) -> None:
    program = crowded
    url, process = program.url, program.process.pid  # type: ignore[attr-defined]
    good = (folder / "photos" / "1.jpg").read_bytes()

    def expected() -> object:
        return httpx.post(f"{url}/predict", content=good, headers={"content-type": "image/jpeg"}).json()

    first, held = expected(), []
    with httpx.Client(base_url=url, timeout=60) as client:
        for turn in range(300):
            noise = os.urandom(turn % 50 * 100 + 1)
            asked = [
                client.post("/predict", content=noise, headers={"content-type": "image/png"}),
                client.post("/predict", content=noise, headers={"content-type": "application/json"}),
                client.post("/predict", content=noise, headers={"content-type": "multipart/form-data; boundary=x"}),
                client.post(
                    "/embed", content=good[: len(good) * (turn % 9) // 10], headers={"content-type": "image/x"}
                ),
                client.post("/explain?method=nothing", content=good, headers={"content-type": "image/jpeg"}),
                client.post("/predict", content=good, headers={"host": "evil.example"}),
                client.post("/predict", content=good, headers={"origin": "http://evil.example"}),
                client.get(f"/docs/%2e%2e/%2e%2e/{turn}"),
                client.request("DELETE", "/models"),
            ]
            assert all(400 <= answer.status_code < 500 for answer in asked), [own.status_code for own in asked]
            held.append(resident(process))
    assert expected() == first
    assert held[-1] <= 1.05 * held[len(held) // 5], (held[0], held[-1])
