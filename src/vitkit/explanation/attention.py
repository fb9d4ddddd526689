"""Attention maps: the matrices of eq. 6, recomputed exactly, and rollout through the layers.

The model runs as usual, on its fused kernel. Beside it, softmax(QK^T) is computed in float32 from the q and k of each
layer, by a twin of the model that shares its weights, so the model itself is never changed. Rollout (arXiv 2005.00928;
the paper's Figure 6, app. D.8) follows attention from layer to layer to the patches.

Some large models store information in patches with very long vectors, which has nothing to do with their place (arXiv
2309.16588). Such patches light up in attention maps where the picture shows nothing; they can be found and masked.
Register tokens prevent them.

Shapes: B batch, H heads, N tokens, h x w patch grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig
from vitkit.model.position import Relative
from vitkit.model.variants import MAPS, check, reason_against
from vitkit.model.vit import Attention, VisionTransformer

M = TypeVar("M", bound=nn.Module)
Fusion = Literal["mean", "max", "min"] | int  # of the heads; a number is one head alone


def plain(model: nn.Module) -> VisionTransformer:
    """Return the model itself if `torch.compile` has wrapped it.

    Raises:
        VitkitError: it is no Vision Transformer.
    """
    inner = getattr(model, "_orig_mod", model)
    if not isinstance(inner, VisionTransformer):
        raise VitkitError(f"only a VisionTransformer has attention to look into, not a {type(inner).__name__}")
    return inner


class ExactAttention(Attention):
    """Compute attention as the model does, and also keep the exact matrix, (B, H, n, N) float32, in `seen`."""

    seen: Tensor | None = None

    def forward(self, x: Tensor, queries: int | None = None, relative: Relative | None = None) -> Tensor:
        output = super().forward(x, queries, relative)
        q, k = self._inputs
        del self._inputs
        q, k, bias = (q, k, None) if relative is None else relative(q, k, self.scale)
        self.seen = exact_matrix(self, q, k, bias)
        return output

    def project(self, x: Tensor, queries: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x, queries)
        self._inputs = q, k
        return q, k, v


def exact_matrix(attention: Attention, q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
    """Eq. 6 in float32, whatever the precision of q and k: (B, H, n, N)."""
    with torch.autocast(q.device.type, enabled=False):
        return Attention.matrix(attention, q.float(), k.float(), None if bias is None else bias.float())


def twin(module: M, attention: type[Attention]) -> M:
    """Return a module in evaluation mode that shares every weight and computes no gradients for them.

    Args:
        module: compiled or not; it is not touched.
        attention: what stands in the place of each `Attention`.
    """
    module = getattr(module, "_orig_mod", module)
    kind: type[nn.Module] = attention if type(module) is Attention else type(module)
    copied = kind.__new__(kind)
    copied.__dict__ = {name: value for name, value in module.__dict__.items() if name != "_compiled_call_impl"}
    copied.__dict__ |= {
        "training": False,
        "_parameters": {name: _shared(tensor) for name, tensor in module._parameters.items()},
        "_buffers": {name: _shared(tensor) for name, tensor in module._buffers.items()},
        "_modules": {name: None if part is None else twin(part, attention) for name, part in module._modules.items()},
    }
    return cast(M, copied)


def _shared(tensor: Tensor | None) -> Tensor | None:
    if tensor is None or not tensor.is_inference() or torch.is_inference_mode_enabled():
        return None if tensor is None else tensor.detach()
    return tensor.clone()  # autograd cannot save a tensor that inference mode has made


def prepare(model: nn.Module, images: Tensor, attention: type[Attention]) -> tuple[VisionTransformer, Tensor]:
    """Return a twin of the model and the input of its first layer (B, N, D) for images (B, C, height, width).

    Raises:
        VitkitError: the model is no Vision Transformer, none of its layers attends, or its attention has no such maps;
            or the images are not its own.
    """
    model = plain(model)
    check(model.config, MAPS)
    if not attending(model.config):
        raise VitkitError("every layer of the model convolves: there is no attention to look into; use occlusion")
    copied = twin(model, attention)
    images = images.detach().to(copied.patch_embed.proj.weight)
    if images.is_inference() and not torch.is_inference_mode_enabled():
        images = images.clone()
    return copied, copied.embed(images)


def attending(config: ViTConfig) -> list[int]:
    """Return the indices of the layers that have attention maps. Convolutional layers have none."""
    if reason_against(config, MAPS):
        return []
    return [layer for layer in range(config.layers) if layer not in config.conv_layers]


def find_layer(config: ViTConfig, layer: int) -> int:
    """Return the index of a layer; negative indices count from the end, and -1 is the last layer with attention.

    Raises:
        VitkitError: there is no such layer, or it convolves, or the model's attention has no maps.
    """
    check(config, MAPS)
    number = attending(config)[-1] if layer == -1 else layer % config.layers
    if not -config.layers <= layer < config.layers:
        raise VitkitError(f"there is no layer {layer}: there are 0 to {config.layers - 1}, or -{config.layers} to -1")
    if number in config.conv_layers:
        raise VitkitError(f"layer {layer} convolves instead of attending; these attend: {attending(config)}")
    return number


def readers(config: ViTConfig) -> Tensor:
    """Return how much the classification head reads of each token, (N,) summing to 1.

    The class token; both tokens of a distilled model, half of each; every patch alike with mean pooling; for token+gap
    one half the class token, the other half the patches.

    Raises:
        VitkitError: attention pooling decides that anew for each image.
    """
    if config.pool == "map":
        raise VitkitError(
            "this model pools by attention, so the tokens that its head reads differ by image: use --method occlusion"
        )
    weights = torch.zeros(config.tokens)
    if config.distill_head:
        weights[:2] = 0.5
    elif config.pool == "token":
        weights[0] = 1.0
    else:
        weights[config.prefix_tokens :] = 1.0 / config.patches
        if config.pool == "token+gap":
            weights[config.prefix_tokens :] /= 2
            weights[0] = 0.5
    return weights


def to_grid(rows: Tensor, config: ViTConfig) -> Tensor:
    """(..., N) a value for each token -> (..., h, w) those of the patches."""
    return rows[..., config.prefix_tokens :].reshape(*rows.shape[:-1], *config.grid)


def attention_maps(model: nn.Module, images: Tensor) -> Iterator[Tensor]:
    """Return the attention of each layer, first to last: (B, H, N, N) float32, each row summing to 1.

    Layers that convolve instead of attending are left out. One layer's matrices are in memory at a time, if the caller
    lets go of them; what is not asked for is not computed.

    Args:
        model: compiled or not, of any precision, under autocast or not; its mode and its gradients stay as they are.
        images: (B, C, height, width), preprocessed.

    Raises:
        VitkitError: no layer attends, or the images are not of the model's channels and size.
    """
    return _maps(*prepare(model, images, ExactAttention))


def _maps(model: VisionTransformer, x: Tensor) -> Iterator[Tensor]:
    for layer in range(attending(model.config)[-1] + 1):
        x = model.layer(layer, x)
        if layer not in model.config.conv_layers:
            yield _taken(model.blocks[layer].attn)


def _taken(attention: Any) -> Tensor:
    seen: Tensor = attention.seen
    attention.seen = None  # the caller's alone
    return seen


def head_maps(model: nn.Module, images: Tensor, layer: int = -1) -> Tensor:
    """Return what the head's token attends to in one layer, for each attention head: (B, H, h, w), not normalised.

    Args:
        model: see `attention_maps`.
        images: (B, C, height, width), preprocessed.
        layer: counted from the end where negative; -1 is the last that attends.

    Returns:
        The patches' entries of the class token's row; of the rows that the head reads (`readers`), where it reads more.

    Raises:
        VitkitError: there is no such layer, or it has no attention.
    """
    config = plain(model).config
    maps = attention_maps(model, images)
    for number, attention in zip(attending(config), maps, strict=False):
        if number == find_layer(config, layer):
            return to_grid(read_rows(attention, config), config)
    raise AssertionError("find_layer names a layer that attends")


def last_attention(model: nn.Module, images: Tensor, layer: int = -1, fusion: Fusion = "mean") -> Tensor:
    """Return what the head's token attends to in one layer, over fused attention heads: (B, h, w), not normalised.

    Args:
        model: see `attention_maps`.
        images: (B, C, height, width), preprocessed.
        layer: counted from the end where negative; -1 is the last that attends.
        fusion: the mean, largest or smallest of the heads, entry by entry; or one head's number.

    Raises:
        VitkitError: there is no such layer or head, or the layer has no attention.
    """
    config = plain(model).config
    check_fusion(config, fusion)
    maps = attention_maps(model, images)
    for number, attention in zip(attending(config), maps, strict=False):
        if number == find_layer(config, layer):
            return to_grid(read_rows(fuse(attention, fusion), config), config)
    raise AssertionError("find_layer names a layer that attends")


def read_rows(attention: Tensor, config: ViTConfig) -> Tensor:
    """(..., N, N) -> (..., N), the rows that the head reads."""
    with torch.autocast(attention.device.type, enabled=False):
        return readers(config).to(attention) @ attention


def check_fusion(config: ViTConfig, fusion: Fusion) -> None:
    """Refuse a way to fuse the heads that is unknown, or a head that is not there."""
    if fusion in ("mean", "max", "min") or (type(fusion) is int and 0 <= fusion < config.heads):
        return
    raise VitkitError(f"fusion must be mean, max, min or a head from 0 to {config.heads - 1}, not {fusion!r}")


def fuse(attention: Tensor, fusion: Fusion) -> Tensor:
    """(B, H, N, N) -> (B, N, N)."""
    if isinstance(fusion, int):
        return attention[:, fusion]
    return attention.mean(dim=1) if fusion == "mean" else getattr(attention, f"a{fusion}")(dim=1)


def patch_attention(model: nn.Module, images: Tensor, row: int, column: int) -> Tensor:
    """Return which patches a patch of the image attends to, in each layer with attention: (layers, heads, h, w).

    Args:
        model: see `attention_maps`.
        images: one image, (1, C, height, width), preprocessed.
        row: the row of the patch, from above.
        column: the column of the patch, from the left.

    Raises:
        VitkitError: there is no such patch, or no layer attends.
    """
    config = plain(model).config
    h, w = config.grid
    if not (0 <= row < h and 0 <= column < w):
        raise VitkitError(f"there is no patch ({row}, {column}): there are {h} rows of {w}")
    query = config.prefix_tokens + row * w + column
    with torch.no_grad():
        maps = [to_grid(attention[0, :, query], config) for attention in attention_maps(model, images)]  # (H, h, w)
    return torch.stack(maps)


def rollout(model: nn.Module, images: Tensor, *, fusion: Fusion = "mean", discard: float = 0.0) -> Tensor:
    """Attention followed through all layers to the patches (arXiv 2005.00928; the paper's app. D.8): (B, h, w).

    It is the same for every class. Not normalised: what is missing from a sum of 1 has stayed with the prefix tokens.

    Args:
        model: see `attention_maps`.
        images: (B, C, height, width), preprocessed.
        fusion: see `rollout_matrix`.
        discard: see `rollout_matrix`.

    Returns:
        The patches' entries of the class token's row; of the rows that the head reads (`readers`), where it reads more.

    Raises:
        VitkitError: fusion or discard make no sense, or no layer attends.
    """
    config = plain(model).config
    return to_grid(read_rows(rollout_matrix(model, images, fusion=fusion, discard=discard), config), config)


def rollout_matrix(model: nn.Module, images: Tensor, *, fusion: Fusion = "mean", discard: float = 0.0) -> Tensor:
    """Multiply the layers' fused attention matrices, each with the identity added and rows renormalised.

    The identity stands for the residual connection. Layers that convolve instead of attending count as the identity.

    Args:
        model: see `attention_maps`.
        images: (B, C, height, width), preprocessed.
        fusion: the mean, largest or smallest of the heads, entry by entry; or one head's number.
        discard: this share of a fused matrix's entries, the smallest of those upon patches, is set to 0 first. What is
            attended of prefix tokens is always kept: through them the class token comes to know of the patches.

    Returns:
        (B, N, N) float32, each row summing to 1.

    Raises:
        VitkitError: fusion or discard make no sense, or no layer attends.
    """
    config = plain(model).config
    check_fusion(config, fusion)
    if not 0.0 <= discard < 1.0:
        raise VitkitError(f"discard must be in [0, 1), the share of entries to leave out, not {discard}")

    def with_residual(attention: Tensor) -> Tensor:
        fused = _without_smallest(fuse(attention, fusion), discard, config.prefix_tokens)
        fused.diagonal(dim1=-2, dim2=-1).add_(1.0)
        return fused.div_(fused.sum(dim=-1, keepdim=True))

    return _product(map(with_residual, attention_maps(model, images)))


def _product(matrices: Iterable[Tensor]) -> Tensor:
    """Multiply the matrices, each from the left onto the product so far: (B, N, N)."""
    product: Tensor | None = None
    for matrix in matrices:
        with torch.autocast(matrix.device.type, enabled=False):
            product = matrix if product is None else matrix @ product
    assert product is not None
    return product


def _without_smallest(fused: Tensor, discard: float, prefix: int) -> Tensor:
    upon_patches = fused[..., prefix:].flatten(1)  # (B, N * h*w)
    number = int(discard * upon_patches.shape[1])
    if number == 0:
        return fused
    smallest = upon_patches.topk(number, largest=False, sorted=False).indices
    kept = upon_patches.scatter(1, smallest, 0.0).view_as(fused[..., prefix:])
    return torch.cat([fused[..., :prefix], kept], dim=-1)


@torch.no_grad()
def token_norms(model: nn.Module, images: Tensor) -> Tensor:
    """Return the norm of each patch after the last layer, before the final normalisation: (B, h, w) float32.

    Args:
        model: compiled or not, of any precision; its mode stays as it is.
        images: (B, C, height, width), preprocessed.
    """
    model = plain(model)
    copied = twin(model, Attention)
    tokens = copied.encode(copied.embed(images.to(model.patch_embed.proj.weight)))  # (B, N, D)
    return to_grid(tokens.float().norm(dim=-1), model.config)


def find_artefacts(norms: Tensor, factor: float = 3.0) -> Tensor:
    """Return which patches (B, h, w) have a norm above `factor` times the median of their image.

    Raises:
        VitkitError: the factor is not above 1.
    """
    if not factor > 1.0:
        raise VitkitError(f"factor must be above 1, a multiple of the median length, not {factor}")
    return norms > factor * norms.flatten(1).median(dim=1).values[:, None, None]


def mask_artefacts(maps: Tensor, artefacts: Tensor) -> Tensor:
    """Maps (B, h, w) or (B, H, h, w) in which flagged patches (B, h, w) have the mean of their neighbours' values.

    Neighbours that are flagged themselves do not count; where all eight are, filling starts from the rim of the group.
    An image whose every patch is flagged stays as it is.
    """
    values = maps if maps.ndim == 4 else maps[:, None]  # (B, H, h, w)
    known = ~artefacts[:, None] | artefacts.flatten(1).all(dim=1)[:, None, None, None]  # (B, 1, h, w)
    while not bool(known.all()):
        share = _mean_around(known.to(values))
        filled = _mean_around(values * known) / share.clamp_min(torch.finfo(values.dtype).tiny)
        values, known = torch.where(known, values, filled), known | (share > 0)
    return values.view_as(maps)


def _mean_around(x: Tensor) -> Tensor:
    """Average each 3 x 3 neighbourhood; positions outside the grid count as 0."""
    return F.avg_pool2d(x, 3, stride=1, padding=1)
