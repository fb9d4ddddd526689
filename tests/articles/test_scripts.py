"""Scripts such as those of the articles: with vitkit's model in their place, and their models in vitkit's training.

They follow the articles' steps, names and settings; only sizes are smaller, so that they run within seconds.
"""

import json
import os
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torch import nn

import runs
import vitkit
from vitkit.explanation import rollout

pytestmark = pytest.mark.filterwarnings(  # what packages say when the scripts use them
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
Script = Callable[..., str]
SCRIPTS = Path(__file__).parent / "scripts"
sys.path.append(str(SCRIPTS))
import vit_model  # noqa: E402

SMALL: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 3}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the scripts run, with photographs."""
    runs.photos(tmp_path / "flower_photos", images=15)
    Image.open(tmp_path / "flower_photos" / "red" / "img1.png").save(tmp_path / "tulip.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run_script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Script]:
    """`run_script("train.py", "--epochs", "2")` runs it in this process, and returns what it printed."""

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        capsys.readouterr()
        runpy.run_path(str(SCRIPTS / name), run_name="__main__")
        return capsys.readouterr().out

    with patch.dict(os.environ):
        yield run
    plt.close("all")
    torch.use_deterministic_algorithms(False)


def test_the_script_that_trains_and_the_one_that_predicts(place: Path, run_script: Script) -> None:
    torch.manual_seed(0)  # weights in the layout of the published in21k files
    sizes: dict[str, Any] = {**SMALL, "num_heads": 1, "num_classes": 21_843}
    model = vit_model.VisionTransformer(**sizes, representation_size=64)
    nn.init.zeros_(model.head.weight)
    torch.save(model.state_dict(), place / "vit_base_patch16_224_in21k.pth")
    flags = ["--data-path", "flower_photos", "--num_classes", "3", "--lr", "0.01", "--epochs", "2", "--freeze-layers"]
    out = run_script("train_flowers.py", *flags, "--weights", "vit_base_patch16_224_in21k.pth")
    assert "45 images were found in the dataset.\n36 images for training.\n9 images for validation." in out
    assert "missing_keys=['head.weight', 'head.bias'], unexpected_keys=[]" in out
    assert re.findall(r"training (\S+)", out) == ["head.weight", "head.bias"]
    assert json.loads((place / "class_indices.json").read_text()) == {"0": "blue", "1": "green", "2": "red"}
    before, after = (torch.load(place / "weights" / f"model-{i}.pth") for i in (0, 1))
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"head.weight", "head.bias"}
    weights = torch.load(place / "vit_base_patch16_224_in21k.pth")
    assert all(torch.equal(after[name], weights[name]) for name in after if not name.startswith("head"))
    assert list((place / "runs").rglob("events.out.tfevents.*"))
    said = run_script("predict_flower.py", "tulip.png", "weights/model-1.pth")
    assert re.findall(r"class: (\w+)", said) == ["blue", "green", "red"]
    shares = dict(
        zip(re.findall(r"class: (\w+)", said), map(float, re.findall(r"prob: ([\d.e-]+)", said)), strict=True)
    )
    # vitkit opens what the script left, weights and class_indices.json, and gives the same answer.
    (place / "weights" / "class_indices.json").write_text((place / "class_indices.json").read_text())
    pixels = "resize=36,crop=32,interpolation=bilinear,mean=0.5,std=0.5"
    (answer,) = vitkit.load(place / "weights" / "model-1.pth", heads=1, preprocess=pixels).predict(place / "tulip.png")
    assert answer.label == max(shares, key=lambda name: shares[name])
    assert dict(answer.ranking) == pytest.approx(shares, abs=5e-3)


def test_the_lightning_script(place: Path, run_script: Script) -> None:
    pytest.importorskip("pytorch_lightning")
    out = run_script("lightning_images.py", str(runs.photos(place / "few", images=6)))
    assert {"train_loss", "train_acc", "val_loss", "val_acc", "test_acc"} <= set(re.findall(r"\w+_(?:loss|acc)", out))
    (checkpoint,) = (place / "checkpoints").iterdir()
    assert re.fullmatch(r"epoch=\d-val_loss=\d+\.\d\d-val_acc=\d\.\d\d\.ckpt", checkpoint.name)


def test_rollout_by_hooks_is_vitkits(place: Path, run_script: Script) -> None:
    run_script("attention_rollout.py", str(runs.shared_run()), "tulip.png", "mask.png")
    classifier = vitkit.load(runs.shared_run())
    with Image.open(place / "tulip.png") as photograph, Image.open(place / "mask.png") as mask:
        assert mask.size == photograph.size
        image = torch.from_numpy(classifier.preprocess(photograph.convert("RGB")))[None]
    theirs = torch.from_numpy(np.load(place / "mask.png.npy"))
    torch.testing.assert_close(rollout(classifier.model, image)[0], theirs, rtol=1e-4, atol=1e-6)
    for picture in ("heads.png", "positions.png"):
        Image.open(place / picture).verify()


def test_the_loop_that_compares(place: Path, run_script: Script) -> None:
    printed = run_script("compare_models.py", str(runs.photos(place / "few", images=6)))
    lines = [line.split() for line in printed.splitlines()]
    assert [line[:2] for line in lines[1:]] == [
        [name, part] for name in ("ViT", "hybrid", "ResNet-18") for part in ("0.5", "1.0")
    ]
    network = torchvision.models.resnet18(num_classes=3)
    assert int(lines[5][3]) == sum(parameter.numel() for parameter in network.parameters())
    assert all(0 <= float(line[-1]) <= 1 for line in lines[1:])
    Image.open(place / "comparison.png").verify()


def hybrid(num_classes: int) -> nn.Module:
    backbone = nn.Sequential(nn.Conv2d(3, 16, 3, stride=4, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    embed = partial(vit_model.HybridEmbed, backbone=backbone)
    sizes = {**SMALL, "patch_size": 1, "num_classes": num_classes}
    return vit_model.VisionTransformer(**sizes, embed_layer=embed)


def frozen(num_classes: int) -> nn.Module:
    model = vit_model.VisionTransformer(**{**SMALL, "num_classes": num_classes})
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("head" in name)
    return model


def lit(num_classes: int) -> nn.Module:
    return runpy.run_path(str(SCRIPTS / "lightning_images.py"))["LitViT"](num_classes)


@pytest.mark.parametrize("make", [hybrid, frozen, pytest.param(lit, marks=pytest.mark.accept)])
def test_the_model_of_each_script_is_trained_by_vitkit(tmp_path: Path, make: Callable[[int], nn.Module]) -> None:
    torch.manual_seed(0)
    theirs = make(3)
    before = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    left_out = ("model", "model_fields", "weights")
    fields = {name: value for name, value in runs.quick_fields(epochs=1).items() if name not in left_out}
    recipe = vitkit.Recipe(model=vitkit.register_model("theirs", theirs), image_size=32, **fields)
    photos = runs.shared_photos()
    run = vitkit.train(photos, recipe, out=tmp_path / "run")
    after = vitkit.load(run.folder).model.network.state_dict()
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    learns = {name for name, parameter in theirs.named_parameters() if parameter.requires_grad}
    assert changed & set(dict(theirs.named_parameters())) == learns
    assert {row.label for row in vitkit.predict(run.folder, photos)} <= set(runs.COLOURS)
