"""The rows of docs/articles.md on training with Lightning and timm."""

import base64
import csv
import io
import json
import re
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


def splits_by_another_seed(done: Done) -> None:
    splits = splits_of(done.run)
    assert [len(splits[part]["red"]) for part in ("train", "val", "test")] == [6, 2, 2]
    assert splits != splits_of("runs/flowers")


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


def computes_in_bfloat16(done: Done) -> None:
    assert "in bfloat16" in done.out + done.err
    assert {tensor.dtype for tensor in runs.weights(done.run).values()} == {torch.float32}


def accumulates_and_clips(done: Done) -> None:
    images = sum(map(len, splits_of(done.run)["train"].values()))
    assert runs.metrics(done.run)[0]["step"] == -(-images // (8 * 2)) and done.recipe()["clip_grad"] == 1.0


TRAINED: dict[str, dict[str, Any] | Callable[[Done], None]] = {  # fields of the recipe, or what holds of the run
    "3.6": {"fit": "squash", "crop_scale": [1.0, 1.0], **PLAIN},
    "3.8": splits_by_another_seed,
    "3.12": {"optimizer": "adam", "lr": 0.001, "weight_decay": 0.0},
    "3.13": halves_the_rate,
    "3.14": keeps_the_lowest_loss,
    "3.15": names_checkpoints,
    "3.19": computes_in_bfloat16,
    "3.20": accumulates_and_clips,
    "3.21": {"mixup": 0.8, "label_smoothing": 0.1},
}


@pytest.mark.parametrize("numbers", ["3.6 3.8 3.12 3.13 3.14 3.15", "3.19 3.20 3.21"])
def test_a_training_does_what_its_flags_say(row: Any, numbers: str) -> None:
    assert_trained(row(), numbers, TRAINED)


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
    "3.18": lambda done: len(runs.metrics(done.run)) < 9,
    "3.26": lambda done: "cross_entropy" in vitkit.load("runs/loss").provenance["extensions"]["loss"],
}


@pytest.mark.parametrize("number", HOLDS)
def test_it_holds(row: Any, number: str) -> None:
    assert HOLDS[number](row())


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
    done = row()
    tested = [path for paths in splits_of(done.run)["test"].values() for path in paths]
    assert {path.partition("/")[0] for path in tested} == {"test"}
    assert len(tested) == 30 and "on 30 test images" in done.out + done.err


def test_3_9_everything_is_seeded(row: Any) -> None:
    assert row("-o", "runs/first").recipe()["seed"] == 42
    row("-o", "runs/second", "--workers", "0")
    runs.assert_same_weights(Path("runs/first"), Path("runs/second"))
    first, other = (runs.weights(Path("runs") / name)["cls_token"] for name in ("first", "flowers"))
    assert not torch.equal(first, other)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("number", LIGHTNINGS)
def test_a_trainer_of_lightning_fits_it(row: Any, number: str) -> None:
    pytest.importorskip(LIGHTNINGS[number])
    torch.manual_seed(0)
    images, labels = torch.randn(12, 3, 32, 32), torch.arange(12) % 3
    images += labels[:, None, None, None]
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=4)
    model = tiny_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    row(loader=loader, model=model)
    assert all(not torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert (model(images).argmax(1) == labels).float().mean() > 1 / 3


def test_3_16_loads_the_best_checkpoint(row: Any) -> None:
    classifier = row().value
    state = classifier.model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in runs.weights(Path("runs/flowers")).items())


def test_3_17_stochastic_weight_averaging(row: Any) -> None:
    done = row("-o", "runs/averaged")
    rates = [float(line["lr"]) for line in runs.metrics(done.run)]
    assert len(rates) == 10 and done.recipe()["swa"] == 0.2
    assert rates[7] > rates[8] != 0.001 and rates[9] == pytest.approx(0.001), "SWALR replaces the schedule from .8 on"


@pytest.mark.accept
def test_3_22_finds_the_learning_rate(row: Any) -> None:
    done = row()
    (tried, taken) = re.findall(r"by learning rate: (.*); taking ([\d.e-]+)", done.out)[0]
    losses = {rate: float(loss) for rate, loss in (pair.split(": ") for pair in tried.split(", "))}
    assert losses[taken] == min(losses.values()) and done.recipe()["lr"] == float(taken)


@pytest.mark.accept
def test_3_23_cross_validation(row: Any) -> None:
    done = row()
    folds = sorted(done.run.glob("fold-*"))
    answers = [list(csv.DictReader((fold / "predictions.csv").read_text().splitlines())) for fold in folds]
    tested = [{answer["path"] for answer in part} for part in answers]
    assert [len(paths) for paths in tested] == [15, 15] and len(set.union(*tested)) == 30, "each image once"
    for fold, paths in zip(folds, tested, strict=True):
        splits = splits_of(fold)
        assert not paths & {path for part in ("train", "val") for group in splits[part].values() for path in group}
    right = [answer["label"] == answer["predicted"] for part in answers for answer in part]
    accuracy = json.loads((done.run / "folds.json").read_text())["accuracy"]
    low, high = accuracy["interval_95"]
    assert accuracy["mean"] == pytest.approx(sum(right) / 30) and low <= accuracy["mean"] <= high


def test_3_24_a_callback(row: Any) -> None:
    epochs: list[dict[str, float]] = []
    row(callback=SimpleNamespace(on_epoch_end=lambda state: epochs.append(dict(state.metrics))))
    (figures,) = epochs
    assert figures["val_loss"] == pytest.approx(runs.metrics(Path("runs/callback"))[0]["val_loss"])


def test_3_25_a_module_of_its_own(row: Any) -> None:
    torch.manual_seed(0)
    nn = torch.nn
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))
    row(network=network)
    after = vitkit.load("runs/module").model.network.state_dict()
    assert after.keys() == network.state_dict().keys()
    assert not torch.equal(after["2.weight"], network.state_dict()["2.weight"])


def test_3_27_tests_on_held_out_images(row: Any) -> None:
    answer = row().json
    assert (answer["split"], answer["images"]) == ("test", 6)
    low, high = answer["intervals_95"]["accuracy"]
    assert low <= answer["accuracy"] <= high


def test_3_28_images_that_were_classified_wrongly(row: Any, place: Path) -> None:
    shutil.rmtree("runs/flowers")
    fields = runs.quick_fields(model_fields={"layers": 1}, epochs=1, lr=1e-9, split=(0.6, 0.2, 0.2))
    vitkit.train("flower_photos", vitkit.Recipe(**fields), out="runs/flowers")  # which has learned nothing
    page = row().value
    answers = list(csv.DictReader(Path("runs/flowers/predictions.csv").read_text().splitlines()))
    wrong = {answer["path"]: answer for answer in answers if answer["label"] != answer["predicted"]}
    assert len(answers) == 6 and 3 <= len(wrong) < 6, "an untrained model"
    section = page.partition("The most confident mistakes")[2].partition("<h2")[0]
    cells = re.findall(r"<figure.*?</figure>", section, re.DOTALL)
    captions = {next(path for path in wrong if path in cell): cell for cell in cells}
    assert captions.keys() == wrong.keys() and len(cells) == len(wrong)
    for path, cell in captions.items():
        assert f"your label: {wrong[path]['label']}" in cell and f"predicted: {wrong[path]['predicted']} " in cell
        (data,) = re.findall(r"data:image/\w+;base64,([^\"]+)", cell)
        pictures = [Image.open(file) for file in (io.BytesIO(base64.b64decode(data)), place / "flower_photos" / path)]
        means = [np.asarray(picture.convert("RGB")).mean((0, 1)) for picture in pictures]
        np.testing.assert_allclose(*means, atol=12)  # the photograph itself, as a JPEG


def small_flowers() -> None:
    """A model of one layer in the place of the run, for an export takes seconds."""
    shutil.rmtree("runs/flowers")
    vitkit.Classifier(randomise(tiny_model(depth=1)), COLOURS, vitkit.Preprocess(size=32)).save("runs/flowers")


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


def test_3_30_torch_export(row: Any) -> None:
    small_flowers()
    row()
    program, images = torch.export.load("model.pt2"), torch.randn(2, 3, 32, 32)
    expected = vitkit.load("runs/flowers").model(images)
    torch.testing.assert_close(program.module()(images), expected, rtol=1e-3, atol=1e-4)


def test_3_31_all_settings_of_the_script(row: Any, place: Path) -> None:
    small_cifar10(place)
    recipe = row("--weights", "none", "--image-size", "16", "--max-images", "6").recipe()
    assert recipe["model"]["name"] == "vit_tiny_patch16_224"
    assert (recipe["optimizer"], recipe["lr"], recipe["weight_decay"], recipe["epochs"]) == ("adam", 1e-3, 0.0, 10)
    assert (recipe["schedule"], recipe["step_per"], recipe["swa"]) == ("cosine", "epoch", 0.2)
