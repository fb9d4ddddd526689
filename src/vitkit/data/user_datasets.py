"""Datasets that the user passes: objects that return (image, label) by index, like torchvision's datasets.

If a dataset returns tensors, it has preprocessed its pictures itself, and the trained model must preprocess files in
the same way. This module infers the preprocessing from the dataset's torchvision transforms, and checks it on the
dataset's files. If it cannot be inferred, it is not guessed but reported as unknown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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
from vitkit.data.decode import decode
from vitkit.data.doctor.keypoints import find_keypoints, working_copy
from vitkit.data.file_facts import LEAST_SIDE, THUMBNAIL, Facts
from vitkit.data.loading import Images, apply_seeded
from vitkit.data.picture import flattened
from vitkit.data.preprocess import Fit, Interpolation, Preprocess, scale_text
from vitkit.data.table import ImageTable, check_names, find_lookalikes
from vitkit.errors import VitkitError, first_line
from vitkit.system.progress import progress
from vitkit.text.arguments import is_number

NAME = "datasets given from Python"
_LIBRARIES = ("torchvision", "timm")
_TO_FLOAT = ("ToTensor", "MaybeToTensor", "ConvertImageDtype")  # transforms that scale pixels from 0 ... 255 to 0 ... 1
_NO_CHANGE = ("ToImage", "ToPILImage", "PILToTensor", "MaybePILToTensor", "ToPureTensor", "Identity")
_CHECKED = 3  # pictures with which the preprocessing is checked
_TOLERANCE = 1.0  # of 255 levels: the largest mean difference of such a picture


@dataclass
class _Steps:
    """The combined effect of the transforms that have been read so far."""

    resized: int | tuple[int, int] | None = None  # the short side, or (height, width)
    size: tuple[int, int] | None = None  # (height, width) after these transforms; None if it depends on the picture
    interpolation: Interpolation = "bilinear"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    is_float: bool = False  # whether the pixels have been converted to floats from 0 to 1


def _unknown(reason: str) -> VitkitError:
    return VitkitError("data.preprocess-unknown", reason)


def read_preprocess(dataset: Any, shape: tuple[int, int, int], item: Callable[[int], Any]) -> Preprocess:
    """Infer the preprocessing of a dataset of tensors from its transforms, and check it on the files of some images.

    Args:
        dataset: a dataset with its transforms in the attribute `transform`, as in torchvision, or a subset of such a
            dataset.
        shape: (C, height, width) of its tensors.
        item: a function that returns the dataset's image with the given index.

    Raises:
        VitkitError: the preprocessing cannot be determined; the message is the reason, such as `RandomErasing changes
            pictures at random`.
    """
    transforms, steps = [*_transforms_of(dataset)], _Steps()
    if not transforms:
        raise _unknown("it has no attribute `transform` that describes their preparation")
    for transform in transforms:
        _add_step(steps, transform)
    channels, size = shape[0], shape[1:]
    mean, std = steps.mean or (0.0,), steps.std or (1.0,)
    mean = mean * channels if len(mean) == 1 else mean
    std = std * channels if len(std) == 1 else std
    if not len(mean) == len(std) == channels:
        raise _unknown(f"Normalize has {len(mean)} channels, but the tensors have {channels}")
    if not steps.is_float:
        raise _unknown("no transform scales the pixels to 0 ... 1")
    if steps.resized is None:
        raise _unknown("it has no Resize, so it is unknown how pictures of other sizes are prepared")
    if steps.size not in (None, size):
        raise _unknown(f"its transforms give {steps.size} pixels, but its tensors have {size}")
    preprocess = Preprocess(size=size, fit="squash", interpolation=steps.interpolation, mean=mean, std=std)
    if steps.resized != size:  # there is a crop after Resize
        full_h, full_w = steps.resized if isinstance(steps.resized, tuple) else (steps.resized, steps.resized)
        crop_pct = size[0] / full_h
        if crop_pct != size[1] / full_w or crop_pct > 1:
            raise _unknown(
                f"its tensors have {size} pixels, but a crop after Resize({steps.resized}) must keep the same share of "
                "both sides, at most 1"
            )
        fit: Fit = "crop" if isinstance(steps.resized, int) else "squash_crop"
        preprocess = replace(preprocess, fit=fit, crop_pct=crop_pct)
    for index in np.linspace(0, len(dataset) - 1, _CHECKED).astype(int).tolist() if len(dataset) else ():
        file = _file_of(dataset, index)
        tensor = None if file is None else item(index)
        if file is None or not isinstance(tensor, Tensor):
            continue
        try:
            expected = preprocess(decode(file, preprocess.short_side))
        except VitkitError:  # the file cannot be read
            continue
        difference = (np.abs(expected - tensor.numpy()) * np.array(preprocess.std)[:, None, None] * 255).mean()
        if difference > _TOLERANCE:
            text = f"its tensor of {file.name} differs from what its transforms give"
            raise _unknown(f"{text}, by {difference:.0f} of 255 levels in the mean")
    return preprocess


def read_normalisation(dataset: Any) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return the mean and standard deviation of a dataset's normalisation; None if they are unknown."""
    for transform in _transforms_of(dataset):
        if _is(transform, "Normalize"):
            try:
                return _floats(transform.mean), _floats(transform.std)
            except VitkitError:  # they are not numbers
                return None
    return None


# --- The transforms ------------------------------------------------------------------------------------------


def _transforms_of(dataset: Any) -> Iterator[Any]:
    """Yield a dataset's transforms in the order of application. For a subset, the inner dataset's come first."""
    inner = getattr(dataset, "dataset", None)
    if inner is not None and inner is not dataset:
        yield from _transforms_of(inner)
    remaining = [getattr(dataset, "transform", None)]
    while remaining:
        transform: Any = remaining.pop(0)
        if _is(transform, "Compose"):
            remaining = [*transform.transforms, *remaining]
        elif isinstance(transform, torch.nn.Sequential):
            remaining = [*transform, *remaining]
        elif transform is not None:
            yield transform


def _is(transform: Any, *names: str) -> bool:
    """Return whether a transform is one of the named classes of torchvision or timm."""
    kind = type(transform)
    return kind.__module__.partition(".")[0] in _LIBRARIES and kind.__name__ in names


def _add_step(steps: _Steps, transform: Any) -> None:
    """Add the effect of one transform to `steps`. VitkitError: the effect is unknown."""
    name = type(transform).__name__
    if _is(transform, *_NO_CHANGE) or isinstance(transform, torch.nn.Identity):
        return
    if _is(transform, "Resize"):
        max_size, antialias = getattr(transform, "max_size", None), getattr(transform, "antialias", True)
        _add_resize(steps, transform.size, transform.interpolation, max_size, antialias)
    elif _is(transform, "CenterCrop"):
        _add_crop(steps, transform.size)
    elif _is(transform, *_TO_FLOAT):
        if getattr(transform, "dtype", torch.float32) is not torch.float32:
            raise _unknown(f"{name} converts pixels to {transform.dtype}, not float32")
        steps.is_float = True
    elif _is(transform, "ToDtype"):
        if transform.dtype is not torch.float32 or not (transform.scale or steps.is_float):
            raise _unknown("ToDtype does not scale the pixels to 0 ... 1")
        steps.is_float = True
    elif _is(transform, "Normalize"):
        if steps.mean is not None or not steps.is_float:
            raise _unknown("Normalize is applied to something other than pixels from 0 to 1")
        steps.mean, steps.std = _floats(transform.mean), _floats(transform.std)
    elif _is(transform, "Grayscale") and int(transform.num_output_channels) == 1:
        return  # a preprocessing with one channel does this
    elif _is(transform, "ImageClassification"):  # the transforms of torchvision's published weights
        _add_resize(steps, transform.resize_size, transform.interpolation, None, transform.antialias)
        _add_crop(steps, transform.crop_size)
        steps.is_float, steps.mean, steps.std = True, _floats(transform.mean), _floats(transform.std)
    elif name.startswith(("Random", "AutoAugment", "RandAugment", "TrivialAugment", "AugMix", "ColorJitter")):
        raise _unknown(f"{name} changes pictures at random")
    else:
        raise _unknown(f"vitkit does not know what the transform {name} does")


def _add_resize(steps: _Steps, size: Any, interpolation: Any, max_size: int | None, antialias: bool | None) -> None:
    if steps.resized is not None or steps.mean is not None:
        raise _unknown("pictures are resized twice, or after the normalisation")
    if max_size is not None:
        raise _unknown("Resize with max_size is not supported")
    if steps.is_float and antialias is False:
        raise _unknown("Resize without antialias is not supported")
    sides, name = _sides(size), str(getattr(interpolation, "value", interpolation))
    if name not in ("nearest", "bilinear", "bicubic", "lanczos"):
        raise _unknown(f"Resize with interpolation {name} is not supported")
    steps.size = (sides[0], sides[1]) if len(sides) == 2 else None
    steps.resized = steps.size or sides[0]
    steps.interpolation = name  # type: ignore[assignment]


def _add_crop(steps: _Steps, size: Any) -> None:
    if steps.resized is None:
        raise _unknown("CenterCrop without Resize before it is not supported")
    sides = _sides(size)
    steps.size = (sides[0], sides[-1])


def _sides(size: Any) -> tuple[int, ...]:
    sides = tuple(size) if isinstance(size, Sequence) else (size,)
    if not 1 <= len(sides) <= 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise _unknown(f"the size {size!r:.40} of a transform is not one or two positive whole numbers")
    return sides


def _floats(values: Any) -> tuple[float, ...]:
    numbers = values.tolist() if isinstance(values, (Tensor, np.ndarray)) else values
    numbers = tuple(numbers) if isinstance(numbers, Iterable) else (numbers,)
    if not all(map(is_number, numbers)):
        raise _unknown("the mean or std of Normalize does not consist of numbers")
    return tuple(map(float, numbers))


def _file_of(dataset: Any, index: int) -> Path | None:
    """Return the file of an image of a dataset; None if the dataset does not name it."""
    if (inner := getattr(dataset, "dataset", None)) is not None:
        indices = getattr(dataset, "indices", None)
        return None if indices is None else _file_of(inner, int(indices[index]))
    for name in ("samples", "imgs", "images_path"):
        files = getattr(dataset, name, None)
        if isinstance(files, Sequence):
            entry = files[index] if 0 <= index < len(files) else None
            if isinstance(entry, (tuple, list)) and entry:  # (path, label)
                entry = entry[0]
            return Path(entry) if isinstance(entry, (str, Path)) and Path(entry).is_file() else None
    return None


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
            preprocessing to apply. Every form that `weights.preprocessing` accepts is allowed. None means that it is
            inferred from the datasets' transforms for tensors, and that PIL images get the model's preprocessing.
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
        if (lookalikes := find_lookalikes(names)) is not None:
            raise VitkitError(
                "data.classes-alike",
                f"class_names: {lookalikes[0]!r} and {lookalikes[1]!r} look the same, and differ in {lookalikes[2]}: "
                "rename one",
            )
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
            size, thumbnail = (image.width, image.height), pixels.tobytes()
            facts.append(
                Facts(bytes.fromhex(image.digest), None, "", "", *size, thumbnail=thumbnail, keypoints=image.keypoints)
            )
        return facts

    @property
    def digest(self) -> str:
        """Return a hash of the labels, and also of the images if the datasets return the same images each time."""
        content = (self.table.classes, self.table.labels, self.table.splits, sorted(self.contents.items()))
        return hashlib.sha256(repr(content).encode()).hexdigest()

    def preprocess_of(self, datasets: Datasets, preprocess: Preprocess) -> tuple[Preprocess, list[str]]:
        """Determine the preprocessing with which the trained model must read files. Return it with notes for the user.

        If there are validation images, their transforms decide, because files must be prepared like the images on which
        the model is evaluated. If the transforms cannot be interpreted, `unknown` of the result has the reason.

        Args:
            datasets: the datasets of this survey.
            preprocess: the model's preprocessing, which is returned for PIL images. Its size must be that of the
                tensors (`check`).
        """
        name, dataset = "train", datasets.train
        if datasets.val is not None and "val" in self.table.splits:
            name, dataset = "val", datasets.val
        if all(name != dataset_name for dataset_name, _ in self.shapes):  # it contains PIL images
            return preprocess, []
        try:
            shape = (len(preprocess.mean), *preprocess.size)
            inferred = read_preprocess(dataset, shape, lambda i: read_item(dataset, i, name)[0])
        except VitkitError as error:
            unknown = f"{name} gave tensors, and {error}"
            note = f"note: the model cannot read files: {unknown}; state how files are prepared with preprocess="
            return replace(preprocess, unknown=unknown), [note]
        in_val, in_train = (inferred.mean, inferred.std), read_normalisation(datasets.train)
        if name == "train" or in_train is None or in_train == in_val:
            return inferred, []
        return inferred, [f"problem: train normalises by {scale_text(*in_train)}, and val by {scale_text(*in_val)}"]

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
    names, labels, splits = datasets.names(), list[int](), list[str]()
    contents, shapes = dict[str, str](), dict[tuple[str, tuple[int, ...]], str]()
    fingerprints, lengths = list[Fingerprint](), dict[str, int]()
    by_name = {"train": datasets.train} | ({} if datasets.val is None else {"val": datasets.val})
    for name, dataset in by_name.items():
        try:
            lengths[name] = len(dataset)
        except Exception as error:  # the caller's code may raise anything
            raise VitkitError(
                "data.dataset-length", f"{name} has no length, which a dataset needs: {first_line(error)}"
            ) from error
    if empty := [name for name, length in lengths.items() if length == 0]:
        raise VitkitError("data.images-missing", f"{empty[0]} contains no images")
    for name, dataset in by_name.items():
        for index in range(lengths[name]):
            image, label = read_item(dataset, index, name)
            if not 0 <= label < len(names):
                raise VitkitError(
                    "data.label-invalid",
                    f"{name}[{index}] has label {label}, but there are {len(names)} classes, numbered from 0",
                )
            digest = contents[f"{name}/{index}"] = _content(image)
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
    table = ImageTable(NAME, Path(), names, tuple(contents), tuple(labels), tuple(splits))
    return Survey(table, shared, contents if is_fixed else {}, shapes, tuple(fingerprints))


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
        has_known_range = isinstance(image, Image.Image) and not image.mode.startswith(("I", "F"))
        if has_known_range:  # convert the picture as `decode` converts a file
            image = flattened(ImageOps.exif_transpose(image))[0]
    except Exception as error:  # the caller's code may raise anything, even StopIteration, which would end an epoch
        raise VitkitError("data.dataset-item", f"{where}: {type(error).__name__}: {first_line(error)}") from error
    if isinstance(image, Image.Image) and not has_known_range:
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
