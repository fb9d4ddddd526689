"""An exported file answers as the model does, or is not there."""

import dataclasses
import math
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from breaking import in_card, in_model
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import photos
import runs
from exporting.ready import exported, plain
from refusals import refused
from tiny import LOCAL, VARIETY, build, images, largest_difference
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.errors import VitkitError
from vitkit.exporting import FORMATS, NOISE, Card, Pictures, Refused, compare, export, load_exported
from vitkit.inference.backends import graphs

FILES = ("model.onnx", "model.xml")
WIDE = {"hidden_size": 192, "mlp_size": 384}  # with more weights than operations
HYBRID, MIXTURES = {"stem": (1,), "patch_size": 1}, {"conv_layers": (0,), "projection": "conv", "mlp_kind": "conv"}


def pictures(number: int = 9) -> Pictures:
    return Pictures("pictures of the test", tuple(photos.noise(21, 17, seed) for seed in range(number)))


def classifier(**fields: Any) -> Classifier:
    """Of one layer, unless the fields say otherwise."""
    model = build(**{"layers": 1} | fields)
    return Classifier(model, tuple("abcdefg"), Preprocess(size=model.config.image_size))


def asked(path: Path) -> Callable[[Tensor], Tensor]:
    """What computes the logits of images from a file."""
    return torch.export.load(path).module() if path.suffix == ".pt2" else load_exported(path, "float32").logits


@pytest.mark.parametrize(
    ("file", "fields", "dtypes"),
    [  # `test_graph.py` reads files of more kinds of models
        ("model.onnx", {}, ("float16", "bfloat16")),
        ("model.xml", {**MIXTURES, "layers": 2}, ("float16",)),
        ("model.xml", VARIETY["distilled"], ("bfloat16",)),
        ("model.pt2", {**LOCAL["window bias"], "layers": 1}, ("bfloat16",)),
        pytest.param("model.onnx", HYBRID, ("bfloat16",), marks=pytest.mark.accept),
        pytest.param("model.xml", HYBRID, ("float16", "bfloat16"), marks=pytest.mark.accept),
        pytest.param("model.pt2", {**MIXTURES, "layers": 2}, ("bfloat16",), marks=pytest.mark.accept),
    ],
)
def test_files_pass_the_gate_and_so_does_honest_rounding_in_half_as_many_bytes(
    file: str, fields: dict[str, Any], dtypes: tuple[str, ...], tmp_path: Path
) -> None:
    """Over so many pictures some classes all but tie: rounding may turn those."""
    own = dataclasses.replace(classifier(**WIDE | fields), temperature=0.7)
    outcome = export(own, tmp_path / file, pictures(32))
    assert outcome.comparison.cosine > 0.99999
    assert outcome.comparison.agreement == 1
    expected = {batch: own.logits(images(batch, config=own.model.config)) for batch in (1, 4)}
    for batch, logits in expected.items():
        difference = largest_difference(asked(tmp_path / file)(images(batch, config=own.model.config)), logits)
        assert difference < (1e-6 if file == "model.pt2" else 1e-4)
    for dtype in dtypes:
        rounded = export(own, tmp_path / file, pictures(32), precision=dtype, force=True)
        assert 0 < rounded.comparison.noise < 1.1 * NOISE[dtype] / 3
        assert rounded.size < 0.65 * 4 * sum(parameter.numel() for parameter in own.model.parameters())
        found = asked(tmp_path / file)(images(4, config=own.model.config))
        assert 0 < largest_difference(found, expected[4]) / expected[4].abs().max() < 3e-2


@pytest.mark.parametrize("file", FILES)
def test_a_file_predicts_by_its_own_backend_and_does_nothing_else(file: str, tmp_path: Path) -> None:
    again, own = load_exported(exported(Path(file).suffix), "float32"), plain()
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
    """Of a multi-label model, whose thresholds it keeps."""
    own = dataclasses.replace(classifier(), thresholds=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7), temperature=2.0)
    export(own, tmp_path / file, pictures(3), batch=1)
    number, ask = 1 if file == "model.pt2" else 3, asked(tmp_path / file)
    assert largest_difference(ask(images(number)), own.logits(images(number))) < 1e-4
    if file == "model.pt2":
        with pytest.raises(AssertionError):
            ask(images(3))
        return
    again = load_exported(tmp_path / file)
    assert again.runner.batch == 1  # type: ignore[attr-defined]
    assert (again.task, again.thresholds) == ("multi", own.thresholds)
    torch.testing.assert_close(again.probabilities(images(3)), own.probabilities(images(3)))


def swap(model: Any) -> None:
    model.head.weight.data[[0, 1]] = model.head.weight.data[[1, 0]]


def stretch(model: Any) -> None:
    """The same classes in the same order, but other confidences."""
    for parameter in model.head.parameters():
        parameter.data.mul_(1.5)


def widen(model: Any) -> None:
    """LayerNorm's epsilon is 1e-6 in Vision Transformers, and 1e-5 by default in PyTorch."""
    for part in model.modules():
        if isinstance(part, torch.nn.LayerNorm):
            assert part.eps == 1e-6
            part.eps = 1e-5


BROKEN = {
    "1.5 times": in_model(stretch),
    "a weight": in_model(lambda model: model.blocks[0].mlp.fc1.weight.data[3, 5].add_(0.5)),
    "two classes": in_model(swap),
    "not a number": in_model(lambda model: model.head.bias.data[2].fill_(math.nan)),
    "PyTorch's epsilon": in_model(widen),
}
CARDS = {"names": in_card('"a", "b"', '"b", "a"'), "temperature": in_card('"temperature": 1.0', '"temperature": 1.01')}


@pytest.mark.parametrize(
    ("to", "dtype", "name"),
    [
        ("openvino", "bfloat16", "1.5 times"),
        *(("openvino", "float32", name) for name in (*list(BROKEN)[1:], "temperature")),
        ("onnx", "float32", "names"),
        *(
            pytest.param(to, "float32", "two classes", marks=pytest.mark.accept)
            for to in ("onnx", "torch", "executorch")
        ),
    ],
)
def test_a_broken_export_is_refused_and_leaves_nothing(
    to: str, dtype: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (BROKEN | CARDS)[name](monkeypatch, import_module(FORMATS[to].module))
    with refused("exporting.card-differs" if name in CARDS else "exporting.logits-differ"):
        export(classifier(**WIDE, std=0.1), tmp_path / f"model{FORMATS[to].suffix}", pictures(), precision=dtype)
    assert list(tmp_path.iterdir()) == []


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
    assert list(tmp_path.iterdir()) == []


def test_an_earlier_export_survives_one_that_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = runs.copy_of(exported(".xml").parent, tmp_path / "there") / "model.xml"
    before = photos.fingerprint(tmp_path)
    in_model(swap)(monkeypatch, import_module(FORMATS["openvino"].module))
    with pytest.raises(Refused):
        export(classifier(), out, pictures(), precision="float16", force=True)
    assert photos.fingerprint(tmp_path) == before


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
@pytest.mark.parametrize("content", [b"no model", "half"], ids=str)
def test_a_damaged_file_is_an_error_of_one_line(file: str, content: Any, tmp_path: Path) -> None:
    path = runs.copy_of(exported(Path(file).suffix).parent, tmp_path / "there") / file
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content == "half" else content)
    with pytest.raises(VitkitError, match=str(path)) as caught:
        load_exported(path)
    assert "\n" not in str(caught.value)


def test_files_of_others_are_neither_written_over_nor_guessed_at(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"weights of another library")
    with refused("exporting.file-exists", "pytorch_model.bin"):
        export(classifier(), tmp_path / "pytorch_model.xml", pictures(), force=True)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"weights of another library"]
    (tmp_path / "theirs.onnx").write_bytes(graphs.to_onnx(plain().model).SerializeToString())
    (tmp_path / "alone.xml").write_bytes(exported(".xml").read_bytes())
    later = card().to_json().replace('"format_version": 1', '"format_version": 2')
    headless = Classifier(build(num_classes=0), (), Preprocess(size=(12, 16)))
    before = photos.fingerprint(tmp_path)
    for ask, code in (
        (lambda: load_exported(tmp_path / "model.pth"), "exporting.suffix-unknown"),
        (lambda: load_exported(tmp_path / "model.onnx"), "exporting.file-missing"),
        (lambda: load_exported(tmp_path / "theirs.onnx"), "exporting.file-foreign"),
        (lambda: load_exported(tmp_path / "alone.xml"), "exporting.weights-missing"),
        (lambda: Card.from_json(later, tmp_path), "exporting.file-newer"),
        (lambda: export(headless, tmp_path / "model.onnx", pictures()), "exporting.head-missing"),
    ):
        with refused(code):
            ask()
    assert photos.fingerprint(tmp_path) == before
