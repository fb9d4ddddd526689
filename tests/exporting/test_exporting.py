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

import pytest
import torch
from _pytest.mark.structures import ParameterSet
from breaking import Break, in_card, in_model
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import photos
from refusals import refused
from tiny import build, images, largest_difference, some
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.errors import VitkitError
from vitkit.exporting import FORMATS, NOISE, Card, Pictures, Refused, compare, export, load_exported
from vitkit.model import VisionTransformer
from vitkit.weights import load

FILES = ("model.onnx", "model.xml")
FAMILIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "distilled": {"distill_token": True, "distill_head": True},
    "gap": {"pool": "gap"},
    "token+gap": {"pool": "token+gap"},
    "hybrid": {"stem": (1,), "patch_size": 1, "image_size": (12, 16)},
    "registers": {"registers": 3, "layer_scale": 0.1},
    "swiglu": {"mlp_kind": "swiglu"},
    "mixtures": {"conv_layers": (0,), "projection": "conv", "mlp_kind": "conv"},
}


def pictures(number: int = 9) -> Pictures:
    return Pictures("pictures of the test", tuple(photos.noise(21, 17, seed) for seed in range(number)))


def classifier(**fields: Any) -> Classifier:
    model = build(**fields)
    return Classifier(model, tuple("abcdefg"), Preprocess(size=model.config.image_size))


def everything(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def alternating(*others: tuple[Any, ...]) -> list[ParameterSet]:
    """Each family with each of the others; under `make test` each family once, and each of the others in turn."""
    return [
        pytest.param(
            *other, fields, id="-".join(map(str, (family, *other))),
            marks=() if number % len(others) == place else pytest.mark.accept,
        )
        for number, (family, fields) in enumerate(FAMILIES.items())
        for place, other in enumerate(others)
    ]  # fmt: skip


@pytest.mark.parametrize(("file", "size", "fields"), alternating(*itertools.product(FILES, [(12, 16), (20, 24)])))
def test_every_family_passes_the_gate(file: str, size: Any, fields: dict[str, Any], tmp_path: Path) -> None:
    own = classifier(**fields | {"image_size": size})
    outcome = export(own, tmp_path / file, pictures())
    assert outcome.comparison.cosine > 0.99999
    assert outcome.comparison.agreement == 1
    again = load_exported(tmp_path / file, "float32")
    for batch in (1, 4):
        asked = images(batch, config=own.model.config)
        assert largest_difference(again.logits(asked), own.logits(asked)) < 1e-4


@pytest.mark.parametrize("family", some(["distilled", "mixtures"], ["mixtures"]))
def test_the_program_of_every_family_passes_the_gate(family: str, tmp_path: Path) -> None:
    own = classifier(**{"layers": 2} | FAMILIES[family])  # tracing takes its time
    export(own, tmp_path / "model.pt2", pictures())
    again = torch.export.load(tmp_path / "model.pt2").module()
    for batch in (1, 4):
        asked = images(batch, config=own.model.config)
        assert largest_difference(again(asked), own.logits(asked)) < 1e-6


@pytest.fixture(scope="module")
def exported(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of each format, which tests may read but not change."""
    folder = tmp_path_factory.mktemp("exported")
    for file in FILES:
        export(load(model), folder / file, pictures())
    return folder


@pytest.mark.parametrize("file", FILES)
def test_a_file_predicts_by_its_own_backend_and_does_nothing_else(exported: Path, model: Path, file: str) -> None:
    again, own = load_exported(exported / file, "float32"), load(model)
    assert (again.classes, again.preprocess, again.temperature) == (own.classes, own.preprocess, own.temperature)
    path = photos.save(photos.noise(50, 40), exported / "photos" / "photo.png")
    found, expected = next(again.predict(path)), next(own.predict(path))
    assert (found.label, found.confidence) == (expected.label, pytest.approx(expected.confidence, abs=1e-5))
    assert again.use("auto", "float32") is again
    for ask in (
        lambda: again.model,
        lambda: again.explain(path),
        lambda: list(again.embed([path])),
        lambda: again.save(exported / "folder"),
    ):
        with refused("exporting.model-missing", file):
            ask()
    with refused("exporting.backend-unsupported", "eager"):
        again.use("eager")
    if file == "model.onnx":
        with refused("inference.precision-unsupported"):
            again.use(precision="bfloat16")


@pytest.mark.parametrize("file", FILES)
def test_a_fixed_batch_takes_any_number_one_by_one(file: str, tmp_path: Path) -> None:
    own = classifier(layers=1)
    export(own, tmp_path / file, pictures(3), batch=1)
    again = load_exported(tmp_path / file, "float32")
    assert again.runner.batch == 1  # type: ignore[attr-defined]
    assert largest_difference(again.logits(images(3)), own.logits(images(3))) < 1e-4


@pytest.mark.accept
def test_a_program_of_a_fixed_batch_takes_one_image(tmp_path: Path) -> None:
    own = classifier(layers=1)
    export(own, tmp_path / "model.pt2", pictures(3), batch=1)
    program = torch.export.load(tmp_path / "model.pt2").module()
    assert largest_difference(program(images(1)), own.logits(images(1))) < 1e-4
    with pytest.raises(AssertionError):
        program(images(3))


@pytest.mark.parametrize(
    ("file", "dtype"), [*itertools.product(FILES, ["bfloat16", "float16"]), ("model.pt2", "bfloat16")]
)
def test_half_as_many_bytes(file: str, dtype: str, tmp_path: Path) -> None:
    own = classifier(hidden_size=192, mlp_size=384, layers=1)
    size = export(own, tmp_path / file, pictures(), precision=dtype).size
    assert size < 0.65 * 4 * sum(parameter.numel() for parameter in own.model.parameters())
    if file == "model.pt2":
        logits = torch.export.load(tmp_path / file).module()(images(3))
    else:
        logits = load_exported(tmp_path / file, "float32").logits(images(3))
    difference = largest_difference(logits, own.logits(images(3)))
    assert 0 < difference / own.logits(images(3)).abs().max() < 3e-2


def test_a_multi_label_model_keeps_its_thresholds(tmp_path: Path) -> None:
    own = dataclasses.replace(classifier(), thresholds=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7), temperature=2.0)
    export(own, tmp_path / "model.onnx", pictures())
    again = load_exported(tmp_path / "model.onnx")
    assert (again.task, again.thresholds) == ("multi", own.thresholds)
    torch.testing.assert_close(again.probabilities(images(3)), own.probabilities(images(3)))


@torch.no_grad()
def perturb(model: VisionTransformer) -> None:
    model.blocks[1].mlp.fc1.weight[3, 5] += 0.5  # type: ignore[index, operator, union-attr]


@torch.no_grad()
def swap(model: VisionTransformer) -> None:
    model.head.weight[[0, 1]] = model.head.weight[[1, 0]]  # type: ignore[union-attr]


@torch.no_grad()
def spoil(model: VisionTransformer) -> None:
    model.head.bias[2] = float("nan")  # type: ignore[union-attr]


def replacing(old: str, new: str) -> Callable[[str], str]:
    def change(card: str) -> str:
        assert old in card
        return card.replace(old, new, 1)

    return change


def weigh(factor: float) -> Any:
    """Logits of another scale: the same classes in the same order, other confidences."""

    @torch.no_grad()
    def change(model: VisionTransformer) -> None:
        model.head.weight *= factor  # type: ignore[union-attr]
        model.head.bias *= factor  # type: ignore[union-attr]

    return change


def shift(by: float, classes: slice) -> Any:
    """Another bias of some classes, or of all, which the probabilities of single classes do not show."""

    @torch.no_grad()
    def change(model: VisionTransformer) -> None:
        model.head.bias[classes] += by  # type: ignore[union-attr]

    return change


MISSCALED: dict[str, Any] = {
    "1.5 times": weigh(1.5),
    "0.67 times": weigh(0.67),
    "1.05 times": weigh(1.05),
    "shifted": shift(0.5, slice(None)),
    "one class shifted": shift(0.5, slice(2, 3)),
}


CHANGES: dict[str, tuple[Break, str]] = {
    "a weight": (in_model(perturb), "exporting.logits-differ"),
    "two classes": (in_model(swap), "exporting.logits-differ"),
    "not a number": (in_model(spoil), "exporting.logits-differ"),
    "mean": (in_card(replacing("[0.5, 0.5, 0.5]", "[0.485, 0.456, 0.406]")), "exporting.card-differs"),
    "names": (in_card(replacing('"a", "b"', '"b", "a"')), "exporting.card-differs"),
    "temperature": (in_card(replacing('"temperature": 1.0', '"temperature": 1.01')), "exporting.card-differs"),
}


@pytest.mark.parametrize(  # tracing for torch takes its time, and what compares is the same
    ("to", "name"),
    [
        *(("openvino", name) for name in CHANGES),
        *(("onnx", name) for name in ("two classes", "mean")),
        ("torch", "mean"),
        *(pytest.param("onnx", name, marks=pytest.mark.accept) for name in ("a weight", "not a number", "names")),
        pytest.param("executorch", "two classes", marks=pytest.mark.accept),
    ],
)
def test_a_broken_export_is_refused_and_leaves_nothing(
    to: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, (change, code) = import_module(FORMATS[to].module), CHANGES[name]
    change(monkeypatch, home)
    with refused(code):
        export(classifier(layers=2), tmp_path / f"model{FORMATS[to].suffix}", pictures())
    assert everything(tmp_path) == []


SCALED = list(itertools.product(["onnx", "openvino"], ["float32", "float16", "bfloat16"], MISSCALED))
BY_DAY = (0, 9, 18, 21, 27)  # each change and each precision


@pytest.mark.parametrize(
    ("to", "dtype", "name"),
    [
        *(pytest.param(*own, marks=() if i in BY_DAY else pytest.mark.accept) for i, own in enumerate(SCALED)),
        *(pytest.param("torch", "bfloat16", name, marks=pytest.mark.accept) for name in list(MISSCALED)[::4]),
    ],
)
def test_logits_of_another_scale_are_refused_in_every_precision(
    to: str, dtype: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_model(MISSCALED[name])(monkeypatch, import_module(FORMATS[to].module))
    with refused("exporting.logits-differ"):
        export(classifier(layers=1), tmp_path / f"model{FORMATS[to].suffix}", pictures(), precision=dtype)
    assert everything(tmp_path) == []


@pytest.mark.parametrize(("file", "dtype", "fields"), alternating(*itertools.product(FILES, ["float16", "bfloat16"])))
def test_honest_rounding_passes_of_every_family(file: str, dtype: str, fields: Any, tmp_path: Path) -> None:
    """Over so many pictures some classes all but tie: rounding may turn those."""
    own = dataclasses.replace(classifier(**fields), temperature=0.7)
    comparison = export(own, tmp_path / file, pictures(32), precision=dtype).comparison
    assert 0 < comparison.noise < 1.1 * NOISE[dtype] / 3


@pytest.mark.accept
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_an_honest_program_passes(dtype: str, tmp_path: Path) -> None:
    export(classifier(layers=1), tmp_path / "model.pt2", pictures(32), precision=dtype)


def test_a_backend_that_spoils_bfloat16_is_found_where_predict_would_ask_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoiled(path: Path, precision: str = "auto") -> Any:
        again = load_exported(path, "float32")
        assert precision == "auto"
        runner = again.runner
        return SimpleNamespace(
            card=again.card, precision="bfloat16", logits=lambda x: 1.5 * runner(x), read=again.read,
            preprocess=again.preprocess,
        )  # fmt: skip

    monkeypatch.setattr("vitkit.exporting.writing.load_exported", spoiled)
    with refused("exporting.logits-differ", "bfloat16", "1.5 times"):
        export(classifier(layers=1), tmp_path / "model.xml", pictures())
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
    return dataclasses.replace(Card.of(classifier(), "float32"), **fields)


def logits(*rows: list[float]) -> Tensor:
    return torch.tensor(rows)


def test_the_verdict_allows_rounding_and_nothing_more() -> None:
    half = card(dtype="float16")
    ours = logits(*[[5.0, 0, 0, 0, 0, 0, float(i % 3)] for i in range(200)])
    theirs = ours.clone()
    assert compare(ours, theirs, card()).faults() == []
    theirs[0, 1] += 0.01  # more than rounding in float32
    assert compare(ours, theirs, card()).faults() != []
    assert compare(ours, theirs, half).faults() == []
    close = logits(*[[5.0, 4.9, 0, 0, 0, 0, 0]] * 200)
    for turned, faults in ((1, 0), (2, 1)):  # of 200 whose first two classes all but tie
        flipped = close.clone()
        flipped[:turned, 1] = 5.002
        found = compare(close, flipped, half)
        assert (found.agreement, len(found.faults())) == (1 - turned / 200, faults)
    theirs = ours.clone()
    theirs[7] = theirs[7].roll(1)  # one image of all
    assert compare(ours, theirs, half).faults() != []
    nothing = torch.zeros(3, 7)
    assert compare(nothing, nothing, card()).faults() == []
    theirs = nothing.clone()
    theirs[1, 2] = 1.0
    assert compare(nothing, theirs, card()).faults() != []
    nan = nothing + torch.nan
    assert compare(nan, nan, card()).faults() != [] and compare(nan, nothing, card()).faults() != []
    for other in (nan, torch.zeros(3, 6)):
        with refused("exporting.logits-differ"):
            compare(nothing, other, card())


@settings(max_examples=50)
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
    for wrong in (1.5 * rounded, 0.67 * rounded, 1.05 * rounded, rounded + spread / 2):
        assert compare(ours, wrong, own).faults() != []
    first = rounded.clone()
    first[:, 0] += spread
    assert compare(ours, first, own).faults() != []


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
    from vitkit.inference.backends import graphs

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
