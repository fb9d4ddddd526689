"""`[model]` and `--set`: any field of the model, each in one place, typed, recorded, and never loaded by half."""

from pathlib import Path
from typing import Any

import pytest
import torch

import runs
import tiny
import vitkit as package
from refusals import refused
from runs import resolved
from vitkit.classifier import Classifier
from vitkit.data import ImageTable, Preprocess, read_source
from vitkit.errors import VitkitError
from vitkit.text.arguments import hints_of
from vitkit.training import Recipe, blueprint_of, new_classifier, parse_set_arguments, prefix_errors


@pytest.fixture(scope="module")
def table() -> ImageTable:
    return read_source(runs.shared_photos())


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that reads its class token."""
    folder = tmp_path_factory.mktemp("weights")
    model = tiny.build(image_size=(16, 16), num_classes=3)
    Classifier(model, ("ant", "bee", "cow"), Preprocess(size=(16, 16))).save(folder)
    return folder


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


FIELD_MISSING = "training.model-field-missing"


@pytest.mark.parametrize(
    ("model_fields", "code", "named"),
    [
        ({"positon": "none"}, "training.model-field-unknown", "position"),
        ({"zzz": 1}, "training.model-field-unknown", "patch_size"),
        ({"position": "no"}, "text.value-wrong", "model.position"),
        ({"layers": "6"}, "text.value-wrong", "model.layers"),
        ({"patch_size": [4]}, "model.value-invalid", "model.patch_size"),
        ({"num_classes": 3}, "training.model-field-refused", "model.num_classes"),
        (3, "training.model-fields-type", "3"),
        ({}, FIELD_MISSING, "model_fields"),
        ({"dropout": 0.1}, "training.field-repeated", "model.dropout"),
        ({"image_size": (8, 16)}, "training.field-repeated", "model.image_size"),
        ({"name": "b"}, "training.field-repeated", "model"),
    ],
)
def test_what_cannot_be_meant_is_refused(model_fields: Any, code: str, named: str) -> None:
    beside = {"model": "a", "dropout": 0.1, "image_size": 32} if code == "training.field-repeated" else {}
    with refused(code, "mine.toml", named), prefix_errors("mine.toml"):
        Recipe.of({**beside, "model_fields": model_fields})


def test_a_table_that_cannot_be_meant_is_refused() -> None:
    repeated, wrong = {"depth": 2, "layers": 2}, {"name": 3}
    for model, code in ((repeated, "model.option-repeated"), (wrong, "text.value-wrong"), ({}, FIELD_MISSING)):
        with refused(code, "mine.toml"), prefix_errors("mine.toml"):
            Recipe.of({"model": model})


MEANT: dict[str, dict[str, Any]] = {
    "position=none": {"position": "none"}, "layers=6": {"layers": 6}, "depth=6": {"layers": 6}, "stem=": {"stem": ()},
    "layer_scale=1e-5": {"layer_scale": 1e-5}, "layer_scale=none": {"layer_scale": None}, "stem=none": {"stem": None},
    "stem=3,4,9": {"stem": (3, 4, 9)}, "patch_size=4": {"patch_size": (4, 4)}, "patch_size=4,8": {"patch_size": (4, 8)},
    "qkv_bias=False": {"qkv_bias": False}, "class_token=true": {"class_token": True}, "mlp_ratio=2": {"mlp_ratio": 2.0},
    "has_logits=true": {"has_logits": True}, "img_size=32": {"image_size": (32, 32)}, "name=n": {"name": "n"},
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
        ("position=none", "text.field-unknown", "position"),
        ("shaer=5", "text.field-unknown", "shear"),
        ("model_fields=5", "training.set-syntax", "model_fields"),
        ("model.position", "training.set-syntax", "model.position"),
        ("shear=5 shear=6", "training.field-repeated", "shear"),
        ("model.layers=2 model.depth=3", "training.field-repeated", "model.layers"),
        ("model.drop_rate=0.1", "model.option-unsupported", "drop_rate"),
        *((f"{name}={text}", "text.value-wrong", name) for name, text in (("shear", "much"), ("model.layers", "2.0"))),
        *((f"model.{own}", "text.value-wrong", own[:5]) for own in ("layers=two", "qkv_bias=1", "layer_scale=nan")),
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
    divisible, colours = "model.size-not-divisible", "training.channels-unsupported"
    for name, value, code in (("heads", 5, divisible), ("patch_size", 5, divisible), ("in_channels", 4, colours)):
        with refused(code, name):
            blueprint_of(runs.quick(table.root, model_fields={name: value}), table.classes)


def test_the_run_records_its_model_and_goes_on_with_no_other(table: ImageTable, tmp_path: Path) -> None:
    model = {"name": runs.QUICK["model"], "position": "none", "layers": 1}
    fields = {**runs.QUICK, "model": model, "epochs": 1, "data": str(table.root)}
    folder, said = runs.told(Recipe.of(fields), tmp_path / "run")
    run = package.TrainingRun(folder)
    assert run.classifier.model.config.position == "none"
    assert run.recipe.model_fields == {"position": "none", "layers": 1}
    assert "training vit_micro_patch8_16 with position none, layers 1 on" in said
    assert run.classifier.provenance["recipe"]["model_fields"] == {"position": "none", "layers": 1}
    text = (run.folder / "recipe.toml").read_text()
    assert '[model]\nname = "vit_micro_patch8_16"\nposition = "none"\nlayers = 1\n' in text
    (run.folder / "recipe.toml").write_text(
        text.replace('position = "none"', 'position = "sincos_2d"').replace("epochs = 1", "epochs = 2")
    )
    with refused("training.checkpoint-differs", "model_fields"):
        package.train(resume=tmp_path / "run")


def from_weights(weights: Path, table: ImageTable, **changes: Any) -> Classifier:
    recipe = Recipe(data=str(table.root), weights=str(weights), method="full", model_fields=changes)
    classifier = new_classifier(blueprint_of(recipe, table.classes), table, "hash")
    begun = blueprint_of(recipe, table.classes)
    assert (begun.config, begun.preprocess) == (classifier.model.config, classifier.preprocess)
    return classifier


ASKED: dict[str, Any] = {
    "position": "none", "layers": 2, "hidden_size": 64, "heads": 8, "norm": "post", "gelu": "tanh", "registers": 2,
    "layer_scale": 0.1, "qkv_bias": False, "representation_size": 32, "distilled": True, "mlp_ratio": 4, "stem": (),
    "norm_eps": 1e-5,
}  # fmt: skip


def test_every_field_is_followed_or_refused(weights: Path, table: ImageTable) -> None:
    """None is taken, and then left as it was."""
    for field, asked in ASKED.items():
        with pytest.raises(VitkitError, match="--weights none"):
            from_weights(weights, table, **{field: asked})
    own = package.load(weights).model.config
    same = {name: getattr(own, name) for name in ("position", "layers", "norm", "heads", "stem")}
    assert from_weights(weights, table, **same).model.config.layers == own.layers
    classifier = from_weights(weights, table, patch_size=8)
    assert [resized.name for resized in classifier.report.resized] == ["patch_embed.proj.weight"]
    assert classifier.model.config.image_size == (32, 32), "the grid stays"
    others: dict[str, Any] = {
        **{name: not value for name, value in own.to_dict().items() if isinstance(value, bool)},
        **{name: 2 * value for name, value in own.to_dict().items() if type(value) in (int, float) and value},
        **(ASKED | {"pool": "gap", "position_resize": "timm", "position_dropout": 0.1, "patch_size": (8, 8)}),
    }
    for name in others.keys() - {"num_classes", "mlp_ratio", "distilled"}:
        try:
            config = from_weights(weights, table, **{name: others[name]}).model.config
        except VitkitError:
            continue
        assert getattr(config, name) == others[name]


def test_the_mean_of_the_patches_may_be_read_in_the_place_of_the_token(weights: Path, table: ImageTable) -> None:
    ours, theirs = from_weights(weights, table, pool="gap").model, package.load(weights).model
    assert (ours.config.pool, ours.config.class_token) == ("gap", True)
    for name, tensor in theirs.state_dict().items():
        assert name.startswith("head") or torch.equal(tensor, ours.state_dict()[name]), name


def test_what_had_to_be_assumed_of_a_file_may_be_said(table: ImageTable, tmp_path: Path) -> None:
    torch.save(tiny.build(image_size=(16, 16), num_classes=3).state_dict(), tmp_path / "bare.pth")
    assert from_weights(tmp_path / "bare.pth", table).model.config.heads == 1
    assert from_weights(tmp_path / "bare.pth", table, heads=4).model.config.heads == 4


def test_weights_of_a_name_are_refused_unfetched(table: ImageTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitkit.training.defaults.inspect_source", lambda *_, **__: pytest.fail("it looks for weights"))
    recipe = Recipe(data="d", model="vit_tiny_patch16_224", method="full", model_fields={"position": "none"})
    with refused("training.weights-mismatch", "vit_tiny_patch16_224", "position"):
        blueprint_of(recipe, table.classes)
