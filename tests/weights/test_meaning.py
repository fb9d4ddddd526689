"""What a name means: the weights that people expect of it, for an answer and for training, said in a line."""

import json
import zipfile
from itertools import product
from pathlib import Path

import pytest
import timm
import torch

from refusals import refused
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.model import IMAGENET_1K, IMAGENET_21K, config_for, list_models
from vitkit.training import Recipe, blueprint_of
from vitkit.weights import (
    CATALOG,
    Use,
    cache_path,
    choose_weights,
    create_model,
    find,
    inspect,
    load,
    weights_for,
    write,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "meanings.json").read_text(encoding="utf-8"))
NAME = "vit_tiny_patch16_224"
ANSWERS, TRAINING = f"{NAME}.augreg_in21k_ft_in1k", f"{NAME}.augreg_best_in21k"


def put(name: str) -> None:
    """Random weights where the cache has the published ones, of one layer."""
    entry = find(name)
    assert entry is not None and entry.url is not None
    path = cache_path(entry.url)
    if path.is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model = create_model(entry.architecture, layers=1)
    classes = tuple(map(str, range(model.config.num_classes)))
    write(Classifier(model, classes, Preprocess(size=(224, 224))), path, "npz")
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b""  # a published file has no note of vitkit's


@pytest.fixture
def cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for two files, and no network."""
    monkeypatch.setenv("VITKIT_OFFLINE", "1")
    put(ANSWERS)
    put(TRAINING)


def test_what_a_bare_name_means_is_written_down() -> None:
    for name in {*list_models(), *GOLDEN}:
        found = {use: weights_for(name, use) for use in ("answers", "training")}  # type: ignore[arg-type]
        expected = GOLDEN.get(name, {"answers": None, "training": None})
        assert {use: entry and entry.name for use, entry in found.items()} == expected, name


def test_what_it_means_is_that_model_with_the_classes_that_its_name_says() -> None:
    fields = ("layers", "hidden_size", "heads", "mlp_size", "patch_size", "stem", "distill_token", "pool")
    for name, meant in GOLDEN.items():
        wanted = config_for(name)
        for use, known in meant.items():
            if known is None:
                continue
            entry = CATALOG[known]
            given = config_for(entry.architecture)
            assert [getattr(wanted, field) for field in fields] == [getattr(given, field) for field in fields], name
            assert entry.url
            if use == "answers":
                assert given.num_classes == wanted.num_classes, name
            elif not name.startswith("deit_"):
                assert entry.classes == "imagenet21k" and entry.licence == "Apache-2.0", name


def test_for_an_answer_it_is_what_timm_takes_wherever_it_is_here() -> None:
    compared = 0
    for name, meant in GOLDEN.items():
        if name.endswith("_in21k") or not timm.is_model(name):
            continue
        theirs = timm.get_pretrained_cfg(name)
        if theirs.num_classes == IMAGENET_1K and f"{name}.{theirs.tag}" in CATALOG:
            assert meant["answers"] == f"{name}.{theirs.tag}"
            compared += 1
    assert compared >= 20


@pytest.mark.usefixtures("cached")
def test_an_answer_has_the_classes_of_imagenet_and_training_starts_from_the_other() -> None:
    classifier = load(NAME)
    assert len(classifier.classes) == IMAGENET_1K == create_model(NAME, layers=1).config.num_classes
    assert "daisy" in classifier.classes
    assert classifier.report.assumed["weights"].startswith(f"{ANSWERS} (Apache-2.0)")
    assert classifier.provenance["weights"] == ANSWERS
    plan = inspect(NAME, use="training")
    assert plan.provenance["weights"] == TRAINING and len(plan.classes) == IMAGENET_21K
    assert plan.report.assumed["weights"].startswith(f"{TRAINING} (Apache-2.0)")
    for recipe in (Recipe(weights=NAME), Recipe(model=NAME, weights="auto")):
        begun = blueprint_of(recipe, ("a", "b"))
        assert begun.config.num_classes == 2 and begun.preprocess.fit == "squash"
    for name, use in product((ANSWERS, TRAINING), ("answers", "training")):
        plan = inspect(name, use=use)  # type: ignore[arg-type]
        assert plan.provenance["weights"] == name and "weights" not in plan.report.assumed
    plan = inspect("vit_tiny_patch16_96")
    assert plan.config.image_size == plan.preprocess.size == (96, 96)
    assert plan.report.resized and "resized to 96 pixels" in plan.report.assumed["weights"]
    assert inspect(NAME, image_size=64).config.image_size == (64, 64)


@pytest.mark.usefixtures("cached")
def test_timm_s_pixels_can_be_had() -> None:
    theirs = timm.get_pretrained_cfg(ANSWERS)
    for plan in (inspect(f"timm:{ANSWERS}"), inspect(f"timm:{NAME}")):
        own = plan.preprocess
        assert plan.provenance["weights"] == ANSWERS
        assert (own.fit, own.crop_pct, own.interpolation) == ("crop", theirs.crop_pct, theirs.interpolation)
        assert own.mean == theirs.mean and own.size == theirs.input_size[1:]
    assert inspect(ANSWERS).preprocess.fit == "squash"
    with refused("weights.preprocess-unknown", TRAINING):
        inspect(f"timm:{TRAINING}")


@pytest.mark.parametrize(
    ("name", "use", "code", "part"),
    [
        (f"{NAME}.augreg", "answers", "weights.tag-unknown", f"timm/{NAME}.augreg"),
        (f"timm:{NAME}.augreg", "answers", "weights.tag-unknown", "augreg_in21k_ft_in1k"),
        ("vit_tiny_patch8_224.x", "answers", "weights.tag-unknown", "vit_tiny_patch8_224"),
        ("vit_base_patch16_224_gap", "answers", "weights.weights-unpublished", "vit_base_patch16_224_gap"),
        ("timm:nothing", "answers", "model.name-unknown", "nothing"),
        ("vit_base_r26_s32_224", "answers", "weights.weights-unpublished", "vit_base_r26_s32_224.orig_in21k"),
        ("vit_small_patch8_224", "training", "weights.weights-unpublished", "vit_small_patch8_224.dino"),
        ("vit_tiny_patch16_224.pth", "answers", "weights.source-missing", "vit_tiny_patch16_224.pth"),
        ("vit_huge_patch14_384", "answers", "model.size-not-divisible", "384"),
    ],
)
def test_what_is_not_published_is_refused_with_what_is(name: str, use: Use, code: str, part: str) -> None:
    with refused(code, part):
        inspect(name, use=use)


def test_what_exists_on_disk_is_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).mkdir()
    assert choose_weights(NAME, "answers") is None
    with refused("weights.tensors-absent"):
        inspect(NAME)
