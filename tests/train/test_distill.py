"""Distillation: the losses against a computation by hand, the teacher's pixels and classes, runs with a teacher."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.models import resnet18

import runs
import tiny
from photos import smooth
from vitkit.classifier import Classifier
from vitkit.data.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitkit.errors import VitkitError
from vitkit.train import run
from vitkit.train.distill import distillation_loss, label_loss
from vitkit.train.recipe import Recipe
from vitkit.train.task import ClassificationTask
from vitkit.train.teacher import load_teacher
from vitkit.weights import load

LABELS = [0, 3, 6]
CLASSES = tuple(runs.COLOURS)


def numbers(seed: int, rows: int = 3, columns: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, (rows, columns))


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def cross_entropy(logits: np.ndarray, labels: list[int], smoothing: float = 0.0) -> float:
    logs = log_softmax(logits)
    total = 0.0
    for row, label in zip(logs, labels, strict=True):
        total -= (1 - smoothing) * row[label] + smoothing * row.mean()
    return total / len(labels)


def by_hand(kind: str, heads: list[np.ndarray], teacher: np.ndarray, alpha: float, t: float, smoothing: float) -> float:
    true = cross_entropy(heads[0], LABELS, smoothing)
    if kind == "hard":
        return 0.5 * true + 0.5 * cross_entropy(heads[-1], [int(row.argmax()) for row in teacher])
    p, q = log_softmax(teacher / t), log_softmax(heads[-1] / t)
    divergence = (np.exp(p) * (p - q)).sum() / len(LABELS)
    return (1 - alpha) * true + alpha * t * t * divergence


@pytest.mark.parametrize("one_head", [False, True], ids=["two heads", "one head"])
@pytest.mark.parametrize(("alpha", "temperature", "smoothing"), [(0.1, 3.0, 0.0), (0.7, 1.0, 0.1), (0.0, 5.0, 0.0)])
@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_the_losses_are_those_of_the_paper(
    kind: Any, alpha: float, temperature: float, smoothing: float, one_head: bool
) -> None:
    heads = [numbers(1)] if one_head else [numbers(1), numbers(2)]
    loss = distillation_loss(
        [torch.from_numpy(head) for head in heads],
        torch.tensor(LABELS),
        torch.from_numpy(numbers(3)),
        kind=kind,
        alpha=alpha,
        temperature=temperature,
        label_smoothing=smoothing,
    )
    assert loss.item() == pytest.approx(by_hand(kind, heads, numbers(3), alpha, temperature, smoothing), abs=1e-12)


def test_without_a_teacher_every_head_learns_the_labels() -> None:
    heads = [numbers(1), numbers(2)]
    expected = sum(cross_entropy(head, LABELS, 0.1) for head in heads) / 2
    loss = label_loss([torch.from_numpy(head) for head in heads], torch.tensor(LABELS), 0.1)
    assert loss.item() == pytest.approx(expected, abs=1e-12)


def test_a_student_that_agrees_with_its_teacher_learns_nothing_softly() -> None:
    logits = torch.from_numpy(numbers(1))
    loss = distillation_loss([logits], torch.tensor(LABELS), logits, kind="soft", alpha=1.0, temperature=3.0)
    assert abs(loss.item()) < 1e-12


def test_the_class_head_learns_labels_and_the_other_the_teacher() -> None:
    model = tiny.build(distill_token=True, distill_head=True).train()
    wrong = torch.eye(7)[[1, 1, 1]]
    task = ClassificationTask(model, Recipe(label_smoothing=0.0), 10, lambda images: wrong)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    batch = (tiny.images(3), torch.tensor([2, 2, 2]))
    for _ in range(20):
        optimizer.zero_grad()
        task.training_step(batch, 0).backward()
        optimizer.step()
    with torch.no_grad():
        first, second = model.eval().forward_heads(batch[0])
    assert (first.argmax(1) == 2).all()
    assert (second.argmax(1) == 1).all()
    assert torch.allclose(model(batch[0]), (first + second) / 2)


def test_the_teacher_is_no_part_of_what_is_trained_and_saved() -> None:
    teacher = torch.nn.Linear(3, 7)
    task = ClassificationTask(tiny.build(), Recipe(), 10, lambda images: teacher(images.mean((2, 3))))
    ids = {id(p) for group in task.configure_optimizers().param_groups for p in group["params"]}
    assert not ids & {id(parameter) for parameter in teacher.parameters()}
    assert all(name.startswith("model.") for name in task.state_dict())


# --- The teacher ------------------------------------------------------------------------------------


def saved_teacher(folder: Path, classes: tuple[str, ...] = CLASSES, **pixels: Any) -> Path:
    model = tiny.build(image_size=(16, 16), num_classes=len(classes))
    Classifier(model, classes, Preprocess(**{"size": (16, 16), "fit": "squash", **pixels})).save(folder)
    return folder


def test_a_teacher_sees_what_it_would_see_itself(tmp_path: Path) -> None:
    mean, std = (0.1, 0.5, 0.7), (0.2, 0.3, 0.4)
    teacher = load_teacher(str(saved_teacher(tmp_path / "t", mean=mean, std=std)), CLASSES, (16, 16))
    student = Preprocess(size=(16, 16), fit="squash", mean=IMAGENET_MEAN, std=IMAGENET_STD)
    picture = smooth(16, 16)
    images = torch.from_numpy(student(picture))[None]
    own = torch.from_numpy(teacher.preprocess(picture))[None]
    assert (teacher._see(images, student) - own).abs().max() <= 1e-5
    expected = load(tmp_path / "t").logits(own)
    assert torch.allclose(teacher.logits(images, student), expected, atol=1e-4)


def test_a_teacher_of_another_size_gets_pictures_of_its_size(tmp_path: Path) -> None:
    teacher = load_teacher(str(saved_teacher(tmp_path / "t")), CLASSES, (48, 32))
    student = Preprocess(size=(48, 32), fit="squash")
    picture = smooth(32, 48)
    seen = teacher._see(torch.from_numpy(student(picture))[None], student)
    assert seen.shape == (1, 3, 16, 16)
    assert (seen[0] - torch.from_numpy(teacher.preprocess(picture))).abs().max() < 0.05  # Pillow rounds to bytes


def test_classes_go_by_name_not_by_place(tmp_path: Path) -> None:
    path = saved_teacher(tmp_path / "t", classes=("red", "grey", "blue", "green"))
    teacher = load_teacher(str(path), ("blue", "green", "red"), (16, 16))
    images, pixels = tiny.images(2, config=tiny.tiny(image_size=(16, 16))), teacher.preprocess
    assert torch.equal(teacher.logits(images, pixels), load(path).logits(images)[:, [2, 3, 0]])


def test_a_teacher_that_does_not_know_a_class_is_refused(tmp_path: Path) -> None:
    path = saved_teacher(tmp_path / "t", classes=("red", "blue"))
    with pytest.raises(VitkitError, match="does not know the class green"):
        load_teacher(str(path), CLASSES, (16, 16))


def test_a_cnn_of_torchvision_from_a_file(tmp_path: Path) -> None:
    network = tiny.randomise(resnet18(num_classes=3), std=0.05)
    torch.save(network.state_dict(), tmp_path / "cnn.pth")
    teacher = load_teacher(f"resnet18:{tmp_path / 'cnn.pth'}", CLASSES, (32, 32))
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(teacher.logits(images, teacher.preprocess), network.eval()(images), atol=1e-5)
    assert "order" in teacher.notes[0]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("resnet18:nowhere.pth", "no such file: nowhere.pth"),
        ("resnet18:{folder}/text.pth", "cannot be read"),
        ("resnet18:{folder}/other.pth", "is no resnet18 of 3 classes"),
        ("resnet81", "did you mean"),
        ("{folder}/none", "no such file, folder or published weights"),
    ],
)
def test_teachers_that_cannot_be_had(tmp_path: Path, name: str, complaint: str) -> None:
    (tmp_path / "text.pth").write_text("not weights")
    torch.save(resnet18(num_classes=4).state_dict(), tmp_path / "other.pth")
    with pytest.raises(VitkitError, match="teacher") as caught:
        load_teacher(name.format(folder=tmp_path), CLASSES, (16, 16))
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("field", "value"), [("distill_alpha", 1.5), ("distill_temperature", 0.0)])
def test_numbers_out_of_range_are_named(field: str, value: float) -> None:
    with pytest.raises(VitkitError, match=field):
        Recipe(**{field: value})


# --- Whole runs ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.photos(tmp_path_factory.mktemp("data") / "photos")


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    return saved_teacher(tmp_path / "teacher")


STUDENT = "deit_micro_distilled_patch8_16"


def silent(line: str) -> None:
    pass


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_a_run_with_a_teacher(data: Path, teacher: Path, tmp_path: Path, kind: str) -> None:
    recipe = runs.quick(data, model=STUDENT, teacher=str(teacher), distillation=kind, epochs=1)
    out = run.train(recipe, tmp_path / "run", say=silent)
    alone = run.train(runs.quick(data, model=STUDENT, epochs=1), tmp_path / "alone", say=silent)
    classifier = load(out)
    assert classifier.provenance["teacher"]["name"] == str(teacher)
    assert len(classifier.provenance["teacher"]["sha256"]) == 64
    assert f'teacher = "{teacher}"' in (out / "recipe.toml").read_text()
    checkpoint = torch.load(out / "checkpoints" / "last.ckpt", weights_only=True)
    assert {name.removeprefix("model.") for name in checkpoint["state_dict"]} == set(classifier.model.state_dict())
    with pytest.raises(AssertionError):
        runs.assert_same_weights(out, alone)


def test_a_resumed_run_has_the_same_teacher(data: Path, teacher: Path, tmp_path: Path) -> None:
    recipe = runs.quick(data, model=STUDENT, teacher=str(teacher), epochs=2)
    whole = run.train(recipe, tmp_path / "whole", say=silent)

    class Stop(Exception):
        pass

    def stop(line: str) -> None:
        if line.startswith("epoch   1/2"):
            raise Stop

    with pytest.raises(Stop):
        run.train(recipe, tmp_path / "cut", say=stop)
    again = runs.copy_of(tmp_path / "cut", tmp_path / "again")
    runs.assert_same_weights(run.resume(tmp_path / "cut", say=silent), whole)

    description = json.loads((teacher / "model.json").read_text())
    saved_teacher(teacher, mean=(0.4, 0.4, 0.4))
    assert json.loads((teacher / "model.json").read_text()) != description
    model = tiny.build(seed=5, image_size=(16, 16), num_classes=3)
    Classifier(model, CLASSES, Preprocess(size=(16, 16))).save(teacher)
    with pytest.raises(VitkitError, match="not the one that the run began with"):
        run.resume(again, say=silent)


def test_a_missing_teacher_is_noticed_before_the_images_are_read(tmp_path: Path, data: Path) -> None:
    told: list[str] = []
    recipe = runs.quick(data, teacher="nowhere")
    with pytest.raises(VitkitError, match="nowhere"):
        run.train(recipe, tmp_path / "run", say=told.append, progress=lambda what, *_: told.append(what))
    assert told == []
    assert not (tmp_path / "run").exists()


def test_evaluation_averages_the_heads(data: Path, teacher: Path, tmp_path: Path) -> None:
    out = run.train(runs.quick(data, model=STUDENT, teacher=str(teacher), epochs=1), tmp_path / "run", say=silent)
    model = load(out).model
    images = tiny.images(2, config=model.config)
    with torch.no_grad():
        first, second = model.forward_heads(images)
        assert torch.allclose(model(images), (first + second) / 2)
    assert math.isfinite(runs.metrics(out)[0]["val_loss"])
