"""Changes to a model before its training: low-rank adaptation, a frozen backbone, and patch dropout.

`--method lora` freezes the weight matrices of the blocks and learns a low-rank change of each (arXiv 2106.09685).
`--method probe-sgd` freezes the backbone and trains the head by gradient descent. Patch dropout trains on a random part
of every image's patches, which reduces the cost by about the same fraction (arXiv 2208.07220).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from vitkit.model.build import Model, vit_of
from vitkit.model.config import ViTConfig
from vitkit.model.layers import draw_keys, random_bits
from vitkit.model.network import Network
from vitkit.model.vit import VisionTransformer

_ADAPTED = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")


class LowRank(nn.Module):
    """The parametrization W + alpha / r * B A of a weight matrix W (out, in) that is not trained (sec. 4.1).

    A is drawn by the generator, and B starts as zeros.
    """

    def __init__(self, weight: Tensor, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        self.a = nn.Parameter(torch.empty(rank, inputs).normal_(std=1 / math.sqrt(inputs), generator=generator))
        self.b = nn.Parameter(torch.zeros(outputs, rank))
        self.scale = 2.0  # alpha / r, as is usual

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.scale * (self.b @ self.a)  # (out, in)


def add_low_rank(model: VisionTransformer, rank: int, seed: int) -> list[str]:
    """Freeze the model except its heads, and add a trainable low-rank change to the weight matrices of the blocks.

    Return the names of these matrices.
    """
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.startswith("head")
    generator = torch.Generator().manual_seed(seed)
    adapted = []
    for name, module in model.blocks.named_modules():
        if isinstance(module, nn.Linear) and name.split(".", 1)[-1] in _ADAPTED:
            parametrize.register_parametrization(module, "weight", LowRank(module.weight, rank, generator))
            adapted.append(f"blocks.{name}.weight")
    return adapted


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """Return the number of trainable parameters, and that of all parameters."""
    trainable = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return trainable, sum(parameter.numel() for parameter in model.parameters())


def merge_low_rank(model: Model) -> Model:
    """Return a copy in which the low-rank changes are added to the weights, or the model if it has no such changes."""
    changed = {name: module for name, module in model.named_modules() if parametrize.is_parametrized(module)}
    if not changed:
        return model
    state = {name: tensor for name, tensor in model.state_dict().items() if ".parametrizations." not in name}
    state |= {f"{name}.weight": module.weight.detach() for name, module in changed.items()}
    merged = VisionTransformer(vit_of(model, "method lora").config)
    merged.load_state_dict(state)
    return merged


def heads_of(model: nn.Module) -> list[nn.Module]:
    """Return the modules that turn features into logits: the heads and, if there is one, the representation layer."""
    if isinstance(model, Network):
        return [] if model.head is None else [model.head]
    # The projection into a space shared with texts belongs to the backbone.
    is_shared = isinstance(model, VisionTransformer) and model.config.representation == "unit"
    heads = ("head", "head_dist") if is_shared else ("pre_logits", "head", "head_dist")
    return [module for name, module in model.named_children() if name in heads]


def freeze_backbone(model: Model) -> list[str]:
    """Freeze all parameters except those of the heads, and return the names of the heads' parameters."""
    trained = {id(parameter) for module in heads_of(model) for parameter in module.parameters()}
    for parameter in model.parameters():
        parameter.requires_grad = id(parameter) in trained
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


class PatchDropout(nn.Module):
    """Drop a random part of the patch tokens of each image in training; keep all tokens in evaluation.

    The input is tokens (B, N, D), of which the first `prefix_tokens` are never dropped. At least one patch remains. The
    tokens keep their order.
    """

    def __init__(self, rate: float, prefix_tokens: int) -> None:
        super().__init__()
        self.rate, self.prefix_tokens = rate, prefix_tokens
        self.keys: Tensor | None = None  # a random number per image, (B,) int32; None for those of torch's generator

    def forward(self, x: Tensor) -> Tensor:
        B, N, D = x.shape
        patches = N - self.prefix_tokens
        kept = max(1, round(patches * (1 - self.rate)))
        if not self.training or kept == patches:
            return x
        keys = draw_keys(x) if self.keys is None else self.keys
        chosen = random_bits(keys, patches).argsort(dim=1, stable=True)[:, :kept]
        indices = self.prefix_tokens + chosen.sort(dim=1).values  # (B, kept), in the order of the tokens
        return torch.cat([x[:, : self.prefix_tokens], x.gather(1, indices.unsqueeze(2).expand(B, kept, D))], dim=1)

    def extra_repr(self) -> str:
        return f"rate={self.rate:.3f}"


def drop_patches(model: VisionTransformer, rate: float) -> None:
    """Add patch dropout to a model, directly after the position embeddings have been added (sec. 3.1)."""
    dropouts = nn.Sequential(model.pos_drop, PatchDropout(rate, model.config.prefix_tokens))
    model.add_module("pos_drop", dropouts.train(model.training))


def needs_every_patch(config: ViTConfig) -> str | None:
    """Return the reason why a model needs all patches of an image; None if some of the patches suffice."""
    if config.positions_in_layers:
        return "positions act in every layer of this model, which needs all patches"
    if config.conv_layers or config.projection == "conv" or config.mlp_kind == "conv":
        return "layers of this model convolve, which needs all patches"
    if config.attention in ("axial", "window"):
        return f"attention {config.attention!r} of this model needs all patches of its grid"
    return None
