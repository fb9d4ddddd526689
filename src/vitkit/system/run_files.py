"""The names of the files in a run's folder other than those of its model folder (`model_folder`)."""

from __future__ import annotations

from pathlib import Path

# What was to be trained, on which images.
RECIPE = "recipe.toml"
SPLIT = "split.json"  # the split of each image, and the beginning of its content's SHA-256
GROUPS = "groups.json"  # images that are not independent: copies of one picture, frames of one scene
LABELS = "labels.csv"  # the label file that it was begun with, as it was then
PROPOSALS = "proposals.json"  # labels that a model proposed, and what they were before
FINDINGS = "findings.json"  # what the doctor found
PRETRAINING = "pretraining.toml"  # of a pre-training: what is hidden, and what is to be said of it
SELECTION = "selection.json"  # which of several weights were tried, and how they fared
PREPROCESS = "preprocess.json"  # of a training on a caller's datasets: how their pictures are prepared
CLASS_INDICES = "class_indices.json"  # as many training scripts write it beside their weights

# How it went.
LOG = "log.txt"
METRICS = "metrics.csv"
LAST = Path("checkpoints", "last.ckpt")  # from which the run goes on
BAD_BATCH = "bad_batch-*.pt"  # what a training that diverged leaves of it
BOARD = "tensorboard"  # a folder, as the next are
LOGGED = (BOARD, "csv", "wandb")
LOGGER_RUNS = "loggers.json"  # by what name a service knows the run

# What came of it.
EVALUATION = "evaluation.json"
PREDICTIONS = "predictions.csv"  # what was said of each held-out image
FILLER = "pretraining.safetensors"  # of a pre-training: what filled in the pictures, and is no part of the model
FOLDS = "folds.json"  # of a cross-validation
REPORT = "report.html"
LABEL_ERRORS = "label_errors.csv"
PICTURES = {  # by their captions in the report
    "Curves": "curves.png",
    "Confusion": "confusion.png",
    "Confidence and accuracy": "reliability.png",
    "ROC and precision-recall": "ranking.png",
    "Held-out images as the model sees them": "embedding.png",
    "Images per class": "classes.png",
    "What the model sees in training": "train_batch.png",
}

FILES = (  # that a run writes into its folder itself, and which go when another is written over it
    *(RECIPE, PRETRAINING, SPLIT, GROUPS, LABELS, PROPOSALS, FINDINGS, SELECTION, PREPROCESS, CLASS_INDICES),
    *(LOG, METRICS, LOGGER_RUNS),
    *(EVALUATION, PREDICTIONS, FILLER, FOLDS, REPORT, LABEL_ERRORS, *PICTURES.values()),
)


def fold_folder(folder: Path, fold: int) -> Path:
    """Return the folder of one fold of a cross-validation, counting from 0."""
    return folder / f"fold-{fold + 1}"


def folds_in(folder: Path) -> list[Path]:
    """Return the folders of the folds that exist."""
    return sorted(folder.glob("fold-*"))
