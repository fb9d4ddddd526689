"""Odd classes, odd files and odd places, through the command line: each must come out as a careful user would want."""

import csv
import json
import socket
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import runs
from cli.conftest import Command, vitkit
from photos import fingerprint, folder, noise, save, smooth
from vitkit.classifier import Classifier
from vitkit.data import EvaluationImages, ImageData, read_source
from vitkit.training import train
from vitkit.weights import load

__all__ = ["vitkit"]

ORIENTATION = 0x0112
ONCE = (*runs.FLAGS, "--epochs", "1")


NAMES = ("🐈 cat", 'it\'s "quoted"', "cost $5 $x^2$", "<b>bold", " spaced  out", "猫", "a&amp;b", "-rf")


@pytest.mark.usefixtures("drawn_pictures")
def test_any_folder_name_is_a_class_name_and_no_html_and_one_picture_a_class(vitkit: Command, tmp_path: Path) -> None:
    data, sizes = tmp_path / "photos", ((16, 16), (1, 400), (400, 1), (1, 1))  # hairs are pictures, too
    for k, name in enumerate(NAMES):
        for i, (width, height) in enumerate(sizes):
            save(noise(width, height, 10 * k + i), data / name / f"<i>{i}.png")
    folder(data, {"one": 1, "none": 0}, 16, 16)
    outcome = vitkit("train", data, *ONCE, "--out", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    assert "none" in next(line for line in outcome.out.splitlines() if "class folder" in line)
    assert "class 'one' has 1 image, none of them in val or test" in outcome.out
    classes = sorted([*NAMES, "one"])
    assert load(tmp_path / "run").classes == tuple(classes)
    indices = json.loads((tmp_path / "run" / "class_indices.json").read_text())
    assert indices == {str(i): name for i, name in enumerate(classes)}
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "<b>bold" not in page and "<i>" not in page and all(name in unescape(page) for name in NAMES)
    answers = list(csv.DictReader(vitkit("predict", tmp_path / "run", data).out.splitlines()))
    assert len(answers) == 4 * len(NAMES) + 1 and {row["label"] for row in answers} <= set(classes)
    checkup = vitkit("doctor", data, "-o", tmp_path / "page.html")
    assert checkup.code == 0 and all(name in checkup.out for name in NAMES)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<b>bold" not in page and "<i>" not in page


def test_copies_and_a_new_class_in_val_are_told_and_trained_all_the_same(vitkit: Command, tmp_path: Path) -> None:
    data = tmp_path / "photos"
    folder(data / "train", {"a": 5, "b": 5}, 16, 16)
    for name in ("a", "b"):
        for i in range(2):
            save(Image.open(data / "train" / name / f"{name}_{i}.png"), data / "val" / name / f"copy{i}.png")
    for i in range(3):
        save(noise(16, 16, 900 + i), data / "val" / "new" / f"{i}.png")
    problem = "4 pictures are in more than one split (4 val images)"
    outcome = vitkit("train", data, *ONCE, "--out", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    assert problem in outcome.out and problem in (tmp_path / "run" / "report.html").read_text()
    assert "class 'new' has 3 images, none of them in train" in outcome.out
    assert load(tmp_path / "run").classes == ("a", "b", "new")
    evaluated = json.loads(vitkit("eval", tmp_path / "run", "--json").out)
    assert evaluated["images"] == 3, "copies of what it was trained on are left out"


def album(root: Path) -> Path:
    """One picture a class: scaled JPEG, turned PNG, 16-bit grey, transparent."""
    save(smooth(900, 600), root / "blue" / "large.jpg", quality=90)
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    save(smooth(50, 31), root / "green" / "turned.png", exif=exif)
    save(Image.fromarray(np.arange(400, dtype=np.uint16).reshape(20, 20) * 160), root / "red" / "deep.png")
    rgba = smooth(33, 47)
    rgba.putalpha(120)
    save(rgba, root / "red" / "clear.png")
    return root


def test_training_eval_predict_and_embed_see_the_same_pixels_to_the_bit(
    vitkit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = train(runs.quick(runs.photos(tmp_path / "others", images=6), epochs=1), tmp_path / "trained")
    classifier = load(trained)
    data = album(tmp_path / "photos" / "val")
    runs.photos(tmp_path / "photos" / "train", images=2)
    seen: list[torch.Tensor] = []

    def spied(name: str) -> None:
        original = getattr(Classifier, name)

        def spy(self: Classifier, images: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            seen.append(images.clone())
            return original(self, images, *args, **kwargs)

        monkeypatch.setattr(Classifier, name, spy)

    batches, seeing = ImageData.val_batches, Classifier.seeing

    def spied_seeing(self: Classifier) -> Callable[[Any], Any]:
        see = seeing(self)
        return lambda pixels: (seen.append(torch.from_numpy(pixels.copy())), see(pixels))[1]

    monkeypatch.setattr(ImageData, "val_batches", lambda self: [seen.append(b[0]) or b for b in batches(self)])  # type: ignore[func-returns-value]
    monkeypatch.setattr(Classifier, "seeing", spied_seeing)
    spied("probabilities")
    spied("features")
    table = read_source(data)
    images = torch.stack([EvaluationImages(table, classifier.preprocess)[i][0] for i in range(len(table))])
    assert torch.equal(images, torch.stack([classifier.read(table.file(i)) for i in range(len(table))]))
    logits = classifier.model(images).detach()
    expected = (logits / classifier.temperature).softmax(dim=1)

    assert vitkit("train", tmp_path / "photos", *ONCE, "--out", tmp_path / "run").code == 0
    assert torch.equal(seen[0], images)
    seen.clear()

    numbers = json.loads(vitkit("eval", trained, data, "--json").out)
    assert torch.equal(torch.cat(seen), images)
    loss = torch.nn.functional.nll_loss(expected.log(), torch.tensor(table.labels)).item()
    assert numbers["loss"] == pytest.approx(loss, abs=1e-6)
    seen.clear()

    paths = [table.file(i) for i in range(len(table))]
    assert vitkit("predict", trained, *paths, "--top", 3, "-o", tmp_path / "out.jsonl").code == 0
    assert torch.equal(torch.cat(seen), images)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    for line, row in zip(lines, expected, strict=True):
        best = int(row.argmax())
        assert line["label"] == classifier.classes[best]
        assert line["confidence"] == pytest.approx(row[best].item(), abs=1e-6)
    seen.clear()

    assert vitkit("embed", trained, *paths, "-o", tmp_path / "out.npz").code == 0
    assert torch.equal(torch.cat(seen), images)
    features = torch.from_numpy(np.load(tmp_path / "out.npz")["features"])
    torch.testing.assert_close(classifier.model.head(features).detach(), logits, rtol=0, atol=1e-6)


def test_verbs_need_no_net_and_change_nothing(vitkit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = runs.photos(tmp_path / "photos", images=5)
    (data / "red" / "broken.jpg").write_text("not a picture")
    save(Image.open(data / "blue" / "img1.png"), data / "blue" / "copy.png")
    before = fingerprint(data)
    times = {path: path.stat().st_mtime_ns for path in data.rglob("*")}
    for path in (data, *data.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a network was asked for")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    commands = (
        ("doctor", data, "-o", "page.html"),
        ("train", data, *ONCE, "--out", run),
        ("eval", run),
        ("predict", run, data, "-o", "out.csv"),
        ("embed", run, data, "-o", "out.npz"),
    )
    for command in commands:
        outcome = vitkit(*command)
        assert outcome.code == (command[0] == "predict"), (command, outcome.err)  # which says that one is broken
    assert fingerprint(data) == before
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == times
    assert {path.name for path in tmp_path.iterdir()} == {"photos", "run", "page.html", "out.csv", "out.npz"}
