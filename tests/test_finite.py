"""A number that is not finite is no answer, no weight and no JSON."""

import ast
import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import foreign
import photos
import runs
from cli.conftest import vitkit as command
from exporting.ready import exported
from refusals import refused
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess, read_source
from vitkit.errors import NOT_FINITE
from vitkit.evaluation import evaluate
from vitkit.exporting import card as seal
from vitkit.model_folder import WEIGHTS
from vitkit.system import to_json
from vitkit.weights import load

__all__ = ["command"]

SOURCE = Path(__file__).parents[1] / "src" / "vitkit"
HUGE = 3e38  # a float32 number whose sums are none


def classifier(huge: str | None = None, classes: tuple[str, ...] = ("a", "b", "c"), **fields: Any) -> Classifier:
    """A tiny one; with a tensor of `huge` numbers it has finite weights and answers that are not."""
    model = build(num_classes=len(classes))
    if huge is not None:
        with torch.no_grad():
            model.get_parameter(huge).fill_(HUGE)
    return Classifier(model, classes, Preprocess(size=(12, 16)), **fields)


def spoil(one: Classifier, value: float, name: str = "head.bias") -> Classifier:
    with torch.no_grad():
        one.model.get_parameter(name).flatten()[1] = value
    return one


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    return photos.save(photos.noise(16, 12), tmp_path / "one.png")


@pytest.mark.parametrize("thresholds", [None, (0.5, 0.5, 0.5)])
def test_an_answer_that_is_not_finite_is_an_error(picture: Path, thresholds: Any) -> None:
    for value in (math.nan, math.inf, -math.inf):
        (found,) = spoil(classifier(thresholds=thresholds), value).predict(picture)
        assert (found.label, found.confidence, found.ranking, found.error) == (None, None, (), NOT_FINITE)


@pytest.mark.parametrize("backend", ["eager bfloat16", "openvino float32"])
def test_an_answer_of_another_backend_that_is_not_finite_is_an_error(picture: Path, backend: str) -> None:
    one = classifier("head.weight").use(*backend.split())
    assert [found.error for found in one.predict([picture] * 3)] == [NOT_FINITE] * 3


def test_features_that_are_not_finite_are_none_and_what_has_no_answer_is_not_explained(picture: Path) -> None:
    assert list(spoil(classifier(), math.nan, "norm.bias").embed([picture])) == [(str(picture), NOT_FINITE)]
    with refused("explanation.output-not-finite"):
        spoil(classifier(), math.nan).explain(picture)


@pytest.mark.parametrize("thresholds", [None, (0.5, 0.5, 0.5)])
def test_figures_are_not_of_the_rest_alone(tmp_path: Path, thresholds: Any) -> None:
    photos.folder(tmp_path / "data", dict.fromkeys("abc", 2))
    with refused("evaluation.output-not-finite", "6 of 6 images"):
        evaluate(classifier("head.weight", thresholds=thresholds), read_source(tmp_path / "data"), "all")
    with refused("classifier.field-invalid", "temperature"):
        classifier(temperature=math.inf)


def test_weights_that_are_not_finite_are_refused_by_name(tmp_path: Path) -> None:
    for value in (math.nan, -math.inf):
        spoil(classifier(), value, "blocks.1.attn.qkv.weight").save(tmp_path)
        with refused("weights.values-not-finite", "blocks.1.attn.qkv.weight has 1 "):
            load(tmp_path)


def test_and_in_a_foreign_file_by_the_name_they_have_there(tmp_path: Path) -> None:
    foreign.save_folder(foreign.make("HF ViT"), tmp_path)
    state = load_file(tmp_path / WEIGHTS)
    (name,) = (name for name in state if "layer.1" in name and name.endswith("key.bias"))
    state[name][3] = math.nan
    save_file(state, tmp_path / WEIGHTS, {"format": "pt"})
    with refused("weights.values-not-finite", "layer.1.attention.attention.key.bias"):
        load(tmp_path)


@pytest.mark.parametrize(("suffix", "dtype"), [(".pth", torch.float16), (".safetensors", torch.float64)])
def test_weights_too_large_for_their_precision_are_refused(tmp_path: Path, suffix: str, dtype: torch.dtype) -> None:
    state = {name: tensor.to(torch.float64) for name, tensor in build().state_dict().items()}
    state["norm.weight"][0] = 70_000.0 if dtype == torch.float16 else 1e300  # for half; for single, as which we read
    state = {name: tensor.to(dtype) for name, tensor in state.items()}
    file = tmp_path / f"model{suffix}"
    save_file(state, file) if suffix == ".safetensors" else torch.save(state, file)
    with refused("weights.values-not-finite", "norm.weight has 1 "):
        load(file, heads=4, image_size=(12, 16))


_TREES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
)


def refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def plain(value: Any) -> Any:
    """What a reader should find."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return {key: plain(item) for key, item in value.items()} if isinstance(value, dict) else value


@settings(max_examples=50)
@given(_TREES, st.sampled_from([None, 2]))
@example({"caf\udce9 \N{PILE OF POO}": math.nan}, 2)
def test_what_is_written_every_reader_takes(value: Any, indent: int | None) -> None:
    text = to_json(value, indent).encode("utf-8")
    assert json.loads(text, parse_constant=refuse) == plain(value)


def test_one_function_makes_json() -> None:
    callers = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if "json.dump" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and node.attr in ("dumps", "dump") and ast.unparse(node.value) == "json"
    }
    # Hashes of what split.json holds and of what a plan was measured for; what was read a moment ago; an argument;
    # what a page shows, which must be finite; and a refusal in words.
    known = "data/split_file inference/trust inference/backends/torch weights/checkpoint text/pages serving/guard"
    assert callers == {f"{name}.py" for name in f"system/files {known} training/finalize".split()}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    classifier("head.weight", ("blue", "green", "red")).save(tmp_path / "model")
    return tmp_path / "model"


def test_predict_writes_a_row_with_the_reason(command: Any, model: Path, picture: Path) -> None:
    for suffix in ("csv", "jsonl"):
        out = picture.with_name(f"out.{suffix}")
        assert command("predict", model, picture, "-o", out, "--reject", 0.5, "--top", 2).code == 1  # every row failed
        text = out.read_text(encoding="utf-8")
        row = next(csv.DictReader(io.StringIO(text))) if suffix == "csv" else json.loads(text)
        assert (row["path"], row["label"] or None, row["confidence"] or None) == (str(picture), None, None)
        assert row["error"] == NOT_FINITE
        assert "nan" not in text.casefold().replace("nan or", "")


def test_eval_explain_and_embed_say_it(command: Any, model: Path, tmp_path: Path, picture: Path) -> None:
    data = runs.photos(tmp_path / "photos")
    outcome = command("eval", model, data, "--json")
    assert outcome.code == 2 and outcome.out == "" and "not finite" in outcome.err
    outcome = command("explain", model, picture, "-o", tmp_path / "explained")
    assert outcome.code == 1 and "(1 unreadable)" in outcome.out
    classifier("norm.weight").save(tmp_path / "spoilt")
    outcome = command("embed", tmp_path / "spoilt", picture, "-o", tmp_path / "features.npz")
    assert outcome.code == 2 and NOT_FINITE in outcome.err


def test_an_exported_file_with_a_spoilt_weight(command: Any, tmp_path: Path, picture: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    stored, file = onnx.load(exported(".onnx")), tmp_path / "model.onnx"
    for weight in stored.graph.initializer:
        values = onnx.numpy_helper.to_array(weight)
        if values.dtype == np.float32 and values.size > 1:
            weight.CopyFrom(onnx.numpy_helper.from_array(np.full_like(values, np.nan), weight.name))
    file.write_bytes(seal.with_checksum(stored.SerializeToString()))
    outcome = command("predict", file, picture)
    assert outcome.code == 1 and NOT_FINITE in outcome.out
