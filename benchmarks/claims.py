"""Do the claims about ViTs and CNNs hold for 2,500 photographs? `python benchmarks/claims.py FLOWERS WEIGHTS`.

WEIGHTS is DeiT-Ti's file. `vitkit compare` trains a ViT that begins with it, at its size for six epochs, and a ViT, a
hybrid, ResNet-18 and MobileNetV2 from scratch, at 96 pixels for thirty, at 0.1, 0.3 and all of the training images,
three seeds each: 45 runs, four to six hours on two cores. Stopped, it goes on with `--resume`. Then each claim, with
the interval that it rests on, and whether it held.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from tables import RESULTS, result_path, show, write_table

import vitkit
from vitkit.system import Progress

SCRATCH = {"vit": "vit_tiny_patch16_96", "hybrid": "vit_tiny_r_s16_p8_96"}
SCRATCH |= {name: f"torchvision:{name}" for name in ("resnet18", "mobilenet_v2")}
FRACTIONS = (0.1, 0.3, 1.0)
GOAL, SOON = 0.9, 2  # validation accuracy, epochs


def write_recipes(folder: Path, weights: Path) -> list[str]:
    """A file for each model."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = {"pretrained": {"weights": str(weights), "epochs": 6}}
    fields |= {
        name: {"model": model, "weights": "none", "image_size": 96, "epochs": 30} for name, model in SCRATCH.items()
    }
    for name, own in fields.items():
        lines = [f"{key} = {value!r}" for key, value in own.items()]
        (folder / f"{name}.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [str(folder / f"{name}.toml") for name in fields]


def claims_of(figures: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows: what is claimed, at which part of the images, what was found, and whether it held."""
    models = {model["name"]: model for model in figures["models"]}
    for fraction in FRACTIONS:
        runs = [run for run in models["pretrained"]["runs"] if run["fraction"] == fraction]
        epochs = [next((epoch for epoch, accuracy in run["curve"] if accuracy >= GOAL), None) for run in runs]
        held = all(epoch is not None and epoch <= SOON for epoch in epochs)
        told = ", ".join("never" if epoch is None else str(epoch) for epoch in epochs)
        claim = "pre-trained reaches 90 % of validation within two epochs"
        yield row(claim, fraction, f"epochs: {told}", "held" if held else "failed")
    for better, worse in (("pretrained", "vit"), ("resnet18", "vit"), ("mobilenet_v2", "vit"), ("hybrid", "vit")):
        for fraction in FRACTIONS:
            gap, (low, high), p = gap_of(figures, better, worse, fraction)
            found = f"{100 * gap:+.1f} points, {100 * low:.1f} to {100 * high:.1f}"
            outcome = "held" if gap > 0 and p < 0.05 else "failed" if gap < 0 and p < 0.05 else "cannot be told"
            yield row(f"{better} is better than {worse}", fraction, found, outcome)
    for better in ("resnet18", "mobilenet_v2"):
        _, few, _ = gap_of(figures, better, "vit", FRACTIONS[0])
        _, all_, _ = gap_of(figures, better, "vit", 1.0)
        outcome = "held" if all_[1] < few[0] else "failed: it grows" if all_[0] > few[1] else "cannot be told"
        yield row(f"{better}'s lead over vit shrinks with more images", 1.0, "intervals at 0.1 and at all", outcome)


def gap_of(figures: Mapping[str, Any], better: str, worse: str, fraction: float) -> tuple[float, list[float], float]:
    """How many points one is better than the other, the interval, and p among all pairs."""
    for pair in figures["pairs_by_fraction"]:
        if pair["fraction"] == fraction and {pair["a"], pair["b"]} == {better, worse}:
            if pair["a"] == better:
                return pair["difference"], pair["interval"], pair["p"]
            low, high = pair["interval"]
            return -pair["difference"], [-high, -low], pair["p"]
    raise LookupError(f"{better} and {worse} were not compared")


def row(claim: str, fraction: float, found: str, outcome: str) -> dict[str, Any]:
    return {"claim": claim, "fraction": fraction, "found": found, "outcome": outcome}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--runs", type=Path, default=Path("runs/claims"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    own = parser.parse_args()
    asked: dict[str, Any] = {"out": own.runs, "progress": silent_but_for(sys.stderr)}
    if own.resume:
        found = vitkit.compare(**asked, resume=True)
    else:
        models = write_recipes(own.runs.with_name(f"{own.runs.name}-recipes"), own.weights)
        found = vitkit.compare(own.data, models, **asked, fractions=FRACTIONS, seeds=3)
    rows = list(claims_of(found.to_dict()))
    for each in rows:
        print(show(each))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    write_table(result_path("claims", "auto", device, own.out), rows)
    shutil.copy(found.folder / "comparison.csv", result_path("claims-runs", "auto", device, own.out))


def silent_but_for(stream: Any) -> Progress:
    def tell(what: str, done: int, total: int | None) -> None:
        print(f"\r{what}: {done} of {total}", end="", file=stream)

    return tell


if __name__ == "__main__":
    main()
