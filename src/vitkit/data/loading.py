"""Batches for training: every sample is a function of (seed, epoch, index), whatever process makes it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from vitkit.data.augment import Augment, apply_seeded, mix_seeds
from vitkit.data.batches import BatchedImages, Images
from vitkit.data.decode import UnreadableImageError, decode
from vitkit.data.image_cache import Keeper, NoKeeper, bytes_of, choose_cache, make_keeper
from vitkit.data.preprocess import Preprocess
from vitkit.data.splits import in_proportion
from vitkit.data.table import ImageTable
from vitkit.errors import ShortageError, VitkitError


class _TableImages(Images):
    """Images that a table names."""

    table: ImageTable

    @property
    def labels(self) -> Sequence[int]:
        """Of the images, as the table has them."""
        return self.table.labels

    @property
    def paths(self) -> Sequence[str]:
        """Of the images, below the data's folder."""
        return self.table.paths

    def __len__(self) -> int:
        return len(self.table)


class EvaluationImages(_TableImages):
    """Images as every command but training sees them: (C, height, width) float32 and the label."""

    def __init__(self, table: ImageTable, preprocess: Preprocess, keeper: Keeper | None = None) -> None:
        self.table, self.preprocess, self.keeper = table, preprocess, keeper or NoKeeper()

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.keeper.picture(
            index,
            self.table.file(index),
            lambda: self.preprocess.resize(_decode(self, index, self.preprocess.short_side)),
        )
        return torch.from_numpy(self.preprocess.normalise(image)), self.table.labels[index]


class TrainingImages(_TableImages):
    """Augmented images, asked for by (epoch, index), or (epoch, index, n) where an epoch shows one n times more."""

    def __init__(
        self, table: ImageTable, preprocess: Preprocess, augment: Augment, seed: int, keeper: Keeper | None = None
    ) -> None:
        self.table, self.preprocess, self.augment, self.seed = table, preprocess, augment, seed
        self.keeper, self.decoded_side = keeper or NoKeeper(), augment.decoded_side(preprocess)
        self.transform, self.transform_pixels = augment.build_random(preprocess), augment.build_pixels()

    def __getitem__(self, key: tuple[int, ...]) -> tuple[Tensor, int]:
        index = key[1]
        picture = self.keeper.picture(
            index,
            self.table.file(index),
            lambda: self.augment.reduce(_decode(self, index, self.decoded_side), self.preprocess),
        )
        return apply_seeded(self._augment, picture, self.seed, *key), self.table.labels[index]

    def _augment(self, image: Image.Image) -> Tensor:
        pixels = torch.from_numpy(self.preprocess.normalise(self.transform(image)))
        return self.transform_pixels(pixels)


def _files(table: ImageTable) -> list[Path]:
    return [table.file(index) for index in range(len(table))]


def _decode(images: EvaluationImages | TrainingImages, index: int, short_side: int) -> Image.Image:
    path = images.table.file(index)
    try:
        return decode(path, short_side)
    except UnreadableImageError as error:  # it was readable when the run began
        raise VitkitError(f"{path}: {error}") from error
    except ShortageError as error:  # a worker process hands on the kinds of errors that others know
        raise VitkitError(str(error)) from error


def _spread(labels: Sequence[int], images: int, seed: int) -> list[int]:
    """At most so many places, drawn at random so that the labels there have their proportions."""
    drawn = torch.randperm(len(labels), generator=torch.Generator().manual_seed(mix_seeds(seed))).tolist()
    return sorted(in_proportion(drawn, labels)[:images])


class ImageData(BatchedImages):
    """The train and val splits of a table, batched.

    Args:
        table: already split.
        preprocess: the model's pixels.
        augment: random changes of training images.
        cache: where decoded pictures are kept for the next epoch (`keeping.choose_cache`); no pixel depends on it.
        seed: of order and augmentation.
        options: of `BatchedImages`.
    """

    train: TrainingImages
    val: EvaluationImages

    def __init__(
        self,
        table: ImageTable,
        preprocess: Preprocess,
        augment: Augment,
        *,
        seed: int,
        cache: str = "none",
        **options: Any,
    ) -> None:
        train = TrainingImages(table.of_split("train"), preprocess, augment, seed)
        val = EvaluationImages(table.of_split("val"), preprocess)
        super().__init__(train, val, table, seed=seed, **options)
        if cache != "none":
            self.cache, self.kept_bytes = self._keep(cache, self.workers, self.process[1])

    def _keep(self, cache: str, workers: int, processes: int) -> tuple[str, int]:
        """Let decoded pictures be kept where they fit: where that is, and how many bytes they take."""
        train, val, preprocess = self.train, self.val, self.train.preprocess
        short_side = train.augment.short_side(preprocess)
        needs = [
            bytes_of(_files(train.table), short_side, preprocess.size if short_side is None else None),
            bytes_of(_files(val.table), None, preprocess.size),
        ]
        cache = choose_cache(cache, sum(needs), workers=workers, processes=processes)
        evaluated = f"evaluation {preprocess.to_dict()}"
        rule = evaluated if short_side is None else f"short side {short_side}, decoded for {train.decoded_side}"
        train.keeper = make_keeper(cache, len(train), needs[0], rule)
        val.keeper = make_keeper(cache, len(val), needs[1], evaluated)
        return cache, sum(needs)

    def sample(self, images: int) -> ImageData:
        """The same training images for one process, and for validation at most so many, classes in their proportions.

        Without validation images they are training images, seen as in evaluation.
        """
        judged = self.val.table if self.has_val else self.train.table
        sampled = copy.copy(self)
        sampled.close()
        sampled.process = (0, 1)
        sampled.val = EvaluationImages(judged.take(_spread(judged.labels, images, self.seed)), self.val.preprocess)
        return sampled
