"""Does anything grow faster than what it is asked about? `python benchmarks/growth.py [--smoke] [--only embed,doctor]`.

    report    the report of 50,000 images and 1,000 classes, from given probabilities
    evaluate  the memory of evaluating 50,000 images in 21,843 classes, from given answers
    embed     the memory of `vitkit embed` of 100,000 images beside 1,000
    doctor    `vitkit doctor` of 100,000 pictures: first, unchanged, and with one file added
    predict   images a second with 21,843 classes beside 10, in turn
    train     20,000 pictures in 10,000 classes beside 10: seconds to the first step, and of the report
    start     from shards of 1,000 to 1,000,000 pictures to the first step of a training, the first time and again
    copies    the search for near copies among 10,000 to 1,000,000 thumbnails, of which a thousand have one

Pictures have 32 pixels. Each figure is of a process of its own; memory is its peak above what it held before, without
the features or probabilities themselves; of `evaluate`, it is all memory that is not a file. Seconds are wall clock,
with processor seconds beside them: on a busy machine the latter say more. `--model` is the one that embeds and
predicts, with random weights, and `--trained` the one that is trained, both of DeiT-Ti's size unless something else is
said; the row names it. `--only doctor --sizes 10000` measures a tenth, which a few minutes suffice for. The promised
figures are for two quiet cores. A second run on the same day adds to the table, and replaces what it measures again.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tables import RESULTS, read_table, result_path, show, write_table

MIB = 2**20
FULL = {
    "report": (50_000, 1_000),
    "evaluate": (50_000, 21_843),
    "embed": (1_000, 100_000),
    "doctor": (100_000,),
    "predict": (10, 21_843),
    "train": (20_000, 10, 10_000),
    "start": (1_000, 10_000, 100_000, 1_000_000),
    "copies": (10_000, 100_000, 1_000_000),
}
SMOKE = {
    "report": (200, 12),
    "evaluate": (300, 20),
    "embed": (20, 60),
    "doctor": (60,),
    "predict": (10, 300),
    "train": (80, 4, 40),
    "start": (40, 80),
    "copies": (500, 1_000),
}
_SEEN = 64  # images that are predicted in a round


def pictures(root: Path, images: int, classes: int) -> Path:
    """So many different pictures of 32 pixels, in as many classes."""
    rng = np.random.default_rng(0)
    for i in range(classes):
        (root / f"class{i:05d}").mkdir(parents=True)
    for i in range(images):
        coarse = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
        picture = coarse.resize((32, 32), Image.Resampling.BICUBIC)
        picture.save(root / f"class{i % classes:05d}" / f"{i:06d}.jpg", quality=90)
    return root


def links(root: Path, images: int) -> Path:
    """So many files, of forty pictures."""
    own = pictures(root / "own", 40, 1) / "class00000"
    (root / "photos").mkdir()
    for i in range(images):
        os.link(own / f"{i % 40:06d}.jpg", root / "photos" / f"image{i:06d}.jpg")
    return root / "photos"


def classifier(name: str, classes: int) -> Any:
    """A model of random weights that answers in so many classes."""
    import torch

    from vitkit import Classifier, Preprocess, create_model

    torch.manual_seed(0)
    model = create_model(name, num_classes=classes)
    torch.nn.init.normal_(model.head.weight, std=0.02)
    return Classifier(model, tuple(f"class{i:05d}" for i in range(classes)), Preprocess(size=model.config.image_size))


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Took:
    """Wall-clock and processor seconds of a block."""

    def __enter__(self) -> Took:
        self._before = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._before[0]
        self.cpu = time.process_time() - self._before[1]


class Memory:
    """The peak of a block's memory that is not a mapped file, in bytes, looked at twenty times a second."""

    def __enter__(self) -> Memory:
        self.peak, self._ends = 0, threading.Event()
        self._before, self._watch = self._now(), threading.Thread(target=self._look)
        self._watch.start()
        return self

    def _look(self) -> None:
        while not self._ends.wait(0.05):
            self.peak = max(self.peak, self._now() - self._before)

    @property
    def now(self) -> int:
        """What the process has now, beyond what it had before."""
        return self._now() - self._before

    def _now(self) -> int:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("RssAnon")))

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._watch.join()


def command(*arguments: object, cache: Path) -> tuple[float, float, int]:
    """Wall-clock and processor seconds of `vitkit ...` in a process of its own, and its peak in bytes."""
    started = time.perf_counter()
    environment = {**os.environ, "VITKIT_CACHE": str(cache)}
    whole = [sys.executable, "-m", "vitkit", *map(str, arguments)]
    process = subprocess.Popen(whole, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(whole)}: exit code {process.returncode}")
    return time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def row(what: str, value: float, promised: str, cpu: float | None = None, note: str = "") -> dict[str, Any]:
    return {"what": what, "value": round(value, 3), "promised": promised, "cpu_s": cpu and round(cpu, 2), "note": note}


# --- Each of them, in a process of its own ------------------------------------------------------------------


def draw_answers(images: int, classes: int) -> Iterator[tuple[int, np.ndarray]]:
    """True class and probabilities, (K,) float32, of a model that is right about two times in three."""
    rng = np.random.default_rng(0)
    for i in range(images):
        logits = rng.normal(size=classes).astype(np.float32)
        logits[i % classes] += 3.5
        odds = np.exp(logits)
        yield i % classes, odds / odds.sum()


def report(folder: Path, asked: argparse.Namespace, images: int, classes: int) -> list[dict[str, Any]]:
    from vitkit.evaluation import Evaluation, all_figures, from_predictions, write_label_errors
    from vitkit.reporting import write_evaluation

    photos = links(folder, images)
    probabilities, labels = np.empty((images, classes), np.float32), np.empty(images, np.int64)
    for i, (label, own) in enumerate(draw_answers(images, classes)):
        labels[i], probabilities[i] = label, own
    model = classifier(asked.model, classes)
    paths = tuple(f"image{i:06d}.jpg" for i in range(images))
    table = type("Table", (), {"root": photos, "name": "made up"})()
    model = model.use("auto", "auto", images)  # as `vitkit eval` has it, which has asked it all by then
    list(model.embed(photos / path for path in paths[:64]))
    before = peak()
    with Took() as took:
        own = Evaluation("test", model.classes, paths, labels, probabilities, temperature=1.5)
        numbers = all_figures(own, None, {"balance": {"counts": list(range(1, classes + 1)), "prior": "data"}})
        write_label_errors(folder / "label_errors.csv", from_predictions([own]))
        write_evaluation(folder / "out", model, own, table, numbers, [], lambda *_: None)
    return [
        row(
            f"report of {images} images, {classes} classes: seconds",
            took.seconds,
            "10",
            took.cpu,
            f"{asked.model} ({model.computed})",
        ),
        row("report: MiB beside the probabilities", (peak() - before) / MIB, ""),
    ]


def evaluate(folder: Path, _: argparse.Namespace, images: int, classes: int) -> list[dict[str, Any]]:
    from types import SimpleNamespace

    from vitkit.data import ImageTable
    from vitkit.evaluation import all_figures, evaluator

    names = tuple(f"class{i:05d}" for i in range(classes))
    paths = tuple(f"{i:06d}.jpg" for i in range(images))
    rows = ImageTable("made up", folder, names, paths, tuple(i % classes for i in range(images)), (None,) * images)
    answers = ((str(folder), own) for _, own in draw_answers(images, classes))
    model: Any = SimpleNamespace(
        classes=names, task="single", temperature=1.5, thresholds=None, unknown=None, assessments=lambda _: answers
    )
    with Took() as took, Memory() as memory:
        own = evaluator.evaluate(model, rows, "all")
        all_figures(own, None, {"balance": {"counts": list(range(1, classes + 1)), "prior": "data"}})
    what = f"evaluating {images} images, {classes} classes: MiB"
    return [row(what, memory.peak / MIB, "1024", took.cpu, "given answers")]


def embed(folder: Path, asked: argparse.Namespace, few: int, many: int) -> list[dict[str, Any]]:
    model = classifier(asked.model, 2)
    model.save(folder / "model")
    found = []
    for images in (few, many):
        photos = links(folder / str(images), images)
        out = folder / f"{images}.npz"
        _, cpu, held = command("embed", folder / "model", photos, "-o", out, cache=folder / "cache")
        with np.load(out) as saved:
            found.append(((held - saved["features"].nbytes) / MIB, cpu))
    more = found[1][0] - found[0][0]
    return [row(f"embed of {many} images: MiB more than {few}", more, "50", found[1][1], asked.model)]


def doctor(folder: Path, _: argparse.Namespace, images: int) -> list[dict[str, Any]]:
    photos = pictures(folder / "photos", images, 10)
    time.sleep(2.1)  # a file that changed in the last two seconds is always read
    cold, again, added = command("doctor", photos, cache=folder / "cache"), [], []
    for i in range(3):  # in turn: of two seconds, a tenth is noise
        again.append(command("doctor", photos, cache=folder / "cache"))
        Image.effect_noise((32, 32), 60).convert("RGB").save(photos / "class00000" / f"new{i}.png")
        added.append(command("doctor", photos, cache=folder / "cache"))
    wall, cpu = (statistics.median(b[i] / a[i] for a, b in zip(again, added, strict=True)) for i in (0, 1))
    return [
        row(f"doctor of {images} pictures, cold: seconds", cold[0], "20", cold[1]),
        row("doctor, unchanged: seconds", statistics.median(own[0] for own in again), "", again[0][1]),
        row("doctor, one file added, beside unchanged", wall, "1.2"),
        row("doctor, one file added, beside unchanged, in processor seconds", cpu, "1.2"),
    ]


def predict(folder: Path, asked: argparse.Namespace, few: int, many: int) -> list[dict[str, Any]]:
    photos = sorted(links(folder, _SEEN).iterdir())
    models = {classes: classifier(asked.model, classes).use("eager", "float32") for classes in (few, many)}
    took: dict[int, list[Took]] = {few: [], many: []}
    for round_ in range(6):
        for classes, model in models.items():
            with Took() as own:
                list(model.predict(photos))
            if round_:  # the first warms up
                took[classes].append(own)
    pairs = list(zip(took[few], took[many], strict=True))
    wall = statistics.median(one.seconds / other.seconds for one, other in pairs)
    cpu = statistics.median(one.cpu / other.cpu for one, other in pairs)
    return [
        row(f"predict with {many} classes, images a second beside {few}", wall, "0.9", None, asked.model),
        row(f"predict with {many} classes beside {few}, in processor seconds", cpu, "0.9", None, asked.model),
    ]


def train(folder: Path, asked: argparse.Namespace, images: int, few: int, many: int) -> list[dict[str, Any]]:
    found = {}
    for classes in (few, many):
        photos = pictures(folder / str(classes), images, classes)
        arguments = [str(photos), str(folder / f"run{classes}"), asked.trained]
        whole = [sys.executable, __file__, "--in-process", "training", "--arguments", json.dumps(arguments)]
        done = subprocess.run(whole, env={**os.environ, "VITKIT_CACHE": str(folder / f"cache{classes}")}, stdout=-1)
        if done.returncode:
            raise SystemExit(f"training in {classes} classes: exit code {done.returncode}")
        found[classes] = json.loads(done.stdout.splitlines()[-1])
    ratio, ratio_cpu = (found[many][key] / found[few][key] for key in ("first", "first_cpu"))
    own = found[many]
    return [
        row(f"train {images} in {many} classes: to the first step, beside {few}", ratio, "2", own["first_cpu"]),
        row(f"train {images} in {many} classes: the same in processor seconds", ratio_cpu, "2", None, asked.trained),
        row(f"its report: seconds in {many} classes", own["report"], "60", own["report_cpu"], asked.trained),
        row(f"its report: seconds in {few} classes", found[few]["report"], "", found[few]["report_cpu"], asked.trained),
    ]


def exponent(before: tuple[int, float] | None, now: tuple[int, float]) -> str:
    """Describe how what takes (size, seconds) grows with the size; empty without an earlier pair."""
    if before is None:
        return ""
    return f"; exponent {math.log(now[1] / before[1]) / math.log(now[0] / before[0]):.2f}"


def start(folder: Path, asked: argparse.Namespace, *sizes: int) -> list[dict[str, Any]]:
    rows, before = list[dict[str, Any]](), dict[str, tuple[int, float]]()
    for images in sizes:
        photos, shards = pictures(folder / f"photos{images}", images, 10), folder / f"shards{images}"
        command("shard", photos, shards, cache=folder / "cache")
        shutil.rmtree(photos)
        for which, promised in (("first", ""), ("again", "60" if images == 1_000_000 else "")):
            arguments = [str(shards), str(folder / f"run-{which}-{images}"), asked.trained]
            whole = [sys.executable, __file__, "--in-process", "starting", "--arguments", json.dumps(arguments)]
            environment = {**os.environ, "VITKIT_CACHE": str(folder / f"cache{images}")}
            done = subprocess.run(whole, env=environment, stdout=-1, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            memory = f"{found['held']:.0f} MiB held, {found['peak']:.0f} at most"
            grows = exponent(before.get(which), (images, found["cpu"]))
            before[which] = images, found["cpu"]
            rows.append(row(f"start with {images} images, {which}", found["cpu"], promised, None, memory + grows))
            print(show(rows[-1]), file=sys.stderr, flush=True)
    return rows


def starting(photos: str, out: str, model: str) -> None:
    """Processor seconds of all processes, without imports, and the memory beyond them, until the first step."""
    import lightning_fabric  # noqa: F401  # which imports much if other libraries are installed

    import vitkit.reporting.plots  # noqa: F401
    from vitkit.system import reporting_to
    from vitkit.training import Recipe, run

    def cpu() -> float:
        each = (resource.getrusage(which) for which in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(own.ru_utime + own.ru_stime for own in each)

    class Begun(Exception):
        """The first step begins."""

    def progress(what: str, *_: int) -> None:
        if what.startswith("epoch"):
            raise Begun

    recipe = Recipe(data=photos, model=model, weights="none", epochs=1, balance="none", cache="none", workers=0)
    memory = Memory()
    with memory:
        before = cpu()
        with contextlib.suppress(Begun), reporting_to(progress):
            run.train(recipe, out)
        told = {"cpu": cpu() - before}
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    print(json.dumps({**told, "peak": memory.peak / MIB, "held": memory.now / MIB}))


def thumbnails(images: int) -> np.ndarray:
    """Made-up thumbnails, (n, 16, 16, 3), whose frequencies fall off as those of photographs do."""
    from vitkit.data.doctor.duplicates import cosines

    rng, basis = np.random.default_rng(0), cosines()
    frequency = np.add.outer(np.arange(16), np.arange(16))
    falls = np.where(frequency > 0, 1 / np.maximum(frequency, 1), 1).astype(np.float32)[None, :, :, None]
    pixels = np.empty((images, 16, 16, 3), np.uint8)
    for first in range(0, images, 10_000):
        part = pixels[first : first + 10_000]
        grey = rng.standard_normal((len(part), 16, 16, 1), dtype=np.float32)
        colour = rng.standard_normal((len(part), 16, 16, 3), dtype=np.float32)
        waves = (600 * grey + 200 * colour) * falls
        part[:] = np.clip(np.einsum("fy,nfgc,gx->nyxc", basis, waves, basis, optimize=True) + 128, 0, 255)
    return pixels


def copies(_: Path, __: argparse.Namespace, *sizes: int) -> list[dict[str, Any]]:
    from vitkit.data.doctor.duplicates import find_pairs

    rows, before = list[dict[str, Any]](), None
    for images in sizes:
        pixels, planted = thumbnails(images), min(1_000, images // 10)
        again = np.random.default_rng(1).integers(-3, 4, (planted, 16, 16, 3)) + pixels[:planted]
        pixels[-planted:] = again.clip(0, 255)
        with Took() as took:
            pairs = find_pairs(pixels, None, 100 * images)
        assert pairs is not None
        found = {pair for pair in pairs[0] if pair[0] < planted and pair[1] == images - planted + pair[0]}
        others, grows = len(pairs[0]) + len(pairs[1]) - len(found), exponent(before, (images, took.cpu))
        note = f"{len(found)} of {planted} found, {others} others{grows}"
        promised = "600" if images == 1_000_000 else ""
        rows.append(row(f"near copies of {images}: processor seconds", took.cpu, promised, None, note))
        print(show(rows[-1]), file=sys.stderr, flush=True)
        before = images, took.cpu
    return rows


def training(photos: str, out: str, model: str) -> None:
    """A training of twenty seconds; when its first step was done, and how long it reported."""
    from vitkit.system import reporting_to
    from vitkit.training import Recipe, run

    marks: dict[str, tuple[float, float]] = {"start": (time.perf_counter(), time.process_time())}

    def progress(what: str, *_: int) -> None:
        if what.startswith("epoch"):
            marks.setdefault("first", (time.perf_counter(), time.process_time()))
            marks["last"] = time.perf_counter(), time.process_time()

    recipe = Recipe(data=photos, model=model, weights="none", epochs=1, time="20s", balance="none")
    with reporting_to(progress):
        run.train(recipe, out)
    marks["end"] = time.perf_counter(), time.process_time()
    wall, cpu = ({name: mark[i] for name, mark in marks.items()} for i in (0, 1))
    told = {"first": wall["first"] - wall["start"], "report": wall["end"] - wall["last"]}
    print(json.dumps({**told, "first_cpu": cpu["first"] - cpu["start"], "report_cpu": cpu["end"] - cpu["last"]}))


KINDS: dict[str, Callable[..., list[dict[str, Any]]]] = {
    own.__name__: own for own in (report, evaluate, embed, doctor, predict, train, start, copies)
}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes and models; the figures mean nothing")
    parser.add_argument("--only", default=",".join(KINDS), help="which of them, joined by commas")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the table")
    parser.add_argument("--sizes", help="numbers in the place of the usual ones, joined by commas; with one of --only")
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--trained", default="vit_tiny_patch16_224")
    parser.add_argument("--in-process", help=argparse.SUPPRESS)
    parser.add_argument("--arguments", type=json.loads, default=[], help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.smoke:
        asked.model = asked.trained = "vit_micro_patch4_16"
    if asked.in_process == "training":
        training(*asked.arguments)
    elif asked.in_process == "starting":
        starting(*asked.arguments)
    elif asked.in_process:
        with tempfile.TemporaryDirectory() as folder:
            sizes = (SMOKE if asked.smoke else FULL)[asked.in_process]
            if asked.sizes is not None:
                sizes = tuple(map(int, asked.sizes.split(",")))
            print(json.dumps(KINDS[asked.in_process](Path(folder), asked, *sizes)))
    else:
        measure_all(asked, arguments)


def measure_all(asked: argparse.Namespace, arguments: list[str]) -> None:
    """Every one that is asked for; what is measured is written as it comes."""
    path = result_path("growth", "float32", folder=asked.out)
    for name in asked.only.split(","):
        own = [sys.executable, __file__, "--in-process", name, *arguments]
        done = subprocess.run(own, stdout=subprocess.PIPE, text=True, check=True)
        rows = json.loads(done.stdout.splitlines()[-1])
        new = {found["what"] for found in rows}
        write_table(path, [*(found for found in read_table(path) if found["what"] not in new), *rows])
        for found in rows:
            print(show(found), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
