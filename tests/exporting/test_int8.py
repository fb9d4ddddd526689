"""INT8: what is quantised, what judges it, and what is fitted again."""

import json
import math
import os
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino
import pytest
import torch
from breaking import in_model
from PIL import Image
from scipy.stats import binom
from torch import nn

import photos
import runs
import vitkit as package
from refusals import refused
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.data.split_file import images_of_run
from vitkit.evaluation import evaluate
from vitkit.exporting import FORMATS, Card, Pictures, Refused, export, load_exported, writing
from vitkit.exporting.comparison import accuracy_change
from vitkit.exporting.formats import Storage
from vitkit.exporting.quantization import by_sensitivity, ends, layers
from vitkit.exporting.writing import Int8
from vitkit.inference.backends.graphs import folded
from vitkit.model import VisionTransformer
from vitkit.model.build import with_features
from vitkit.training.run import train as run_training

pytest.importorskip("nncf")

DATA = os.environ.get("VITKIT_TEST_DATA")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on three colours, which is right about all of them."""
    folder = tmp_path_factory.mktemp("int8")
    for number, name in enumerate(("red", "green", "blue")):
        (folder / "data" / name).mkdir(parents=True)
        for i in range(40):
            pixels = np.asarray(photos.noise(16, 16, seed=100 * number + i)) // 3
            pixels[..., number] += 150
            photos.save(Image.fromarray(pixels), folder / "data" / name / f"{i}.png")
    return run_training(runs.quick(folder / "data", epochs=6, lr=3e-3), folder / "run")


@pytest.mark.parametrize("to", ["onnx", pytest.param("openvino", marks=pytest.mark.accept)])
def test_int8_is_smaller_and_calibrated_again(run: Path, tmp_path: Path, to: str) -> None:
    out = tmp_path / f"model{FORMATS[to].suffix}"
    found = package.export(run, out=out, precision="int8")
    plain = package.export(run, out=tmp_path / f"plain{FORMATS[to].suffix}")
    told = json.loads(json.dumps(plain.to_dict(), default=str))
    assert (told["accuracy"]["agreement"], told["kept"]) == (1.0, [])
    quantised, before = load_exported(out), package.load(run)
    assert found.outcome.size < plain.outcome.size
    assert quantised.card.dtype == "int8"
    assert quantised.held_out is not None and before.held_out is not None
    assert len(quantised.held_out.held_out) == len(before.held_out.held_out)
    assert (quantised.unknown is None) == (before.unknown is None)
    assert quantised.trust != before.trust  # of its own predictions
    evaluated = evaluate(quantised, images_of_run(run / "split.json"), "val")
    assert evaluated.accuracy == found.outcome.accuracy.after
    assert found.outcome.tested.images > 0
    assert any(line.startswith("on test images, which chose nothing here: accuracy ") for line in found.lines())


@pytest.mark.accept
def test_a_quantisation_that_loses_accuracy_is_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = writing._answers

    def turned(classifier: Any, images: Any, what: str) -> Any:
        logits = answers(classifier, images, what)
        return logits.roll(1, dims=1) if what == "asking the file" else logits

    monkeypatch.setattr(writing, "_answers", turned)
    with refused("exporting.accuracy-lost"):
        package.export(run, out=tmp_path / "model.xml", precision="int8")
    assert list(tmp_path.iterdir()) == []


def test_the_accuracy_in_int8_is_that_of_the_thresholds_in_the_file(tmp_path: Path) -> None:
    model = build()
    own = Classifier(model, tuple("abcdefg"), Preprocess(size=model.config.image_size), thresholds=(0.5,) * 7)
    shown = tuple(photos.noise(seed=i) for i in range(20))
    images = np.stack([own.preprocess(picture) for picture in shown])
    chosen = own.logits(torch.from_numpy(images)) > 0
    names = tuple(frozenset(name for name, is_it in zip("abcdefg", row, strict=True) if is_it) for row in chosen)
    pictures = Pictures("20 images", shown, names=names)

    def refit(exported: Any, threshold: float) -> None:
        exported.thresholds = (threshold,) * 7

    def outcome(threshold: float) -> Any:
        int8 = Int8(images, partial(refit, threshold=threshold), tests=pictures, max_drop=0.5)
        return export(own, tmp_path / "model.xml", pictures, precision="int8", int8=int8)

    found = outcome(0.5)
    assert found.accuracy.before == found.tested.before == 1
    assert found.accuracy.after == found.tested.after > 0.5
    with refused("exporting.accuracy-lost"):
        outcome(0.999)  # no class is chosen


def test_what_int8_needs_is_said(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def complain(code: str, **options: Any) -> None:
        with refused(code):
            package.export(**{"model": run, "out": tmp_path / "model.onnx", "precision": "int8", **options})
        assert list(tmp_path.iterdir()) == []

    complain("verbs.images-missing", model=package.load(run))
    complain("verbs.images-missing", data=photos.folder(run.parent / "flat", {"blue": 3, "red": 3}, 16, 16))
    complain("exporting.precision-unsupported", out=tmp_path / "model.pt2")
    monkeypatch.setattr("vitkit.exporting.formats.find_spec", lambda name: None if name == "nncf" else name)
    complain("exporting.package-missing")


def test_the_layer_that_rounding_hurts_most_is_first() -> None:
    model = build(layers=3)
    with torch.no_grad():
        model.blocks[1].mlp.fc1.bias[0] = 5000  # type: ignore[index, operator, union-attr]
        model.blocks[1].mlp.fc2.weight[:, 0] = 0  # type: ignore[index, operator, union-attr]
    module = folded(model)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    images = np.random.default_rng(0).standard_normal((4, 3, *model.config.image_size)).astype(np.float32)
    ranked = by_sensitivity(module, images)
    assert ranked[0] == "model.blocks.1.mlp.fc2"
    assert set(ranked) == set(layers(module)) - set(ends(module))
    assert ends(module) == ("model.patch_embed.linear", "model.head")
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize(
    ("to", "unknown_score"),
    [
        ("onnx", False),
        *(pytest.param(*own, marks=pytest.mark.accept) for own in (("onnx", True), ("openvino", False))),
        pytest.param("openvino", True, marks=pytest.mark.accept),
    ],
)
def test_kept_layers_are_not_quantised(to: str, unknown_score: bool) -> None:
    model = build(layers=2)
    assert model.head is not None
    model.head.bias.data.zero_()  # a converter leaves out the addition
    model = with_features(model) if unknown_score else model
    module = folded(model)
    images = np.random.default_rng(0).standard_normal((4, 3, *model.config.image_size)).astype(np.float32)
    kept = (*ends(module), next(name for name in layers(module) if name.endswith("blocks.1.mlp.fc2")))
    graph = FORMATS[to].convert(model, Storage("int8", images=images, keep=kept))
    assert _quantised_matrices(graph) == len(layers(module)) - len(kept)
    with refused("inference.conversion-failed", "blocks", "7"):
        FORMATS[to].convert(model, Storage("int8", images=images, keep=("blocks.7",)))


def _quantised_matrices(graph: Any) -> int:
    """Return the number of constants of two dimensions in INT8, in a graph of ONNX or OpenVINO."""
    if hasattr(graph, "graph"):
        return sum(each.data_type == onnx.TensorProto.INT8 and len(each.dims) == 2 for each in graph.graph.initializer)
    return sum(
        node.get_type_name() == "Constant" and node.get_element_type() == openvino.Type.i8 and len(node.shape) == 2
        for node in graph.get_ops()
    )


def test_the_change_of_the_accuracy_has_intervals() -> None:
    card = replace(Card.of(Classifier(build(), tuple("abcdefg"), Preprocess(size=(12, 16))), "int8"))
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


FAULTS = {
    "patch_embed": lambda model: model.patch_embed.proj.weight.data.copy_(model.patch_embed.proj.weight.flip(1)),
    "blocks.0": lambda model: setattr(model.blocks[0].norm1, "eps", 0.5),
    "blocks.1": lambda model: model.blocks[1].attn.proj.weight.data.copy_(model.blocks[1].attn.proj.weight.t().clone()),
    "blocks.2": lambda model: model.blocks[2].mlp.fc1.bias.data.fill_(math.inf),
}


def four_pictures() -> Pictures:
    return Pictures("4 images", tuple(photos.noise(seed=i) for i in range(4)))


@pytest.mark.parametrize(
    ("place", "to"),
    [
        *(("blocks.1", "onnx"), ("patch_embed", "openvino"), ("blocks.0", "openvino")),
        *(pytest.param(place, "openvino", marks=pytest.mark.accept) for place in ("blocks.1", "blocks.2")),
    ],
)
def test_a_refusal_names_the_first_layer_that_differs(
    place: str, to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(layers=4)
    own = Classifier(model, tuple("abcdefg"), Preprocess(size=model.config.image_size))
    in_model(FAULTS[place])(monkeypatch, import_module(FORMATS[to].module))
    with pytest.raises(Refused, match=f"the first layer that differs is {place}$"):
        export(own, tmp_path / f"model{FORMATS[to].suffix}", four_pictures())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.accept
@pytest.mark.skipif(DATA is None, reason="VITKIT_TEST_DATA names no folder with weights and photographs")
def test_an_epsilon_of_another_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LayerNorm's epsilon is 1e-6 in Vision Transformers, and 1e-5 by default in PyTorch."""
    data = Path(str(DATA))
    deit = package.load(data / "weights" / "deit_tiny_patch16_224.pth")
    chosen = sorted((data / "data" / "flowers").rglob("*.jpg"))[::625]

    def widen(model: VisionTransformer) -> None:
        for part in model.modules():
            if isinstance(part, nn.LayerNorm):
                part.eps = 1e-5

    images = Pictures("4 photographs", tuple(Image.open(path).convert("RGB") for path in chosen))
    assert export(deit, tmp_path / "model.xml", images).comparison.drift < 1e-5
    in_model(widen)(monkeypatch, import_module(FORMATS["openvino"].module))
    with refused("exporting.logits-differ", "the first layer that differs is blocks"):
        export(deit, tmp_path / "model.xml", images)
