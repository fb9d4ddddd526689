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


def trained(run: Path) -> set[str]:
    """The names of the tensors that a run has changed from the weights that it began with."""
    before, after = torch.load("vit_base_patch16_224_in21k.pth"), runs.weights(run)
    return {name for name in after if name.startswith("head") or not torch.equal(after[name], before[name])}


def trains_the_head(done: Done) -> None:
    assert trained(done.run) == {"head.weight", "head.bias"}


def keeps_a_fifth_for_validation(done: Done) -> None:
    splits = splits_of(done.run)
    for part, images in {"train": 8, "val": 2}.items():
        assert {name: len(paths) for name, paths in splits[part].items()} == dict.fromkeys(COLOURS, images)
    assert not any(splits.get("test", {}).values())


def descends_with_the_head(done: Done) -> None:
    assert "trained: head.weight, head.bias\n" in done.out + done.err
    trains_the_head(done)
    epochs = runs.metrics(done.run)
    assert len(epochs) == 10 and epochs[-1]["train_loss"] < epochs[0]["train_loss"]


def trains_every_layer(done: Done) -> None:
    assert trained(done.run) == set(runs.weights(done.run)) and len(runs.metrics(done.run)) == 10


def lowers_the_rate_as_the_script_does(done: Done) -> None:
    rates = [line["lr"] for line in runs.metrics(done.run)]
    shares = [(1 + np.cos(np.pi * epoch / len(rates))) / 2 for epoch in range(len(rates))]
    assert rates == pytest.approx([0.001 * (share * (1 - 0.01) + 0.01) for share in shares]) and len(rates) >= 3


def takes_four_images_a_step(done: Done) -> None:
    images = sum(map(len, splits_of(done.run)["train"].values()))
    assert runs.metrics(done.run)[0]["step"] == -(-images // 4), "the rest in a last one"
    assert done.recipe()["workers"] == 1


def writes_curves_for_tensorboard(done: Done) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(done.run / "tensorboard")).Reload()
    tags = events.Tags()["scalars"]
    assert {"train_loss", "train_acc", "val_loss", "val_acc", "lr"} <= {tag.rpartition("/")[2] for tag in tags}
    (tag,) = (tag for tag in tags if tag.endswith("val_loss"))
    losses = [line["val_loss"] for line in runs.metrics(done.run)]
    assert [event.value for event in events.Scalars(tag)] == pytest.approx(losses, rel=1e-5)


def keeps_the_weights_of_each_epoch(done: Done) -> None:
    folders = sorted(path for path in (done.run / "checkpoints").iterdir() if path.is_dir())
    assert [folder.name[:10] for folder in folders] == ["epoch-0000", "epoch-0001"]
    assert all(vitkit.load(folder).classes == tuple(COLOURS) for folder in folders)


TRAINED: dict[str, dict[str, Any] | Callable[[Done], None]] = {  # fields of the recipe, or what holds of the run
    "2.6": keeps_a_fifth_for_validation,
    "2.11": {"hflip": True, "crop_scale": [0.08, 1.0]},
    "2.16": trains_the_head,
    "2.17": descends_with_the_head,
    "2.18": trains_every_layer,
    "2.19": {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 5e-5},
    "2.20": lowers_the_rate_as_the_script_does,
    "2.21": takes_four_images_a_step,
    "2.22": {"device": "auto"},
    "2.28": writes_curves_for_tensorboard,
    "2.29": keeps_the_weights_of_each_epoch,
}


@pytest.mark.filterwarnings("ignore")  # of TensorBoard's packages
@pytest.mark.parametrize("numbers", ["2.6 2.16 2.22", "2.11 2.19 2.20 2.18", "2.21", "2.17", "2.28 2.29"])
def test_a_training_does_what_its_flags_say(row: Any, numbers: str) -> None:
    assert_trained(row(), numbers, TRAINED)


PICTURES = {"2.10": 50, "2.27": 100, "2.37": 100}  # and the least size of each


@pytest.mark.parametrize("number", PICTURES)
def test_it_is_a_picture(row: Any, number: str) -> None:
    with row().value as picture:
        assert min(picture.size) > PICTURES[number] and np.asarray(picture.convert("RGB")).std() > 10


HOLDS: dict[str, Callable[[Any], bool]] = {
    "2.2": lambda done: re.findall(r"^  (\w+) +(\d+) +#", done.out, re.M) == [(name, "10") for name in COLOURS],
    "2.4": lambda done: done.value == {"0": "blue", "1": "green", "2": "red"},
    "2.23": lambda done: all(parameter.grad is not None for parameter in done.names["model"].parameters()),
    "2.34": lambda done: all(name in done.value for name in ("tulip.png", *COLOURS)),
}


@pytest.mark.parametrize("number", HOLDS)
def test_it_holds(row: Any, number: str) -> None:
    assert HOLDS[number](row())


def test_2_1_unpacks_the_data_set(row: Any, place: Path) -> None:
    shutil.copytree(place / "flower_photos", place / "cache" / "data" / "flower_photos")
    out = row().out
    assert out.startswith("flower-photos: 30 images in 3 classes") and "cache/data/flower_photos" in out


def test_2_3_draws_the_counts(row: Any, place: Path) -> None:
    row()
    page = (place / "doctor.html").read_text(encoding="utf-8")
    assert 'alt="Images per class"' in page and 'src="data:image/png;base64,' in page


def test_2_5_class_indices_are_read(row: Any) -> None:
    assert row().value == ("blue", "green", "red")


def test_2_7_the_split_is_fixed(row: Any) -> None:
    splits = row().value["splits"]
    paths = [path for part in splits.values() for paths in part.values() for path in paths]
    assert len(paths) == len(set(paths)) == 30
    vitkit.train("flower_photos", vitkit.Recipe(**runs.quick_fields(epochs=1, split=(0.6, 0.2, 0.2))), out="runs/again")
    assert splits_of("runs/again") == splits


def test_2_8_a_dataset_in_batches(row: Any) -> None:
    images, labels = row().value
    assert images.shape == (8, 3, 32, 32) and labels.tolist() == [0] * 8
    assert images[:, 2].mean() > images[:, 0].mean(), "they are blue"


def test_2_9_pictures_that_are_not_rgb(row: Any) -> None:
    (line,) = csv.DictReader(io.StringIO(row().out))
    assert line["label"] in COLOURS and line["error"] == ""


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


def test_2_15_the_representation_layer_is_left_out(row: Any, place: Path) -> None:
    model = row().value.model
    assert not model.has_logits and model.head.in_features == 64
    stored = torch.load(place / "vit_base_patch16_224_in21k.pth")
    assert torch.equal(model.norm.weight, stored["norm.weight"])


def test_2_24_a_progress_bar(row: Any) -> None:
    seen: list[tuple[str, int, int]] = []
    row(progress=lambda what, done, total: seen.append((what, done, total)))
    assert any(what.startswith("epoch 1/1") for what, _, _ in seen)
    assert all(0 <= done <= total for _, done, total in seen)


def test_2_25_a_loss_that_is_not_finite(row: Any) -> None:
    with refused("training.not-finite"):
        row(not_finite=lambda logits, labels: logits.mean() * float("nan"))


def test_2_26_figures_of_each_epoch(row: Any) -> None:
    epochs = list(csv.DictReader(io.StringIO(row().value)))
    assert [line["epoch"] for line in epochs] == ["0", "1", "2"]
    for name in ("train_loss", "train_acc", "val_loss", "val_acc", "lr"):
        assert all(float(line[name]) >= 0 for line in epochs)


def test_2_30_the_best_weights(row: Any, place: Path) -> None:
    epochs = runs.metrics(place / "runs/flowers")
    best = max(epochs, key=lambda line: (line["val_acc"], -line["val_loss"]))
    assert row().value["val_acc"] == best["val_acc"]


def test_2_31_goes_on_after_an_interruption(row: Any, place: Path) -> None:
    fields = runs.quick_fields(epochs=2)
    stop = SimpleNamespace(on_epoch_end=lambda state: setattr(state, "should_stop", True))
    vitkit.train("flower_photos", vitkit.Recipe(**fields), out="runs/whole")
    vitkit.train("flower_photos", vitkit.Recipe(**fields), hooks=vitkit.Hooks(callbacks=[stop]), out="runs/stopped")
    assert len(runs.metrics(place / "runs/stopped")) == 1
    (place / "runs/stopped/report.html").unlink()
    row()
    runs.assert_same_weights(place / "runs/stopped", place / "runs/whole")


def test_2_32_one_picture(row: Any) -> None:
    (line,) = csv.DictReader(io.StringIO(row().out))
    (expected,) = vitkit.load("runs/flowers").predict("tulip.png")
    assert (line["path"], line["label"]) == ("tulip.png", expected.label)


def test_2_33_every_class_with_its_probability(row: Any) -> None:
    (line,) = csv.DictReader(io.StringIO(row().out))
    assert sorted([line["label"], line["label_2"], line["label_3"]]) == COLOURS
    shares = [float(line[name]) for name in ("confidence", "confidence_2", "confidence_3")]
    assert sum(shares) == pytest.approx(1, abs=1e-3) and shares == sorted(shares, reverse=True)


def test_2_35_a_folder_into_a_table(row: Any, place: Path) -> None:
    row()
    rows = list(csv.DictReader((place / "answers.csv").read_text().splitlines()))
    assert len(rows) == 30 and {line["label"] for line in rows} <= set(COLOURS)
    assert all(0 < float(line["confidence"]) <= 1 for line in rows)


def test_2_36_accuracy_of_the_validation_images(row: Any) -> None:
    answer = row().json
    paths = [
        (f"flower_photos/{path}", name) for name, group in splits_of("runs/flowers")["val"].items() for path in group
    ]
    answers = vitkit.load("runs/flowers").predict([path for path, _ in paths])
    right = sum(answer.label == name for answer, (_, name) in zip(answers, paths, strict=True))
    assert (answer["images"], answer["accuracy"]) == (6, pytest.approx(right / 6))


def test_2_38_all_settings_of_the_script(row: Any) -> None:
    recipe = row("--model", "vit_micro_patch8_16", "--set", "model.layers=2", "--max-images", "4").recipe()
    assert recipe.items() >= {"lr": 1e-3, "epochs": 10}.items()
