"""One set of published weights: where it is, and what is known of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from vitkit.data.preprocess import HALF, IMAGENET_MEAN, IMAGENET_STD, Preprocess

Classes = Literal["imagenet1k", "imagenet21k", "other", "none"]

# Names by timm's rule that timm itself does not have.
_NOT_TIMMS = (
    "vit_base_patch8_224.orig_in21k",
    "vit_base_r26_s32_224.orig_in21k",
    "vit_large_r50_s32_224.orig_in21k",
    "vit_base_patch32_384.orig_in21k_ft_in1k",
    "vit_large_patch16_384.orig_in21k_ft_in1k",
    "vit_large_patch16_224.orig_in21k_ft_in1k",
)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One set of published weights: a file at `url`, or the folder of a repository on the Hugging Face `hub`.

    Attributes:
        name: what a user types.
        architecture: the model name that builds it. DINOv2's have LayerScale and registers, which no name here stands
            for: theirs are timm's.
        preprocess: the pixels that the authors evaluate with. A hub folder's own `preprocessor_config.json` may differ.
        classes: what the head tells apart; `other` sets, or a projection; `none` for features alone.
        sha256: of the file, its first digits or all of them; None where nobody publishes it.
        licence: SPDX identifier where it has one; empty where nobody says.
        paper: arXiv number; empty where timm's table, which this is of, names none.
        top1: published accuracy on ImageNet-1k, in percent, at `preprocess.size`.
    """

    name: str
    architecture: str
    preprocess: Preprocess
    licence: str
    paper: str
    url: str | None = None
    hub: str | None = None
    classes: Classes = "none"
    sha256: str | None = None
    top1: float | None = None

    @property
    def timm(self) -> Preprocess | None:
        """The pixels that timm gives the weights of this name; None where it has no such name."""
        if not self.paper:  # a row of timm's own
            return self.preprocess
        if self.hub or self.name in _NOT_TIMMS or re.search(r"\.(augreg_best_\w+|jx_in21k|tv_\w+)$", self.name):
            return None
        is_small = self.preprocess.size[0] < 384
        return replace(self.preprocess, fit="crop", interpolation="bicubic", crop_pct=0.9 if is_small else 1.0)

    @property
    def filename(self) -> str | None:
        """What the file is called; None for a hub folder."""
        return self.url.rpartition("/")[2] if self.url else None


def google_pixels(size: int) -> Preprocess:
    """As the reference implementation evaluates."""
    return Preprocess(size=(size, size), fit="squash", interpolation="bilinear", mean=HALF, std=HALF)


def imagenet_pixels(
    size: int, crop_pct: float = 0.875, interpolation: Literal["bilinear", "bicubic"] = "bicubic"
) -> Preprocess:
    """Short side to size / crop_pct, then the centre."""
    return Preprocess(
        size=(size, size), crop_pct=crop_pct, interpolation=interpolation, mean=IMAGENET_MEAN, std=IMAGENET_STD
    )


def named_by_hash(url: str, **fields: Any) -> Entry:
    """An entry whose file carries the first eight digits of its SHA-256 in its name."""
    return Entry(url=url, sha256=url.rpartition("-")[2].partition(".")[0], **fields)
