"""What one patch attends to, in every layer and head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.explanation.attention import attention_maps, plain, to_grid


def patch_attention(model: nn.Module, images: Tensor, row: int, column: int) -> Tensor:
    """What a patch of the image attends to among the patches: (layers, heads, h, w), the layers that attend.

    Args:
        model: see `attention_maps`.
        images: one image, (1, C, height, width), preprocessed.
        row: of the patch, from above.
        column: of the patch, from the left.

    Raises:
        VitkitError: there is no such patch, or no layer attends.
    """
    config = plain(model).config
    h, w = config.grid
    if not (0 <= row < h and 0 <= column < w):
        raise VitkitError(f"there is no patch ({row}, {column}): there are {h} rows of {w}")
    query = config.prefix_tokens + row * w + column
    with torch.no_grad():
        found = [to_grid(attention[0, :, query], config) for attention in attention_maps(model, images)]  # (H, h, w)
    return torch.stack(found)
