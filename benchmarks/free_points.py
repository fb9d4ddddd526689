"""Do mixes with the start, averages of runs, and several views of an image gain anything?

    python benchmarks/free_points.py FLOWERS WEIGHTS --work FOLDER

480 random photographs of flowers are split once into training (240), validation and test (120 each). DeiT-Ti is
fine-tuned on them with three seeds, with the defaults of `--method full` but two epochs, and with `--wise-ft`. This is
as small as it is so that two busy cores need half an hour: differences below four points (below eight for changed
photographs) cannot be told from chance here, and longer fine-tunings drift further from their start, so that mixes may
gain more.

All test photographs are predicted as they are, and every second one changed: blurred (standard deviation of 1.5 % of
the short side), stored as JPEG of quality 8, with other colours (saturation, brightness, contrast and a red tint), and
cropped to a random window of half the area. Every method predicts the same pictures in the same precision. Rows:

    shift        none, blur, jpeg, colour, crop
    method       fine-tuned; wise-ft, as the runs chose on validation images; mix 0 and 0.5, weights with this fraction
                 of the fine-tuned ones, without a choice; average of the three seeds; flip; and crops, for pictures as
                 they are and cropped ones
    accuracy     the mean over the three seeds
    gain         the difference from fine-tuned, the mean over the three seeds
    low, high    its 95 % interval over images, for these trainings
    images_better, images_worse   photographs that more, or fewer, of the three trainings predict correctly
    views        how many times an image is computed

The second table has the choices of the runs, and the third what `vitkit eval --tta` says about the first of them.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter
from safetensors.torch import load_file
from tables import RESULTS, result_path, write_table

import vitkit
from vitkit.classifier import Classifier
from vitkit.data import Views, images_of_run, read_source
from vitkit.evaluation import Units, mean_interval
from vitkit.model import VisionTransformer
from vitkit.training import interpolate

SEEDS, PHOTOGRAPHS, EPOCHS, BATCH = (0, 1, 2), 480, 2, 8
SPLIT = (0.5, 0.25, 0.25)
ALL, FLIP = Views(flip=True, crops=True), Views(flip=True, crops=False)
VIEWS = {"flip": 2, "crops": 5}  # the centre, four corners and the mirror image of the centre are six views
MIXES, CROPPED = (0.0, 0.5), ("none", "crop")
Change = Callable[[Image.Image, np.random.Generator], Image.Image]


def blurred(image: Image.Image, _: np.random.Generator) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(0.015 * min(image.size)))


def compressed(image: Image.Image, _: np.random.Generator) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=8)
    return Image.open(file).convert("RGB")


def recoloured(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    for kind in (ImageEnhance.Color, ImageEnhance.Brightness, ImageEnhance.Contrast):
        image = kind(image).enhance(float(rng.uniform(0.4, 1.6)))
    tint = np.array([1.2, 1.0, 0.8])
    return Image.fromarray((np.asarray(image) * tint).clip(0, 255).astype(np.uint8))


def cropped(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    width, height = (round(side * 0.5**0.5) for side in image.size)
    left, top = (
        int(rng.integers(0, whole - part + 1)) for whole, part in zip(image.size, (width, height), strict=True)
    )
    return image.crop((left, top, left + width, top + height))


SHIFTS: dict[str, Change] = {
    "none": lambda image, _: image,
    "blur": blurred,
    "jpeg": compressed,
    "colour": recoloured,
    "crop": cropped,
}


def subset(flowers: Path, folder: Path, count: int) -> Path:
    """A folder with links to some of the photographs."""
    table = read_source(flowers)
    for i in np.random.default_rng(0).permutation(len(table))[:count].tolist():
        link = folder / table.name_of(i) / Path(table.paths[i]).name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to((flowers / table.paths[i]).resolve())
    return folder


def fine_tune(photographs: Path, weights: Path, folder: Path, seed: int, epochs: int) -> Path:
    if not (folder / "evaluation.json").is_file():
        fields: dict[str, Any] = {"method": "full", "epochs": epochs, "split": SPLIT, "split_seed": 0, "seed": seed}
        vitkit.train(photographs, weights=weights, wise_ft=True, out=folder, force=True, **fields)
    return folder


def with_weights(classifier: Classifier, weights: dict[str, torch.Tensor]) -> Classifier:
    model = VisionTransformer(classifier.model.config)
    model.load_state_dict(weights)
    return Classifier(model, classifier.classes, classifier.preprocess)


def models_of(run: Path) -> tuple[dict[str, Classifier], str]:
    """The fine-tuned weights of a run, mixes of these with its start, and which of them the run kept.

    If the run kept a mix, its fine-tuned weights are on the line from the start through the mix.
    """
    classifier = vitkit.load(run)
    alpha = classifier.provenance["wise_ft"]["alpha"]
    if alpha == 0:
        raise SystemExit(f"{run} kept its start, so its fine-tuned weights are only in checkpoints/last.ckpt")
    start, kept = load_file(run / "start.safetensors"), classifier.model.state_dict()
    tuned = kept if alpha == 1 else {name: start[name] + (value - start[name]) / alpha for name, value in kept.items()}
    models = {"fine-tuned": with_weights(classifier, tuned)}
    mixes = MIXES if alpha == 1 else sorted({*MIXES, alpha})
    models |= {f"mix {a:g}": with_weights(classifier, interpolate(start, tuned, a)) for a in mixes}
    used = {name: model.use(plan="plain") for name, model in models.items()}
    return used, "fine-tuned" if alpha == 1 else f"mix {alpha:g}"


def predictions(runs: list[Path], average: Path, shift: str, *, is_short: bool) -> dict[str, np.ndarray]:
    """Whether each method predicts each test image, (seeds, n) each; an average has one row."""
    table = images_of_run(runs[0] / "split.json").of_split("test")
    indices = list(range(0, len(table), 1 if shift == "none" else 2))[: 8 if is_short else None]
    models, kept = zip(*(models_of(run) for run in runs), strict=True)
    soup = vitkit.load(average).use(plan="plain", features=False)
    preprocess, number = soup.preprocess, {name: i for i, name in enumerate(soup.classes)}
    labels = np.array([number[table.name_of(i)] for i in indices])
    predicted: dict[str, list[list[int]]] = {}

    def add(method: str, seed: int, logits: np.ndarray) -> None:
        rows = predicted.setdefault(method, [[] for _ in runs])
        rows[seed].extend(logits.argmax(axis=1).tolist())

    for start in range(0, len(indices), BATCH):
        views = []
        for i in indices[start : start + BATCH]:
            with Image.open(table.file(i)) as image:
                changed = SHIFTS[shift](image.convert("RGB"), np.random.default_rng(i))
            views.append(ALL.pixels(changed, preprocess)[:6] if shift in CROPPED else FLIP.pixels(changed, preprocess))
        pixels = np.stack(views)  # (B, 6 or 2, C, height, width)
        plain = np.ascontiguousarray(pixels[:, 0])
        for seed, each in enumerate(models):
            of_views = each["fine-tuned"].answer(pixels.reshape(-1, *plain.shape[1:]))
            of_views = of_views.reshape(len(pixels), pixels.shape[1], -1)
            add("fine-tuned", seed, of_views[:, 0])
            if shift in CROPPED:
                add("crops", seed, of_views[:, :5].mean(axis=1))
            add("flip", seed, of_views[:, [0, -1]].mean(axis=1))
            for name, model in each.items():
                if name != "fine-tuned":
                    add(name, seed, model.answer(plain))
        logits = soup.answer(plain)
        for seed in range(len(runs)):
            add("average", seed, logits)
        print(f"\r{shift}: {start + len(pixels)} of {len(indices)}", end="", file=sys.stderr)
    print(file=sys.stderr)
    predicted["wise-ft"] = [predicted[name][seed] for seed, name in enumerate(kept)]
    return {name: np.array(rows) == labels for name, rows in predicted.items() if min(map(len, rows))}


def rows_of(right: dict[str, np.ndarray], shift: str) -> Iterator[dict[str, Any]]:
    before = right["fine-tuned"].mean(axis=0)  # (n,)
    units = Units.of(len(before), None)
    for name, values in right.items():
        of_image = values.mean(axis=0)
        low, high = mean_interval((1 + of_image - before) / 2, 1.0, units)
        is_plain = name == "fine-tuned"
        yield {
            "shift": shift,
            "method": name,
            "accuracy": f"{of_image.mean():.4f}",
            "gain": "" if is_plain else f"{of_image.mean() - before.mean():+.4f}",
            "low": "" if is_plain else f"{2 * low - 1:+.4f}",
            "high": "" if is_plain else f"{2 * high - 1:+.4f}",
            "images_better": int((of_image > before).sum()),
            "images_worse": int((of_image < before).sum()),
            "images": len(before),
            "seeds": len(values),
            "views": VIEWS.get(name, 1),
        }


def choices(runs: list[Path]) -> Iterator[dict[str, Any]]:
    """What each run tried on its validation images."""
    for seed, run in enumerate(runs):
        entry = json.loads((run / "evaluation.json").read_text())["wise_ft"]
        for row in entry["tried"]:
            yield {
                "seed": seed,
                "alpha": row["alpha"],
                "validation_images": entry["images"],
                "fine_tuned": f"{entry['accuracy']:.4f}",
                "gain": f"{row['gain']['accuracy']:+.4f}",
                "low": f"{row['gain']['interval_95'][0]:+.4f}",
                "high": f"{row['gain']['interval_95'][1]:+.4f}",
                "kept": entry["alpha"] == row["alpha"],
            }


def costs(run: Path) -> Iterator[dict[str, Any]]:
    for names in VIEWS:
        entry = vitkit.evaluate(run, tta=names).figures["tta"]
        yield {
            "tta": names,
            "plain": f"{entry['plain']['accuracy']:.4f}",
            "gain": f"{entry['gain']['accuracy']:+.4f}",
            "low": f"{entry['gain']['interval_95'][0]:+.4f}",
            "high": f"{entry['gain']['interval_95'][1]:+.4f}",
            "times_slower": entry["times_slower"],
            "views": entry["per_image"],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flowers", type=Path, help="a folder of class folders")
    parser.add_argument("weights", type=Path, help="DeiT-Ti, or any other Vision Transformer")
    parser.add_argument("--work", type=Path, required=True, help="folder for the runs; finished ones are used again")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smoke", action="store_true", help="few images; the figures mean nothing")
    arguments = parser.parse_args()
    began = time.monotonic()
    photographs = subset(arguments.flowers, arguments.work / "photographs", 80 if arguments.smoke else PHOTOGRAPHS)
    runs = [
        fine_tune(
            photographs, arguments.weights, arguments.work / f"seed-{seed}", seed, 1 if arguments.smoke else EPOCHS
        )
        for seed in SEEDS
    ]
    average = arguments.work / "average"
    print("\n".join(vitkit.average(runs, out=average, force=True).lines()), flush=True)
    chosen, rows = list(choices(runs)), list[dict[str, Any]]()
    write_table(result_path("free-points-choices", "bfloat16", folder=arguments.out), chosen)
    for shift in SHIFTS:
        of_shift = list(rows_of(predictions(runs, average, shift, is_short=arguments.smoke), shift))
        for row in of_shift:
            print(row, flush=True)
        rows += of_shift
        write_table(result_path("free-points", "bfloat16", folder=arguments.out), rows)
    cost = list(costs(runs[0]))
    for row in (*chosen, *cost):
        print(row)
    write_table(result_path("free-points-costs", "bfloat16", folder=arguments.out), cost)
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
