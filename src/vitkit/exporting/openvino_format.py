"""Write an OpenVINO model (.xml and .bin) with its card, and open it with OpenVINO, without PyTorch.

Before the runtime opens a file, vitkit checks that the file contains only what vitkit writes. The .xml lists the
operations, their connections, and the positions of their constants in the .bin. Files of vitkit have no nested graphs,
no custom operations, no document type, and no references to files other than the .bin.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET  # safe: files with a document type, which can declare entities, are not parsed
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit.errors import VitkitError
from vitkit.exporting.card import CARD, check_checksum, with_checksum
from vitkit.inference.backends.graph_runner import GraphRunner, import_openvino
from vitkit.inference.backends.openvino import from_file

if TYPE_CHECKING:
    from vitkit.exporting.formats import Storage
    from vitkit.model.build import Model


# GatherND and ScatterNDUpdate are left out: OpenVINO does not check their indices, so a forged file could read memory.
# Roll is left out, too, as long as it is not known that its axes are checked.
_OPERATIONS = {
    "opset1": "Add AvgPool Clamp Const Convert Concat Convolution Cos Divide Equal FakeQuantize Floor Greater "
    "GroupConvolution HardSigmoid LogicalNot MatMul Maximum Minimum Mod Multiply Pad Parameter Power PReLU ReLU "
    "ReduceMean ReduceSum Reshape Result Select Sigmoid Sin Split Sqrt Squeeze Subtract Tanh Transpose "
    "Unsqueeze VariadicSplit",
    "opset3": "Broadcast CumSum ShapeOf",
    "opset4": "HSwish Range ReduceL2 Swish",
    "opset5": "BatchNormInference HSigmoid",
    "opset6": "MVN",
    "opset7": "Einsum Gelu",
    "opset8": "AdaptiveAvgPool Gather MaxPool Slice SoftMax",
    "opset12": "GroupNormalization Pad",
    "opset13": "BitwiseNot ScaledDotProductAttention",
    "opset14": "AvgPool MaxPool",
    "opset16": "AvgPool Identity",
}
_ALLOWED = frozenset((name, version) for version, names in _OPERATIONS.items() for name in names.split())
_LAYER = "net/layers/layer"
_ELEMENTS = {  # paths of the allowed elements, each with its required and its optional attributes (None for any)
    "net": ({"name", "version"}, set()),
    "net/layers": (set(), set()),
    _LAYER: ({"id", "name", "type", "version"}, set()),
    f"{_LAYER}/data": (set(), None),
    f"{_LAYER}/input": (set(), set()),
    f"{_LAYER}/output": (set(), set()),
    **dict.fromkeys((f"{_LAYER}/input/port", f"{_LAYER}/output/port"), ({"id", "precision"}, {"names"})),
    **dict.fromkeys((f"{_LAYER}/input/port/dim", f"{_LAYER}/output/port/dim"), (set(), set())),
    "net/edges": (set(), set()),
    "net/edges/edge": ({"from-layer", "from-port", "to-layer", "to-port"}, set()),
    "net/rt_info": (set(), set()),
    f"net/rt_info/{CARD}": ({"value"}, set()),
}
_WORDS = (
    "approximation_mode auto_broadcast auto_pad axis batch_dims causal destination_type dilations element_type eps "
    "eps_mode epsilon equation exclude-pad exclusive m_pythondiv max min num_groups num_splits pad_mode "
    "index_element_type keep_dims kernel levels mode normalize_variance offset output_type pads_begin pads_end "
    "reverse rounding_type shape size special_zero strides transpose_a transpose_b"
)
_DATA = frozenset(_WORDS.split())  # the allowed attributes of operations
_BEGINNING = b'<?xml version="1.0"?>\n<net '


def read_card(path: Path) -> str:
    """Return the card of a model (.xml and .bin), after checking that the files contain only a graph of vitkit."""
    weights = path.with_suffix(".bin")
    if not weights.is_file():
        raise VitkitError(
            "exporting.weights-missing",
            f"{path} has no weights: there is no file {weights}; copy it into this folder, or export the model again",
        )
    content = path.read_bytes()
    try:
        card = _screen(content, weights.stat().st_size)
    except VitkitError as error:
        reason = f"{path} is not an OpenVINO model written by vitkit: {error}; write one with `vitkit export`"
        raise VitkitError(error.code, reason) from error
    except (ET.ParseError, ValueError) as error:
        raise VitkitError("exporting.file-damaged", f"{path} is damaged: {error}; export it again") from error
    check_checksum(path, content, weights.read_bytes())
    return card


def _screen(content: bytes, weights: int) -> str:
    """Check that the graph has only known elements and operations, and return the card.

    All constants must lie within the .bin file, which has `weights` bytes.
    """
    if not content.startswith(_BEGINNING):
        raise VitkitError("exporting.file-foreign", "it does not start like a model that vitkit wrote")
    if b"<!" in content or b"<?" in content[2:]:
        reason = "its XML contains a document type, a comment or a processing instruction"
        raise VitkitError("exporting.file-foreign", reason)
    root = ET.fromstring(content.decode())  # noqa: S314  # without a document type, it declares no entities
    _check_elements(root, root.tag)
    layers = root.findall("layers/layer")
    for layer in layers:
        _check_operation(layer, weights)
    ids = {layer.get("id") for layer in layers}
    connected = set[str | None]()
    for edge in root.findall("edges/edge"):
        connected |= {edge.get("from-layer"), edge.get("to-layer")}
    if len(ids) < len(layers) or not connected <= ids:
        raise VitkitError("exporting.file-foreign", "it connects operations that it does not contain")
    cards = root.findall(f"rt_info/{CARD}")
    if len(cards) != 1:
        raise VitkitError("exporting.file-foreign", "it does not state its classes and preprocessing")
    return cards[0].attrib["value"]


def _check_operation(layer: ET.Element, weights: int) -> None:
    """Check that an operation is allowed, and that a constant lies within the .bin file, which has `weights` bytes."""
    kind, version = layer.attrib["type"], layer.attrib["version"]
    if (kind, version) not in _ALLOWED:
        raise VitkitError("exporting.file-foreign", f"it has the operation {kind[:40]!r} of {version[:40]!r}")
    elements = layer.findall("data")
    attributes = dict(elements[0].attrib) if elements else {}
    if len(elements) > 1 or not set(attributes) <= _DATA:
        reason = f"its operation {kind!r} has attributes that vitkit does not write"
        raise VitkitError("exporting.file-foreign", reason)
    if kind == "Const":
        start = int(attributes.get("offset", -1))
        size = int(attributes.get("size", -1))
        if start < 0 or size < 0 or start + size > weights:
            reason = "its .bin file is too short, so it belongs to another export"
            raise VitkitError("exporting.file-foreign", reason)


def _check_elements(element: ET.Element, path: str) -> None:
    """Check that an element at a path, and all elements in it, are allowed and have the right attributes."""
    if path not in _ELEMENTS:
        raise VitkitError("exporting.file-foreign", f"it has an element {path[:60]!r}")
    required, optional = _ELEMENTS[path]
    attributes = set(element.keys())
    has_missing = not required <= attributes
    has_unknown = optional is not None and not attributes <= required | optional
    if has_missing or has_unknown:
        reason = f"its element {path!r} has unexpected attributes: {', '.join(sorted(attributes))}"
        raise VitkitError("exporting.file-foreign", reason)
    for child in element:
        _check_elements(child, f"{path}/{child.tag}")


def convert(model: Model, storage: Storage) -> Any:
    """Convert a model; see `Format.convert`."""
    from vitkit.exporting.quantization import floating_dtype, quantize
    from vitkit.inference.backends.graphs import to_openvino

    return to_openvino(model, storage.batch, floating_dtype(storage), partial(quantize, storage), storage.pixels)


def save(graph: Any, path: Path, card: str) -> None:
    """Write a converted model; see `Format.save`."""
    graph.set_rt_info(card, [CARD])
    try:
        import_openvino().serialize(graph, path, path.with_suffix(".bin"))
    except RuntimeError as error:  # OpenVINO reports a full disk in this way
        raise OSError(f"cannot write {path}: is the disk full?") from error
    path.write_bytes(with_checksum(path.read_bytes(), path.with_suffix(".bin").read_bytes()))


def open_file(path: Path, precision: str) -> tuple[GraphRunner, str]:
    """Open a model; see `Format.open`."""
    card = read_card(path)
    return from_file(path, precision), card
