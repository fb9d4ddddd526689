"""The training runs of the ViT paper (arXiv 2010.11929). Of their data sets, only the sizes are known here."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vitkit.errors import VitkitError
from vitkit.model.names import Config
from vitkit.training.defaults import choose, choose_patch_dropout, config_of, published_config
from vitkit.training.recipe import Recipe, bundled


@dataclass(frozen=True)
class Corpus:
    """A data set of the paper."""

    title: str
    images: int
    classes: int


# Sec. 4.1 of the paper; for JFT, the number of images is derived from the steps in Table 3.
CORPORA = {  # by the last part of the name of a bundled recipe
    "jft": Corpus("JFT-300M", 303_000_000, 18_291),
    "imagenet21k": Corpus("ImageNet-21k", 14_197_122, 21_843),
    "imagenet": Corpus("ImageNet-1k", 1_281_167, 1000),
    "cifar10": Corpus("CIFAR-10", 50_000, 10),
    "flowers": Corpus("Oxford Flowers-102", 2_040, 102),
    "pets": Corpus("Oxford-IIIT Pets", 3_680, 37),
}


@dataclass(frozen=True)
class PaperTraining:
    """A training run of the ViT paper (arXiv 2010.11929), with its recipe, model and data set."""

    recipe: Recipe  # complete
    config: Config
    corpus: Corpus

    @property
    def steps(self) -> int:
        return steps_of(self.recipe, self.corpus.images)


def is_of_paper(recipe: object) -> bool:
    """Return whether a name is that of a bundled recipe of the paper whose training set is known."""
    name = str(recipe)
    return name.startswith("paper-") and name in bundled() and name.rpartition("-")[2] in CORPORA


def paper_training(requested: Recipe) -> PaperTraining:
    """Complete a bundled recipe of the paper, in which fields may be changed. Its images and weights are not needed.

    Raises:
        VitkitError: the fields cannot be combined, or the model of the named weights is unknown.
    """
    name = str(requested.source)
    corpus = CORPORA[name.rpartition("-")[2]]
    recipe, _ = choose(requested, corpus.images / corpus.classes)
    if recipe.weights == "none":
        config = config_of(recipe, corpus.classes)
    elif recipe.model is not None:
        config = published_config(recipe, recipe.model, corpus.classes)
    else:
        message = f"{name}: set the model that the weights {recipe.weights} belong to with --model"
        raise VitkitError("training.model-missing", message)
    return PaperTraining(choose_patch_dropout(recipe, requested.given, config), config, corpus)


def steps_of(recipe: Recipe, images: int) -> int:
    """Return the number of steps of a training by gradient descent with `images` images in an epoch."""
    return math.ceil(math.ceil(images / recipe.batch_size) / recipe.grad_accum) * recipe.epochs
