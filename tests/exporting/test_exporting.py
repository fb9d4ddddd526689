"""An exported file answers as the model does, or is not there."""

import dataclasses
import itertools
import math
import shutil
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
def test_a_file_brings_what_prediction_needs(exported: Path, model: Path, file: str, tmp_path: Path) -> None:
    again, own = load_exported(exported / file, "float32"), load(model)
    assert (again.classes, again.preprocess, again.temperature) == (own.classes, own.preprocess, own.temperature)
    path = photos.save(photos.noise(50, 40), tmp_path / "photo.png")
    found, expected = next(again.predict(path)), next(own.predict(path))
    assert found.label == expected.label
    assert found.confidence == pytest.approx(expected.confidence, abs=1e-5)
    assert repr(again) == f"Exported({str(exported / file)!r}, 7 classes)"


@pytest.mark.parametrize("file", FILES)
def test_a_file_has_no_model_to_look_into(exported: Path, file: str, tmp_path: Path) -> None:
    again = load_exported(exported / file, "float32")
    path = photos.save(photos.noise(), tmp_path / "photo.png")
    for ask in (
        lambda: again.model,
        lambda: again.explain(path),
        lambda: list(again.embed([path])),
        lambda: again.save(tmp_path / "folder"),
    ):
        with pytest.raises(VitkitError, match=r"is an exported file, which can only predict"):
            ask()


def test_a_file_runs_by_its_own_backend(exported: Path) -> None:
    again = load_exported(exported / "model.xml", "float32")
    assert again.use("openvino", "float32") is again
    with pytest.raises(VitkitError, match="runs by the backend openvino, not eager"):
        again.use("eager")
    with pytest.raises(VitkitError, match="computes in float32"):
        load_exported(exported / "model.onnx").use(precision="bfloat16")


@pytest.mark.parametrize("file", FILES)
def test_a_fixed_batch_takes_any_number_one_by_one(file: str, tmp_path: Path) -> None:
    own = classifier(layers=1)
    export(own, tmp_path / file, pictures(3), batch=1)
    again = load_exported(tmp_path / file, "float32")
    assert again.runner.batch == 1  # type: ignore[attr-defined]
    assert largest_difference(again.logits(images(3)), own.logits(images(3))) < 1e-4


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


def test_a_model_without_a_head_has_nothing_to_export(tmp_path: Path) -> None:
    own = Classifier(build(num_classes=0), (), Preprocess(size=(12, 16)))
    with pytest.raises(VitkitError, match="the model has no head"):
        export(own, tmp_path / "model.onnx", pictures())
    assert everything(tmp_path) == []


# --- What must not pass -----------------------------------------------------------------------------


@torch.no_grad()
def perturb(model: VisionTransformer) -> None:
    model.blocks[1].mlp.fc1.weight[3, 5] += 0.5  # type: ignore[index, operator, union-attr]


@torch.no_grad()
def swap(model: VisionTransformer) -> None:
    model.head.weight[[0, 1]] = model.head.weight[[1, 0]]  # type: ignore[union-attr]


@torch.no_grad()
def spoil(model: VisionTransformer) -> None:
    model.head.bias[2] = float("nan")  # type: ignore[union-attr]


def other_mean(card: str) -> str:
    assert "[0.5, 0.5, 0.5]" in card
    return card.replace("[0.5, 0.5, 0.5]", "[0.485, 0.456, 0.406]", 1)


def other_order(card: str) -> str:
    return card.replace('"a", "b"', '"b", "a"')


def other_temperature(card: str) -> str:
    return card.replace('"temperature": 1.0', '"temperature": 1.01')


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
    "a weight": (in_model(perturb), "does not predict as the model does"),
    "two classes": (in_model(swap), "does not predict as the model does"),
    "not a number": (in_model(spoil), "logits that are not finite"),
    "mean": (in_card(other_mean), "the preprocess in the file differs from the model's"),
    "names": (in_card(other_order), "the classes in the file differs from the model's"),
    "temperature": (in_card(other_temperature), "the temperature in the file differs from the model's"),
}


@pytest.mark.parametrize(  # tracing for torch takes its time, and what compares is the same
    ("to", "name"),
    [
        *((to, name) for to in ("onnx", "openvino") for name in CHANGES),
        ("torch", "mean"),
        ("executorch", "two classes"),
    ],
)
def test_a_broken_export_is_refused_and_leaves_nothing(
    to: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, (change, complaint) = import_module(FORMATS[to].module), CHANGES[name]
    change(monkeypatch, home)
    with pytest.raises(Refused, match=complaint):
        export(classifier(layers=2), tmp_path / f"model{FORMATS[to].suffix}", pictures())
    assert everything(tmp_path) == []


@pytest.mark.parametrize(
    ("to", "dtype", "name"),
    [
        *(
            pytest.param(*case, marks=() if number % 3 == 0 else pytest.mark.accept)
            for number, case in enumerate(
                itertools.product(["onnx", "openvino"], ["float32", "float16", "bfloat16"], MISSCALED)
            )
        ),
        ("torch", "bfloat16", "1.5 times"),
        pytest.param("torch", "float16", "one class shifted", marks=pytest.mark.accept),
    ],
)
def test_logits_of_another_scale_are_refused_in_every_precision(
    to: str, dtype: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = import_module(FORMATS[to].module)
    in_model(MISSCALED[name])(monkeypatch, home)
    with pytest.raises(Refused, match="does not predict as the model does"):
        export(classifier(layers=1), tmp_path / f"model{FORMATS[to].suffix}", pictures(), precision=dtype)
    assert everything(tmp_path) == []


@pytest.mark.parametrize(("file", "dtype", "fields"), alternating(*itertools.product(FILES, ["float16", "bfloat16"])))
def test_honest_rounding_passes_of_every_family(file: str, dtype: str, fields: Any, tmp_path: Path) -> None:
    """Over so many pictures some classes all but tie: rounding may turn those."""
    own = dataclasses.replace(classifier(**fields), temperature=0.7)
    comparison = export(own, tmp_path / file, pictures(32), precision=dtype).comparison
    assert 0 < comparison.noise < 1.1 * NOISE[dtype] / 3


@pytest.mark.parametrize("dtype", some(["float16", "bfloat16"], ["bfloat16"]))
def test_an_honest_program_passes(dtype: str, tmp_path: Path) -> None:
    export(classifier(layers=1), tmp_path / "model.pt2", pictures(32), precision=dtype)


def test_an_backend_that_spoils_bfloat16_is_found_where_predict_would_ask_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoiled(path: Path, precision: str = "auto") -> Any:
        again = load_exported(path, "float32")
        if precision != "auto":
            return again
        runner = again.runner
        return SimpleNamespace(
            card=again.card, precision="bfloat16", logits=lambda x: 1.5 * runner(x), read=again.read,
            preprocess=again.preprocess,
        )  # fmt: skip

    monkeypatch.setattr("vitkit.exporting.writing.load_exported", spoiled)
    with pytest.raises(Refused, match=r"in bfloat16, which `vitkit predict` would use here.*logits are 1.5 times"):
        export(classifier(layers=1), tmp_path / "model.xml", pictures())
    assert everything(tmp_path) == []


def test_what_was_there_stays_when_the_new_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(classifier(), tmp_path / "model.xml", pictures())
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    home = import_module(FORMATS["openvino"].module)
    in_model(swap)(monkeypatch, home)
    with pytest.raises(Refused):
        export(classifier(), tmp_path / "model.xml", pictures())
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def card(**fields: Any) -> Card:
    return dataclasses.replace(Card.of(classifier(), "float32"), **fields)


def logits(*rows: list[float]) -> Tensor:
    return torch.tensor(rows)


def test_the_verdict() -> None:
    ours = logits(*[[5.0, 0, 0, 0, 0, 0, float(i % 3)] for i in range(200)])
    theirs = ours.clone()
    assert compare(ours, theirs, card()).faults() == []
    theirs[0, 1] += 0.01  # more than rounding
    assert compare(ours, theirs, card()).faults() == ["logits differ by up to 0.01, 0.20% of the largest"]
    assert compare(ours, theirs, card(dtype="float16")).faults() == []
    close = logits(*[[5.0, 4.9, 0, 0, 0, 0, 0]] * 200)
    flipped = close.clone()
    flipped[:1, 1] = 5.002
    assert compare(close, flipped, card(dtype="float16")).agreement == 0.995
    assert compare(close, flipped, card(dtype="float16")).faults() == []
    flipped[:2, 1] = 5.002
    (fault,) = compare(close, flipped, card(dtype="float16")).faults()
    assert fault == "top-1 agreement 99.00% is below 99.5%"
    theirs = ours.clone()
    theirs[7] = theirs[7].roll(1)  # one image of all
    assert compare(ours, theirs, card(dtype="float16")).faults()[0].startswith("cosine 0.")
    nothing = torch.zeros(3, 7)
    assert compare(nothing, nothing, card()).faults() == []
    theirs = nothing.clone()
    theirs[1, 2] = 1.0
    assert compare(nothing, theirs, card()).faults()[0].startswith("cosine 0.")
    assert compare(nothing + torch.nan, nothing, card()).faults()


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
    (fault,) = [fault for fault in found.faults() if not fault.startswith(("cosine", "top-1"))]
    assert fault.startswith(f"probabilities differ by {found.shift:.2g} on average, where rounding to bfloat16")


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


def test_ties_within_rounding_are_no_disagreement() -> None:
    ours = logits([1.0, 1.0 + 1e-6, -3, 0, 0, 0, 0], [4.0, 1, 0, 0, 0, 0, 0])
    theirs = logits([1.0 + 1e-6, 1.0, -3, 0, 0, 0, 0], [4.0, 1, 0, 0, 0, 0, 0])
    assert compare(ours, theirs, card()).agreement == 1
    theirs[1, 1] = 5
    assert compare(ours, theirs, card()).agreement == 0


def test_decisions_for_each_class_are_compared_of_multi_label_models() -> None:
    several = card(thresholds=(0.5,) * 7)
    ours = logits([3.0, -3, 1, -1, 2, -2, 1e-6])
    theirs = ours.clone()
    theirs[0, 6] = -1e-6  # on the threshold: no decision that rounding could not turn
    assert compare(ours, theirs, several).agreement == 1
    theirs[0, 0] = -1
    assert compare(ours, theirs, several).agreement == pytest.approx(5 / 6)


def test_numbers_that_are_not_finite_are_never_alike() -> None:
    ours = logits([1.0, 2, 3, 4, 5, 6, 7])
    with pytest.raises(Refused, match="not finite"):
        compare(ours, ours * float("nan"), card())
    both = compare(ours * float("nan"), ours * float("nan"), card())
    assert both.faults() != []
    with pytest.raises(Refused, match=r"logits of shape \(1, 6\) instead of \(1, 7\)"):
        compare(ours, ours[:, :6], card())


# --- Files that are not what they seem --------------------------------------------------------------


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
    with pytest.raises(VitkitError, match=r"has no weights: there is no file .*model.bin"):
        load_exported(tmp_path / "model.xml")
    (tmp_path / "model.bin").write_bytes((exported / "model.bin").read_bytes()[:1000])
    with pytest.raises(VitkitError, match=r"its .bin file is too short, so it belongs to another export"):
        load_exported(tmp_path / "model.xml")


def test_an_earlier_export_survives_a_file_that_cannot_be_replaced(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(exported, tmp_path, dirs_exist_ok=True)
    before, replace = {path: path.read_bytes() for path in tmp_path.iterdir()}, Path.replace

    def failing(path: Path, target: Path) -> Path:
        if target == tmp_path / "model.xml":
            raise PermissionError(13, "Permission denied", str(target))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(PermissionError):
        export(classifier(), tmp_path / "model.xml", pictures(), precision="float16")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_file_that_belongs_to_no_export_is_kept(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"weights of another library")
    with pytest.raises(VitkitError, match=r"pytorch_model.bin exists and does not belong to an exported"):
        export(classifier(), tmp_path / "pytorch_model.xml", pictures(), force=True)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"weights of another library"]


def test_other_files_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match=r"must end in .onnx, .xml, .pte or .tflite"):
        load_exported(tmp_path / "model.pth")
    with pytest.raises(VitkitError, match="no such file"):
        load_exported(tmp_path / "model.onnx")


def test_an_onnx_file_of_others_is_not_guessed_at(tmp_path: Path) -> None:
    from vitkit.inference.backends import graphs

    (tmp_path / "theirs.onnx").write_bytes(graphs.to_onnx(build()).SerializeToString())
    with pytest.raises(VitkitError, match="is not an ONNX file written by vitkit: it does not state its classes"):
        load_exported(tmp_path / "theirs.onnx")


def test_a_file_of_a_later_version_says_so(tmp_path: Path) -> None:
    text = card().to_json().replace('"format_version": 1', '"format_version": 2')
    with pytest.raises(VitkitError, match=r"was exported by vitkit .*: upgrade vitkit to read it"):
        Card.from_json(text, tmp_path)
