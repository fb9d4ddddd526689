"""Write a file for LiteRT (.tflite), the runtime of Android that was TensorFlow Lite, and open it without PyTorch.

The card is metadata of the model under the name `vitkit`, so an app reads the class names and the preprocessing from
the same file. Before the runtime opens a file, vitkit checks the checksum, and that the file has a single graph whose
operations are among those that vitkit writes. In general, a .tflite file can refer to other files for its weights,
contain loops, and use custom operations; files of vitkit do none of this.
"""

from __future__ import annotations

import io
import os
import re
import struct
from contextlib import redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitkit.errors import VitkitError
from vitkit.exporting.card import CARD, check_checksum, with_checksum
from vitkit.exporting.formats import INT8
from vitkit.inference.backends.graph_runner import GraphRunner, import_runtime, output_names
from vitkit.inference.backends.litert import from_file

if TYPE_CHECKING:
    from torch import nn

    from vitkit.exporting.formats import Storage
    from vitkit.model.build import Model

_IDENTIFIER = b"TFL3"  # at byte 4 of every .tflite file
_ERRORS = "2"  # the log level of TensorFlow at which only errors are printed
_OPERATIONS = frozenset(  # none calls another graph or reads anything but its inputs
    b"ADD BATCH_MATMUL BROADCAST_TO CAST CONCATENATION CONV_2D DEPTHWISE_CONV_2D DIV EQUAL FULLY_CONNECTED GELU "
    b"HARD_SWISH LOGISTIC MAXIMUM MAX_POOL_2D MEAN MUL NOT_EQUAL PAD PADV2 POW RESHAPE REVERSE_V2 RSQRT SELECT "
    b"SELECT_V2 SLICE SOFTMAX SQUARED_DIFFERENCE STRIDED_SLICE SUB SUM TANH TRANSPOSE".split()
)


def _schema() -> Any:
    return import_runtime("ai_edge_litert.schema_py_generated", "LiteRT", "litert")


def read_card(path: Path) -> str:
    """Return the card of a file, after checking that the file contains only a graph of operations of vitkit."""
    schema = _schema()
    content = path.read_bytes()
    try:
        if content[4:8] != _IDENTIFIER:
            raise VitkitError("exporting.file-foreign", "it is not a LiteRT model")
        model = schema.Model.GetRootAs(content)
        _screen(model, schema.BuiltinOperator)
        entries = [model.Metadata(i) for i in range(model.MetadataLength())]
        cards = [model.Buffers(entry.Buffer()).DataAsNumpy() for entry in entries if entry.Name() == CARD.encode()]
        if len(cards) != 1:
            raise VitkitError("exporting.file-foreign", "it does not state its classes and preprocessing")
        card = bytes(cards[0])
        text = card.decode()
    except VitkitError as error:
        reason = f"{path} is not a LiteRT file written by vitkit: {error}; write one with `vitkit export`"
        raise VitkitError(error.code, reason) from error
    except (AttributeError, IndexError, TypeError, ValueError, struct.error) as error:  # because offsets are wrong
        reason = f"{path} is damaged: it cannot be read as a LiteRT model; export it again"
        raise VitkitError("exporting.file-damaged", reason) from error
    before, _card, after = content.rpartition(card)
    check_checksum(path, card, before, after)  # of the card, and of all bytes before and after it
    return text


def _screen(model: Any, operators: Any) -> None:
    """Check that a model consists of one graph, contains its weights, and has only operations that vitkit writes."""
    if model.SubgraphsLength() != 1:
        raise VitkitError("exporting.file-foreign", f"it has {model.SubgraphsLength()} graphs instead of one")
    has_offsets = any(model.Buffers(i).Offset() for i in range(model.BuffersLength()))
    if has_offsets or not model.ExternalBuffersIsNone() or not model.ExternalBufferGroupsIsNone():
        raise VitkitError("exporting.file-foreign", "its weights are outside of the model")
    names = {code: name for name, code in vars(operators).items() if isinstance(code, int)}
    for i in range(model.OperatorCodesLength()):
        operation = model.OperatorCodes(i)
        # Codes above 126 did not fit into the older of the two fields. The runtime takes the larger one.
        name = names.get(max(operation.BuiltinCode(), operation.DeprecatedBuiltinCode()), "of an unknown number")
        if name.encode() not in _OPERATIONS:
            raise VitkitError("exporting.file-foreign", f"it has the operation {name}, which vitkit does not write")


def convert(model: Model, storage: Storage) -> bytes:
    """Convert a model; see `Format.convert`."""
    from vitkit.inference.backends.graphs import converter_input, converting

    module, images, *_ = converter_input(model, 1, storage.pixels)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", _ERRORS)  # read when the converter is imported
    with converting(model):
        import litert_torch

        content: bytes = litert_torch.convert(module, (images,)).model_content()
        if storage.precision != INT8:
            return content
        return _quantized(content, module, storage.keep)


def _quantized(content: bytes, module: nn.Module, keep: tuple[str, ...]) -> bytes:
    """Quantise linear layers and convolutions: weights per output channel, and the activations of an image at run time.

    The quantiser's rules select an operation by the name of its output, which may come from the activation function
    that follows. Layers are therefore identified by the names of their weights.
    """
    from ai_edge_quantizer import quantizer, recipe

    graph = _unpacked(content).subgraphs[0]
    names = [tensor.name.decode() for tensor in graph.tensors]
    rules = recipe.dynamic_wi8_afp32()
    patterns = [re.compile(_tensor_pattern(module, name)) for name in keep]
    for operation in graph.operators:
        if len(operation.inputs) < 2:
            continue  # it has no weights
        weights = names[operation.inputs[1]]
        if any(pattern.search(weights) for pattern in patterns):
            output = f"^{re.escape(names[operation.outputs[0]])};$"
            rules.append({"regex": output, "operation": "*", "algorithm_key": "no_quantize", "op_config": {}})
    with redirect_stderr(io.StringIO()):  # progress bars
        return bytes(quantizer.Quantizer(content, rules).quantize(enable_progress_report=False).quantized_model)


def _tensor_pattern(module: nn.Module, name: str) -> str:
    """Return a pattern for the names of the tensors of a layer, the submodule `name` of a module.

    The name of a tensor has the class of the module, followed by the class and the name of each submodule on the way to
    the layer. Submodules that are not called themselves, such as lists, are left out.
    """
    pattern = re.escape(_class(module))
    *containers, last = name.split(".")
    submodule = module
    for step in containers:
        submodule = submodule.get_submodule(step)
        pattern += f"({re.escape(f'/{_class(submodule)}_{step}')})?"
    layer = submodule.get_submodule(last)
    pattern += re.escape(f"/{_class(layer)}_{last}")
    return rf"(^|;){pattern}(;|$)"


def _class(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _unpacked(content: bytes) -> Any:
    """Return a file as objects. Weights that the quantiser stored at the end of the file become part of its buffers."""
    model = _schema().ModelT.InitFromPackedBuf(content)
    for buffer in model.buffers:
        if buffer.offset:
            buffer.data = np.frombuffer(content, np.uint8, buffer.size, buffer.offset)
            buffer.offset = buffer.size = 0
    return model


def save(graph: bytes, path: Path, card: str) -> None:
    """Write a converted model; see `Format.save`. Names of inner tensors, which reveal Python classes, are removed."""
    import flatbuffers

    schema = _schema()
    model = _unpacked(graph)
    tensors = model.subgraphs[0].tensors
    for tensor in tensors:
        tensor.name = None
    signature = model.signatureDefs[0]
    (images,) = signature.inputs
    outputs = sorted(signature.outputs, key=lambda output: output.name)
    takes_pixels = tensors[images.tensorIndex].type == schema.TensorType.UINT8
    names = ["pixels" if takes_pixels else "images", *output_names(len(outputs), takes_pixels=takes_pixels)]
    for value, name in zip((images, *outputs), names, strict=True):
        value.name = name.encode()
        tensors[value.tensorIndex].name = name.encode()
    model.metadata.append(schema.MetadataT(CARD, len(model.buffers)))
    model.buffers.append(schema.BufferT(np.frombuffer(card.encode(), np.uint8)))
    builder = flatbuffers.Builder(len(graph) + len(card))
    builder.Finish(model.Pack(builder), file_identifier=_IDENTIFIER)
    before, text, after = bytes(builder.Output()).rpartition(card.encode())
    path.write_bytes(before + with_checksum(text, before, after) + after)


def open_file(path: Path, precision: str) -> tuple[GraphRunner, str]:
    """Open a model; see `Format.open`."""
    card = read_card(path)
    return from_file(path, precision), card
