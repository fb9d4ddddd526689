"""The graph of another library's network, traced by PyTorch's exporter and written down again in what vitkit writes.

The exporter's file holds more than the graph: where each operation comes from, shapes of what lies between. Only
operations, constants, the images and the logits are kept, so that a file says nothing of the machine it was made on,
and the reader of files need let through no more.
"""

from __future__ import annotations

import copy
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

import torch

from vitkit.errors import VitkitError, first_line
from vitkit.inference.backends.onnx_graph import OPSET, as_model, check_size
from vitkit.inference.backends.openvino_package import import_openvino
from vitkit.model.network import Network


def to_onnx(model: Network, batch: int | None = None, dtype: torch.dtype = torch.float32) -> Any:
    """The network as an `onnx.ModelProto`: `images` (batch, C, height, width) float32 -> `logits` (batch, K) float32.

    Args:
        model: whose weights are copied.
        batch: the only number of images that it takes; None: any number.
        dtype: in which the weights are stored; they are computed with in float32.

    Raises:
        VitkitError: ONNX or its exporter is not installed, the network cannot be traced, or it is too large.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401  # type: ignore[import-untyped]
    except ImportError as error:
        raise VitkitError("ONNX and onnxscript are not installed: pip install 'vitkit[export]'") from error
    check_size(model, dtype, "take another dtype")
    traced = _trace(model, batch)
    nodes, constants = _parts(traced.graph, dtype)
    config = model.config
    shapes = {
        "images": [batch or "batch", config.in_channels, *config.image_size],
        "logits": [batch or "batch", config.num_classes],
    }
    (given,), (made,) = traced.graph.input, traced.graph.output
    values = {
        name: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()
    }
    assert (given.name, made.name) == ("images", "logits")
    return as_model(nodes, values["images"], values["logits"], constants)


def to_openvino(model: Network, batch: int | None = None, dtype: torch.dtype = torch.float32) -> Any:
    """The network as an `openvino.Model`, of the graph that `to_onnx` gives.

    Raises:
        VitkitError: as `to_onnx`; or OpenVINO is not installed, or has no such operation.
    """
    openvino = import_openvino()
    content = to_onnx(model, batch, dtype).SerializeToString()
    try:
        read = openvino.Core().read_model(content)
    except RuntimeError as error:
        raise VitkitError(f"OpenVINO cannot read {model.config.full_name}: {first_line(error)}") from error
    for number, node in enumerate(read.get_ordered_ops()):
        node.set_friendly_name(f"{node.get_type_name()}_{number}")
    (made,) = read.get_results()
    logits = made.input_value(0)
    logits.set_names({"logits"})
    return openvino.Model([openvino.opset13.result(logits)], read.get_parameters(), "vitkit")


def _trace(model: Network, batch: int | None) -> Any:
    plain = copy.deepcopy(model).cpu().float().eval().requires_grad_(requires_grad=False)
    config = model.config
    images = torch.zeros(batch or 2, config.in_channels, *config.image_size)
    sizes = None if batch else ({0: torch.export.Dim("batch")},)
    try:
        with _quiet():
            program = torch.onnx.export(
                plain,
                (images,),
                dynamo=True,
                dynamic_shapes=sizes,
                input_names=["images"],
                output_names=["logits"],
                opset_version=OPSET,
                verbose=False,
            )
    except (RuntimeError, ValueError, TypeError) as error:
        raise VitkitError(f"{config.full_name} cannot be traced: {first_line(error)}") from error
    assert program is not None
    return program.model_proto


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter tells of itself."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


def _parts(graph: Any, dtype: torch.dtype) -> tuple[list[Any], list[Any]]:
    """The operations and the constants, with nothing beside them."""
    import onnx

    nodes: list[Any] = []
    constants = [_constant(own.name, onnx.numpy_helper.to_array(own), dtype, nodes) for own in graph.initializer]
    for node in graph.node:
        if node.op_type == "Constant":
            value = onnx.numpy_helper.to_array(node.attribute[0].t)
            constants.append(_constant(node.output[0], value, dtype, nodes))
            continue
        plain = onnx.NodeProto(input=node.input, output=node.output, name=node.name, op_type=node.op_type)
        for attribute in node.attribute:
            attribute.ClearField("doc_string")
            plain.attribute.append(attribute)
        nodes.append(plain)
    return nodes, constants


def _constant(name: str, value: Any, dtype: torch.dtype, nodes: list[Any]) -> Any:
    """A constant as it is stored; what is stored in another dtype is brought back by a node ahead of the others."""
    import onnx

    if dtype == torch.float32 or value.dtype.name != "float32" or value.ndim < 2:
        return onnx.numpy_helper.from_array(value, name)
    tensor = torch.from_numpy(value.copy()).to(dtype)
    kind = {torch.float16: onnx.TensorProto.FLOAT16, torch.bfloat16: onnx.TensorProto.BFLOAT16}[dtype]
    nodes.append(onnx.helper.make_node("Cast", [f"{name}_stored"], [name], name=f"{name}_cast", to=1))
    raw = tensor.view(torch.int16).numpy().tobytes()
    return onnx.helper.make_tensor(f"{name}_stored", kind, list(tensor.shape), raw, raw=True)
