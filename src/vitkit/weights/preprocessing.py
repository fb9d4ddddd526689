"""The preprocessing that a user states when loading weights: a publisher's name or settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

from vitkit.data.preprocess import Preprocess
from vitkit.errors import VitkitError
from vitkit.model.config import Pair, format_size
from vitkit.text.arguments import as_typed, from_text, hints_of, is_number, type_of
from vitkit.weights.formats import preprocess_publishers, publisher_preprocess

PreprocessLike = Preprocess | Mapping[str, Any] | str

_invalid = partial(VitkitError, "weights.preprocess-invalid")
_EXAMPLE = "resize=256,crop=224,interpolation=bilinear,mean=0.5,std=0.5"
_DEFAULTS = {name: getattr(Preprocess, name) for name in ("fit", "crop_pct", "interpolation", "floor_crop")}
_SIDES = ("resize", "crop", "size")  # in pixels: one number, or height and width


def preprocess_of(named: PreprocessLike, base: Preprocess) -> Preprocess:
    """Return a preprocessing from any form in which a user may state it; omitted fields keep the values of `base`.

    Args:
        named: one of these:

            - a `Preprocess`;
            - the publisher whose preprocessing is used: google, torchvision, dinov2, augreg or deit;
            - text of settings, such as `resize=256,crop=224,interpolation=bilinear,mean=0.5,std=0.5`, or a mapping of
              them. The settings are fields of `Preprocess`, or torchvision's `resize` (the new length of the short
              side, or the (height, width) to which the picture is stretched) and `crop` (cut from the centre).
        base: the model's preprocessing. Its size is that of the model's input and cannot be changed.

    Raises:
        VitkitError: the argument has none of these forms, a value is not allowed, or a stated size is not the model's.
    """
    return dataclasses.replace(base, **{"unknown": "", **settings_of(named, base)})


def settings_of(named: PreprocessLike, base: Preprocess) -> dict[str, Any]:
    """Return the fields of `Preprocess` that a user states, as in `preprocess_of`, after checking their values.

    The size is not included, because it belongs to the model.
    """
    channels = len(base.mean)
    if isinstance(named, Preprocess):
        named = {field.name: getattr(named, field.name) for field in dataclasses.fields(named)}
    elif isinstance(named, str):
        named = _parse_settings(named, channels)
    elif not isinstance(named, Mapping):
        raise _invalid(f"preprocess must be text, a mapping or a Preprocess, not {type_of(named)}")
    hints = hints_of(Preprocess)
    fields: dict[str, Any] = {}
    sides: dict[str, Pair] = {}
    for name, value in named.items():
        _check_known(name)
        if name in _SIDES:
            pair = value if isinstance(value, (list, tuple)) else (value, value)
            if len(pair) != 2 or not all(type(side) is int and side > 0 for side in pair):
                raise _invalid(f"preprocess: {name} must be one or two numbers of pixels, not {value!r:.40}")
            sides[name] = pair[0], pair[1]
        elif name in ("mean", "std"):
            values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
            if not values or not all(map(is_number, values)) or max(values) > 1:
                raise _invalid(
                    f"preprocess: {name} must be numbers from 0 to 1, the range of the pixels before normalisation, "
                    f"not {value!r:.60}"
                )
            if len(values) not in (1, channels):
                raise VitkitError(
                    "weights.channels-mismatched",
                    f"preprocess: {name} has {len(values)} numbers, but the model has {channels} channels",
                )
            if len(values) == 1:
                values *= channels
            fields[name] = as_typed(name, hints[name], values)
        else:
            fields[name] = as_typed(name, hints[name], value)
    for name in ("crop", "size"):
        if name in sides and sides[name] != base.size:
            raise VitkitError(
                "weights.size-mismatched",
                f"preprocess: {name} is {format_size(sides[name])}, but the model has {format_size(base.size)} pixels: "
                "leave it out, or load the model with that image_size",
            )
    if "resize" in sides:
        fields |= _fit_of(sides["resize"], fields, base.size, has_both_sides=not is_number(named["resize"]))
    elif "crop" in sides:
        raise _invalid("preprocess: crop needs resize, too: the length of the short side before the crop")
    dataclasses.replace(base, **fields)  # checks the values
    return fields


def without_size(preprocess: Preprocess) -> dict[str, Any]:
    """Return the fields of a `Preprocess` without its size, which belongs to the model."""
    return {name: value for name, value in dataclasses.asdict(preprocess).items() if name != "size"}


def _parse_settings(text: str, channels: int) -> dict[str, Any]:
    text = text.strip()
    fields = publisher_preprocess(text)
    if fields is not None:
        means = {name: tuple(fields[name])[:channels] for name in ("mean", "std") if name in fields}
        return {**_DEFAULTS, **fields, **means}
    if "=" not in text:
        raise VitkitError(
            "weights.preprocess-unknown",
            f"preprocess {text!r:.60} is none of {', '.join(preprocess_publishers())}; expected one of these, or "
            f"text such as {_EXAMPLE}; a file is read if it lies next to the weights",
        )
    values: dict[str, str] = {}
    last = ""
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if equals:
            if name in values:
                raise _invalid(f"preprocess sets {name} twice")
            values[name] = value
            last = name
        elif last:  # the next number of a list, as in mean=0.5,0.4,0.3
            values[last] += f",{name}"
        else:
            raise _invalid(f"preprocess: {part!r:.60} is not a setting; expected text such as {_EXAMPLE}")
    hints = hints_of(Preprocess)
    settings: dict[str, Any] = {}
    for name, value in values.items():
        _check_known(name)
        if name not in _SIDES:
            settings[name] = from_text(name, hints[name], value)
            continue
        sides = [side.strip() for side in value.replace("x", ",").split(",")]
        if len(sides) > 2 or not all(side.isdecimal() and side.isascii() for side in sides):
            raise _invalid(f"preprocess: {name} must be one or two numbers of pixels, not {value!r:.40}")
        settings[name] = int(sides[0]) if len(sides) == 1 else (int(sides[0]), int(sides[1]))
    return settings


def _check_known(name: str) -> None:
    if name not in _SIDES and name not in hints_of(Preprocess):
        known = [*_SIDES, *(field for field in hints_of(Preprocess) if field != "size")]
        raise VitkitError(
            "weights.preprocess-unknown", f"preprocess has no setting {name!r:.40}; it has {', '.join(known)}"
        )


def _fit_of(resized: Pair, described: Mapping[str, Any], size: Pair, *, has_both_sides: bool) -> dict[str, Any]:
    """Return `fit` and `crop_pct` for torchvision's Resize to `resized` followed by CenterCrop to `size`.

    If the user stated both sides of `resized` (`has_both_sides`), pictures are stretched to it. Otherwise it is the
    length of the short side, twice.
    """
    if "crop_pct" in described:
        raise _invalid("preprocess: resize and crop_pct both set the scale: leave one out")
    size_text = format_size(size)
    if not has_both_sides and size[0] != size[1]:
        raise _invalid(
            f"preprocess: the model has images of {size_text} pixels: set resize to HEIGHTxWIDTH, or set crop_pct"
        )
    shares = [kept / full for kept, full in zip(size, resized, strict=True)]
    if not all(0 < share <= 1 for share in shares) or abs(shares[0] - shares[1]) > 1e-9:
        raise _invalid(
            f"preprocess: resize must be at least {size_text} pixels with the same aspect ratio, not "
            f"{format_size(resized)}"
        )
    stretched = "squash" if resized == size else "squash_crop"
    fit = described.get("fit", stretched if has_both_sides else "crop")
    if not str(fit).endswith("crop"):
        if resized != size:
            raise _invalid(f"preprocess: fit {fit} already resizes pictures to {size_text} pixels: leave out resize")
        return {"fit": fit}
    return {"fit": fit, "crop_pct": shares[0]}
