"""Weights by others: DeiT (arXiv 2012.12877), DINO (2104.14294), MAE (2111.06377), DINOv2 (2304.07193; registers
2309.16588), and torchvision's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vitkit.weights.entry import Entry, imagenet_pixels, named_by_hash

_DEIT = {
    "deit_tiny_patch16_224": ("a1311bcf", 72.2),
    "deit_small_patch16_224": ("cd65a155", 79.9),
    "deit_base_patch16_224": ("b5f2ef4d", 81.8),
    "deit_base_patch16_384": ("8de9b5d1", 82.9),
    "deit_tiny_distilled_patch16_224": ("b40b3cf7", 74.5),
    "deit_small_distilled_patch16_224": ("649709d9", 81.2),
    "deit_base_distilled_patch16_224": ("df68dfff", 83.4),
    "deit_base_distilled_patch16_384": ("d0272ac0", 85.2),
}


def deit() -> Iterator[Entry]:
    for model, (digits, top1) in _DEIT.items():
        fields: dict[str, Any] = {
            "architecture": model,
            "classes": "imagenet1k",
            "preprocess": imagenet_pixels(int(model.rpartition("_")[2])),
            "licence": "Apache-2.0",
            "paper": "2012.12877",
            "top1": top1,
        }
        url = f"https://dl.fbaipublicfiles.com/deit/{model}-{digits}.pth"
        yield named_by_hash(url, name=f"{model}.fb_in1k", **fields)
        repository = f"facebook/{model.replace('_', '-')}"
        yield Entry(name=repository, hub=repository, **fields)


# Model, tag, file, crop_pct, top-1.
_TORCHVISION = (
    ("vit_base_patch16_224", "tv_in1k", "vit_b_16-c867db91", 224 / 256, 81.072),
    ("vit_base_patch32_224", "tv_in1k", "vit_b_32-d86f8d99", 224 / 256, 75.912),
    ("vit_large_patch16_224", "tv_in1k", "vit_l_16-852ce7e3", 224 / 242, 79.662),
    ("vit_large_patch32_224", "tv_in1k", "vit_l_32-c7638314", 224 / 256, 76.972),
    ("vit_base_patch16_384", "tv_swag_ft_in1k", "vit_b_16_swag-9ac1b537", 1.0, 85.304),
    ("vit_large_patch16_512", "tv_swag_ft_in1k", "vit_l_16_swag-4f3808c9", 1.0, 88.064),
    ("vit_huge_patch14_518", "tv_swag_ft_in1k", "vit_h_14_swag-80465313", 1.0, 88.552),
    ("vit_base_patch16_224", "tv_swag_lc_in1k", "vit_b_16_lc_swag-4e70ced5", 1.0, 81.886),
    ("vit_large_patch16_224", "tv_swag_lc_in1k", "vit_l_16_lc_swag-4d563306", 1.0, 85.146),
    ("vit_huge_patch14_224", "tv_swag_lc_in1k", "vit_h_14_lc_swag-c1eb923e", 1.0, 85.708),
)


def torchvision() -> Iterator[Entry]:
    for model, tag, file, crop_pct, top1 in _TORCHVISION:
        swag = "swag" in tag  # arXiv 2201.08371; the others were trained by torchvision's own recipe
        yield named_by_hash(
            f"https://download.pytorch.org/models/{file}.pth",
            name=f"{model}.{tag}",
            architecture=model,
            classes="imagenet1k",
            preprocess=imagenet_pixels(int(model.rpartition("_")[2]), crop_pct, "bicubic" if swag else "bilinear"),
            licence="CC-BY-NC-4.0" if swag else "BSD-3-Clause",
            paper="2201.08371" if swag else "2010.11929",
            top1=top1,
        )


# --- Self-supervised --------------------------------------------------------------------------------

_META = "https://dl.fbaipublicfiles.com"
_DINOV2 = ("small", "base", "large", "giant")


def dino_and_mae() -> Iterator[Entry]:
    for size, theirs in (("small", "deitsmall"), ("base", "vitbase")):
        for patch in (8, 16):
            model, file = f"vit_{size}_patch{patch}_224", f"dino_{theirs}{patch}_pretrain"
            yield Entry(
                name=f"{model}.dino",
                architecture=model,
                url=f"{_META}/dino/{file}/{file}.pth",
                preprocess=imagenet_pixels(224),
                licence="Apache-2.0",
                paper="2104.14294",
            )
    for model, size in (("vit_base_patch16", "base"), ("vit_large_patch16", "large"), ("vit_huge_patch14", "huge")):
        yield Entry(
            name=f"{model}_224.mae",
            architecture=f"{model}_224",
            url=f"{_META}/mae/pretrain/mae_pretrain_vit_{size}.pth",
            preprocess=imagenet_pixels(224),
            licence="CC-BY-NC-4.0",
            paper="2111.06377",
        )


def dinov2() -> Iterator[Entry]:
    for size in _DINOV2:
        for registers in (False, True):
            architecture = f"vit_{size}_patch14_{'reg4_' if registers else ''}dinov2"
            fields: dict[str, Any] = {
                "architecture": architecture,
                "licence": "Apache-2.0",
                "paper": "2309.16588" if registers else "2304.07193",
            }
            folder = f"dinov2_vit{size[0]}14"
            url = f"{_META}/dinov2/{folder}/{folder}{'_reg4' if registers else ''}_pretrain.pth"
            yield Entry(name=f"{architecture}.lvd142m", url=url, preprocess=imagenet_pixels(518, 1.0), **fields)
            repository = f"facebook/dinov2-{'with-registers-' if registers else ''}{size}"
            yield Entry(name=repository, hub=repository, preprocess=imagenet_pixels(224), **fields)
