"""Does fixing labels by what a model suggests flatter? `python benchmarks/label_fixing.py [--smoke] [--seeds 20]`.

200 pictures in 5 classes are trained on (a head on the frozen features of a network that has learned nothing), every
label that the run suggests is accepted for all of them, test pictures too, or every doubted picture is left out, and it
is trained again on the same split, three times. With labels drawn by lot chance (20 %) must lie in the 95 % interval of
what the last run reports; with right labels the accuracy on 1,000 new pictures must. As a control, the figure with the
labels as they are by then must not.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from safetensors.torch import save_file
from tables import RESULTS, result_path, write_table

import vitkit
from vitkit.data import EXCLUDED, Edit, add_edits, read_suspects
from vitkit.system import EVALUATION, LABEL_ERRORS
from vitkit.training import run

CLASSES, EACH, NEW, SIDE, ROUNDS = 5, 40, 200, 32, 3  # EACH and NEW: pictures of a class
SIGNAL = 0.3  # part of a picture that is the colour of its class, where labels are right
Way = Literal["accept", "leave out"]
FIELDS: dict[str, Any] = {"method": "probe", "precision": "float32", "workers": 0, "cache": "none"}


def pictures(root: Path, seed: int, each: int, signal: float) -> Path:
    """Pictures that differ from one another, whose classes are colours, or mean nothing where the signal is 0."""
    rng, colours = np.random.default_rng((seed, each)), np.random.default_rng(7).integers(60, 196, (CLASSES, 3))
    for label in range(CLASSES):
        (root / f"class{label}").mkdir(parents=True)
        for i in range(each):
            coarse = rng.integers(0, 256, (5, 5, 3)) * (1 - signal) + colours[label] * signal
            picture = Image.fromarray(coarse.astype(np.uint8)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
            picture.save(root / f"class{label}" / f"{i}.png")
    return root


def label_fixing_loop(
    folder: Path, seed: int, signal: float = 0.0, way: Way = "accept", rounds: int = ROUNDS
) -> dict[str, Any]:
    """Train, follow every suggestion, train again on the same split, and so on.

    Args:
        folder: for pictures, labels and runs.
        seed: of pictures and trainings.
        signal: of `pictures`; 0: the labels are drawn by lot.
        way: whether doubted labels become what is suggested, or their pictures are left out.
        rounds: of following.

    Returns:
        The evaluation.json of the last run, whose folder is `folder / "runs" / str(rounds)`.
    """
    data = pictures(folder / "photos", seed, EACH, signal)
    torch.manual_seed(0)
    model = vitkit.create_model("vit_micro_patch8_16", num_classes=0, img_size=SIDE)
    save_file(model.state_dict(), folder / "weights.safetensors")
    recipe = vitkit.Recipe(data=str(data), weights=str(folder / "weights.safetensors"), seed=seed, **FIELDS)
    for number in range(rounds + 1):
        own, before = (folder / "runs" / str(n) for n in (number, number - 1))
        more: dict[str, Any] = {}
        if number:
            suspects = read_suspects(before / LABEL_ERRORS)
            add_edits(
                folder / "labels.csv",
                [Edit(row.path, row.suggested if way == "accept" else EXCLUDED) for row in suspects],
            )
            more = {"labels": str(folder / "labels.csv"), "split_from": str(before)}
        run.train(recipe.replace(**more), own)
    return dict(json.loads((own / EVALUATION).read_text()))


def one_seed(folder: Path, seed: int) -> list[dict[str, Any]]:
    """Every setting: the figure in front, the one with the labels of now, and what they should hold."""
    rows = []
    for labels, signal, way in (("by lot", 0.0, "accept"), ("by lot", 0.0, "leave out"), ("right", SIGNAL, "accept")):
        place = folder / f"{labels}-{way}"
        place.mkdir()
        numbers = label_fixing_loop(place, seed, signal, "accept" if way == "accept" else "leave out")
        truth = 1 / CLASSES
        if signal:
            new = pictures(place / "new", seed, NEW, signal)
            truth = vitkit.evaluate(
                place / "runs" / str(ROUNDS), new, compute=vitkit.Compute(precision="float32"), split="all"
            ).accuracy
        now, front = numbers.get("with_labels_now", numbers), numbers["headline"]
        for figure, accuracy, (low, high), images in (
            ("in front", front["value"], front["interval_95"], front["images"]),
            ("with the labels of now", now["accuracy"], now["intervals_95"]["accuracy"], now["images"]),
        ):
            known = {"seed": seed, "labels": labels, "way": way, "figure": figure, "images": images}
            rows.append({**known, "accuracy": accuracy, "low": low, "high": high, "truth": truth})
    return rows


def _draw_nothing(_figure: Figure, target: Any, **_options: Any) -> None:
    """Drawing would take a third of the time."""
    Image.new("RGB", (2, 1)).save(target, "PNG")


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """How often the truth is in the interval, by setting."""
    lines = []
    for setting in dict.fromkeys((row["labels"], row["way"], row["figure"]) for row in rows):
        own = [row for row in rows if (row["labels"], row["way"], row["figure"]) == setting]
        inside = sum(row["low"] <= row["truth"] <= row["high"] for row in own)
        accuracy, truth = (np.mean([row[name] for row in own]) for name in ("accuracy", "truth"))
        lines.append(
            f"labels {', '.join(setting):42} mean accuracy {accuracy:.3f}, truth {truth:.3f}, "
            f"inside {inside:2} of {len(own)} times"
        )
    return lines


def main() -> None:
    """All seeds, one after the other; the table is written after each."""
    global EACH, NEW, ROUNDS
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smoke", action="store_true", help="one seed, few pictures, to see that the script works")
    options = parser.parse_args()
    if options.smoke:
        EACH, NEW, ROUNDS = 12, 12, 1
    Figure.savefig = _draw_nothing
    rows: list[dict[str, Any]] = []
    for seed in range(1 if options.smoke else options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            rows += one_seed(Path(folder), seed)
        write_table(result_path("label-fixing", "float32", folder=options.out), rows)
        print(f"seed {seed}: " + ", ".join(f"{row['accuracy']:.2f}" for row in rows if row["seed"] == seed), flush=True)
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
