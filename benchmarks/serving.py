"""What an image costs over HTTP: `python benchmarks/serving.py [--seconds 120] [--rounds 9] [--smoke]`.

`vitkit serve` answers 32 clients, each of which sends one photograph after another as a form does, over a connection
that it keeps: for two minutes, which is about waiting and memory; then for a few seconds in turn with `vitkit
predict`'s own pipeline (Classifier.predict) in another process, on the same files, round after round. The ratio of
CPU seconds an image is the median over the rounds, so that what computes beside slows both. The clients take of the
same cores; the load average before says whether others did. Needs VITKIT_TEST_DATA (README.md) for the photographs
and DeiT-Ti; with --smoke generated photographs and a random micro model, for a few seconds. Results go to
benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from clients import Connection, Tally, ask_all, cpu_seconds, posted, resident
from tables import save_table, show

VITKIT = str(Path(sys.executable).with_name("vitkit"))
CLIENTS, BATCH, FILES = 32, 8, 200
ROUNDS, TURN = 9, 5.0  # seconds
EXACT = ("--backend", "eager", "--precision", "float32")
FASTEST = ("--backend", "openvino", "--precision", "bfloat16")  # what auto takes for many


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


def predict_in_turn(model: str, names: str, backend: str, precision: str) -> None:
    """Classify files whenever a number comes on stdin, for so many seconds; CPU seconds an image on stdout."""
    import vitkit

    classifier = vitkit.load(model).use(backend, precision)
    files = Path(names).read_text(encoding="utf-8").splitlines()
    list(classifier.predict(files[: 4 * BATCH]))
    for line in sys.stdin:
        began, ended, count = time.process_time(), time.monotonic() + float(line), 0
        while time.monotonic() < ended:
            count += sum(1 for _ in classifier.predict(files))
        print((time.process_time() - began) / count, flush=True)


@contextmanager
def predictor(model: Path, files: Sequence[Path], flags: Sequence[str]) -> Iterator[Callable[[float], float]]:
    """What classifies the files for some seconds, in a process of its own, and says what an image cost."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as names:
        names.write("\n".join(map(str, files)))
        names.flush()
        command = [sys.executable, __file__, "--in-turn", str(model), names.name, *flags]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

            def ask(seconds: float) -> float:
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(f"{seconds}\n")
                process.stdin.flush()
                return float(process.stdout.readline())

            yield ask


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


def measure(
    model: Path, files: Sequence[Path], seconds: float, turn: float, flags: Sequence[str], rounds_in_turn: int
) -> dict[str, object]:
    """One row of the table."""
    busy, rounds = os.getloadavg()[0], []
    with serving(model, flags) as (process, address), predictor(model, files, (flags[1], flags[3])) as predict:
        batch = full_batch(address, files)
        tally, _, held = load(process, address, files, seconds)
        for _ in range(rounds_in_turn):
            own, spent, _ = load(process, address, files, turn)
            rounds.append((1000 * spent / own.statuses[200], 1000 * predict(turn)))
            print("{:.3f} ms of the server's CPU an image, {:.3f} of predict's".format(*rounds[-1]), flush=True)
    images = tally.statuses.get(200, 0)
    ordered = sorted(tally.seconds)
    p50, p99 = (ordered[int(part * (len(ordered) - 1))] for part in (0.5, 0.99))
    cost, predicted = (statistics.median(own) for own in zip(*rounds, strict=True))
    ratios = sorted(own / other for own, other in rounds)
    return {
        "load_average_before": f"{busy:.1f}",
        "clients": CLIENTS,
        "seconds": f"{seconds:g}",
        "images": images,
        "errors": sum(tally.statuses.values()) - images + tally.refused + tally.cut,
        "images_a_second": f"{images / seconds:.1f}",
        "cpu_ms_an_image": f"{cost:.3f}",
        "predict_cpu_ms_an_image": f"{predicted:.3f}",
        "ratio": f"{statistics.median(ratios):.3f}",
        "ratios": " ".join(f"{own:.2f}" for own in ratios),
        "full_batch_ms": f"{1000 * batch:.1f}",
        "p50_ms": f"{1000 * p50:.1f}",
        "p99_ms": f"{1000 * p99:.1f}",
        "p99_in_full_batches": f"{p99 / batch:.2f}",
        "resident_mib": " ".join(f"{own / 2**20:.0f}" for own in held),
    }


def main() -> None:
    """Measure and write the table."""
    if sys.argv[1:2] == ["--in-turn"]:
        predict_in_turn(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="in turn with predict")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", type=Path, help="write the row to this file too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if options.smoke:
            model, files = generated(Path(name), 60)
            row = measure(model, files, 2, 0.3, EXACT, options.rounds)
        else:
            model, files = published()
            row = measure(model, files, options.seconds, TURN, FASTEST, options.rounds)
    print(show(row))
    if options.json is not None:
        options.json.write_text(json.dumps(row), encoding="utf-8")
    if not options.smoke:
        save_table("serving", "bfloat16", [row])


if __name__ == "__main__":
    main()
