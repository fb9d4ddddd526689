"""What dropout, stochastic depth and patch dropout draw for each image, whichever process computes it and in whichever
piece of a batch.

`--method lora`: each weight matrix of the blocks may change by a product of two thin ones (arXiv 2106.09685).

`--method probe-sgd`: the backbone is frozen, and its head is trained by gradient as any other model is.

Patch dropout: training on a random part of every image's patches costs as much less (arXiv 2208.07220).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from vitkit.errors import VitkitError
from vitkit.model.build import Model, vit_of
from vitkit.model.config import ViTConfig
from vitkit.model.layers import Dropout, DropPath, draw_keys, random_bits
from vitkit.model.network import Network
from vitkit.model.vit import VisionTransformer

_ADAPTED = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")


class LowRank(nn.Module):
    """W -> W + alpha / r * B A (sec. 4.1); B begins as zeros, so nothing changes at first.

    Args:
        weight: (out, in), the matrix that stays as it is.
        rank: r, of the change.
        generator: draws A.
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
    """Freeze the model but for its heads, and let the blocks' matrices change by products of this rank.

    Returns:
        The names of the matrices.
    """
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.startswith("head")
    generator, adapted = torch.Generator().manual_seed(seed), []
    for name, module in model.blocks.named_modules():
        if isinstance(module, nn.Linear) and name.split(".", 1)[-1] in _ADAPTED:
            parametrize.register_parametrization(module, "weight", LowRank(module.weight, rank, generator))
            adapted.append(f"blocks.{name}.weight")
    return adapted


def count_trained(model: Model) -> str:
    """`294,912 of 22,000,000 parameters`."""
    own = list(model.parameters())
    return f"{sum(p.numel() for p in own if p.requires_grad):,} of {sum(p.numel() for p in own):,} parameters"


def merged(model: Model) -> Model:
    """A plain model in which the changes are part of the matrices; the model itself where there are none."""
    changed = {name: module for name, module in model.named_modules() if parametrize.is_parametrized(module)}
    if not changed:
        return model
    state = {name: tensor for name, tensor in model.state_dict().items() if ".parametrizations." not in name}
    state |= {f"{name}.weight": module.weight.detach() for name, module in changed.items()}
    plain = VisionTransformer(vit_of(model, "method lora").config)
    plain.load_state_dict(state)
    return plain


_HEADS = ("pre_logits", "head", "head_dist")


def heads_of(model: nn.Module) -> list[nn.Module]:
    """What makes logits of features: the head, a distilled model's second one, the representation layer if kept."""
    if isinstance(model, Network):
        return [] if model.head is None else [model.head]
    # Into the space of texts leads a layer of the backbone's.
    is_shared = isinstance(model, VisionTransformer) and model.config.representation == "unit"
    heads = _HEADS[1:] if is_shared else _HEADS
    return [module for name, module in model.named_children() if name in heads]


def freeze_backbone(model: Model) -> list[str]:
    """Freeze all but the heads.

    Returns:
        The names of the tensors that are trained.
    """
    trained = {id(parameter) for module in heads_of(model) for parameter in module.parameters()}
    for parameter in model.parameters():
        parameter.requires_grad = id(parameter) in trained
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


class PatchDropout(nn.Module):
    """(B, N, D) tokens -> in training, those ahead of the patches and a random part of the patches, in their order.

    Each image loses others. In evaluation nothing is lost.

    Args:
        rate: the part that is dropped; one patch stays at least.
        ahead: tokens ahead of the patches.

    Attributes:
        keys: (B,) int32, random: what an image loses depends on its own alone; None takes torch's generator.
    """

    def __init__(self, rate: float, ahead: int) -> None:
        super().__init__()
        self.rate, self.ahead = rate, ahead
        self.keys: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        B, N, D = x.shape
        patches = N - self.ahead
        kept = max(1, round(patches * (1 - self.rate)))
        if not self.training or kept == patches:
            return x
        keys = draw_keys(x) if self.keys is None else self.keys
        drawn = random_bits(keys, patches).argsort(dim=1, stable=True)[:, :kept]
        rows = self.ahead + drawn.sort(dim=1).values  # (B, kept)
        return torch.cat([x[:, : self.ahead], x.gather(1, rows.unsqueeze(2).expand(B, kept, D))], dim=1)

    def extra_repr(self) -> str:
        return f"rate={self.rate:.3f}"


def drop_patches(model: VisionTransformer, rate: float) -> None:
    """Let the model lose this part of its patches in training, once they have their positions (sec. 3.1)."""
    dropping = nn.Sequential(model.pos_drop, PatchDropout(rate, model.config.prefix_tokens))
    model.add_module("pos_drop", dropping.train(model.training))


def check_patch_dropout(config: ViTConfig) -> None:
    """Refuse a model that needs every patch in its place.

    Raises:
        VitkitError: positions act in every layer, or layers convolve.
    """
    if (why := needs_every_patch(config)) is not None:
        raise VitkitError(f"--patch-dropout: {why}")


def needs_every_patch(config: ViTConfig) -> str | None:
    """Why a model cannot do without some of the patches; None where it can."""
    if config.positions_in_layers:
        return "positions act in every layer of this model, which needs all patches"
    if config.conv_layers or config.projection == "conv" or config.mlp_kind == "conv":
        return "layers of this model convolve, which needs all patches"
    return None


Keys = Tensor  # (layers, B) int32


class Draws:
    """A random number for each image of a batch and each layer of a model that draws; the layers go by these alone.

    Args:
        model: whose layers of rates above 0 are meant.
    """

    def __init__(self, model: nn.Module) -> None:
        self._is_network = isinstance(model, Network)
        kinds = (Dropout, DropPath, PatchDropout)
        self._layers = [module for module in model.modules() if isinstance(module, kinds) and module.rate > 0]

    def of(self, seed: int, places: range, device: torch.device) -> Keys:
        """The numbers of some images of a batch.

        Args:
            seed: of the batch.
            places: which images of it, counted over all processes.
            device: where the model is.
        """
        whole = np.random.default_rng(seed)
        layers = 1 if self._is_network else len(self._layers)
        drawn = whole.integers(-(2**31), 2**31, (max(places, default=-1) + 1, layers), dtype=np.int32)
        return torch.from_numpy(drawn[places.start : places.stop : places.step].T.copy()).to(device, non_blocking=True)

    @contextmanager
    def using(self, keys: Keys) -> Iterator[None]:
        """Let the layers draw by these numbers, in the pass forward and in blocks that the pass backward repeats."""
        if self._is_network:  # its layers draw from torch's generator, for all images of a piece at once
            with torch.random.fork_rng():
                torch.manual_seed(int(keys[0, 0]) & 0xFFFFFFFF)
                yield
            return
        for layer, own in zip(self._layers, keys, strict=True):
            layer.keys = own
        try:
            yield
        finally:
            for layer in self._layers:
                layer.keys = None
