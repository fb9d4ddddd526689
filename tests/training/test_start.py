"""What training starts from: published weights but for the head, with their own pixels; or nothing, if asked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import runs
import tiny
from vitkit.classifier import Classifier
from vitkit.data import ImageTable, Preprocess, read_source
from vitkit.errors import VitkitError
from vitkit.training import Recipe, blueprint_of, new_classifier, train
from vitkit.weights import load

PIXELS = Preprocess(size=(16, 16), fit="squash", interpolation="bilinear", mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with three classes of its own."""
    folder = tmp_path_factory.mktemp("source")
    Classifier(tiny.build(image_size=(16, 16), num_classes=3), ("ant", "bee", "cow"), PIXELS).save(folder)
    return folder


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> ImageTable:
    return read_source(runs.photos(tmp_path_factory.mktemp("data") / "photos"))


def start(source: Path, table: ImageTable, **fields: object) -> Classifier:
    recipe = Recipe(data=str(table.root), weights=str(source), method="full", **fields)  # type: ignore[arg-type]
    return new_classifier(blueprint_of(recipe, table.classes), table, "hash")


def test_everything_but_the_head_is_the_weights(source: Path, table: ImageTable) -> None:
    ours, theirs = start(source, table), load(source)
    for name, tensor in ours.model.state_dict().items():
        if name.startswith("head"):
            assert not tensor.any(), name
        else:
            assert torch.equal(tensor, theirs.model.state_dict()[name]), name


def test_as_many_classes_of_other_names_are_other_classes(source: Path, table: ImageTable) -> None:
    assert len(load(source).classes) == len(table.classes)
    classifier = start(source, table)
    assert classifier.classes == ("blue", "green", "red")
    assert not classifier.model.state_dict()["head.weight"].any()


def test_the_pixels_are_the_weights_own_but_for_what_is_asked(source: Path, table: ImageTable) -> None:
    assert start(source, table).preprocess == PIXELS
    changed = start(source, table, fit="crop", crop_pct=0.5).preprocess
    assert (changed.fit, changed.crop_pct, changed.interpolation, changed.mean) == (
        "crop",
        0.5,
        "bilinear",
        PIXELS.mean,
    )


def test_another_size_resizes_the_positions(source: Path, table: ImageTable) -> None:
    classifier = start(source, table, image_size=32)
    assert classifier.preprocess.size == classifier.model.config.image_size == (32, 32)
    assert classifier.report is not None
    assert [resized.name for resized in classifier.report.resized] == ["pos_embed"]


def test_rates_for_training_are_the_recipes(source: Path, table: ImageTable) -> None:
    config = start(source, table, drop_path=0.3, dropout=0.2, attention_dropout=0.1).model.config
    assert (config.drop_path, config.dropout, config.attention_dropout) == (0.3, 0.2, 0.1)


def test_what_is_looked_at_first_is_what_is_loaded(source: Path, table: ImageTable) -> None:
    for method in ("full", "probe", "lora"):
        recipe = Recipe(data=str(table.root), weights=str(source), method=method)  # type: ignore[arg-type]
        begun = blueprint_of(recipe, table.classes)
        classifier = new_classifier(begun, table, "hash")
        assert (begun.config, begun.preprocess) == (classifier.model.config, classifier.preprocess)


def test_weights_that_cannot_be_had_are_never_replaced_by_chance(
    table: ImageTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITKIT_OFFLINE", "1")
    with pytest.raises(VitkitError, match=r"VITKIT_OFFLINE=1 forbids.*--weights none"):
        train({"data": str(table.root)}, tmp_path / "run", say=lambda _: None)
    assert not (tmp_path / "run").exists()


def test_weights_that_are_not_there_are_named(table: ImageTable, tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match=r"nowhere\.pth"):
        train({"data": str(table.root), "weights": "nowhere.pth"}, tmp_path / "run", say=lambda _: None)
    assert not (tmp_path / "run").exists()


def test_a_run_from_weights_learns_and_says_where_from(source: Path, table: ImageTable, tmp_path: Path) -> None:
    fields = {**runs.QUICK, "data": str(table.root), "weights": str(source), "method": "full", "lr": 1e-3}
    fields.pop("model")
    folder = train({**fields, "epochs": 6, "layer_decay": 0.9}, tmp_path / "run", say=lambda _: None)
    runs.assert_learned(folder, table.root)
    assert load(folder).provenance["weights"]["source"] == source.name
    assert load(folder).preprocess == PIXELS
