"""Depth, width, and the size of a patch (app. D.2, Figure 8)."""

from __future__ import annotations

from vitkit.experiments.lab.experiment import PAPER, Ablation, Variant, of_model
from vitkit.model.config import ViTConfig


def _variants(base: ViTConfig) -> tuple[Variant, ...]:
    height, width = base.patch_size
    finer = base.stem is None and not (height % 2 or width % 2)
    return (
        of_model("as it is"),
        of_model("half the depth", layers=max(base.layers // 2, 1)),
        of_model("twice the depth", layers=2 * base.layers),
        of_model("half the width", hidden_size=base.hidden_size // 2),
        of_model("twice the width", hidden_size=2 * base.hidden_size),
        of_model("half the MLP", mlp_size=base.mlp_size // 2),
        *([of_model("patches of half the side", patch_size=(height // 2, width // 2))] if finer else []),
    )


EXPERIMENT = Ablation(
    name="shape",
    question="More layers, wider ones, or smaller patches?",
    source=f"{PAPER}, app. D.2, Figure 8",
    says="depth helps most, less so after 16 layers; width least; smaller patches help without more parameters",
    differs="Figure 8 is the 5-shot accuracy on ImageNet against compute, as curves without figures",
    recipe="paper-vit-b16-jft",
    variants=_variants,
    against="as it is",
)
