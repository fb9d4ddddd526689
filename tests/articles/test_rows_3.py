"""The rows of docs/articles.md on training with Lightning and timm."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from conftest_articles import Done, assert_trained, splits_of, tiny_model
from PIL import Image

import runs
import vitkit
from tiny import randomise
from vitkit.weights import write

COLOURS = ["blue", "green", "red"]
PLAIN = {"hflip": False, "rotate": 0.0, "translate": 0.0, "zoom": 0.0, "shear": 0.0, "color_jitter": 0.0}


def halves_the_rate(done: Done) -> None:
    """CosineAnnealingLR with T_max=2."""
    assert [line["lr"] for line in runs.metrics(done.run)] == pytest.approx([0.001, 0.0005])


def keeps_the_lowest_loss(done: Done) -> None:
    best = min(line["val_loss"] for line in runs.metrics(done.run))
    assert vitkit.load(done.run).provenance["metrics"]["val_loss"] == best
    assert done.recipe()["monitor"] == "val_loss"


def names_checkpoints(done: Done) -> None:
    folders = sorted(path.name for path in (done.run / "checkpoints").iterdir() if path.is_dir())
    assert folders == [
        f"epoch-{line['epoch']:04.0f}-val_loss={line['val_loss']:.4f}-val_acc={line['val_acc']:.4f}"
        for line in runs.metrics(done.run)
    ]


TRAINED: dict[str, dict[str, Any] | Callable[[Done], None]] = {  # fields of the recipe, or what holds of the run
    "3.6": {"fit": "squash", "crop_scale": [1.0, 1.0], **PLAIN},
    "3.8": {"split": [0.6, 0.2, 0.2], "split_seed": 42},
    "3.9": {"seed": 42, "workers": 1},
    "3.12": {"optimizer": "adam", "lr": 0.001, "weight_decay": 0.0},
    "3.13": halves_the_rate,
    "3.14": keeps_the_lowest_loss,
    "3.15": names_checkpoints,
    "3.19": {"precision": "bfloat16"},
    "3.20": {"grad_accum": 2, "clip_grad": 1.0},
    "3.21": {"mixup": 0.8, "label_smoothing": 0.1},
    "3.31": {"optimizer": "adam", "lr": 1e-3, "epochs": 10, "schedule": "cosine", "step_per": "epoch", "swa": 0.2},
}


@pytest.mark.parametrize("numbers", ["3.6 3.8 3.9 3.12 3.13 3.14 3.15 3.19 3.20 3.21", "3.31"])
def test_a_training_does_what_its_flags_say(row: Any, place: Path, numbers: str) -> None:
    small_cifar10(place)
    small = ("--weights", "none", "--image-size", "16", "--max-images", "6")
    done = row(*(small if numbers == "3.31" else ()))
    assert_trained(done, numbers, TRAINED)
    assert numbers != "3.31" or done.recipe()["model"]["name"] == "vit_tiny_patch16_224"


LIGHTNINGS = {"3.10": "lightning", "3.11": "pytorch_lightning"}
AUGREG = "weights/storage.googleapis.com/vit_models/augreg/Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0.npz"


def test_3_1_a_model_by_timms_name(row: Any) -> None:
    ours, theirs = row().value, timm.create_model("vit_tiny_patch16_224", num_classes=10)
    theirs.load_state_dict(ours.state_dict())
    with torch.no_grad():
        theirs.head.weight.normal_(std=0.02)
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(1, 3, 224, 224)
    torch.testing.assert_close(ours.eval()(images), theirs.eval()(images), rtol=1e-4, atol=1e-4)


HOLDS: dict[str, Callable[[Any], bool]] = {
    "3.2": lambda done: type(done.value.network) is timm.models.ResNet and done.value.network.fc.out_features == 5 + 5,
    "3.7": lambda done: vitkit.load("runs/datasets").classes == tuple(COLOURS),
    "3.16": lambda done: torch.equal(done.value.model.cls_token, runs.weights(Path("runs/flowers"))["cls_token"]),
    "3.18": lambda done: len(runs.metrics(done.run)) < 9,
    "3.24": lambda done: [own["val_loss"] for own in EPOCHS] == pytest.approx([last_loss("runs/callback")]),
    "3.26": lambda done: "cross_entropy" in vitkit.load("runs/loss").provenance["extensions"]["loss"],
    "3.27": lambda done: (done.json["split"], done.json["images"]) == ("test", 6),
}


EPOCHS: list[dict[str, float]] = []  # of the callback


def last_loss(run: str) -> float:
    return runs.metrics(Path(run))[-1]["val_loss"]


@pytest.mark.parametrize("number", HOLDS)
def test_it_holds(row: Any, number: str) -> None:
    EPOCHS.clear()
    assert HOLDS[number](row(callback=SimpleNamespace(on_epoch_end=lambda state: EPOCHS.append(dict(state.metrics)))))


def test_3_3_timms_state_dict(row: Any) -> None:
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 1, "num_classes": 3}
    keys = row(timm_model=timm.models.vision_transformer.VisionTransformer(**sizes)).value
    assert (keys.missing_keys, keys.unexpected_keys) == ([], [])


def test_3_4_pretrained_weights_of_timm(row: Any, place: Path) -> None:
    torch.manual_seed(0)
    published = vitkit.vit_tiny_patch16_224(num_classes=21_843)
    (place / "cache" / AUGREG).parent.mkdir(parents=True)
    classifier = vitkit.Classifier(published, tuple(map(str, range(21_843))), vitkit.Preprocess(size=224))
    write(classifier, place / "cache" / AUGREG, "npz")
    done = row("--image-size", "32", "--max-images", "6")
    after = runs.weights(done.run)
    assert torch.equal(after["blocks.7.mlp.fc1.weight"], published.blocks[7].mlp.fc1.weight)
    assert after["head.weight"].shape[0] == 3


def small_cifar10(place: Path) -> None:
    for part in ("train", "test"):
        shutil.copytree(place / "flower_photos", place / "cache/data/cifar10" / part)
    for number, path in enumerate(sorted((place / "cache/data/cifar10/test").rglob("*.png"))):
        Image.fromarray(np.asarray(Image.open(path)) // 2 + number).save(path)  # other pictures than the training's


def test_3_5_cifar10(row: Any, place: Path) -> None:
    small_cifar10(place)
    tested = [path for paths in splits_of(row().run)["test"].values() for path in paths]
    assert {path.partition("/")[0] for path in tested} == {"test"} and len(tested) == 30


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("number", LIGHTNINGS)
def test_a_trainer_of_lightning_fits_it(row: Any, number: str) -> None:
    pytest.importorskip(LIGHTNINGS[number])
    images, labels = torch.randn(12, 3, 32, 32), torch.arange(12) % 3
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=4)
    model = tiny_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    row(loader=loader, model=model)
    assert all(not torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_3_17_stochastic_weight_averaging(row: Any) -> None:
    done = row()
    rates = [float(line["lr"]) for line in runs.metrics(done.run)]
    assert len(rates) == 10 and done.recipe()["swa"] == 0.2
    assert rates[7] > rates[8] != 0.001 and rates[9] == pytest.approx(0.001), "SWALR replaces the schedule from .8 on"


@pytest.mark.accept
def test_3_22_finds_the_learning_rate(row: Any) -> None:
    loss, rate = row().value
    runs_by_rate = {vitkit.Recipe.load(path / "recipe.toml").lr: path for path in Path("runs").glob("flower_photos-*")}
    assert runs_by_rate.keys() == {1e-4, 1e-3, 1e-2}
    losses = {lr: runs.metrics(path)[-1]["val_loss"] for lr, path in runs_by_rate.items()}
    assert losses[rate] == loss == min(losses.values())


@pytest.mark.accept
def test_3_23_cross_validation(row: Any) -> None:
    done = row()
    folds = sorted(done.run.glob("fold-*"))
    answers = [list(csv.DictReader((fold / "predictions.csv").read_text().splitlines())) for fold in folds]
    tested = [{answer["path"] for answer in part} for part in answers]
    assert [len(paths) for paths in tested] == [15, 15] and len(set.union(*tested)) == 30, "each image once"
    right = [answer["label"] == answer["predicted"] for part in answers for answer in part]
    accuracy = json.loads((done.run / "folds.json").read_text())["accuracy"]
    assert accuracy["mean"] == pytest.approx(sum(right) / 30)


def test_3_25_a_module_of_its_own(row: Any) -> None:
    nn = torch.nn
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))
    row(network=network)
    after = vitkit.load("runs/module").model.network.state_dict()
    assert not torch.equal(after["2.weight"], network.state_dict()["2.weight"])


def test_3_28_images_that_were_classified_wrongly(row: Any) -> None:
    shutil.rmtree("runs/flowers")
    fields = runs.quick_fields(model_fields={"layers": 1}, epochs=1, lr=1e-9, split=(0.6, 0.2, 0.2))
    vitkit.train("flower_photos", vitkit.Recipe(**fields), out="runs/flowers")  # which has learned nothing
    page = row().value
    answers = list(csv.DictReader(Path("runs/flowers/predictions.csv").read_text().splitlines()))
    wrong = [answer for answer in answers if answer["label"] != answer["predicted"]]
    assert len(answers) == 6 and 3 <= len(wrong) < 6, "an untrained model"
    assert all(answer["path"] in page for answer in wrong)


def small_flowers() -> None:
    """A model of one layer in the place of the run, for an export takes seconds."""
    shutil.rmtree("runs/flowers")
    vitkit.Classifier(randomise(tiny_model(depth=1)), COLOURS, vitkit.Preprocess(size=32)).save("runs/flowers")


@pytest.mark.accept  # tests/exporting compares such files by day
def test_3_29_onnx(row: Any) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    small_flowers()
    row()
    session = onnxruntime.InferenceSession("model.onnx")
    classifier, images = vitkit.load("runs/flowers"), torch.randn(2, 3, 32, 32)
    (logits,) = session.run(["logits"], {session.get_inputs()[0].name: images.numpy()})
    expected = classifier.model(images).detach().numpy()
    np.testing.assert_allclose(
        logits - logits.mean(1, keepdims=True), expected - expected.mean(1, keepdims=True), atol=1e-3
    )


@pytest.mark.accept
def test_3_30_torch_export(row: Any) -> None:
    small_flowers()
    row()
    program, images = torch.export.load("model.pt2"), torch.randn(2, 3, 32, 32)
    expected = vitkit.load("runs/flowers").model(images)
    torch.testing.assert_close(program.module()(images), expected, rtol=1e-3, atol=1e-4)
