"""Small layers that the model is built with.

How a model's parts compute, set for all of them at once.

Attention pooling: what the head reads is asked of all tokens by one learned query (MAP; SigLIP's head).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.model.config import ViTConfig

QUICK = 1.702


class RMSNorm(nn.RMSNorm):
    """x divided by its root mean square: no mean is taken off and nothing is added (arXiv 1910.07467)."""

    eps: float

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.weight is None else x.to(self.weight.dtype)  # autocast has it in float32, as LayerNorm
        return super().forward(x)


Norm = nn.LayerNorm | RMSNorm


class DropPath(nn.Module):
    """Stochastic depth (arXiv 1603.09382): drops a residual branch for whole samples, keeping the expectation.

    Attributes:
        keys: (B,) int32, random: which samples are dropped depends on them alone; None takes torch's generator.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate  # a Python float, so that a model can be built on the meta device
        self.keys: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.rate == 0.0 or not self.training:
            return x
        mask = survives(draw_keys(x) if self.keys is None else self.keys, self.rate)  # (B,)
        return x * mask.view(-1, *[1] * (x.ndim - 1)) / (1.0 - self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate:.3f}"


class Dropout(nn.Module):
    """Drops single numbers, keeping the expectation (arXiv 1207.0580): torch's, unless there are keys.

    Attributes:
        keys: (B,) int32, random: what a sample loses depends on its own alone, not on the samples beside it.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.keys: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.rate == 0.0 or not self.training:
            return x
        if self.keys is None:
            return F.dropout(x, self.rate)
        mask = survives(random_bits(self.keys, x[0].numel()), self.rate)  # (B, numbers)
        return x * mask.view(x.shape) / (1.0 - self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate:.3f}"


def draw_keys(x: Tensor) -> Tensor:
    """A random number for each sample of a batch, from torch's generator: (B,) int32."""
    return torch.randint(-(2**31), 2**31, (x.shape[0],), dtype=torch.int32, device=x.device)


def random_bits(keys: Tensor, numbers: int) -> Tensor:
    """(B,) int32 -> (B, numbers) int32, random: each row a function of its key, the same on every device."""
    counter = torch.arange(numbers, dtype=torch.int32, device=keys.device)
    return _scramble(keys[:, None] ^ _scramble(counter))


def survives(bits: Tensor, rate: float) -> Tensor:
    """Random int32 -> bool: each is dropped with this probability."""
    return bits >= min(round(rate * 2**32) - 2**31, 2**31 - 1)


def _scramble(x: Tensor) -> Tensor:
    """A bijection of int32, each bit of which depends on every bit of x (Wellons' lowbias32); products wrap round."""
    x = (x ^ (x >> 16 & 0xFFFF)) * 0x7FEB352D
    x = (x ^ (x >> 15 & 0x1FFFF)) * (0x846CA68B - 2**32)
    return x ^ (x >> 16 & 0xFFFF)


class LayerScale(nn.Module):
    """A learned factor for each feature of a residual branch, small at first (CaiT, arXiv 2103.17239, sec. 2)."""

    def __init__(self, dim: int, value: float) -> None:
        super().__init__()
        self.value = value
        self.gamma = nn.Parameter(torch.full((dim,), value))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class SwiGLU(nn.Module):
    """Gate and value, side by side, in; the value let through by the gate out (arXiv 2002.05202)."""

    def forward(self, x: Tensor) -> Tensor:
        gate, value = x.chunk(2, dim=-1)  # (B, n, mlp) each
        return F.silu(gate) * value


class QuickGELU(nn.Module):
    """x sigmoid(1.702 x), which OpenAI's CLIP was trained with (arXiv 1606.08415, sec. 2)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(x * QUICK) * (1 / QUICK)


class UnitLength(nn.Module):
    """Features divided by their length, so that the head computes cosines (CLIP, arXiv 2103.00020, fig. 3)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)


class TokenConvolution(nn.Module):
    """Depthwise 3x3 convolution over the patch grid of a sequence; the tokens ahead of the patches pass unchanged.

    (B, N, C) -> (B, N, C). A sequence cut down to its first tokens, none of them a patch, passes whole.
    """

    def __init__(self, channels: int, grid: tuple[int, int], prefix_tokens: int) -> None:
        super().__init__()
        self.grid, self.prefix_tokens = grid, prefix_tokens
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        if self.prefix_tokens >= N:
            return x
        prefix, patches = x[:, : self.prefix_tokens], x[:, self.prefix_tokens :]
        patches = self.conv(patches.transpose(1, 2).reshape(B, C, *self.grid))  # (B, C, h, w)
        return torch.cat([prefix, patches.flatten(2).transpose(1, 2)], dim=1)


class Head(nn.Linear):
    """The layer that makes logits, in the precision of its weights: autocast does not round them.

    Bfloat16 has three digits: logits of 9.97 and 10.03 would tie, and the loss, the best epoch and every figure made
    of them would see the steps.
    """

    def forward(self, x: Tensor) -> Tensor:
        kind, x = x.device.type, x.to(self.weight.dtype)
        if not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):  # the meta device has none
            return super().forward(x)
        with torch.autocast(kind, enabled=False):
            return super().forward(x)


def gelu(config: ViTConfig) -> nn.Module:
    """The exact GELU, the reference implementation's approximation, or CLIP's."""
    return QuickGELU() if config.gelu == "quick" else nn.GELU(approximate="tanh" if config.gelu == "tanh" else "none")


def norm_layer(config: ViTConfig, size: int | None = None) -> Norm:
    """LN of eqs. 2-4, of tokens or of vectors of another size; or the norm that stands in its place."""
    kind = RMSNorm if config.norm_kind == "rms" else nn.LayerNorm
    return kind(config.hidden_size if size is None else size, config.norm_eps)


def layer_scale(config: ViTConfig) -> nn.Module:
    """LayerScale where the configuration has it."""
    return nn.Identity() if config.layer_scale is None else LayerScale(config.hidden_size, config.layer_scale)


def extra_tokens(number: int, config: ViTConfig) -> nn.Parameter | None:
    """Learned tokens ahead of the patches (1, number, D), where there are any."""
    return nn.Parameter(torch.zeros(1, number, config.hidden_size)) if number else None


def heads(config: ViTConfig) -> tuple[nn.Module, Head | None, Head | None]:
    """The representation layer (sec. 3.1), the head, and DeiT's second one."""
    pooled = 2 * config.hidden_size if config.pool == "token+gap" else config.hidden_size
    pre_logits: nn.Module = nn.Identity()
    if config.representation_size is not None:
        is_unit = config.representation == "unit"
        layer = nn.Linear(pooled, config.representation_size, bias=not is_unit)
        pre_logits = nn.Sequential(OrderedDict(fc=layer, act=UnitLength() if is_unit else nn.Tanh()))
    if config.num_classes == 0:
        return pre_logits, None, None
    head = Head(config.feature_size, config.num_classes)
    return pre_logits, head, Head(config.hidden_size, config.num_classes) if config.distill_head else None


_LOCK = threading.Lock()
_ASKED: WeakKeyDictionary[nn.Module, tuple[int, list[nn.Module]]] = WeakKeyDictionary()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Have a model compute in evaluation mode, whatever mode its parts are in, and put them back afterwards.

    Dropout and stochastic depth would give another answer each time, and batch norms would learn from what they are
    asked. Several threads may ask at once: the first switches the modes, and the last puts them back.
    """
    with _LOCK:
        count, training = _ASKED.get(model, (0, []))
        training = [*training, *(module for module in model.modules() if module.training)]
        for module in training:
            module.training = False
        _ASKED[model] = (count + 1, training)
    try:
        yield
    finally:
        with _LOCK:
            count, training = _ASKED.pop(model)
            if count > 1:
                _ASKED[model] = (count - 1, training)
            else:
                for module in training:
                    module.training = True


class Computing:
    """Methods of `VisionTransformer` that reach into all of its parts."""

    @property
    def fused_attention(self: Any) -> bool:
        """Whether eqs. 6-7 are one kernel; written out they give the same numbers."""
        return all(block.attn.fused for block in self.blocks if hasattr(block.attn, "fused"))

    @fused_attention.setter
    def fused_attention(self: Any, fused: bool) -> None:
        for block in self.blocks:
            if hasattr(block.attn, "fused"):
                block.attn.fused = fused

    def rebuild_tables(self: Any) -> None:
        """Compute the fixed tables anew, beside the parameters, after the model left the meta device."""
        for module in self.modules():
            if module is not self and hasattr(module, "rebuild_tables"):
                module.rebuild_tables(self.patch_embed.proj.weight)


def pooling_mlp(config: ViTConfig) -> ViTConfig:
    """The configuration that attention pooling's own MLP is of."""
    return config.replace(mlp_size=config.pool_mlp_size or config.mlp_size, mlp_norm=False, proj_bias=True)


class AttentionPool(nn.Module):
    """One learned query attends to all tokens, and an MLP with a residual follows (arXiv 2106.04560, sec. 2.2).

    Its parameters are named as timm's `AttentionPoolLatent`.

    Args:
        config: whose heads it has.
        mlp: as in the blocks.
    """

    def __init__(self, config: ViTConfig, mlp: nn.Module) -> None:
        super().__init__()
        D = config.hidden_size
        self.heads = config.pool_heads or config.heads
        self.scale = (D // self.heads) ** -0.5
        self.latent = nn.Parameter(torch.zeros(1, 1, D))
        self.q, self.kv, self.proj = nn.Linear(D, D), nn.Linear(D, 2 * D), nn.Linear(D, D)
        self.norm, self.mlp = norm_layer(config), mlp

    def query(self) -> Tensor:
        """What is asked, the same of every image: (1, H, 1, D_h)."""
        return self.q(self.latent).unflatten(2, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) tokens -> (B, D)."""
        k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.kv(x).chunk(2, dim=-1))
        q = self.query().to(k.dtype).expand(x.shape[0], -1, -1, -1)
        x = F.scaled_dot_product_attention(q, k, v, scale=self.scale)  # (B, H, 1, D_h)
        x = self.proj(x.transpose(1, 2).flatten(2))  # (B, 1, D)
        return (x + self.mlp(self.norm(x)))[:, 0]
