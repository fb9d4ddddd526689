"""What training starts from: published weights but for the head, with their own pixels; or nothing, if asked."""

from pathlib import Path
from typing import Any

import pytest
import torch

import runs
import tiny
from refusals import refused
from vitkit.classifier import Classifier
from vitkit.data import ImageTable, Preprocess, read_source
from vitkit.training import Recipe, blueprint_of, new_classifier, prepared, train
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


@pytest.mark.parametrize("method", ["full", "probe", "lora"])
def test_everything_but_the_head_is_the_weights(source: Path, table: ImageTable, method: str) -> None:
    ours, theirs = start(source, table, method=method), load(source)
    assert ours.classes == ("blue", "green", "red") != theirs.classes, "as many of other names are other classes"
    for name, tensor in ours.model.state_dict().items():
        if name.startswith("head"):
            assert not tensor.any(), name
        else:
            assert torch.equal(tensor, theirs.model.state_dict()[name]), name


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


def test_weights_are_never_left_to_chance(table: ImageTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITKIT_OFFLINE", "1")
    with refused("weights.downloads-forbidden", "--weights none"):
        train(Recipe(data=str(table.root)), tmp_path / "run")
    with refused("weights.source-missing", "nowhere.pth"):
        train(Recipe(data=str(table.root), weights="nowhere.pth"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_from_weights_learns_and_says_where_from(source: Path, table: ImageTable, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"model": None, "method": "full", "lr": 3e-3, "epochs": 3, "layer_decay": 0.9}
    asked = Recipe(**{**runs.QUICK, "data": str(table.root), "weights": str(source), **fields})
    folder = train(asked, tmp_path / "run")
    runs.assert_learned(folder, table.root)
    assert load(folder).provenance["weights"]["source"] == source.name
    assert load(folder).preprocess == PIXELS


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
