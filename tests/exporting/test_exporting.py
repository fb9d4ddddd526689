"""An exported file answers as the model does, or is not there."""

import dataclasses
import itertools
import math
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from breaking import Break, in_card, in_model
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import photos
from once import once
from refusals import refused
from tiny import VARIETY, build, images, largest_difference
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.errors import VitkitError
from vitkit.exporting import FORMATS, NOISE, Card, Pictures, Refused, compare, export, load_exported
from vitkit.inference.backends import graphs
from vitkit.weights import load

FILES = ("model.onnx", "model.xml")
FAMILIES: dict[str, dict[str, Any]] = {
    **{name: VARIETY[name] for name in ("distilled", "gap", "token+gap", "swiglu")},
    "plain": {"layers": 3},
    "hybrid": {"stem": (1,), "patch_size": 1},
    "registers": {"registers": 3, "layer_scale": 0.1},
    "mixtures": {"conv_layers": (0,), "projection": "conv", "mlp_kind": "conv"},
}
OTHERWISE = (((12, 16), "float16"), ((20, 24), "bfloat16"))
BY_DAY = {  # `test_graph.py` reads files of more kinds of models
    *(("model.onnx", "plain", "float16"), ("model.xml", "token+gap", "float16"), ("model.xml", "mixtures", "float16")),
    *(("model.xml", family, "bfloat16") for family in ("distilled", "hybrid", "registers")),
    ("model.pt2", "mixtures", "bfloat16"),
}


def pictures(number: int = 9) -> Pictures:
    return Pictures("pictures of the test", tuple(photos.noise(21, 17, seed) for seed in range(number)))


def classifier(**fields: Any) -> Classifier:
    """Of one layer, unless the fields say otherwise."""
    model = build(**{"layers": 1} | fields)
    return Classifier(model, tuple("abcdefg"), Preprocess(size=model.config.image_size))


def asked(path: Path) -> Callable[[Tensor], Tensor]:
    """What computes the logits of images from a file."""
    return torch.export.load(path).module() if path.suffix == ".pt2" else load_exported(path, "float32").logits


def everything(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


@pytest.mark.parametrize(
    ("file", "family", "size", "dtype"),
    [
        pytest.param(file, family, *other, marks=() if (file, family, other[1]) in BY_DAY else pytest.mark.accept)
        for file, family, other in (
            *itertools.product(FILES, FAMILIES, OTHERWISE),
            *itertools.product(["model.pt2"], ["distilled", "mixtures"], OTHERWISE[1:]),
        )
    ],
)
def test_every_family_passes_the_gate_and_so_does_honest_rounding(
    file: str, family: str, size: tuple[int, int], dtype: str, tmp_path: Path
) -> None:
    """Over so many pictures some classes all but tie: rounding may turn those."""
    own = classifier(**{"layers": 2} | FAMILIES[family] | {"image_size": size})
    own = dataclasses.replace(own, temperature=0.7)
    outcome = export(own, tmp_path / file, pictures(32))
    assert outcome.comparison.cosine > 0.99999
    assert outcome.comparison.agreement == 1
    for batch in (1, 4):
        some = images(batch, config=own.model.config)
        difference = largest_difference(asked(tmp_path / file)(some), own.logits(some))
        assert difference < (1e-6 if file == "model.pt2" else 1e-4)
    rounded = export(own, tmp_path / file, pictures(32), precision=dtype, force=True)
    assert 0 < rounded.comparison.noise < 1.1 * NOISE[dtype] / 3


@pytest.fixture(scope="module")
def exported(model: Path) -> Path:
    """A folder with a file of each format, which tests may read but not change."""

    def make(folder: Path) -> None:
        folder.mkdir()
        for file in FILES:
            export(load(model), folder / file, pictures())

    return once("exported", make)


@pytest.mark.parametrize("file", FILES)
def test_a_file_predicts_by_its_own_backend_and_does_nothing_else(
    exported: Path, model: Path, file: str, tmp_path: Path
) -> None:
    again, own = load_exported(exported / file, "float32"), load(model)
    assert (again.classes, again.preprocess, again.temperature) == (own.classes, own.preprocess, own.temperature)
    path = photos.save(photos.noise(50, 40), tmp_path / "photo.png")
    found, expected = next(again.predict(path)), next(own.predict(path))
    assert (found.label, found.confidence) == (expected.label, pytest.approx(expected.confidence, abs=1e-5))
    assert again.use("auto", "float32") is again
    for ask in (
        lambda: again.model,
        lambda: again.explain(path),
        lambda: list(again.embed([path])),
        lambda: again.save(tmp_path / "folder"),
    ):
        with refused("exporting.model-missing", file):
            ask()
    with refused("exporting.backend-unsupported", "eager"):
        again.use("eager")
    if file == "model.onnx":
        with refused("inference.precision-unsupported"):
            again.use(precision="bfloat16")


@pytest.mark.parametrize("file", [*FILES, pytest.param("model.pt2", marks=pytest.mark.accept)])
def test_a_fixed_batch_takes_any_number_one_by_one_but_in_a_program(file: str, tmp_path: Path) -> None:
    own = classifier()
    export(own, tmp_path / file, pictures(3), batch=1)
    number, ask = 1 if file == "model.pt2" else 3, asked(tmp_path / file)
    assert largest_difference(ask(images(number)), own.logits(images(number))) < 1e-4
    if file == "model.pt2":
        with pytest.raises(AssertionError):
            ask(images(3))
    else:
        assert load_exported(tmp_path / file).runner.batch == 1  # type: ignore[attr-defined]


WIDE = {"hidden_size": 192, "mlp_size": 384}  # with more weights than operations


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("file", [*FILES, pytest.param("model.pt2", marks=pytest.mark.accept)])
def test_half_as_many_bytes(file: str, dtype: str, tmp_path: Path) -> None:
    own = classifier(**WIDE)
    size = export(own, tmp_path / file, pictures(32), precision=dtype).size
    assert size < 0.65 * 4 * sum(parameter.numel() for parameter in own.model.parameters())
    expected = own.logits(images(3))
    assert 0 < largest_difference(asked(tmp_path / file)(images(3)), expected) / expected.abs().max() < 3e-2


def test_a_multi_label_model_keeps_its_thresholds(tmp_path: Path) -> None:
    own = dataclasses.replace(classifier(layers=3), thresholds=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7), temperature=2.0)
    export(own, tmp_path / "model.onnx", pictures())
    again = load_exported(tmp_path / "model.onnx")
    assert (again.task, again.thresholds) == ("multi", own.thresholds)
    torch.testing.assert_close(again.probabilities(images(3)), own.probabilities(images(3)))


def replacing(old: str, new: str) -> Break:
    def change(card: str) -> str:
        assert old in card
        return card.replace(old, new, 1)

    return in_card(change)


def swap(model: Any) -> None:
    model.head.weight.data[[0, 1]] = model.head.weight.data[[1, 0]]


def misscale(factor: float, shift: float = 0, classes: slice = slice(None)) -> Break:
    """The same classes in the same order, but other confidences, or another bias of some classes."""
    added = torch.zeros(7)
    added[classes] = shift

    def change(model: Any) -> None:
        for parameter, more in ((model.head.weight, 0), (model.head.bias, added)):
            parameter.data.mul_(factor).add_(more)

    return in_model(change, ("Mul", np.array(factor, np.float32)), ("Add", added.numpy()))


MISSCALED = {
    "1.5 times": misscale(1.5),
    "0.67 times": misscale(0.67),
    "1.05 times": misscale(1.05),
    "shifted": misscale(1, 0.5),
    "one class shifted": misscale(1, 0.5, slice(2, 3)),
}
BROKEN = MISSCALED | {
    "a weight": in_model(lambda model: model.blocks[0].mlp.fc1.weight.data[3, 5].add_(0.5)),
    "two classes": in_model(swap, ("Gather", np.array([1, 0, *range(2, 7)]))),
    "not a number": in_model(lambda model: model.head.bias.data[2].fill_(math.nan)),
}
CARDS = {
    "mean": replacing("[0.5, 0.5, 0.5]", "[0.485, 0.456, 0.406]"),
    "names": replacing('"a", "b"', '"b", "a"'),
    "temperature": replacing('"temperature": 1.0', '"temperature": 1.01'),
}
TWO = ("onnx", "openvino")
REFUSED_BY_DAY = {
    *itertools.product(["openvino"], ["float32"], ["shifted", "a weight", "two classes", "not a number", "names"]),
    *itertools.product(["onnx"], ["float32"], ["1.5 times", "two classes", "mean"]),
    *(("onnx", "float16", "one class shifted"), ("openvino", "float32", "temperature")),
    *(("openvino", "float16", "0.67 times"), ("openvino", "bfloat16", "1.05 times")),
}


@pytest.mark.parametrize(
    ("to", "dtype", "name"),
    [
        pytest.param(*own, marks=() if own in REFUSED_BY_DAY else pytest.mark.accept)
        for own in (
            *itertools.product(TWO, ["float32"], BROKEN | CARDS),
            *itertools.product(TWO, ["float16", "bfloat16"], MISSCALED),
            *itertools.product(["torch"], ["bfloat16"], ["1.5 times", "one class shifted", "mean"]),
            ("executorch", "float32", "two classes"),
        )
    ],
)
def test_a_broken_export_is_refused_and_leaves_nothing(
    to: str, dtype: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (BROKEN | CARDS)[name](monkeypatch, import_module(FORMATS[to].module))
    with refused("exporting.card-differs" if name in CARDS else "exporting.logits-differ"):
        export(classifier(**WIDE), tmp_path / f"model{FORMATS[to].suffix}", pictures(), precision=dtype)
    assert everything(tmp_path) == []


def test_a_backend_that_spoils_bfloat16_is_found_where_predict_would_ask_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoiled(path: Path, precision: str = "auto") -> Any:
        assert precision == "auto"
        again = load_exported(path, "float32")
        same = {name: getattr(again, name) for name in ("card", "read", "preprocess")}
        return SimpleNamespace(precision="bfloat16", logits=lambda x: 1.5 * again.runner(x), **same)

    monkeypatch.setattr("vitkit.exporting.writing.load_exported", spoiled)
    with refused("exporting.logits-differ", "bfloat16", "1.5 times"):
        export(classifier(), tmp_path / "model.xml", pictures())
    assert everything(tmp_path) == []


@pytest.mark.parametrize("failure", ["refused", "full disk"])
def test_an_earlier_export_survives_one_that_fails(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    for name in ("model.xml", "model.bin"):
        shutil.copy(exported / name, tmp_path)
    before, replace = {path: path.read_bytes() for path in tmp_path.iterdir()}, Path.replace

    def failing(path: Path, target: Path) -> Path:
        if target == tmp_path / "model.xml":
            raise PermissionError(13, "Permission denied", str(target))
        return replace(path, target)

    if failure == "refused":
        in_model(swap)(monkeypatch, import_module(FORMATS["openvino"].module))
    else:
        monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(Refused if failure == "refused" else PermissionError):
        export(classifier(), tmp_path / "model.xml", pictures(), precision="float16", force=True)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def card(**fields: Any) -> Card:
    return dataclasses.replace(Card.from_classifier(classifier(), "float32"), **fields)


def logits(*rows: list[float]) -> Tensor:
    return torch.tensor(rows)


def test_the_verdict_allows_rounding_and_nothing_more() -> None:
    whole, half = card(), card(dtype="float16")
    ours = logits(*[[5.0, 0, 0, 0, 0, 0, float(i % 3)] for i in range(200)])
    near, rolled, nothing = ours.clone(), ours.clone(), torch.zeros(3, 7)
    near[0, 1] += 0.01  # more than rounding in float32
    rolled[7] = rolled[7].roll(1)  # one image of all
    one, nan = nothing.clone(), nothing + torch.nan
    one[1, 2] = 1.0
    for first, second, own in ((ours, ours, whole), (ours, near, half), (nothing, nothing, whole)):
        assert compare(first, second, own).faults() == []
    for first, second, own in ((ours, near, whole), (ours, rolled, half), (nothing, one, whole), (nan, nan, whole)):
        assert compare(first, second, own).faults() != []
    assert compare(nan, nothing, whole).faults() != []
    close = logits(*[[5.0, 4.9, 0, 0, 0, 0, 0]] * 200)
    for turned, faults in ((1, 0), (2, 1)):  # of 200 whose first two classes all but tie
        flipped = close.clone()
        flipped[:turned, 1] = 5.002
        found = compare(close, flipped, half)
        assert (found.agreement, len(found.faults())) == (1 - turned / 200, faults)
    for other in (nan, torch.zeros(3, 6)):
        with refused("exporting.logits-differ"):
            compare(nothing, other, whole)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    classes=st.integers(2, 40),
    spread=st.floats(0.3, 8),
    temperature=st.floats(0.3, 3),
    multi=st.booleans(),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
)
def test_rounded_logits_pass_and_those_of_another_scale_do_not(
    seed: int, classes: int, spread: float, temperature: float, multi: bool, dtype: str
) -> None:
    own = card(thresholds=(0.4,) * classes if multi else None, temperature=temperature, dtype=dtype)
    ours = spread * torch.randn(24, classes, generator=torch.Generator().manual_seed(seed))
    rounded = ours.to(getattr(torch, dtype)).float()
    assert compare(ours, rounded, own).faults() == []
    first = spread * torch.eye(classes)[0]
    for wrong in (1.5 * rounded, 0.67 * rounded, 1.05 * rounded, rounded + spread / 2, rounded + first):
        assert compare(ours, wrong, own).faults() != []


def test_probabilities_are_compared_at_the_calibrated_temperature() -> None:
    """An error of one logit in two hundred is small among them; but it is the one that decides."""
    ours = torch.randn(50, 200, generator=torch.Generator().manual_seed(0))
    theirs = ours - 0.4 * torch.nn.functional.one_hot(ours.argmax(dim=1), 200)
    found = compare(ours, theirs, card(dtype="bfloat16", temperature=0.3))
    assert any("on average" in fault for fault in found.faults())


def test_the_shift_that_noise_explains_is_what_noise_does() -> None:
    generator = torch.Generator().manual_seed(0)
    ours = 2 * torch.randn(400, 5, generator=generator)
    size = (ours - ours.mean(dim=1, keepdim=True)).square().mean().sqrt()
    for fields in ({}, {"thresholds": (0.5,) * 5}):
        own = card(temperature=0.8, dtype="bfloat16", **fields)
        scale = size if not fields else ours.square().mean().sqrt()
        theirs = ours + NOISE["bfloat16"] * scale * torch.randn(400, 5, generator=generator)
        found = compare(ours, theirs, own)
        mean_of_absolute = math.sqrt(2 / math.pi)  # of a normal error whose standard deviation is 1
        assert found.shift == pytest.approx(mean_of_absolute * found.shift_by_noise, rel=0.1)


def test_decisions_agree_unless_more_than_rounding_turns_them() -> None:
    """The first class of an image, or each class of a model that may find several."""
    ours = logits([1.0, 1.0 + 1e-6, -3, 0, 0, 0, 0], [4.0, 1, 0, 0, 0, 0, 0])
    theirs = logits([1.0 + 1e-6, 1.0, -3, 0, 0, 0, 0], [4.0, 1, 0, 0, 0, 0, 0])
    assert compare(ours, theirs, card()).agreement == 1
    theirs[1, 1] = 5
    assert compare(ours, theirs, card()).agreement == 0
    several = card(thresholds=(0.5,) * 7)
    ours = logits([3.0, -3, 1, -1, 2, -2, 1e-6])
    theirs = ours.clone()
    theirs[0, 6] = -1e-6  # on the threshold: no decision that rounding could not turn
    assert compare(ours, theirs, several).agreement == 1
    theirs[0, 0] = -1
    assert compare(ours, theirs, several).agreement == pytest.approx(5 / 6)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("content", [b"", b"no model", b"PK\x03\x04 rest of an archive", "half"], ids=str)
def test_a_damaged_file_is_an_error_of_one_line(exported: Path, file: str, content: Any, tmp_path: Path) -> None:
    for name in (file, "model.bin"):
        shutil.copy(exported / name, tmp_path)
    path = tmp_path / file
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content == "half" else content)
    with pytest.raises(VitkitError, match=str(path)) as caught:
        load_exported(path)
    assert "\n" not in str(caught.value)


def test_an_openvino_model_needs_its_weights(exported: Path, tmp_path: Path) -> None:
    shutil.copy(exported / "model.xml", tmp_path)
    with refused("exporting.weights-missing", "model.bin"):
        load_exported(tmp_path / "model.xml")
    (tmp_path / "model.bin").write_bytes((exported / "model.bin").read_bytes()[:1000])
    with pytest.raises(VitkitError):
        load_exported(tmp_path / "model.xml")


def test_files_of_others_are_neither_written_over_nor_guessed_at(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"weights of another library")
    with refused("exporting.file-exists", "pytorch_model.bin"):
        export(classifier(), tmp_path / "pytorch_model.xml", pictures(), force=True)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"weights of another library"]
    (tmp_path / "theirs.onnx").write_bytes(graphs.to_onnx(build()).SerializeToString())
    later = card().to_json().replace('"format_version": 1', '"format_version": 2')
    headless = Classifier(build(num_classes=0), (), Preprocess(size=(12, 16)))
    for ask, code in (
        (lambda: load_exported(tmp_path / "model.pth"), "exporting.suffix-unknown"),
        (lambda: load_exported(tmp_path / "model.onnx"), "exporting.file-missing"),
        (lambda: load_exported(tmp_path / "theirs.onnx"), "exporting.file-foreign"),
        (lambda: Card.from_json(later, tmp_path), "exporting.file-newer"),
        (lambda: export(headless, tmp_path / "model.onnx", pictures()), "exporting.head-missing"),
    ):
        with refused(code):
            ask()
    assert everything(tmp_path) == ["pytorch_model.bin", "theirs.onnx"]
