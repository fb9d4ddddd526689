"""Fine-tuning at a higher resolution than that of the training before, with interpolated positions (sec. 3.2)."""

from __future__ import annotations

from vitkit.experiments.lab.experiment import PAPER, TUNING, Ablation, Variant
from vitkit.model.config import ViTConfig

_TRAINED, _SAME = "trained", "tuned on, the same size"
_LESS = {"epochs": 1 / 3, "lr": 1 / 3}


def _variants(base: ViTConfig) -> tuple[Variant, ...]:
    height, width = base.image_size
    twice = {"model_fields": {"image_size": (2 * height, 2 * width)}}
    return (
        Variant(_TRAINED),
        Variant(_SAME, TUNING, times=_LESS, after=_TRAINED),
        Variant("tuned on, twice the side", {**TUNING, **twice}, times=_LESS, after=_TRAINED),
    )


EXPERIMENT = Ablation(
    name="resolution",
    question="Does it help to fine-tune at a higher resolution than one has trained at?",
    source=f"{PAPER}, sec. 3.2",
    says="it is often beneficial; the paper fine-tunes at 384 px (512 and 518 for its best) what it pre-trained at 224",
    differs=(
        "the paper has no table of it; here the same images are trained on before and after, by a small model, for a "
        "third of the epochs; pictures that are smaller than the model's (the digits are 8x8) have no more to show"
    ),
    variants=_variants,
    against=_SAME,
)
