"""The pace of a GPU within a budget: `python benchmarks/gpu.py --budget 25m --out FILE`.

Everything that a GPU is rented for, in one command: training steps beside timm's, the product's own loop from files on
disk with the share of time that it waits for images, predictions beside timm's, `vitkit predict`, `embed` and
`explain`, and the memory of a step. Each stage is a process of its own with its own limit, so that one that hangs, is
killed, or lacks a library costs its own rows alone. A row is written to FILE (one JSON object a line) as soon as it is
measured, and the same command goes on where it was interrupted. A way of computing that needs too long, for example to
compile, is left out with a line that says so. Compile times are recorded apart from the speeds.

MFU is the share of the peak in the manufacturer's data sheet: a training step counts as three forward passes, and a
multiply-accumulate as two operations. The last lines compare the rows with the project's targets. `--smoke` runs all
stages with a micro model on the CPU, to see that they work.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from peers import MODELS, OURS, SMOKE
from PIL import Image
from rivals import Run, Setting, open_rivals, timm_module
from tables import hardware
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

import vitkit
from training import Way, images_of, measure_memory, step_of
from vitkit.data.decode import decode
from vitkit.inference import model_on_gpu, prepare
from vitkit.model import config_for
from vitkit.profiling import Contender, Timing, compare, describe, interleave, random_model, stopwatch_for
from vitkit.training import parse_duration, read_metrics

Row = dict[str, Any]
Write = Callable[..., None]
"""Write a row: a key within the stage, and the values."""

PEAKS = {"h200": 989e12, "h100": 989e12, "a100": 312e12}
"""FLOP/s of dense products in bfloat16, from https://www.nvidia.com/en-us/data-center."""

TARGETS = {"mfu": 0.45, "waiting": 0.02, "times_best_peer": 1.05}
"""Of training steps in bfloat16 (at least), of the product's loop (at most), and of predictions (at least)."""


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
        train, predict: models by label, for training and prediction.
        batch: of a training step.
        batches: of predictions.
        rounds: of each comparison.
        photographs: JPEGs that the product's loop, predictions and embeddings read.
        size: of the photographs, (width, height).
        way_limit: seconds that a way may need before it is timed, which includes compilation.
    """

    train: Mapping[str, str]
    predict: Mapping[str, str]
    batch: int
    batches: tuple[int, ...]
    rounds: int
    photographs: int
    size: tuple[int, int] = (500, 375)
    way_limit: int = 120


FULL = Scale(
    {name: MODELS[name] for name in ("S/16", "B/16")},
    {name: MODELS[name] for name in ("S/16", "B/16", "L/16")},
    *(256, (1, 256), 10, 12_000),
)
SMALL = Scale(SMOKE, SMOKE, 4, (2,), 2, 24, (40, 30), 60)


@dataclass(frozen=True)
class Bench:
    """What a stage works with.

    Attributes:
        device: the device that computes.
        scale: how much is measured.
        folder: a folder for photographs and runs that all stages share.
        done: the keys of the stage's rows that an earlier process has written.
        write: writes a row.
    """

    device: torch.device
    scale: Scale
    folder: Path
    done: frozenset[str]
    write: Write

    @property
    def peak(self) -> float | None:
        """The peak of the device in bfloat16 in FLOP/s, from its data sheet; None if it has none here."""
        if self.device.type != "cuda":
            return None
        name = torch.cuda.get_device_name(self.device).lower()
        return next((peak for kind, peak in PEAKS.items() if kind in name), None)

    def synchronize(self) -> None:
        """Wait until the device has finished."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class TooLong(Exception):
    """A way needs longer than its limit."""


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raise `TooLong` in the main thread after some seconds; a call into a library is left when it returns."""

    def ring(*_: object) -> None:
        raise TooLong(f"it needed more than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# --- Stages -----------------------------------------------------------------------------------------------------


def environment(bench: Bench) -> None:
    """The hardware, the versions, and what the device and one core can do at best."""
    names = ("torch", "torchvision", "timm", "pillow", "numpy", "torch_tensorrt", "openvino", "simplejpeg")
    row: Row = {
        "hardware": hardware(bench.device),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in names if find_spec(name.replace("pillow", "PIL")) is not None},
        "peak_bfloat16_flops": bench.peak,
    }
    if bench.device.type == "cuda":
        facts = torch.cuda.get_device_properties(bench.device)
        row |= {"memory_gib": round(facts.total_memory / 2**30, 1), "capability": f"{facts.major}.{facts.minor}"}
    n = 8192 if bench.device.type == "cuda" else 256
    a, b = (torch.randn(n, n, device=bench.device, dtype=torch.bfloat16) for _ in range(2))
    times = interleave({"product": lambda: a @ b}, bench.scale.rounds, stopwatch=stopwatch_for(bench.device))
    row["matmul_bfloat16_flops"] = float(f"{2 * n**3 / times['product'].quartiles.median:.3g}")
    files = sorted(photographs(bench).rglob("*.jpg"))[:256]
    began = time.perf_counter()
    for file in files:
        decode(file)
    row["decoded_per_s_and_core"] = round(len(files) / (time.perf_counter() - began), 1)
    with ProcessPoolExecutor(row["cores"], get_context("spawn")) as pool:  # a loader's workers are processes, too
        list(pool.map(_decode_all, repeat(files[:8], row["cores"])))
        began = time.perf_counter()
        list(pool.map(_decode_all, repeat(files, row["cores"])))
        row["decoded_per_s"] = round(row["cores"] * len(files) / (time.perf_counter() - began), 1)
    bench.write("environment", **row)


def _decode_all(files: Sequence[Path]) -> None:
    for file in files:
        decode(file)


def train_steps(bench: Bench) -> None:
    """Steps in bfloat16, eager and compiled, ours and timm's in turn in one process, and the kernels of one of ours."""
    for label, name in bench.scale.train.items():
        if label in bench.done:
            continue
        x, y = images_of(name, bench.scale.batch, bench.device)
        works: dict[str, Callable[[], object]] = {}
        for way in _train_ways(bench.device):
            began = time.perf_counter()
            try:
                with at_most(bench.scale.way_limit):
                    works[way.name] = step_of(way, name, x, y)
                    works[way.name]()
                    bench.synchronize()
            except Exception as error:
                works.pop(way.name, None)
                bench.write(f"{label} {way.name}", left_out=_reason(error))
                continue
            if way.compiled:
                bench.write(f"{label} {way.name} compiling", seconds=round(time.perf_counter() - began, 1))
        macs = 1e9 * describe(config_for(name)).gmacs_executed * bench.scale.batch  # of a forward pass
        timings = interleave(works, bench.scale.rounds, stopwatch=stopwatch_for(bench.device))
        theirs = {key: timing for key, timing in timings.items() if key.startswith("timm")}
        for key, timing in timings.items():
            flops = 3 * 2 * macs / timing.quartiles.median
            bench.write(
                f"{label} {key}",
                batch=bench.scale.batch,
                rounds=bench.scale.rounds,
                mfu=None if bench.peak is None else round(flops / bench.peak, 4),
                **_rates(timing, bench.scale.batch),
                **_beside(timing, theirs, key.replace("vitkit", "timm")),
            )
        for key in [key for key in works if key.startswith("vitkit")][-1:]:  # compiled, unless that is left out
            spent = _kernels_of(works[key], bench)
            longest = dict(sorted(spent.items(), key=lambda item: -item[1])[:30])
            bench.write(f"{label} {key} kernels", ms=round(sum(spent.values()), 3), ms_of=longest)
        bench.write(label, finished=True)
        torch.compiler.reset()


def _kernels_of(step: Callable[[], object], bench: Bench) -> dict[str, float]:
    """Return the milliseconds of a step by kernel."""
    on_gpu = bench.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiled:
        step()
        bench.synchronize()
    return {
        event.key[:100]: round((event.self_device_time_total if on_gpu else event.self_cpu_time_total) / 1e3, 3)
        for event in profiled.key_averages()
    }


def _train_ways(device: torch.device) -> list[Way]:
    plain = [Way(library, "bfloat16") for library in ("timm", "vitkit")]
    if device.type != "cuda":
        return plain
    return [*plain, *(Way(way.library, way.precision, compiled=True) for way in plain)]


class _Pace:
    """A callback that notes when each epoch of a training ended, with its evaluation and checkpoint."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.images: list[int] = []

    def on_epoch_end(self, state: Any) -> None:
        """Note the time."""
        self.ends.append(time.perf_counter())
        self.images.append(sum(state.sums.images))

    def images_per_s(self) -> float:
        """Return the pace of the fastest epoch after the first, which compiles.

        Evaluation and checkpoint are included, so that batches which are prepared meanwhile do not flatter it.
        """
        return max(self.images[i] / (self.ends[i] - self.ends[i - 1]) for i in range(1, len(self.ends)))


def loop(bench: Bench) -> None:
    """`vitkit train` itself: training images a second of whole epochs, and the share of time that it waits for them.

    From JPEGs in folders, from shards, and from memory, where the first epoch decodes them.
    """
    folder, on_cpu = photographs(bench), bench.device.type == "cpu"
    for label, name in bench.scale.train.items():
        for source in ("shards", "ram", "folder"):
            if (key := f"{label} {source}") in bench.done:
                continue
            out, pace = bench.folder / f"loop-{key.replace('/', '-').replace(' ', '-')}", _Pace()
            vitkit.train(
                _shards(bench) if source == "shards" else folder,
                vitkit.Recipe(
                    model=name,
                    method="scratch",
                    epochs=3,
                    batch_size=bench.scale.batch,
                    cache="ram" if source == "ram" else "none",
                    device=bench.device.type,
                    compile="off" if on_cpu else "on",
                    workers=0 if on_cpu else None,
                    color_jitter=0.0,
                ),
                hooks=vitkit.Hooks(callbacks=[pace]),
                out=out,
                force=True,
            )
            rows = read_metrics(out / "metrics.csv")
            bench.write(
                key,
                images_per_s=round(pace.images_per_s(), 1),
                waiting=min(row["waiting"] for row in rows[1:]),  # the first epoch compiles, and fills the cache
                waiting_first_epoch=rows[0]["waiting"],
                seconds=rows[-1]["seconds"],
            )


def _shards(bench: Bench) -> Path:
    """Write the photographs into shards, once."""
    out = bench.folder / "shards"
    if not out.is_dir():
        vitkit.shard(photographs(bench), out, size="64MB")
    return out


def kernels(bench: Bench) -> None:
    """Attention in bfloat16 by each of PyTorch's kernels, at the size of each model."""
    for label, name in bench.scale.train.items():
        config = config_for(name)
        shape = (bench.scale.batch, config.heads, config.patches + config.prefix_tokens, config.head_size)
        q, k, v = (torch.randn(shape, device=bench.device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        for way, attend in (("forward", _attend), ("forward and backward", _attend_and_back)):
            works = {}
            for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
                kernel, work = f"{backend.name.lower()} {way}", partial(attend, backend, q, k, v)
                try:
                    work()
                except RuntimeError as error:
                    bench.write(f"{label} {kernel}", left_out=_reason(error))
                else:
                    works[kernel] = work
            times = interleave(works, bench.scale.rounds, stopwatch=stopwatch_for(bench.device))
            for kernel, timing in times.items():
                bench.write(f"{label} {kernel}", ms=round(1e3 * timing.quartiles.median, 3), batch=bench.scale.batch)


def _attend(backend: SDPBackend, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    with sdpa_kernel(backend), torch.no_grad():
        F.scaled_dot_product_attention(q, k, v)


def _attend_and_back(backend: SDPBackend, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    with sdpa_kernel(backend):
        torch.autograd.grad(F.scaled_dot_product_attention(q, k, v).sum(), (q, k, v))


def predictions(bench: Bench) -> None:
    """Logits in bfloat16 by each backend that runs on the device, beside timm's."""
    for label, name in bench.scale.predict.items():
        model = random_model(config_for(name)).to(bench.device)
        for batch in bench.scale.batches:
            key = f"{label} batch {batch}"
            if key in bench.done:
                continue
            images = torch.randn(batch, 3, *model.config.image_size, device=bench.device)
            contenders = list(_open(bench, model, images, key))
            speeds = compare(model, contenders, images, batch, bench.scale.rounds, bench.device)
            theirs = {speed.name: speed.timing for speed in speeds if not speed.name.startswith("vitkit")}
            for speed in speeds:
                beside = _beside(speed.timing, theirs, speed.name.replace("vitkit compile", "timm compiled"))
                bench.write(
                    f"{key} {speed.name}",
                    largest_difference=None if speed.drift is None else float(f"{speed.drift.largest:.2e}"),
                    **_rates(speed.timing, batch),
                    **beside,
                )
            bench.write(key, finished=True)
            torch.compiler.reset()


def _open(bench: Bench, model: vitkit.VisionTransformer, images: torch.Tensor, key: str) -> Iterator[Contender]:
    """Yield our ways and the peers', each within its limit."""
    on_gpu = bench.device.type == "cuda"
    ours = [backend for backend, precision in OURS if precision == "bfloat16" and backend in ("eager", "compile")]
    ways: list[tuple[str, Callable[[], Run]]] = []
    for backend in ours if on_gpu else ["eager"]:

        def open_ours(backend: str = backend) -> Run:
            if on_gpu:
                return model_on_gpu(model, "bfloat16", "cuda", is_compiled=backend == "compile")
            return prepare(model, torch.bfloat16, pack=False)

        ways.append((f"vitkit {backend}", open_ours))
    if find_spec("torch_tensorrt") is not None and on_gpu:
        ways.append(("torch_tensorrt (timm)", lambda: _tensorrt(Setting(model, images, bench.folder))))
    for name, open_way in ways:
        began = time.perf_counter()
        try:
            with at_most(bench.scale.way_limit), torch.inference_mode():
                run = open_way()
                run(images)
                bench.synchronize()
        except Exception as error:
            bench.write(f"{key} {name}", left_out=_reason(error))
            continue
        bench.write(f"{key} {name} preparing", seconds=round(time.perf_counter() - began, 1))
        yield Contender(name, "bfloat16", run)
    compiled = f"timm compiled{', CUDA graphs' if len(images) <= 32 else ''}"  # which make no difference to many images
    wanted = {"timm bfloat16", *([f"{compiled} bfloat16"] if on_gpu else [])}
    try:
        with at_most(2 * bench.scale.way_limit):
            for opened in open_rivals(Setting(model, images, bench.folder), wanted.__contains__):
                if isinstance(opened, str):
                    bench.write(f"{key} {opened.partition(' is left out')[0]}", left_out=opened)
                else:
                    yield opened
    except TooLong as error:
        bench.write(f"{key} peers", left_out=_reason(error))


def _tensorrt(setting: Setting) -> Run:
    import torch_tensorrt

    module = timm_module(setting).eval().to(setting.images.device, torch.bfloat16)
    images = setting.images.to(torch.bfloat16)
    run: nn.Module = torch_tensorrt.compile(module, ir="dynamo", inputs=[images], enabled_precisions={torch.bfloat16})
    return lambda images: run(images.to(torch.bfloat16))


def verbs(bench: Bench) -> None:
    """`predict`, `embed` and `explain` as a user calls them, from JPEGs on disk to the result."""
    data = photographs(bench)
    files = sorted(map(str, data.rglob("*.jpg")))
    classes = tuple(sorted(path.name for path in data.iterdir()))
    for label, name in bench.scale.predict.items():
        model = vitkit.create_model(name, num_classes=len(classes))
        classifier = vitkit.Classifier(model, classes, vitkit.Preprocess(size=model.config.image_size))
        works: dict[str, tuple[Sequence[str], Callable[[Sequence[str]], object]]] = {
            "predict": (files, partial(vitkit.predict, classifier, compute=vitkit.Compute(device=bench.device.type))),
            "embed": (files, partial(vitkit.embed, classifier, compute=vitkit.Compute(device=bench.device.type))),
            "explain": (files[:16], lambda some, explain=classifier.explain: list(map(explain, some))),
        }
        for verb, (images, work) in works.items():
            if f"{label} {verb}" in bench.done:
                continue
            count, began = len(images), time.perf_counter()
            try:
                with at_most(bench.scale.way_limit):
                    work(images)
            except Exception as error:
                bench.write(f"{label} {verb}", left_out=_reason(error))
                continue
            bench.write(f"{label} {verb}", images_per_s=round(count / (time.perf_counter() - began), 1), images=count)


def memory(bench: Bench) -> None:
    """The peak of three training steps above the images, each in a process of its own."""
    for label, name in bench.scale.train.items():
        for library in ("timm", "vitkit"):
            if (key := f"{label} {library}") not in bench.done:
                way = Way(library, "bfloat16")
                mib = measure_memory(name, bench.scale.batch, bench.device, way)
                bench.write(key, mib=mib, batch=bench.scale.batch)


def _rates(timing: Timing, batch: int) -> Row:
    rate = timing.rate(batch)
    return {"images_per_s": round(rate.median, 1), "q1": round(rate.low, 1), "q3": round(rate.high, 1)}


def _beside(timing: Timing, theirs: Mapping[str, Timing], same: str) -> Row:
    """Compare with the fastest peer, and with timm by the same way."""
    best = min(theirs.values(), key=lambda other: other.quartiles.median, default=None)
    row = {"times_best_peer": None if best is None else round(timing.speedup_over(best).median, 3)}
    if same in theirs and theirs[same] is not timing:
        row["times_timm_same_way"] = round(timing.speedup_over(theirs[same]).median, 3)
    return row


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def photographs(bench: Bench) -> Path:
    """Make JPEGs of ten classes with coarse and fine structure, once for all stages."""
    folder, scale = bench.folder / "photographs", bench.scale
    if not folder.is_dir():
        unfinished = folder.with_name("photographs being made")
        with ProcessPoolExecutor() as pool:
            numbers = range(scale.photographs)
            list(pool.map(_photograph, repeat(unfinished), numbers, repeat(scale.size), chunksize=64))
        unfinished.rename(folder)
    return folder


def _photograph(folder: Path, number: int, size: tuple[int, int]) -> None:
    generator, (width, height) = np.random.default_rng(number), size
    coarse = generator.integers(0, 256, (*generator.integers(5, 40, 2), 3), dtype=np.uint8)
    pixels = np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC), np.float32)
    pixels += generator.normal(0, 12, (height, width, 1)).astype(np.float32)
    path = folder / f"class-{number % (10 if number > 20 else 2)}" / f"{number:05d}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=85)


STAGES: dict[str, tuple[Callable[[Bench], None], float]] = {
    "environment": (environment, 2),
    "train": (train_steps, 8),
    "predict": (predictions, 8),
    "kernels": (kernels, 1),
    "loop": (loop, 5),
    "verbs": (verbs, 3),
    "memory": (memory, 3),
}
"""The stages in their order, each with its limit in minutes."""


# --- Processes and rows -----------------------------------------------------------------------------------------


def read_rows(file: Path) -> list[Row]:
    """Return the rows of a file, of each key the last; a line that was cut off by a kill is dropped."""
    rows = dict[tuple[str, str], Row]()
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        with suppress(json.JSONDecodeError):
            row = json.loads(line)
            rows[row["stage"], row["key"]] = row
    return list(rows.values())


def append_row(file: Path, row: Row) -> None:
    """Append a row on a line of its own, and make sure that it is on the disk."""
    file.parent.mkdir(parents=True, exist_ok=True)
    before = file.read_bytes() if file.exists() else b""
    with file.open("ab") as stream:
        if before and not before.endswith(b"\n"):  # a kill cut the last line off
            stream.write(b"\n")
        stream.write(json.dumps(row).encode() + b"\n")
        stream.flush()
        os.fsync(stream.fileno())


def work_on(stage: str, options: argparse.Namespace) -> None:
    """Carry out one stage in this process."""
    done = frozenset(row["key"] for row in read_rows(options.out) if row["stage"] == stage)

    def write(key: str, **values: Any) -> None:
        row = {"stage": stage, "key": key, **values}
        append_row(options.out, row)
        if not values.get("finished"):
            print("  ".join(f"{name} {value}" for name, value in row.items() if value is not None), flush=True)

    Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    work, _ = STAGES[stage]
    scale = SMALL if options.smoke else FULL
    if options.models:
        train, predict = (
            {label: name for label, name in models.items() if label in options.models}
            for models in (scale.train, scale.predict)
        )
        scale = replace(scale, train=train, predict=predict)
    work(Bench(torch.device(options.device), scale, options.folder, done, write))


def _end_with(parent: int) -> None:
    """End this process when its parent has ended, which may have been killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def drive(options: argparse.Namespace) -> None:
    """Run the stages that are not finished, each in a process of its own, within the budget."""
    ends = time.monotonic() + options.budget
    for stage, (_, minutes) in STAGES.items():
        if options.stages is not None and stage not in options.stages:
            continue
        if any((row["stage"], row["key"]) == (stage, "stage") and "ended" in row for row in read_rows(options.out)):
            continue
        limit = min(options.limit or minutes * 60, ends - time.monotonic())
        if limit <= 0:
            print(f"{stage}: left out, the budget is used up", flush=True)
            continue
        command = [sys.executable, __file__, "--stage", stage, "--out", str(options.out)]
        command += ["--folder", str(options.folder), "--device", options.device, *(["--smoke"] * options.smoke)]
        command += ["--models", ",".join(options.models)] if options.models else []
        began = time.monotonic()
        process = subprocess.Popen(command, start_new_session=True)
        try:
            code = process.wait(limit)
            how = "done" if code == 0 else f"failed with exit code {code}"
        except subprocess.TimeoutExpired:
            how = f"dropped: it reached its limit of {limit:.0f} s"
        finally:
            _end(process)
        seconds = round(time.monotonic() - began, 1)
        append_row(options.out, {"stage": stage, "key": "stage", "ended": how, "seconds": seconds})
        print(f"{stage}: {how} ({seconds} s)", flush=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and those that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def judge(rows: list[Row]) -> list[str]:
    """Compare the rows with the targets, in words."""
    steps = [row for row in rows if row["stage"] == "train" and "vitkit" in row["key"] and row.get("mfu")]
    loops = [row for row in rows if row["stage"] == "loop" and "waiting" in row]
    ours = [row for row in rows if row["stage"] == "predict" and row.get("times_best_peer") and "vitkit" in row["key"]]
    lines = []
    for name, chosen, is_kept in (
        ("mfu", steps, lambda value: value >= TARGETS["mfu"]),
        ("waiting", loops, lambda value: value <= TARGETS["waiting"]),
        ("times_best_peer", ours, lambda value: value >= TARGETS["times_best_peer"]),
    ):
        for row in chosen:
            word = "reached" if is_kept(row[name]) else "missed"
            lines.append(f"{row['stage']} {row['key']}: {name} {row[name]} (target {TARGETS[name]}): {word}")
    return lines or ["no row can be compared with a target on this device"]


def _names(known: Mapping[str, object], value: str) -> list[str]:
    names = value.split(",")
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: known are {', '.join(known)}")
    return names


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=parse_duration, default=1500.0, help="for all stages, as in 25m")
    parser.add_argument("--out", type=Path, required=True, help="the rows, one JSON object a line; continued")
    parser.add_argument("--folder", type=Path, help="for photographs and runs; default beside the file")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--smoke", action="store_true", help="a micro model on the CPU, to see that all works")
    parser.add_argument(
        "--stages", type=partial(_names, STAGES), help=f"of {', '.join(STAGES)}, separated by commas; default all"
    )
    parser.add_argument(
        "--models", type=partial(_names, FULL.predict), help=f"of {', '.join(FULL.predict)}; default all"
    )
    parser.add_argument("--limit", type=parse_duration, help="of each stage, instead of its own")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.device = "cpu" if options.smoke else options.device
    options.folder = options.folder or options.out.with_suffix(".files")
    return options


def main() -> None:
    """Measure, and compare with the targets."""
    options = parse()
    if options.stage is not None:
        work_on(options.stage, options)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    drive(options)
    for line in judge(read_rows(options.out)):
        print(line)


if __name__ == "__main__":
    main()
