"""Random augmentations of training pictures: crops, flips, colours, erased rectangles, and mixed images.

All random numbers come from torch's generator, so each sample is a function of its seed (`loading.apply_seeded`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2

from vitkit.data.preprocess import Preprocess
from vitkit.errors import VitkitError


@dataclass(frozen=True, kw_only=True)
class Augment:
    """The strengths of the random augmentations; 0, None or False turns one off.

    Attributes:
        crop_scale: the smallest and the largest fraction of the picture's area that a random crop keeps. None means to
            resize and crop as in evaluation.
        hflip: whether to mirror half of the pictures left to right.
        rotate: largest rotation in degrees, in either direction.
        translate: largest shift as a fraction of the side, in either direction.
        zoom: largest relative change of size, up or down.
        shear: largest shear in degrees, in either direction and along both axes.
        color_jitter: largest relative change of brightness, contrast and saturation.
        rand_augment: magnitude, 0 to 10, of the two operations that are drawn for each picture (arXiv 1909.13719).
        random_erasing: probability that a rectangle is replaced by the mean colour, after normalisation (arXiv
            1708.04896).
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
        reduce = partial(preprocess.reduce, short_side=self.short_side(preprocess))
        return v2.Compose([v2.Lambda(reduce), self.build_random(preprocess)])

    def short_side(self, preprocess: Preprocess) -> int | None:
        """Return the short side, in pixels, to which pictures are reduced before random crops; None without such crops.

        The value is so large that even the smallest crop is at least as large as the model's input. A crop with a
        fraction s of the area and an aspect ratio of at most 4:3 keeps at least sqrt(s * 3/4) of the short side.
        """
        if self.crop_scale is None:
            return None
        return math.ceil(max(preprocess.size) / math.sqrt(self.crop_scale[0] * 3 / 4))

    def decoded_side(self, preprocess: Preprocess) -> int:
        """Return the `short_side` to request from `decode`, large enough for random crops and for evaluation.

        Random crops need a short side of `Augment.short_side`. Half of it is requested, because `decode` reduces a
        picture, if at all, to at least twice the requested side.
        """
        return max(preprocess.short_side, math.ceil((self.short_side(preprocess) or 0) / 2))

    def build_random(self, preprocess: Preprocess) -> v2.Transform:
        """Return the transform from the result of `Preprocess.reduce` to an augmented picture of the model's size."""
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
        """Return the transform that is applied to normalised pixels (C, height, width)."""
        return v2.RandomErasing(self.random_erasing) if self.random_erasing else v2.Identity()


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """The parameters of mixup and CutMix, which mix the images and labels of a batch.

    Attributes:
        mixup: alpha of the beta distribution of the first image's weight (arXiv 1710.09412); 0 turns mixup off.
        cutmix: alpha of the beta distribution of the fraction of the area that the first image keeps. The second image
            is pasted into the remaining rectangle (arXiv 1905.04899). 0 turns CutMix off. If mixup and CutMix are both
            on, each batch uses one of them with equal probability.
    """

    mixup: float = 0.0
    cutmix: float = 0.0

    def __bool__(self) -> bool:
        return self.mixup > 0 or self.cutmix > 0

    def apply(
        self, images: Tensor, targets: Tensor, seed: int, shift: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mix each image with the previous image of the batch, and the first image with the last.

        Args:
            images: (B, C, height, width).
            targets: (B, K) probabilities of the classes.
            seed: the seed of all random numbers.
            shift: a function that is needed if `images` is only one process's part of a batch. It takes a tensor with a
                row for each image of the part, and replaces each row by the row of the previous image of the whole
                batch, which another process may hold. None if `images` is the whole batch.
        """
        shift = shift or partial(torch.roll, shifts=1, dims=0)
        generator = np.random.default_rng(seed)
        uses_cutmix = self.cutmix > 0 and (self.mixup <= 0 or generator.random() < 0.5)
        alpha = self.cutmix if uses_cutmix else self.mixup
        weight = float(generator.beta(alpha, alpha))  # of the first image
        others = shift(images)
        if not uses_cutmix:
            mixed = weight * images + (1 - weight) * others  # (B, C, height, width)
            return mixed, weight * targets + (1 - weight) * shift(targets)
        # A rectangle of the images' aspect ratio around a random pixel (y, x), clipped to the image.
        h, w = images.shape[-2:]
        half = (1 - weight) ** 0.5 / 2
        y = int(generator.integers(h))
        x = int(generator.integers(w))
        rows = slice(max(y - int(half * h), 0), min(y + int(half * h), h))
        columns = slice(max(x - int(half * w), 0), min(x + int(half * w), w))
        mixed = images.clone()
        mixed[:, :, rows, columns] = others[:, :, rows, columns]
        area = (rows.stop - rows.start) * (columns.stop - columns.start)
        weight = 1 - area / (h * w)
        return mixed, weight * targets + (1 - weight) * shift(targets)


@dataclass(frozen=True, kw_only=True)
class CustomAugment(Augment):
    """An augmentation that applies a function of the caller before the other random augmentations.

    Attributes:
        change: a function that takes and returns a picture. The picture that it takes has been decoded and reduced to
            about the model's size. The random generators of torch, numpy and Python are seeded before each call, so the
            random numbers depend only on the seed of the sample.
    """

    change: Callable[[Image.Image], Image.Image]

    def build_random(self, preprocess: Preprocess) -> v2.Transform:
        return v2.Compose([v2.Lambda(self._apply), super().build_random(preprocess)])

    def _apply(self, image: Image.Image) -> Image.Image:
        seed = int(torch.randint(2**31, ()))
        python_state = random.getstate()
        numpy_state = np.random.get_state()
        random.seed(seed)
        np.random.seed(seed)
        try:
            changed = self.change(image)
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
        if not isinstance(changed, Image.Image):
            raise VitkitError("data.augment-result", f"augment must return a PIL image, not {type(changed).__name__}")
        if not changed.width or not changed.height:
            raise VitkitError("data.augment-result", "augment must return a PIL image with pixels, not an empty one")
        return changed.convert(image.mode)
