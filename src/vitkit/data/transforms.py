"""The preprocessing that torchvision's transforms of a dataset amount to, read from them and tried on its files.

A dataset that gives tensors has prepared its pictures itself. Whoever asks the trained model about a file must prepare
it alike, or gets another answer without a word, so what cannot be read here is never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitkit.data.decode import decode
from vitkit.data.preprocess import Interpolation, Preprocess
from vitkit.errors import VitkitError
from vitkit.text.fields import is_number

_LIBRARIES = ("torchvision", "timm")
_TO_FLOAT = ("ToTensor", "MaybeToTensor", "ConvertImageDtype")  # from 0 to 255 -> from 0 to 1
_SAME = ("ToImage", "ToPILImage", "PILToTensor", "MaybePILToTensor", "ToPureTensor", "Identity")
_PATHS = ("samples", "imgs", "images_path")  # where datasets of folders keep the paths of their pictures
_TRIED = 3  # pictures that are prepared both ways
_LEVELS = 1.0  # of 255, by which these may differ in the mean


@dataclass
class _Steps:
    """What a chain of transforms does, as far as it has been read.

    Attributes:
        resized: the short side, or (height, width), that pictures are brought to; None: not yet.
        size: (height, width) after all steps; None: it depends on the picture.
        interpolation: of the resizing.
        mean, std: of the normalisation; None: there is none so far.
        is_float: whether the pixels are from 0 to 1 by now.
    """

    resized: int | tuple[int, int] | None = None
    size: tuple[int, int] | None = None
    interpolation: Interpolation = "bilinear"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    is_float: bool = False


class _UnknownError(Exception):
    """What a transform does cannot be said as a `Preprocess`."""


def read_preprocess(dataset: Any, shape: tuple[int, int, int], item: Callable[[int], Any]) -> Preprocess:
    """How a dataset of tensors prepares its pictures.

    Args:
        dataset: as torchvision's, with the transforms in `transform`; or a subset of such a dataset.
        shape: (C, height, width) of its tensors.
        item: what it gives at a place.

    Raises:
        VitkitError: it cannot be read; the reason stands alone, such as `RandomErasing changes pictures at random`.
    """
    try:
        steps = _Steps()
        transforms = [*_transforms_of(dataset)]
        if not transforms:
            raise _UnknownError("it has no attribute `transform` that says so")
        for step in transforms:
            _read(step, steps)
        found = _preprocess_of(steps, shape)
        _try_on_files(dataset, found, item)
    except _UnknownError as error:
        raise VitkitError(str(error)) from None
    return found


def read_scale(dataset: Any) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and standard deviation by which a dataset's transforms normalise; None where they do not, or hide it."""
    found = [(step.mean, step.std) for step in _transforms_of(dataset) if _is(step, "Normalize")]
    try:
        (mean, std), *_ = [(_numbers(mean), _numbers(std)) for mean, std in found]
    except (ValueError, _UnknownError):
        return None
    return mean, std


# --- The transforms ------------------------------------------------------------------------------------------


def _transforms_of(dataset: Any) -> Iterator[Any]:
    """The single transforms in the order in which they are applied, those of the dataset below a subset first."""
    below = getattr(dataset, "dataset", None)
    if below is not None and below is not dataset:
        yield from _transforms_of(below)
    own = getattr(dataset, "transform", None)
    if own is not None:
        yield from _flat(own)


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
            raise _UnknownError(f"{name} makes {step.dtype}")
        steps.is_float = True
    elif _is(step, "ToDtype"):
        if step.dtype is not torch.float32 or not (step.scale or steps.is_float):
            raise _UnknownError("ToDtype makes no numbers from 0 to 1 of the pixels")
        steps.is_float = True
    elif _is(step, "Normalize"):
        if steps.mean is not None or not steps.is_float:
            raise _UnknownError("Normalize is given something else than pixels from 0 to 1")
        steps.mean, steps.std = _numbers(step.mean), _numbers(step.std)
    elif _is(step, "Grayscale") and int(step.num_output_channels) == 1:
        return  # which a preprocessing for one channel does
    elif _is(step, "ImageClassification"):  # of torchvision's published weights
        size = _sides(step.resize_size)
        _resize(steps, list(size) if len(size) == 2 else size[0], step.interpolation, None, step.antialias)
        _crop(steps, step.crop_size)
        steps.is_float, steps.mean, steps.std = True, _numbers(step.mean), _numbers(step.std)
    elif name.startswith(("Random", "AutoAugment", "RandAugment", "TrivialAugment", "AugMix", "ColorJitter")):
        raise _UnknownError(f"{name} changes pictures at random")
    else:
        raise _UnknownError(f"what {name} does cannot be read")


def _resize(steps: _Steps, size: Any, interpolation: Any, longest: int | None, antialias: bool | None) -> None:
    if steps.resized is not None or steps.mean is not None:
        raise _UnknownError("pictures are resized twice, or after the normalisation")
    if longest is not None:
        raise _UnknownError("Resize has max_size")
    if steps.is_float and antialias is False:
        raise _UnknownError("Resize without antialias")
    sides = _sides(size)
    filter_of = str(getattr(interpolation, "value", interpolation))
    if filter_of not in ("nearest", "bilinear", "bicubic", "lanczos"):
        raise _UnknownError(f"Resize with interpolation {filter_of}")
    steps.resized = (sides[0], sides[1]) if len(sides) == 2 else sides[0]
    steps.size = (sides[0], sides[1]) if len(sides) == 2 else None
    steps.interpolation = filter_of  # type: ignore[assignment]


def _crop(steps: _Steps, size: Any) -> None:
    if steps.resized is None:
        raise _UnknownError("CenterCrop without Resize before it")
    sides = _sides(size)
    steps.size = (sides[0], sides[-1])


def _sides(size: Any) -> tuple[int, ...]:
    sides = tuple(size) if isinstance(size, Sequence) else (size,)
    if not 1 <= len(sides) <= 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise _UnknownError(f"size {size!r:.40}")
    return sides


def _numbers(values: Any) -> tuple[float, ...]:
    own = values.tolist() if isinstance(values, (Tensor, np.ndarray)) else values
    if not isinstance(own, Iterable):
        own = (own,)
    numbers = tuple(own)
    if not all(map(is_number, numbers)):
        raise _UnknownError("Normalize without numbers")
    return tuple(map(float, numbers))


def _preprocess_of(steps: _Steps, shape: tuple[int, int, int]) -> Preprocess:
    channels, *size = shape
    mean, std = steps.mean or (0.0,), steps.std or (1.0,)
    mean, std = (own * channels if len(own) == 1 else own for own in (mean, std))
    if not len(mean) == len(std) == channels:
        raise _UnknownError(f"Normalize is of {len(mean)} channels, and the tensors have {channels}")
    if not steps.is_float:
        raise _UnknownError("nothing makes numbers from 0 to 1 of the pixels")
    if steps.resized is None:
        raise _UnknownError("it has no Resize, so what becomes of pictures of other sizes is not known")
    both = (size[0], size[1])
    if steps.size not in (None, both):
        raise _UnknownError(f"its transforms make {steps.size} pixels, and it gives {both}")
    plain = Preprocess(size=both, fit="squash", interpolation=steps.interpolation, mean=mean, std=std)
    if steps.resized == both:
        return plain
    full = steps.resized if isinstance(steps.resized, tuple) else (steps.resized, steps.resized)
    shares = [kept / side for kept, side in zip(both, full, strict=True)]
    if shares[0] != shares[1] or not shares[0] <= 1:
        raise _UnknownError(f"no crop of {both} has the shape of a resize to {steps.resized}")
    return replace(plain, fit="crop" if isinstance(steps.resized, int) else "squash_crop", crop_pct=shares[0])


# --- The files -----------------------------------------------------------------------------------------------


def _try_on_files(dataset: Any, preprocess: Preprocess, item: Callable[[int], Any]) -> None:
    """Prepare the files of some images, where the dataset tells which they are, and compare with what it gives."""
    for index in np.linspace(0, len(dataset) - 1, _TRIED).astype(int).tolist() if len(dataset) else ():
        file = _file_of(dataset, index)
        given = None if file is None else item(index)
        if file is None or not isinstance(given, Tensor):
            continue
        try:
            expected = preprocess(decode(file, preprocess.short_side))
        except VitkitError:
            continue
        gap = np.abs(expected - given.numpy()) * np.array(preprocess.std)[:, None, None] * 255
        if gap.mean() > _LEVELS:
            raise _UnknownError(
                f"it makes of {file.name} other pixels than its transforms say, by {gap.mean():.0f} of 255 levels in "
                "the mean"
            )


def _file_of(dataset: Any, index: int) -> Path | None:
    below = getattr(dataset, "dataset", None)
    if below is not None:
        indices = getattr(dataset, "indices", None)
        return None if indices is None else _file_of(below, int(indices[index]))
    paths = next((own for name in _PATHS if isinstance(own := getattr(dataset, name, None), Sequence)), None)
    if paths is None or not 0 <= index < len(paths):
        return None
    entry = paths[index]
    entry = entry[0] if isinstance(entry, (tuple, list)) and entry else entry
    return Path(entry) if isinstance(entry, (str, Path)) and Path(entry).is_file() else None
