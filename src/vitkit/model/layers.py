"""The small layers that models are built from: norms, dropout, activations, heads, fused attention, attention pooling.

`initialise` draws initial weights as in the paper's reference implementation or in its PyTorch re-implementations.
`evaluating` switches a model to evaluation mode temporarily, and may be used by several threads at once.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig
from vitkit.model.position import BiasTable, Learned2D, RelativePosition

QUICK = 1.702  # the factor of `QuickGELU`


class RMSNorm(nn.RMSNorm):
    """Normalisation by the root mean square, without the mean and the bias of LayerNorm (arXiv 1910.07467)."""

    eps: float

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.weight is None else x.to(self.weight.dtype)  # float32 under autocast, as LayerNorm computes
        return super().forward(x)


Norm = nn.LayerNorm | RMSNorm


class DropPath(nn.Module):
    """Stochastic depth (arXiv 1603.09382): zero a residual branch for random samples, and scale it for the others.

    Attributes:
        rate: the probability that a sample is dropped.
        keys: random numbers (B,) int32 that determine which samples are dropped; None to draw them from torch's
            generator.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate  # a Python float, as a model on the meta device has no values
        self.keys: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.rate == 0.0 or not self.training:
            return x
        mask = survives(draw_keys(x) if self.keys is None else self.keys, self.rate)  # (B,)
        return x * mask.view(-1, *[1] * (x.ndim - 1)) / (1.0 - self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate:.3f}"


class Dropout(nn.Module):
    """Dropout (arXiv 1207.0580): zero random values, and scale the others.

    Attributes:
        rate: the probability that a value is dropped.
        keys: random numbers (B,) int32, each of which determines the dropped values of one sample; None to use torch's
            dropout.
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
    """Draw a random number for each sample of a batch from torch's generator: (B,) int32."""
    return torch.randint(-(2**31), 2**31, (x.shape[0],), dtype=torch.int32, device=x.device)


def random_bits(keys: Tensor, count: int) -> Tensor:
    """Expand keys (B,) int32 to random numbers (B, count) int32.

    Each row depends only on its key, and is the same on every device.
    """
    counter = torch.arange(count, dtype=torch.int32, device=keys.device)
    return _scramble(keys[:, None] ^ _scramble(counter))


def survives(bits: Tensor, rate: float) -> Tensor:
    """Turn random int32 numbers into a mask that is False with probability `rate`."""
    return bits >= min(round(rate * 2**32) - 2**31, 2**31 - 1)  # the bits are uniform from -2^31 to 2^31 - 1


def _scramble(x: Tensor) -> Tensor:
    """Hash int32 numbers one to one, so that each bit of the result depends on all bits of x (Wellons' lowbias32).

    The products overflow on purpose.
    """
    x = (x ^ (x >> 16 & 0xFFFF)) * 0x7FEB352D
    x = (x ^ (x >> 15 & 0x1FFFF)) * (0x846CA68B - 2**32)
    return x ^ (x >> 16 & 0xFFFF)


class LayerScale(nn.Module):
    """A learned scale of each feature of a residual branch, initially small (arXiv 2103.17239, sec. 2)."""

    def __init__(self, dim: int, value: float) -> None:
        super().__init__()
        self.value = value
        self.gamma = nn.Parameter(torch.full((dim,), value))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Divide the last axis in two. Its size is a plain number, so that a traced graph does not compute it."""
    first, second = torch.split(x, int(x.shape[-1]) // 2, dim=-1)
    return first, second


class SwiGLU(nn.Module):
    """Gated activation SiLU(gate) * value (arXiv 2002.05202): (B, n, 2 mlp) -> (B, n, mlp).

    The first half of the input contains the gates, and the second half the values.
    """

    def forward(self, x: Tensor) -> Tensor:
        gate, value = halves(x)  # (B, n, mlp) each
        return F.silu(gate) * value


class QuickGELU(nn.Module):
    """The activation of OpenAI's CLIP, x sigmoid(1.702 x) (arXiv 1606.08415, sec. 2)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(x * QUICK) * (1 / QUICK)


class UnitLength(nn.Module):
    """Scale each feature vector to length 1, so that the head computes cosines (CLIP, arXiv 2103.00020, fig. 3)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)


class PatchConvolution(nn.Conv2d):
    """E of eq. 1: (B, C, height, width) -> (B, D, h, w), a convolution whose stride is the size of its kernel.

    On a GPU, the layer computes one matrix product over the flattened patches, as in the paper, because the kernels
    that cuDNN chooses for such a convolution take several times as long.
    """

    def forward(self, images: Tensor) -> Tensor:
        B, C, height, width = images.shape
        P, Q = self.kernel_size
        if not images.is_cuda or height % P or width % Q:
            return super().forward(images)
        x = images.reshape(B, C, height // P, P, width // Q, Q).permute(0, 2, 4, 1, 3, 5).flatten(3)  # (B, h, w, C*P*Q)
        return F.linear(x, self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)


class TokenConvolution(nn.Module):
    """Apply a depthwise 3x3 convolution to the patch grid of a sequence: (B, N, C) -> (B, N, C).

    Prefix tokens stay unchanged. A sequence that contains only prefix tokens is returned unchanged, too.
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
    """The linear layer that computes logits. It computes in the precision of its weights, even under autocast.

    Bfloat16 has two to three significant digits, so logits of 9.97 and 10.03 would be equal. Such rounding would affect
    the loss, the choice of the best epoch and all metrics.
    """

    def forward(self, x: Tensor) -> Tensor:
        return _exact_linear(x.to(self.weight.dtype), self.weight, self.bias)


class FeatureHead(Head):
    """A head that returns the logits and its input in one tensor: (B, D) -> (B, K + D).

    `weight` contains the weights of the classes, followed by the identity matrix. Code that computes the linear layer
    itself from `weight` and `bias` therefore returns logits and input, too.

    Attributes:
        classes: K, the number of logits.
    """

    def __init__(self, head: nn.Linear) -> None:
        self.classes, features = head.weight.shape
        super().__init__(features, self.classes + features, device=head.weight.device, dtype=head.weight.dtype)
        with torch.no_grad():
            self.weight.copy_(torch.cat([head.weight, torch.eye(features).to(head.weight)]))
            self.bias.zero_()
            if head.bias is not None:
                self.bias[: self.classes] = head.bias
        self.requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.weight.dtype)
        logits = _exact_linear(x, self.weight[: self.classes], self.bias[: self.classes])  # the same bits as the head's
        return torch.cat([logits, x], dim=-1)


class LogitsAndFeatures(nn.Module):
    """Wrap a model that has a `FeatureHead`, and return its logits (B, K) and features (B, D) as two tensors."""

    def __init__(self, model: nn.Module, classes: int) -> None:
        super().__init__()
        self.model, self.classes = model, classes

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        both: Tensor = self.model(images)
        return both[:, : self.classes], both[:, self.classes :]


def _exact_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute a linear layer in the precision of its weights, even under autocast, and each row independently.

    On Intel processors, the last bits of a row depend on its position in the batch if there are fewer than four
    outputs. The logits of an image would then depend on the other images, so CPUs compute at least four outputs.
    """
    kind, outputs = x.device.type, len(weight)
    if kind == "cpu" and outputs < 4:
        weight = F.pad(weight, (0, 0, 0, 4 - outputs))
        bias = None if bias is None else F.pad(bias, (0, 4 - outputs))
        return _exact_linear(x, weight, bias)[..., :outputs].contiguous()
    if kind == "meta" or not torch.is_autocast_enabled(kind):  # the meta device has no autocast
        return F.linear(x, weight, bias)
    with torch.autocast(kind, enabled=False):
        return F.linear(x, weight, bias)


def activation(config: ViTConfig) -> nn.Module:
    """Create the activation of a configuration: a GELU (exact, with tanh, or CLIP's), or another function."""
    others = {"relu": nn.ReLU, "silu": nn.SiLU, "tanh": nn.Tanh, "leaky_relu": nn.LeakyReLU}
    if config.activation != "gelu":
        return others[config.activation]()
    return QuickGELU() if config.gelu == "quick" else nn.GELU(approximate="tanh" if config.gelu == "tanh" else "none")


def norm_layer(config: ViTConfig, size: int | None = None) -> Norm:
    """Create LN of eqs. 2-4, or the norm that the configuration uses instead.

    `size` is the number of features; None for the hidden size.
    """
    kind = RMSNorm if config.norm_kind == "rms" else nn.LayerNorm
    return kind(config.hidden_size if size is None else size, config.norm_eps)


def layer_scale(config: ViTConfig) -> nn.Module:
    """Create a LayerScale, or an identity if the configuration has none."""
    return nn.Identity() if config.layer_scale is None else LayerScale(config.hidden_size, config.layer_scale)


def learned_tokens(number: int, config: ViTConfig) -> nn.Parameter | None:
    """Create a parameter of learned tokens that precede the patches, (1, number, D); None if `number` is 0."""
    return nn.Parameter(torch.zeros(1, number, config.hidden_size)) if number else None


_LOCK = threading.Lock()
# For each model, how many threads are evaluating it, and its modules that were in training mode.
_EVALUATED: WeakKeyDictionary[nn.Module, tuple[int, list[nn.Module]]] = WeakKeyDictionary()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch all modules of a model to evaluation mode, and restore their modes afterwards.

    In training mode, dropout and stochastic depth would make predictions random, and batch norms would update their
    statistics. Several threads may use the model at once: the first one switches the modes, the last one restores them.
    """
    with _LOCK:
        count, training = _EVALUATED.get(model, (0, []))
        training = [*training, *(module for module in model.modules() if module.training)]
        for module in training:
            module.training = False
        _EVALUATED[model] = (count + 1, training)
    try:
        yield
    finally:
        with _LOCK:
            count, training = _EVALUATED.pop(model)
            if count > 1:
                _EVALUATED[model] = (count - 1, training)
            else:
                for module in training:
                    module.training = True


def attend_fused(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Compute eqs. 6-7 by one kernel. The result has the shape of q.

    q is (B, H, n, D_h) for attention to all tokens, or (B, W, H, S, D_h) for attention within W windows (`windows`).
    """
    if q.ndim == 4:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
    B, W = q.shape[:2]
    mask = None if bias is None else bias.expand(B, -1, -1, -1, -1).flatten(0, 1)
    q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).view(B, W, *q.shape[1:])


class AttentionPool(nn.Module):
    """Attention pooling: one learned query attends to all tokens, and a residual MLP follows.

    The layer is described in arXiv 2106.04560, sec. 2.2, and used by SigLIP. The names of its parameters are those of
    timm's `AttentionPoolLatent`.

    Args:
        config: the configuration of the model.
        mlp: the class of the MLPs in the encoder blocks.
    """

    def __init__(self, config: ViTConfig, mlp: Callable[[ViTConfig], nn.Module]) -> None:
        super().__init__()
        D = config.hidden_size
        self.heads = config.pool_heads or config.heads
        self.scale = (D // self.heads) ** -0.5
        self.latent = nn.Parameter(torch.zeros(1, 1, D))
        self.q, self.kv, self.proj = nn.Linear(D, D), nn.Linear(D, 2 * D), nn.Linear(D, D)
        self.norm = norm_layer(config)
        mlp_size = config.pool_mlp_size or config.mlp_size
        self.mlp = mlp(config.replace(mlp_size=mlp_size, mlp_norm=False, proj_bias=True))

    def query(self) -> Tensor:
        """Return the projected query, which is the same for every image: (1, H, 1, D_h)."""
        return self.q(self.latent).unflatten(2, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Pool tokens (B, N, D) into one vector for each image, (B, D)."""
        k, v = (torch.unflatten(part, 2, (self.heads, -1)).transpose(1, 2) for part in halves(self.kv(x)))
        q = self.query().to(k.dtype).expand(x.shape[0], -1, -1, -1)
        x = F.scaled_dot_product_attention(q, k, v, scale=self.scale)  # (B, H, 1, D_h)
        x = self.proj(x.transpose(1, 2).flatten(2))  # (B, 1, D)
        return (x + self.mlp(self.norm(x)))[:, 0]


@torch.no_grad()
def initialise(model: nn.Module, patches: nn.Conv2d, how: Literal["trunc_normal", "reference"]) -> None:
    """Draw initial values of all parameters from torch's global generator. `patches` embeds the patches.

    A model on the meta device stays unchanged.
    """
    if patches.weight.is_meta:
        return
    for module in model.modules():
        if isinstance(module, (nn.LayerNorm, nn.GroupNorm, RMSNorm)):
            if module.weight is not None:  # norms of a registered block may lack either
                nn.init.ones_(module.weight)
            if isinstance(bias := getattr(module, "bias", None), Tensor):
                nn.init.zeros_(bias)
        elif isinstance(module, (Learned2D, RelativePosition, BiasTable)):
            for parameter in module.parameters():
                nn.init.trunc_normal_(parameter, std=0.02)
        elif callable(own_initialise := getattr(module, "initialise", None)):  # e.g. rotary positions
            own_initialise()
        elif isinstance(module, AttentionPool):
            nn.init.trunc_normal_(module.latent, std=module.latent.shape[-1] ** -0.5)
        elif isinstance(module, LayerScale):
            nn.init.constant_(module.gamma, module.value)
        elif isinstance(module, nn.Conv2d) and module is not patches:  # of a stem or a convolutional layer
            _lecun_normal(module.weight)
            _zero_bias(module)
    {"trunc_normal": _trunc_normal, "reference": _reference}[how](model, patches)


def _trunc_normal(model: nn.Module, patches: nn.Conv2d) -> None:
    """Initialise with truncated normals, as timm, DeiT and the scripts derived from them do."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.01)
            _zero_bias(module)
    nn.init.kaiming_normal_(patches.weight, mode="fan_out")
    _zero_bias(patches)
    for parameter in model.parameters(recurse=False):  # tokens and positions
        nn.init.trunc_normal_(parameter, std=0.02)


def _reference(model: nn.Module, patches: nn.Conv2d) -> None:
    """Initialise as the authors' Flax modules do: Xavier in the encoder, LeCun for patches, zeros for the head."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            _zero_bias(module)
            if name in ("head", "head_dist"):
                nn.init.zeros_(module.weight)
            elif name == "pre_logits.fc":
                _lecun_normal(module.weight)
            elif name.endswith("attn.qkv"):
                for part in module.weight.chunk(3):  # q, k and v one by one: the fan-out of the whole matrix is 3D
                    nn.init.xavier_uniform_(part)
            else:
                nn.init.xavier_uniform_(module.weight)
                if ".mlp." in name and module.bias is not None:
                    nn.init.normal_(module.bias, std=1e-6)
        elif isinstance(module, nn.GroupNorm) and name.endswith("norm3"):
            nn.init.zeros_(module.weight)  # so that each residual unit of the stem begins as the identity
    _lecun_normal(patches.weight)
    _zero_bias(patches)
    for name, parameter in model.named_parameters(recurse=False):
        if name == "cls_token":
            nn.init.zeros_(parameter)
        else:
            nn.init.normal_(parameter, std=0.02)


def _lecun_normal(weight: Tensor) -> None:
    # As `jax.nn.initializers.lecun_normal`: a normal distribution of variance 1 / fan_in, truncated at two deviations.
    fan_in = weight[0].numel()
    std = math.sqrt(1.0 / fan_in) / 0.87962566103423978  # the standard deviation of a truncated unit normal
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def _zero_bias(module: nn.Linear | nn.Conv2d) -> None:
    if module.bias is not None:
        nn.init.zeros_(module.bias)


class Layers(nn.Sequential):
    """The encoder layers. As in timm, `model.blocks(tokens)` applies all of them: (B, N, D) -> (B, N, D)."""

    positions_in_layers = False

    def forward(self, x: Tensor, apply: Callable[[int, Tensor], Tensor] | None = None) -> Tensor:
        """Apply all layers in turn, each by `apply(i, x)` if given, which also adds the positions of layer i."""
        if apply is None and self.positions_in_layers:
            raise VitkitError(
                "model.positions-missing",
                "these layers use positions, which blocks(tokens) would leave out: use encode(tokens)",
            )
        for i, block in enumerate(self):
            x = block(x) if apply is None else apply(i, x)
        return x

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)
        if isinstance(part, Layers):
            part.positions_in_layers = self.positions_in_layers
        return part
