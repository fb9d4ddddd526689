"""A model folder comes back as it was saved, or says what is wrong; predictions stream in order."""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import runs
import vitkit
from photos import folder, noise, save, smooth
from refusals import refused
from tiny import build, images, tiny
from vitkit.classifier import Classifier, Prediction
from vitkit.data import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitkit.errors import VitkitError
from vitkit.model_folder import DESCRIPTION, FORMAT_VERSION, WEIGHTS
from vitkit.weights import load

CLASSES = ("ant", "bee", "猫", "🐈", 'quo"te', "f", "g")
NEXT = "model.json.next"


def classifier(seed: int = 0, temperature: float = 1.5, **fields: Any) -> Classifier:
    model = build(seed, **fields)
    return Classifier(
        model=model,
        classes=CLASSES[: model.config.num_classes],
        preprocess=Preprocess(size=(12, 16), crop_pct=0.9, mean=IMAGENET_MEAN, std=IMAGENET_STD),
        temperature=temperature,
        provenance={"data": "märchen", "recipe": {"lr": 1e-3, "split": [0.7, 0.1, 0.2]}, "seed": seed, "none": None},
    )


def names(path: Path) -> list[str]:
    return sorted(child.name for child in path.iterdir())


def assert_equal(one: Classifier, other: Classifier) -> None:
    config = one.model.config
    assert torch.equal(one.logits(images(config=config)), other.logits(images(config=config)))
    assert config == other.model.config
    for field in ("classes", "preprocess", "temperature", "provenance"):
        assert getattr(one, field) == getattr(other, field), field


def test_a_model_folder_comes_back_to_the_bit_and_can_be_trained_and_saved_again(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "model"
    classifier(1).save(place)
    one = classifier(position="sincos_2d")
    one.save(place)  # in its place
    again = load(str(place))
    assert_equal(again, one)
    assert not again.model.training
    assert {parameter.dtype for parameter in again.model.parameters()} == {torch.float32}
    assert not any(t.is_meta for t in (*again.model.parameters(), *again.model.buffers()))
    again.model(images()).sum().backward()
    assert all(parameter.grad is not None for parameter in again.model.parameters())
    again.save(place)
    assert_equal(load(place), again)
    assert names(place) == [DESCRIPTION, WEIGHTS]
    text = (place / DESCRIPTION).read_text(encoding="utf-8")
    assert "猫" in text, "people read it"
    expected = {"format_version": FORMAT_VERSION, "vitkit_version": vitkit.__version__, "task": "single"}
    assert {**json.loads(text), **expected, "classes": list(CLASSES)} == json.loads(text)


def test_no_model_of_replaced_parts_is_saved(tmp_path: Path) -> None:
    other, wrapped = classifier(), classifier()
    other.model.blocks[1].mlp.act = torch.nn.Hardswish()  # type: ignore[index,union-attr]
    torch.nn.utils.parametrizations.weight_norm(wrapped.model.head)  # type: ignore[arg-type]
    for changed, part in ((other, "blocks.1.mlp.act"), (wrapped, "head")):
        with refused("model.part-replaced", part):
            changed.save(tmp_path / "model")
    assert names(tmp_path) == []


def test_weights_that_are_not_contiguous_can_be_saved(tmp_path: Path) -> None:
    one = classifier()
    weight = one.model.head.weight.detach().clone()
    one.model.head.weight = torch.nn.Parameter(weight.t().contiguous().t())
    assert not one.model.head.weight.is_contiguous()
    one.save(tmp_path)
    assert torch.equal(load(tmp_path).model.head.weight, weight)


def test_class_names_must_be_one_each_and_differ_and_the_model_evaluates() -> None:
    for wrong in (CLASSES[:6], (*CLASSES, "h"), (), (*CLASSES[:6], "ant")):
        with refused("classifier.field-invalid"):
            Classifier(build(), wrong, Preprocess(size=(12, 16)))
    assert not Classifier(build(dropout=0.5).train(), CLASSES, Preprocess(size=(12, 16))).model.training


def test_numbers_that_are_not_preprocessed_are_refused() -> None:
    own = classifier()
    for compute in (own.logits, own.probabilities, own.features):
        expected = compute(images())
        for same in (images().numpy(), images().double()):
            torch.testing.assert_close(compute(same), expected)
        for wrong, named in ((images().byte(), "uint8"), ([1], "[1]")):
            with refused("classifier.images-unprepared", named):
                compute(wrong)  # type: ignore[arg-type]


# Rates at which a model in training mode gives another answer each time.
RATES = {"dropout": 0.5, "attention_dropout": 0.5, "drop_path": 0.5, "position_dropout": 0.5}
ASKED: dict[str, Callable[[Classifier, Path], Any]] = {
    "logits": lambda own, _: own.logits(images()),
    "predict": lambda own, photo: torch.tensor([c for _, c in next(own.predict([photo])).ranking]),
    "embed": lambda own, photo: torch.tensor(next(own.embed([photo]))[1]),
    "features": lambda own, _: own.features(images(), "mean"),
    "explain": lambda own, photo: torch.tensor(own.explain(photo, "all").maps["gradient"].copy()),
    "occlusion": lambda own, photo: torch.tensor(own.explain(photo, "occlusion").maps["occlusion"].copy()),
    "use": lambda own, _: own.use("eager", "float32").logits(images()),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_answers_are_of_evaluation_and_the_mode_stays(tmp_path: Path, ask: Callable[[Classifier, Path], Any]) -> None:
    one, photo = classifier(**RATES), save(noise(16, 12), tmp_path / "photo.png")
    expected = ask(one, photo)
    for part in (one.model, one.model.blocks[1]):  # type: ignore[index]
        one.model.eval()
        part.train()
        modes = [module.training for module in one.model.modules()]
        assert torch.equal(ask(one, photo), expected)
        assert [module.training for module in one.model.modules()] == modes


def test_batch_norms_learn_nothing_from_what_they_are_asked() -> None:
    network = vitkit.create_model("torchvision:resnet18", num_classes=2, image_size=(32, 32))
    one = Classifier(network, ("a", "b"), Preprocess(size=(32, 32)))
    batch = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    expected, before = one.logits(batch), {k: v.clone() for k, v in network.state_dict().items()}
    network.train()
    assert torch.equal(one.logits(batch), expected)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert network.training


def test_many_threads_ask_a_model_in_training_mode(album: list[Path]) -> None:
    one = classifier(**RATES)
    expected = [p.ranking for p in one.predict(album, batch_size=1)]
    one.model.train()
    assert [p.ranking for p in one.predict(album, batch_size=1)] == expected
    assert all(module.training for module in one.model.modules())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    classifier().save(tmp_path / "model")
    return tmp_path / "model"


def test_damaged_weights_are_noticed_before_they_are_used(saved: Path) -> None:
    whole = (saved / WEIGHTS).read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:], whole + b"\0"):
        (saved / WEIGHTS).write_bytes(damaged)
        with refused("model.folder-damaged", WEIGHTS):
            load(saved)


def test_files_that_are_missing_or_alone_are_named(saved: Path, tmp_path: Path) -> None:
    assert load(saved / WEIGHTS).classes == load(saved).classes
    (tmp_path / "other").mkdir()
    shutil.copy(saved / DESCRIPTION, tmp_path / "other")
    with refused("model.folder-incomplete", WEIGHTS):
        load(tmp_path / "other")
    (tmp_path / "other" / DESCRIPTION).unlink()
    with refused("weights.tensors-absent"):
        load(tmp_path / "other")
    with refused("weights.source-missing"):
        load(tmp_path / "none")
    shutil.copy(saved / WEIGHTS, tmp_path / "alone.safetensors")
    (saved / DESCRIPTION).unlink()
    for path in (tmp_path / "alone.safetensors", saved):
        with refused("weights.description-missing", DESCRIPTION):
            load(path)


def test_what_is_no_description_is_damaged(saved: Path) -> None:
    for content in (b"", b"\xff\xfe", b"[]", b'{"format_version": "1"}'):
        (saved / DESCRIPTION).write_bytes(content)
        with refused("model.folder-damaged", DESCRIPTION):
            load(saved)


def change(saved: Path, **fields: Any) -> None:
    description = json.loads((saved / DESCRIPTION).read_text(encoding="utf-8"))
    (saved / DESCRIPTION).write_text(json.dumps(description | fields), encoding="utf-8")


@pytest.mark.parametrize(
    "fields",
    [
        *({"config": own} for own in ({"unknown": 1}, tiny(layers=4).to_dict(), tiny(hidden_size=16).to_dict())),
        *({"classes": own} for own in (None, CLASSES[:3], ("\u3164", *CLASSES[1:]))),
        *({"preprocess": {"size": [12, 16], **own}} for own in ({"size": [16, 12]}, {"mean": [0.5], "std": [0.5]})),
    ],
    ids=str,
)
def test_a_description_that_does_not_fit_is_refused(saved: Path, fields: dict[str, Any]) -> None:
    change(saved, **fields)
    with pytest.raises(VitkitError):
        load(saved)


def test_a_description_must_be_whole_and_not_newer(saved: Path) -> None:
    whole = json.loads((saved / DESCRIPTION).read_text(encoding="utf-8"))
    change(saved, format_version=FORMAT_VERSION + 1)
    with refused("model.version-newer"):
        load(saved)
    for key in ("config", "classes", "preprocess", "temperature", "provenance", "weights_sha256"):
        lacking = {name: value for name, value in whole.items() if name != key}
        (saved / DESCRIPTION).write_text(json.dumps(lacking), encoding="utf-8")
        with refused("model.folder-damaged" if key == "weights_sha256" else "weights.folder-damaged"):
            load(saved)


def test_a_classifier_whose_images_have_another_size_is_not_saved(saved: Path, tmp_path: Path) -> None:
    other = dataclasses.replace(load(saved), preprocess=Preprocess(size=(24, 24)))
    with refused("classifier.size-mismatched", "(24, 24)", "(12, 16)"):
        other.save(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def half_saved(path: Path, old: Classifier, new: Classifier) -> None:
    """The folder as a crash after the weights' renaming leaves it."""
    old.save(path)
    before = (path / DESCRIPTION).read_bytes()
    new.save(path)
    (path / DESCRIPTION).rename(path / NEXT)
    (path / DESCRIPTION).write_bytes(before)


def test_a_crash_leaves_the_new_model_once_the_weights_are_renamed_else_the_old(tmp_path: Path) -> None:
    place, new = tmp_path / "model", tmp_path / "new"
    half_saved(place, classifier(0), classifier(1, temperature=3.0))
    assert_equal(load(place), classifier(1, temperature=3.0))
    classifier(2).save(place)
    assert_equal(load(place), classifier(2))
    assert names(place) == [DESCRIPTION, WEIGHTS]
    classifier(1).save(new)
    (new / DESCRIPTION).rename(place / NEXT)
    assert_equal(load(place), classifier(2))
    (place / NEXT).rename(new / NEXT)  # as of a first save
    assert_equal(load(new), classifier(1))


def fail_to_take_the_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    replace = Path.replace

    def fail(self: Path, target: Path) -> Path:
        if Path(target).name == name:
            raise OSError(28, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fail)


def test_a_second_failure_after_a_crash_loses_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pending description belongs to the weights in place; a new save must not overwrite it first."""
    half_saved(tmp_path, classifier(0), classifier(1))
    with monkeypatch.context() as patch:
        fail_to_take_the_name(patch, WEIGHTS)
        with pytest.raises(OSError):
            classifier(2).save(tmp_path)
    assert_equal(load(tmp_path), classifier(1))


def test_a_full_disk_keeps_the_old_model_and_leaves_nothing_else(tmp_path: Path) -> None:
    classifier(0).save(tmp_path)
    for limit in (0, 1000, (tmp_path / WEIGHTS).stat().st_size - 1):
        with runs.files_of_at_most(limit), pytest.raises(OSError):
            classifier(1).save(tmp_path)
        assert names(tmp_path) == [DESCRIPTION, WEIGHTS]
        assert_equal(load(tmp_path), classifier(0))


@pytest.mark.parametrize("fails", [WEIGHTS, NEXT, 1, 2])
def test_a_failure_keeps_the_old_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str | int) -> None:
    """To rename one of the files, or to flush the first or the second."""
    classifier(0).save(tmp_path)
    with monkeypatch.context() as patch:
        if isinstance(fails, str):
            fail_to_take_the_name(patch, fails)
        else:
            patch.setattr(os, "fsync", Mock(side_effect=[None, None, OSError(28, "No space left on device")][-fails:]))
        with pytest.raises(OSError):
            classifier(1).save(tmp_path)
    assert_equal(load(tmp_path), classifier(0))
    assert names(tmp_path) == [DESCRIPTION, WEIGHTS]


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = folder(tmp_path_factory.mktemp("album"), {"a": 5, "b": 5}, 37, 23)
    save(smooth(400, 300), root / "c" / "large.jpg")
    (root / "c" / "page.jpg").write_bytes(b"<html>")
    return [*sorted(root.rglob("*.*")), root / "none.png"]


def test_every_path_gets_its_prediction_in_order(album: list[Path]) -> None:
    """Whatever is in its batch."""
    mixed = [*album[::-1], album[0]]
    rows = list(classifier().predict(mixed, batch_size=4))
    assert [row.path for row in rows] == [str(path) for path in mixed]
    alone = {str(path): next(classifier().predict(path)) for path in album}
    for row in rows:
        if error := {"page": "not an image", "none": "no such file"}.get(Path(row.path).stem):
            assert row == alone[row.path] == Prediction(row.path, error=error)
        else:
            assert (row.label, row.error) == (alone[row.path].label, None)
            assert row.confidence == pytest.approx(alone[row.path].confidence, abs=1e-5)
    assert list(classifier().predict([])) == []


def test_a_ranking_has_every_class_once_with_the_probabilities_of_the_pixels(album: list[Path]) -> None:
    one = classifier()
    for path, (_, streamed), row in zip(album[:4], one.stream(album[:4]), one.predict(album[:4]), strict=True):
        labels, probabilities = zip(*row.ranking, strict=True)
        assert sorted(labels) == sorted(CLASSES)
        assert list(probabilities) == sorted(probabilities, reverse=True)
        assert sum(probabilities) == pytest.approx(1, abs=1e-5)
        assert (row.label, row.confidence) == row.ranking[0]
        assert type(row.confidence) is float, "JSON takes no numpy number"
        with torch.no_grad():
            logits = one.model(one.read(path)[None])
        np.testing.assert_allclose(streamed, (logits / 1.5).softmax(-1)[0].numpy(), atol=1e-6)


def test_paths_are_taken_a_few_batches_ahead(album: list[Path]) -> None:
    taken = []

    def endless() -> Iterator[Path]:
        while True:
            taken.append(None)
            yield album[len(taken) % 5]

    rows = classifier().predict(endless(), 3)
    assert not taken
    for received in range(1, 30):
        next(rows)
        assert len(taken) - received < 3 * (2 * (os.cpu_count() or 1) + 2)
    rows.close()


def test_temperature_changes_confidence_but_no_order(album: list[Path]) -> None:
    rows = [next(classifier(temperature=t).predict(album[0])) for t in (0.5, 1.0, 4.0)]
    assert len({tuple(label for label, _ in row.ranking) for row in rows}) == 1
    assert rows[0].confidence > rows[1].confidence > rows[2].confidence + 0.01


def test_prediction_leaves_no_gradient_and_no_random_number_behind(album: list[Path]) -> None:
    one = classifier(dropout=0.3)
    state = torch.get_rng_state()
    assert not one.logits(images()).requires_grad
    list(one.predict(album[:2]))
    assert torch.equal(torch.get_rng_state(), state)


def test_grey_models_read_colour_files(tmp_path: Path) -> None:
    grey = Classifier(build(in_channels=1), CLASSES, Preprocess(size=(12, 16), mean=(0.5,), std=(0.5,)))
    assert grey.read(save(noise(), tmp_path / "a.png")).shape == (1, 12, 16)
    assert next(grey.predict(tmp_path / "a.png")).error is None
