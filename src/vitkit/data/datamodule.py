"""Batches for training: every sample is a function of (seed, epoch, index), whatever process makes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from lightning import LightningDataModule
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from vitkit.data.augment import Augment, apply_seeded, mix_seeds
from vitkit.data.decode import UnreadableImageError, decode
from vitkit.data.preprocess import Preprocess
from vitkit.data.source import ImageTable
from vitkit.errors import VitkitError


class EvaluationImages(Dataset[tuple[Tensor, int]]):
    """Images as every command but training sees them: (C, height, width) float32 and the label."""

    def __init__(self, table: ImageTable, preprocess: Preprocess) -> None:
        self.table, self.preprocess = table, preprocess

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.from_numpy(self.preprocess(_decode(self, index))), self.table.labels[index]


class TrainingImages(Dataset[tuple[Tensor, int]]):
    """Augmented images, asked for by (epoch, index)."""

    def __init__(self, table: ImageTable, preprocess: Preprocess, augment: Augment, seed: int) -> None:
        self.table, self.preprocess, self.seed = table, preprocess, seed
        self.transform = augment.build(preprocess)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, int]:
        epoch, index = key
        image = apply_seeded(self.transform, _decode(self, index), self.seed, epoch, index)
        return torch.from_numpy(self.preprocess.normalise(image)), self.table.labels[index]


def _decode(images: EvaluationImages | TrainingImages, index: int) -> Image.Image:
    path = images.table.file(index)
    try:
        return decode(path, images.preprocess.short_side)
    except UnreadableImageError as error:  # it was readable when the run began
        raise VitkitError(f"{path}: {error}") from error


class EpochSampler(Sampler[tuple[int, int]]):
    """Yields (epoch, index), shuffled anew each epoch by (seed, epoch). Lightning calls `set_epoch`, on resume too."""

    def __init__(self, length: int, seed: int) -> None:
        self.length, self.seed, self.epoch = length, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[tuple[int, int]]:
        generator = torch.Generator().manual_seed(mix_seeds(self.seed, self.epoch))
        order = torch.randperm(self.length, generator=generator).tolist()
        return iter([(self.epoch, index) for index in order])


class ImageData(LightningDataModule):
    """The train and val splits of a table, batched."""

    def __init__(
        self, table: ImageTable, preprocess: Preprocess, augment: Augment, *, batch_size: int, workers: int, seed: int
    ) -> None:
        super().__init__()
        self.train = TrainingImages(table.of_split("train"), preprocess, augment, seed)
        self.val = EvaluationImages(table.of_split("val"), preprocess)
        self.batch_size, self.workers, self.seed = batch_size, workers, seed

    def train_dataloader(self) -> DataLoader[Any]:
        sampler = EpochSampler(len(self.train), self.seed)
        # A last batch of one image is noise; drop the remainder, unless there is nothing else.
        return self._loader(self.train, sampler=sampler, drop_last=len(self.train) >= self.batch_size)

    def val_dataloader(self) -> DataLoader[Any]:
        return self._loader(self.val)

    def _loader(self, images: Dataset[Any], **options: Any) -> DataLoader[Any]:
        return DataLoader(
            images,
            batch_size=self.batch_size,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            **options,
        )
