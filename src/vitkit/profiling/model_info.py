"""Count the cost of a model: parameters, multiply-accumulates, memory, and the shapes of its intermediate results.

Everything is measured on the meta device, where tensors have no storage, so that even H/14 needs no memory. PyTorch's
FLOP counter and its meta kernels for normalisation and GELU import the compiler, which takes a second. Therefore this
module intercepts and counts the few operations that matter. Tests compare the multiply-accumulates with those of the
FLOP counter, and the bytes with the tensors that real models keep for the backward pass.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitkit.model.build import Model, build
from vitkit.model.names import Config, NetworkConfig
from vitkit.model.network import Network
from vitkit.model.vit import VisionTransformer
from vitkit.model.windows import windows_of


@dataclass
class ForwardCost:
    """The cost of one forward pass."""

    macs: int = 0  # multiply-accumulates of all matrix products and convolutions
    kept_bytes: int = 0  # size of the tensors that autograd keeps for the backward pass, without the parameters
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # output shape by module, without the batch
    macs_of: dict[str, int] = field(default_factory=dict)  # by module; they include those of submodules


def measure(model: nn.Module, images: Tensor) -> ForwardCost:
    """Measure the cost of a forward pass of images (B, C, height, width); model and images are on the meta device."""
    measured = ForwardCost()
    _run_forward(model, images, measured, _CostCounter(measured))
    return measured


def _run_forward(model: nn.Module, images: Tensor, measured: ForwardCost, counter: AbstractContextManager[Any]) -> None:
    """Run a forward pass, and record in `measured` the modules' output shapes and the size of what autograd keeps."""
    saved: dict[int, Tensor] = {}  # the tensors that autograd keeps, by the address of their storage

    def record_saved(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage()._cdata] = tensor  # the reference keeps the address in use
        return tensor

    hooks: list[Any] = []
    for name, module in model.named_modules():
        if name:  # not the model itself
            hooks += _add_hooks(module, name, measured)
    try:
        with counter, torch.autograd.graph.saved_tensors_hooks(record_saved, lambda tensor: tensor):
            model(images)
    finally:
        for hook in hooks:
            hook.remove()
    for tensor in (*model.parameters(), *model.buffers()):
        saved.pop(tensor.untyped_storage()._cdata, None)
    measured.kept_bytes = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def _add_hooks(module: nn.Module, name: str, measured: ForwardCost) -> list[Any]:
    """Record the output shape and the multiply-accumulates of a module; return the hooks, which can be removed."""
    macs_before: list[int] = []  # a stack, because a module may be called within itself

    def enter(_module: nn.Module, _inputs: Any) -> None:
        macs_before.append(measured.macs)

    def leave(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        if isinstance(output, Tensor):
            measured.shapes[name] = tuple(output.shape[1:])
        measured.macs_of[name] = measured.macs_of.get(name, 0) + measured.macs - macs_before.pop()

    return [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]


class _CostCounter(TorchFunctionMode):
    """Intercept torch functions to count matrix products, and to replace kernels whose import is slow."""

    def __init__(self, measured: ForwardCost) -> None:
        super().__init__()
        self.measured = measured

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = _STAND_INS.get(func, func)(*args, **(kwargs or {}))
        if func in _MACS:
            self.measured.macs += _MACS[func](output, *args)
        return output


# The multiply-accumulates of the matrix products of a call, from its output and its arguments.
_MACS: dict[Any, Callable[..., int]] = {
    F.linear: lambda output, _x, weight, *_: output.numel() * weight.shape[1],
    F.conv2d: lambda output, _x, weight, *_: output.numel() * math.prod(weight.shape[1:]),
    F.scaled_dot_product_attention: lambda output, _q, k, _v: 2 * output.numel() * k.shape[-2],  # q k^T, and with v
    Tensor.matmul: lambda output, left, _right: output.numel() * left.shape[-1],
}


class _Kernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shape: Sequence[int], kept: Sequence[Tensor], keeps_output: bool, *inputs: Tensor) -> Tensor:
        output = inputs[0].new_empty(shape)
        ctx.save_for_backward(*kept, *([output] if keeps_output else []))
        return output


def _stand_in(shape: Sequence[int], *inputs: Tensor, kept: Sequence[Tensor] = (), keeps_output: bool = False) -> Tensor:
    """Return an empty output of this shape; autograd keeps `kept`, and with `keeps_output` also the output."""
    return _Kernel.apply(shape, kept, keeps_output, *inputs)


def _convolve(
    x: Tensor, weight: Tensor, _bias: Tensor | None, stride: Sequence[int], padding: Any = (0, 0), *_: Any
) -> Tensor:
    sizes = zip(x.shape[2:], weight.shape[2:], stride, padding, strict=True)
    sides = [(side + 2 * p - k) // s + 1 for side, k, s, p in sizes]
    return _stand_in((len(x), len(weight), *sides), x, weight, kept=(x, weight))


def _max_pool(x: Tensor, size: int, stride: int, **_: Any) -> Tensor:
    shape = (*x.shape[:2], *((side - size) // stride + 1 for side in x.shape[2:]))
    return _stand_in(shape, x, kept=(x, x.new_empty(shape, dtype=torch.int64)))  # and the position of each maximum


def _concatenate(parts: Sequence[Tensor], dim: int) -> Tensor:
    shape = list(parts[0].shape)
    shape[dim] = sum(part.shape[dim] for part in parts)
    return _stand_in(shape, *parts)


def _add(left: Tensor, right: Tensor | float) -> Tensor:
    if not isinstance(right, Tensor):
        return _stand_in(left.shape, left)
    return _stand_in(max(left.shape, right.shape, key=len), left, right)  # the longer shape: (B, N, D) + (N, D)


def _mean(x: Tensor, dim: int | Sequence[int], keepdim: bool = False) -> Tensor:
    dims = (dim,) if isinstance(dim, int) else dim
    if keepdim:
        return _stand_in(_reduced_shape(x, dims), x)
    return _stand_in([side for i, side in enumerate(x.shape) if i not in dims], x)


def _multiply(left: Tensor, right: Tensor | float) -> Tensor:
    if not isinstance(right, Tensor):
        return _stand_in(left.shape, left)
    kept = []  # autograd keeps a factor of a product or quotient if the other one needs a gradient
    if left.requires_grad:
        kept.append(right)
    if right.requires_grad:
        kept.append(left)
    shape = torch.broadcast_shapes(left.shape, right.shape)  # type: ignore[no-untyped-call]
    return _stand_in(shape, left, right, kept=kept)


def _reduced_shape(x: Tensor, dims: Sequence[int]) -> list[int]:
    return [1 if dim in dims else side for dim, side in enumerate(x.shape)]


class _FusedAttention(torch.autograd.Function):
    """Attention that keeps q, k, v, its output and one normaliser per row, but not the (N, N) matrix."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        B, H, n, D_h = q.shape
        output = q.new_empty(B, n, H, D_h).transpose(1, 2)
        ctx.save_for_backward(q, k, v, output, q.new_empty(B, H, n))
        return output


def _attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    if attn_mask is not None:  # fused kernels give a bias no gradient, so torch computes matrix products
        return F.scaled_dot_product_attention(q, k, v, attn_mask, **options)
    return _FusedAttention.apply(q, k, v)


# Substitutes for kernels, with the same output shapes and the same tensors kept for the backward pass.
_STAND_INS: dict[Any, Callable[..., Tensor]] = {
    F.linear: lambda x, weight, _bias: _stand_in((*x.shape[:-1], len(weight)), x, weight, kept=(x, weight)),
    F.conv2d: _convolve,
    F.max_pool2d: _max_pool,
    F.relu: lambda x, **_: _stand_in(x.shape, x, keeps_output=True),
    Tensor.sqrt: lambda x: _stand_in(x.shape, x, keeps_output=True),
    Tensor.div: _multiply,
    Tensor.mul: _multiply,
    Tensor.sub: lambda left, right: _stand_in(left.shape, left, right),
    Tensor.mean: _mean,
    Tensor.var: lambda x, dims, **_: _stand_in(_reduced_shape(x, dims), x, kept=(x,)),
    F.layer_norm: lambda x, _shape, weight, **_: _stand_in(  # keeps mean and deviation of each token
        x.shape, x, weight, kept=(x.contiguous(), x.new_empty(x.shape[:-1]), x.new_empty(x.shape[:-1]), weight)
    ),
    F.rms_norm: lambda x, _shape, weight, *_, **__: _stand_in(  # keeps the normalised input, too, on CPUs
        x.shape, x, weight, kept=(x.contiguous(), x.new_empty(x.shape[:-1]), x.new_empty(x.shape), weight)
    ),
    F.group_norm: lambda x, groups, weight, *_, **__: _stand_in(
        x.shape, x, weight, kept=(x, x.new_empty(len(x), groups), x.new_empty(len(x), groups), weight)
    ),
    torch.cat: _concatenate,
    Tensor.add: _add,
    F.gelu: lambda x, **_: _stand_in(x.shape, x, kept=(x,)),
    F.silu: lambda x, **_: _stand_in(x.shape, x, kept=(x,)),
    F.scaled_dot_product_attention: _attention,
}


@dataclass(frozen=True)
class CostStage:
    """A step of the forward pass: the shape of its output, its parameters, and its multiply-accumulates."""

    name: str
    shape: tuple[int, ...]
    parameters: int = 0
    macs: int = 0
    times: int = 1  # number of layers that contain this step; the other values are for one layer


@dataclass(frozen=True)
class ModelInfo:
    """The cost of one configuration, for one image.

    Attributes:
        config: the configuration.
        parameters: number of parameters.
        gmacs: 10^9 multiply-accumulates of the whole forward pass including attention products, as papers count them;
            multiply by 2 for FLOPs.
        gmacs_executed: 10^9 multiply-accumulates that `forward` executes. It is lower than `gmacs` if the last block
            computes only the tokens that the head needs.
        weight_bytes: size of the weights, by dtype.
        activation_bytes: upper bound of the memory that autograd keeps for the backward pass, for one float32 image.
        stages: the steps of the forward pass.
    """

    config: Config
    parameters: int
    gmacs: float
    gmacs_executed: float
    weight_bytes: dict[str, int]
    activation_bytes: int
    stages: list[CostStage] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the values in plain JSON types."""
        return asdict(self) | {"config": self.config.to_dict()}


def describe(config: Config) -> ModelInfo:
    """Count the cost of a configuration without allocating its weights.

    Raises:
        VitkitError: the configuration belongs to a network of another library, which cannot be built here.
    """
    if isinstance(config, NetworkConfig):
        return _describe_network(config)
    with torch.device("meta"):
        model = VisionTransformer(config).eval()
        image = torch.empty(1, config.in_channels, *config.image_size)
    executed = measure(model, image)
    model.shortcut = False  # then the last layer computes all tokens, and not only those that the head needs
    full = measure(model, image)
    return _info(model, full, executed, _stages(model, full))


def _describe_network(config: NetworkConfig) -> ModelInfo:
    from torch.utils.flop_counter import FlopCounterMode  # imported only here, because this is slow

    with torch.random.fork_rng():
        network = build(config).eval().to("meta")
    assert isinstance(network, Network)
    images = torch.empty(1, config.in_channels, *config.image_size, device="meta")

    # The FLOP counter of PyTorch counts any operations.
    measured, counter = ForwardCost(), FlopCounterMode(display=False)
    _run_forward(network, images, measured, counter)
    measured.macs = counter.get_total_flops() // 2
    for name, operations in counter.get_flop_counts().items():
        _, has_module, module = name.partition(".")  # names begin with that of the model's class
        if has_module:
            measured.macs_of[module] = sum(operations.values()) // 2

    stages = [CostStage("image", (*config.image_size, config.in_channels))]
    for name, part in network.network.named_children():
        shape = measured.shapes.get(f"network.{name}")
        if shape is not None:  # the forward pass uses this module
            parameters = sum(parameter.numel() for parameter in part.parameters())
            stages.append(CostStage(name, shape, parameters, measured.macs_of.get(f"network.{name}", 0)))
    return _info(network, measured, measured, stages)


def _info(model: Model, full: ForwardCost, executed: ForwardCost, stages: list[CostStage]) -> ModelInfo:
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return ModelInfo(
        config=model.config,
        parameters=parameters,
        gmacs=full.macs / 1e9,
        gmacs_executed=executed.macs / 1e9,
        weight_bytes={"float32": 4 * parameters, "bfloat16": 2 * parameters},
        activation_bytes=full.kept_bytes,
        stages=stages,
    )


def _stages(model: VisionTransformer, measured: ForwardCost) -> list[CostStage]:
    """Return the stages of a model. Their costs add up to that of the model. Equal layers share one stage."""
    config = model.config
    stage = _StageFactory(model, measured)
    prefixes = ("cls_token", "dist_token", "reg_token", "pos_embed")
    token_parameters = sum(p.numel() for name, p in model.named_parameters() if name.startswith(prefixes))

    relative_positions = []  # the stage of their tables or network
    if model.rel_pos is not None:
        macs = 0
        if config.position == "relative_mlp":  # the network is evaluated in every layer, even if it is shared
            offsets = (2 * config.grid[0] - 1) * (2 * config.grid[1] - 1)
            macs_per_offset = config.relative_size * (2 + config.heads)  # from 2 coordinates to a value for each head
            macs = config.layers * offsets * macs_per_offset
        parameters = dict(model.rel_pos.named_parameters())
        table = parameters.get("0.table")
        shape = (config.heads, config.tokens, config.tokens) if table is None else tuple(table.shape)
        size = sum(map(Tensor.numel, parameters.values()))
        relative_positions.append(CostStage("relative positions", shape, size, macs))

    parts = [  # a part that the model lacks has no stage
        [CostStage("image", (*config.image_size, config.in_channels))],
        stage("ResNet stem", "patch_embed.backbone"),
        stage("patch embedding", "patch_embed.proj", (*config.grid, config.hidden_size)),
        stage("patches in a row", "patch_embed.norm", (config.patches, config.hidden_size), always=True),
        [CostStage("tokens, positions added", (config.tokens, config.hidden_size), token_parameters)],
        stage("norm before the layers", "norm_pre"),
        stage("rotary frequencies", "rope", (config.layers, config.heads, config.head_size // 2)),
        relative_positions,
        *_layer_stages(stage),
        stage("norm", "norm", (config.tokens, config.hidden_size), always=True),
        stage("attention pooling", "attn_pool"),
        stage("norm of the pooled vector", "fc_norm"),
        stage("representation layer", "pre_logits"),
        [CostStage("what the head reads", (config.feature_size,))],
        stage("classes", "head"),
        stage("classes, distilled", "head_dist"),
    ]
    return list(chain.from_iterable(parts))


def _layer_stages(stage: _StageFactory) -> list[list[CostStage]]:
    """Return the stages of all layers, in the order in which a layer computes them."""
    config = stage.model.config
    H, N, D_h = config.heads, config.tokens, config.head_size
    attending = [layer for layer in range(config.layers) if layer not in config.conv_layers]
    products = 2 * N * N * config.hidden_size  # q k^T, and its softmax with v
    if config.position == "relative":
        products += N * (2 * N - 1) * config.hidden_size  # q with every offset
    heads: list[CostStage] = []
    variant: list[CostStage] = []
    if attending:
        heads = [CostStage("q of each head (k, v alike)", (H, N, D_h), times=len(attending))]
        rest = stage.rest(f"blocks.{attending[0]}.attn", ("convolve", "qkv", "norm", "proj"))
        if rest is not None:  # attention with further parameters, whose cost was measured as a whole
            variant = [replace(rest, times=len(attending), macs=0)]
            products = rest.macs
    attention = []  # eqs. 6-7: one stage for attention over all tokens, and one for each size of windows
    P = config.prefix_tokens
    for windows, times in Counter(windows_of(config, layer) for layer in attending).items():
        if windows is None:
            attention.append(CostStage("attention, per head", (H, N, N), macs=products, times=times))
        else:
            W, S = math.prod(windows.windows), math.prod(windows.size)
            macs = 2 * config.hidden_size * (W * S * (P + S) + P * N)
            name = f"attention within {windows.size[0]} x {windows.size[1]} patches, per head"
            attention.append(CostStage(name, (H, W, S, P + S), macs=macs, times=times))
    return [
        stage.layers("norm 1", "norm1"),
        stage.layers("depthwise convolution", "attn.depthwise"),
        stage.layers("pointwise convolution", "attn.proj", config.conv_layers),
        *(stage.layers(f"convolution of {part}", f"attn.convolve.{part}") for part in "qkv"),
        # Some kinds of attention use these weights without calling the module, so its products were not measured.
        [replace(qkv, macs=3 * N * config.hidden_size**2) for qkv in stage.layers("q, k, v", "attn.qkv")],
        heads,
        attention,
        variant,
        stage.layers("norm of the joined heads", "attn.norm"),
        stage.layers("attention out", "attn.proj", attending),
        stage.layers("LayerScale 1", "ls1"),
        stage.layers("norm 2", "norm2"),
        stage.layers("MLP hidden", "mlp.fc1"),
        stage.layers("convolution of the hidden", "mlp.conv"),
        stage.layers("norm of the hidden", "mlp.norm"),
        stage.layers("MLP out", "mlp.fc2"),
        stage.layers("LayerScale 2", "ls2"),
    ]


@dataclass(frozen=True)
class _StageFactory:
    """A factory of stages for the modules of a model; modules that the model lacks have no stage."""

    model: VisionTransformer
    measured: ForwardCost

    def __call__(
        self, name: str, module: str, shape: tuple[int, ...] | None = None, *, always: bool = False
    ) -> list[CostStage]:
        parameters = self._parameters(module)
        if not parameters and not always:
            return []
        shape = shape or self.measured.shapes[module]
        return [CostStage(name, shape, parameters, self.measured.macs_of.get(module, 0))]

    def layers(self, name: str, module: str, among: Sequence[int] | None = None) -> list[CostStage]:
        """Make one stage for a module that several layers have, with the number of these layers."""
        among = range(len(self.model.blocks)) if among is None else among
        layers = [layer for layer in among if self._parameters(f"blocks.{layer}.{module}")]
        if not layers:
            return []
        first = f"blocks.{layers[0]}.{module}"
        shape = self.measured.shapes.get(first, (self.model.config.tokens, 3 * self.model.config.hidden_size))
        macs = self.measured.macs_of.get(first, 0)
        return [CostStage(name, shape, self._parameters(first), macs, times=len(layers))]

    def rest(self, module: str, parts: Sequence[str]) -> CostStage | None:
        """Make a stage for the rest of a module, that is, without these parts; None if the rest has no parameters."""
        names = [f"{module}.{part}" for part in parts]
        parameters = self._parameters(module) - sum(map(self._parameters, names))
        if not parameters:
            return None
        macs = self.measured.macs_of.get(module, 0) - sum(self.measured.macs_of.get(name, 0) for name in names)
        return CostStage("the rest of attention", self.measured.shapes[module], parameters, macs)

    def _parameters(self, module: str) -> int:
        try:
            parameters = self.model.get_submodule(module).parameters()
        except AttributeError:
            return 0
        return sum(parameter.numel() for parameter in parameters)
