"""What training starts from: published weights but for the head, with their own pixels; or nothing, if asked."""

from pathlib import Path
from typing import Any

import pytest
import torch

import runs
import tiny
import vitkit
from refusals import refused
from vitkit.classifier import Classifier
from vitkit.data import ImageTable, Preprocess, labels_of, read_source
from vitkit.errors import VitkitError
from vitkit.training import Recipe, blueprint_of, new_classifier, prepared
from vitkit.weights import load

PIXELS = Preprocess(size=(16, 16), fit="squash", interpolation="bilinear", mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with three classes of its own."""
    folder = tmp_path_factory.mktemp("source")
    Classifier(tiny.build(image_size=(16, 16), num_classes=3), ("ant", "bee", "cow"), PIXELS).save(folder)
    return folder


@pytest.fixture(scope="module")
def table() -> ImageTable:
    return read_source(runs.shared_photos())


def start(source: Path, table: ImageTable, **fields: object) -> Classifier:
    """What is loaded, which is what was looked at first."""
    recipe = Recipe(**{"data": str(table.root), "weights": str(source), "method": "full", **fields})  # type: ignore[arg-type]
    begun = blueprint_of(recipe, table.classes)
    classifier = new_classifier(begun, table, "hash")
    assert (begun.config, begun.preprocess) == (classifier.model.config, classifier.preprocess)
    return classifier


@pytest.mark.parametrize("fields", [{}, {"method": "probe"}, {"model_fields": {"pool": "gap"}}], ids=str)
def test_everything_but_the_head_is_the_weights(source: Path, table: ImageTable, fields: dict[str, Any]) -> None:
    ours, theirs = start(source, table, **fields), load(source)
    assert ours.classes == ("blue", "green", "red") != theirs.classes, "as many of other names are other classes"
    assert ours.model.config.pool == ("gap" if "model_fields" in fields else "token+gap" if fields else "token")
    found = ours.model.state_dict()
    for name, tensor in theirs.model.state_dict().items():
        assert not found[name].any() if name.startswith("head") else torch.equal(tensor, found[name]), name


def test_the_pixels_are_the_weights_own_but_for_what_is_asked(source: Path, table: ImageTable) -> None:
    assert start(source, table).preprocess == PIXELS
    changed = start(source, table, fit="crop", crop_pct=0.5).preprocess
    assert (changed.fit, changed.crop_pct) == ("crop", 0.5)
    assert (changed.interpolation, changed.mean) == ("bilinear", PIXELS.mean)
    config = start(source, table, drop_path=0.3, dropout=0.2, attention_dropout=0.1).model.config
    assert (config.drop_path, config.dropout, config.attention_dropout) == (0.3, 0.2, 0.1)


def test_another_size_resizes_the_positions(source: Path, table: ImageTable) -> None:
    classifier = start(source, table, image_size=32)
    assert classifier.preprocess.size == classifier.model.config.image_size == (32, 32)
    assert [resized.name for resized in classifier.report.resized] == ["pos_embed"]


def test_training_and_create_model_mean_the_same(table: ImageTable) -> None:
    changes: dict[str, Any] = {"position": "relative", "layers": 2, "mlp_ratio": 2, "in_channels": 1, "pool": "gap"}
    recipe = runs.quick(table.root, model_fields=changes, drop_path=0.0)
    begun = blueprint_of(recipe, table.classes)
    assert begun.config == vitkit.create_model(str(recipe.model), 3, **changes).config
    assert (begun.preprocess.mean, begun.preprocess.size) == ((0.5,), (16, 16)), "grey pictures"
    with refused("training.channels-unsupported", "in_channels"):
        blueprint_of(runs.quick(table.root, model_fields={"in_channels": 4}), table.classes)


@pytest.mark.usefixtures("no_reports")
def test_the_run_records_its_model_and_goes_on_with_no_other(table: ImageTable, tmp_path: Path) -> None:
    model = {"name": runs.QUICK["model"], "position": "none", "layers": 1}
    fields = {**runs.QUICK, "model": model, "epochs": 1, "data": str(table.root)}
    folder, said = runs.told(Recipe.of(fields), tmp_path / "run")
    run = vitkit.TrainingRun(folder)
    assert run.classifier.model.config.position == "none"
    assert run.recipe.model_fields == {"position": "none", "layers": 1}
    assert "training vit_micro_patch8_16 with position none, layers 1 on" in said
    text = (run.folder / "recipe.toml").read_text()
    (run.folder / "recipe.toml").write_text(
        text.replace('position = "none"', 'position = "sincos_2d"').replace("epochs = 1", "epochs = 2")
    )
    with refused("training.checkpoint-differs", "model_fields"):
        vitkit.train(resume=tmp_path / "run")


def test_data_without_training_images_are_refused(table: ImageTable, tmp_path: Path) -> None:
    rows = "".join(f"{table.file(i)},{name},test\n" for i, (_, name) in enumerate(labels_of(table)))
    (tmp_path / "list.csv").write_text(f"path,label,split\n{rows}")
    with refused("data.train-empty", "list"):
        prepared(runs.quick(tmp_path / "list.csv"))


def test_a_split_seed_keeps_splits_and_folds_and_the_seed_draws_a_limit(table: ImageTable) -> None:
    def split(name: str, **fields: Any) -> list[set[str]]:
        """The paths of a split, of each fold if there are some."""
        settled = prepared(Recipe(**runs.quick_fields(data=str(table.root), **fields)))
        return [set(own.images.table.of_split(name).paths) for own in settled.parts]

    for more in ({}, {"folds": 3}):
        one, two = (split("test", seed=seed, split_seed=7, **more) for seed in (0, 1))
        assert one == two == split("test", seed=7, **more), "without it the seed decides"
        assert one != split("test", seed=1, **more)
    whole, few, larger, other = (
        split("train", split_seed=7, seed=seed, max_images=limit)[0]
        for seed, limit in ((1, None), (1, 9), (1, 20), (2, 9))
    )
    assert len(few) == 9 and few < larger < whole
    assert other < whole and other != few
    for name in ("val", "test"):
        assert split(name, split_seed=7, seed=1, max_images=9) == split(name, split_seed=7, seed=1)


ASKED: dict[str, Any] = {
    "position": "none", "layers": 2, "hidden_size": 64, "heads": 8, "norm": "post", "gelu": "tanh", "registers": 2,
    "layer_scale": 0.1, "qkv_bias": False, "representation_size": 32, "distilled": True, "mlp_ratio": 4, "stem": (),
    "norm_eps": 1e-5,
}  # fmt: skip


def test_every_field_is_followed_or_refused(source: Path, table: ImageTable) -> None:
    """None is taken, and then left as it was."""
    for field, asked in ASKED.items():
        with pytest.raises(VitkitError, match="--weights none"):
            start(source, table, model_fields={field: asked})
    own = load(source).model.config
    same = {name: getattr(own, name) for name in ("position", "layers", "norm", "heads", "stem")}
    assert start(source, table, model_fields=same).model.config.layers == own.layers
    classifier = start(source, table, model_fields={"patch_size": 8})
    assert [resized.name for resized in classifier.report.resized] == ["patch_embed.proj.weight"]
    assert classifier.model.config.image_size == (32, 32), "the grid stays"
    others: dict[str, Any] = {
        **{name: not value for name, value in own.to_dict().items() if isinstance(value, bool)},
        **{name: 2 * value for name, value in own.to_dict().items() if type(value) in (int, float) and value},
        **(ASKED | {"pool": "gap", "position_resize": "timm", "position_dropout": 0.1, "patch_size": (8, 8)}),
    }
    for name in others.keys() - {"num_classes", "mlp_ratio", "distilled"}:
        try:
            config = start(source, table, model_fields={name: others[name]}).model.config
        except VitkitError:
            continue
        assert getattr(config, name) == others[name]


def test_what_had_to_be_assumed_of_a_file_may_be_said(table: ImageTable, tmp_path: Path) -> None:
    torch.save(tiny.build(image_size=(16, 16), num_classes=3).state_dict(), tmp_path / "bare.pth")
    assert start(tmp_path / "bare.pth", table).model.config.heads == 1
    assert start(tmp_path / "bare.pth", table, model_fields={"heads": 4}).model.config.heads == 4
