"""Whole runs with the fields that change how a training goes: they learn, resume to the bit, and never keep a NaN."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import photos as pictures
import runs
from runs import resolved
from runs import told as train
from vitkit.classifier import Classifier
from vitkit.data import Preprocess, split_from_file
from vitkit.errors import Interrupted, VitkitError
from vitkit.evaluation import evaluate
from vitkit.model import VisionTransformer, config_for
from vitkit.training import Loop, StabilityGuard, run
from vitkit.weights import load


def test_one_that_went_back_resumes_alike(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second epoch is taken for a collapse, before the run is interrupted in the third."""
    original, calls = StabilityGuard.accepts, list[int]()

    def accepts(guard: StabilityGuard, outcome: Any) -> bool:
        good = original(guard, outcome)
        calls.append(1)
        return good and len(calls) != 2

    def interrupt(what: str, done: int, total: int) -> None:
        if what.startswith("epoch 3/") and done == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(StabilityGuard, "accepts", accepts)
    whole, said = train(runs.quick(data), tmp_path / "whole")
    assert said.count("restored earlier weights") == 1
    calls.clear()
    with pytest.raises(Interrupted):
        train(runs.quick(data), tmp_path / "run", progress=interrupt)
    run.resume(tmp_path / "run")
    runs.assert_same_weights(tmp_path / "run", whole)
    rows = runs.metrics(whole)
    assert rows == runs.metrics(tmp_path / "run")
    assert rows[2]["lr"] < rows[0]["lr"] / 5


def test_averaged_weights_have_the_logged_figures_and_batches_are_added_up(data: Path, tmp_path: Path) -> None:
    """27 training images: 6 batches of 4 and one of 3, in two steps an epoch."""
    folder, _ = train(runs.quick(data, ema=0.8, batch_size=4, grad_accum=4, epochs=2), tmp_path / "run")
    assert [row["step"] for row in runs.metrics(folder)] == [2, 4]
    classifier = load(folder)
    classifier.temperature = 1.0  # what is logged is not calibrated yet
    outcome = evaluate(classifier, split_from_file(folder / "split.json"), "val")
    assert outcome.loss == pytest.approx(classifier.provenance["metrics"]["val_loss"], rel=1e-4)


def test_a_learning_rate_of_10_ends_in_a_message_or_a_finite_model(tmp_path: Path) -> None:
    source = runs.photos(tmp_path / "photos", images=40)
    fields = {"model_fields": None, "optimizer": "sgd", "epochs": 4, "schedule": "constant"}
    recipe = runs.quick(source, lr=10.0, warmup=0.0, clip_grad=0.0, **fields)
    with pytest.raises(VitkitError, match="try a lower --lr"):
        train(recipe, tmp_path / "run")
    if (tmp_path / "run" / "model.safetensors").exists():
        assert all(tensor.isfinite().all() for tensor in runs.weights(tmp_path / "run").values())


def test_the_flowers_recipe_trains_the_head_alone_at_the_rates_of_the_script(tmp_path: Path) -> None:
    """With a small model that has a representation layer, on small photographs."""
    source = pictures.folder(tmp_path / "photos", {"daisy": 10, "roses": 15, "tulips": 10})
    torch.manual_seed(0)
    config = config_for("vit_micro_patch8_16", 4, **runs.SIZE).replace(representation_size=24)
    Classifier(VisionTransformer(config), tuple("abcd"), Preprocess(size=(16, 16))).save(tmp_path / "small")
    given = {"data": str(source), "weights": str(tmp_path / "small"), "model": "vit_micro_patch8_16", "workers": 0}
    folder, _ = train(resolved(given, "flowers-head"), tmp_path / "run")
    start, end = runs.weights(tmp_path / "small"), runs.weights(folder)
    changed = {name for name in end if not torch.equal(end[name], start.get(name, end[name] + 1))}
    assert changed == {"head.weight", "head.bias"}
    assert not any(name.startswith("pre_logits") for name in end)
    rates = [f"{row['lr']:.3e}" for row in runs.metrics(folder)]
    assert (len(rates), rates[0], rates[5], rates[8]) == (10, "1.000e-03", "5.050e-04", "1.045e-04")
    assert json.loads((folder / "class_indices.json").read_text()) == {"0": "daisy", "1": "roses", "2": "tulips"}
    kept = sorted((folder / "checkpoints").glob("epoch-*"))
    assert [path.name[:10] for path in kept] == [f"epoch-{epoch:04d}" for epoch in range(10)]
    assert load(kept[-1]).preprocess.crop_pct == 0.875
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator").EventAccumulator(
        str(folder / "tensorboard")
    )
    events.Reload()
    assert {"train_loss", "train_acc", "val_loss", "val_acc", "lr"} <= set(events.Tags()["scalars"])


def test_the_cifar_recipe_keeps_the_mean_of_its_last_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for i in range(80):
        path = tmp_path / "photos" / ("train" if i < 60 else "test") / f"class{i % 10}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
    ends: list[dict[str, torch.Tensor]] = []
    original = Loop.validate

    def note(loop: Loop) -> Any:
        ends.append({name: own.detach().clone() for name, own in loop.state.model.state_dict().items()})
        return original(loop)

    small = {"model_fields": runs.SIZE, "weights": "none", "method": "scratch", "model": "vit_micro_patch8_16"}
    given = {"data": str(tmp_path / "photos"), "epochs": 5, "swa": 0.5, "batch_size": 16, "workers": 0, **small}
    monkeypatch.setattr(Loop, "validate", note)
    folder, _ = train(resolved(given, "cifar10-vit-tiny"), tmp_path / "run")
    rows, kept = runs.metrics(folder), sorted((folder / "checkpoints").glob("epoch-*"))
    cosine = [1e-3 * (1 + np.cos(np.pi * epoch / 5)) / 2 for epoch in range(5)]
    start = 5 - round(0.5 * 5)
    assert [row["lr"] for row in rows] == pytest.approx(cosine[:start] + [cosine[start]] * (5 - start))
    for epoch in range(5):
        own = ends[start : epoch + 1] or [ends[epoch]]
        for name, tensor in runs.weights(kept[epoch]).items():
            assert torch.allclose(tensor, torch.stack([end[name] for end in own]).mean(dim=0), atol=1e-6), name
    best = min(rows[start:], key=lambda row: row["val_loss"])
    assert load(folder).provenance["metrics"]["epoch"] == best["epoch"], "the loss is monitored"
