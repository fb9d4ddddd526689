"""What a model costs: parameters, multiply-accumulates, memory, and the walk of an image through it.

Everything is measured on the meta device, where tensors have no storage, so H/14 costs nothing to ask about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from vitkit.config import ViTConfig
from vitkit.model import VisionTransformer


@dataclass(frozen=True)
class Stage:
    """A step on the image's way: the shape that leaves it, its parameters, and its multiply-accumulates."""

    name: str
    shape: tuple[int, ...]
    parameters: int = 0
    macs: int = 0
    times: int = 1  # the layers that repeat it


@dataclass(frozen=True)
class ModelInfo:
    """The cost of one configuration, for one image.

    `gmacs` counts the forward pass as papers do, attention products included (multiply by 2 for FLOPs);
    `gmacs_executed` is what `forward` computes, whose last block works for the head alone.
    `activation_bytes` is what the backward pass keeps of one float32 image, at most: the last block keeps less.
    """

    config: ViTConfig
    parameters: int
    gmacs: float
    gmacs_executed: float
    weight_bytes: dict[str, int]
    activation_bytes: int
    stages: list[Stage] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self) | {"config": self.config.to_dict()}


def describe(config: ViTConfig) -> ModelInfo:
    """Measure the cost of a configuration without allocating its weights.

    Encoder layers cost the same, so models of one and two layers tell what each further one adds.
    """
    model = _build(config)
    one, two = (_build(config.replace(layers=layers)) for layers in (1, 2))
    images = torch.empty(1, config.in_channels, *config.image_size, device="meta")

    def of_all_layers(measure: Callable[[VisionTransformer, Tensor], int]) -> int:
        first = measure(one, images)
        return first + (config.layers - 1) * (measure(two, images) - first)

    parameters = sum(parameter.numel() for parameter in model.parameters())
    executed = of_all_layers(_macs)
    one.shortcut = two.shortcut = False
    return ModelInfo(
        config=config,
        parameters=parameters,
        gmacs=of_all_layers(_macs) / 1e9,
        gmacs_executed=executed / 1e9,
        weight_bytes={"float32": 4 * parameters, "bfloat16": 2 * parameters},
        activation_bytes=of_all_layers(_kept_for_backward),
        stages=_stages(model, one, images),
    )


def _build(config: ViTConfig) -> VisionTransformer:
    with torch.device("meta"):
        return VisionTransformer(config).eval()


@torch.no_grad()
def _macs(model: VisionTransformer, images: Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        model(images)
    return int(counter.get_total_flops()) // 2


def _kept_for_backward(model: VisionTransformer, images: Tensor) -> int:
    """Bytes of the distinct tensors that autograd saves, the parameters aside.

    Attention keeps what the fused kernel keeps: q, k, v, its output and a normaliser, never the (N, N) matrix.
    """
    kept: dict[int, Tensor] = {}

    def save(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor  # the reference keeps the address taken
        return tensor

    with _FusedAttention(), torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        model(images)
    own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    return sum(tensor.untyped_storage().nbytes() for address, tensor in kept.items() if address not in own)


class _FusedAttention(TorchFunctionMode):
    """Sends attention to the kernel that real tensors take on a CPU; the meta device would spell it out."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention or kwargs["attn_mask"] is not None:  # learned biases: no kernel
            return func(*args, **kwargs)
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*args, **kwargs)[0]


@torch.no_grad()
def _stages(model: VisionTransformer, one: VisionTransformer, images: Tensor) -> list[Stage]:
    """The walk through one layer, which stands for all; parameters and MACs sum to the whole model's."""
    config = model.config
    shapes: dict[str, tuple[int, ...]] = {}
    with _watch(one, shapes), FlopCounterMode(display=False) as counter:
        one(images)
    flops = {name.partition(".")[2]: sum(count.values()) for name, count in counter.get_flop_counts().items()}

    def stage(name: str, module: str, shape: tuple[int, ...] | None = None, times: int = 1) -> Stage:
        parameters = sum(p.numel() for p in model.get_submodule(module).parameters())
        return Stage(name, shape or shapes[module], parameters, flops.get(module, 0) // 2, times)

    L, H, N, D_h = config.layers, config.heads, config.tokens, config.head_size
    projections = ("blocks.0.attn.qkv", "blocks.0.attn.proj")
    products = (flops["blocks.0.attn"] - sum(flops[name] for name in projections)) // 2
    own = sum(p.numel() for name, p in model.named_parameters() if name.startswith(("cls_", "dist_", "pos_embed")))
    walk = [
        Stage("image", (*config.image_size, config.in_channels)),
        stage("patch embedding", "patch_embed.proj", (*config.grid, config.hidden_size)),
        stage("patches in a row", "patch_embed.norm", (config.patches, config.hidden_size)),
        Stage("tokens, positions added", (N, config.hidden_size), own),
        stage("norm 1", "blocks.0.norm1", times=L),
        stage("q, k, v", "blocks.0.attn.qkv", times=L),
        Stage("q of each head (k, v alike)", (H, N, D_h), times=L),
        Stage("attention, per head", (H, N, N), macs=products, times=L),
        stage("attention out", "blocks.0.attn.proj", times=L),
        stage("norm 2", "blocks.0.norm2", times=L),
        stage("MLP hidden", "blocks.0.mlp.fc1", times=L),
        stage("MLP out", "blocks.0.mlp.fc2", times=L),
        stage("norm", "norm", (N, config.hidden_size)),
        Stage("what the head reads", _features(one, images)),
    ]
    if config.position == "relative":
        walk.insert(4, stage("relative positions", "rel_pos", (2 * N - 1, D_h)))
    if config.representation_size is not None:
        walk.insert(-1, stage("representation layer", "pre_logits"))
    if config.num_classes:
        walk.append(stage("classes", "head"))
    if config.distill_head and config.num_classes:
        walk.append(stage("classes, distilled", "head_dist"))
    return walk


@contextmanager
def _watch(model: nn.Module, shapes: dict[str, tuple[int, ...]]) -> Iterator[None]:
    """Note the shape, without the batch, of what each module returns."""

    def note(name: str) -> Any:
        return lambda _module, _inputs, output: shapes.__setitem__(name, tuple(output.shape[1:]))

    hooks = [module.register_forward_hook(note(name)) for name, module in model.named_modules() if name]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _features(model: VisionTransformer, images: Tensor) -> tuple[int, ...]:
    return tuple(model.forward_head(model.forward_features(images), pre_logits=True).shape[1:])
