"""Masked patch prediction and masked autoencoding, then fine-tuning, against no pre-training (sec. 4.6)."""

from __future__ import annotations

from typing import Any

from vitkit.experiments.lab.experiment import PAPER, TUNING, Ablation, Variant
from vitkit.model.config import ViTConfig
from vitkit.training.recipe import Recipe

_NONE, _LONGER = "none", "none, twice the epochs"
_EPOCHS = 20


def _first(label: str, paper: str | None = None, **fields: Any) -> Variant:
    from vitkit.training.defaults import PRESETS  # which loads torch, and the list of experiments need not

    from_scratch = {name: getattr(Recipe(), name) for name in PRESETS["full"] if name not in TUNING}
    return Variant(label, TUNING, paper, pretraining={**fields, "epochs": _EPOCHS}, usual=from_scratch)


def _variants(base: ViTConfig) -> tuple[Variant, ...]:  # noqa: ARG001  # they are the same of any
    return (
        Variant(_NONE),
        Variant(_LONGER, times={"epochs": 2}),
        _first("masked patches", "79.9", objective="masked-patch"),
        _first("MAE", objective="mae"),
    )


EXPERIMENT = Ablation(
    name="pretraining",
    question="Does it help to fill in hidden patches of the training images first, without their labels?",
    source=f"{PAPER}, sec. 4.6 and app. B.1.2; arXiv 2111.06377",
    says=(
        "ViT-B/16, pre-trained by masked patch prediction, has 79.9 % on ImageNet, 2 % more than from scratch and 4 % "
        "less than after supervised pre-training; MAE's ViT-B/16 has 83.6 % (1600 epochs)"
    ),
    differs=(
        "the papers pre-train on 300 million and 1.3 million images for a long time; here it is the training images of "
        "the experiment, for 20 epochs, all of them however few labels --max-images leaves to the training, which "
        "has the recipe of that from scratch; pre-training comes on top of its time"
    ),
    variants=_variants,
    against=_NONE,
    better=("masked patches", "MAE"),
    column="ImageNet, %",
)
