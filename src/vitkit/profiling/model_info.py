"""What a model costs: parameters, multiply-accumulates, memory, and the walk of an image through it.

Everything is measured on the meta device, where tensors have no storage, so H/14 costs nothing to ask about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from vitkit.model.build import Model, build
from vitkit.model.config import ViTConfig
from vitkit.model.network import Network
from vitkit.model.network_config import Config, NetworkConfig
from vitkit.model.vit import VisionTransformer
from vitkit.profiling.flops import Measured, measure, measure_any


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

    config: Config
    parameters: int
    gmacs: float
    gmacs_executed: float
    weight_bytes: dict[str, int]
    activation_bytes: int
    stages: list[Stage] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self) | {"config": self.config.to_dict()}


def describe(config: Config) -> ModelInfo:
    """Measure the cost of a configuration without allocating its weights.

    Raises:
        VitkitError: another library's network of this configuration cannot be built here.
    """
    if isinstance(config, NetworkConfig):
        return _describe_network(config)
    model = _build(config)
    executed, full = _measure(config, shortcut=True), _measure(config, shortcut=False)
    return _info(model, full, executed, _stages(model, full))


def _describe_network(config: NetworkConfig) -> ModelInfo:
    with torch.random.fork_rng():
        model = build(config).eval().to("meta")
    assert isinstance(model, Network)
    measured = measure_any(model, torch.empty(1, config.in_channels, *config.image_size, device="meta"))
    return _info(model, measured, measured, _parts(model, measured))


def _info(model: Model, full: Measured, executed: Measured, stages: list[Stage]) -> ModelInfo:
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


def _parts(model: Network, measured: Measured) -> list[Stage]:
    """The network's own parts, as its library names them, as far as an image passes through them."""
    config, found = model.config, []
    found.append(Stage("image", (*config.image_size, config.in_channels)))
    for name, part in model.network.named_children():
        shape, path = measured.shapes.get(f"network.{name}"), f"network.{name}"
        if shape is not None:
            parameters = sum(parameter.numel() for parameter in part.parameters())
            found.append(Stage(name, shape, parameters, measured.macs_of.get(path, 0)))
    return found


def _measure(config: ViTConfig, *, shortcut: bool) -> Measured:
    """The whole model's cost, of which layers that cost the same are measured once.

    What the last layer costs differs with the shortcut, so one and two attention layers are measured.
    """
    attention = config.layers - len(config.conv_layers)
    if config.conv_layers or attention <= 2:
        return _pass(config, shortcut)
    one, two = (_pass(config.replace(layers=layers), shortcut) for layers in (1, 2))
    more = config.layers - 1
    return replace(
        two,
        macs=one.macs + more * (two.macs - one.macs),
        kept_bytes=one.kept_bytes + more * (two.kept_bytes - one.kept_bytes),
    )


def _pass(config: ViTConfig, shortcut: bool) -> Measured:
    model = _build(config)
    model.shortcut = shortcut
    return measure(model, torch.empty(1, config.in_channels, *config.image_size, device="meta"))


def _build(config: ViTConfig) -> VisionTransformer:
    with torch.device("meta"):
        return VisionTransformer(config).eval()


_OWN = ("cls_token", "dist_token", "reg_token", "pos_embed")


def _stages(model: VisionTransformer, measured: Measured) -> list[Stage]:
    """The walk; a layer stands for all that are like it. Parameters and MACs sum to the whole model's."""
    config, stage = model.config, _Walker(model, measured)
    own = sum(p.numel() for name, p in model.named_parameters() if name.startswith(_OWN))
    walk = [
        [Stage("image", (*config.image_size, config.in_channels))],
        stage("ResNet stem", "patch_embed.backbone"),
        stage("patch embedding", "patch_embed.proj", (*config.grid, config.hidden_size)),
        stage("patches in a row", "patch_embed.norm", (config.patches, config.hidden_size), always=True),
        [Stage("tokens, positions added", (config.tokens, config.hidden_size), own)],
        stage("norm ahead of the layers", "norm_pre"),
        stage("rotary frequencies", "rope", (config.layers, config.heads, config.head_size // 2)),
        _relative(stage),
        *_layers(stage),
        stage("norm", "norm", (config.tokens, config.hidden_size), always=True),
        stage("attention pooling", "attn_pool"),
        stage("norm of the pooled vector", "fc_norm"),
        stage("representation layer", "pre_logits"),
        [Stage("what the head reads", (config.feature_size,))],
        stage("classes", "head"),
        stage("classes, distilled", "head_dist"),
    ]
    return [one for stages in walk for one in stages]


def _relative(stage: _Walker) -> list[Stage]:
    """Tables of relative positions, or what computes them."""
    model, config = stage.model, stage.model.config
    if model.rel_pos is None:
        return []
    macs = 0
    if config.position == "relative_mlp":  # every layer computes its biases, or all layers the same
        offsets = (2 * config.grid[0] - 1) * (2 * config.grid[1] - 1)
        macs = config.layers * offsets * config.relative_size * (2 + config.heads)
    shape = next((tuple(own.shape) for name, own in model.rel_pos.named_parameters() if name == "0.table"), None)
    parameters = sum(own.numel() for own in model.rel_pos.parameters())
    return [Stage("relative positions", shape or (config.heads, config.tokens, config.tokens), parameters, macs)]


def _layers(stage: _Walker) -> list[list[Stage]]:
    config = stage.model.config
    H, N, D_h = config.heads, config.tokens, config.head_size
    attending = [layer for layer in range(config.layers) if layer not in config.conv_layers]
    products = 2 * N * N * config.hidden_size  # q k^T, and its softmax with v
    if config.position == "relative":
        products += N * (2 * N - 1) * config.hidden_size  # q with every offset
    return [
        stage.layers("norm 1", "norm1"),
        stage.layers("depthwise convolution", "attn.depthwise"),
        stage.layers("pointwise convolution", "attn.proj", config.conv_layers),
        *(stage.layers(f"convolution of {part}", f"attn.convolve.{part}") for part in "qkv"),
        [replace(one, macs=3 * N * config.hidden_size**2) for one in stage.layers("q, k, v", "attn.qkv")],
        [Stage("q of each head (k, v alike)", (H, N, D_h), times=len(attending))] if attending else [],
        [Stage("attention, per head", (H, N, N), macs=products, times=len(attending))] if attending else [],
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
class _Walker:
    """Makes the stages of modules; none of those that the model lacks."""

    model: VisionTransformer
    measured: Measured

    def __call__(
        self, name: str, module: str, shape: tuple[int, ...] | None = None, *, always: bool = False
    ) -> list[Stage]:
        parameters = self._parameters(module)
        if not parameters and not always:
            return []
        shape = shape or self.measured.shapes[module]
        return [Stage(name, shape, parameters, self.measured.macs_of.get(module, 0))]

    def layers(self, name: str, module: str, among: Sequence[int] | None = None) -> list[Stage]:
        """One stage for a module of the blocks, as often as there are layers that have it."""
        among = range(len(self.model.blocks)) if among is None else among
        having = [layer for layer in among if self._parameters(f"blocks.{layer}.{module}")]
        if not having:
            return []
        first = f"blocks.{having[0]}.{module}"
        shape = self.measured.shapes.get(first, (self.model.config.tokens, 3 * self.model.config.hidden_size))
        macs = self.measured.macs_of.get(first, 0)
        return [Stage(name, shape, self._parameters(first), macs, times=len(having))]

    def _parameters(self, module: str) -> int:
        try:
            found = self.model.get_submodule(module)
        except AttributeError:
            return 0
        return sum(parameter.numel() for parameter in found.parameters())
