"""What an image costs over HTTP: `python benchmarks/serving.py [--seconds 120] [--smoke]`.

`vitkit serve` answers 32 clients, each of which sends one photograph after another as a form does, over a connection
that it keeps. Before and after, `vitkit predict` classifies the same files: CPU seconds an image are the difference
between many files and few, so that neither's start counts, and the mean of both, as an image costs more where others
compute beside. The clients take of the same cores; the load average before says whether others did. Needs
VITKIT_TEST_DATA (README.md) for the photographs and DeiT-Ti; with --smoke generated photographs and a random micro
model, for a few seconds. Results go to benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from clients import Connection, Tally, ask_all, cpu_seconds, posted, resident
from tables import save_table, show

VITKIT = str(Path(sys.executable).with_name("vitkit"))
CLIENTS, BATCH, FILES, FEW = 32, 8, 700, 100
EXACT = ("--backend", "eager", "--precision", "float32")
FASTEST = ("--backend", "openvino")  # what auto takes for many


def generated(folder: Path, count: int) -> tuple[Path, list[Path]]:
    """A random micro model, and photographs for it."""
    import numpy as np
    import torch
    from PIL import Image

    from vitkit import Classifier, Preprocess, create_model

    torch.manual_seed(0)
    model = create_model("vit_micro_patch4_16", num_classes=10)
    Classifier(model, tuple("abcdefghij"), Preprocess(size=(16, 16))).save(folder / "model")
    (folder / "photos").mkdir()
    files = [folder / "photos" / f"{i}.jpg" for i in range(count)]
    for i, file in enumerate(files):
        pixels = np.random.default_rng(i).integers(0, 256, (24, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((96, 64)).save(file)
    return folder / "model", files


def published() -> tuple[Path, list[Path]]:
    """DeiT-Ti, and the photographs of flowers."""
    data = Path(os.environ["VITKIT_TEST_DATA"])
    files = sorted((data / "data" / "flowers").rglob("*.jpg"))
    return data / "weights" / "deit_tiny_patch16_224.pth", files[:: max(1, len(files) // FILES)]


def predict_cost(model: Path, files: Sequence[Path], few: int, flags: Sequence[str]) -> float:
    """CPU seconds an image of `vitkit predict`, without its start."""
    spent = []
    with tempfile.TemporaryDirectory() as name:
        for number, count in enumerate((few, len(files))):
            folder = Path(name) / str(number)
            folder.mkdir()
            step = len(files) / count
            for i in range(count):
                (folder / f"{i}.jpg").symlink_to(files[int(i * step)].resolve())
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [VITKIT, "predict", str(model), str(folder), "-o", f"{folder}.jsonl", *flags]
            subprocess.run(command, check=True, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return (spent[1] - spent[0]) / (len(files) - few)


@contextmanager
def serving(model: Path, flags: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], tuple[str, int]]]:
    """A server in a process of its own, and its address."""
    command = [VITKIT, "serve", str(model), "--port", "0", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.match(r"serving at http://(\S+):(\d+)", line)
        assert found, line
        print(line + process.stdout.readline(), end="")
        try:
            yield process, (found[1], int(found[2]))
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM


def full_batch(address: tuple[str, int], files: Sequence[Path]) -> float:
    """Median seconds of a request of a whole batch, while nobody else asks."""
    own, times = Connection(address), []
    contents = [file.read_bytes() for file in files[:BATCH]]
    whole = posted_many(contents)
    for _ in range(20):
        began = time.perf_counter()
        answer = own.ask(whole)
        times.append(time.perf_counter() - began)
        assert answer is not None and len(json.loads(answer[1])["predictions"]) == BATCH
    own.close()
    return statistics.median(times[5:])


def posted_many(contents: Sequence[bytes]) -> bytes:
    """A request with several files."""
    bodies = [posted(content).partition(b"\r\n\r\n")[2].rpartition(b"--xXboundaryXx--")[0] for content in contents]
    body = b"".join(bodies) + b"--xXboundaryXx--\r\n"
    head = posted(b"").partition(b"\r\n\r\n")[0]
    return re.sub(rb"content-length: \d+", b"content-length: %d" % len(body), head) + b"\r\n\r\n" + body


def load(
    process: subprocess.Popen[str], address: tuple[str, int], files: Sequence[Path], seconds: float
) -> tuple[Tally, float, list[int]]:
    """What became of the clients' requests, the server's CPU seconds, and its memory at each fifth of the time."""
    contents = [posted(file.read_bytes(), file.name) for file in files]
    requests = [contents[i % len(contents)] for i in range(int(2000 * seconds))]
    ask_all(address, requests[: 4 * CLIENTS], CLIENTS)  # until all is warm
    held = list[int]()
    ended = threading.Event()

    def watch() -> None:
        for _ in range(5):
            if ended.wait(seconds / 5 - 0.02):
                return
            held.append(resident(process.pid))

    watcher = threading.Thread(target=watch)
    before = cpu_seconds(process.pid)
    watcher.start()
    tally = ask_all(address, requests, CLIENTS, time.monotonic() + seconds)
    spent = cpu_seconds(process.pid) - before
    ended.set()
    watcher.join()
    return tally, spent, held


def measure(model: Path, files: Sequence[Path], seconds: float, few: int, flags: Sequence[str]) -> dict[str, object]:
    """One row of the table."""
    busy, before = os.getloadavg()[0], predict_cost(model, files, few, flags)
    with serving(model, flags) as (process, address):
        batch = full_batch(address, files)
        tally, spent, held = load(process, address, files, seconds)
    images = tally.statuses.get(200, 0)
    print(f"{images} images, {1000 * spent / images:.3f} ms of the server's CPU each", flush=True)
    ordered = sorted(tally.seconds)
    p50, p99 = (ordered[int(part * (len(ordered) - 1))] for part in (0.5, 0.99))
    cost, predicted = spent / images, statistics.mean([before, predict_cost(model, files, few, flags)])
    return {
        "load_average_before": f"{busy:.1f}",
        "clients": CLIENTS,
        "seconds": f"{seconds:g}",
        "images": images,
        "errors": sum(tally.statuses.values()) - images + tally.refused + tally.cut,
        "images_a_second": f"{images / seconds:.1f}",
        "cpu_ms_an_image": f"{1000 * cost:.3f}",
        "predict_cpu_ms_an_image": f"{1000 * predicted:.3f}",
        "ratio": f"{cost / predicted:.3f}",
        "full_batch_ms": f"{1000 * batch:.1f}",
        "p50_ms": f"{1000 * p50:.1f}",
        "p99_ms": f"{1000 * p99:.1f}",
        "p99_in_full_batches": f"{p99 / batch:.2f}",
        "resident_mib": " ".join(f"{own / 2**20:.0f}" for own in held),
    }


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", type=Path, help="write the row to this file too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if options.smoke:
            model, files = generated(Path(name), 60)
            row = measure(model, files, 2, 20, EXACT)
        else:
            model, files = published()
            row = measure(model, files, options.seconds, FEW, FASTEST)
    print(show(row))
    if options.json is not None:
        options.json.write_text(json.dumps(row), encoding="utf-8")
    if not options.smoke:
        save_table("serving", "bfloat16", [row])


if __name__ == "__main__":
    main()
