"""What an ablation would take at the published size: models are built and steps counted. Nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from vitkit.experiments.lab.experiment import Ablation
from vitkit.experiments.lab.presets import base_config, base_fields, published_recipe, variant_fields
from vitkit.experiments.lab.result import LabResult
from vitkit.training.recipe import build


class Corpus(NamedTuple):
    """What a model is pre-trained on."""

    title: str
    images: int
    classes: int


CORPORA = {  # by the last part of a recipe's name
    "jft": Corpus("JFT-300M", 303_000_000, 18_291),
    "imagenet21k": Corpus("ImageNet-21k", 14_197_122, 21_843),
    "imagenet": Corpus("ImageNet-1k", 1_281_167, 1000),
}


def foresee(ablation: Ablation, fields: Mapping[str, Any]) -> LabResult:
    """The variants of an ablation with the published hyper-parameters, and what training each would take.

    Args:
        ablation: which.
        fields: of the recipe, that go before the published ones.

    Raises:
        VitkitError: a variant cannot be built, or what it varies was asked for, or there is no published recipe.
    """
    from vitkit.experiments.comparison_plan import passes_of
    from vitkit.experiments.plan_recipe import passes
    from vitkit.profiling.model_info import describe

    recipe_name = published_recipe(ablation)
    corpus = CORPORA[recipe_name.rpartition("-")[2]]
    base = base_fields(ablation, corpus.title, "paper", fields)
    variants, rows = [], []
    for variant in ablation.variants(base_config(base)):
        recipe = build(variant_fields(base, fields, variant), variant.label)
        config = base_config(recipe.__dict__).replace(num_classes=corpus.classes)
        info = describe(config)
        seen, steps = passes(recipe, corpus.images)
        own = {"label": variant.label, "paper": variant.paper, "parameters": info.parameters, "gmacs": info.gmacs}
        own |= {"tokens_per_image": config.tokens, "steps": steps, "warmup_steps": round(recipe.warmup * steps)}
        own |= {
            "lr": recipe.lr,
            "tokens": seen * config.tokens,
            "flops": 2e9 * passes_of("scratch") * info.gmacs * seen,
        }
        variants.append(own)
        row = [variant.label, f"{info.parameters:,}", f"{info.gmacs:.4g}", str(config.tokens), f"{steps:,}"]
        rows.append((*row, f"{recipe.lr:.3g}", f"{own['tokens']:.3g}", f"{own['flops']:.3g}", variant.paper or "-"))
    headings = ["", "parameters", "GMACs", "tokens an image", "steps", "learning rate", "tokens", "FLOPs"]
    told = [
        f"{recipe_name} on {corpus.title}, {corpus.images:,} images of {corpus.classes:,} classes: nothing was trained",
        "the images are no part of this: with --data FOLDER the variants are trained on others by the same recipe",
    ]
    figures = {"experiment": ablation.name, "preset": "paper", "recipe": recipe_name, "variants": variants}
    column = f"paper: {ablation.column}" if ablation.column else "paper"
    figures["command"] = f"vitkit lab {ablation.name} --preset paper"
    return LabResult(ablation, figures, (*headings, column), tuple(rows), tuple(told))
