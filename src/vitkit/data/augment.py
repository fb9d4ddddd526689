"""What training does to a picture so that the model never sees it twice alike. Random numbers come from torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, v2

from vitkit.data.preprocess import Preprocess


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
    """

    crop_scale: tuple[float, float] | None = None
    hflip: bool = False
    rotate: float = 0.0
    translate: float = 0.0
    zoom: float = 0.0
    shear: float = 0.0
    color_jitter: float = 0.0

    def build(self, preprocess: Preprocess) -> v2.Transform:
        """The transform from a decoded picture to a picture of the model's size."""
        interpolation = InterpolationMode[preprocess.interpolation.upper()]
        steps: list[torch.nn.Module] = []
        if self.crop_scale is None:
            steps.append(v2.Lambda(preprocess.resize))
        else:
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
        return v2.Compose(steps)


def apply_seeded(transform: v2.Transform, image: Image.Image, *seeds: int) -> Image.Image:
    """The transform's outcome for these seeds, whatever was drawn before and whichever process draws it."""
    generator = torch.default_generator  # `torch.manual_seed` would format a traceback for CUDA: 1 ms an image
    state = generator.get_state()
    generator.manual_seed(mix_seeds(*seeds))
    try:
        return transform(image)
    finally:
        generator.set_state(state)


def mix_seeds(*seeds: int) -> int:
    """One 63-bit seed from several numbers; any change in any of them changes it (SplitMix64's finaliser)."""
    mixed = 0
    for seed in seeds:
        mixed = (mixed ^ seed) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return mixed >> 1
