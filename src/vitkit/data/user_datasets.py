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
from vitkit.data.preprocess import Interpolation, Preprocess
from vitkit.data.table import ImageTable, alike, check_names
from vitkit.errors import VitkitError, first_line
from vitkit.system.progress import progress
from vitkit.text.arguments import is_number

_LIBRARIES = ("torchvision", "timm")
_TO_FLOAT = ("ToTensor", "MaybeToTensor", "ConvertImageDtype")  # from 0 to 255 -> from 0 to 1
_SAME = ("ToImage", "ToPILImage", "PILToTensor", "MaybePILToTensor", "ToPureTensor", "Identity")
_PATHS = ("samples", "imgs", "images_path")  # attributes in which datasets keep the paths of their pictures
_TRIED = 3  # pictures with which the preprocessing is checked
_LEVELS = 1.0  # of 255; the largest mean difference of such a picture


@dataclass
class _Steps:
    """The preprocessing that a chain of transforms performs, as far as the chain has been read.

    Attributes:
        resized: the short side, or the (height, width), to which pictures are resized; None if there was no resize yet.
        size: (height, width) after the transforms that have been read; None if it depends on the picture.
        interpolation: the interpolation of the resize.
        mean, std: the normalisation; None if there was none yet.
        is_float: whether the pixels have been converted to floats from 0 to 1.
    """

    resized: int | tuple[int, int] | None = None
    size: tuple[int, int] | None = None
    interpolation: Interpolation = "bilinear"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    is_float: bool = False


class _UnknownError(Exception):
    """The preprocessing of a dataset cannot be expressed as a `Preprocess`. The message is the reason."""


def read_preprocess(dataset: Any, shape: tuple[int, int, int], item: Callable[[int], Any]) -> Preprocess:
    """Infer the preprocessing of a dataset of tensors from its transforms.

    Args:
        dataset: a dataset with its transforms in the attribute `transform`, as in torchvision, or a subset of such a
            dataset.
        shape: (C, height, width) of its tensors.
        item: a function that returns the image of the dataset at an index.

    Raises:
        VitkitError: the preprocessing cannot be determined; the message is the reason, such as `RandomErasing changes
            pictures at random`.
    """
    try:
        steps = _Steps()
        transforms = [*_transforms_of(dataset)]
        if not transforms:
            raise _UnknownError("it has no attribute `transform` that describes their preparation")
        for step in transforms:
            _read(step, steps)
        preprocess = _preprocess_of(steps, shape)
        _try_on_files(dataset, preprocess, item)
    except _UnknownError as error:
        raise VitkitError(str(error)) from None
    return preprocess


def read_scale(dataset: Any) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return the mean and standard deviation of a dataset's normalisation; None if they are unknown."""
    scales = [(step.mean, step.std) for step in _transforms_of(dataset) if _is(step, "Normalize")]
    try:
        (mean, std), *_ = [(_floats(mean), _floats(std)) for mean, std in scales]
    except (ValueError, _UnknownError):
        return None
    return mean, std


# --- The transforms ------------------------------------------------------------------------------------------


def _transforms_of(dataset: Any) -> Iterator[Any]:
    """Yield a dataset's transforms in the order of application.

    If the dataset is a subset of another dataset, the transforms of the other dataset come first.
    """
    below = getattr(dataset, "dataset", None)
    if below is not None and below is not dataset:
        yield from _transforms_of(below)
    transform = getattr(dataset, "transform", None)
    if transform is not None:
        yield from _flat(transform)


def _flat(transform: Any) -> Iterator[Any]:
    if _is(transform, "Compose"):
        for step in transform.transforms:
            yield from _flat(step)
    elif isinstance(transform, torch.nn.Sequential):
        for step in transform:
            yield from _flat(step)
    else:
        yield transform


def _is(step: Any, *names: str) -> bool:
    kind = type(step)
    return kind.__module__.partition(".")[0] in _LIBRARIES and kind.__name__ in names


def _read(step: Any, steps: _Steps) -> None:
    name = type(step).__name__
    if _is(step, *_SAME) or isinstance(step, torch.nn.Identity):
        return
    if _is(step, "Resize"):
        _resize(steps, step.size, step.interpolation, getattr(step, "max_size", None), getattr(step, "antialias", True))
    elif _is(step, "CenterCrop"):
        _crop(steps, step.size)
    elif _is(step, *_TO_FLOAT):
        if getattr(step, "dtype", torch.float32) is not torch.float32:
            raise _UnknownError(f"{name} converts pixels to {step.dtype}, not float32")
        steps.is_float = True
    elif _is(step, "ToDtype"):
        if step.dtype is not torch.float32 or not (step.scale or steps.is_float):
            raise _UnknownError("ToDtype does not scale the pixels to 0 ... 1")
        steps.is_float = True
    elif _is(step, "Normalize"):
        if steps.mean is not None or not steps.is_float:
            raise _UnknownError("Normalize is applied to something other than pixels from 0 to 1")
        steps.mean, steps.std = _floats(step.mean), _floats(step.std)
    elif _is(step, "Grayscale") and int(step.num_output_channels) == 1:
        return  # included in a preprocessing with one channel
    elif _is(step, "ImageClassification"):  # the transforms of torchvision's published weights
        size = _sides(step.resize_size)
        _resize(steps, list(size) if len(size) == 2 else size[0], step.interpolation, None, step.antialias)
        _crop(steps, step.crop_size)
        steps.is_float, steps.mean, steps.std = True, _floats(step.mean), _floats(step.std)
    elif name.startswith(("Random", "AutoAugment", "RandAugment", "TrivialAugment", "AugMix", "ColorJitter")):
        raise _UnknownError(f"{name} changes pictures at random")
    else:
        raise _UnknownError(f"vitkit does not know what the transform {name} does")


def _resize(steps: _Steps, size: Any, interpolation: Any, longest: int | None, antialias: bool | None) -> None:
    if steps.resized is not None or steps.mean is not None:
        raise _UnknownError("pictures are resized twice, or after the normalisation")
    if longest is not None:
        raise _UnknownError("Resize with max_size is not supported")
    if steps.is_float and antialias is False:
        raise _UnknownError("Resize without antialias is not supported")
    sides = _sides(size)
    filter_of = str(getattr(interpolation, "value", interpolation))
    if filter_of not in ("nearest", "bilinear", "bicubic", "lanczos"):
        raise _UnknownError(f"Resize with interpolation {filter_of} is not supported")
    steps.resized = (sides[0], sides[1]) if len(sides) == 2 else sides[0]
    steps.size = (sides[0], sides[1]) if len(sides) == 2 else None
    steps.interpolation = filter_of  # type: ignore[assignment]


def _crop(steps: _Steps, size: Any) -> None:
    if steps.resized is None:
        raise _UnknownError("CenterCrop without Resize before it is not supported")
    sides = _sides(size)
    steps.size = (sides[0], sides[-1])


def _sides(size: Any) -> tuple[int, ...]:
    sides = tuple(size) if isinstance(size, Sequence) else (size,)
    if not 1 <= len(sides) <= 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise _UnknownError(f"the size {size!r:.40} of a transform is not one or two positive whole numbers")
    return sides


def _floats(values: Any) -> tuple[float, ...]:
    values_list = values.tolist() if isinstance(values, (Tensor, np.ndarray)) else values
    if not isinstance(values_list, Iterable):
        values_list = (values_list,)
    numbers = tuple(values_list)
    if not all(map(is_number, numbers)):
        raise _UnknownError("the mean or std of Normalize does not consist of numbers")
    return tuple(map(float, numbers))


def _preprocess_of(steps: _Steps, shape: tuple[int, int, int]) -> Preprocess:
    channels, *size = shape
    mean, std = steps.mean or (0.0,), steps.std or (1.0,)
    mean, std = (numbers * channels if len(numbers) == 1 else numbers for numbers in (mean, std))
    if not len(mean) == len(std) == channels:
        raise _UnknownError(f"Normalize has {len(mean)} channels, but the tensors have {channels}")
    if not steps.is_float:
        raise _UnknownError("no transform scales the pixels to 0 ... 1")
    if steps.resized is None:
        raise _UnknownError("it has no Resize, so it is unknown how pictures of other sizes are prepared")
    both = (size[0], size[1])
    if steps.size not in (None, both):
        raise _UnknownError(f"its transforms give {steps.size} pixels, but its tensors have {both}")
    plain = Preprocess(size=both, fit="squash", interpolation=steps.interpolation, mean=mean, std=std)
    if steps.resized == both:
        return plain
    full = steps.resized if isinstance(steps.resized, tuple) else (steps.resized, steps.resized)
    shares = [kept / side for kept, side in zip(both, full, strict=True)]
    if shares[0] != shares[1] or not shares[0] <= 1:
        raise _UnknownError(
            f"its tensors have {both} pixels, but a crop after Resize({steps.resized}) must keep the same share of "
            "both sides, at most 1"
        )
    return replace(plain, fit="crop" if isinstance(steps.resized, int) else "squash_crop", crop_pct=shares[0])


# --- The files -----------------------------------------------------------------------------------------------


def _try_on_files(dataset: Any, preprocess: Preprocess, item: Callable[[int], Any]) -> None:
    """Check that preprocessing the readable files of some images gives the same tensors as the dataset."""
    for index in np.linspace(0, len(dataset) - 1, _TRIED).astype(int).tolist() if len(dataset) else ():
        file = _file_of(dataset, index)
        pixels_of_item = None if file is None else item(index)
        if file is None or not isinstance(pixels_of_item, Tensor):
            continue
        try:
            expected = preprocess(decode(file, preprocess.short_side))
        except VitkitError:
            continue
        gap = np.abs(expected - pixels_of_item.numpy()) * np.array(preprocess.std)[:, None, None] * 255
        if gap.mean() > _LEVELS:
            raise _UnknownError(
                f"its tensor of {file.name} differs from what its transforms give, by {gap.mean():.0f} of 255 "
                "levels in the mean"
            )


def _file_of(dataset: Any, index: int) -> Path | None:
    below = getattr(dataset, "dataset", None)
    if below is not None:
        indices = getattr(dataset, "indices", None)
        return None if indices is None else _file_of(below, int(indices[index]))
    paths = next(
        (candidate for name in _PATHS if isinstance(candidate := getattr(dataset, name, None), Sequence)), None
    )
    if paths is None or not 0 <= index < len(paths):
        return None
    entry = paths[index]
    entry = entry[0] if isinstance(entry, (tuple, list)) and entry else entry
    return Path(entry) if isinstance(entry, (str, Path)) and Path(entry).is_file() else None


NAME = "datasets given from Python"


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
                raise VitkitError(f"{name} is a DataLoader: pass its dataset, as in {name}=loader.dataset")

    def names(self) -> tuple[str, ...]:
        """Return the class names.

        Raises:
            VitkitError: there are no class names, fewer than two of them, or two that are equal or look the same.
        """
        names = self.class_names if self.class_names is not None else getattr(self.train, "classes", None)
        if names is None:
            raise VitkitError("train has no attribute `classes`: pass class_names=, in the order of the labels")
        if isinstance(names, str) or not isinstance(names, Sequence):  # sets have no order
            raise VitkitError(f"class_names must be a list of names, in the order of the labels, not {names!r}")
        named = tuple(map(str, names))
        if len(set(named)) < len(named) or len(named) < 2:
            raise VitkitError(f"class_names must be two or more different names, not {list(named)}")
        if (twins := alike(named)) is not None:
            raise VitkitError(
                f"class_names: {twins[0]!r} and {twins[1]!r} look the same, and differ in {twins[2]}: rename one"
            )
        check_names(named)
        return named


class _DatasetImages(Images):
    """The images of a user's dataset, which need not be files."""

    def __init__(self, images: Labelled, labels: Sequence[int], name: str, preprocess: Preprocess) -> None:
        self.images, self.name, self.preprocess = images, name, preprocess
        self.labels, self.paths = labels, tuple(f"{name}/{index}" for index in range(len(labels)))

    def __len__(self) -> int:
        return len(self.labels)

    def item(self, index: int) -> tuple[Image.Image | Tensor, int]:
        """Return the image and label at an index, after checking that the label has not changed."""
        image, label = item_of(self.images, index, self.name)
        if label != (before := self.labels[index]):
            raise VitkitError(
                f"{self.name}[{index}] has label {label} now, and had {before}: an index must "
                "always return the same image"
            )
        return image, label


class EvaluationOf(_DatasetImages):
    """The images of a user's dataset, preprocessed without random augmentation. Tensors are returned unchanged."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = self.item(index)
        return image if isinstance(image, Tensor) else torch.from_numpy(self.preprocess(image)), label


class TrainingOf(_DatasetImages):
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
        return apply_seeded(self._prepared, image, self.seed, *key), label

    def _prepared(self, image: Image.Image) -> Tensor:
        reduced = self.preprocess.reduce(image, self._short_side)
        return self.transform_pixels(torch.from_numpy(self.preprocess.normalise(self.transform(reduced))))


@dataclass(frozen=True)
class Fingerprint:
    """The properties by which copies of an image of a dataset are recognised.

    Attributes:
        digest: the SHA-256 of the pixels.
        width, height: the size of the image in pixels.
        thumbnail: the thumbnail (16, 16, C), in uint8 for a picture, and in floats for a tensor.
        keypoints: the result of `keypoints.find_keypoints`; empty if the image is too small.
    """

    digest: str
    width: int
    height: int
    thumbnail: npt.NDArray[np.generic]
    keypoints: bytes


@dataclass(frozen=True)
class Survey:
    """The result of one pass through the user's datasets.

    Attributes:
        table: the table of the images, with keys such as `train/0` instead of paths.
        shared: the number of validation images whose pixels are identical to those of a training image.
        contents: the digest of each image by its key; empty if a dataset returns another image when an index is read
            again.
        shapes: for each shape of tensors, the name of the first image with this shape. The keys are pairs of the
            dataset, `train` or `val`, and the shape (C, height, width).
        looks: the fingerprint of each image, in the order of the table.
    """

    table: ImageTable
    shared: int
    contents: dict[str, str]
    shapes: dict[tuple[str, tuple[int, ...]], str]
    looks: tuple[Fingerprint, ...] = ()

    @property
    def is_certain(self) -> bool:
        """Return whether all copies among the images can be recognised.

        Copies may be missed if there are tensors. They may also be missed if a dataset returns another image each time
        it is read, for example a random crop.
        """
        return not self.shapes and bool(self.contents)

    def facts(self, preprocess: Preprocess) -> list[Facts]:
        """Return the `Facts` of each image, by which copies are recognised as for files.

        Args:
            preprocess: the model's preprocessing. Tensors are assumed to have the same normalisation.
        """
        facts = []
        for look in self.looks:
            pixels = look.thumbnail
            if pixels.dtype != np.uint8:
                levels = (pixels * np.array(preprocess.std) + np.array(preprocess.mean)) * 255
                pixels = np.round(np.clip(levels, 0, 255)).astype(np.uint8)
            if pixels.shape[2] != 3:
                pixels = np.repeat(pixels.mean(axis=2, keepdims=True).round().astype(np.uint8), 3, axis=2)
            digest, thumbnail = bytes.fromhex(look.digest), pixels.tobytes()
            size = (look.width, look.height)
            facts.append(Facts(digest, None, "", "", *size, thumbnail=thumbnail, keypoints=look.keypoints))
        return facts

    @property
    def digest(self) -> str:
        """Return a hash of the labels. It includes the images if the datasets return the same images each time."""
        whole = (self.table.classes, self.table.labels, self.table.splits, sorted(self.contents.items()))
        return hashlib.sha256(repr(whole).encode()).hexdigest()

    def preprocess_of(self, datasets: Datasets, preprocess: Preprocess) -> tuple[Preprocess, list[str]]:
        """Determine the preprocessing with which the trained model must read files. Return it with notes for the user.

        If there are validation images, their transforms decide, because files must be prepared like the images on which
        the model is evaluated.

        Args:
            datasets: the datasets of this survey.
            preprocess: the model's preprocessing, which is returned for PIL images. Its size must be that of the
                tensors (`check`).

        Returns:
            The preprocessing and the notes. If the transforms cannot be interpreted, the preprocessing's attribute
            `unknown` has the reason.
        """
        name, dataset = "train", datasets.train
        if datasets.val is not None and "val" in self.table.splits:
            name, dataset = "val", datasets.val
        if name not in {each for each, _ in self.shapes}:
            return preprocess, []
        try:
            read = read_preprocess(
                dataset, (len(preprocess.mean), *preprocess.size), lambda i: item_of(dataset, i, name)[0]
            )
        except VitkitError as error:
            unknown = f"{name} gave tensors, and {error}"
            note = f"note: the model cannot read files: {unknown}; state how files are prepared with preprocess="
            return replace(preprocess, unknown=unknown), [note]
        judged, learned = (read.mean, read.std), read_scale(datasets.train)
        if name == "train" or learned is None or learned == judged:
            return read, []
        theirs, ours = (f"mean {_numbers(mean)}, std {_numbers(std)}" for mean, std in (learned, judged))
        return read, [f"problem: train normalises by {theirs}, and val by {ours}"]

    def check(self, preprocess: Preprocess) -> None:
        """Refuse tensors whose shape differs from the model's input.

        Raises:
            VitkitError: a tensor has another shape; the message names the first such tensor.
        """
        expected = (len(preprocess.mean), *preprocess.size)
        for (_, shape), where in self.shapes.items():
            if shape != expected:
                raise VitkitError(f"{where} is a tensor of shape {shape}, but the model expects {expected}: resize it")


def survey(datasets: Datasets) -> Survey:
    """Read all images of the datasets once, because labels can be read only together with the images.

    Raises:
        VitkitError: an item is not a pair of an image and a label.
    """
    names, labels, splits = datasets.names(), list[int](), list[str]()
    contents, shapes = dict[str, str](), dict[tuple[str, tuple[int, ...]], str]()
    looks: list[Fingerprint] = []
    named_datasets = {"train": datasets.train} | ({} if datasets.val is None else {"val": datasets.val})
    lengths = dict[str, int]()
    for name, dataset in named_datasets.items():
        try:
            lengths[name] = len(dataset)
        except Exception as error:  # the caller's code may raise anything
            raise VitkitError(f"{name} has no length, which a dataset needs: {first_line(error)}") from error
    for name, length in lengths.items():
        if length == 0:
            raise VitkitError(f"{name} contains no images")
    for name, dataset in named_datasets.items():
        for index in range(lengths[name]):
            image, label = item_of(dataset, index, name)
            if not 0 <= label < len(names):
                raise VitkitError(
                    f"{name}[{index}] has label {label}, but there are {len(names)} classes, numbered from 0"
                )
            contents[f"{name}/{index}"] = _content(image)
            looks.append(_fingerprint(image, contents[f"{name}/{index}"]))
            if isinstance(image, Tensor):
                shapes.setdefault((name, tuple(image.shape)), f"{name}[{index}]")
            labels.append(label)
            splits.append(name)
            progress("reading labels", len(labels), sum(lengths.values()))
    trained = {digest for path, digest in contents.items() if path.startswith("train/")}
    shared = sum(digest in trained for path, digest in contents.items() if path.startswith("val/"))
    is_fixed = all(
        _content(item_of(dataset, 0, name)[0]) == contents[f"{name}/0"]
        for name, dataset in named_datasets.items()
        if lengths[name]
    )
    table = ImageTable(NAME, Path(), names, tuple(contents), tuple(labels), tuple(splits))
    return Survey(table, shared, contents if is_fixed else {}, shapes, tuple(looks))


def item_of(dataset: Labelled, index: int, name: str) -> tuple[Image.Image | Tensor, int]:
    """Return an image and its class number. The image is a PIL image in RGB or a float32 tensor (C, height, width).

    Raises:
        VitkitError: the dataset raises an exception, or returns anything but such an image and number; the message
            names the item.
    """
    where = f"{name}[{index}]"
    try:
        item = dataset[index]
        image, label = item if isinstance(item, Sequence) and len(item) == 2 else (None, None)
        if isinstance(image, Image.Image):  # as `decode` converts a file
            if image.mode.startswith(("I", "F")):
                raise VitkitError(
                    f"a picture of mode {image.mode}, whose range of numbers is unknown: convert it to 8 bits"
                )
            image = flattened(ImageOps.exif_transpose(image))[0]
    except Exception as error:  # the caller's code may raise anything, even StopIteration, which would end an epoch
        raise VitkitError(f"{where}: {type(error).__name__}: {first_line(error)}") from error
    if image is None or label is None:
        raise VitkitError(f"{where} is {type(item).__name__}, not (image, label)")
    if isinstance(label, (Tensor, np.generic, np.ndarray)) and getattr(label, "ndim", 0) == 0:
        label = label.item()
    if not isinstance(label, int) or isinstance(label, bool):
        raise VitkitError(f"{where} has label {label!r}: a label must be the number of its class")
    if isinstance(image, Image.Image):
        if not all(image.size):
            raise VitkitError(f"{where} is a picture without pixels")
        return image, label
    if not isinstance(image, Tensor) or not image.is_floating_point() or image.ndim != 3 or image.is_meta:
        what = f"{image.dtype} {tuple(image.shape)}" if isinstance(image, Tensor) else type(image).__name__
        raise VitkitError(f"{where} is {what}: return PIL images, or float tensors (C, height, width)")
    pixels = image.detach().cpu().float()
    if not pixels.isfinite().all():
        raise VitkitError(f"{where} contains pixels that are not finite")
    return pixels, label


def _numbers(values: tuple[float, ...]) -> str:
    return "/".join(f"{value:.4g}" for value in values)


def _content(image: Image.Image | Tensor) -> str:
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
