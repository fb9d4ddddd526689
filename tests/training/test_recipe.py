"""A recipe says what it means, survives TOML, and refuses what it does not understand by name."""

import math
import re
import tomllib
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny
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
    flatten_fields,
    parse_duration,
    parse_set_arguments,
)
from vitkit.weights import find

RANGES = {
    name: (mark.low, mark.high)
    for name, hint in hints_of(Recipe).items()
    for mark in alternatives(hint)[1]
    if isinstance(mark, Between)
}
TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)

# What cannot be drawn from the type alone.
_VALUES: dict[str, list[Any]] = {
    "model_fields": [{"position": "none", "layers": 7, "stem": (1, 4), "layer_scale": 1e-6}, {"stem": ()}],
    "checkpointing": ["none", "all", "3"],
    "group_by": ["scene[0-9]+", "^([^_]+)_"],
    "time": ["90s", "1.5h", "7"],
    "save_every": ["10m"],
    "split": [(0.7, 0.1, 0.2), (0.3, 0.0, 0.7)],
    "crop_scale": [(0.0, 0.0), (0.1, 1.0)],
}


def _values(name: str, kind: Any, *others: Any) -> st.SearchStrategy[Any]:
    low, high = RANGES.get(name, (0.0, 1.0))
    if others:
        return st.none() | _values(name, kind)
    if name in _VALUES:
        return st.sampled_from(_VALUES[name])
    if get_origin(kind) is not None:
        return st.sampled_from(get_args(kind))
    numbers = {float: st.floats(low, high), int: st.integers(math.ceil(low), int(high))}
    return {bool: st.booleans(), str: TEXT, **numbers}[kind]


@settings(max_examples=3)
@given(st.data())
def test_a_recipe_survives_toml_which_has_no_key_of_what_is_none(drawn: st.DataObject) -> None:
    assert type(Recipe.of({"lr": 1}).lr) is float, "a whole number serves where a number is expected"
    for name, hint in hints_of(Recipe).items():
        recipe = Recipe(epochs=7).replace(**{name: drawn.draw(_values(name, *alternatives(hint)[0]))})
        text = recipe.to_toml()
        assert Recipe.of(tomllib.loads(text)) == recipe
        has = {field for field, own in recipe.to_dict().items() if own is not None}
        assert set(flatten_fields(tomllib.loads(text))) == has


# What a published recipe may leave open: it is off unless asked for, or changes nothing but rounding and speed.
OPEN = {"image_size", "lora_rank", "time", "swa_lr", "teacher", "distillation", "distill_alpha", "distill_temperature"}
OPEN |= {
    *("group_by", "folds", "max_images", "split_seed", "patience", "save_every", "logger", "device", "devices"),
    *("nodes", "checkpointing", "compile", "cache", "data", "workers", "distill_scale", "split_from"),
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
        *((line, "text.value-wrong") for line in ("lr = true", "epochs = 2.0", 'optimizer = "lion"')),
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
        ({"lr": float("nan")}, "text.value-wrong"),
        ({"crop_scale": (0.8, 0.3)}, "training.crop-scale"),
        ({"group_by": "scene("}, "training.group-pattern"),
        *(({"time": text}, "training.duration-invalid") for text in ("0s", "10 minutes")),
        ({"save_every": "nan"}, "training.duration-invalid"),
        ({"checkpointing": "0"}, "training.checkpointing-invalid"),
        ({"method": "scratch", "weights": "runs/other"}, "training.fields-conflict"),
        ({"swa": 0.25, "time": "9s"}, "training.fields-conflict"),  # which has no known end
        ({"method": "lora", "weights": "none"}, "training.fields-conflict"),
        ({"swa": 0.25, "ema": 0.9}, "training.averages-twice"),
        ({"model_fields": {"positon": "none"}}, "training.model-field-unknown"),
        ({"model_fields": {"layers": "6"}}, "text.value-wrong"),
        ({"model_fields": {"patch_size": [4]}}, "model.value-invalid"),
        ({"model_fields": {"num_classes": 3}}, "training.model-field-refused"),
        ({"model_fields": 3}, "training.model-fields-type"),
        ({"dropout": 0.1, "model_fields": {"dropout": 0.1}}, "training.field-repeated"),
        ({"image_size": 32, "model_fields": {"image_size": (8, 16)}}, "training.field-repeated"),
        ({"model": {"depth": 2, "layers": 2}}, "model.option-repeated"),
    ],
    ids=str,
)
def test_what_is_out_of_range_or_contradicts_itself_is_refused_by_name(fields: dict[str, Any], code: str) -> None:
    with refused(code, *(fields.keys() - {"model", "model_fields"})):
        Recipe.of(fields)


def test_durations_are_read() -> None:
    assert Recipe().budget is None
    for text, seconds in {"90s": 90, "10m": 600, "1.5h": 5400, "45": 45, " 3 s ": 3}.items():
        assert parse_duration(text) == Recipe(time=text).budget == seconds


def test_a_table_is_the_model_and_what_is_changed_of_it_and_flags_go_before_it_field_by_field(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('data = "d"\n[model]\nname = "vit_micro_patch4_16"\nposition = "none"\nlayers = 2\ndropout = 0.1\n')
    recipe = Recipe.load(path)
    assert (recipe.model, recipe.model_fields) == ("vit_micro_patch4_16", {"position": "none", "layers": 2})
    assert recipe.dropout == 0.1, "what the recipe has itself is there"
    recipe = resolved({"model_fields": {"layers": 3}, "dropout": 0.2}, path)
    assert recipe.model_fields == {"position": "none", "layers": 3}
    assert recipe.dropout == 0.2
    assert resolved({"model": {"name": "vit_tiny_patch4_16", "layers": 5}}, path).model == "vit_tiny_patch4_16"
    assert resolved({"model_fields": {"dropout": 0.3}}, path).dropout == 0.3


def test_a_side_takes_the_place_of_a_size_that_is_not_square_and_the_other_way_round(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('data = "d"\n[model]\nname = "vit_micro_patch4_16"\nimage_size = [8, 16]\n')
    assert Recipe.load(path).model_fields == {"image_size": (8, 16)}
    square = resolved({"image_size": 32}, path)
    assert (square.image_size, square.model_fields) == (32, None)
    path.write_text('data = "d"\nimage_size = 32\nmodel = "vit_micro_patch4_16"\n')
    assert resolved({"model_fields": {"image_size": (8, 16)}}, path).image_size is None


MEANT: dict[str, dict[str, Any]] = {
    "depth=6": {"layers": 6}, "stem=": {"stem": ()}, "stem=3,4,9": {"stem": (3, 4, 9)}, "name=n": {"name": "n"},
    "layer_scale=1e-5": {"layer_scale": 1e-5}, "layer_scale=none": {"layer_scale": None},
    "mlp_ratio=2": {"mlp_ratio": 2.0}, "patch_size=4": {"patch_size": (4, 4)}, "img_size=32": {"image_size": (32, 32)},
}  # fmt: skip


def test_a_flag_is_read_as_its_field() -> None:
    recipe = {"split": (0.5, 0.2, 0.3), "decay_all": True, "fit": None, "step_per": "epoch", "split_seed": 3}
    given = ["split=0.5, 0.2,0.3", "decay_all=true", "fit=none", "step_per=epoch", "split_seed=3"]
    for text, meant in MEANT.items():
        assert parse_set_arguments([f"model.{text}"], {}) == {"model_fields": meant}
        assert parse_set_arguments([*given, f"model.{text}"], hints_of(Recipe)) == {**recipe, "model_fields": meant}


@pytest.mark.parametrize(
    ("texts", "code", "named"),
    [
        ("shaer=5", "text.field-unknown", "shear"),
        ("model.position", "training.set-syntax", "model.position"),
        ("model.layers=2 model.depth=3", "training.field-repeated", "model.layers"),
        ("model.drop_rate=0.1", "model.option-unsupported", "drop_rate"),
        ("shear=much", "text.value-wrong", "shear"),
        *((f"model.{own}", "text.value-wrong", own[:5]) for own in ("layers=2.0", "qkv_bias=1", "layer_scale=nan")),
    ],
)
def test_a_flag_that_says_nothing_is_refused(texts: str, code: str, named: str) -> None:
    with refused(code, named):
        parse_set_arguments(texts.split(), hints_of(Recipe))


def test_what_is_typed_of_any_model_is_that_model() -> None:
    """Every field that a model of the variety has, as a flag would say it."""
    for own in tiny.VARIETY.values():
        found = dict[str, Any]()
        for field, value in own.items():
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()
            found |= parse_set_arguments([f"model.{field}={text}"], {})["model_fields"]
        assert found == {**own, **{k: tuple(v) for k, v in own.items() if isinstance(v, (list, tuple))}}


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
