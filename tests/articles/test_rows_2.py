"""The rows of docs/articles.md on fine-tuning with photographs of flowers."""

import csv
import io
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest_articles import Done, assert_trained, splits_of
from PIL import Image
from torchvision import transforms

import runs
import vitkit
from refusals import refused

COLOURS = ["blue", "green", "red"]
JX = "weights/github.com/rwightman/pytorch-image-models/releases/download/v0.1-vitjx"


def lowers_the_rate_as_the_script_does(done: Done) -> None:
    rates = [line["lr"] for line in runs.metrics(done.run)]
    shares = [(1 + np.cos(np.pi * epoch / len(rates))) / 2 for epoch in range(len(rates))]
    assert rates == pytest.approx([0.001 * (share * (1 - 0.01) + 0.01) for share in shares]) and len(rates) >= 3


def writes_curves_for_tensorboard(done: Done) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(done.run / "tensorboard")).Reload()
    tags = {tag.rpartition("/")[2]: tag for tag in events.Tags()["scalars"]}
    assert {"train_loss", "train_acc", "val_loss", "val_acc", "lr"} <= tags.keys()
    losses = [line["val_loss"] for line in runs.metrics(done.run)]
    assert [event.value for event in events.Scalars(tags["val_loss"])] == pytest.approx(losses, rel=1e-5)


def keeps_the_weights_of_each_epoch(done: Done) -> None:
    folders = sorted(path for path in (done.run / "checkpoints").iterdir() if path.is_dir())
    assert [folder.name[:10] for folder in folders] == ["epoch-0000", "epoch-0001"]
    assert all(vitkit.load(folder).classes == tuple(COLOURS) for folder in folders)


TRAINED: dict[str, dict[str, Any] | Callable[[Done], None]] = {  # fields of the recipe, or what holds of the run
    "2.6": {"split": [0.8, 0.2, 0.0]},
    "2.11": {"hflip": True, "crop_scale": [0.08, 1.0]},
    "2.16": {"method": "probe"},
    "2.17": {"method": "probe-sgd", "epochs": 10},
    "2.18": {"method": "full"},
    "2.19": {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 5e-5},
    "2.20": lowers_the_rate_as_the_script_does,
    "2.21": {"batch_size": 4, "workers": 1},
    "2.22": {"device": "auto"},
    "2.28": writes_curves_for_tensorboard,
    "2.29": keeps_the_weights_of_each_epoch,
    "2.38": {"lr": 1e-3, "epochs": 10},
}


@pytest.mark.filterwarnings("ignore")  # of TensorBoard's packages
@pytest.mark.parametrize("numbers", ["2.6 2.16 2.22", "2.11 2.18 2.19 2.21 2.20", "2.17", "2.28 2.29", "2.38"])
def test_a_training_does_what_its_flags_say(row: Any, numbers: str) -> None:
    small = ("--model", "vit_micro_patch8_16", "--set", "model.layers=2", "--max-images", "4")
    assert_trained(row(*(small if numbers == "2.38" else ())), numbers, TRAINED)


PICTURES = {"2.10": 50, "2.27": 100, "2.37": 100}  # and the least size of each


@pytest.mark.parametrize("number", PICTURES)
def test_it_is_a_picture(row: Any, number: str) -> None:
    with row().value as picture:
        assert min(picture.size) > PICTURES[number] and np.asarray(picture.convert("RGB")).std() > 10


HOLDS: dict[str, Callable[[Any], bool]] = {
    "2.2": lambda done: re.findall(r"^  (\w+) +(\d+) +#", done.out, re.M) == [(name, "10") for name in COLOURS],
    "2.4": lambda done: done.value == {"0": "blue", "1": "green", "2": "red"},
    "2.5": lambda done: done.value == ("blue", "green", "red"),
    "2.9": lambda done: table(done)["label"] in COLOURS and table(done)["error"] == "",
    "2.15": lambda done: (done.value.model.has_logits, done.value.model.head.in_features) == (False, 64),
    "2.23": lambda done: all(parameter.grad is not None for parameter in done.names["model"].parameters()),
    "2.26": lambda done: {"epoch", "train_loss", "train_acc", "val_loss", "val_acc", "lr"} <= {*done.value.split(",")},
    "2.30": lambda done: done.value["val_acc"] == max(line["val_acc"] for line in runs.metrics(Path("runs/flowers"))),
    "2.32": lambda done: table(done)["label"] == next(vitkit.load("runs/flowers").predict("tulip.png")).label,
    "2.33": lambda done: sorted(table(done)[name] for name in ("label", "label_2", "label_3")) == COLOURS,
    "2.34": lambda done: all(name in done.value for name in ("tulip.png", *COLOURS)),
}


@pytest.mark.parametrize("number", HOLDS)
def test_it_holds(row: Any, number: str) -> None:
    assert HOLDS[number](row())


def test_2_1_unpacks_the_data_set(row: Any, place: Path) -> None:
    shutil.move(place / "flower_photos", place / "cache" / "data" / "flower_photos")
    assert row().out.startswith("flower_photos: 30 images in 3 classes")


def test_2_3_draws_the_counts(row: Any, place: Path) -> None:
    row()
    assert 'alt="Images per class" src="data:image/png;base64,' in (place / "doctor.html").read_text(encoding="utf-8")


def test_2_7_the_split_is_fixed(row: Any) -> None:
    paths = [path for part in row().value["splits"].values() for paths in part.values() for path in paths]
    assert len(paths) == len(set(paths)) == 30


def test_2_8_a_dataset_in_batches(row: Any) -> None:
    images, labels = row().value
    assert images.shape == (8, 3, 32, 32) and labels.tolist() == [0] * 8
    assert images[:, 2].mean() > images[:, 0].mean(), "they are blue"


def test_2_12_resize_crop_normalise(row: Any) -> None:
    pixels = torch.from_numpy(row().value)
    steps = [transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor()]
    article = transforms.Compose([*steps, transforms.Normalize([0.5] * 3, [0.5] * 3)])
    expected = article(Image.open("tulip.png").convert("RGB"))
    assert pixels.shape == expected.shape == (3, 224, 224)
    assert (pixels - expected).abs().mean() < 0.02


@pytest.mark.accept  # a stand-in of 100 million parameters
def test_2_13_published_weights_by_name(row: Any, place: Path) -> None:
    torch.manual_seed(0)
    published = vitkit.vit_base_patch16_224_in21k()
    (place / "cache" / JX).mkdir(parents=True)
    torch.save(published.state_dict(), place / "cache" / JX / "jx_vit_base_patch16_224_in21k-e5005f0a.pth")
    model = row().value.model
    assert model.config.representation_size == 768 and model.num_classes == 21_843
    assert torch.equal(model.blocks[3].mlp.fc1.weight, published.blocks[3].mlp.fc1.weight)


def test_2_14_the_head_is_left_out_and_the_rest_reported(row: Any, capsys: pytest.CaptureFixture[str]) -> None:
    row()
    printed = capsys.readouterr().out
    assert "\nnew head.weight: 5 classes, zero until it is trained\nnew head.bias: " in printed
    assert "\ndropped pre_logits.fc.weight" in printed and "missing" not in printed and "left over" not in printed


def test_2_24_a_progress_bar(row: Any) -> None:
    seen: list[tuple[str, int, int]] = []
    row(progress=lambda *report: seen.append(report))
    assert any(what.startswith("epoch 1/1") for what, _, _ in seen)


def test_2_25_a_loss_that_is_not_finite(row: Any) -> None:
    with refused("training.not-finite"):
        row(not_finite=lambda logits, labels: logits.mean() * float("nan"))


def test_2_31_goes_on_after_an_interruption(row: Any, place: Path) -> None:
    stop = SimpleNamespace(on_epoch_end=lambda state: setattr(state, "should_stop", True))
    recipe = vitkit.Recipe(**runs.quick_fields(epochs=2))
    vitkit.train("flower_photos", recipe, hooks=vitkit.Hooks(callbacks=[stop]), out="runs/stopped")
    assert len(runs.metrics(place / "runs/stopped")) == 1
    (place / "runs/stopped/report.html").unlink()
    row()
    assert len(runs.metrics(place / "runs/stopped")) == 2


def table(done: Done) -> dict[str, str]:
    """The only line of a printed table."""
    (line,) = csv.DictReader(io.StringIO(done.out))
    return line


def test_2_35_a_folder_into_a_table(row: Any, place: Path) -> None:
    row()
    rows = list(csv.DictReader((place / "answers.csv").read_text().splitlines()))
    assert len(rows) == 30 and {line["label"] for line in rows} <= set(COLOURS)


def test_2_36_accuracy_of_the_validation_images(row: Any) -> None:
    answer, model = row().json, vitkit.load("runs/flowers")
    paths = {f"flower_photos/{path}": name for name, own in splits_of("runs/flowers")["val"].items() for path in own}
    right = sum(answer.label == name for answer, name in zip(model.predict([*paths]), paths.values(), strict=True))
    assert (answer["images"], answer["accuracy"]) == (6, pytest.approx(right / 6))
