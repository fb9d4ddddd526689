"""Training runs small enough for a test: 16x16 photographs of one colour a class, a model of a few patches."""

import csv
import inspect
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import vitkit
from hearing import heard
from once import once
from vitkit.data import read_source
from vitkit.evaluation import Evaluation, calibrate, evaluate, log_odds, to_probabilities
from vitkit.evaluation.figures import figures
from vitkit.system import Progress, reporting_to, silent
from vitkit.training import Recipe, Run, probe, read_metrics, requested, train
from vitkit.training.run import PREPARE
from vitkit.weights import load

# Half of what a small training takes is the model's layers and bytes.
SIZE = {"layers": 2, "hidden_size": 32, "heads": 4, "mlp_size": 64}
COLOURS = {"blue": (40, 60, 200), "green": (40, 190, 60), "red": (200, 50, 40)}
QUICK: dict[str, Any] = {
    "model": "vit_micro_patch8_16",
    "weights": "none",
    "epochs": 3,
    "batch_size": 8,
    "precision": "float32",
    "workers": 0,
}
SIZE_FLAGS = tuple(part for name, value in SIZE.items() for part in ("--set", f"model.{name}={value}"))
FLAGS = (*(part for name, value in QUICK.items() for part in (f"--{name.replace('_', '-')}", str(value))), *SIZE_FLAGS)


def photos(root: Path, images: int = 12, noise: float = 30.0, seed: int = 0) -> Path:
    """`root/red/img1.png` and so on: three classes that a few steps can tell apart."""
    rng = np.random.default_rng(seed)
    for name, colour in COLOURS.items():
        (root / name).mkdir(parents=True)
        for i in range(images):
            pixels = np.clip(np.array(colour) + rng.normal(0, noise, (16, 16, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"img{i + 1}.png")
    return root


def unlike(root: Path, counts: tuple[int, ...]) -> Path:
    """Three classes, of each of which `train/` has so many photographs and `val/` four."""
    rng = np.random.default_rng(0)
    colours = dict(zip("abc", ((200, 50, 40), (40, 190, 60), (40, 60, 200)), strict=True))
    for split, numbers in {"train": counts, "val": (4, 4, 4)}.items():
        for (name, colour), count in zip(colours.items(), numbers, strict=True):
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = np.clip(np.array(colour) + rng.normal(0, 60, (16, 16, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{i}.png")
    return root


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes; Python ignores the signal that comes with it."""
    import resource  # which Windows has not

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def shuffled(folder: Path, seed: int) -> Path:
    """Permute the photographs below the folder, so that their classes say nothing about them."""
    files = sorted(folder.rglob("*.png"))
    content = [file.read_bytes() for file in files]
    for file, i in zip(files, np.random.default_rng(seed).permutation(len(files)), strict=True):
        file.write_bytes(content[i])
    return folder


def several(data: Path) -> Path:
    """A table of the images below train/ and val/, with up to two classes each: nearly all have a, few have c."""
    rows = []
    for split, named in {"train": "ab;a;a;a;ab;a;ac;b;;a", "val": "ab;c;;a"}.items():
        for i, path in enumerate(sorted((data / split).rglob("*.png"))):
            names = named.split(";")[i % len(named.split(";"))]
            rows.append((path.relative_to(data), ";".join(names), split))
    with (data / "several.csv").open("w", newline="") as text:
        csv.writer(text).writerows([("path", "labels", "split"), *rows])
    return data / "several.csv"


def quick_fields(**fields: Any) -> dict[str, Any]:
    """Another model than that of QUICK, and weights, have their own size."""
    size = {} if {"model", "weights"} & fields.keys() else {"model_fields": SIZE}
    return {**QUICK, **size, **fields}


def quick(data: Path, **fields: Any) -> Recipe:
    """A complete recipe: nothing is chosen for the data."""
    return Recipe.of(Recipe(**quick_fields(data=str(data), **fields)).to_dict(), "the test")


def overlaid(root: Path, images: int) -> Path:
    """A table of pictures that each of three colours is in or not, whatever the others are."""
    root.mkdir(exist_ok=True)
    rng, rows = np.random.default_rng(0), []
    for i in range(images):
        has = rng.random(3) < 0.45
        pixels = rng.normal(60, 25, (16, 16, 3)) + 120 * has[::-1]
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(root / f"{i}.png")
        rows.append((f"{i}.png", ";".join(name for name, own in zip(COLOURS, has, strict=True) if own)))
    with (root / "all.csv").open("w", newline="") as text:
        csv.writer(text).writerows([("path", "labels"), *rows])
    return root / "all.csv"


# Made once for the whole suite, which may read but not change them (`copy_of`). What a run said is in its log.txt.


def shared_photos() -> Path:
    return once("photos", photos)


def shared_few() -> Path:
    """Seven photographs a class, which are not easy to tell apart."""
    return once("photos-few", lambda place: photos(place, images=7, noise=90))


def shared_overlaid() -> Path:
    return once("photos-overlaid", lambda place: overlaid(place, 48)) / "all.csv"


def shared_run() -> Path:
    """A run of three epochs on `shared_photos`."""
    return once("run", lambda place: train(quick(shared_photos()), place))


def shared_run_with_mistakes() -> Path:
    """A run on noisy colours, some of whose labels are wrong, with 36 validation and 36 test images."""

    def make(root: Path) -> None:
        photographs = photos(root / "photos", images=48, noise=90)
        for i in range(0, 48, 6):  # so that no model is always right
            one, other = photographs / "red" / f"img{i + 1}.png", photographs / "blue" / f"img{i + 1}.png"
            one.rename(root / "swapped.png")
            other.rename(one)
            (root / "swapped.png").rename(other)
        train(quick(photographs, split=(0.5, 0.25, 0.25), epochs=4), root / "run")

    return once("run with wrong labels", make) / "run"


def shared_start() -> Path:
    """A run on other photographs, whose weights others begin with."""
    return once("begun", begun) / "start"


@contextmanager
def two_penalties() -> Iterator[None]:
    """A head on frozen features is fitted with two penalties, not with eight, the least of which take seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "PENALTIES", (1.0, 0.1))
        yield


def head_on(data: Path | vitkit.Datasets, out: Path, **fields: Any) -> vitkit.TrainingRun:
    """A run that is expected to fit a head to frozen features of `shared_start`, with two penalties."""
    given: dict[str, Any] = {"weights": str(shared_start()), "precision": "float32", "workers": 0, **fields}
    with two_penalties():
        return vitkit.train(data, Recipe(**given), out=out)


def folded(data: Path | None = None, **fields: Any) -> Recipe:
    return quick(data or shared_few(), **{"epochs": 2, "batch_size": 4, "folds": 3, **fields})


def chosen(request: Recipe, earlier_runs: Sequence[Path] = ()) -> Run:
    """What a training decides before it trains, also by a head that is tried."""
    run = Run(request, earlier_runs=earlier_runs)
    for stage in PREPARE:
        stage(run)
    return run


def shared_folds() -> Path:
    """A cross-validation of `shared_few` in three folds of two epochs."""
    return once("run-of-folds", lambda place: train(folded(), place))


def begun(folder: Path) -> Path:
    """The run of a short training on other photographs, whose weights another one begins with."""
    return train(quick(photos(folder / "others", images=6, seed=7), epochs=1), folder / "start")


def followed(data: Path, out: Path, **fields: Any) -> tuple[Path, str]:
    """Train, and return the run and what was said."""
    lines: list[str] = []
    with heard(lines.append):
        return vitkit.train(data, vitkit.Recipe(**fields), out=out).folder, "\n".join(lines)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def assert_same_weights(a: Path, b: Path) -> None:
    first, second = weights(a), weights(b)
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def metrics(folder: Path) -> list[dict[str, float]]:
    """metrics.csv without the times, which no seed decides."""
    clocks = ("seconds", "waiting")
    return [{k: v for k, v in row.items() if k not in clocks} for row in read_metrics(folder / "metrics.csv")]


def assert_same_outcome(a: Path, b: Path) -> None:
    assert_same_weights(a, b)
    assert metrics(a) == metrics(b)
    assert load(a).provenance == load(b).provenance


def assert_learned(folder: Path, data: Path) -> None:
    """Of all images so many are right that the interval of the accuracy does not reach chance.

    How many exactly is the processor's affair, whose rounding decides which model a few steps lead to.
    """
    outcome = evaluate(load(folder), read_source(data), "all")
    low, _ = figures(outcome)["intervals_95"]["accuracy"]
    assert low > 1 / len(outcome.classes), outcome.summary()


def copy_of(folder: Path, target: Path) -> Path:
    shutil.copytree(folder, target)
    return target


def environment() -> dict[str, str]:
    """For a subprocess whose sums must come out as they do here, and whose pictures nobody looks at (warm.py)."""
    threads = str(torch.get_num_threads())
    return os.environ | {"OMP_NUM_THREADS": threads, "MPLBACKEND": "Agg", "COLUMNS": "120", "BLANK_PICTURES": "1"}


def divided(verb: Callable[..., Any], **fields: Any) -> dict[str, Any]:
    """Arguments of a verb; the fields that it does not have become its recipe."""
    own = inspect.signature(verb).parameters.keys()
    rest = {name: value for name, value in fields.items() if name not in own}
    return {name: value for name, value in fields.items() if name in own} | ({"recipe": Recipe(**rest)} if rest else {})


def resolved(fields: dict[str, Any], recipe: str | Path | None = None) -> Recipe:
    """The recipe that a command asks for."""
    asked = Recipe.of(fields)
    return requested(asked if recipe is None else Recipe.load(recipe).updated(asked))


def told(recipe: Any, folder: Path, progress: Progress = silent, **options: Any) -> tuple[Path, str]:
    """The run folder and everything that was said."""
    lines: list[str] = []
    with reporting_to(progress), heard(lines.append):
        return train(recipe, folder, **options), "\n".join(lines)


def untempered(evaluation: Evaluation) -> Evaluation:
    """The evaluation of the same logits at temperature 1."""
    logits = log_odds(evaluation.probabilities, evaluation.labels) * evaluation.temperature
    return replace(evaluation, probabilities=to_probabilities(logits, evaluation.labels), temperature=1.0)


def fitted_temperature(plain: Evaluation) -> float:
    """The temperature that an evaluation at temperature 1 asks for."""
    logits = log_odds(plain.probabilities, plain.labels)
    return calibrate(logits, plain.labels, np.zeros(len(plain.classes))).temperature
