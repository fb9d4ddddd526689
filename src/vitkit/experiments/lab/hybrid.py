"""A ResNet's feature map in the place of patches (sec. 3.1; Figure 5)."""

from __future__ import annotations

from typing import Any

from vitkit.errors import VitkitError
from vitkit.experiments.lab.experiment import PAPER, Ablation, Variant, of_model
from vitkit.model.config import ViTConfig, stride_of


def _variants(base: ViTConfig) -> tuple[Variant, ...]:
    stems: dict[str, tuple[int, ...]] = {"the ResNet's root": (), "root and one stage": (2,)}
    fitting: dict[str, dict[str, Any]] = {}
    for label, stem in stems.items():
        patch = tuple(side // stride_of(stem) for side in base.patch_size)
        divides = all(own % stride_of(stem) == 0 for own in base.patch_size)
        if base.stem is None and divides:
            fitting[label] = {"stem": stem, "patch_size": patch}
    if not fitting:
        raise VitkitError(
            "the hybrids of this experiment divide an image by 4: name a --model with patches of 4, 8, ..."
        )
    return (of_model("patches"), *(of_model(label, **fields) for label, fields in fitting.items()))


EXPERIMENT = Ablation(
    name="hybrid",
    question="Patches of the image, or of a ResNet's feature map?",
    source=f"{PAPER}, sec. 4.4, Figure 5",
    says="hybrids are a little better at small computational budgets; the difference vanishes for larger models",
    differs="Figure 5 is accuracy against compute of pre-trained models, without a table; here equal epochs",
    recipe="paper-vit-b16-jft",
    variants=_variants,
    against="patches",
)
