"""Datasets that the user passes: objects that return (image, label) by index, like torchvision's datasets.

If a dataset returns tensors, it has preprocessed its pictures itself, and the trained model must preprocess files in
the same way. Unless the user states how, the preprocessing of files is unknown, and the model refuses them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader

from vitkit.data.augment import Augment
from vitkit.data.doctor.keypoints import find_keypoints, working_copy
from vitkit.data.file_facts import LEAST_SIDE, THUMBNAIL, Facts
from vitkit.data.loading import Images, apply_seeded
from vitkit.data.picture import flattened
from vitkit.data.preprocess import Preprocess
from vitkit.data.table import ImageTable, check_names, refuse_lookalikes
from vitkit.errors import VitkitError, first_line
from vitkit.system.progress import progress

NAME = "datasets given from Python"
_MODES_OF_UNKNOWN_RANGE = ("I", "F")  # the beginnings of Pillow's modes of integers and floats


class Labelled(Protocol):
    """A map-style dataset that returns an image and its label for each index.

    An image is a PIL image or a float tensor (C, height, width). PIL images are augmented and preprocessed according to
    the recipe. Tensors are used unchanged. A label is a class number.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[Any, int]: ...


@dataclass(frozen=True)
class Datasets:
    """The datasets that the user passes, with their class names and preprocessing.

        import vitkit
        from PIL import Image

        images = [(Image.new("RGB", (16, 16), 99 * (number % 2)), number % 2) for number in range(20)]
        datasets = vitkit.Datasets(images, class_names=("even", "odd"))
        vitkit.train(datasets, vitkit.Recipe(model="vit_micro_patch4_16", weights="none", epochs=1))

    Attributes:
        train: the training images.
        val: the validation images; None if there are none.
        class_names: the class names, in the order of the labels; None to use `train.classes`.
        preprocess: for datasets of tensors, the preprocessing that made the tensors; for datasets of PIL images, the
            preprocessing to apply. Every form that `weights.preprocessing` accepts is allowed. None means that the
            trained model accepts only tensors, or that PIL images get the model's preprocessing.
    """

    train: Labelled
    val: Labelled | None = None
    class_names: Sequence[str] | None = None
    preprocess: Any = None

    def __post_init__(self) -> None:
        for name, dataset in (("train", self.train), ("val", self.val)):
            if isinstance(dataset, DataLoader):
                raise VitkitError(
                    "data.dataset-type", f"{name} is a DataLoader: pass its dataset, as in {name}=loader.dataset"
                )

    def names(self) -> tuple[str, ...]:
        """Return the class names.

        Raises:
            VitkitError: there are no class names, fewer than two of them, or two that are equal or look the same.
        """
        names = self.class_names if self.class_names is not None else getattr(self.train, "classes", None)
        if names is None:
            raise VitkitError(
                "data.class-names-missing",
                "train has no attribute `classes`: pass class_names=, in the order of the labels",
            )
        if isinstance(names, str) or not isinstance(names, Sequence):  # sets have no order
            raise VitkitError(
                "data.class-names-invalid",
                f"class_names must be a list of names, in the order of the labels, not {names!r}",
            )
        names = tuple(map(str, names))
        if len(set(names)) < len(names) or len(names) < 2:
            raise VitkitError(
                "data.class-names-invalid", f"class_names must be two or more different names, not {list(names)}"
            )
        refuse_lookalikes("class_names", names)
        check_names(names)
        return names


class _DatasetImages(Images):
    """The images of a user's dataset, which need not be files."""

    def __init__(self, images: Labelled, labels: Sequence[int], name: str, preprocess: Preprocess) -> None:
        self.images, self.name, self.preprocess = images, name, preprocess
        self.labels, self.paths = labels, tuple(f"{name}/{index}" for index in range(len(labels)))

    def __len__(self) -> int:
        return len(self.labels)

    def item(self, index: int) -> tuple[Image.Image | Tensor, int]:
        image, label = read_item(self.images, index, self.name)
        if label != self.labels[index]:
            raise VitkitError(
                "data.dataset-unstable",
                f"{self.name}[{index}] has label {label} now, and had {self.labels[index]}: an index must always "
                "return the same image",
            )
        return image, label


class EvaluationDataset(_DatasetImages):
    """The images of a user's dataset, preprocessed without random augmentation. Tensors are returned unchanged."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = self.item(index)
        return image if isinstance(image, Tensor) else torch.from_numpy(self.preprocess(image)), label


class TrainingDataset(_DatasetImages):
    """The augmented images of a user's dataset, indexed like `TrainingImages`. Tensors are not augmented."""

    def __init__(
        self, images: Labelled, labels: Sequence[int], name: str, preprocess: Preprocess, augment: Augment, seed: int
    ) -> None:
        super().__init__(images, labels, name, preprocess)
        self.augment, self.seed, self._short_side = augment, seed, augment.short_side(preprocess)
        self.transform, self.transform_pixels = augment.build_random(preprocess), augment.build_pixels()

    def __getitem__(self, key: tuple[int, ...]) -> tuple[Tensor, int]:
        image, label = self.item(key[1])
        if isinstance(image, Tensor):
            return image, label

        def augment(image: Image.Image) -> Tensor:
            reduced = self.preprocess.reduce(image, self._short_side)
            return self.transform_pixels(torch.from_numpy(self.preprocess.normalise(self.transform(reduced))))

        return apply_seeded(augment, image, self.seed, *key), label


@dataclass(frozen=True)
class Fingerprint:
    """The properties by which copies of an image of a dataset are recognised."""

    digest: str  # the SHA-256 of the pixels
    width: int
    height: int
    thumbnail: npt.NDArray[np.generic]  # (16, 16, C), in uint8 for a picture, and in floats for a tensor
    keypoints: bytes  # the result of `keypoints.find_keypoints`; empty if the image is too small


@dataclass(frozen=True)
class Survey:
    """The result of one pass through the user's datasets."""

    table: ImageTable  # with keys such as `train/0` instead of paths
    shared: int  # the number of validation images whose pixels are identical to those of a training image
    contents: dict[str, str]  # digests by key; empty if a dataset returns another image when an index is read again
    shapes: dict[tuple[str, tuple[int, ...]], str]  # the first image by dataset (train or val) and (C, height, width)
    fingerprints: tuple[Fingerprint, ...] = ()  # in the order of the table

    @property
    def is_certain(self) -> bool:
        """Return whether all copies among the images can be recognised.

        This is not certain for tensors, nor for a dataset that returns another image each time an index is read, such
        as a random crop.
        """
        return not self.shapes and bool(self.contents)

    def facts(self, preprocess: Preprocess) -> list[Facts]:
        """Return the `Facts` of each image, by which copies are recognised as for files.

        Tensors are assumed to have the normalisation of `preprocess`, the model's preprocessing.
        """
        facts = []
        for image in self.fingerprints:
            pixels = image.thumbnail
            if pixels.dtype != np.uint8:
                levels = (pixels * np.array(preprocess.std) + np.array(preprocess.mean)) * 255
                pixels = np.round(np.clip(levels, 0, 255)).astype(np.uint8)
            if pixels.shape[2] != 3:
                pixels = np.repeat(pixels.mean(axis=2, keepdims=True).round().astype(np.uint8), 3, axis=2)
            facts.append(
                Facts(
                    digest=bytes.fromhex(image.digest),
                    width=image.width,
                    height=image.height,
                    thumbnail=pixels.tobytes(),
                    keypoints=image.keypoints,
                )
            )
        return facts

    @property
    def digest(self) -> str:
        """Return a hash of the labels, and also of the images if the datasets return the same images each time."""
        content = (self.table.classes, self.table.labels, self.table.splits, sorted(self.contents.items()))
        return hashlib.sha256(repr(content).encode()).hexdigest()

    def check(self, preprocess: Preprocess) -> None:
        """Raise VitkitError if the shape of a tensor differs from the model's input; the message names the tensor."""
        expected = (len(preprocess.mean), *preprocess.size)
        for (_, shape), where in self.shapes.items():
            if shape != expected:
                raise VitkitError(
                    "data.tensor-shape",
                    f"{where} is a tensor of shape {shape}, but the model expects {expected}: resize it",
                )


def survey(datasets: Datasets) -> Survey:
    """Read all images of the datasets once, because labels can be read only together with the images.

    Raises:
        VitkitError: an item is not a pair of an image and a label.
    """
    class_names = datasets.names()
    by_name = {"train": datasets.train}
    if datasets.val is not None:
        by_name["val"] = datasets.val
    lengths: dict[str, int] = {}
    for name, dataset in by_name.items():
        try:
            lengths[name] = len(dataset)
        except Exception as error:  # the caller's code may raise anything
            raise VitkitError(
                "data.dataset-length", f"{name} has no length, which a dataset needs: {first_line(error)}"
            ) from error
    for name, length in lengths.items():
        if length == 0:
            raise VitkitError("data.images-missing", f"{name} contains no images")

    labels: list[int] = []
    splits: list[str] = []
    contents: dict[str, str] = {}
    shapes: dict[tuple[str, tuple[int, ...]], str] = {}
    fingerprints: list[Fingerprint] = []
    for name, dataset in by_name.items():
        for index in range(lengths[name]):
            image, label = read_item(dataset, index, name)
            if not 0 <= label < len(class_names):
                raise VitkitError(
                    "data.label-invalid",
                    f"{name}[{index}] has label {label}, but there are {len(class_names)} classes, numbered from 0",
                )
            digest = _content(image)
            contents[f"{name}/{index}"] = digest
            fingerprints.append(_fingerprint(image, digest))
            if isinstance(image, Tensor):
                shapes.setdefault((name, tuple(image.shape)), f"{name}[{index}]")
            labels.append(label)
            splits.append(name)
            progress("reading labels", len(labels), sum(lengths.values()))

    in_train = {digest for key, digest in contents.items() if key.startswith("train/")}
    shared = sum(digest in in_train for key, digest in contents.items() if key.startswith("val/"))
    is_fixed = all(
        _content(read_item(dataset, 0, name)[0]) == contents[f"{name}/0"] for name, dataset in by_name.items()
    )
    return Survey(
        table=ImageTable(NAME, Path(), class_names, tuple(contents), tuple(labels), tuple(splits)),
        shared=shared,
        contents=contents if is_fixed else {},
        shapes=shapes,
        fingerprints=tuple(fingerprints),
    )


def read_item(dataset: Labelled, index: int, name: str) -> tuple[Image.Image | Tensor, int]:
    """Return an image and its class number. The image is a PIL image in RGB or a float32 tensor (C, height, width).

    Raises:
        VitkitError: the dataset raises an exception, or returns anything but such an image and number; the message
            names the item.
    """
    where = f"{name}[{index}]"
    try:
        item = dataset[index]
        # (None, None) stands for anything else than a pair, which is reported below.
        image, label = item if isinstance(item, Sequence) and len(item) == 2 else (None, None)
        if isinstance(image, Image.Image) and not image.mode.startswith(_MODES_OF_UNKNOWN_RANGE):
            image, _ = flattened(ImageOps.exif_transpose(image))  # as `decode` converts a file
    except Exception as error:  # the caller's code may raise anything, even StopIteration, which would end an epoch
        raise VitkitError("data.dataset-item", f"{where}: {type(error).__name__}: {first_line(error)}") from error
    if isinstance(image, Image.Image) and image.mode.startswith(_MODES_OF_UNKNOWN_RANGE):
        reason = f"{where} is a picture of mode {image.mode}, whose range of numbers is unknown"
        raise VitkitError("data.image-mode", f"{reason}: convert it to 8 bits")
    if image is None or label is None:
        raise VitkitError("data.dataset-item", f"{where} is {type(item).__name__}, not (image, label)")
    if isinstance(label, (Tensor, np.generic, np.ndarray)) and getattr(label, "ndim", 0) == 0:
        label = label.item()
    if not isinstance(label, int) or isinstance(label, bool):
        raise VitkitError("data.label-invalid", f"{where} has label {label!r}: a label must be the number of its class")
    if isinstance(image, Image.Image):
        if not all(image.size):
            raise VitkitError("data.image-empty", f"{where} is a picture without pixels")
        return image, label
    if not isinstance(image, Tensor) or not image.is_floating_point() or image.ndim != 3 or image.is_meta:
        what = f"{image.dtype} {tuple(image.shape)}" if isinstance(image, Tensor) else type(image).__name__
        raise VitkitError(
            "data.dataset-item", f"{where} is {what}: return PIL images, or float tensors (C, height, width)"
        )
    pixels = image.detach().cpu().float()
    if not pixels.isfinite().all():
        raise VitkitError("data.tensor-not-finite", f"{where} contains pixels that are not finite")
    return pixels, label


def _content(image: Image.Image | Tensor) -> str:
    """Return the SHA-256 of the pixels."""
    raw = image.numpy() if isinstance(image, Tensor) else np.asarray(image)
    return hashlib.sha256(repr(raw.shape).encode() + raw.tobytes()).hexdigest()


def _fingerprint(image: Image.Image | Tensor, digest: str) -> Fingerprint:
    if isinstance(image, Tensor):
        thumbnail = F.adaptive_avg_pool2d(image, THUMBNAIL).permute(1, 2, 0).numpy()
        grey = image.mean(dim=0)  # of unknown scale: the minimum becomes black, and the maximum white
        low, high = grey.aminmax()
        picture = Image.fromarray(((grey - low) * (255 / (high - low).clamp(min=1e-6))).round().byte().numpy())
    else:
        thumbnail = np.asarray(image.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX))
        picture = image
    keypoints = find_keypoints([working_copy(picture)])[0] if min(picture.size) >= LEAST_SIDE else b""
    return Fingerprint(digest, *picture.size, thumbnail, keypoints)
