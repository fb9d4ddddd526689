"""Datasets that give tensors: a file is prepared for the trained model as they were, or not at all."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Subset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms._presets import ImageClassification

import runs
import vitkit
from hearing import heard
from refusals import refused
from vitkit.data import Preprocess, read_preprocess

SMALL: dict[str, Any] = runs.quick_fields(epochs=1)
MEAN, STD = (0.2, 0.4, 0.6), (0.3, 0.2, 0.1)
PLAIN = [v1.ToTensor(), v1.Normalize(MEAN, STD)]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of several sizes, in one class of three colours each."""
    root = tmp_path_factory.mktemp("photos")
    sizes = [(40, 30), (30, 40), (33, 33), (90, 41)]
    for label, (name, colour) in enumerate(runs.COLOURS.items()):
        for part, images in (("train", 12), ("val", 6)):
            (root / part / name).mkdir(parents=True)
            for i in range(images):
                rng = np.random.default_rng((label, images, i))
                width, height = sizes[i % len(sizes)]
                pixels = np.clip(np.array(colour) + rng.normal(0, 40, (height, width, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(root / part / name / f"{part}{i}.png")
    return root


def folder(root: Path, part: str, *steps: Any) -> ImageFolder:
    return ImageFolder(str(root / part), transform=v1.Compose(list(steps)))


CROPPED = (v1.Resize(18), v1.CenterCrop(16))
AS_FLOATS = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(list(MEAN), list(STD))])
WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "short side and crop": (
        v1.Compose([v1.Resize(20), v1.CenterCrop(16), *PLAIN]),
        {"fit": "crop", "crop_pct": 0.8, "interpolation": "bilinear"},
    ),
    "stretched": (v1.Compose([v1.Resize((16, 16)), *PLAIN]), {"fit": "squash"}),
    "stretched and crop": (
        v1.Compose([v1.Resize((20, 20), InterpolationMode.BICUBIC), v1.CenterCrop((16, 16)), *PLAIN]),
        {"fit": "squash_crop", "crop_pct": 0.8, "interpolation": "bicubic"},
    ),
    "second version": (
        v2.Compose([v2.ToImage(), v2.Resize([24], antialias=True), v2.CenterCrop(16), AS_FLOATS]),
        {"fit": "crop", "crop_pct": 16 / 24},
    ),
    "of published weights": (
        ImageClassification(crop_size=16, resize_size=18, mean=MEAN, std=STD),
        {"fit": "crop", "crop_pct": 16 / 18},
    ),
    "one channel, no normalisation": (
        v1.Compose([v1.Resize(18), v1.Compose([v1.CenterCrop(16), v1.Grayscale(), v1.ToTensor()])]),
        {"mean": (0.0,), "std": (1.0,)},
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_transforms_are_read_to_the_pixel(photos: Path, way: str) -> None:
    transform, expected = WAYS[way]
    data = ImageFolder(str(photos / "val"), transform=transform)
    channels = len(expected.get("mean", MEAN))
    found = read_preprocess(data, (channels, 16, 16), lambda i: data[i][0])
    assert {name: getattr(found, name) for name in expected} == expected
    assert found.mean == expected.get("mean", MEAN) and found.std == expected.get("std", STD)
    for i, (path, _) in enumerate(data.samples):
        with Image.open(path) as picture:
            gap = np.abs(found(picture.convert("RGB")) - data[i][0].numpy()).max()
        assert gap <= (1e-5 if way != "second version" else 0.05), "tensors are resized with another rounding"


@pytest.mark.parametrize(
    ("steps", "named"),
    [
        ([v1.RandomResizedCrop(16), *PLAIN], "RandomResizedCrop"),
        ([*CROPPED, v1.ToTensor(), v1.Lambda(torch.neg)], "Lambda"),
        (PLAIN, "Resize"),
        ([v1.Resize(18), v1.Resize((16, 16)), *PLAIN], "resized twice"),
        ([v1.Resize(18, max_size=20), v1.CenterCrop(16), *PLAIN], "max_size"),
        ([v1.Resize((20, 18)), v1.CenterCrop(16), *PLAIN], "Resize((20, 18))"),
    ],
)
def test_what_cannot_be_read_is_not_guessed(photos: Path, steps: list[Any], named: str) -> None:
    with refused("data.preprocess-unknown", named):
        read_preprocess(folder(photos, "val", *steps), (3, 16, 16), lambda i: torch.zeros(3, 16, 16))


def test_transforms_are_tried_on_the_files(photos: Path) -> None:
    part = Subset(folder(photos, "val", v1.Resize((16, 16)), *PLAIN), [5, 7])
    with refused("data.preprocess-unknown", "val5.png"):
        read_preprocess(part, (3, 16, 16), lambda i: part[i][0].flip(2) * 0.5)  # a dataset that says less than it does


def test_a_file_is_answered_as_its_tensor_was_whatever_training_transforms_do(photos: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    seen = folder(photos, "train", v1.RandomResizedCrop(16), v1.ToTensor(), v1.Normalize(0.5, 0.5))
    data = folder(photos, "val", v1.Resize(20), v1.CenterCrop(16), *PLAIN)
    with heard(lines.append):
        run = vitkit.train(vitkit.Datasets(train=seen, val=data), vitkit.Recipe(**SMALL), out=tmp_path / "run")
    assert any(line.startswith("problem: train normalises by mean 0.5, std 0.5, and val by") for line in lines)
    assert run.classifier.preprocess == Preprocess(
        size=(16, 16), fit="crop", crop_pct=0.8, interpolation="bilinear", mean=MEAN, std=STD
    )
    for i in range(0, len(data), 5):
        of_tensor = run.classifier.probabilities(data[i][0][None])[0]
        (of_file,) = vitkit.predict(run.folder, data.samples[i][0], compute=vitkit.Compute(precision="float32"))
        assert of_file.confidence == pytest.approx(of_tensor.max().item(), abs=1e-4)
        assert of_file.label == run.classifier.classes[int(of_tensor.argmax())]
    assert json.loads((run.folder / "preprocess.json").read_text())["mean"] == list(MEAN)


SQUASHED = (v1.Resize((16, 16)), *PLAIN)


def hidden(photos: Path, **more: Any) -> vitkit.Datasets:
    """Tensors of pictures of which nobody knows how they were made."""
    given: dict[str, Any] = {part: list(folder(photos, part, *SQUASHED)) for part in ("train", "val")}
    return vitkit.Datasets(**given, class_names=sorted(runs.COLOURS), **more)


def test_where_it_is_not_known_files_are_refused_with_the_reason(photos: Path, tmp_path: Path) -> None:
    run = vitkit.train(hidden(photos), vitkit.Recipe(**SMALL), out=tmp_path / "run")
    file = photos / "val" / "red" / "val0.png"
    for use in (
        lambda: vitkit.predict(run.folder, file),
        lambda: list(run.classifier.predict(Image.open(file))),
        lambda: vitkit.evaluate(run.folder, photos),
        lambda: vitkit.explain(run.folder, file, out=tmp_path / "page.html"),
        lambda: vitkit.export(run.folder, out=tmp_path / "model.pt2"),
    ):
        with refused("data.preprocess-unknown", "val gave tensors"):
            use()
    named = "fit=squash,interpolation=bilinear,mean=0.2,0.4,0.6,std=0.3,0.2,0.1"
    (asked,) = vitkit.predict(run.folder, file, compute=vitkit.Compute(precision="float32"), preprocess=named)
    said = run.classifier.probabilities(folder(photos, "val", *SQUASHED)[list(runs.COLOURS).index("red") * 6][0][None])
    assert asked.confidence == pytest.approx(said.max().item(), abs=1e-4)


def test_it_can_be_said_and_is_kept_over_an_interruption(photos: Path, tmp_path: Path) -> None:
    class Stop:
        def on_epoch_end(self, state: Any) -> None:
            state.should_stop = True

    named = {"resize": (16, 16), "interpolation": "bilinear", "mean": MEAN, "std": STD}
    said = Preprocess(size=(16, 16), fit="squash", interpolation="bilinear", mean=MEAN, std=STD)
    data, hooks = hidden(photos, preprocess=named), vitkit.Hooks(callbacks=[Stop()])
    run = vitkit.train(data, vitkit.Recipe(**SMALL), hooks=hooks, out=tmp_path / "run")
    assert run.classifier.preprocess == said
    (tmp_path / "run" / "evaluation.json").unlink()
    vitkit.train(data, resume=run.folder)
    assert vitkit.load(run.folder).preprocess == said


def test_pictures_are_prepared_as_is_said(photos: Path, tmp_path: Path) -> None:
    given = {part: ImageFolder(str(photos / part)) for part in ("train", "val")}
    run = vitkit.train(
        vitkit.Datasets(**given, preprocess="mean=0.2,std=0.3,fit=squash"), vitkit.Recipe(**SMALL), out=tmp_path / "run"
    )
    assert (run.classifier.preprocess.fit, run.classifier.preprocess.mean) == ("squash", (0.2, 0.2, 0.2))
    asked = vitkit.evaluate(run.folder, photos / "val", compute=vitkit.Compute(precision="float32", backend="eager"))
    assert asked.evaluation.loss == pytest.approx(run.evaluation["loss"], rel=1e-4)
