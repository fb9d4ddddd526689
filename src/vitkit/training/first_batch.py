"""Draw the images on which a run trains as the model sees them: augmented, before images are mixed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from vitkit.data.loading import BatchedImages
from vitkit.data.preprocess import Preprocess
from vitkit.data.table import ImageTable
from vitkit.reporting import plots
from vitkit.training.run_folder import Run

_SHOWN = 32  # maximum number of images in train_batch.png


def draw_batch(run: Run, train: ImageTable, preprocess: Preprocess, images: Tensor, rows: Sequence[int]) -> None:
    """Draw the first images of a training batch.

    Args:
        run: the run.
        train: the training images.
        preprocess: the model's preprocessing.
        images: the augmented images of the batch, (B, C, height, width).
        rows: the row of each image in `train`.
    """
    pictures = [preprocess.picture_of(image.numpy()) for image in images[:_SHOWN].float().cpu()]
    titles = [train.name_of(row) or "none" for row in rows[:_SHOWN]]
    sheet = plots.contact_sheet(pictures, titles, "Training images as the model sees them, augmented")
    run.draw("What the model sees in training", sheet)


def draw_some(run: Run, images: Dataset[Any], preprocess: Preprocess) -> None:
    """Draw the same for a run without batches: training images that are chosen at random."""
    train = run.inputs.table.of_split("train")
    rows = np.random.default_rng(run.recipe.seed).permutation(len(train))[:_SHOWN].tolist()
    draw_batch(run, train, preprocess, torch.stack([images[row][0] for row in rows]), rows)


class DrawFirstBatch:
    """A callback that draws the first batch on which a run trains, before images are mixed."""

    def __init__(self, run: Run, data: BatchedImages, preprocess: Preprocess) -> None:
        self._run, self._data, self._preprocess = run, data, preprocess

    def draw_first_batch(self, images: Tensor) -> None:
        """Draw the images of this process, (B, C, height, width)."""
        rows, train = self._data.rows_of_batch(0, 0), self._data.table.of_split("train")
        draw_batch(self._run, train, self._preprocess, images, rows)
