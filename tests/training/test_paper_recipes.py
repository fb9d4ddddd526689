"""The paper's hyper-parameters as recipes: every one builds, and has the numbers of Tables 3 and 4."""

from __future__ import annotations

import math
import re

import pytest

from vitkit.model import config_for
from vitkit.profiling import describe
from vitkit.training import Recipe, build, bundled, config_of, load_fields
from vitkit.weights import find

IMAGES = {"jft": 303_000_000, "imagenet21k": 14_197_122, "imagenet": 1_281_167}
CLASSES = {"jft": 18_291, "imagenet21k": 21_843, "imagenet": 1000}

# Table 3: epochs, peak learning rate, weight decay, dropout, schedule, largest norm of the gradient.
PRE_TRAINING = {
    ("b16", "jft"): (7, 8e-4, 0.1, 0.0, "linear", 0),
    ("l32", "jft"): (7, 6e-4, 0.1, 0.0, "linear", 0),
    ("l16", "jft"): (14, 4e-4, 0.1, 0.0, "linear", 0),
    ("h14", "jft"): (14, 3e-4, 0.1, 0.0, "linear", 0),
    ("b16", "imagenet21k"): (90, 1e-3, 0.03, 0.1, "linear", 0),
    ("l16", "imagenet21k"): (90, 1e-3, 0.03, 0.1, "linear", 0),
    ("b16", "imagenet"): (300, 3e-3, 0.3, 0.1, "cosine", 1),
    ("l16", "imagenet"): (300, 3e-3, 0.3, 0.1, "cosine", 1),
}
# Table 4: steps, the images that an epoch has here, and the least and the largest learning rate.
FINE_TUNING = {
    "imagenet": (20_000, 1_281_167, 0.003, 0.06),
    "cifar10": (10_000, 49_000, 0.001, 0.03),
    "pets": (500, 3_312, 0.001, 0.03),
    "flowers": (500, 1_020, 0.001, 0.03),
    "vtab": (2_500, 1_000, 0.01, 0.01),
}
# Parameters with the hidden layer of the head, of ImageNet-21k; counted by the reference implementation.
PARAMETERS = {"b16": 103_186_515, "l16": 326_740_307, "l32": 328_949_075, "h14": 660_385_363}
GMACS = {"b16": 17.564, "l16": 61.555, "l32": 15.378, "h14": 167.295}
TOKENS = {"b16": 197, "l16": 197, "l32": 50, "h14": 257}


def recipe_of(name: str) -> Recipe:
    return build(load_fields(name), name)


def test_there_is_one_for_each_row() -> None:
    named = {f"paper-vit-{size}-{corpus}" for size, corpus in PRE_TRAINING}
    assert {name for name in bundled() if name.startswith("paper-")} == named | {
        f"paper-finetune-b16-{task}" for task in FINE_TUNING
    }


@pytest.mark.parametrize(("size", "corpus"), PRE_TRAINING)
def test_pre_training_is_table_3(size: str, corpus: str) -> None:
    name = f"paper-vit-{size}-{corpus}"
    recipe = recipe_of(name)
    expected = PRE_TRAINING[size, corpus]
    found = (recipe.epochs, recipe.lr, recipe.weight_decay, recipe.dropout, recipe.schedule, recipe.clip_grad)
    assert found == expected
    assert (recipe.batch_size, recipe.optimizer, recipe.momentum, recipe.beta2) == (4096, "adamw", 0.9, 0.999)
    assert (recipe.weights, recipe.drop_path, recipe.label_smoothing) == ("none", 0.0, 0.0)
    config = config_of(recipe, CLASSES[corpus])
    assert config.position_dropout == config.dropout == recipe.dropout, "after the positions, too (app. B.1)"
    steps = recipe.epochs * math.ceil(IMAGES[corpus] / recipe.batch_size)
    assert round(recipe.warmup * steps) == pytest.approx(10_000, abs=1), "warm-up steps"
    head = "\n".join(line for line in bundled()[name].splitlines() if line.startswith("#"))
    assert f"{IMAGES[corpus]:,} images" in head
    assert f"{steps:,} steps" in head


@pytest.mark.parametrize("size", PARAMETERS)
def test_the_models_that_are_pre_trained_have_the_references_size(size: str) -> None:
    config = config_of(recipe_of(f"paper-vit-{size}-jft"), CLASSES["imagenet21k"])
    info = describe(config)
    assert (info.parameters, config.tokens) == (PARAMETERS[size], TOKENS[size])
    assert describe(config.replace(num_classes=1000, representation_size=None)).gmacs == pytest.approx(
        GMACS[size], rel=2e-3
    )


@pytest.mark.parametrize("task", FINE_TUNING)
def test_fine_tuning_is_table_4(task: str) -> None:
    name = f"paper-finetune-b16-{task}"
    recipe = recipe_of(name)
    said, images, least, largest = FINE_TUNING[task]
    assert (recipe.optimizer, recipe.momentum, recipe.weight_decay) == ("sgd", 0.9, 0.0)
    assert (recipe.batch_size, recipe.schedule, recipe.clip_grad) == (512, "cosine", 1.0)
    assert (recipe.method, recipe.image_size, recipe.lp_ft, recipe.layer_decay) == ("full", 384, False, 1.0)
    assert least <= recipe.lr <= largest
    assert ("several learning rates" in bundled()[name]) == (least < largest), "VTAB has one for all tasks (app. B.1.1)"
    each = math.ceil(images / recipe.batch_size)
    assert abs(recipe.epochs * each - said) <= each / 2, "no other number of epochs is nearer"
    assert f"{recipe.epochs * each:,} steps" in bundled()[name]
    warm_up = re.search(r"Warm-up is\s+# ([\d,]+) steps", bundled()[name])
    assert warm_up is not None
    assert round(recipe.warmup * recipe.epochs * each) == int(warm_up[1].replace(",", ""))
    entry = find(recipe.weights)
    assert entry is not None
    assert entry.classes == "imagenet21k"
    assert config_for(entry.architecture).replace(image_size=384).grid == (24, 24)
