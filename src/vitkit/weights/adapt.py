"""Adapt the tensors of a checkpoint to another image size, patch size or set of classes.

Learned position embeddings are interpolated in 2-D to another grid (paper, sec. 3.2). Publishers use different
interpolations, and weights are resized with the interpolation of their publisher. Patch embeddings are resized as in
FlexiViT (arXiv 2212.08013). Networks of other libraries can get a new head, and some of them another image size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.model.build import Resized
from vitkit.model.config import Pair, PositionResize, ViTConfig
from vitkit.model.names import NetworkConfig
from vitkit.model.network import anatomy_of
from vitkit.weights.origin import shapes_of


def resize_grid(positions: Tensor, old: Pair, new: Pair, convention: PositionResize) -> Tensor:
    """Interpolate the position embeddings of one patch grid to another.

    If the grids are equal, `positions` itself is returned.

    Args:
        positions: (..., h * w, D), in row-major order, without the positions of prefix tokens.
        old: the grid of `positions`, (h, w).
        new: the requested grid, (h', w').
        convention: the interpolation:

            - `reference`: bilinear with aligned corners, like scipy's `zoom` of order 1. Because of rounding, `zoom`
              sometimes leaves zeros in the last row or column, for example from 28 to 14; this error is not reproduced.
            - `timm`: bicubic with antialiasing, also used by DINOv2's models with registers.
            - `torchvision`: bicubic with aligned corners.
            - `huggingface`: bicubic.
            - `dinov2`: bicubic with a scale factor of (new + 0.1) / old.
            - `siglip2`: bilinear with antialiasing.
            - `linear`: bilinear to a square whose side is the longer side of the new grid, then cropped to this grid
              (C-RADIO).
            - `linear_aligned`: the same as `linear`, with aligned corners.

    Returns:
        (..., h' * w', D) in the dtype of `positions`; computed in float32.
    """
    if old == new:
        return positions
    *leading, _, D = positions.shape
    grid = positions.reshape(-1, *old, D).permute(0, 3, 1, 2).float()  # (B, D, h, w)
    if convention == "reference":
        grid = F.interpolate(grid, new, mode="bilinear", align_corners=True)
    elif convention == "timm":
        grid = F.interpolate(grid, new, mode="bicubic", antialias=True)
    elif convention == "torchvision":
        grid = F.interpolate(grid, new, mode="bicubic", align_corners=True)
    elif convention == "huggingface":
        grid = F.interpolate(grid, new, mode="bicubic")
    elif convention == "siglip2":
        grid = F.interpolate(grid, new, mode="bilinear", antialias=True)
    elif convention == "dinov2":  # the offset keeps the scale factor from rounding down to a smaller grid
        scale = [(side + 0.1) / before for side, before in zip(new, old, strict=True)]
        grid = F.interpolate(grid, scale_factor=scale, mode="bicubic")
    else:
        square = F.interpolate(grid, (max(new),) * 2, mode="bilinear", align_corners=convention == "linear_aligned")
        grid = square[:, :, : new[0], : new[1]]
    return grid.permute(0, 2, 3, 1).reshape(*leading, new[0] * new[1], D).to(positions.dtype)  # (..., h' * w', D)


def resize_offsets(table: Tensor, old: Pair, new: Pair) -> Tensor:
    """Interpolate relative position biases, one for each offset between two patches, to another grid.

    The method is that of BEiT's fine-tuning (arXiv 2106.08254) and timm. The old offsets are placed in the new range at
    distances that grow geometrically, so that small offsets change least. Values between them are interpolated
    linearly. If the grids are equal, `table` itself is returned.

    Args:
        table: (O + e, H): one row per offset in row-major order, then e rows of the class token, which stay unchanged.
        old: the grid (h, w) that the biases were learned on; O is (2h - 1) (2w - 1).
        new: the requested grid.

    Returns:
        (O' + e, H) in the dtype of `table`; computed in float32.
    """
    if old == new:
        return table
    h, w = 2 * old[0] - 1, 2 * old[1] - 1  # the numbers of offsets
    grid = table[: h * w].view(h, w, -1).float()  # (h, w, H)
    rows = _interpolation_matrix(old[0], new[0]).to(table.device)
    columns = _interpolation_matrix(old[1], new[1]).to(table.device)
    resized = torch.einsum("ih,jw,hwk->ijk", rows, columns, grid)  # (2h' - 1, 2w' - 1, H)
    return torch.cat([resized.flatten(0, 1).to(table.dtype), table[h * w :]])


def _interpolation_matrix(old: int, new: int) -> Tensor:
    """Return the matrix that interpolates biases along one axis: (2 new - 1, 2 old - 1).

    The old offsets stand at 0, ±1, ±(1 + q), ±(1 + q + q^2), ... in the new range. The ratio q, from 1.01 to 1.5, is
    chosen so that the outermost ones are as close as possible to ±(new - 1).
    """
    low, high = 1.01, 1.5  # BEiT's bounds of q
    while high - low > 1e-6:
        q = (low + high) / 2
        outermost = (q ** (old - 1) - 1) / (q - 1)  # 1 + q + q^2 + ...
        if outermost > new - 1:
            high = q
        else:
            low = q
    steps = np.cumsum(q ** np.arange(old - 1))
    known = np.concatenate([-steps[::-1], [0], steps])
    wanted = np.arange(1 - new, new)
    # Offsets beyond the largest known one get its value.
    columns = [np.interp(wanted, known, unit) for unit in np.eye(len(known))]
    return torch.tensor(np.stack(columns, axis=1), dtype=torch.float32)


def resize_patch(kernel: Tensor, size: Pair) -> Tensor:
    """Resize a patch embedding so that it gives the same result for resized patches.

    This is FlexiViT's pseudo-inverse resize (arXiv 2212.08013, sec. 3.4). If B is the matrix that resizes a patch, the
    kernel w becomes pinv(B^T) w. Then <B x, w'> = <x, w> for every patch x if patches are enlarged, and approximately
    if they are reduced.

    Args:
        kernel: (D, C, p, q).
        size: the new patch's height and width, in pixels.

    Returns:
        (D, C, p', q') in the dtype of `kernel`; `kernel` itself if the size is the same.
    """
    old = (kernel.shape[2], kernel.shape[3])
    if old == size:
        return kernel
    unit_patches = torch.eye(old[0] * old[1], dtype=torch.float64, device=kernel.device).view(-1, 1, *old)
    resized = F.interpolate(unit_patches, size, mode="bicubic", antialias=True)  # (p*q, 1, p', q'): the rows of B^T
    inverse = torch.linalg.pinv(resized.flatten(1))  # (p'*q', p*q)
    fitted = kernel.flatten(2).double() @ inverse.t()  # (D, C, p'*q')
    return fitted.unflatten(2, size).to(kernel.dtype)


Read = Callable[[], Tensor]


@dataclass
class Adapted:
    """Functions that read the tensors of the requested model, and a record of what was changed.

    Attributes:
        read: a function for each tensor, by name, that reads and adapts it.
        resized, replaced, dropped: as in `LoadReport`.
    """

    read: dict[str, Read]
    resized: list[Resized] = field(default_factory=list)
    replaced: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)


def adapt(read: Mapping[str, Read], source: ViTConfig, target: ViTConfig, shapes: Mapping[str, torch.Size]) -> Adapted:
    """Adapt the tensors of a checkpoint to a configuration with another grid, patch size, head or representation layer.

    Args:
        read: a function for each tensor of the checkpoint.
        source: the configuration of the checkpoint.
        target: the requested configuration.
        shapes: the shapes of the tensors of the requested model.
    """
    adapted = Adapted(dict(read))
    _resize_positions(adapted, source, target)
    if source.patch_size != target.patch_size:
        name = "patch_embed.proj.weight"
        adapted.read[name] = _then(read[name], lambda kernel: resize_patch(kernel, target.patch_size))
        adapted.resized.append(Resized(name, source.patch_size, target.patch_size, "FlexiViT"))
    if (source.num_classes, source.feature_size) != (target.num_classes, target.feature_size):
        for name in shapes:
            if name.startswith("head"):  # a new head is all zeros, as in the paper's fine-tuning, sec. 3.2
                adapted.read[name] = lambda name=name: torch.zeros(shapes[name])  # type: ignore[misc]
                adapted.replaced[name] = f"{target.num_classes} classes, zero until it is trained"
    for name in [name for name in adapted.read if name not in shapes]:
        del adapted.read[name]
        is_head = name.startswith("head")
        reason = "no head was requested" if is_head else "the representation layer belongs to the old head"
        adapted.dropped[name] = reason
    return adapted


def _resize_positions(adapted: Adapted, source: ViTConfig, target: ViTConfig) -> None:
    if source.grid == target.grid or source.position in ("none", "sincos_1d", "sincos_2d", "relative_mlp"):
        return
    convention = target.position_resize
    if source.position == "relative_bias":
        resize = partial(resize_offsets, old=source.grid, new=target.grid)
        for name in list(adapted.read):
            if name.startswith("rel_pos."):
                adapted.read[name] = _then(adapted.read[name], resize)
                adapted.resized.append(Resized(name, source.grid, target.grid, "BEiT"))
        return
    if source.position == "relative":
        raise VitkitError(
            "weights.size-fixed",
            f"relative positions were learned for {source.image_size[0]}x{source.image_size[1]} pixels and cannot be "
            f"resized: leave image_size unchanged",
        )
    if source.position == "learned_2d":
        for name, axis in (("pos_embed.y", 0), ("pos_embed.x", 1)):
            old, new = source.grid[axis], target.grid[axis]
            resize = partial(resize_grid, old=(old, 1), new=(new, 1), convention=convention)
            adapted.read[name] = _then(adapted.read[name], resize)
            adapted.resized.append(Resized(name, (old,), (new,), convention))
        return
    prefix = source.positioned_prefix

    def resize_patches(table: Tensor) -> Tensor:
        patches = resize_grid(table[:, prefix:], source.grid, target.grid, convention)
        return torch.cat([table[:, :prefix], patches], dim=1)  # (tables, prefix + h*w, D)

    adapted.read["pos_embed"] = _then(adapted.read["pos_embed"], resize_patches)
    adapted.resized.append(Resized("pos_embed", source.grid, target.grid, convention))


def _then(read: Read, change: Callable[[Tensor], Tensor]) -> Read:
    return lambda: change(read())


def adapt_network(
    read: Mapping[str, Read], source: NetworkConfig, target: NetworkConfig, shapes: Mapping[str, torch.Size]
) -> Adapted:
    """Adapt the tensors of another library's network to another head, or to an image size that no shape depends on."""
    adapted = Adapted(dict(read))
    head = anatomy_of(target).head
    if source.num_classes != target.num_classes:
        for name in [name for name in adapted.read if name.startswith(f"{head}.")]:
            if name in shapes:
                adapted.read[name] = lambda name=name: torch.zeros(shapes[name])  # type: ignore[misc]
                adapted.replaced[name] = f"{target.num_classes} classes, zero until it is trained"
            else:
                del adapted.read[name]
                adapted.dropped[name] = "no head was requested"
    if source.image_size != target.image_size:
        shapes_before = shapes_of(source.replace(num_classes=target.num_classes))
        for name, shape in shapes.items():
            if shapes_before.get(name) != shape:
                height, width = source.image_size
                raise VitkitError(
                    "weights.size-fixed",
                    f"{name} of {target.full_name} depends on the size of {height}x{width} pixels: leave image_size "
                    "unchanged",
                )
    return adapted
