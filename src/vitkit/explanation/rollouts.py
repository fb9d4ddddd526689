"""Attention followed from layer to layer to the patches: rollout (arXiv 2005.00928; the paper's Figure 6, app. D.8).

Shapes: B batch, H heads, N tokens, h x w patch grid.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.explanation.attention import Fusion, attention_maps, check_fusion, fuse, plain, read_rows, to_grid


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
    """The product over the layers of the heads' fused matrices, each with the identity added and renormalised.

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
    """Each multiplied onto those before it from the left: (B, N, N)."""
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
