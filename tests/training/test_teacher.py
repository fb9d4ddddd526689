"""The teacher: whom it may be, what it sees, how it answers; and whole runs with one."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import models
from torchvision.models import resnet18

import runs
import tiny
from hearing import heard
from photos import smooth
from refusals import refused
from vitkit.classifier import Classifier
from vitkit.data import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitkit.training import Objective, Recipe, distillation_loss, load_teacher, run
from vitkit.weights import load

CLASSES = tuple(runs.COLOURS)


def saved_teacher(folder: Path, classes: tuple[str, ...] = CLASSES, always: str | None = None, **pixels: Any) -> Path:
    """A model folder; `always` is the only class it ever names."""
    model = tiny.build(image_size=(16, 16), num_classes=len(classes))
    if always is not None:
        with torch.no_grad():
            model.head.bias[classes.index(always)] += 100.0
    Classifier(model, classes, Preprocess(**{"size": (16, 16), "fit": "squash", **pixels})).save(folder)
    return folder


@pytest.mark.parametrize(("size", "gap"), [((16, 16), 1e-5), ((48, 32), 0.125)])  # Pillow rounds to bytes
def test_a_teacher_sees_what_it_would_see_itself(tmp_path: Path, size: tuple[int, int], gap: float) -> None:
    mean, std = (0.1, 0.5, 0.7), (0.2, 0.3, 0.4)
    teacher = load_teacher(str(saved_teacher(tmp_path / "t", mean=mean, std=std)), CLASSES)
    student = Preprocess(size=size, fit="squash", mean=IMAGENET_MEAN, std=IMAGENET_STD)
    picture = smooth(size[1], size[0])
    images, own = (torch.from_numpy(each(picture))[None] for each in (student, teacher.preprocess))
    seen = teacher._as_teacher_input(images, student)
    assert seen.shape == (1, 3, 16, 16) and (seen - own).abs().max() <= gap
    assert torch.allclose(teacher.logits(images, student), load(tmp_path / "t").logits(seen), atol=1e-4)


def test_classes_go_by_name_not_by_place(tmp_path: Path) -> None:
    path = saved_teacher(tmp_path / "t", classes=("red", "grey", "blue", "green"))
    teacher = load_teacher(str(path), ("blue", "green", "red"))
    images, pixels = tiny.images(2, config=tiny.tiny(image_size=(16, 16))), teacher.preprocess
    assert torch.equal(teacher.logits(images, pixels), load(path).logits(images)[:, [2, 3, 0]])
    with refused("training.teacher-class-missing", "gold"):
        load_teacher(str(path), ("blue", "gold", "red"))


def test_the_gradients_go_into_the_student_alone(tmp_path: Path) -> None:
    teacher = load_teacher(str(saved_teacher(tmp_path / "t")), CLASSES)
    student = tiny.build(image_size=(16, 16), num_classes=3, distill_token=True, distill_head=True).train()
    imitate = partial(teacher.logits, student=Preprocess(size=(16, 16)))
    images = tiny.images(3, config=student.config)
    objective = Objective(Recipe(distillation="soft"), 3, imitate)
    objective.loss(student.forward_heads(images), images, torch.tensor([0, 1, 2])).backward()  # type: ignore[no-untyped-call]
    assert [name for name, parameter in student.named_parameters() if parameter.grad is None] == []
    assert [name for name, parameter in teacher.network.named_parameters() if parameter.grad is not None] == []
    assert not teacher.network.training


def test_a_teacher_answers_in_float32_whatever_the_student_computes_in(tmp_path: Path) -> None:
    teacher = load_teacher(str(saved_teacher(tmp_path / "t")), CLASSES)
    images, pixels = tiny.images(2, config=tiny.tiny(image_size=(16, 16))), Preprocess(size=(16, 16))
    alone = teacher.logits(images, pixels)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(teacher.logits(images, pixels), alone)
        assert teacher.logits(images.bfloat16(), pixels).dtype == torch.float32


def test_a_cnn_by_name_sees_and_answers_as_published(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """ResNet-18 as torchvision publishes it, with weights of chance."""
    published = tiny.randomise(resnet18(), std=0.05)
    torch.save(published.state_dict(), tmp_path / "resnet18.pth")
    monkeypatch.setattr("vitkit.weights.download.fetch_url", lambda *_: tmp_path / "resnet18.pth")
    official = models.ResNet18_Weights.DEFAULT
    classes = ("toucan", "goldfish", "tench")
    teacher = load_teacher("resnet18", classes)
    assert teacher.columns.tolist() == [official.meta["categories"].index(name) for name in classes]
    picture = smooth(224, 224)
    student = Preprocess(size=(224, 224), fit="squash")
    images = torch.from_numpy(student(picture))[None]
    own = official.transforms(resize_size=224)(picture)[None]
    assert (teacher._as_teacher_input(images, student) - own).abs().max() <= 1e-5
    with torch.no_grad():
        expected = published.eval()(own)[:, teacher.columns]
    assert torch.allclose(teacher.logits(images, student), expected, rtol=1e-4, atol=1e-4)


def test_teachers_that_cannot_be_had(tmp_path: Path) -> None:
    saved_teacher(tmp_path / "pixels", unknown="timm's crop_mode 'border' with crop_pct 0.9")
    for name, code in (
        (tmp_path / "pixels", "data.preprocess-unknown"),
        ("resnet18:weights.pth", "training.teacher-unsaved"),
    ):
        with refused(code):
            load_teacher(str(name), CLASSES)


STUDENT = "deit_micro_distilled_patch8_16"


@pytest.mark.usefixtures("no_reports")
def test_a_resumed_run_has_the_same_teacher(data: Path, tmp_path: Path) -> None:
    """What it learns from the teacher is in tests/golden/curves.json."""
    teacher = saved_teacher(tmp_path / "teacher")
    recipe = runs.quick(data, model=STUDENT, teacher=str(teacher), epochs=2, max_images=12)
    whole = run.train(recipe, tmp_path / "whole")
    classifier = load(whole)
    assert classifier.provenance["teacher"]["name"] == teacher.name
    assert len(classifier.provenance["teacher"]["sha256"]) == 64
    checkpoint = torch.load(whole / "checkpoints" / "last.ckpt", weights_only=True)
    assert set(checkpoint["model"]) == set(classifier.model.state_dict()), "the teacher is not in it"

    def stop(line: str) -> None:
        if line.startswith("epoch   1/2"):
            raise InterruptedError

    with pytest.raises(InterruptedError), heard(stop):
        run.train(recipe, tmp_path / "cut")
    again = runs.copy_of(tmp_path / "cut", tmp_path / "again")
    runs.assert_same_weights(run.resume(tmp_path / "cut"), whole)
    model = tiny.build(seed=5, image_size=(16, 16), num_classes=3)
    Classifier(model, CLASSES, Preprocess(size=(16, 16))).save(teacher)
    with refused("training.teacher-changed"):
        run.resume(again)


@pytest.mark.usefixtures("no_reports")
def test_a_class_without_readable_images_leaves_the_others_their_names(data: Path, tmp_path: Path) -> None:
    photos = runs.copy_of(data, tmp_path / "photos")
    (photos / "aqua").mkdir()
    (photos / "aqua" / "1.png").write_bytes(b"no picture")
    teacher = saved_teacher(tmp_path / "teacher", classes=("aqua", *CLASSES), always="green")
    recipe = runs.quick(photos, model=STUDENT, teacher=str(teacher), epochs=2, lr=0.01, drop_path=0.0)
    classifier = load(run.train(recipe, tmp_path / "run"))
    assert classifier.classes == CLASSES
    with torch.no_grad():
        imitation = classifier.model.forward_heads(tiny.images(4, config=classifier.model.config))[1]
    assert {CLASSES[i] for i in imitation.argmax(1)} == {"green"}


LABELS = [0, 3, 6]


def numbers(seed: int, rows: int = 3, columns: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, (rows, columns))


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def cross_entropy(logits: np.ndarray, labels: list[int], smoothing: float = 0.0) -> float:
    logs = log_softmax(logits)
    true = logs[range(len(labels)), labels]
    return float(-((1 - smoothing) * true + smoothing * logs.mean(1)).mean())


def by_hand(kind: str, heads: list[np.ndarray], teacher: np.ndarray, alpha: float, t: float, smoothing: float) -> float:
    true = cross_entropy(heads[0], LABELS, smoothing)
    if kind == "hard":
        return 0.5 * true + 0.5 * cross_entropy(heads[-1], [int(row.argmax()) for row in teacher])
    p, q = log_softmax(teacher / t), log_softmax(heads[-1] / t)
    divergence = (np.exp(p) * (p - q)).sum() / len(LABELS)
    return (1 - alpha) * true + alpha * t * t * divergence


@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize(
    ("alpha", "temperature", "smoothing", "one_head"), [(0.1, 3.0, 0.0, True), (0.7, 1.0, 0.1, False), (0, 5, 0, False)]
)
def test_losses_are_of_the_paper(kind: Any, alpha: float, temperature: float, smoothing: float, one_head: bool) -> None:
    heads = [numbers(1)] if one_head else [numbers(1), numbers(2)]
    choices: dict[str, Any] = {"kind": kind, "alpha": alpha, "temperature": temperature, "label_smoothing": smoothing}
    ours = [torch.from_numpy(head) for head in heads]
    loss = distillation_loss(ours, torch.tensor(LABELS), torch.from_numpy(numbers(3)), **choices)
    assert loss.item() == pytest.approx(by_hand(kind, heads, numbers(3), alpha, temperature, smoothing), abs=1e-12)
