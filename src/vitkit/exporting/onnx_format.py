"""Write an ONNX file with its card, and open it with ONNX Runtime, without PyTorch.

Before the runtime opens a file, vitkit checks that the file contains only what vitkit writes. In general, an ONNX file
can refer to other files for its weights, contain nested graphs, and use custom operations; files of vitkit do none of
this. An ONNX file is a protocol buffer: a sequence of numbered fields, whose values may again be sequences of numbered
fields. A file with a field that vitkit does not write is refused.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit.errors import VitkitError
from vitkit.exporting.card import CARD, check_checksum, with_checksum
from vitkit.inference.backends.graph_runner import GraphRunner
from vitkit.inference.backends.onnx import from_file
from vitkit.system.protobuf import fields_of

if TYPE_CHECKING:
    from vitkit.exporting.formats import Storage
    from vitkit.model.build import Model


_OPERATIONS = frozenset(  # none contains a graph or reads anything but its inputs
    b"Add AveragePool BatchNormalization Cast Clip Concat ConstantOfShape Conv Cos CumSum DequantizeLinear Div Einsum "
    b"Equal Erf Expand Flatten Gather GatherND Gelu Gemm GlobalAveragePool HardSigmoid HardSwish Identity "
    b"InstanceNormalization LayerNormalization LeakyRelu MatMul MaxPool Mul Not Pad Pow QuantizeLinear Range "
    b"Reciprocal ReduceL2 ReduceMean ReduceSum Relu Reshape ScatterND Shape Sigmoid Sin Slice Softmax Split Sqrt "
    b"Squeeze Sub Tanh Transpose Unsqueeze Where".split()
)
# The numbers of the allowed fields of each kind of message in onnx.proto. The value is the dictionary of a nested
# message, the name of a check in `_screen`, or None for any content.
_TENSOR: dict[int, Any] = {1: None, 2: None, 8: None, 9: None}  # dims, data_type, name, raw_data
_ATTRIBUTE: dict[int, Any] = {1: None, 2: None, 3: None, 4: None, 7: None, 8: None, 20: None}
_NODE: dict[int, Any] = {1: None, 2: None, 3: None, 4: "operation", 5: _ATTRIBUTE}
_DIMENSION: dict[int, Any] = {1: None, 2: None}
_VALUE: dict[int, Any] = {1: None, 2: {1: {1: None, 2: {1: _DIMENSION}}}}
_GRAPH: dict[int, Any] = {1: _NODE, 2: None, 5: _TENSOR, 11: _VALUE, 12: _VALUE}
_MODEL: dict[int, Any] = {1: None, 2: None, 3: None, 7: _GRAPH, 8: {1: "domain", 2: None}, 14: "metadata"}


def read_card(path: Path) -> str:
    """Return the card of a file, after checking that the file contains only a graph written by vitkit."""
    content = path.read_bytes()
    cards: list[memoryview] = []
    try:
        _screen(memoryview(content), _MODEL, cards)
        if len(cards) != 1:
            raise VitkitError("exporting.file-foreign", "it does not state its classes and preprocessing")
        text = str(cards[0], "utf-8")
    except UnicodeDecodeError as error:
        raise VitkitError("exporting.file-damaged", f"{path} is damaged: {error}; export it again") from error
    except VitkitError as error:
        reason = f"{path} is not an ONNX file written by vitkit: {error}; write one with `vitkit export`"
        raise VitkitError(error.code, reason) from error
    check_checksum(path, content, start=content.rindex(cards[0]))
    return text


def _screen(message: memoryview, allowed: dict[int, Any], cards: list[memoryview]) -> None:
    """Check that a message has only allowed fields, and append the cards that it contains to `cards`."""
    for number, value in fields_of(message):
        if number not in allowed:
            raise VitkitError("exporting.file-foreign", f"it has a field {number}, which vitkit does not write")
        kind = allowed[number]
        if kind is None:
            continue
        if not isinstance(value, memoryview):
            raise VitkitError("exporting.file-foreign", f"its field {number} has the wrong type")
        if isinstance(kind, dict):
            _screen(value, kind, cards)
        elif kind == "operation" and bytes(value) not in _OPERATIONS:
            reason = f"it has the operation {str(bytes(value)[:40])[1:]}, which vitkit does not write"
            raise VitkitError("exporting.file-foreign", reason)
        elif kind == "domain" and len(value):
            reason = f"it has operations of the domain {str(bytes(value)[:40])[1:]}, not of ONNX alone"
            raise VitkitError("exporting.file-foreign", reason)
        elif kind == "metadata":
            entry = dict(fields_of(value))  # a name (1) and a text (2)
            if set(entry) != {1, 2} or entry[1] is None or entry[2] is None:
                raise VitkitError("exporting.file-foreign", "it has metadata that vitkit does not write")
            if bytes(entry[1]) != CARD.encode():
                raise VitkitError("exporting.file-foreign", "it has metadata that vitkit does not write")
            cards.append(entry[2])


def convert(model: Model, storage: Storage) -> Any:
    """Convert a model; see `Format.convert`."""
    from vitkit.exporting.quantization import floating_dtype, quantize
    from vitkit.inference.backends.graphs import to_onnx

    return to_onnx(model, storage.batch, floating_dtype(storage), partial(quantize, storage), storage.pixels)


def save(graph: Any, path: Path, card: str) -> None:
    """Write a converted model; see `Format.save`."""
    del graph.metadata_props[:]
    entry = graph.metadata_props.add()
    entry.key = CARD
    entry.value = card
    content = graph.SerializeToString()
    path.write_bytes(with_checksum(content, start=content.rindex(card.encode())))


def open_file(path: Path, precision: str) -> tuple[GraphRunner, str]:
    """Open a model; see `Format.open`."""
    card = read_card(path)
    return from_file(path, precision), card
