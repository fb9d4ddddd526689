"""`[model]` and `--set`: any field of the model, each in one place, typed, recorded, and never loaded by half."""

from pathlib import Path
from typing import Any

import pytest

import runs
import tiny
import vitkit as package
from refusals import refused
from runs import resolved
from vitkit.data import ImageTable, read_source
from vitkit.text.arguments import hints_of
from vitkit.training import Recipe, blueprint_of, parse_set_arguments, prefix_errors


@pytest.fixture(scope="module")
def table() -> ImageTable:
    return read_source(runs.shared_photos())


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


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"model_fields": {"positon": "none"}}, "training.model-field-unknown"),
        ({"model_fields": {"layers": "6"}}, "text.value-wrong"),
        ({"model_fields": {"patch_size": [4]}}, "model.value-invalid"),
        ({"model_fields": {"num_classes": 3}}, "training.model-field-refused"),
        ({"model_fields": 3}, "training.model-fields-type"),
        ({"model_fields": {}}, "training.model-field-missing"),
        ({"dropout": 0.1, "model_fields": {"dropout": 0.1}}, "training.field-repeated"),
        ({"image_size": 32, "model_fields": {"image_size": (8, 16)}}, "training.field-repeated"),
        ({"model": {"depth": 2, "layers": 2}}, "model.option-repeated"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(fields: dict[str, Any], code: str) -> None:
    with refused(code, "mine.toml"), prefix_errors("mine.toml"):
        Recipe.of(fields)


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
    for given in tiny.VARIETY.values():
        found = dict[str, Any]()
        for field, value in given.items():
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()
            found |= parse_set_arguments([f"model.{field}={text}"], {})["model_fields"]
        assert found == {**given, **{k: tuple(v) for k, v in given.items() if isinstance(v, (list, tuple))}}


def test_training_and_create_model_mean_the_same(table: ImageTable) -> None:
    changes: dict[str, Any] = {"position": "relative", "layers": 2, "mlp_ratio": 2, "in_channels": 1, "pool": "gap"}
    recipe = runs.quick(table.root, model_fields=changes, drop_path=0.0)
    begun = blueprint_of(recipe, table.classes)
    assert begun.config == package.create_model(str(recipe.model), 3, **changes).config
    assert (begun.preprocess.mean, begun.preprocess.size) == ((0.5,), (16, 16)), "grey pictures"
    with refused("training.channels-unsupported", "in_channels"):
        blueprint_of(runs.quick(table.root, model_fields={"in_channels": 4}), table.classes)


def test_the_run_records_its_model_and_goes_on_with_no_other(table: ImageTable, tmp_path: Path) -> None:
    model = {"name": runs.QUICK["model"], "position": "none", "layers": 1}
    fields = {**runs.QUICK, "model": model, "epochs": 1, "data": str(table.root)}
    folder, said = runs.told(Recipe.of(fields), tmp_path / "run")
    run = package.TrainingRun(folder)
    assert run.classifier.model.config.position == "none"
    assert run.recipe.model_fields == {"position": "none", "layers": 1}
    assert "training vit_micro_patch8_16 with position none, layers 1 on" in said
    text = (run.folder / "recipe.toml").read_text()
    (run.folder / "recipe.toml").write_text(
        text.replace('position = "none"', 'position = "sincos_2d"').replace("epochs = 1", "epochs = 2")
    )
    with refused("training.checkpoint-differs", "model_fields"):
        package.train(resume=tmp_path / "run")
