"""Patches of very great length: the model keeps notes there that have nothing to do with the place (arXiv 2309.16588).

They light up in attention maps, mostly of large models, where the picture shows nothing. Register tokens prevent them.

Shapes: B batch, h x w patch grid.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.explanation.attention import plain, to_grid, twin
from vitkit.model.vit import Attention


@torch.no_grad()
def token_norms(model: nn.Module, images: Tensor) -> Tensor:
    """The length of each patch after the last layer, before the final normalisation: (B, h, w) float32.

    Args:
        model: compiled or not, of any precision; its mode stays as it is.
        images: (B, C, height, width), preprocessed.
    """
    model = plain(model)
    copied = twin(model, Attention)
    tokens = copied.encode(copied.embed(images.to(model.patch_embed.proj.weight)))  # (B, N, D)
    return to_grid(tokens.float().norm(dim=-1), model.config)


def find_artefacts(norms: Tensor, factor: float = 3.0) -> Tensor:
    """Which patches (B, h, w) are longer than `factor` times the median of their image, from `token_norms`.

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
    """Of each 3 x 3, what is outside counting as 0."""
    return F.avg_pool2d(x, 3, stride=1, padding=1)
