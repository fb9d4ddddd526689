"""What a model costs: parameters, multiply-accumulates, memory, and the walk of an image through it.

Everything is measured on the meta device, where tensors have no storage, so H/14 costs nothing to ask about.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from vitkit.config import ViTConfig
from vitkit.metering import Measured, measure
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
    model, one, two = (_build(config.replace(layers=layers)) for layers in (config.layers, 1, 2))
    images = torch.empty(1, config.in_channels, *config.image_size, device="meta")
    executed_one, executed_two = measure(one, images), measure(two, images)
    one.shortcut = two.shortcut = False
    full_one, full_two = measure(one, images), measure(two, images)

    def of_all_layers(first: int, second: int) -> int:
        return first + (config.layers - 1) * (second - first)

    parameters = sum(parameter.numel() for parameter in model.parameters())
    return ModelInfo(
        config=config,
        parameters=parameters,
        gmacs=of_all_layers(full_one.macs, full_two.macs) / 1e9,
        gmacs_executed=of_all_layers(executed_one.macs, executed_two.macs) / 1e9,
        weight_bytes={"float32": 4 * parameters, "bfloat16": 2 * parameters},
        activation_bytes=of_all_layers(full_one.kept_bytes, full_two.kept_bytes),
        stages=_stages(model, full_one),
    )


def _build(config: ViTConfig) -> VisionTransformer:
    with torch.device("meta"):
        return VisionTransformer(config).eval()


def _stages(model: VisionTransformer, measured: Measured) -> list[Stage]:
    """The walk through one layer, which stands for all; parameters and MACs sum to the whole model's."""
    config, shapes, macs = model.config, measured.shapes, measured.macs_of

    def stage(name: str, module: str, shape: tuple[int, ...] | None = None, times: int = 1) -> Stage:
        parameters = sum(p.numel() for p in model.get_submodule(module).parameters())
        return Stage(name, shape or shapes[module], parameters, macs.get(module, 0), times)

    L, H, N, D_h = config.layers, config.heads, config.tokens, config.head_size
    projections = ("blocks.0.attn.qkv", "blocks.0.attn.proj")
    products = macs["blocks.0.attn"] - sum(macs[name] for name in projections)
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
        Stage("what the head reads", (config.feature_size,)),
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
