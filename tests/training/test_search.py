"""`--find-lr`: what a short run learns is what the run learns, and images of all classes judge it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import runs
from vitkit.data import Augment, ImageData, ImageTable, Preprocess
from vitkit.model import VisionTransformer, config_for
from vitkit.training import Objective, Recipe, fabric_of, freeze_backbone, run, train
from vitkit.training import fine_tune as search
from vitkit.training.losses import EpochSums


def grey(folder: Path, splits: dict[str, tuple[int, ...]], batch_size: int) -> ImageData:
    """The same grey picture as often as each split has images of each class."""
    Image.fromarray(np.full((16, 16, 3), 128, dtype=np.uint8)).save(folder / "grey.png")
    rows = [(split, k) for split, counts in splits.items() for k, count in enumerate(counts) for _ in range(count)]
    table = ImageTable(
        name="grey",
        root=folder,
        classes=("a", "b", "c"),
        paths=("grey.png",) * len(rows),
        labels=tuple(k for _, k in rows),
        splits=tuple(split for split, _ in rows),
    )
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


def test_images_of_all_classes_judge_and_not_the_first_batches_of_validation(tmp_path: Path) -> None:
    """Pictures tell nothing, and nearly all that are trained on are of class a: the more is learned, the worse b and c.

    The first sixteen validation batches are all of class a, by which the highest rate would be the best.
    """
    losses = find(grey(tmp_path, {"train": (30, 0, 0), "val": (40, 40, 40)}, batch_size=2))
    assert losses == sorted(losses)
    assert losses[0] < losses[-1]
    of_a = find(grey(tmp_path, {"train": (30, 0, 0), "val": (40, 0, 0)}, batch_size=2))
    assert of_a == sorted(of_a, reverse=True), "as the first class alone would have it"
    trained = find(grey(tmp_path, {"train": (30, 0, 0)}, batch_size=2))
    assert trained == sorted(trained, reverse=True), "without validation images training images judge"


def test_the_model_random_numbers_and_the_order_of_the_data_stay_as_they_were(tmp_path: Path) -> None:
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


# --- The objective of the run -------------------------------------------------------------------------

OPTIONS: dict[str, dict[str, Any]] = {
    "mixing, smoothing, class weights": {"mixup": 0.5, "cutmix": 1.0, "label_smoothing": 0.4, "balance": "loss"},
    "sampler, accumulation": {"balance": "sampler", "grad_accum": 2, "batch_size": 1},
    "what is dropped, bfloat16": {"patch_dropout": 0.5, "dropout": 0.3, "drop_path": 0.3, "precision": "bfloat16"},
    "layers, clipping": {"layer_decay": 0.5, "clip_grad": 0.05, "optimizer": "sgd", "decay_all": True},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty images to train on: an epoch of ten steps of two."""
    root = tmp_path_factory.mktemp("search") / "data"
    rng = np.random.default_rng(0)
    for split, counts in {"train": (12, 6, 2), "val": (4, 4, 4)}.items():
        for name, count in zip("abc", counts, strict=True):
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{i}.png")
    return root


@pytest.fixture(scope="module")
def teacher(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(runs.quick(data, epochs=1), tmp_path_factory.mktemp("teacher") / "run")


@pytest.fixture(scope="module")
def several(data: Path) -> Path:
    return runs.several(data)


def compare(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]) -> dict[str, Any]:
    """The run's schedule is that of the search, and the search tries the run's rate alone: all must be the same.

    What belongs to the objective beside the recipe, as the search was given it.
    """
    losses: list[tuple[int, float]] = []
    tried: list[dict[float, float]] = []
    given: dict[str, Any] = {}
    add, find_lr = EpochSums.add, search.find_lr

    def noted(sums: EpochSums, *batch: Any) -> None:
        add(sums, *batch)
        losses.append((len(sums.losses), float(sums.losses[-1])))

    def spied(*args: Any, **options: Any) -> dict[float, float]:
        given.update(vars(args[3]))
        tried.append(find_lr(*args, **options))
        return tried[-1]

    monkeypatch.setattr(EpochSums, "add", noted)
    monkeypatch.setattr(
        "vitkit.training.stability.has_collapsed", lambda *outcome: False
    )  # what is learned does not matter
    monkeypatch.setattr(search, "FACTORS", (1.0,))
    monkeypatch.setattr(search, "STEPS", 10)
    monkeypatch.setattr(search, "find_lr", spied)
    monkeypatch.setattr(run, "TRAINING", replace(run.TRAINING, conclude=()))  # nobody looks at the report
    shape = {"epochs": 1, "batch_size": 2, "warmup": search.WARMUP / search.STEPS, "schedule": "constant"}
    recipe = runs.quick(data, find_lr=True, lr=1e-3, keep="last", **{**shape, **fields})
    folder = train(recipe, tmp_path / "run")
    half = len(losses) // 2
    assert len(losses) == 2 * half >= 2 * search.STEPS
    assert losses[0] == losses[half], "the first step"
    assert losses[:half] == losses[half:], "and all others"
    (found,) = tried[0].values()
    assert found == pytest.approx(runs.metrics(folder)[-1]["val_loss"], rel=1e-6)
    objective = {name: given.get(name) for name in ("imitate", "class_weights", "sets", "shift")}
    return {name: own for name, own in objective.items() if own is not None and not (name == "shift" and not own.any())}


@pytest.mark.parametrize("options", OPTIONS)
def test_a_short_run_learns_what_the_run_learns(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    compare(data, tmp_path, monkeypatch, OPTIONS[options])


SOFT = {"distillation": "soft", "distill_alpha": 0.5}
HARD = {"distillation": "hard", "model": "deit_micro_distilled_patch8_16", "balance": "loss", "mixup": 0.5}


@pytest.mark.parametrize(
    ("fields", "given"),
    [(SOFT, {"imitate"}), (HARD, {"imitate", "class_weights", "shift"})],
    ids=["soft, one head", "hard, two heads, class weights"],
)
def test_a_short_run_imitates_the_teacher_too(
    data: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], given: set[str]
) -> None:
    fields = {"balance": "none", "teacher": str(teacher), **fields}
    assert set(compare(data, tmp_path, monkeypatch, fields)) == given


@pytest.mark.parametrize(
    ("fields", "given"),
    [
        ({"balance": "loss", "cutmix": 1.0, "label_smoothing": 0.2}, {"sets", "class_weights", "shift"}),
        ({"balance": "none", "model": "deit_micro_distilled_patch8_16"}, {"sets"}),
    ],
    ids=["class weights", "two heads"],
)
def test_a_short_run_learns_several_classes_of_an_image_as_the_run_does(
    several: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], given: set[str]
) -> None:
    objective = compare(several, tmp_path, monkeypatch, fields)
    assert set(objective) == given
    assert len(objective["sets"]) == 6 and objective["sets"].sum(dim=1).tolist() == [0, 1, 2, 2, 1, 1]
