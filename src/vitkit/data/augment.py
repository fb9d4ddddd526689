"""Random changes of training pictures: crops, flips, colours, erased rectangles, and mixed images.

Random numbers come from torch, so that a sample is a function of its seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2

from vitkit.data.preprocess import Preprocess
from vitkit.errors import VitkitError

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Augment:
    """Strengths of the random changes; 0 or None turns one off.

    Attributes:
        crop_scale: least and most of the picture's area that a random crop keeps; None keeps evaluation's fit.
        hflip: mirror left and right in half the pictures.
        rotate: degrees, to either side.
        translate: part of the side, in either direction.
        zoom: relative change of size, either way.
        shear: degrees, to either side, along both axes.
        color_jitter: relative change of brightness, contrast and saturation.
        rand_augment: magnitude of two operations drawn for each picture, 0 to 10 (arXiv 1909.13719).
        random_erasing: probability that a rectangle becomes the mean colour, after normalisation (arXiv 1708.04896).
    """

    crop_scale: tuple[float, float] | None = None
    hflip: bool = False
    rotate: float = 0.0
    translate: float = 0.0
    zoom: float = 0.0
    shear: float = 0.0
    color_jitter: float = 0.0
    rand_augment: int = 0
    random_erasing: float = 0.0

    def build(self, preprocess: Preprocess) -> v2.Transform:
        """Return the transform from a decoded picture to a picture of the model's size."""
        return v2.Compose([v2.Lambda(partial(self.reduce, preprocess=preprocess)), self.build_random(preprocess)])

    def reduce(self, image: Image.Image, preprocess: Preprocess) -> Image.Image:
        """Reduce a decoded picture, the same way each time, to the size that its crops need."""
        short_side = self.short_side(preprocess)
        if short_side is None:
            return preprocess.resize(image)
        scale = short_side / min(image.size)
        if scale >= 1:
            return image
        return image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)

    def short_side(self, preprocess: Preprocess) -> int | None:
        """Pixels of the short side that leave the smallest crop at the model's size; None without random crops.

        A crop of part s of the area and proportions up to 4:3 keeps sqrt(s * 3/4) of the short side, or more.
        """
        if self.crop_scale is None:
            return None
        return math.ceil(max(preprocess.size) / math.sqrt(self.crop_scale[0] * 3 / 4))

    def decoded_side(self, preprocess: Preprocess) -> int:
        """Return the hint for `decode`, with twice as many pixels as evaluation or the crops need."""
        return max(preprocess.short_side, math.ceil((self.short_side(preprocess) or 0) / 2))

    def build_random(self, preprocess: Preprocess) -> v2.Transform:
        """Return the transform from what `reduce` returns to a picture of the model's size."""
        interpolation = InterpolationMode[preprocess.interpolation.upper()]
        steps: list[torch.nn.Module] = []
        if self.crop_scale is not None:
            steps.append(v2.RandomResizedCrop(preprocess.size, scale=self.crop_scale, interpolation=interpolation))
        if self.hflip:
            steps.append(v2.RandomHorizontalFlip())
        if self.rotate or self.translate or self.zoom or self.shear:
            steps.append(
                v2.RandomAffine(
                    degrees=self.rotate,
                    translate=(self.translate, self.translate),
                    scale=(1 - self.zoom, 1 + self.zoom),
                    shear=[-self.shear, self.shear, -self.shear, self.shear],
                    interpolation=InterpolationMode.BILINEAR,
                )
            )
        if self.color_jitter:
            steps.append(v2.ColorJitter(self.color_jitter, self.color_jitter, self.color_jitter))
        if self.rand_augment:
            steps.append(
                v2.RandAugment(2, self.rand_augment, num_magnitude_bins=11, interpolation=InterpolationMode.BILINEAR)
            )
        return v2.Compose(steps or [v2.Identity()])

    def build_pixels(self) -> v2.Transform:
        """Return the transform of the normalised pixels, (C, height, width)."""
        return v2.RandomErasing(self.random_erasing) if self.random_erasing else v2.Identity()


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """How the images of a batch are mixed with one another, and their labels with them.

    Attributes:
        mixup: alpha of the beta distribution that the first image's share is drawn from (arXiv 1710.09412); 0 is off.
        cutmix: the same of the area outside a rectangle that the second image is pasted into (arXiv 1905.04899).
            Where both are on, each batch gets one of them, with even chances.
    """

    mixup: float = 0.0
    cutmix: float = 0.0

    def __bool__(self) -> bool:
        return self.mixup > 0 or self.cutmix > 0

    def apply(
        self, images: Tensor, targets: Tensor, seed: int, before: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mix each image with the one before it, the first with the last.

        Args:
            images: (B, C, height, width).
            targets: (B, K) probabilities of the classes.
            seed: decides all that is drawn.
            before: a part of a batch to what comes before each of its images; None where the batch is whole.
        """
        before = before or partial(torch.roll, shifts=1, dims=0)
        random = np.random.default_rng(seed)
        cuts = self.cutmix > 0 and (self.mixup <= 0 or random.random() < 0.5)
        alpha = self.cutmix if cuts else self.mixup
        share = float(random.beta(alpha, alpha))
        others = before(images)
        if cuts:
            h, w = images.shape[-2:]
            rows, columns = _rectangle(h, w, 1 - share, int(random.integers(h)), int(random.integers(w)))
            images = images.clone()
            images[:, :, rows, columns] = others[:, :, rows, columns]  # (B, C, height, width)
            share = 1 - (rows.stop - rows.start) * (columns.stop - columns.start) / (h * w)
        else:
            images = share * images + (1 - share) * others  # (B, C, height, width)
        return images, share * targets + (1 - share) * before(targets)


def _rectangle(h: int, w: int, area: float, y: int, x: int) -> tuple[slice, slice]:
    """Return a rectangle of this share of the area and the picture's proportions, cropped at the edges."""
    half = area**0.5 / 2
    dy, dx = int(half * h), int(half * w)
    return slice(max(y - dy, 0), min(y + dy, h)), slice(max(x - dx, 0), min(x + dx, w))


@dataclass(frozen=True, kw_only=True)
class CustomAugment(Augment):
    """The caller's change of a picture, and then the random changes.

    Attributes:
        change: takes the decoded picture, reduced to about the size that the model sees, and returns another. The
            random numbers of torch, numpy and Python that it draws depend on the seed of the sample only.
    """

    change: Callable[[Image.Image], Image.Image]

    def build_random(self, preprocess: Preprocess) -> v2.Transform:
        return v2.Compose([v2.Lambda(self._changed), super().build_random(preprocess)])

    def _changed(self, image: Image.Image) -> Image.Image:
        seed = int(torch.randint(2**31, ()))
        before, before_numpy = random.getstate(), np.random.get_state()
        random.seed(seed)
        np.random.seed(seed)
        try:
            changed = self.change(image)
        finally:
            random.setstate(before)
            np.random.set_state(before_numpy)
        if not isinstance(changed, Image.Image):
            raise VitkitError(f"augment must return a PIL image, not {type(changed).__name__}")
        return changed


def apply_seeded(transform: Callable[[S], T], sample: S, *seeds: int) -> T:
    """Apply the transform with these seeds, independently of earlier draws and of the process."""
    generator = torch.default_generator  # `torch.manual_seed` would format a traceback for CUDA: 1 ms an image
    state = generator.get_state()
    generator.manual_seed(mix_seeds(*seeds))
    try:
        return transform(sample)
    finally:
        generator.set_state(state)


def mix_seeds(*seeds: int) -> int:
    """Combine several numbers to one 63-bit seed; any change in any of them changes it (SplitMix64's finaliser)."""
    mixed = 0
    for seed in seeds:
        mixed = (mixed ^ seed) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return mixed >> 1
