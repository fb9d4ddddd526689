"""`--preprocess`, and the `preprocess` of verbs: how images are read where a model does not say it."""

import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runs
import vitkit as package
from vitkit import Classifier, Preprocess, load
from vitkit.training import Recipe, blueprint_of
from weights.test_preprocessing import photo, trained

__all__ = ["photo", "trained"]

NAMES = ("daisy", "dandelion", "roses")


def test_that_is_an_assumption_which_every_command_says(trained: Path, photo: Path, vitkit: Any) -> None:
    said = "mean and std 0.5, crop, bilinear, crop 0.875, as in the scripts that write class_indices.json"
    for command in (
        ("predict", trained, photo),
        ("embed", trained, photo, "-o", trained.parent / "features.npz"),
        ("explain", trained, photo, "-o", trained.parent / "out"),
    ):
        outcome = vitkit(*command)
        assert outcome.code == 0, outcome.err
        assert f"note: preprocess assumed: {said}" in outcome.err
    assert f"assumed preprocess: {said}" in vitkit("info", trained).out
    assert f"assumed preprocess: {said}" in vitkit("convert", trained, trained.parent / "folder").out


def test_every_verb_reads_images_as_was_said(trained: Path, photo: Path) -> None:
    said = "resize=20,interpolation=nearest,mean=0.4,std=0.2"
    expected = load(trained, preprocess=said)
    (row,) = expected.predict(photo)
    folder = trained.parent / "folder"
    package.convert(trained, folder, preprocess=said)
    assert load(folder).preprocess == expected.preprocess
    package.export(trained, out=trained.parent / "m.xml", preprocess=said)
    models: list[str | Path | Classifier] = [trained, load(trained), folder, trained.parent / "m.xml"]
    for model in models:
        (found,) = package.predict(model, photo, compute=package.Compute(precision="float32"), preprocess=said)
        assert found.confidence == pytest.approx(row.confidence, abs=1e-5)
    (plain,) = package.predict(trained, photo, compute=package.Compute(precision="float32"))
    assert plain.confidence != pytest.approx(row.confidence, abs=1e-5)
    seen = package.embed(trained, photo, preprocess=said).features[0]
    assert np.allclose(seen, expected.features(expected.read(photo)[None])[0], atol=1e-5)
    photos = trained.parent / "photos"
    for name in NAMES[:2]:
        (photos / name).mkdir(parents=True)
        shutil.copy(photo, photos / name)
    outcome = package.evaluate(
        trained, photos, compute=package.Compute(precision="float32"), preprocess=said
    ).evaluation
    target = expected.probabilities(expected.read(photo)[None]).numpy()
    assert np.allclose(outcome.probabilities, target, atol=1e-5)


def test_another_preprocessing_than_that_of_its_training_is_said(trained: Path, photo: Path) -> None:
    folder = trained.parent / "folder"
    package.convert(trained, folder, preprocess="resize=20")
    held = load(folder)
    before = package.predict(held, photo).notes
    (note,) = (line for line in package.predict(held, photo, preprocess="mean=0.4").notes if line not in before)
    assert "mean and std 0.5, crop, bilinear, crop 0.800" in note
    assert package.predict(held, photo).notes == before, "a classifier in memory stays as it is"


def test_text_that_is_none_is_refused(trained: Path, photo: Path, vitkit: Any) -> None:
    vitkit("predict", trained, photo, "--preprocess", "crop=16").refused("weights.preprocess-invalid", "resize")


def test_a_training_says_early_how_to_set_it(trained: Path, vitkit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained.parent)
    held = load(trained)
    held.preprocess = Preprocess(size=(16, 16), unknown="it was trained on tensors")
    held.save(Path("my model"))
    runs.photos(Path("photos"), images=8)
    Path("photos/red/broken.png").write_bytes(b"no image, as a warning says once images are read")
    outcome = vitkit("train", "photos", "--weights", "my model", "-o", "run")
    outcome.refused("data.preprocess-unknown", "it was trained on tensors")
    assert (outcome.out, Path("run").exists()) == ("", False)
    command, _, rest = outcome.err.strip().partition(" with vitkit ")[2].partition(", and train with --weights NEW")
    assert not rest
    assert vitkit(*shlex.split(command)).code == 0
    fields = {"data": "photos", "weights": "NEW", "method": "probe"}
    assert blueprint_of(Recipe(**fields), NAMES).preprocess == load(Path("NEW")).preprocess  # type: ignore[arg-type]
