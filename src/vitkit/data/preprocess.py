"""Convert pictures to the normalised arrays that a model reads.

A `Preprocess` belongs to the weights and is stored with them. The module uses only Pillow and numpy, so that prediction
need not import torchvision. Sizes are rounded as in torchvision. `Views` makes several arrays of one picture, for
test-time augmentation.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from vitkit.data.picture import MAX_PIXELS
from vitkit.errors import VitkitError
from vitkit.text.arguments import coerce_types

Fit = Literal["crop", "pad", "squash", "squash_crop"]
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
LEAST_CROP = 0.01  # the minimum of `crop_pct`
_MAX_VALUE, _MIN_STD = 1e6, 1e-6  # a mean or std beyond these limits comes from a damaged file
HALF = (0.5, 0.5, 0.5)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_SCALE_NAMES = {  # by (mean, std)
    (HALF, HALF): "0.5",
    (IMAGENET_MEAN, IMAGENET_STD): "ImageNet's",
    (CLIP_MEAN, CLIP_STD): "CLIP's",
    (HALF[:1], HALF[:1]): "0.5",
}
_REMEDY = "set it with preprocess= or --preprocess, such as resize=256,crop=224,interpolation=bilinear,mean=0.5,std=0.5"


def conversion_remedy(weights: str, next_step: str) -> str:
    """Return a remedy for an unknown preprocessing: the command that converts the weights, and the step after it."""
    settings = "crop_pct=0.875,interpolation=bilinear,mean=0.5,std=0.5"
    command = f"vitkit convert {shlex.quote(weights)} NEW --preprocess {settings}"
    return f"set it, for example with {command}, and {next_step}"


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """The resizing, cropping and normalisation of pictures in evaluation, prediction and export.

        >>> from PIL import Image
        >>> from vitkit import Preprocess
        >>> Preprocess(size=(24, 32))(Image.new("RGB", (640, 480))).shape  # (C, H, W), float32
        (3, 24, 32)

    Attributes:
        size: (height, width) of the result in pixels, or one number for a square.
        fit: `crop` resizes the short side to size / crop_pct and crops the centre. `pad` shrinks or enlarges the whole
            picture to fit into the size, and pads it with the mean colour. `squash` stretches it to the size.
            `squash_crop` stretches it to size / crop_pct and crops the centre, as Hugging Face does for DeiT.
        crop_pct: the fraction of the resized picture's sides that the centre crop keeps: of the short side for `crop`,
            and of both sides for `squash_crop`.
        interpolation: the resampling filter, with antialiasing.
        floor_crop: how the top and left margins of the crop, which are half of the total margin, are rounded if the
            total margin is odd. True rounds down, as in transformers. False rounds to the nearest even number, as in
            torchvision.
        mean, std: one number for each channel, for pixels scaled to [0, 1].
        unknown: why the preprocessing is unknown; empty if the other fields describe it. It can be unknown for weights
            that were trained on tensors from the caller. A model with such weights cannot read files.
    """

    size: tuple[int, int]
    fit: Fit = "crop"
    crop_pct: float = 0.875
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, ...] = HALF
    std: tuple[float, ...] = HALF
    floor_crop: bool = False
    unknown: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.size, int):  # the side of a square
            object.__setattr__(self, "size", (self.size, self.size))
        coerce_types(self)
        problem = ""
        if min(self.size) < 1:
            problem = f"size must be (height, width) in pixels, not {self.size!r:.80}"
        elif self.size[0] * self.size[1] > MAX_PIXELS:
            problem = f"size {self.size[0]}x{self.size[1]} is more than the limit of {MAX_PIXELS:,} pixels"
        elif not LEAST_CROP <= self.crop_pct <= 1:
            problem = f"crop_pct must be from {LEAST_CROP} to 1, not {self.crop_pct!r}"
        elif len(self.mean) not in (1, 3) or len(self.std) != len(self.mean) or min(self.std) < _MIN_STD:
            problem = f"mean {self.mean} and std {self.std} must have 1 or 3 values, those of std above 0"
        elif max(map(abs, self.mean + self.std)) >= _MAX_VALUE:
            problem = f"mean {self.mean} and std {self.std} must be for pixels scaled to 0 ... 1"
        if problem:
            raise VitkitError("data.preprocess-invalid", problem)

    def __call__(self, image: Image.Image) -> npt.NDArray[np.float32]:
        """Convert an RGB picture of any size to (C, height, width) float32."""
        return self.normalise(self.resize(image))

    def resize(self, image: Image.Image) -> Image.Image:
        """Return the part of the picture that the model sees, at the model's size."""
        h, w = self.size
        full_h, full_w, top, left = self._placement(image.width, image.height)
        if self.fit == "pad":
            mean = self.mean if len(self.mean) == 3 else self.mean * 3
            canvas = Image.new("RGB", (w, h), tuple(round(255 * value) for value in mean))
            canvas.paste(self._resample(image, (full_h, full_w)), (-left, -top))
            return canvas
        if full_h * full_w > MAX_PIXELS:  # a very long picture: resample only the part that is kept
            return self._resample(image, (h, w), self.box(image.width, image.height))
        return self._resample(image, (full_h, full_w)).crop((left, top, left + w, top + h))

    def crops(self, image: Image.Image) -> list[Image.Image]:
        """Return the centre and the four corners of the resized picture, each at the model's size.

        The centre comes first, and equals the result of `resize`. `fit` must be `crop` or `squash_crop`.
        """
        h, w = self.size
        full_h, full_w, top, left = self._placement(image.width, image.height)
        corners = [(y, x) for y in (0, full_h - h) for x in (0, full_w - w)]
        if full_h * full_w > MAX_PIXELS:  # as in `resize`
            y_scale, x_scale = image.height / full_h, image.width / full_w
            boxes = [(x * x_scale, y * y_scale, (x + w) * x_scale, (y + h) * y_scale) for y, x in corners]
            return [self.resize(image)] + [self._resample(image, (h, w), box) for box in boxes]
        resized = self._resample(image, (full_h, full_w))
        return [resized.crop((x, y, x + w, y + h)) for y, x in [(top, left), *corners]]

    def reduce(self, image: Image.Image, short_side: int | None) -> Image.Image:
        """Reduce a decoded picture to the size that random crops need, or resize and crop it as in evaluation.

        The result does not depend on random numbers, so it can be cached. `short_side` is the short side of the result
        in pixels (`Augment.short_side`); a smaller picture is returned unchanged. None means that there are no random
        crops, so the picture is resized and cropped as in evaluation.
        """
        if short_side is None:
            return self.resize(image)
        scale = short_side / min(image.size)
        if scale >= 1:
            return image
        return image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)

    def box(self, width: int, height: int) -> tuple[float, float, float, float]:
        """Return (left, top, right, bottom): the part of a picture of this size that becomes the model's input.

        The unit is pixels of the picture. If the picture is padded, the box extends beyond the picture's borders.
        """
        h, w = self.size
        full_h, full_w, top, left = self._placement(width, height)
        x_scale, y_scale = width / full_w, height / full_h
        return left * x_scale, top * y_scale, (left + w) * x_scale, (top + h) * y_scale

    def normalise(self, image: Image.Image) -> npt.NDArray[np.float32]:
        """Convert an RGB picture of the model's size to (C, height, width) float32: (pixel / 255 - mean) / std."""
        levels = self.levels(image)
        result = np.empty(levels.shape, np.float32)
        for table, channel, out in zip(normalised_values(self.mean, self.std), levels, result, strict=True):
            np.take(table, channel, out=out, mode="clip")  # any other mode would need a buffer
        return result

    def levels(self, image: Image.Image) -> npt.NDArray[np.uint8]:
        """Return the pixels (C, height, width) in uint8 of an RGB picture that has the model's size."""
        channels = len(self.mean)
        pixels = np.asarray(image.convert("L") if channels == 1 else image, np.uint8).reshape(-1, channels)
        return np.array(pixels.T, order="C").reshape(channels, *self.size)  # a copy, which may be written to

    def picture_of(self, pixels: npt.NDArray[np.float32]) -> Image.Image:
        """Convert normalised pixels (C, height, width) to a picture. Values outside 0 to 255 are clipped."""
        levels = self.levels_of(pixels[None])[0]
        return Image.fromarray(levels[:, :, 0] if len(self.mean) == 1 else levels)

    def levels_of(self, pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        """Convert normalised pixels (B, C, height, width) back to uint8 (B, height, width, C), clipped to 0 to 255."""
        values = pixels.transpose(0, 2, 3, 1) * np.array(self.std) + np.array(self.mean)
        return np.round(values * 255).clip(0, 255).astype(np.uint8, order="C")

    @property
    def short_side(self) -> int:
        """Return the minimum short side, in pixels, that `decode` must provide for this preprocessing."""
        return max(self.before_crop) if self.fit.endswith("crop") else max(self.size)

    @property
    def before_crop(self) -> tuple[int, int]:
        """Return the minimum (height, width) of a resized picture before it is cropped."""
        # The summand is needed because 224 / (224 / 242) is slightly less than 242 in floating point.
        return math.floor(self.size[0] / self.crop_pct + 1e-6), math.floor(self.size[1] / self.crop_pct + 1e-6)

    def kept(self, width: int, height: int) -> float:
        """Return the fraction of the area of a picture of this size that the model sees, from 0 to 1."""
        if not self.fit.endswith("crop"):
            return 1.0
        h, w = self.size
        full_h, full_w = self.before_crop
        kept = (h * w) / (full_h * full_w)
        if self.fit == "crop":  # one side of the resized picture is longer than in `before_crop`
            ratio = (width * full_h) / (height * full_w)
            kept *= min(ratio, 1 / ratio)
        return kept

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON types."""
        fields = asdict(self)
        for name in ("size", "mean", "std"):
            fields[name] = list(fields[name])
        if not self.unknown:
            del fields["unknown"]
        return fields

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Preprocess:
        """Build a preprocessing from the fields that `to_dict` returned.

        Raises:
            VitkitError: the fields are not those of a preprocessing.
        """
        if not isinstance(fields, dict) or "size" not in fields or not fields.keys() <= cls.__dataclass_fields__.keys():
            raise VitkitError(
                "data.preprocess-invalid",
                f"preprocess must be an object with size, mean, std and so on, not {fields!r:.80}",
            )
        return cls(**fields)

    def check_known(self, model: str = "this model", remedy: str = _REMEDY) -> None:
        """Raise VitkitError if the preprocessing is unknown; `remedy` says what to do about it."""
        if self.unknown:
            raise VitkitError(
                "data.preprocess-unknown", f"the preprocessing of {model} is unknown: {self.unknown}; {remedy}"
            )

    def _placement(self, width: int, height: int) -> tuple[int, int, int, int]:
        """Return (height, width, top, left): the size of the resized picture, and where the model's input begins."""
        self.check_known()
        h, w = self.size
        if self.fit == "squash":
            return h, w, 0, 0
        if self.fit == "pad":
            scale = min(h / height, w / width)
            full_h, full_w = max(1, round(height * scale)), max(1, round(width * scale))
            return full_h, full_w, -((h - full_h) // 2), -((w - full_w) // 2)
        full_h, full_w = self.before_crop
        if self.fit == "crop":  # only the short side gets this length
            if full_h * width <= full_w * height:  # the width is the short side
                full_h = int(full_w * height / width)
            else:
                full_w = int(full_h * width / height)
        y_margin, x_margin = full_h - h, full_w - w
        if self.floor_crop:
            return full_h, full_w, y_margin // 2, x_margin // 2
        return full_h, full_w, round(y_margin / 2), round(x_margin / 2)

    def _resample(
        self, image: Image.Image, size: tuple[int, int], box: tuple[float, float, float, float] | None = None
    ) -> Image.Image:
        return image.resize((size[1], size[0]), Image.Resampling[self.interpolation.upper()], box)


@lru_cache(maxsize=8)
def normalised_values(mean: tuple[float, ...], std: tuple[float, ...]) -> npt.NDArray[np.float32]:
    """Return the normalised value of each uint8 value in each channel, (C, 256). Looking it up saves two thirds."""
    levels = np.arange(256, dtype=np.float32) / np.float32(255)
    centre, spread = np.array(mean, np.float32)[:, None], np.array(std, np.float32)[:, None]
    values: npt.NDArray[np.float32] = (levels - centre) / spread
    return values


def describe(pixels: Mapping[str, Any]) -> str:
    """Describe a preprocessing in one line, such as `mean and std 0.5, crop, bicubic, crop 0.900`.

    `pixels` holds the fields of the preprocessing, as `Preprocess.to_dict` returns them.
    """
    if pixels.get("unknown"):
        return f"not known ({pixels['unknown']})"
    mean, std = tuple(pixels["mean"]), tuple(pixels["std"])
    name = _SCALE_NAMES.get((mean, std))
    scale = f"mean and std {name}"
    if name is None:
        scale = f"mean {'/'.join(f'{value:.4g}' for value in mean)}, std {'/'.join(f'{value:.4g}' for value in std)}"
    fit = pixels.get("fit", Preprocess.fit)
    text = f"{scale}, {fit}, {pixels.get('interpolation', Preprocess.interpolation)}"
    if fit.endswith("crop"):
        text += f", crop {pixels.get('crop_pct', Preprocess.crop_pct):.3f}"
    return text


# --- Several views of a picture -----------------------------------------------------------------------------------

_VIEWS = ("flip", "crops")
_Classify: TypeAlias = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]  # (n, C, height, width) -> (n, K)


@dataclass(frozen=True)
class Views:
    """The views of each picture over which class probabilities are averaged (test-time augmentation).

    `flip` adds the mirror image of each view. `crops` adds the four corners of the resized picture to the centre crop.
    Both together give ten views (Krizhevsky et al. 2012, sec. 4.1). The first view is always the model's usual input.
    """

    flip: bool
    crops: bool

    @classmethod
    def of(cls, names: str) -> Views:
        """Parse the names of views, separated by commas.

        Raises:
            VitkitError: a name is unknown, missing or given twice.
        """
        parts = [part.strip() for part in names.split(",")]
        if not set(parts) <= set(_VIEWS) or len(set(parts)) < len(parts):
            raise VitkitError("data.views-invalid", f"--tta {names!r} must be flip, crops, or flip,crops")
        return cls("flip" in parts, "crops" in parts)

    def __str__(self) -> str:
        return ",".join(name for name in _VIEWS if getattr(self, name))

    @property
    def count(self) -> int:
        """The number of views of each picture, V."""
        return (5 if self.crops else 1) * (2 if self.flip else 1)

    @property
    def description(self) -> str:
        """The number and kinds of the views."""
        return f"mean of {self.count} views ({self})"

    def check(self, preprocess: Preprocess, recipe: object) -> None:
        """Check that the views suit a model with this preprocessing and training recipe (empty if unknown).

        Raises:
            VitkitError: the model was trained without mirrored pictures because left and right differ, or its
                preprocessing does not crop.
        """
        if self.flip and isinstance(recipe, dict) and recipe.get("hflip") is False:
            raise VitkitError(
                "data.views-unsuited",
                "leave out --tta flip: this model was trained with --no-hflip, so mirroring may change the class",
            )
        if self.crops and not preprocess.fit.endswith("crop"):
            raise VitkitError(
                "data.views-unsuited",
                f"--tta crops: the preprocessing of this model (fit {preprocess.fit}) shows the whole picture and has "
                "nothing to crop: leave it out",
            )

    def pixels(self, image: Image.Image, preprocess: Preprocess) -> npt.NDArray[np.float32]:
        """Convert an RGB picture to its views, (V, C, height, width)."""
        pictures = preprocess.crops(image) if self.crops else [preprocess.resize(image)]
        views = [preprocess.normalise(picture) for picture in pictures]
        if self.flip:
            views += [view[:, :, ::-1] for view in views]
        return np.stack(views)

    def mean(self, classify: _Classify) -> _Classify:
        """Return a function that maps views (B, V, C, height, width) to the mean of their probabilities, (B, K).

        `classify` computes probabilities, (n, C, height, width) -> (n, K).
        """

        def classify_views(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
            probabilities = classify(pixels.reshape(-1, *pixels.shape[2:]))  # (B * V, K)
            return probabilities.reshape(len(pixels), self.count, -1).mean(axis=1, dtype=np.float32)  # (B, K)

        return classify_views
