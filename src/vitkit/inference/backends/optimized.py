"""An optimised copy of a model for prediction: the same results from fewer and larger operations.

When the copy is made, LayerScale, the affine part of LayerNorm and the scale of attention are folded into adjacent
linear layers. The folding is exact and is computed in float64. Patches are projected by a matrix product instead of a
convolution. Weights are stored in the layout of the CPU's matrix product (oneDNN). GELU and the residual sum are fused
into the matrix product, so that their operand is still in the cache.

With dtype bfloat16, attention and MLP compute in bfloat16, while the residual stream, the tokens and the input of the
head stay in float32. The float32 parts cost a few percent of the time and reduce the error of the logits by a seventh.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.model.hybrids import ConvMixer, ConvProjection, StandardisedConv2d
from vitkit.model.layers import (
    Dropout,
    DropPath,
    LayerScale,
    Norm,
    QuickGELU,
    RMSNorm,
    SwiGLU,
    TokenConvolution,
    attend_fused,
)
from vitkit.model.position import Relative
from vitkit.model.variants import OPTIMIZED, check
from vitkit.model.vit import MLP, Attention, Block, PatchEmbed, VisionTransformer


def fold_norm(linear: nn.Linear, norm: Norm | None) -> tuple[Tensor, Tensor]:
    """Fold the affine part of a norm, if there is one, into the following layer.

    Return the new weight (out, in) and bias (out,) of the layer in float64:

    W (x * g + b) + c = (W * g) x + (W b + c)
    """
    weight = linear.weight.double()
    bias = weight.new_zeros(len(weight)) if linear.bias is None else linear.bias.double()
    if norm is None:
        return weight, bias
    if not isinstance(norm, RMSNorm):  # an RMSNorm has no shift
        bias = bias + weight @ norm.bias.double()
    return weight * norm.weight.double(), bias


def fold_norm_into_qkv(qkv: nn.Linear, norm: Norm | None, scale: float) -> tuple[Tensor, Tensor]:
    """Fold a norm into the layer that computes q, k and v (see `fold_norm`), and the scale of attention into q."""
    weight, bias = fold_norm(qkv, norm)
    factor = torch.ones_like(bias)
    factor[: weight.shape[1]] = scale  # the rows of q
    return weight * factor[:, None], bias * factor


def fold_scale(linear: nn.Linear, scale: nn.Module, norm: nn.Module | None = None) -> tuple[Tensor, Tensor]:
    """Fold a norm before a layer and a LayerScale after it into the layer, if they exist; see `fold_norm`."""
    weight, bias = fold_norm(linear, norm if isinstance(norm, Norm) else None)
    gamma = scale.gamma.double() if isinstance(scale, LayerScale) else torch.ones_like(bias)
    return weight * gamma[:, None], bias * gamma


def without_affine(norm: nn.Module) -> nn.Module:
    """Return a copy of a `Norm` without its affine part; return any other module unchanged."""
    if not isinstance(norm, Norm):
        return norm
    kind = RMSNorm if isinstance(norm, RMSNorm) else nn.LayerNorm
    return kind(norm.normalized_shape, norm.eps, elementwise_affine=False)


@dataclass(frozen=True)
class Settings:
    """The settings of optimised layers: dtype, device, packing of weights by oneDNN, and kind of attention."""

    dtype: torch.dtype
    device: torch.device
    pack: bool
    attend: str = "fused"  # of `_ATTEND`

    @property
    def precise(self) -> Settings:
        """Return the same settings in float32."""
        return replace(self, dtype=torch.float32)


def convert_parameters(module: nn.Module, settings: Settings) -> None:
    """Replace the parameters and buffers of a module by copies in the dtype and on the device of `settings`.

    Kernels of `StandardisedConv2d` are standardised now instead of at each call.
    """
    for part in module.modules():
        if isinstance(part, StandardisedConv2d):
            part.weight = nn.Parameter(part.kernel())
            part.kind = None  # the kernel is not standardised again
        for name, parameter in list(part.named_parameters(recurse=False)):
            setattr(part, name, _converted(parameter, settings))
        for name, buffer in list(part.named_buffers(recurse=False)):
            setattr(part, name, buffer.to(settings.device, settings.dtype if buffer.is_floating_point() else None))


def _converted(parameter: nn.Parameter, settings: Settings) -> nn.Parameter:
    return nn.Parameter(parameter.detach().to(settings.device, settings.dtype, copy=True), requires_grad=False)


class _Linear(nn.Module):
    """A linear layer followed by a GELU or residual sum, in one operation if weights are packed."""

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor, settings: Settings, act: nn.GELU | None = None) -> None:
        super().__init__()
        self.pack = settings.pack
        self.act = act
        self.register_buffer("bias", bias.to(settings.device, settings.dtype, copy=True))
        weight = weight.to(settings.device, settings.dtype, copy=True).contiguous()
        if settings.pack:
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight)  # an opaque tensor cannot be a buffer
        else:
            self.register_buffer("weight", weight)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Compute (..., in) -> (..., out), and add the residual (..., out) if there is one."""
        if not self.pack:
            x = F.linear(x, self.weight, self.bias)
            if self.act is not None:
                x = self.act(x)
            return x if residual is None else residual + x
        linear = torch.ops.mkldnn._linear_pointwise
        if self.act is not None:
            x = linear(x, self.packed, self.bias, "gelu", [], self.act.approximate)
        elif residual is not None and residual.dtype == x.dtype:
            return linear.binary(x, residual.contiguous(), self.packed, self.bias, "add")
        else:
            x = linear(x, self.packed, self.bias, "none", [], "")
        return x if residual is None else residual + x


def can_pack(dtype: torch.dtype) -> bool:
    """Return whether torch supports oneDNN's matrix product with packed weights in this dtype on this CPU."""
    try:
        settings = Settings(dtype, torch.device("cpu"), pack=True)
        x = torch.ones(2, 16, dtype=dtype)
        _Linear(torch.ones(16, 16), torch.ones(16), settings)(x, x.clone())
    except (AttributeError, RuntimeError):
        return False
    return True


class PreparedPatchEmbed(nn.Module):
    """`PatchEmbed` as a matrix product in float32. The stem of a hybrid computes in the dtype of the layers."""

    def __init__(self, embed: PatchEmbed, settings: Settings) -> None:
        super().__init__()
        self.backbone = embed.backbone
        self.norm = embed.norm
        convert_parameters(self.backbone, settings)
        convert_parameters(self.norm, settings.precise)
        self.size = embed.proj.kernel_size
        weight = embed.proj.weight.flatten(1)  # (D, C*p*q)
        bias = weight.new_zeros(len(weight)) if embed.proj.bias is None else embed.proj.bias
        self.linear = _Linear(weight, bias, settings.precise)
        self.dtype = torch.float32 if isinstance(self.backbone, nn.Identity) else settings.dtype

    def forward(self, images: Tensor) -> Tensor:
        x = self.backbone(images.to(self.dtype)).float()
        B, C, height, width = x.shape
        p, q = self.size
        h, w = height // p, width // q
        x = x.reshape(B, C, h, p, w, q).permute(0, 2, 4, 1, 3, 5)  # (B, h, w, C, p, q)
        return self.norm(self.linear(x.reshape(B, h * w, C * p * q)))  # (B, h*w, D)


class _PreparedBlock(nn.Module):
    """An optimised `Block`, whose `attn` and `mlp` also receive the residual and add it to their output.

    In the last block, q may be computed only for the tokens that the head reads. If `is_split`, q therefore has its own
    linear layer.
    """

    def __init__(self, block: nn.Module, settings: Settings, *, is_split: bool) -> None:
        super().__init__()
        mixing, mlp = branches(block)
        self.order = mixing.order
        self.norm1: nn.Module = mixing.norm
        self.attn: nn.Module
        if isinstance(mixing.mix, Attention) and mixing.mix.convolve is None:
            self.norm1, folded = _split_norm(mixing)
            self.attn = _PreparedAttention(mixing.mix, folded, mixing.scale, settings, is_split=is_split)
        else:
            self.attn = _UnoptimisedMixing(mixing.mix, mixing.scale, settings)
        self.norm2, folded = _split_norm(mlp)
        assert isinstance(mlp.mix, MLP)
        self.mlp = _PreparedMLP(mlp.mix, folded, mlp.scale, settings)
        for norm in (self.norm1, self.norm2):
            convert_parameters(norm, settings.precise)

    def forward(self, x: Tensor, queries: int | None = None, relative: Relative | None = None) -> Tensor:
        def attend(x: Tensor, total: Tensor | None) -> Tensor:
            return self.attn(x, None if total is None else total[:, :queries], queries, relative)

        def add(total: Tensor, output: Tensor) -> Tensor:
            return total[:, :queries] + output

        x = residual_branch(self.order, x, self.norm1, attend, add)  # (B, n, D)
        return residual_branch(self.order, x, self.norm2, self.mlp, torch.add)


def _split_norm(branch: Branch) -> tuple[nn.Module, Norm | None]:
    """Return the norm to compute at run time, and the norm to fold into the next layer (`fold_norm`) or None."""
    if branch.order == "pre":  # the next layer reads the output of the norm
        return without_affine(branch.norm), branch.norm
    return branch.norm, None


class _UnoptimisedMixing(nn.Module):
    """A token-mixing layer that has no optimised form, followed by the residual sum."""

    def __init__(self, mix: nn.Module, scale: nn.Module, settings: Settings) -> None:
        super().__init__()
        self.mix = mix
        self.scale = scale
        self.dtype = settings.dtype
        convert_parameters(self, settings)

    def forward(self, x: Tensor, residual: Tensor | None, queries: int | None, relative: Relative | None) -> Tensor:
        x = self.scale(self.mix(x.to(self.dtype), queries, relative))
        return x.float() if residual is None else residual + x


class _PreparedAttention(nn.Module):
    """`Attention` followed by the residual sum, for all tokens or, if `is_split`, only the first ones."""

    def __init__(
        self, attention: Attention, norm: Norm | None, scale: nn.Module, settings: Settings, *, is_split: bool
    ) -> None:
        super().__init__()
        self.heads = attention.heads
        self.windows = attention.windows
        self.attend = _ATTEND[settings.attend]
        self.dtype = settings.dtype
        weight, bias = fold_norm_into_qkv(attention.qkv, norm, attention.scale)
        self.size = D = weight.shape[1]
        cuts = (0, D, 3 * D) if is_split else (0, 3 * D)  # q and kv, or qkv
        self.qkv = nn.ModuleList(_Linear(weight[a:b], bias[a:b], settings) for a, b in pairwise(cuts))
        self.norm = without_affine(attention.norm)
        self.proj = _Linear(*fold_scale(attention.proj, scale, attention.norm), settings)

    def forward(self, x: Tensor, residual: Tensor | None, queries: int | None, relative: Relative | None) -> Tensor:
        x = x.to(self.dtype)
        if len(self.qkv) == 1:
            parts = self.qkv[0](x).split(self.size, dim=-1)
        else:
            parts = (self.qkv[0](x[:, :queries]), *self.qkv[1](x).split(self.size, dim=-1))
        # Scaled q (B, H, n, D_h) of the first n = `queries` tokens; k and v (B, H, N, D_h) of all.
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        bias = None
        if relative is not None:
            q, k, bias = relative(q, k, 1.0)
        if self.windows is None:
            x = self.attend(q, k, v, bias)
        else:
            if bias is not None:
                bias = bias.to(q.dtype)
            x = self.windows(partial(attend_fused, scale=1.0), q, k, v, bias).transpose(1, 2).flatten(2)
        x = self.proj(self.norm(x), residual)  # eq. 8: the concatenated heads (B, n, D)
        return x.float() if residual is None else x


class _PreparedMLP(nn.Module):
    """`MLP` followed by the residual sum."""

    def __init__(self, mlp: MLP, norm: Norm | None, scale: nn.Module, settings: Settings) -> None:
        super().__init__()
        self.dtype = settings.dtype
        weight, bias = fold_norm(mlp.fc1, norm)
        self.between: nn.Module
        if isinstance(mlp.conv, nn.Identity) and isinstance(mlp.act, nn.GELU):  # a GELU is fused into fc1
            self.fc1 = _Linear(weight, bias, settings, mlp.act)
            self.between = nn.Identity()
        else:
            self.fc1 = _Linear(weight, bias, settings)
            self.between = nn.Sequential(mlp.conv, mlp.act)
        convert_parameters(self.between, settings)
        self.norm = without_affine(mlp.norm)
        self.fc2 = _Linear(*fold_scale(mlp.fc2, scale, mlp.norm), settings)

    def forward(self, x: Tensor, residual: Tensor | None) -> Tensor:
        x = self.fc2(self.norm(self.between(self.fc1(x.to(self.dtype)))), residual)
        return x.float() if residual is None else x


def _attend_fused(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    mask = None if bias is None else bias.to(q.dtype)
    x = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)  # (B, H, n, D_h)
    return x.transpose(1, 2).flatten(2)


def _attend_written_out(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    logits = q @ k.transpose(-2, -1)  # (B, H, n, N)
    if bias is not None:
        logits = logits + bias.to(q.dtype)
    return (logits.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)


def _attend_by_image(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Attend one image at a time, so that its (H, n, N) logits stay in the cache and q, k, v are not copied."""
    B, H, n, d = q.shape
    x = q.new_empty(B, n, H, d)
    bias = None if bias is None else bias.expand(B, -1, -1, -1)
    for i in range(B):
        logits = torch.bmm(q[i], k[i].transpose(-2, -1))  # (H, n, N)
        if bias is not None:
            logits = logits + bias[i].to(q.dtype)
        x[i] = torch.bmm(logits.softmax(dim=-1), v[i]).transpose(0, 1)
    return x.flatten(2)


# Functions that compute eqs. 6-7: scaled q (B, H, n, D_h), k, v, bias of the logits -> (B, n, D)
_ATTEND = {"fused": _attend_fused, "batch": _attend_written_out, "image": _attend_by_image}


class OptimizedModel(nn.Module):
    """An optimised model: images (B, C, height, width) -> float32 logits (B, K), or features (B, D) without a head."""

    def __init__(self, model: VisionTransformer, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.model = model
        self.tokens_read = model.config.tokens_read
        self.dtype = dtype

    def forward(self, images: Tensor) -> Tensor:
        return self.finish(self.model.encode(self.embed(images), self.tokens_read))

    def embed(self, images: Tensor) -> Tensor:
        """Compute tokens (B, N, D) of images."""
        return self.model.embed(images.to(self.dtype))

    def finish(self, tokens: Tensor) -> Tensor:
        """Compute logits (B, K) from the output of the last layer, (B, n, D)."""
        logits = self.model.forward_head(self.model.norm(tokens))
        # Even a conversion that changes nothing would rename the head's operation in OpenVINO's graph.
        return logits if logits.dtype == torch.float32 else logits.float()


def prepare(
    model: VisionTransformer,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    *,
    pack: bool = True,
    attend: str | None = None,
) -> OptimizedModel:
    """Return an optimised copy of the model in evaluation mode; later changes of the model do not affect it.

    Args:
        model: the model, which is not changed.
        dtype: the dtype in which the layers compute.
        device: the device to compute on.
        pack: whether weights may be packed on CPUs; False if the layers will be compiled.
        attend: how to compute eqs. 6-7: by a `fused` kernel, or explicitly for a whole `batch` or for one `image` at a
            time. None chooses what is usually fastest; in bfloat16 on CPUs this is not the fused kernel.

    Raises:
        VitkitError: the model has a field or part that is not supported here.
    """
    check(model.config, OPTIMIZED)
    pack = pack and device == "cpu" and can_pack(dtype)
    if attend is None:
        attend = "fused"
        if dtype == torch.bfloat16 and torch.device(device).type == "cpu":
            attend = "image" if pack else "batch"
    settings = Settings(dtype, torch.device(device), pack, attend)
    with torch.no_grad():
        copied = copy_sharing_parameters(model)
        for i, block in enumerate(copied.blocks):
            is_split = model.config.tokens_read is not None and i == len(copied.blocks) - 1
            copied.blocks[i] = _PreparedBlock(block, settings, is_split=is_split)
        copied.add_module("patch_embed", PreparedPatchEmbed(copied.patch_embed, settings))
        for name, child in copied.named_children():
            if name not in ("patch_embed", "blocks"):
                convert_parameters(child, settings.precise)
        for name, parameter in list(copied.named_parameters(recurse=False)):
            setattr(copied, name, _converted(parameter, settings.precise))
        return OptimizedModel(copied).eval()


def cast_copy(model: VisionTransformer, dtype: torch.dtype = torch.bfloat16) -> OptimizedModel:
    """Return a copy on the CPU with its layers in another dtype; heads and rotary positions stay float32."""
    settings = Settings(dtype, torch.device("cpu"), pack=False)
    with torch.no_grad():
        copied = copy_sharing_parameters(model)
        for name, child in copied.named_children():
            convert_parameters(child, settings.precise if name in ("head", "head_dist", "rope") else settings)
        for name, parameter in list(copied.named_parameters(recurse=False)):
            setattr(copied, name, _converted(parameter, settings))
        return OptimizedModel(copied, dtype).eval()


def copy_sharing_parameters(model: VisionTransformer) -> VisionTransformer:
    """Return a copy in evaluation mode that shares the model's parameters until they are replaced."""
    shared: dict[int, Any] = {id(parameter): parameter for parameter in model.parameters()}
    return copy.deepcopy(model, shared).eval()  # `deepcopy` takes the objects of this dictionary instead of copies


# --- A block as two residual branches -------------------------------------------------------------------------

# The optimised model computes a block without calling its `forward`. It gets the parts of the block from `branches` and
# computes them by `residual_branch`. A block with an unknown part is refused, because the part would silently be
# skipped. `variants` refuses unsupported fields of the configuration in the same way.

T = TypeVar("T")

_KNOWN_PARTS: dict[type[nn.Module], Set[str]] = {
    Block: {"norm1", "attn", "ls1", "drop_path1", "norm2", "mlp", "ls2", "drop_path2"},
    Attention: {"convolve", "qkv", "norm", "proj", "attn_drop", "proj_drop"},
    ConvProjection: {"q", "k", "v"},
    ConvMixer: {"depthwise", "act", "proj", "proj_drop"},
    MLP: {"fc1", "conv", "act", "drop1", "drop2", "norm", "fc2"},
    TokenConvolution: {"conv"},
    **dict.fromkeys((nn.Linear, nn.LayerNorm, RMSNorm, nn.Conv2d, nn.Identity), frozenset[str]()),
    **dict.fromkeys((LayerScale, DropPath, Dropout, nn.GELU, QuickGELU, SwiGLU), frozenset[str]()),
    **dict.fromkeys((nn.ReLU, nn.SiLU, nn.Tanh, nn.LeakyReLU), frozenset[str]()),
}


@dataclass(frozen=True)
class Branch:
    """One residual branch of a block."""

    norm: Norm  # `order` determines what it normalises
    mix: nn.Module  # mixes tokens (`Attention` or a replacement) or the features of each token (`MLP`)
    scale: nn.Module  # a `LayerScale` or an identity
    order: str  # of norm, layer and sum; see `residual_branch`


def branches(block: nn.Module) -> tuple[Branch, Branch]:
    """Return the branches of a block in the order of their computation: attention, then the MLP.

    Raises:
        VitkitError: the block has an unknown part.
    """
    _check_parts(block)
    parts: Any = block
    mixing = Branch(parts.norm1, parts.attn, parts.ls1, parts.order)
    return mixing, Branch(parts.norm2, parts.mlp, parts.ls2, parts.order)


def residual_branch(
    order: str, x: T, norm: Callable[[T], T], mix_and_add: Callable[[T, T | None], T], add: Callable[[T, T], T]
) -> T:
    """Compute the sum of tokens and a residual branch (eqs. 2 and 3 for "pre").

    Args:
        order: `Branch.order`. "pre" normalises the input of the branch. "post" normalises the sum (the original
            Transformer, arXiv 1706.03762, sec. 3.1). "res-post" normalises the output of the branch (arXiv 2111.09883,
            sec. 3.2).
        x: the tokens, in the representation of the caller.
        norm: a function that normalises tokens.
        mix_and_add: a function of the input of the layer (`Branch.mix`) and the sum so far. It adds the layer's output
            to the sum. If the sum is None, it returns the output alone.
        add: a function that adds the output of the branch to the sum so far.
    """
    if order == "pre":
        return mix_and_add(norm(x), x)
    if order == "post":
        return norm(mix_and_add(x, x))
    return add(x, norm(mix_and_add(x, None)))


def _check_parts(module: nn.Module, where: str = "block") -> None:
    # A parametrised layer has a new class without a `forward`; it computes as its base class does.
    kind = next(kind for kind in type(module).__mro__ if "forward" in vars(kind))
    parts = _KNOWN_PARTS.get(kind)
    if parts is None:
        reason = f"the {where} is a {type(module).__name__}, which only --backend eager --precision float32 can compute"
        raise VitkitError("inference.layer-unsupported", reason)
    for name, part in module.named_children():
        if name == "parametrizations":
            continue
        if name not in parts:
            reason = f"the {where} contains {name!r}, which only --backend eager --precision float32 can compute"
            raise VitkitError("inference.layer-unsupported", reason)
        _check_parts(part, f"{where}.{name}")
