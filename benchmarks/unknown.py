"""Images of unknown things that pass as known: `python benchmarks/unknown.py DATA WEIGHTS --work FOLDER`.

DATA is a folder of photographs in class folders, WEIGHTS a checkpoint that was not trained on it. Each class is left
out in turn, and WEIGHTS are fine-tuned on the others. Where 95 % of validation photographs pass as known, the fraction
of unknown images that pass is compared between confidence, `neighbours`, the score of `inference.unknown` fitted to the
same photographs, and `vitkit`, the score that the training stored. None of the images that are counted was used by the
training:

    test                 other photographs of the known classes: about 0.95 must pass
    unseen class         photographs of the class that was left out
    digits, noise        digits of scikit-learn; uniform noise
    patterns             gratings and checks
    surfaces             parts of photographs of bricks, grass and gravel, by scikit-image
    other photographs    parts of photographs of other things, by scikit-learn, matplotlib and scikit-image, whose files
                         are used if it is installed; it is not imported

Rows `report: ...` are what the report of the run says, with its interval. Features `initial` are those of WEIGHTS: they
would need a second model to predict. `--shuffled` permutes the labels before
training. What the models compute is kept in FOLDER, so that a second run only writes the table.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.cbook import get_sample_data
from PIL import Image
from sklearn.datasets import load_digits, load_sample_image
from tables import RESULTS, result_path, write_table

import vitkit
from vitkit.classifier import Classifier
from vitkit.inference import ACCEPTED, Unknown, p_values
from vitkit.training import LabelledFeatures, fit_unknown

TRAIN, VAL, TEST = 120, 60, 100  # photographs of each class
UNKNOWN = 200  # pictures of each kind
SIZE = 224
SEED = 20
KINDS = ("test", "unseen class", "digits", "noise", "patterns", "surfaces", "other photographs")
_SURFACES = ("brick.png", "grass.png", "gravel.png")  # of scikit-image
_PHOTOGRAPHS = (
    *("astronaut.png", "camera.png", "cell.png", "chelsea.png", "coffee.png", "coins.png", "hubble_deep_field.jpg"),
    *("ihc.png", "moon.png", "motorcycle_left.png", "page.png", "retina.jpg", "rocket.jpg"),
)

Picture = npt.NDArray[np.uint8]


class Seen(NamedTuple):
    """What a model makes of images: features (n, D) and logits (n, K); and their classes (n,), if they have any."""

    features: npt.NDArray[Any]
    logits: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]


def gratings(count: int, rng: np.random.Generator) -> Iterator[Picture]:
    """Gratings and checks of random colours, sizes and angles: and regular."""
    y, x = np.mgrid[:SIZE, :SIZE]
    for i in range(count):
        angle, period = rng.uniform(0, np.pi), rng.uniform(6, 60)
        u, v = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
        wave = np.sin(2 * np.pi * u / period) * (np.sin(2 * np.pi * v / period) if i % 2 else 1)
        mix = (wave[..., None] + 1) / 2 if i % 4 < 2 else (wave[..., None] > 0)
        first, second = rng.integers(0, 256, (2, 3))
        yield (first + (second - first) * mix).astype(np.uint8)


def crops(sources: Sequence[Picture], count: int, rng: np.random.Generator) -> Iterator[Picture]:
    """Parts of pictures, each picture in turn, some of them mirrored."""
    for i in range(count):
        source = sources[i % len(sources)]
        side = int(rng.uniform(0.4, 1.0) * min(source.shape[:2]))
        top, left = (int(rng.integers(0, size - side + 1)) for size in source.shape[:2])
        crop = np.asarray(Image.fromarray(source[top : top + side, left : left + side]).resize((SIZE, SIZE)))
        yield crop[:, ::-1] if rng.random() < 0.5 else crop


def of_scikit_image(names: Sequence[str]) -> list[Picture]:
    """Pictures of the package, if it is installed."""
    spec = find_spec("skimage")
    if spec is None or spec.origin is None:
        return []
    folder = Path(spec.origin).parent / "data"
    return [np.asarray(Image.open(folder / name).convert("RGB")) for name in names if (folder / name).is_file()]


def of_no_class() -> dict[str, list[Picture]]:
    """Pictures by kind, none of which shows a flower."""
    rng = np.random.default_rng(SEED)
    digits = rng.permutation(load_digits().images)[:UNKNOWN] * (255 / 16)
    with get_sample_data("grace_hopper.jpg") as file, Image.open(file) as image:
        photographs = [load_sample_image("china.jpg"), np.asarray(image.convert("RGB")), *of_scikit_image(_PHOTOGRAPHS)]
    surfaces = of_scikit_image(_SURFACES)
    patterns = list(gratings(UNKNOWN // 2, rng))
    return {
        "digits": [np.kron(image, np.ones((28, 28))).astype(np.uint8)[..., None].repeat(3, -1) for image in digits],
        "noise": list(rng.integers(0, 256, (UNKNOWN, SIZE, SIZE, 3), dtype=np.uint8)),
        "patterns": patterns,
        **({"surfaces": list(crops(surfaces, UNKNOWN // 2, rng))} if surfaces else {}),
        "other photographs": list(crops(photographs, UNKNOWN, rng)),
    }


def see(model: Classifier, images: Sequence[Any], labels: Any = ()) -> Seen:
    """What a model makes of images."""
    compute, blocks = model.seeing(), (images[start : start + 32] for start in range(0, len(images), 32))
    parts = [compute(np.stack([np.asarray(model.read(image)) for image in block])) for block in blocks]
    logits, features = (np.concatenate(rows) for rows in zip(*parts, strict=True))
    return Seen(features, logits, np.array(labels, dtype=np.int64))


def split(data: Path, left_out: str) -> dict[str, list[tuple[Path, str]]]:
    """Photographs of the classes that are not left out, by split, and those of the class that is."""
    parts: dict[str, list[tuple[Path, str]]] = {"train": [], "val": [], "test": [], "unseen class": []}
    for folder in sorted(path for path in data.iterdir() if path.is_dir()):
        files = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in (".jpg", ".png")]
        order = np.random.default_rng(SEED).permutation(len(files)).tolist()
        if folder.name == left_out:
            parts["unseen class"] = [(files[i], folder.name) for i in order[:UNKNOWN]]
            continue
        for name, start, count in (("train", 0, TRAIN), ("val", TRAIN, VAL), ("test", TRAIN + VAL, TEST)):
            parts[name] += [(files[i], folder.name) for i in order[start : start + count]]
    return parts


def fine_tune(parts: dict[str, list[tuple[Path, str]]], weights: Path, work: Path, epochs: int, shuffled: bool) -> Path:
    """Train on links to the photographs, and return the run."""
    run, folder = work / "run", work / "data"
    if (run / "evaluation.json").is_file():
        return run
    if (run / "recipe.toml").is_file():  # it was interrupted
        vitkit.train(resume=run)
        return run
    for name in ("train", "val"):
        labels = [label for _, label in parts[name]]
        if shuffled:
            labels = np.random.default_rng(SEED).permutation(labels).tolist()
        for (path, _), label in zip(parts[name], labels, strict=True):
            (folder / name / label).mkdir(parents=True, exist_ok=True)
            (folder / name / label / f"{path.parent.name}-{path.name}").symlink_to(path.resolve())
    vitkit.train(folder, vitkit.Recipe(weights=str(weights), method="full", epochs=epochs, seed=0), out=run)
    return run


def measure(data: Path, weights: Path, left_out: str, work: Path, epochs: int, shuffled: bool) -> dict[str, Seen]:
    """What the fine-tuned model (`final`) and the weights that it began with (`initial`) make of everything."""
    kept = work / "seen.npz"
    if kept.is_file():
        return read_seen(kept)
    work.mkdir(parents=True, exist_ok=True)
    parts = split(data, left_out)
    final = vitkit.load(fine_tune(parts, weights, work, epochs, shuffled)).use(images=10**4)
    number, made = {name: i for i, name in enumerate(final.classes)}, of_no_class()
    initial = by_initial(data, weights, made, work.parent / "initial.npz")
    seen: dict[str, Seen] = {}
    for name, each in parts.items():
        labels = np.array([number[label] for _, label in each] if name != "unseen class" else [], dtype=np.int64)
        seen[f"final|{name}"] = see(final, [path for path, _ in each], labels)
        rows = [initial[f"{path.parent.name}/{path.name}"] for path, _ in each]
        seen[f"initial|{name}"] = Seen(np.stack(rows), np.zeros((len(rows), 1)), labels)
    for name, pictures in made.items():
        seen[f"final|{name}"] = see(final, pictures)
        seen[f"initial|{name}"] = Seen(initial[name], np.zeros((len(pictures), 1)), np.empty(0, np.int64))
    np.savez(
        kept, **{f"{k}|{part}": getattr(v, part) for k, v in seen.items() for part in ("features", "logits", "labels")}
    )
    return seen


def read_seen(file: Path) -> dict[str, Seen]:
    """Read what `measure` has kept."""
    with np.load(file) as stored:
        names = sorted({key.rpartition("|")[0] for key in stored})
        return {name: Seen(*(stored[f"{name}|{part}"] for part in ("features", "logits", "labels"))) for name in names}


def by_initial(data: Path, weights: Path, made: dict[str, list[Picture]], kept: Path) -> dict[str, Any]:
    """Features by WEIGHTS: (D,) of each photograph that is used, and (n, D) of each kind of pictures."""
    if not kept.is_file():
        model = vitkit.load(weights).use(images=10**4, features=True)
        every = [part for left_out in classes_of(data) for part in split(data, left_out).values()]
        files = sorted({path for part in every for path, _ in part})
        features = see(model, files).features
        found = {f"{path.parent.name}/{path.name}": row for path, row in zip(files, features, strict=True)}
        np.savez(kept, **found, **{name: see(model, pictures).features for name, pictures in made.items()})
    with np.load(kept) as stored:
        return dict(stored)


def classes_of(data: Path) -> list[str]:
    """The names of the class folders."""
    return sorted(path.name for path in data.iterdir() if path.is_dir())


def confidence(seen: Seen) -> npt.NDArray[np.float64]:
    """One minus the highest probability (n,), so that higher is less familiar."""
    z = seen.logits.astype(np.float64)
    powers = np.exp(z - z.max(axis=1, keepdims=True))
    rest: npt.NDArray[np.float64] = 1 - 1 / powers.sum(axis=1)
    return rest


def table(left_out: str, seen: dict[str, Seen], stored: Unknown | None) -> Iterator[dict[str, Any]]:
    """The fraction of each kind that passes, where 95 % of validation photographs do."""
    for where in ("final", "initial"):
        train, val = seen[f"{where}|train"], seen[f"{where}|val"]
        ways: dict[str, Any] = {}
        if where == "final":
            ways["confidence"] = lambda each, val=val: p_values(confidence(val), confidence(each))
        fitted = Unknown.fit(train.features, val.features)
        ways["neighbours"] = lambda each, fitted=fitted: fitted.p_values(each.features)
        if stored is not None and where == "final":
            ways["vitkit"] = lambda each: stored.p_values(each.features)
        for kind in KINDS:
            if (each := seen.get(f"{where}|{kind}")) is not None:
                passed = {way: round(float((of(each) > 1 - ACCEPTED).mean()), 4) for way, of in ways.items()}
                row = {"left_out": left_out, "features": where, "pictures": kind, "images": len(each), **passed}
                yield {**dict.fromkeys(COLUMNS, ""), **row}
    for limit in () if stored is None else stored.limits:
        row = {"left_out": left_out, "features": "final", "pictures": f"report: {limit.kind}", "images": limit.images}
        low, high = (round(bound, 4) for bound in limit.bounds)
        yield {**dict.fromkeys(COLUMNS, ""), **row, "vitkit": round(limit.share, 4), "low": low, "high": high}


WAYS = ("confidence", "neighbours", "vitkit")
COLUMNS = ("left_out", "features", "pictures", "images", *WAYS, "low", "high")


def save(rows: Sequence[dict[str, Any]], what: str, folder: Path) -> None:
    """Write the table, with means over the classes that were left out."""
    means = []
    for where, kind in dict.fromkeys((row["features"], row["pictures"]) for row in rows):
        those = [row for row in rows if (row["features"], row["pictures"]) == (where, kind)]
        mean = {
            way: round(float(np.mean([row[way] for row in those])), 4)
            for way in WAYS
            if all(row[way] != "" for row in those)
        }
        means.append({"left_out": "mean", "features": where, "pictures": kind, **mean})
    ordered = [{name: row.get(name, "") for name in COLUMNS} for row in (*rows, *means)]
    write_table(result_path(what, "bfloat16", folder=folder), ordered)


def made_up(rng: np.random.Generator) -> tuple[dict[str, Seen], Unknown]:
    """Clouds of features instead of photographs, some of them far from all classes."""
    centres, seen = 4 * np.eye(3, 6), {}
    for where in ("final", "initial"):
        for name in ("train", "val", "test", "unseen class", "noise"):
            labels = rng.integers(0, 3, 120)
            shift = 0 if name in ("train", "val", "test") else 5 * np.eye(1, 6, 5)
            x = centres[labels] + rng.standard_normal((120, 6)) + shift
            seen[f"{where}|{name}"] = Seen(x, x @ centres.T, labels)
    train, val = (
        LabelledFeatures(seen[f"initial|{name}"].features, seen[f"initial|{name}"].labels) for name in ("train", "val")
    )
    return seen, fit_unknown(seen["final|train"].features, seen["final|val"].features, (train, val))


def main() -> None:
    """Every class in turn; the table is written after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("weights", type=Path, nargs="?")
    parser.add_argument("--work", type=Path, help="a folder that keeps the runs and what they compute")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--shuffled", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smoke", action="store_true", help="made-up features, to see that the script works")
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.smoke:
        rows = list(table("none", *made_up(np.random.default_rng(0))))
        print(json.dumps(rows[0]))
        save(rows, "unknown", options.out)
        return
    if not (options.data and options.weights and options.work):
        parser.error("DATA, WEIGHTS and --work are required")
    rows = []
    what = "unknown-shuffled" if options.shuffled else "unknown"
    for left_out in classes_of(options.data):
        work = options.work / (f"{left_out}-shuffled" if options.shuffled else left_out)
        seen = measure(options.data, options.weights, left_out, work, options.epochs, options.shuffled)
        rows += table(left_out, seen, vitkit.load(work / "run").unknown)
        save(rows, what, options.out)
        print(f"{left_out}: done", flush=True)


if __name__ == "__main__":
    main()
