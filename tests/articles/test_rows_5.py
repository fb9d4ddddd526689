"""The rows of docs/articles.md on comparisons of ViT, hybrid and CNN."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision

import runs
import vitkit
from vitkit.experiments.lab import cost
from vitkit.training import read_metrics

MODELS = ["vit_micro_patch8_16@none", "vit_micro_r_s4_16@none"]


def comparison(name: str) -> dict[str, Any]:
    return json.loads(Path(f"runs/{name}/comparison.json").read_text(encoding="utf-8"))


def lab(name: str) -> dict[str, Any]:
    return json.loads(Path(f"runs/{name}/lab.json").read_text(encoding="utf-8"))


def variants(name: str) -> dict[str, dict[str, Any]]:
    return {variant["label"]: variant for variant in lab(name)["variants"]}


HOLDS: dict[str, Callable[[Any], Any]] = {
    "5.7": lambda done: re.findall(r"^(\d+) +[\d.]+ %", done.out, re.M)[0] == "1",
    "5.9": lambda _: torch.tensor(lab("distance")["attention_distance"]).shape == (2, 4),  # of each layer's heads
    "5.13": lambda done: sum(own.numel() for own in done.value.parameters()) == 23_500_352 + 5 * 2049,  # timm's
    "5.15": lambda done: "86,567,656" in done.out and re.search(r"^  GMACs +17\.56", done.out, re.M),
    "5.19": lambda done: 0 <= done.value <= 1 and not done.names["covered"][:, :, :16].any(),
    "5.17": lambda done: r"\caption{Recall of each class}" in done.value and "\nblue &" in done.value,
}


WHOLE: dict[str, Callable[[Any], Any]] = {  # trainings of several models
    "5.1": lambda _: sorted(model["name"] for model in comparison("compared")["models"]) == MODELS,
    "5.2": lambda _: fractions() == [[0.5, 1.0]] * 2,
    "5.3": lambda done: {len(models) for models in done.value.values()} == {2} and len(done.value) == 2,
    "5.4": lambda _: all(run["training_flops"] == pytest.approx(1e10, rel=0.2) for run in trainings("budget")),
    "5.6": lambda done: len(set(re.findall(r"^vit_micro_patch8_16 +(\d+) images", done.out, re.M))) == 3,
    "5.8": lambda _: {"patches", "the ResNet's root", "ResNet"} <= variants("hybrid").keys(),
    "5.10": lambda _: more_parameters("position", "learned 1-D", "none") == 5 * 128,  # (4 + 1) positions
    "5.11": lambda _: more_parameters("pooling", "class token", "mean, the same rate") in (128, 256),
    "5.20": lambda _: variants("norm").keys() == {"pre-norm", "post-norm"},
    "5.21": lambda _: [variants("optimizer")[name]["paper"] for name in ("SGD", "Adam")] == ["88.79", "89.33"],
    "5.22": lambda _: more_parameters("axial", "all patches, twice the depth", "rows, then columns") == 0,
}


def fractions() -> list[list[float]]:
    return [[part["fraction"] for part in model["by_fraction"]] for model in comparison("fractions")["models"]]


def trainings(name: str) -> list[dict[str, Any]]:
    return [run for model in comparison(name)["models"] for run in model["runs"]]


def more_parameters(name: str, one: str, other: str) -> int:
    return int(variants(name)[one]["parameters"] - variants(name)[other]["parameters"])


@pytest.mark.accept
def test_5_5_few_epochs_and_many(row: Any, place: Path) -> None:
    """The curves of a model that is fine-tuned and of one from scratch, and which epoch of one equals the other."""
    (place / "tuned.toml").write_text('weights = "./vit_base_patch16_224_in21k.pth"\n')  # a model of two layers here
    row.line = row.line.replace("vit_base_patch16_224@vit_base_patch16_224_in21k.pth", "tuned.toml")
    row.line = row.line.replace("epochs=2", "epochs=4")
    row()
    tuned, scratch = comparison("epochs")["models"]
    assert (tuned["name"], scratch["name"]) == ("tuned", "vit_micro_patch8_16@none")
    for model in (tuned, scratch):
        (run,) = model["runs"]
        lines = read_metrics(Path("runs/epochs") / run["folder"] / "metrics.csv")
        assert run["curve"] == [[line["epoch"] + 1, pytest.approx(line["val_acc"])] for line in lines]
        assert len(lines) == 4
    after = runs.weights(Path("runs/epochs") / tuned["runs"][0]["folder"])
    before = torch.load(place / "vit_base_patch16_224_in21k.pth")
    for name in ("patch_embed.proj.weight", "blocks.1.mlp.fc1.weight"):
        assert torch.cosine_similarity(after[name].flatten(), before[name].flatten(), 0) > 0.9, "it began from these"
    curves = [dict(model["runs"][0]["curve"]) for model in (tuned, scratch)]
    best, other = sorted(curves, key=lambda curve: -max(curve.values()))
    first = next(epoch for epoch, value in best.items() if value >= max(other.values()))
    page = Path("runs/epochs/comparison.html").read_text(encoding="utf-8")
    assert f"{100 * max(other.values()):.1f} %, the best accuracy of" in page
    assert f", after {first} epoch" in page


@pytest.mark.accept
def test_5_12_pre_training_without_labels(row: Any) -> None:
    """The loss is the cross-entropy of 512 mean colours: ln 512 = 6.24 if nothing is known."""
    row.line = row.line.replace("epochs=1", "epochs=12")
    row(*(part for own in ("workers=0", "batch_size=8", "precision=float32", "lr=3e-3") for part in ("--set", own)))
    losses = [line["train_loss"] for line in read_metrics(Path("runs/pretrained/metrics.csv"))]
    assert len(losses) == 12 and 4 < losses[0] < 8 and losses[-1] < losses[0] - 1
    encoder = vitkit.load("runs/pretrained")
    assert encoder.model.head is None and encoder.classes == ()


def test_5_14_a_cnn_of_torchvision(row: Any) -> None:
    ours, theirs = row().value, torchvision.models.resnet18(num_classes=5)
    theirs.load_state_dict(ours.network.state_dict())
    images = torch.randn(2, 3, 224, 224)
    torch.testing.assert_close(ours.eval()(images), theirs.eval()(images), rtol=1e-4, atol=1e-4)


def test_5_16_table_2(row: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    count = cost.training_flops

    def of_few_layers(training: Any) -> int:
        """The same sum from two layers and three, as those between the first and the last cost alike."""
        two, three = (count(replace(training, config=training.config.replace(layers=n))) for n in (2, 3))
        return two + (training.config.layers - 2) * (three - two)

    monkeypatch.setattr(cost, "training_flops", of_few_layers)
    out = row().out
    assert re.search(r"^ViT-H/14, JFT .* 2,500 +88\.55$", out, re.MULTILINE)
    (days,) = re.findall(r"^ViT-L/16, JFT .* ([\d,]+) +680 +87\.76$", out, re.MULTILINE)
    assert float(days.replace(",", "")) == pytest.approx(680, rel=0.15)


@pytest.mark.accept
def test_5_18_images_per_second(row: Any) -> None:
    """The speed of each backend, and its ratio to that of the plain model."""
    out = row("--rounds", "5", "--batch-sizes", "8").out
    line = re.compile(r"^(\w+ \w+) +8 +([\d.]+) +([\d.]+)-([\d.]+) +([\d.]+) ", re.MULTILINE)
    rows = {name: tuple(map(float, numbers)) for name, *numbers in line.findall(out)}
    assert {"eager float32", "eager bfloat16"} <= rows.keys() and rows["eager float32"][-1] == 1
    assert all(0 < low <= rate <= high and ratio > 0 for rate, low, high, ratio in rows.values())


@pytest.mark.parametrize("number", [*HOLDS, *(pytest.param(number, marks=pytest.mark.accept) for number in WHOLE)])
def test_it_holds(row: Any, place: Path, number: str) -> None:
    if number in ("5.3", "5.6"):
        runs.photos(place / "flower_photos_2", images=20, seed=7)
    assert (HOLDS | WHOLE)[number](row())


def test_5_23_speed_and_memory(row: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "ROUNDS", 2)
    row()
    models = lab("cost")["models"]
    assert [model["image_size"] for model in models] == [16, 32, 16, 32]
    assert all(model["images_per_s"] > 0 and model["activation_bytes"] > 0 for model in models)
