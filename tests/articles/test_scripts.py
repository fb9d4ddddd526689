"""Scripts such as those of the articles: with vitkit's model in their place, and their models in vitkit's training.

They follow the articles' steps, names and settings; only sizes are smaller, so that they run within seconds.
"""

import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm.models.vision_transformer as timm_vit
import torch
import torchvision
from PIL import Image
from torch import nn

import runs
import vitkit
import warm
from vitkit.explanation import rollout

SCRIPTS = Path(__file__).parent / "scripts"
sys.path.append(str(SCRIPTS))
import vit_model  # noqa: E402

SMALL: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 3}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with photographs, and weights in the layout of the published in21k files."""
    runs.photos(tmp_path / "flower_photos", images=15)
    Image.open(tmp_path / "flower_photos" / "red" / "img1.png").save(tmp_path / "tulip.png")
    torch.manual_seed(0)
    model = vit_model.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=1, num_classes=21_843, representation_size=64
    )
    nn.init.zeros_(model.head.weight)  # as in the published files
    torch.save(model.state_dict(), tmp_path / "vit_base_patch16_224_in21k.pth")
    return tmp_path


def run_script(name: str, place: Path, *arguments: str, python: str | None = None) -> str:
    command = [python or warm.python(), str(SCRIPTS / name), *arguments]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, env=runs.environment(), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_script_that_trains_and_the_one_that_predicts(place: Path) -> None:
    flags = ["--data-path", "flower_photos", "--num_classes", "3", "--lr", "0.01", "--epochs", "2", "--freeze-layers"]
    out = run_script("train_flowers.py", place, *flags, "--weights", "vit_base_patch16_224_in21k.pth")
    assert "45 images were found in the dataset.\n36 images for training.\n9 images for validation." in out
    assert "missing_keys=['head.weight', 'head.bias'], unexpected_keys=[]" in out
    assert re.findall(r"training (\S+)", out) == ["head.weight", "head.bias"]
    assert json.loads((place / "class_indices.json").read_text()) == {"0": "blue", "1": "green", "2": "red"}
    before, after = (torch.load(place / "weights" / f"model-{i}.pth") for i in (0, 1))
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"head.weight", "head.bias"}
    weights = torch.load(place / "vit_base_patch16_224_in21k.pth")
    assert all(torch.equal(after[name], weights[name]) for name in after if not name.startswith("head"))
    assert list((place / "runs").rglob("events.out.tfevents.*"))
    said = run_script("predict_flower.py", place, "tulip.png", "weights/model-1.pth")
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


def test_the_script_splits_as_the_article_says(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """int(n * 0.2) images of each class, drawn with seed 0: of TensorFlow's flower_photos, 2,939 and 731."""
    monkeypatch.chdir(place)
    read_split_data = scope_of("train_flowers.py")["read_split_data"]
    first, again = (read_split_data(place / "flower_photos", plot_image=False) for _ in range(2))
    assert first == again
    train_paths, train_labels, val_paths, val_labels = first
    assert not set(train_paths) & set(val_paths)
    assert [(train_labels.count(k), val_labels.count(k)) for k in range(3)] == [(12, 3)] * 3
    counts = {"daisy": 633, "dandelion": 898, "roses": 641, "sunflowers": 699, "tulips": 799}
    held_out = sum(int(count * 0.2) for count in counts.values())
    assert (sum(counts.values()) - held_out, held_out) == (2939, 731)


def test_the_lightning_script(place: Path) -> None:
    pytest.importorskip("pytorch_lightning")
    out = run_script("lightning_images.py", place, "flower_photos", python=sys.executable)
    assert {"train_loss", "train_acc", "val_loss", "val_acc", "test_acc"} <= set(re.findall(r"\w+_(?:loss|acc)", out))
    (checkpoint,) = (place / "checkpoints").iterdir()
    assert re.fullmatch(r"epoch=\d-val_loss=\d+\.\d\d-val_acc=\d\.\d\d\.ckpt", checkpoint.name)


def test_rollout_by_hooks_is_vitkits(place: Path) -> None:
    vitkit.train(place / "flower_photos", vitkit.Recipe(**runs.quick_fields(epochs=1)), out=place / "runs/flowers")
    run_script("attention_rollout.py", place, "runs/flowers", "tulip.png", "mask.png")
    classifier = vitkit.load(place / "runs/flowers")
    with Image.open(place / "tulip.png") as photograph, Image.open(place / "mask.png") as mask:
        assert mask.size == photograph.size
        image = torch.from_numpy(classifier.preprocess(photograph.convert("RGB")))[None]
    theirs = torch.from_numpy(np.load(place / "mask.png.npy"))
    torch.testing.assert_close(rollout(classifier.model, image)[0], theirs, rtol=1e-4, atol=1e-6)
    for picture in ("heads.png", "positions.png"):
        Image.open(place / picture).verify()


def test_the_loop_that_compares(place: Path) -> None:
    lines = [line.split() for line in run_script("compare_models.py", place, "flower_photos").splitlines()]
    assert [line[:2] for line in lines[1:]] == [
        [name, part] for name in ("ViT", "hybrid", "ResNet-18") for part in ("0.5", "1.0")
    ]
    network = torchvision.models.resnet18(num_classes=3)
    assert int(lines[5][3]) == sum(parameter.numel() for parameter in network.parameters())
    assert all(0 <= float(line[-1]) <= 1 for line in lines[1:])
    Image.open(place / "comparison.png").verify()


def scope_of(script: str) -> dict[str, Any]:
    """What a script defines."""
    scope: dict[str, Any] = {"__name__": script}
    exec(compile((SCRIPTS / script).read_text(encoding="utf-8"), script, "exec"), scope)
    return scope


def hybrid(num_classes: int) -> nn.Module:
    backbone = nn.Sequential(nn.Conv2d(3, 16, 3, stride=4, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    embed = partial(vit_model.HybridEmbed, backbone=backbone)
    sizes = {**SMALL, "patch_size": 1, "num_classes": num_classes}
    return vit_model.VisionTransformer(**sizes, embed_layer=embed)


def frozen(num_classes: int) -> nn.Module:
    model = plain(num_classes)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("head" in name)
    return model


def plain(num_classes: int) -> nn.Module:
    return vit_model.VisionTransformer(**{**SMALL, "num_classes": num_classes})


THEIRS = {
    "vit_model.py": plain,
    "vit_model.py, hybrid": hybrid,
    "train_flowers.py, frozen": frozen,
    "lightning_images.py": lambda classes: scope_of("lightning_images.py")["LitViT"](classes),
    "attention_rollout.py, timm": lambda classes: timm_vit.VisionTransformer(**{**SMALL, "num_classes": classes}),
    "compare_models.py": lambda classes: torchvision.models.resnet18(num_classes=classes),
}


@pytest.mark.parametrize("script", THEIRS)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
def test_the_model_of_each_script_is_trained_by_vitkit(place: Path, script: str) -> None:
    torch.manual_seed(0)
    theirs = THEIRS[script](3)
    before = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    left_out = ("model", "model_fields", "weights")
    fields = {name: value for name, value in runs.quick_fields(epochs=1).items() if name not in left_out}
    recipe = vitkit.Recipe(model=vitkit.register_model("theirs", theirs), image_size=32, **fields)
    run = vitkit.train(place / "flower_photos", recipe, out=place / "run")
    trained = vitkit.load(run.folder)
    after = trained.model.network.state_dict()
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    learns = {name for name, parameter in theirs.named_parameters() if parameter.requires_grad}
    assert changed & set(dict(theirs.named_parameters())) == learns
    assert len(vitkit.predict(run.folder, place / "flower_photos").rows()) == 45
    (answer,) = trained.predict(place / "tulip.png")
    assert answer.label in ("blue", "green", "red")
