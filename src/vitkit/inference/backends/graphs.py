"""Convert a model to a graph of ONNX or OpenVINO.

The graph of a `VisionTransformer` is that of its optimised copy (`optimized.prepare`): LayerScale, the affine part of
LayerNorm and the scale of attention are in the weights, and the last layer computes only the tokens that the head
reads. Positions and biases are constants. The network of another library is converted as it is.

A converter stores more than a graph, such as the source location of each operation. Only operations, constants, inputs
and outputs are kept. Thus a file reveals nothing about the machine that made it, and code that reads the file can be
strict.
"""

from __future__ import annotations

import ast
import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import ExportedProgram

import vitkit
from vitkit.errors import VitkitError, first_line
from vitkit.inference.backends.graph_runner import import_openvino, not_installed
from vitkit.inference.backends.optimized import prepare
from vitkit.inference.backends.pixels import Pixels
from vitkit.model.build import Model, classes_and_features
from vitkit.model.layers import LogitsAndFeatures
from vitkit.model.network import Network
from vitkit.model.position import OffsetBias, Relative, RelativePosition
from vitkit.model.vit import VisionTransformer
from vitkit.model.windows import Attend, Windows

_OPSET = 20  # the first version with GELU
_IR_VERSION = 9  # the file format of that version, which runtimes since 2024 read
_MAX_BYTES = 2**31 - 2**20  # of the weights; a protocol buffer has at most 2 GiB, including the graph

Change = Callable[[Any], Any]  # a function that changes a graph, see `to_onnx`


def exportable_copy(model: Model) -> nn.Module:
    """Return a copy of the model that converters support, on the CPU in float32 and evaluation mode.

    The copy computes the same logits (B, K) as the model. If the model computes features together with its logits
    (`model.build.with_features`), the copy returns the logits (B, K) and the features (B, D) as two tensors.

    Raises:
        VitkitError: the model is a Vision Transformer with a field or part that the optimised copy does not support.
    """
    copied: nn.Module
    if isinstance(model, Network):
        copied = copy.deepcopy(model).cpu().float().eval().requires_grad_(requires_grad=False)
    else:
        copied = prepare(model, pack=False, attend="batch")
        with torch.no_grad():
            _compute_constants(copied.model)
    classes, features = classes_and_features(model)
    return LogitsAndFeatures(copied, classes) if features else copied


class _FromPixels(nn.Module):
    """A module that takes pixels (B, height, width, C), uint8, and returns probabilities after its other outputs."""

    mean: Tensor
    std: Tensor

    def __init__(self, module: nn.Module, pixels: Pixels) -> None:
        super().__init__()
        self.module = module
        self.pixels = pixels
        self.register_buffer("mean", torch.tensor(pixels.mean))
        self.register_buffer("std", torch.tensor(pixels.std))

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        images = ((pixels.float() / 255 - self.mean) / self.std).permute(0, 3, 1, 2)  # (B, C, height, width)
        outputs = self.module(images)  # the logits, or a tuple of logits and features
        if isinstance(outputs, Tensor):
            outputs = (outputs,)
        logits = outputs[0] / self.pixels.temperature
        probabilities = logits.sigmoid() if self.pixels.is_multi_label else logits.softmax(dim=-1)
        return *outputs, probabilities


def _compute_constants(model: VisionTransformer) -> None:
    """Replace what depends on weights alone by constants: positions, and biases of the attention logits.

    The biases are contiguous, because ExecuTorch does not compute others, and LiteRT's converter confuses others.
    """
    positions = [model.positions(i) for i in range(model.config.layers)]
    relatives: list[Relative | None] = []
    for i, block in enumerate(model.blocks):
        _, relative = model.positions_of(i)
        bias = None
        if isinstance(relative, OffsetBias):
            bias = relative.bias(model.config.tokens).unsqueeze(0).contiguous()  # (1, H, N, N)
            relative = _FixedBias(bias)
        elif isinstance(relative, RelativePosition):
            relative = _RelativeByShifting(relative)
        relatives.append(relative)
        attention: Any = getattr(block.attn, "mix", block.attn)  # with convolutions, attention is not optimised
        attention.fused = False
        windows = getattr(attention, "windows", None)
        if windows is not None:
            window_bias = windows.window_bias(bias, torch.zeros(1))
            if window_bias is not None:
                window_bias = window_bias.contiguous()
            scale = getattr(attention, "scale", 1.0)  # in optimised attention, the weights contain the scale
            attention.windows = _FixedWindows(windows.grid, windows.size, windows.prefix, scale, window_bias)
    # Methods that return constants, so that the graph does not contain the computation of the positions.
    model.positions = lambda layer=0: positions[layer]  # type: ignore[method-assign]
    is_at_input = model.config.position_at == "input"
    model.positions_of = lambda layer: (  # type: ignore[method-assign]
        None if is_at_input else positions[layer],
        relatives[layer],
    )


@dataclass(frozen=True)
class _FixedBias:
    """A bias of the attention logits, (1, H, N, N), as a constant."""

    table: Tensor

    def __call__(self, q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ARG002
        return q, k, self.table[:, :, : int(q.shape[2])]


@dataclass(frozen=True)
class _FixedWindows(Windows):
    """Windows of a layer, with the bias of the logits within them as a constant.

    Attributes:
        scale: the scale of the products of queries and keys.
        constant: the bias, (1, W, 1 or H, 1 or S, P + S).
    """

    scale: float
    constant: Tensor | None

    def __call__(self, attend: Attend, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: ARG002
        return super().__call__(_attend_within, q if self.scale == 1 else q * self.scale, k, v, bias)

    def window_bias(self, bias: Tensor | None, like: Tensor) -> Tensor | None:  # noqa: ARG002
        return None if self.constant is None else self.constant.clamp_min(-1e4)  # finite in half precision


def _attend_within(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Compute eqs. 6-7 within windows, (B, W, H, S, D_h), or of prefix tokens, (B, H, n, D_h)."""
    logits = q @ k.transpose(-2, -1)
    if bias is not None:
        logits = logits + bias
    weights = logits.softmax(dim=-1)
    if q.ndim == 4:
        return weights @ v
    # OpenVINO mistakes `weights @ v` for attention in four dimensions, and computes another result.
    return (v.transpose(-2, -1) @ weights.transpose(-2, -1)).transpose(-2, -1)


class _RelativeByShifting:
    """`RelativePosition` without an operation that takes indices, which a runtime would have to check."""

    def __init__(self, relative: RelativePosition) -> None:
        self.tokens = relative.tokens
        self.table = relative.table.flip(0).t().contiguous()  # (D_h, 2N - 1)

    def __call__(self, q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return what `RelativePosition` does: q (B, H, n, D_h), k, and the values to add to the logits (B, H, n, N).

        In row i of the products with the flipped table, the values for the keys start at column N - 1 - i. In the
        joined rows, the starts are therefore 2N - 2 apart. From the first start on, the joined rows are cut into rows
        of this length, whose first N columns are the values for the keys.
        """
        n, N = int(q.shape[2]), self.tokens
        by_offset = q @ (scale * self.table)  # (B, H, n, 2N - 1)
        if N == 1:
            return q, k, by_offset
        joined = F.pad(by_offset.flatten(2), (0, N - 1))[..., N - 1 :]
        cut = torch.unflatten(joined[..., : n * (2 * N - 2)], -1, (n, 2 * N - 2))
        return q, k, cut[..., :N]


def to_onnx(
    model: Model,
    batch: int | None = None,
    dtype: torch.dtype = torch.float32,
    change: Change | None = None,
    pixels: Pixels | None = None,
) -> Any:
    """Convert the model to an `onnx.ModelProto`: `images` (batch, C, height, width) -> `logits` (batch, K), float32.

    A model that computes features together with its logits has a second output, `features` (batch, D). With
    `pixels`, the input is `pixels` (batch, height, width, C), uint8, and the last output is `probabilities` (batch, K).

    Args:
        model: the model whose weights are copied.
        batch: the only batch size that the graph accepts; None for any.
        dtype: the dtype of the stored weights; the computation is in float32.
        change: a function that changes the graph, such as a quantisation; None for no change. In the graph that it
            receives, the name of each operation begins with the name of its module in `exportable_copy(model)` and a
            slash.
        pixels: with what the graph normalises pixels and calibrates logits; None if it takes normalised images.

    Raises:
        VitkitError: ONNX or its exporter is not installed, or the model is too large or cannot be converted.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401  # type: ignore[import-untyped]
    except ImportError as error:
        raise not_installed(f"{error.name}", "export") from error
    size = dtype.itemsize * sum(parameter.numel() for parameter in model.parameters())
    if size > _MAX_BYTES:
        raise VitkitError(
            "inference.weights-too-large",
            f"the weights take {size / 2**30:.1f} GiB, but an ONNX file can hold at most 2 GiB: use another dtype, or "
            "OpenVINO",
        )
    module, images, inputs, outputs = converter_input(model, batch, pixels)
    with converting(model):
        program = torch.onnx.export(
            module,
            (images,),
            dynamo=True,
            dynamic_shapes=None if batch else ({0: torch.export.Dim("batch")},),
            input_names=inputs,
            output_names=outputs,
            opset_version=_OPSET,
            verbose=False,
        )
        assert program is not None
        converted = program.model_proto  # a new copy each time it is read
        for number, node in enumerate(converted.graph.node):  # name each operation MODULE/TYPE_NUMBER
            metadata = {entry.key: entry.value for entry in node.metadata_props}
            # A list as text: the names of the modules, outermost first, and the name of the operation.
            scopes = ast.literal_eval(metadata.get("pkg.torch.onnx.name_scopes", "['']"))
            scope = scopes[-2] if len(scopes) > 1 else ""
            node.name = f"{scope}/{node.op_type}_{number}"
        if change is not None:
            converted = change(converted)

    def described(value: Any) -> Any:  # an input or output without documentation
        tensor_type = value.type.tensor_type
        sizes = [dimension.dim_value for dimension in tensor_type.shape.dim]
        return onnx.helper.make_tensor_value_info(value.name, tensor_type.elem_type, [batch or "batch", *sizes[1:]])

    nodes, constants = _nodes_and_constants(converted.graph, dtype)
    graph = onnx.helper.make_graph(
        nodes,
        "vitkit",
        [described(value) for value in converted.graph.input],
        [described(value) for value in converted.graph.output],
        constants,
    )
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", _OPSET)])
    made.ir_version = _IR_VERSION
    made.producer_name = "vitkit"
    made.producer_version = vitkit.__version__
    return made


def to_openvino(
    model: Model,
    batch: int | None = None,
    dtype: torch.dtype = torch.float32,
    change: Change | None = None,
    pixels: Pixels | None = None,
) -> Any:
    """Convert the model to an `openvino.Model`. The arguments, inputs and outputs are those of `to_onnx`.

    The runtime chooses the dtype of the computation.

    Raises:
        VitkitError: OpenVINO is not installed, or the model cannot be converted.
    """
    openvino = import_openvino()
    from openvino.passes import ConstantFolding, Manager  # type: ignore[import-untyped]

    module, images, (input_name,), outputs = converter_input(model, batch, pixels)
    input_type = openvino.Type.f32 if pixels is None else openvino.Type.u8
    with converting(model), torch.no_grad():
        # OpenVINO also converts programs of torch.export, but takes five times as long. `strict=False` allows modules
        # that return a list or dictionary.
        script = torch.jit.trace(module, images, check_trace=False, strict=False)  # type: ignore[no-untyped-call]
        shape = [batch or -1, *images.shape[1:]]
        converted = openvino.convert_model(script, input=[(shape, input_type)], example_input=images)
        passes = Manager()
        passes.register_pass(ConstantFolding())
        passes.run_passes(converted)
        if change is not None:
            converted = change(converted)
    if dtype != torch.float32:  # weights are stored in this dtype, each followed by a conversion to float32
        stored_as = openvino.Type.f16 if dtype == torch.float16 else openvino.Type.bf16
        for node in converted.get_ordered_ops():
            is_float32 = node.get_type_name() == "Constant" and node.get_element_type() == openvino.Type.f32
            if not is_float32 or not _is_weight(node.shape):
                continue
            readers = node.output(0).get_target_inputs()
            # Rounded by torch: OpenVINO cuts off half of the values that it should round up to bfloat16.
            rounded = torch.tensor(node.data).to(dtype).float().numpy()
            stored = openvino.opset13.constant(rounded, dtype=stored_as)
            back = openvino.opset13.convert(stored, "f32").output(0)
            for reader in readers:
                reader.replace_source_output(back)
    for number, node in enumerate(converted.get_ordered_ops()):
        node.set_friendly_name(f"{node.get_type_name()}_{number}")
        for output in node.outputs():
            output.set_names(set())
    parameters = converted.get_parameters()
    parameters[0].set_friendly_name(input_name)
    parameters[0].output(0).set_names({input_name})
    results = []
    for name, result in zip(outputs, converted.get_results(), strict=True):
        output = result.input_value(0)
        output.set_names({name})
        results.append(openvino.opset13.result(output, name=f"{name}_result"))
    return openvino.Model(results, parameters, "vitkit")


def traced(module: nn.Module, images: Tensor, batch: int | None = 1) -> ExportedProgram:
    """Trace a module with `torch.export`, for a fixed batch size or, with `batch=None`, for any.

    The program has no source locations, which contain local paths, and no aliases, which Core ML's converter does not
    know.
    """
    sizes = None if batch else ({0: torch.export.Dim("batch")},)
    program = torch.export.export(module, (images,), dynamic_shapes=sizes, strict=False)
    for node in list(program.graph.nodes):
        node.meta.pop("stack_trace", None)
        if node.target == torch.ops.aten.alias.default:
            node.replace_all_uses_with(node.args[0])
            program.graph.erase_node(node)
    return program


class ConverterInput(NamedTuple):
    """The input of a converter: a module, example images, and the names of the graph's inputs and outputs."""

    module: nn.Module
    images: Tensor
    inputs: list[str]
    outputs: list[str]


def converter_input(model: Model, batch: int | None, pixels: Pixels | None = None) -> ConverterInput:
    """Return the input of a converter for the model; see `to_onnx`."""
    module = exportable_copy(model)
    images = example(model, batch)
    _, features = classes_and_features(model)
    outputs = ["logits", "features"] if features else ["logits"]
    if pixels is None:
        return ConverterInput(module.eval(), images, ["images"], outputs)
    images = images.permute(0, 2, 3, 1).byte().contiguous()
    return ConverterInput(_FromPixels(module, pixels).eval(), images, ["pixels"], [*outputs, "probabilities"])


def example(model: Model, batch: int | None) -> Tensor:
    """Return images to trace the model with: two for any batch size, as a size of 1 could be taken for broadcasting."""
    return torch.zeros(batch or 2, model.config.in_channels, *model.config.image_size)


@contextmanager
def quietly() -> Iterator[None]:
    """Suppress what a converter prints, logs and warns of, and remove the handlers that it adds to the root logger."""
    handlers = list(logging.root.handlers)
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)
        logging.root.handlers[:] = handlers


@contextmanager
def converting(model: Model) -> Iterator[None]:
    """Suppress the output of a converter, and raise a `VitkitError` if it cannot convert the model."""
    try:
        with quietly():
            yield
    except VitkitError:
        raise
    except Exception as error:  # the types of errors depend on the converter
        name = model.config.full_name if isinstance(model, Network) else "the model"
        raise VitkitError("inference.conversion-failed", f"{name} cannot be converted: {first_line(error)}") from error


# --- The constants of a graph ---------------------------------------------------------------------------------


def _is_weight(shape: Any) -> bool:
    """Return whether a constant of this shape is a matrix or a kernel, which is stored in the dtype of the weights.

    Tokens, positions and biases have one dimension, or a first dimension of 1, the batch. They stay in float32.
    """
    return len(shape) >= 2 and shape[0] > 1


def _nodes_and_constants(graph: Any, dtype: torch.dtype) -> tuple[list[Any], list[Any]]:
    """Return the operations and the constants of an ONNX graph, without documentation."""
    import onnx

    nodes: list[Any] = []
    constants = [
        _constant(tensor.name, onnx.numpy_helper.to_array(tensor), dtype, nodes) for tensor in graph.initializer
    ]
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
    """Return a constant in the form to store. If its dtype changes, append to `nodes` a node that casts it back."""
    import onnx

    if dtype == torch.float32 or value.dtype.name != "float32" or not _is_weight(value.shape):
        return onnx.numpy_helper.from_array(value, name)
    tensor = torch.from_numpy(value.copy()).to(dtype)
    kind = {torch.float16: onnx.TensorProto.FLOAT16, torch.bfloat16: onnx.TensorProto.BFLOAT16}[dtype]
    nodes.append(onnx.helper.make_node("Cast", [f"{name}_stored"], [name], name=f"{name}_cast", to=1))
    raw = tensor.view(torch.int16).numpy().tobytes()
    return onnx.helper.make_tensor(f"{name}_stored", kind, list(tensor.shape), raw, raw=True)
