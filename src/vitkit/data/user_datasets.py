"""Datasets of the caller's own: any that give (image, label) by index, as torchvision's do."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitkit.data.augment import Augment, apply_seeded
from vitkit.data.batches import Images
from vitkit.data.preprocess import Preprocess
from vitkit.data.sources import ImageTable
from vitkit.errors import VitkitError
from vitkit.system.progress import Progress

NAME = "datasets given from Python"


class Labelled(Protocol):
    """A map-style dataset: an image and its label for each index.

    An image is a PIL image, which is augmented and preprocessed as the recipe says; or a float tensor (C, height,
    width), which is taken as it is. A label is the number of its class.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[Any, int]: ...


@dataclass(frozen=True)
class Datasets:
    """What a caller gives.

    Attributes:
        train: to learn from.
        val: to judge by; None for nothing.
        class_names: of the labels, in their order; None for `train.classes`.
    """

    train: Labelled
    val: Labelled | None = None
    class_names: Sequence[str] | None = None

    def names(self) -> tuple[str, ...]:
        """The classes.

        Raises:
            VitkitError: nobody names them, or one twice.
        """
        names = self.class_names if self.class_names is not None else getattr(self.train, "classes", None)
        if names is None:
            raise VitkitError("train_dataset has no attribute `classes`: give class_names=, in the order of the labels")
        named = tuple(map(str, names))
        if len(set(named)) < len(named) or len(named) < 2:
            raise VitkitError(f"class_names must be two or more different names, not {list(named)}")
        return named


class _Images(Images):
    """Images of a dataset of the caller's, and what is known of them without files."""

    def __init__(self, images: Labelled, labels: Sequence[int], name: str, preprocess: Preprocess) -> None:
        self.images, self.name, self.preprocess = images, name, preprocess
        self._labels, self._paths = labels, tuple(f"{name}/{index}" for index in range(len(labels)))

    @property
    def labels(self) -> Sequence[int]:
        return self._labels

    @property
    def paths(self) -> Sequence[str]:
        return self._paths

    def __len__(self) -> int:
        return len(self._labels)

    def fitting(self, image: Any, index: int) -> Tensor:
        """A tensor of the caller's, if it is what the model reads.

        Raises:
            VitkitError: it is not.
        """
        expected = (len(self.preprocess.mean), *self.preprocess.size)
        if not isinstance(image, Tensor) or not image.is_floating_point() or tuple(image.shape) != expected:
            what = f"{image.dtype} {tuple(image.shape)}" if isinstance(image, Tensor) else type(image).__name__
            raise VitkitError(
                f"{self.name}_dataset[{index}] is {what}: give PIL images, or float tensors of shape {expected}"
            )
        return image


class EvaluationOf(_Images):
    """As every command but training sees them."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, _ = self.images[index]
        if not isinstance(image, Image.Image):
            return self.fitting(image, index), self.labels[index]
        return torch.from_numpy(self.preprocess(image.convert("RGB"))), self.labels[index]


class TrainingOf(_Images):
    """Augmented, asked for as `TrainingImages`; tensors are the caller's own affair."""

    def __init__(
        self, images: Labelled, labels: Sequence[int], name: str, preprocess: Preprocess, augment: Augment, seed: int
    ) -> None:
        super().__init__(images, labels, name, preprocess)
        self.augment, self.seed = augment, seed
        self.transform, self.transform_pixels = augment.build_random(preprocess), augment.build_pixels()

    def __getitem__(self, key: tuple[int, ...]) -> tuple[Tensor, int]:
        image, _ = self.images[key[1]]
        if not isinstance(image, Image.Image):
            return self.fitting(image, key[1]), self.labels[key[1]]
        reduced = self.augment.reduce(image.convert("RGB"), self.preprocess)
        return apply_seeded(self._augment, reduced, self.seed, *key), self.labels[key[1]]

    def _augment(self, image: Image.Image) -> Tensor:
        return self.transform_pixels(torch.from_numpy(self.preprocess.normalise(self.transform(image))))


@dataclass(frozen=True)
class Survey:
    """What one pass over the datasets tells.

    Attributes:
        table: of stand-ins for files: `train/0` and so on, with labels and splits.
        shared: how many validation pictures are training pictures too, byte for byte.
        digest: of labels.
    """

    table: ImageTable
    shared: int
    digest: str


def survey(datasets: Datasets, progress: Progress) -> Survey:
    """One pass over all images: a dataset need not say its labels in any other way."""
    names, labels, paths, splits = datasets.names(), list[int](), list[str](), list[str]()
    seen: dict[str, set[bytes]] = {"train": set(), "val": set()}
    total, shared = len(datasets.train) + (0 if datasets.val is None else len(datasets.val)), 0
    for name, dataset in (("train", datasets.train), ("val", datasets.val)):
        for index in range(0 if dataset is None else len(dataset)):
            assert dataset is not None
            image, label = _item(dataset, index, name)
            if not 0 <= label < len(names):
                raise VitkitError(f"{name}_dataset[{index}] has label {label}, but there are {len(names)} classes")
            content = _content(image)
            shared += name == "val" and content in seen["train"]
            seen[name].add(content)
            labels.append(label)
            paths.append(f"{name}/{index}")
            splits.append(name)
            progress("reading labels", len(labels), total)
    table = ImageTable(NAME, Path(), names, tuple(paths), tuple(labels), tuple(splits))
    return Survey(table, shared, hashlib.sha256(repr((names, labels, splits)).encode()).hexdigest())


def _item(dataset: Labelled, index: int, name: str) -> tuple[Any, int]:
    item = dataset[index]
    if not isinstance(item, Sequence) or len(item) != 2:
        raise VitkitError(f"{name}_dataset[{index}] is {type(item).__name__}, not (image, label)")
    image, label = item
    if isinstance(label, (Tensor, np.generic)) and getattr(label, "ndim", 0) == 0:
        label = label.item()
    if not isinstance(label, int) or isinstance(label, bool):
        raise VitkitError(f"{name}_dataset[{index}] has label {label!r}: a label must be the number of its class")
    return image, label


def _content(image: Any) -> bytes:
    raw = image.numpy().tobytes() if isinstance(image, Tensor) else np.asarray(image).tobytes()
    return hashlib.sha256(raw).digest()
