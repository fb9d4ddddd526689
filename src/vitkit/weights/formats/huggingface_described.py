"""Translate Hugging Face's config.json and preprocessor_config.json into vitkit's fields, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitkit.data.preprocess import HALF, Preprocess
from vitkit.errors import VitkitError
from vitkit.text.arguments import is_number

ACTIVATIONS = {"erf": "gelu", "tanh": "gelu_pytorch_tanh", "quick": "quick_gelu"}  # our names, and theirs
_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}


def activation(name: str) -> str:
    """Return the value of the field `gelu` for transformers' `hidden_act`.

    Raises:
        VitkitError: the activation function is not supported.
    """
    if name == "gelu":
        return "erf"
    if name in ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"):
        return "tanh"
    if name == "quick_gelu":
        return "quick"
    raise VitkitError(
        f"config.json: hidden_act {name!r} is not supported; expected gelu, gelu_pytorch_tanh or quick_gelu"
    )


def labels(config: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the class names in config.json, in order; None if there are none.

    Raises:
        VitkitError: the names are not numbered from 0 without gaps.
    """
    written = config.get("id2label")
    if not isinstance(written, Mapping):
        return None
    try:
        by_index = {int(index): str(label) for index, label in written.items()}
    except ValueError as error:
        raise VitkitError("config.json: id2label must map numbers to class names") from error
    if sorted(by_index) != list(range(len(by_index))):
        raise VitkitError("config.json: id2label must number the classes from 0 without gaps")
    return tuple(by_index[index] for index in range(len(by_index)))


def pixels(written: Mapping[str, Any] | None, *, is_number_short_side: bool = False) -> dict[str, Any] | None:
    """Translate preprocessor_config.json into fields of `Preprocess`; return None without such a file.

    Args:
        written: the content of the file, or None.
        is_number_short_side: whether a single number as `size` is the length of the short side, as in CLIP's processor.
            Otherwise it is the length of both sides.

    Raises:
        VitkitError: the file describes something that `Preprocess` cannot do.
    """
    if written is None:
        return None
    if not written.get("do_rescale", True):
        raise VitkitError("preprocessor_config.json: do_rescale false is not supported: pixels are scaled to 0 ... 1")
    factor = or_usual(written, "rescale_factor", 1 / 255)
    if not is_number(factor) or abs(factor - 1 / 255) > 1e-9:
        raise VitkitError(f"preprocessor_config.json: rescale_factor {factor!r:.40} is not supported; expected 1/255")
    fields: dict[str, Any] = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    if written.get("do_normalize", True):
        mean, std = (or_usual(written, name, HALF) for name in ("image_mean", "image_std"))
        fields = {"mean": of_channels(mean, "image_mean"), "std": of_channels(std, "image_std")}
    resample = or_usual(written, "resample", 2)
    if not isinstance(resample, int) or resample not in _RESAMPLING:
        raise VitkitError(f"preprocessor_config.json: resample {resample!r} is not supported; expected 0, 1, 2 or 3")
    return {**fields, "interpolation": _RESAMPLING[resample], **_fit(written, is_number_short_side)}


def _fit(written: Mapping[str, Any], is_number_short_side: bool) -> dict[str, Any]:
    size = or_usual(written, "size", 224)
    resized, is_short_side = _side(size, "size")
    is_short_side = is_short_side or (is_number_short_side and isinstance(size, int))
    if not written.get("do_center_crop", False):
        return {"fit": "crop", "crop_pct": 1.0, "floor_crop": True} if is_short_side else {"fit": "squash"}
    side, _ = _side(or_usual(written, "crop_size", resized), "crop_size")
    if side > resized:
        raise VitkitError(f"preprocessor_config.json: crop_size {side} must not be larger than size {resized}")
    fit = "crop" if is_short_side else "squash_crop"
    return {"fit": fit, "crop_pct": side / resized, "floor_crop": True}


def of_channels(written: Any, name: str, file: str = "preprocessor_config.json") -> tuple[float, ...]:
    """Return a field's value as a tuple with a number for each channel.

    Raises:
        VitkitError: the value is not a non-empty list of numbers.
    """
    if not isinstance(written, (list, tuple)) or not written or not all(map(is_number, written)):
        raise VitkitError(f"{file}: {name} must be a list with one number for each channel, not {written!r:.60}")
    return tuple(written)


def sides(written: Any, file: str = "config.json") -> tuple[int, int] | None:
    """Return `image_size` as (height, width); None if it is not stated.

    Raises:
        VitkitError: `image_size` is not one or two positive whole numbers.
    """
    if written is None:
        return None
    both = written if isinstance(written, (list, tuple)) else (written, written)
    if len(both) != 2 or not all(type(side) is int and side > 0 for side in both):
        raise VitkitError(f"{file}: image_size must be one or two numbers of pixels, not {written!r:.40}")
    return both[0], both[1]


def or_usual(config: Mapping[str, Any], name: str, usual: Any) -> Any:
    """Return a field of config.json, or the library's default `usual` if the field is null or missing."""
    value = config.get(name)
    return usual if value is None else value


def cropped(written: Mapping[str, Any] | None) -> tuple[int, int] | None:
    """Return the (height, width) that the image processor crops to; None if it does not crop."""
    if written is None or not written.get("do_center_crop", False) or written.get("crop_size") is None:
        return None
    side, _ = _side(written["crop_size"], "crop_size")
    return side, side


def _side(size: Any, name: str) -> tuple[int, bool]:
    """Return a side length in pixels, and whether only the short side of a picture is resized to it."""
    is_short_side = isinstance(size, Mapping) and "shortest_edge" in size
    keys = ("shortest_edge",) if is_short_side else ("height", "width")
    sides = [size[key] for key in keys if key in size] if isinstance(size, Mapping) else [size]
    if not sides or not all(type(side) is int and 0 < side == sides[0] for side in sides):
        raise VitkitError(f"preprocessor_config.json: {name} {size!r:.60} is not supported; expected a square")
    return sides[0], is_short_side


def processor(preprocess: Preprocess) -> dict[str, Any]:
    """Translate a `Preprocess` into the content of preprocessor_config.json.

    Raises:
        VitkitError: transformers' image processor cannot do the same.
    """
    preprocess.check_known()
    if preprocess.fit == "pad":
        raise VitkitError(
            "the Hugging Face layout cannot express preprocess.fit 'pad': the model is not written; use --to folder"
        )
    (height, width), (full_height, full_width) = preprocess.size, preprocess.before_crop
    is_cropped = preprocess.fit != "squash"
    size: dict[str, int] = (
        {"height": full_height, "width": full_width} if is_cropped else {"height": height, "width": width}
    )
    if preprocess.fit == "crop":
        if height != width:
            raise VitkitError(
                f"the Hugging Face layout supports only square crops, not {height}x{width}, so nothing was written: "
                "use another layout, such as --to timm"
            )
        size = {"shortest_edge": full_height}
    kinds = {"crop": "BitImageProcessor", "squash": "ViTImageProcessor", "squash_crop": "DeiTImageProcessor"}
    return {
        "image_processor_type": kinds[preprocess.fit],
        "do_convert_rgb": True,
        "do_resize": True,
        "size": size,
        "resample": {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}[preprocess.interpolation],
        "do_center_crop": is_cropped,
        "crop_size": {"height": height, "width": width},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocess.mean),
        "image_std": list(preprocess.std),
    }
