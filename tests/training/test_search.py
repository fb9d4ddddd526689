"""`--find-lr`: what a short run learns is what the run learns, and images of all classes judge it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import runs
from once import once
from vitkit.data import Augment, ImageData, ImageTable, Preprocess
from vitkit.model import VisionTransformer, config_for
from vitkit.training import Objective, Recipe, fabric_of, freeze_backbone, train
from vitkit.training import fine_tune as search
from vitkit.training.losses import EpochSums


def grey(folder: Path, splits: dict[str, tuple[int, ...]], batch_size: int) -> ImageData:
    """The same grey picture as often as each split has images of each class."""
    Image.fromarray(np.full((16, 16, 3), 128, dtype=np.uint8)).save(folder / "grey.png")
    rows = [(split, k) for split, counts in splits.items() for k, count in enumerate(counts) for _ in range(count)]
    labels, splits = tuple(k for _, k in rows), tuple(split for split, _ in rows)
    table = ImageTable("grey", folder, ("a", "b", "c"), ("grey.png",) * len(rows), labels, splits)
    return ImageData(table, Preprocess(size=(16, 16)), Augment(), batch_size=batch_size, workers=0, seed=0)


def linear_model() -> VisionTransformer:
    """A head of zeros on a frozen backbone."""
    model = VisionTransformer(config_for("vit_micro_patch8_16", 3, **runs.SIZE))
    for parameter in model.get_submodule("head").parameters():
        torch.nn.init.zeros_(parameter)
    freeze_backbone(model)
    return model


def find(data: ImageData, model: VisionTransformer | None = None) -> list[float]:
    recipe = Recipe(method="probe-sgd", optimizer="sgd", lr=0.01, label_smoothing=0.0)
    model, objective = model or linear_model(), Objective(recipe, 3)
    found = search.find_lr(model, recipe, data, objective, fabric_of("float32"), lambda done, total: None)
    return list(found.values())


def test_images_of_all_classes_judge_and_not_the_first_batches_of_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pictures tell nothing, and all that are trained on are of class a: the more is learned, the worse b and c.

    The first sixteen validation batches are all of class a, by which the highest rate would be the best.
    """
    monkeypatch.setattr(search, "TRIAL_STEPS", 8)
    monkeypatch.setattr(search, "LR_FACTORS", search.LR_FACTORS[::2])
    losses = find(grey(tmp_path, {"train": (16, 0, 0), "val": (33, 33, 33)}, batch_size=2))
    assert losses == sorted(losses)
    assert losses[0] < losses[-1]
    of_a = find(grey(tmp_path, {"train": (16, 0, 0), "val": (4, 0, 0)}, batch_size=2))
    assert of_a == sorted(of_a, reverse=True), "as the first class alone would have it"
    trained = find(grey(tmp_path, {"train": (16, 0, 0)}, batch_size=2))
    assert trained == sorted(trained, reverse=True), "without validation images training images judge"


def test_the_model_random_numbers_and_the_order_of_the_data_stay_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "TRIAL_STEPS", 8)
    data, model = grey(tmp_path, {"train": (5, 5, 5), "val": (2, 2, 2)}, batch_size=4), linear_model()
    order, val = [labels.tolist() for _, labels in data.train_batches(0)], data.val
    before, state = {n: t.clone() for n, t in model.state_dict().items()}, torch.get_rng_state()
    find(data, model)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert [labels.tolist() for _, labels in data.train_batches(0)] == order
    assert data.val is val


def test_a_sample_has_the_classes_in_their_proportions(tmp_path: Path) -> None:
    data = grey(tmp_path, {"train": (1, 1, 1), "val": (600, 300, 100)}, batch_size=4)
    assert list(data.sample(100).val.table.counts().values()) == [60, 30, 10]
    assert list(data.sample(2000).val.table.counts().values()) == [600, 300, 100]


@pytest.fixture
def data(no_reports: None) -> Path:
    """Twenty images to train on: an epoch of ten steps of two."""
    return once("search-photos", lambda place: runs.several(runs.unlike(place, (12, 6, 2))))


@pytest.fixture
def teacher(data: Path) -> Path:
    return once("search-teacher", lambda place: train(runs.quick(data, epochs=1), place))


BESIDE = ("teacher_logits", "class_weights", "sets", "shift")
HEADS = {"model": "deit_micro_distilled_patch8_16", "model_fields": runs.SIZE}


@pytest.mark.parametrize(
    ("fields", "given"),
    [
        ({"mixup": 0.5, "cutmix": 1.0, "label_smoothing": 0.4, "balance": "loss"}, None),
        ({"balance": "sampler", "grad_accum": 2, "batch_size": 1, "layer_decay": 0.5, "clip_grad": 0.05}, None),
        ({"patch_dropout": 0.5, "dropout": 0.3, "precision": "bfloat16", "optimizer": "sgd", "decay_all": True}, None),
        ({"teacher": "", "balance": "loss", "mixup": 0.5, **HEADS}, {"teacher_logits", "class_weights", "shift"}),
        ({"data": "", "balance": "loss", "cutmix": 1.0, "label_smoothing": 0.2}, {"sets", "class_weights", "shift"}),
    ],
    ids=lambda own: ", ".join(own) if isinstance(own, dict) else "",
)
def test_a_short_run_learns_what_the_run_learns(
    data: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], given: Any
) -> None:
    """Also from a teacher, and where images have several classes; `given` is what the objective has beside the recipe.

    The run's schedule is that of the search, and the search tries the run's rate alone: all must be the same.
    """
    named = {"teacher": str(teacher), "data": str(data / "several.csv")}
    own = {"data": str(data), **fields, **{name: value for name, value in named.items() if name in fields}}
    losses: list[tuple[int, float]] = []
    tried: list[dict[float, float]] = []
    spied_on: dict[str, Any] = {}
    add, find_lr = EpochSums.add, search.find_lr

    def noted(sums: EpochSums, *batch: Any) -> None:
        add(sums, *batch)
        losses.append((len(sums.losses), float(sums.losses[-1])))

    def spied(*args: Any, **options: Any) -> dict[float, float]:
        spied_on.update(vars(args[3]))
        tried.append(find_lr(*args, **options))
        return tried[-1]

    monkeypatch.setattr(EpochSums, "add", noted)
    monkeypatch.setattr(search, "LR_FACTORS", (1.0,))
    monkeypatch.setattr(search, "TRIAL_STEPS", 10)
    monkeypatch.setattr(search, "find_lr", spied)
    shape = {"epochs": 1, "batch_size": 2, "warmup": search.WARMUP_STEPS / search.TRIAL_STEPS, "schedule": "constant"}
    recipe = Recipe.of(runs.quick_fields(find_lr=True, lr=1e-3, keep="last", **{**shape, **own}), "the test")
    folder = train(recipe, tmp_path / "run")
    half = len(losses) // 2
    assert len(losses) == 2 * half >= 2 * search.TRIAL_STEPS
    assert losses[0] == losses[half], "the first step"
    assert losses[:half] == losses[half:], "and all others"
    (found,) = tried[0].values()
    assert found == pytest.approx(runs.metrics(folder)[-1]["val_loss"], rel=1e-6)
    objective = {name: found for name, found in spied_on.items() if name in BESIDE and found is not None}
    assert given is None or given == set(objective)
    if "data" in fields:
        assert len(objective["sets"]) == 6 and objective["sets"].sum(dim=1).tolist() == [0, 1, 2, 2, 1, 1]
