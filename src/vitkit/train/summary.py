"""What a run tells about itself: pictures of its data, what was found, and the report at the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vitkit.classifier import Classifier
from vitkit.data.augment import Augment
from vitkit.data.datamodule import TrainingImages
from vitkit.data.preprocess import Preprocess
from vitkit.data.source import ImageTable
from vitkit.data.split import SPLITS
from vitkit.evaluate import plots
from vitkit.evaluate.metrics import Evaluation, evaluate, held_out_split
from vitkit.evaluate.report import write_report
from vitkit.files import write_json
from vitkit.train.callbacks import read_metrics
from vitkit.train.recipe import Recipe, name_of
from vitkit.weights import load

FINDINGS, EVALUATION, REPORT = "findings.json", "evaluation.json", "report.html"
PICTURES = {
    "Curves": "curves.png",
    "Confusion": "confusion.png",
    "Images per class": "classes.png",
    "What the model sees in training": "train_batch.png",
}


def draw_data(folder: Path, table: ImageTable, preprocess: Preprocess, augment: Augment, seed: int) -> None:
    """classes.png and train_batch.png."""
    counts = {name: table.of_split(name).counts() for name in SPLITS if name in table.splits}
    plots.save_figure(plots.class_counts(counts, table.classes), folder / "classes.png")
    images = TrainingImages(table.of_split("train"), preprocess, augment, seed)
    chosen = np.random.default_rng(seed).permutation(len(images))[:32].tolist()
    pictures = [_to_picture(images[0, i][0], preprocess) for i in chosen]
    titles = [table.classes[images.table.labels[i]] for i in chosen]
    sheet = plots.contact_sheet(pictures, titles, "Training images as the model sees them, augmented")
    plots.save_figure(sheet, folder / "train_batch.png")


def _to_picture(image: torch.Tensor, preprocess: Preprocess) -> Image.Image:
    """Back from the numbers that the model reads to a picture."""
    pixels = image.numpy().transpose(1, 2, 0) * np.array(preprocess.std) + np.array(preprocess.mean)
    return Image.fromarray(np.round(pixels * 255).clip(0, 255).astype(np.uint8))


def report(folder: Path, recipe: Recipe, table: ImageTable, progress: Callable[[int, int], None]) -> Evaluation:
    """Evaluate the model that was kept and write evaluation.json, confusion.png, curves.png and report.html."""
    classifier = load(folder)
    evaluation = evaluate(classifier, table, held_out_split(table), progress)
    rows = read_metrics(folder / "metrics.csv")
    best = classifier.provenance["metrics"]["epoch"]
    plots.save_figure(plots.curves(rows, best), folder / "curves.png")
    title = f"{evaluation.split} split: {100 * evaluation.accuracy:.1f} % right"
    plots.save_figure(plots.confusion(evaluation.confusion(), evaluation.classes, title), folder / "confusion.png")
    write_json(folder / EVALUATION, {**evaluation.summary(), "per_class": evaluation.per_class()})
    write_report(
        folder / REPORT,
        title=f"{name_of(recipe)} on {table.name}",
        evaluation=evaluation,
        facts=_facts(classifier, recipe, table, rows),
        findings=json.loads((folder / FINDINGS).read_text(encoding="utf-8")),
        pictures={caption: folder / name for caption, name in PICTURES.items()},
        recipe=recipe.to_toml(),
    )
    return evaluation


def _kept(recipe: Recipe) -> str:
    return "the last" if recipe.keep == "last" else f"the best by {recipe.monitor}"


def _facts(classifier: Classifier, recipe: Recipe, table: ImageTable, rows: list[dict[str, float]]) -> dict[str, str]:
    config, preprocess = classifier.model.config, classifier.preprocess
    parameters = sum(parameter.numel() for parameter in classifier.model.parameters())
    splits = ", ".join(f"{len(table.of_split(name))} {name}" for name in SPLITS)
    h, w = config.image_size
    pixels = (preprocess.fit, preprocess.interpolation, f"mean {preprocess.mean}", f"std {preprocess.std}")
    kept = classifier.provenance["metrics"]["epoch"] + 1
    return {
        "model": f"{name_of(recipe)}: {parameters:,} parameters, {config.layers} layers, {config.heads} heads",
        "data": f"{table.root}: {splits} images, {len(table.classes)} classes",
        "pixels": ", ".join((f"{h}x{w}", *pixels)),
        "training": f"{len(rows)} epochs in {rows[-1]['seconds']:.0f} s; kept: epoch {kept}, {_kept(recipe)}",
        "seed": str(recipe.seed),
        "data hash": classifier.provenance["data_hash"],
        "made with": ", ".join(f"{name} {number}" for name, number in classifier.provenance["versions"].items()),
    }
