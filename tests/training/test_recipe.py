"""A recipe says what it means, survives TOML, and refuses what it does not understand by name."""

import dataclasses
import math
import re
import tomllib
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refusals import refused
from runs import resolved
from vitkit.data import ImageTable
from vitkit.model import config_for
from vitkit.profiling import describe
from vitkit.text.arguments import Between, alternatives, hints_of
from vitkit.training import (
    BY_METHOD,
    PRESETS,
    Recipe,
    bundled,
    choose_patch_dropout,
    complete,
    config_of,
    describe_changed_fields,
    flatten_fields,
    parse_duration,
)
from vitkit.weights import find

TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
RANGES = {
    name: (mark.low, mark.high)
    for name, hint in hints_of(Recipe).items()
    for mark in alternatives(hint)[1]
    if isinstance(mark, Between)
}

# What cannot be drawn from the type alone.
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "model_fields": st.sampled_from(
        [
            None,
            {"position": "none", "layers": 7, "stem": (1, 4), "layer_scale": 1e-6},
            {"patch_size": (3, 64), "class_token": False, "layer_scale": None, "stem": None},
            {"stem": (), "class_token": True},
        ]
    ),
    "method": st.sampled_from(["auto", "probe-sgd", "full", "scratch"]),  # lora wants weights, head no steps
    "swa": st.just(0.0),  # not with ema or time
    "checkpointing": st.sampled_from(["none", "all"]) | st.integers(1, 10**5).map(str),
    "find_lr": st.just(False),
    "split_from": st.none(),  # not together with folds
    "group_by": st.none() | st.sampled_from(["scene[0-9]+", "^([^_]+)_"]),
    "time": st.none() | st.sampled_from(["90s", "10m", "2h", "1.5h", "7"]),
    "save_every": st.none() | st.sampled_from(["90s", "10m", "2h"]),
    "weights": st.sampled_from(["auto", "none"]),
    "head_from": st.sampled_from(["auto", "zero"]),  # names neither with lp_ft nor without weights
    "split": st.integers(1, 100).map(lambda n: (n / 100, 0.0, 1 - n / 100)) | st.just((0.7, 0.1, 0.2)),
    "crop_scale": st.just((0.0, 0.0)) | st.tuples(st.floats(0.01, 0.5), st.floats(0.5, 1)),
}


def _values(name: str, kind: Any, *others: Any) -> st.SearchStrategy[Any]:
    low, high = RANGES.get(name, (0.0, 1.0))
    if name in _VALUES:
        return _VALUES[name]
    if others:
        return st.none() | _values(name, kind)
    if get_origin(kind) is not None and "Literal" in str(get_origin(kind)):
        return st.sampled_from(get_args(kind))
    if get_origin(kind) is tuple:
        return st.tuples(*[st.floats(0, 1)] * len(get_args(kind)))
    numbers = {float: st.floats(low, high), int: st.integers(math.ceil(low), int(high))}
    return {bool: st.booleans(), str: TEXT, **numbers}[kind]


RECIPES = st.builds(Recipe, **{name: _values(name, *alternatives(hint)[0]) for name, hint in hints_of(Recipe).items()})


@settings(max_examples=30)
@given(RECIPES, st.integers(1, 1000))
def test_a_recipe_survives_toml_which_has_no_key_of_what_is_none(recipe: Recipe, epochs: int) -> None:
    text = recipe.to_toml()
    assert Recipe.of(tomllib.loads(text)) == recipe
    assert set(flatten_fields(tomllib.loads(text))) == {
        name for name, own in recipe.to_dict().items() if own is not None
    }
    assert recipe.replace(epochs=epochs) == dataclasses.replace(recipe, epochs=epochs)
    assert type(Recipe.of({"lr": 1}).lr) is float, "a whole number serves where a number is expected"


def test_flags_go_before_the_file_and_the_file_before_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('data = "flowers"\nepochs = 7\nlr = 0.5\n')
    recipe = resolved({"lr": 0.25}, tmp_path / "mine.toml")
    assert (recipe.data, recipe.lr, recipe.epochs, recipe.momentum) == ("flowers", 0.25, 7, Recipe().momentum)
    assert resolved({"data": "trees"}, tmp_path / "mine.toml").data == "trees"
    with refused("training.data-missing"):
        resolved({})


def test_digits_are_trained_by_their_bundled_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    published = Recipe.load("digits").set_fields()
    assert resolved({"data": "Digits", "epochs": 3}).set_fields() == {**published, "data": "Digits", "epochs": 3}
    Path("mine.toml").write_text("epochs = 7\n")
    assert resolved({"data": "digits"}, "mine.toml").set_fields() == {"data": "digits", "epochs": 7}
    Path("digits").mkdir()
    assert resolved({"data": "digits"}).set_fields() == {"data": "digits"}


# What a published recipe may leave open: it is off unless asked for, or changes nothing but rounding and speed.
OPEN = {"image_size", "lora_rank", "time", "swa_lr", "teacher", "distillation", "distill_alpha", "distill_temperature"}
OPEN |= {
    *("group_by", "folds", "max_images", "split_seed", "patience", "save_every", "logger", "device", "devices"),
    *("nodes", "strategy", "checkpointing", "compile", "cache", "data", "workers", "distill_scale", "split_from"),
    *("layout", "follow_links", "labels", "init", "model_fields"),
}


@pytest.mark.parametrize("name", sorted(bundled()))
def test_a_published_recipe_leaves_nothing_to_the_method_the_data_or_the_machine(name: str) -> None:
    hints, fields = hints_of(Recipe), Recipe.load(name).set_fields()
    by_method = {field for field, hint in hints.items() if BY_METHOD in getattr(hint, "__metadata__", ())}
    assert {field for preset in PRESETS.values() for field in preset} <= by_method <= fields.keys()
    open_fields = set(hints) - fields.keys() - OPEN
    assert open_fields <= ({"method"} if fields["weights"] == "none" else set()), "no weights: it is from scratch"
    assert "auto" not in fields.values()
    labels = (0,) * 900 + (1,) * 30  # so uneven and so many that whatever can be chosen is
    paths = tuple(f"{i}.png" for i in range(len(labels)))
    table = ImageTable("t", Path(), ("a", "b"), paths, labels, (None,) * len(labels))
    settled, reasons = complete(Recipe.of(fields), table)
    settled = choose_patch_dropout(settled, fields, config_for(fields["model"], 2))
    assert (settled, reasons) == (Recipe.of({"method": "scratch", **fields}), [])


PUBLISHED: dict[str, dict[str, Any]] = {
    "flowers-head": {
        "model": "vit_base_patch16_224_in21k", "weights": "vit_base_patch16_224.jx_in21k", "method": "probe-sgd",
        "epochs": 10, "batch_size": 8, "optimizer": "sgd", "lr": 1e-3, "momentum": 0.9, "weight_decay": 5e-5,
        "schedule": "cosine", "step_per": "epoch", "min_lr": 0.01, "warmup": 0.0, "clip_grad": 0.0,
        "crop_scale": (0.08, 1.0), "hflip": True, "fit": "crop", "crop_pct": 224 / 256, "decay_all": True,
        "split": (0.8, 0.2, 0.0), "seed": 0, "precision": "float32", "patch_dropout": 0.0, "balance": "none",
        "label_smoothing": 0.0, "color_jitter": 0.0, "drop_path": 0.0, "lp_ft": False, "keep": "every",
    },
    "cifar10-vit-tiny": {
        "model": "vit_tiny_patch16_224", "weights": "vit_tiny_patch16_224.augreg_in21k_ft_in1k", "method": "full",
        "epochs": 10, "batch_size": 128, "optimizer": "adam", "lr": 1e-3, "weight_decay": 0.0, "schedule": "cosine",
        "step_per": "epoch", "min_lr": 0.0, "warmup": 0.0, "crop_scale": (0.0, 0.0), "hflip": False, "fit": "squash",
        "color_jitter": 0.0, "seed": 42, "monitor": "val_loss", "swa": 0.2, "precision": "float32",
        "patch_dropout": 0.0, "clip_grad": 0.0, "label_smoothing": 0.0, "drop_path": 0.0, "lp_ft": False,
        "layer_decay": 1.0, "keep": "every",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_recipe_has_the_values_of_the_original(name: str) -> None:
    recipe = Recipe.load(name)
    assert {field: getattr(recipe, field) for field in PUBLISHED[name]} == PUBLISHED[name]
    entry = find(recipe.weights)
    assert entry.architecture == recipe.model
    assert entry.preprocess.mean == entry.preprocess.std == (0.5, 0.5, 0.5)
    assert entry.classes == {"flowers-head": "imagenet21k", "cifar10-vit-tiny": "imagenet1k"}[name]


def test_flags_go_before_a_published_recipe_and_what_they_change_is_said() -> None:
    recipe = resolved({"data": "photos", "epochs": 2, "patch_dropout": 0.3, "seed": 0}, "flowers-head")
    assert recipe.patch_dropout == 0.3
    (line,) = describe_changed_fields(recipe)
    assert line == "recipe flowers-head, changed: patch_dropout 0.3 (published: 0.0), epochs 2 (published: 10)"
    assert describe_changed_fields(Recipe.load("flowers-head")) == describe_changed_fields(Recipe(data="photos")) == []
    (line,) = describe_changed_fields(
        resolved({"data": "digits", "model_fields": {"position": "none", "drop_path": 0.0}})
    )
    assert "drop_path 0.0 (published: 0.1)" in line and "model.position none" in line


def test_another_model_than_the_published_one_does_not_start_from_its_weights_nor_the_other_way_round() -> None:
    flags = {"data": "photos", "model": "vit_small_patch16_224"}
    assert resolved(flags, "flowers-head").weights == "auto"
    assert resolved({**flags, "weights": "w.pth"}, "flowers-head").weights == "w.pth"
    assert resolved({"data": "digits", "model": "vit_micro_convmlp_patch4_16"}).weights == "none"
    published = Recipe.load("digits")
    assert published.updated(Recipe(weights="runs/mine")).model is None
    assert published.updated(Recipe(weights="none")).model == published.model
    assert published.updated(Recipe(weights="runs/mine", model="vit_micro_patch8_16")).model == "vit_micro_patch8_16"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        *((line, "text.value-wrong") for line in ('lr = "1e-3"', "lr = true", "epochs = true", "epochs = 2.0")),
        *((line, "text.value-wrong") for line in ("hflip = 1", "model = 3", 'optimizer = "lion"', "patience = []")),
        *((f"split = {value}", "text.value-wrong") for value in ('"0.7 0.1 0.2"', "[0.7, 0.3]", '[0.7, 0.1, "0.2"]')),
        ("split = [0.0, 0.5, 0.5]", "training.split-shares"),
        ("lr = -1.0", "text.value-outside"),
        ("epoch = 7", "text.field-unknown"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_name_and_file(tmp_path: Path, line: str, code: str) -> None:
    name = line.split()[0]
    (tmp_path / "mine.toml").write_text(line + "\n")
    with refused(code, str(tmp_path / "mine.toml"), name):
        resolved({"data": "photos"}, tmp_path / "mine.toml")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        *(({name: low - 1}, "text.value-outside") for name, (low, _) in RANGES.items()),
        *(({name: math.ceil(high) + 1}, "text.value-outside") for name, (_, high) in RANGES.items()),
        ({"balance": "undersample"}, "text.value-wrong"),
        ({"step_per": "batch"}, "text.value-wrong"),
        ({"lr": float("nan")}, "text.value-wrong"),
        ({"crop_scale": (0.8, 0.3)}, "training.crop-scale"),
        ({"group_by": "scene("}, "training.group-pattern"),
        *(({"time": text}, "training.duration-invalid") for text in ("0", "0s", "-5s", "10 minutes", "1e3", "m")),
        *(({"save_every": text}, "training.duration-invalid") for text in ("1:30", "nan", "often")),
        *(({"checkpointing": text}, "training.checkpointing-invalid") for text in ("some", "0", "9" * 9)),
        ({"method": "scratch", "weights": "runs/other"}, "training.fields-conflict"),
        ({"swa": 0.25, "time": "9s"}, "training.fields-conflict"),  # which has no known end
        ({"method": "lora", "weights": "none"}, "training.fields-conflict"),
        ({"swa": 0.25, "ema": 0.9}, "training.averages-twice"),
    ],
    ids=str,
)
def test_what_is_out_of_range_or_contradicts_itself_is_refused_by_name(fields: dict[str, Any], code: str) -> None:
    with refused(code, *fields):
        Recipe.of(fields)


def test_durations_are_read_and_files_that_are_no_recipes_are_refused_by_name(tmp_path: Path) -> None:
    assert Recipe().budget is None
    for text, seconds in {"90s": 90, "10m": 600, "2h": 7200, "1.5h": 5400, "45": 45, " 3 s ": 3}.items():
        assert parse_duration(text) == Recipe(time=text).budget == seconds
    (tmp_path / "mine.toml").write_text("epochs: 7\n")
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8\xff\xe0 no text")
    for name in ("mine.toml", "photo.jpg"):
        with refused("training.recipe-damaged", name):
            Recipe.load(tmp_path / name)
    with refused("training.recipe-unknown", "nowhere", "digits"):
        Recipe.load("nowhere")


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


def test_there_is_a_recipe_for_each_row() -> None:
    named = {f"paper-vit-{size}-{corpus}" for size, corpus in PRE_TRAINING}
    named |= {f"paper-finetune-b16-{task}" for task in FINE_TUNING}
    assert {name for name in bundled() if name.startswith("paper-")} == named


@pytest.mark.parametrize(("size", "corpus"), PRE_TRAINING)
def test_pre_training_is_table_3(size: str, corpus: str) -> None:
    name = f"paper-vit-{size}-{corpus}"
    recipe = Recipe.load(name)
    found = (recipe.epochs, recipe.lr, recipe.weight_decay, recipe.dropout, recipe.schedule, recipe.clip_grad)
    assert found == PRE_TRAINING[size, corpus]
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
    config = config_of(Recipe.load(f"paper-vit-{size}-jft"), CLASSES["imagenet21k"])
    info = describe(config)
    assert (info.parameters, config.tokens) == (PARAMETERS[size], TOKENS[size])
    assert describe(config.replace(num_classes=1000, representation_size=None)).gmacs == pytest.approx(
        GMACS[size], rel=2e-3
    )


@pytest.mark.parametrize("task", FINE_TUNING)
def test_fine_tuning_is_table_4(task: str) -> None:
    name = f"paper-finetune-b16-{task}"
    recipe = Recipe.load(name)
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
    assert round(recipe.warmup * recipe.epochs * each) == int(warm_up[1].replace(",", ""))
    entry = find(recipe.weights)
    assert entry.classes == "imagenet21k"
    assert config_for(entry.architecture).replace(image_size=384).grid == (24, 24)
