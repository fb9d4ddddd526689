"""The names of the files in a run's folder. The names in its model folder are in `model_folder`."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from vitkit.errors import VitkitError

# The request and its data.
REQUEST = "request.json"  # the fields that the command set; written first, and the recipe last
RECIPE = "recipe.toml"
SPLIT = "split.json"  # the split of each image, and the beginning of its content's SHA-256
GROUPS = "groups.json"  # images that are not independent: copies of one picture, frames of one scene
LABELS = "labels.csv"  # a copy of the label file at the start
EARLIER_LABELS = "earlier_labels.json"  # labels that images had in earlier runs, and missing test images of those
FINDINGS = "findings.json"  # problems of the data that the doctor found
PRETRAINING = "pretraining.toml"  # for a pre-training: its options and remarks
PREPROCESS = "preprocess.json"  # for a training on a caller's datasets: their preprocessing
EXTENSIONS = "extensions.json"  # the names of the caller's loss, augmentation and optimiser
CLASS_INDICES = "class_indices.json"  # many training scripts write it next to their weights

# The course of the training.
LOG = "log.txt"
METRICS = "metrics.csv"
LAST = Path("checkpoints", "last.ckpt")  # the checkpoint from which the run resumes
BOARD = "tensorboard"  # a folder

# The results.
EVALUATION = "evaluation.json"
OUT_OF_FOLD = "out_of_fold.safetensors"  # for a model without validation images: out-of-fold predictions
PREDICTIONS = "predictions.csv"  # the prediction for each held-out image
FILLER = "pretraining.safetensors"  # for a pre-training: the decoder, which is not part of the model
FOLDS = "folds.json"  # the figures of a cross-validation
REPORT = "report.html"
LABEL_ERRORS = "label_errors.csv"
PICTURES = {  # by their captions in the report
    "Curves": "curves.png",
    "Confusion": "confusion.png",
    "Confidence and accuracy": "reliability.png",
    "ROC and precision-recall": "ranking.png",
    "Images per class": "classes.png",
    "What the model sees in training": "train_batch.png",
}

FILES = (  # the files that a run writes into its folder; a new run in the same folder removes them
    *(REQUEST, RECIPE, PRETRAINING, SPLIT, GROUPS, LABELS),
    *(EARLIER_LABELS, FINDINGS, PREPROCESS, EXTENSIONS, CLASS_INDICES),
    *(LOG, METRICS),
    *(EVALUATION, OUT_OF_FOLD, PREDICTIONS, FILLER, FOLDS, REPORT, LABEL_ERRORS, *PICTURES.values()),
)


def check_run_folder(folder: Path) -> None:
    """Check that a folder contains a recipe. A run writes its recipe before its first step."""
    if (folder / RECIPE).is_file():
        return
    if not folder.is_dir():
        raise VitkitError("system.run-missing", f"there is no folder {folder}: name a run folder, such as runs/NAME-1")
    if (folder / REQUEST).is_file():
        raise VitkitError(
            "system.run-empty",
            f"the run in {folder} was stopped before its first step, so there is nothing to continue: repeat the "
            "command that started it, with --force",
        )
    raise VitkitError(
        "system.run-missing",
        f"{folder} is not a run folder: it has no {RECIPE}; name a run folder, such as runs/NAME-1",
    )


def resume_command(folder: Path) -> str:
    """Return the command that continues the run in a folder. A fold is continued with its cross-validation."""
    folder = run_of_fold(folder) or folder
    verb = "pretrain" if (folder / PRETRAINING).is_file() else "train"
    return f"vitkit {verb} --resume {shlex.quote(str(folder))}"


def fold_folder(folder: Path, fold: int) -> Path:
    """Return the folder of one fold of a cross-validation, counting from 0."""
    return folder / f"fold-{fold + 1}"


def folds_in(folder: Path) -> list[Path]:
    """Return the existing folders of the folds of a cross-validation."""
    return sorted(folder.glob("fold-*"))


def run_of_fold(folder: Path) -> Path | None:
    """Return the folder of the cross-validation that a fold belongs to; None if the folder is not that of a fold."""
    has_name_of_fold = re.fullmatch(r"fold-\d+", folder.name) is not None
    return folder.parent if has_name_of_fold and (folder.parent / RECIPE).is_file() else None
