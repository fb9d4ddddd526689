"""A .tflite file answers as the model does, and only files of vitkit reach LiteRT."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refusals import refused
from tiny import build, images, largest_difference
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.errors import VitkitError
from vitkit.exporting import Card
from vitkit.exporting.formats import INT8, Storage
from vitkit.exporting.litert_format import convert, open_file, save
from vitkit.model.build import with_features

pytest.importorskip("litert_torch")
flatbuffers = pytest.importorskip("flatbuffers")
schema = pytest.importorskip("ai_edge_litert.schema_py_generated")

MODEL = build(layers=2)
KEPT = ("model.patch_embed.linear", "model.blocks.1.mlp.fc1", "model.head")
CARD = Card.from_classifier(Classifier(MODEL, tuple("abcdefg"), Preprocess(size=(12, 16))), "float32").to_json()


@pytest.fixture(scope="module")
def converted() -> bytes:
    content: bytes = convert(with_features(MODEL), Storage())
    return content


@pytest.fixture
def path(converted: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "model.tflite"
    save(converted, path, CARD)
    return path


def weights(content: bytes) -> list[Any]:
    """The weights of linear layers, in the order in which they are computed."""
    graph = schema.ModelT.InitFromPackedBuf(content).subgraphs[0]
    codes = schema.ModelT.InitFromPackedBuf(content).operatorCodes
    layers = [o for o in graph.operators if codes[o.opcodeIndex].builtinCode == schema.BuiltinOperator.FULLY_CONNECTED]
    return [graph.tensors[layer.inputs[1]] for layer in layers]


def test_a_file_answers_as_the_model_does_and_reveals_nothing_else(path: Path) -> None:
    runner, card = open_file(path, "auto")
    assert Card.from_json(card, path).classes == tuple("abcdefg")
    assert (runner.backend, runner.precision, runner.batch) == ("litert", "float32", 1)
    expected = with_features(MODEL)(images(3))
    assert runner.outputs == expected.shape[1] == 7 + 32
    assert largest_difference(runner(images(3)), expected) < 1e-4
    with refused("inference.precision-unsupported"):
        open_file(path, "bfloat16")
    content = path.read_bytes()
    names = {tensor.name for tensor in schema.ModelT.InitFromPackedBuf(content).subgraphs[0].tensors}
    assert names - {None, b""} == {b"features", b"images", b"logits"}
    assert b"vitkit.model" not in content and b".py" not in content


def test_int8_is_smaller_and_close_and_keeps_layers(converted: bytes, tmp_path: Path) -> None:
    quantised = convert(MODEL, Storage(INT8, keep=KEPT))
    assert len(quantised) < 0.7 * len(converted)
    save(quantised, tmp_path / "model.tflite", CARD)
    logits, expected = open_file(tmp_path / "model.tflite", "auto")[0](images(3)), MODEL(images(3))
    assert 0 < largest_difference(logits, expected) < 0.05 * expected.abs().max()
    layers = weights(quantised)
    names = [tensor.name.decode() for tensor in layers if tensor.type == schema.TensorType.FLOAT32]
    assert [name.rpartition("_")[2].partition(";")[0] for name in names] == ["linear", "fc1", "head"]
    assert "Block_1/" in names[1]
    assert {tensor.type for tensor in layers} == {schema.TensorType.FLOAT32, schema.TensorType.INT8}


def refusal(path: Path) -> str:
    with pytest.raises(VitkitError) as caught:
        open_file(path, "auto")
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    return caught.value.code


def test_a_damaged_file_never_reaches_the_runtime(
    converted: bytes, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitkit.exporting.litert_format.from_file", lambda *_: pytest.fail("it was opened"))
    content, chance = path.read_bytes(), random.Random(0)
    for other in (b"", b"\xff\xff\xff\xffTFL3 and more", converted):  # without a card
        path.write_bytes(other)
        assert refusal(path) in ("exporting.file-foreign", "exporting.file-damaged"), other
    for _ in range(100):
        place = chance.randrange(len(content))
        path.write_bytes(content[:place])
        refusal(path)
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :])
        refusal(path)


def use(number: int, name: str | None = None) -> Callable[[Any], None]:
    """Replace the first operation."""

    def change(model: Any) -> None:
        model.operatorCodes[0].builtinCode, model.operatorCodes[0].customCode = number, name

    return change


CHANGES: dict[str, Callable[[Any], None]] = {
    "an operation of others": use(schema.BuiltinOperator.CUSTOM, "theirs"),
    "a loop": use(schema.BuiltinOperator.WHILE),
    "an unknown operation": use(9999),
    "a second graph": lambda model: model.subgraphs.append(model.subgraphs[0]),
    "weights behind the model": lambda model: setattr(model.buffers[3], "offset", 1000),
    "weights of another file": lambda model: setattr(model, "externalBuffers", [schema.ExternalBufferT()]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_vitkit_does_not_write_is_refused(change: Callable[[Any], None], path: Path) -> None:
    model, builder = schema.ModelT.InitFromPackedBuf(path.read_bytes()), flatbuffers.Builder(1024)
    change(model)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    path.write_bytes(bytes(builder.Output()))
    assert refusal(path) == "exporting.file-foreign"
