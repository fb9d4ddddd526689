"""Occlusion: how the probability of a class changes when a part of the image is covered (arXiv 1311.2901, sec. 4.2).

Occlusion uses neither attention nor gradients, so it can verify methods that use them. Each position of the covering
square needs one forward pass.

Shapes: B batch, C channels, S positions of the square, h x w patch grid, K classes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.explanation.attention import plain, twin
from vitkit.explanation.gradient import Target, check_head, find_targets
from vitkit.model.build import Model
from vitkit.model.names import Config, NetworkConfig
from vitkit.model.network import Network
from vitkit.model.vit import Attention

_PARTS = 14  # grid size for networks without patches, equal to that of a ViT with 16-pixel patches at 224 pixels


@torch.no_grad()
def occlusion(
    model: nn.Module,
    images: Tensor,
    target: Target = None,
    *,
    square: int = 3,
    stride: int = 1,
    fill: float = 0.0,
    batch_size: int = 32,
) -> Tensor:
    """Return how much the probability of a class drops when a square of patches is covered: (B, h, w), -1 to 1.

    Args:
        model: the model, compiled or not, in any precision; its mode is not changed.
        images: (B, C, height, width), preprocessed.
        target: one class for each image (B,), or one for all; None is the predicted class.
        square: the side of the square in patches, or in 14ths of the image for another library's network.
        stride: the number of patches between positions of the square. The last row and column are always covered.
        fill: the value of covered pixels after preprocessing; 0 is the mean colour.
        batch_size: the number of covered images in a forward pass.

    Returns:
        For each patch, the mean drop over the squares that cover it.

    Raises:
        VitkitError: there is no such class, the model has no head, or a number is out of range.
    """
    model = _plain(model)
    check_head(model.config)
    for name, value in (("square", square), ("stride", stride), ("batch_size", batch_size)):
        if value < 1:
            raise VitkitError(f"{name} must be at least 1, not {value}")
    still = twin(model, Attention)
    images = images.to(next(model.parameters()))
    logits = still(images).float()
    targets = find_targets(model.config, target, logits)
    whole = logits.softmax(dim=-1).gather(1, targets[:, None])  # (B, 1)
    places = square_places(_grid(model.config), square, stride).to(images.device)  # (S, h, w)
    drops = [
        before - _probabilities(still, image, places, fill, batch_size)[:, number]
        for image, number, before in zip(images, targets.tolist(), whole, strict=True)
    ]
    covered = [(drop[:, None, None] * places).sum(dim=0) for drop in drops]  # (h, w) each
    return torch.stack(covered) / places.sum(dim=0)


def square_places(grid: tuple[int, int], square: int, stride: int) -> Tensor:
    """Return masks (S, h, w) of the patches that the square covers at each position. All patches are covered."""
    height, width = (min(square, side) for side in grid)
    places = []
    for top in _starts(grid[0], height, stride):
        for left in _starts(grid[1], width, stride):
            place = torch.zeros(grid, dtype=torch.bool)
            place[top : top + height, left : left + width] = True
            places.append(place)
    return torch.stack(places)


def _starts(side: int, length: int, stride: int) -> list[int]:
    last = side - length
    return [*range(0, last, min(stride, length)), last]


def cover(images: Tensor, patches: Tensor, config: Config, fill: float | Tensor) -> Tensor:
    """Replace the pixels of masked patches (S, h, w) by `fill`: (S, C, height, width).

    `images` are S images, or one image that is covered S times, (1, C, height, width).
    """
    down, across = _patch(config)
    pixels = patches.repeat_interleave(down, dim=1).repeat_interleave(across, dim=2)
    height, width = images.shape[-2:]  # a hybrid's last patches may reach beyond the image
    return torch.where(pixels[:, None, :height, :width], fill, images)


def _plain(model: nn.Module) -> Model:
    """Return the model without the wrapper of `torch.compile`."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, Network) else plain(inner)


def _patch(config: Config) -> tuple[int, int]:
    """Return the height and width in pixels of a patch, or of a 14th of the image for another library's network."""
    if isinstance(config, NetworkConfig):
        height, width = config.image_size
        return max(round(height / _PARTS), 1), max(round(width / _PARTS), 1)
    return config.patch_size[0] * config.stem_stride, config.patch_size[1] * config.stem_stride


def _grid(config: Config) -> tuple[int, int]:
    if not isinstance(config, NetworkConfig):
        return config.grid
    (height, width), (down, across) = config.image_size, _patch(config)
    return -(-height // down), -(-width // across)  # the last squares may reach beyond the image


def _probabilities(model: Model, image: Tensor, places: Tensor, fill: float, batch_size: int) -> Tensor:
    """Return the class probabilities (S, K) of an image (C, height, width) with the square at each position."""
    batches = [
        model(cover(image[None], batch, model.config, fill)).float() for batch in torch.split(places, batch_size)
    ]
    return torch.cat(batches).softmax(dim=-1)
