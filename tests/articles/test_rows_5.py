"""The rows of docs/articles.md on comparisons of ViT, hybrid and CNN."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
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


def more_photos(place: Path) -> None:
    runs.photos(place / "flower_photos_2", images=20, seed=7)


@pytest.mark.accept
def test_5_1_the_same_training_for_several_models(row: Any) -> None:
    row()
    result = comparison("compared")
    assert sorted(model["name"] for model in result["models"]) == MODELS and result["test_images"] == 6
    for model in result["models"]:
        low, high = model["interval"]
        assert low <= model["accuracy"] <= high
    assert len({run["images"] for model in result["models"] for run in model["runs"]}) == 1, "the same test images"


@pytest.mark.accept
def test_5_2_accuracy_by_the_amount_of_data(row: Any) -> None:
    row()
    for model in comparison("fractions")["models"]:
        assert [part["fraction"] for part in model["by_fraction"]] == [0.5, 1.0]
        images = {run["fraction"]: run["training_images"] for run in model["runs"]}
        assert images[0.5] < images[1.0]


@pytest.mark.accept
def test_5_3_several_data_sets(row: Any, place: Path) -> None:
    more_photos(place)
    out = row().out
    assert "flower_photos_2" in out and "mean rank" in out and "TPUv3-core-days" in out
    assert Path("runs/sets/suite.html").is_file()


@pytest.mark.accept
def test_5_4_the_same_computation(row: Any) -> None:
    row()
    flops = [run["training_flops"] for model in comparison("budget")["models"] for run in model["runs"]]
    assert len(flops) == 2 and all(value == pytest.approx(1e10, rel=0.2) for value in flops)


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
def test_5_6_pre_training_on_more_images(row: Any, place: Path) -> None:
    more_photos(place)
    out = row().out
    sizes = [int(size) for size in re.findall(r"^vit_micro_patch8_16 +(\d+) images", out, re.MULTILINE)]
    assert len(sizes) == 3 and sizes == sorted(set(sizes)), "a ninth, a third and all"


def test_5_7_few_labelled_images(row: Any) -> None:
    out = row().out
    images = re.findall(r"^(\d+) +[\d.]+ %", out, re.MULTILINE)
    assert images == sorted(images, key=int) and images[0] == "1"


@pytest.mark.accept
def test_5_8_accuracy_by_computation(row: Any) -> None:
    row()
    found = variants("hybrid")
    assert {"patches", "the ResNet's root", "ResNet"} <= found.keys()
    flops = [found[f"patches{part}"]["runs"][0]["training_flops"] for part in ("", ", a third of the epochs")]
    assert all(variant["gmacs"] > 0 for variant in found.values()) and flops[0] >= flops[1]


def test_5_9_attention_distance(row: Any) -> None:
    out = row().out
    rows = re.findall(r"^(\d) +[\d.]+ +[\d.]+ +[\d.]+", out, re.MULTILINE)
    assert rows == ["0", "1"], "layers are counted from 0"
    distance = torch.tensor(lab("distance")["attention_distance"])
    assert distance.shape == (2, 4) and (distance > 0).all() and (distance < 16 * 2**0.5).all()


@pytest.mark.accept
def test_5_10_positions(row: Any) -> None:
    row()
    found = variants("position")
    paper = {"none": "61.382", "learned 1-D": "64.206", "learned 2-D": "64.001", "relative": "64.032"}
    assert {label: found[label]["paper"] for label in paper} == paper
    assert found["learned 1-D"]["parameters"] - found["none"]["parameters"] == 5 * 128, "(4 + 1) positions"


@pytest.mark.accept
def test_5_11_class_token_or_mean(row: Any) -> None:
    row()
    found = variants("pooling")
    assert found["class token"]["parameters"] - found["mean, the same rate"]["parameters"] in (128, 256)


@pytest.mark.accept
def test_5_12_pre_training_without_labels(row: Any, place: Path) -> None:
    """The loss is the cross-entropy of 512 mean colours: ln 512 = 6.24 if nothing is known. Labels have no effect."""
    row.line = row.line.replace("epochs=1", "epochs=12")
    flags = [part for own in ("workers=0", "batch_size=8", "precision=float32", "lr=3e-3") for part in ("--set", own)]
    row(*flags)
    losses = [line["train_loss"] for line in read_metrics(Path("runs/pretrained/metrics.csv"))]
    assert len(losses) == 12 and 4 < losses[0] < 8 and losses[-1] < losses[0] - 1
    encoder = vitkit.load("runs/pretrained")
    assert encoder.model.head is None and encoder.classes == ()
    run = vitkit.train(
        "flower_photos", vitkit.Recipe(weights="runs/pretrained", method="probe", workers=0), out="runs/probed"
    )
    probed, pretrained = runs.weights(run.folder), runs.weights(Path("runs/pretrained"))
    assert all(torch.equal(probed[name], tensor) for name, tensor in pretrained.items())
    split, before = (json.loads(Path(f"runs/{name}/split.json").read_text()) for name in ("probed", "pretrained"))
    assert split["splits"]["test"] == before["splits"]["test"], "images that the pre-training has not seen"
    shutil.move("runs/pretrained", "runs/first")
    for old, new in zip(("blue", "green", "red"), ("x", "y", "z"), strict=True):
        (place / "flower_photos" / old).rename(place / "flower_photos" / new)
    row(*flags)
    runs.assert_same_weights(Path("runs/first"), Path("runs/pretrained"))


def test_5_13_the_papers_cnn(row: Any) -> None:
    network = row().value.network
    with torch.device("meta"):
        theirs = timm.create_model("resnetv2_50x1_bit", num_classes=5)
    assert {name: tensor.shape for name, tensor in network.state_dict().items()} == {
        name: tensor.shape for name, tensor in theirs.state_dict().items()
    }


def test_5_14_a_cnn_of_torchvision(row: Any) -> None:
    ours, theirs = row().value, torchvision.models.resnet18(num_classes=5)
    theirs.load_state_dict(ours.network.state_dict())
    images = torch.randn(2, 3, 224, 224)
    torch.testing.assert_close(ours.eval()(images), theirs.eval()(images), rtol=1e-4, atol=1e-4)


@pytest.mark.accept
def test_5_15_parameters_and_computation(row: Any) -> None:
    out = row().out
    assert "86,567,656" in out, "exact, as the reference implementation's"
    (macs,) = re.findall(r"^  GMACs +([\d.]+) ", out, re.MULTILINE)
    assert float(macs) == pytest.approx(17.564, rel=0.005)


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


def test_5_17_a_table_for_a_thesis(row: Any) -> None:
    text = row().value
    assert r"\caption{Recall of each class}" in text and all(f"\n{name} &" in text for name in runs.COLOURS)


@pytest.mark.accept
def test_5_18_images_per_second(row: Any) -> None:
    """The speed of each backend, and its ratio to that of the plain model."""
    out = row("--rounds", "5", "--batch-sizes", "8").out
    line = re.compile(r"^(\w+ \w+) +8 +([\d.]+) +([\d.]+)-([\d.]+) +([\d.]+) ", re.MULTILINE)
    rows = {name: tuple(map(float, numbers)) for name, *numbers in line.findall(out)}
    assert {"eager float32", "eager bfloat16"} <= rows.keys() and rows["eager float32"][-1] == 1
    assert all(0 < low <= rate <= high and ratio > 0 for rate, low, high, ratio in rows.values())


WHOLE: dict[str, Callable[[Any], bool]] = {  # trainings of several models
    "5.19": lambda _: all(word in json.dumps(comparison("robustness")) for word in ("occlusion", "shuffle")),
    "5.20": lambda _: variants("norm").keys() == {"pre-norm", "post-norm"},
}


@pytest.mark.accept
@pytest.mark.parametrize("number", WHOLE)
def test_it_holds(row: Any, number: str) -> None:
    assert WHOLE[number](row())


@pytest.mark.accept
def test_5_21_adam_or_sgd(row: Any) -> None:
    row()
    found = variants("optimizer")
    assert {label: variant["paper"] for label, variant in found.items()} == {"SGD": "88.79", "Adam": "89.33"}
    assert found["SGD"]["parameters"] == found["Adam"]["parameters"]
    assert lab("optimizer")["claims"][0]["claim"] == "Adam is better than SGD"


@pytest.mark.accept
def test_5_22_axial_attention(row: Any) -> None:
    row()
    found = variants("axial")
    deeper, axial = found["all patches, twice the depth"], found["rows, then columns"]
    assert axial["parameters"] == deeper["parameters"] and axial["gmacs"] < deeper["gmacs"]


def test_5_23_speed_and_memory(row: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "ROUNDS", 2)
    row()
    models = lab("cost")["models"]
    assert [model["image_size"] for model in models] == [16, 32, 16, 32]
    assert all(model["images_per_s"] > 0 and model["activation_bytes"] > 0 for model in models)
