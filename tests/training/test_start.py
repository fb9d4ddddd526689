"""What training starts from: published weights but for the head, with their own pixels; or nothing, if asked."""

import shlex
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
def table(tmp_path_factory: pytest.TempPathFactory) -> ImageTable:
    return read_source(runs.photos(tmp_path_factory.mktemp("data") / "photos"))


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
    fields: dict[str, Any] = {"model": None, "method": "full", "lr": 1e-3, "epochs": 6, "layer_decay": 0.9}
    asked = Recipe(**{**runs.QUICK, "data": str(table.root), "weights": str(source), **fields})
    folder = train(asked, tmp_path / "run")
    runs.assert_learned(folder, table.root)
    assert load(folder).provenance["weights"]["source"] == source.name
    assert load(folder).preprocess == PIXELS


def images(table: ImageTable, **fields: Any) -> dict[str, set[str]]:
    """The paths of each split."""
    (own,) = prepared(Recipe(**runs.quick_fields(data=str(table.root), **fields))).parts
    table = own.images.table
    return {name: set(table.of_split(name).paths) for name in ("train", "val", "test")}


def test_a_split_seed_keeps_the_split_whatever_the_seed(table: ImageTable) -> None:
    one, two = (images(table, seed=seed, split_seed=7) for seed in (0, 1))
    assert one == two
    assert one == images(table, seed=7)  # without it the seed decides
    assert one != images(table, seed=1)


def test_smaller_subsets_are_nested_for_each_seed_and_fresh_for_another(table: ImageTable) -> None:
    whole = images(table, split_seed=7)
    few, more, other = (
        images(table, split_seed=7, seed=seed, max_images=limit) for seed, limit in ((1, 9), (1, 20), (2, 9))
    )
    assert len(few["train"]) == 9
    assert few["train"] < more["train"] < whole["train"]
    assert few["train"] != other["train"]
    for own in (few, more, other):
        assert (own["val"], own["test"]) == (whole["val"], whole["test"])


def test_folds_go_by_the_split_seed_too(table: ImageTable) -> None:
    def tested(**fields: Any) -> list[set[str]]:
        settled = prepared(Recipe(**runs.quick_fields(data=str(table.root), folds=3, **fields)))
        return [set(own.images.table.of_split("test").paths) for own in settled.parts]

    assert tested(seed=0, split_seed=5) == tested(seed=1, split_seed=5) != tested(seed=1)


def test_groups_that_names_reveal_are_reported_until_the_printed_flag_is_given(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    for number, file in enumerate(sorted(runs.photos(tmp_path / "unnamed").rglob("*.png"))):
        own = root / file.parent.name
        own.mkdir(parents=True, exist_ok=True)
        file.rename(own / f"patient{number // 3:02}_{number % 3}.png")
    (line,) = (each.text for each in prepared(runs.quick(root)).findings if "--group-by" in each.text)
    assert "show 12 groups" in line
    flag = shlex.split(line[line.index("--group-by") :])[1]
    settled = prepared(runs.quick(root, group_by=flag))
    assert not any("--group-by" in each.text for each in settled.findings)
    (own,) = settled.parts
    table = own.images.table
    splits = {(path.split("/")[1][:9], split) for path, split in zip(table.paths, table.splits, strict=True)}
    assert len(splits) == 12, "each patient is in one split"
