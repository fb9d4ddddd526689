"""Google's weights: its own files (arXiv 2010.11929, 2106.10270 (AugReg), 2106.01548 (SAM)), and on the hub."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from vitkit.weights.entry import Entry, google_pixels, named_by_hash

_STORE = "https://storage.googleapis.com/vit_models"


def _google_file(model: str, tag: str, path: str, paper: str, top1: float | None = None) -> Entry:
    in21k = tag.endswith("in21k")
    return Entry(
        name=f"{model}.{tag}",
        architecture=f"{model}_in21k" if in21k else model,
        url=f"{_STORE}/{path}.npz",
        classes="imagenet21k" if in21k else "imagenet1k",
        preprocess=google_pixels(int(model.rpartition("_")[2])),
        licence="Apache-2.0",
        paper=paper,
        top1=top1,
    )


_ORIG_IN21K = {
    "vit_base_patch8": "ViT-B_8",
    "vit_base_patch16": "ViT-B_16",
    "vit_base_patch32": "ViT-B_32",
    "vit_large_patch16": "ViT-L_16",
    "vit_large_patch32": "ViT-L_32",
    "vit_huge_patch14": "ViT-H_14",
    "vit_base_r26_s32": "R26+ViT-B_32",
    "vit_base_r50_s16": "R50+ViT-B_16",
    "vit_large_r50_s32": "R50+ViT-L_32",
}
_ORIG_IN1K = ("vit_base_patch16", "vit_base_patch32", "vit_large_patch16", "vit_large_patch32", "vit_base_r50_s16")
_ORIG_IN1K_224 = {"vit_base_patch16": 81.2, "vit_large_patch16": 82.7}


def orig() -> Iterator[Entry]:
    paper, fine_tuned = "2010.11929", "imagenet21k+imagenet2012"
    for model, file in _ORIG_IN21K.items():
        yield _google_file(f"{model}_224", "orig_in21k", f"imagenet21k/{file}", paper)
    for model in _ORIG_IN1K:
        yield _google_file(f"{model}_384", "orig_in21k_ft_in1k", f"{fine_tuned}/{_ORIG_IN21K[model]}", paper)
    for model, top1 in _ORIG_IN1K_224.items():
        file = f"{fine_tuned}/{_ORIG_IN21K[model]}-224"
        yield _google_file(f"{model}_224", "orig_in21k_ft_in1k", file, paper, top1)
    for patch in (16, 32):
        yield _google_file(f"vit_base_patch{patch}_224", "sam_in1k", f"sam/ViT-B_{patch}", "2106.01548")


# Model, the AugReg run, the learning rate of its fine-tuning at 384 px, ImageNet top-1 after that.
_AUGREG_BEST = (
    ("vit_tiny_patch16", "Ti_16", "aug_none-wd_0.03-do_0.0-sd_0.0", 0.03, 78.22),
    ("vit_small_patch16", "S_16", "aug_light1-wd_0.03-do_0.0-sd_0.0", 0.03, 83.73),
    ("vit_small_patch32", "S_32", "aug_none-wd_0.1-do_0.0-sd_0.0", 0.01, 79.58),
    ("vit_base_patch16", "B_16", "aug_medium1-wd_0.1-do_0.0-sd_0.0", 0.03, 85.49),
    ("vit_base_patch32", "B_32", "aug_light1-wd_0.1-do_0.0-sd_0.0", 0.01, 83.59),
    ("vit_large_patch16", "L_16", "aug_strong1-wd_0.1-do_0.0-sd_0.0", 0.01, 85.59),
    ("vit_tiny_r_s16_p8", "R_Ti_16", "aug_none-wd_0.03-do_0.0-sd_0.0", 0.03, 75.40),
    ("vit_small_r26_s32", "R26_S_32", "aug_light1-wd_0.1-do_0.0-sd_0.0", 0.01, 83.85),
    ("vit_large_r50_s32", "R50_L_32", "aug_medium1-wd_0.1-do_0.1-sd_0.1", 0.01, 85.99),
)
# timm's picks: model, run, learning rates of the fine-tunings by resolution.
_AUGREG_TIMM: tuple[tuple[str, str, str, dict[int, float]], ...] = (
    ("vit_tiny_patch16", "Ti_16", "aug_none-wd_0.03-do_0.0-sd_0.0", {224: 0.03, 384: 0.03}),
    ("vit_small_patch16", "S_16", "aug_light1-wd_0.03-do_0.0-sd_0.0", {224: 0.03, 384: 0.03}),
    ("vit_small_patch32", "S_32", "aug_light1-wd_0.03-do_0.0-sd_0.0", {224: 0.03, 384: 0.03}),
    ("vit_base_patch8", "B_8", "aug_medium1-wd_0.1-do_0.0-sd_0.0", {224: 0.01}),
    ("vit_base_patch16", "B_16", "aug_medium1-wd_0.1-do_0.0-sd_0.0", {224: 0.01, 384: 0.01}),
    ("vit_base_patch32", "B_32", "aug_medium1-wd_0.03-do_0.0-sd_0.0", {224: 0.03}),
    ("vit_large_patch16", "L_16", "aug_medium1-wd_0.1-do_0.1-sd_0.1", {224: 0.01, 384: 0.01}),
    ("vit_tiny_r_s16_p8", "R_Ti_16", "aug_none-wd_0.03-do_0.0-sd_0.0", {224: 0.03, 384: 0.03}),
    ("vit_small_r26_s32", "R26_S_32", "aug_medium2-wd_0.03-do_0.0-sd_0.0", {384: 0.03}),
    ("vit_large_r50_s32", "R50_L_32", "aug_medium2-wd_0.1-do_0.0-sd_0.0", {384: 0.01}),
)
# Where timm fine-tuned another run than the one it offers at 224 px.
_AUGREG_TIMM_APART = (
    ("vit_base_patch32", "B_32", "aug_light1-wd_0.1-do_0.0-sd_0.0", 0.03, 384),
    ("vit_small_r26_s32", "R26_S_32", "aug_light0-wd_0.03-do_0.1-sd_0.1", 0.03, 224),
    ("vit_large_r50_s32", "R50_L_32", "aug_medium1-wd_0.1-do_0.1-sd_0.1", 0.01, 224),
)


def augreg() -> Iterator[Entry]:
    def run(size: str, choices: str) -> str:
        return f"augreg/{size}-i21k-300ep-lr_0.001-{choices}"

    def tuned(file: str, lr: float, resolution: int) -> str:
        return f"{file}--imagenet2012-steps_20k-lr_{lr}-res_{resolution}"

    paper = "2106.10270"
    for model, size, choices, lr, top1 in _AUGREG_BEST:
        file = run(size, choices)
        yield _google_file(f"{model}_224", "augreg_best_in21k", file, paper)
        yield _google_file(f"{model}_384", "augreg_best_in21k_ft_in1k", tuned(file, lr, 384), paper, top1)
    for model, size, choices, rates in _AUGREG_TIMM:
        file = run(size, choices)
        yield _google_file(f"{model}_224", "augreg_in21k", file, paper)
        for resolution, lr in rates.items():
            yield _google_file(f"{model}_{resolution}", "augreg_in21k_ft_in1k", tuned(file, lr, resolution), paper)
    for model, size, choices, lr, resolution in _AUGREG_TIMM_APART:
        file = tuned(run(size, choices), lr, resolution)
        yield _google_file(f"{model}_{resolution}", "augreg_in21k_ft_in1k", file, paper)


# --- Converted, with the representation layer -------------------------------------------------------

_JX_STORE = "https://github.com/rwightman/pytorch-image-models/releases/download/v0.1-vitjx"
_JX = {
    "vit_base_patch16_224": "e5005f0a",
    "vit_base_patch32_224": "8db57226",
    "vit_large_patch16_224": "606da67d",
    "vit_large_patch32_224": "9046d2e7",
}


def jx() -> Iterator[Entry]:
    for model, digits in _JX.items():
        yield named_by_hash(
            f"{_JX_STORE}/jx_{model}_in21k-{digits}.pth",
            name=f"{model}.jx_in21k",
            architecture=f"{model}_in21k",
            classes="imagenet21k",
            preprocess=google_pixels(224),
            licence="Apache-2.0",
            paper="2010.11929",
        )


# --- On the hub -------------------------------------------------------------------------------------

_HUB_IN1K = {
    224: ("base-patch16", "large-patch16"),
    384: ("base-patch16", "base-patch32", "large-patch16", "large-patch32"),
}
_HUB_IN21K = ("base-patch16", "base-patch32", "large-patch16", "large-patch32", "huge-patch14")


def google_hub() -> Iterator[Entry]:
    """The in21k ones keep the representation layer and have no head."""
    for size, bodies in _HUB_IN1K.items():
        for body in bodies:
            yield _google_repository(f"vit-{body}-{size}", size, "imagenet1k")
    for body in _HUB_IN21K:
        yield _google_repository(f"vit-{body}-224-in21k", 224, "none")


def _google_repository(model: str, size: int, classes: Literal["imagenet1k", "none"]) -> Entry:
    return Entry(
        name=f"google/{model}",
        architecture=model.replace("-", "_"),
        hub=f"google/{model}",
        classes=classes,
        preprocess=google_pixels(size),
        licence="Apache-2.0",
        paper="2010.11929",
    )
