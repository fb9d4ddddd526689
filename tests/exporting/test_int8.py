"""INT8: what is quantised, what judges it, and what is fitted again."""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino
import pytest
import torch
from scipy.stats import binom

import photos
import runs
import vitkit as package
from refusals import refused
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.data.split_file import images_of_run
from vitkit.evaluation import evaluate
from vitkit.exporting import FORMATS, Card, Pictures, export, load_exported, writing
from vitkit.exporting.comparison import accuracy_change
from vitkit.exporting.formats import Storage
from vitkit.exporting.quantization import first_and_last, layers, rank_by_sensitivity
from vitkit.exporting.writing import Int8
from vitkit.inference.backends.graphs import exportable_copy
from vitkit.model.build import with_features

pytest.importorskip("nncf")


def classifier(**fields: Any) -> Classifier:
    model = build(**fields)
    return Classifier(model, tuple("abcdefg"), Preprocess(size=model.config.image_size))


@pytest.mark.parametrize("to", ["openvino", pytest.param("onnx", marks=pytest.mark.accept)])
def test_int8_is_smaller_and_calibrated_again(tmp_path: Path, to: str) -> None:
    run, suffix = runs.shared_run(), FORMATS[to].suffix
    out, plain = tmp_path / f"model{suffix}", tmp_path / f"plain{suffix}"
    found = package.export(run, out=out, precision="int8", max_drop=1)
    told = json.loads(json.dumps(package.export(run, out=plain).to_dict(), default=str))
    assert (told["accuracy"]["agreement"], told["kept"]) == (1.0, [])
    assert found.outcome.size < told["size"]
    quantised, before = load_exported(out), package.load(run)
    assert quantised.card.dtype == "int8"
    assert quantised.held_out is not None and before.held_out is not None
    assert len(quantised.held_out.held_out) == len(before.held_out.held_out)
    assert quantised.unknown is not None and before.unknown is not None
    assert quantised.trust != before.trust  # of its own predictions
    evaluated = evaluate(quantised, images_of_run(run / "split.json"), "val")
    assert evaluated.accuracy == found.outcome.accuracy.after
    assert found.outcome.tested.images > 0
    assert any(line.startswith("on test images, which chose nothing here: accuracy ") for line in found.lines())


def test_the_accuracy_in_int8_is_that_of_the_thresholds_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = replace(classifier(layers=1), thresholds=(0.5,) * 7)
    shown = tuple(photos.noise(seed=i) for i in range(20))
    images = np.stack([own.preprocess(picture) for picture in shown])
    chosen = own.logits(torch.from_numpy(images)) > 0
    names = tuple(frozenset(name for name, is_it in zip("abcdefg", row, strict=True) if is_it) for row in chosen)
    pictures, attempts = Pictures("20 images", shown, names=names), writing._attempts

    monkeypatch.setattr(writing, "_attempts", lambda *given: islice(attempts(*given), 1))

    def outcome(threshold: float) -> Any:
        int8 = Int8(images, lambda file: setattr(file, "thresholds", (threshold,) * 7), tests=pictures, max_drop=0.5)
        return export(own, tmp_path / f"{threshold}.xml", pictures, precision="int8", int8=int8)

    found = outcome(0.5)
    assert found.accuracy.before == found.tested.before == 1
    assert found.accuracy.after == found.tested.after > 0.5
    before = photos.fingerprint(tmp_path)
    with refused("exporting.accuracy-lost"):
        outcome(0.999)  # no class is chosen
    assert photos.fingerprint(tmp_path) == before


def test_what_int8_needs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, out = runs.shared_run(), tmp_path / "out"
    out.mkdir()

    def complain(code: str, **options: Any) -> None:
        with refused(code):
            package.export(**{"model": run, "out": out / "model.onnx", "precision": "int8", **options})
        assert list(out.iterdir()) == []

    complain("verbs.images-missing", model=package.load(run))
    complain("verbs.images-missing", data=photos.folder(tmp_path / "flat", {"blue": 3, "red": 3}, 16, 16))
    complain("exporting.precision-unsupported", out=out / "model.pt2")
    monkeypatch.setattr("vitkit.exporting.formats.find_spec", lambda name: None if name == "nncf" else name)
    complain("exporting.package-missing")


def test_the_layer_that_rounding_hurts_most_is_first() -> None:
    model = build(layers=3)
    with torch.no_grad():
        model.blocks[1].mlp.fc1.bias[0] = 5000  # type: ignore[index, operator, union-attr]
        model.blocks[1].mlp.fc2.weight[:, 0] = 0  # type: ignore[index, operator, union-attr]
    module = exportable_copy(model)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    images = np.random.default_rng(0).standard_normal((4, 3, *model.config.image_size)).astype(np.float32)
    ranked = rank_by_sensitivity(module, images)
    assert ranked[0] == "model.blocks.1.mlp.fc2"
    assert set(ranked) == set(layers(module)) - set(first_and_last(module))
    assert first_and_last(module) == ("model.patch_embed.linear", "model.head")
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize(
    ("to", "unknown_score"), [("onnx", False), pytest.param("openvino", True, marks=pytest.mark.accept)]
)
def test_kept_layers_are_not_quantised(to: str, unknown_score: bool) -> None:
    model = build(layers=1)
    assert model.head is not None
    model.head.bias.data.zero_()  # a converter leaves out the addition
    model = with_features(model) if unknown_score else model
    module = exportable_copy(model)
    images = np.random.default_rng(0).standard_normal((4, 3, *model.config.image_size)).astype(np.float32)
    kept = (*first_and_last(module), next(name for name in layers(module) if name.endswith("blocks.0.mlp.fc2")))
    graph = FORMATS[to].convert(model, Storage("int8", images=images, keep=kept))
    if to == "onnx":
        stored = [(each.data_type == onnx.TensorProto.INT8, len(each.dims)) for each in graph.graph.initializer]
    else:
        constants = [node for node in graph.get_ops() if node.get_type_name() == "Constant"]
        stored = [(node.get_element_type() == openvino.Type.i8, len(node.shape)) for node in constants]
    assert stored.count((True, 2)) == len(layers(module)) - len(kept)  # matrices in INT8
    with refused("inference.conversion-failed", "blocks", "7"):
        FORMATS[to].convert(model, Storage("int8", images=images, keep=("blocks.7",)))


def test_the_change_of_the_accuracy_has_intervals() -> None:
    card = Card.from_classifier(classifier(), "int8")
    truth = torch.eye(7).repeat(20, 1).bool()  # (140, 7)
    ours = truth.float()
    theirs = ours.clone()
    theirs[:4] = ours[1:5]  # four images that the file gets wrong
    change = accuracy_change(ours, theirs, truth, card, card)
    assert change is not None
    assert (change.images, change.before) == (140, 1.0)
    assert change.after == pytest.approx(136 / 140)
    low, high = change.agreement_interval  # of Clopper and Pearson
    assert binom.sf(135, 140, low) == pytest.approx(0.025, abs=1e-6)
    assert binom.cdf(136, 140, high) == pytest.approx(0.025, abs=1e-6)
    assert change.drop[0] < 4 / 140 < change.drop[1]
    assert accuracy_change(ours, theirs, None, card, card) is None
    same = accuracy_change(ours, ours, truth, card, card)
    assert same is not None and same.drop[0] < 0 < same.drop[1]
