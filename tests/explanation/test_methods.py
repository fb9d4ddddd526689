"""Whether the map of each method finds the patch that the class depends on, or the one that is attended to."""

from typing import Any

import pytest
import torch
from torch import Tensor

from vitkit.explanation import METHODS
from vitkit.model import VisionTransformer, ViTConfig

GRID, CORNER, DECOY = (5, 6), (0, 5), (4, 0)
# Where the parts of a token lie, each beside its negative, so that a token's mean is 0 and LayerNorm scales it alone.
BRIGHTNESS, EVIDENCE, AT_CORNER, AT_DECOY, ANCHOR, GOSSIP = range(0, 12, 2)


def _both(table: Tensor, part: int, value: float) -> None:
    """Write a part of the last dimension, and its negative beside it."""
    table[..., part], table[..., part + 1] = value, -value


def corner_model(pool: Any) -> VisionTransformer:
    """Every weight set by hand, so that one corner decides the class whatever this processor rounds.

    Every token attends by its first head to the corner (0.9 of its attention), which moves the corner's brightness
    into the evidence that the classes read; and by its second head to the decoy (all of it), which moves the decoy's
    brightness to where no class looks.
    """
    sizes = {"image_size": (20, 24), "patch_size": 4, "hidden_size": 16, "heads": 2, "mlp_size": 4}
    config = ViTConfig(**sizes, in_channels=1, layers=2, num_classes=2, pool=pool)
    model = VisionTransformer(config).requires_grad_(False).eval()
    for name, parameter in model.named_parameters():
        parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
    brightness = model.patch_embed.proj.weight.flatten(1)  # (D, pixels of a patch), a view
    _both(brightness.T, BRIGHTNESS, 1 / 16)
    assert isinstance(model.pos_embed, Tensor)
    places = model.pos_embed.view(-1, 16)  # (N, D)
    _both(places, ANCHOR, 2.0)
    for part, (row, column) in ((AT_CORNER, CORNER), (AT_DECOY, DECOY)):
        _both(places[config.prefix_tokens + GRID[1] * row + column], part, 2.0)
    for block in model.blocks:
        _, k, v = block.attn.qkv.weight.view(3, 2, 8, 16)  # (heads, D_h, D) each
        for head, (marker, sharpness) in enumerate(((AT_CORNER, 8.0), (AT_DECOY, 16.0))):
            block.attn.qkv.bias[8 * head] = sharpness
            k[head, 0, marker] = 1.0
            v[head, 0, BRIGHTNESS] = 1.0
            _both(block.attn.proj.weight[:, 8 * head], (EVIDENCE, GOSSIP)[head], 1.0)
    model.head.weight[:, EVIDENCE] = torch.tensor([-2.0, 2.0])
    return model


@pytest.mark.parametrize("pool", ["token", "gap"])
def test_each_map_peaks_where_it_should(pool: str) -> None:
    """Maps of the class at the corner; maps of the attention, by which the model tells the two apart, at the decoy."""
    model, labels = corner_model(pool), torch.arange(16) % 2
    images = torch.randn(16, 1, 20, 24, generator=torch.Generator().manual_seed(0))
    images[:, :, :4, -4:] = (2.0 * labels - 1)[:, None, None, None]
    assert (model(images).argmax(-1) == labels).all()
    for name, method in METHODS.items():
        options: dict[str, Any] = {"target": labels} if method.is_class_specific else {}
        maps = method(model, images, **options | ({"square": 1} if name == "occlusion" else {}))
        expected = [[CORNER] if method.is_class_specific else [CORNER, DECOY] if name == "heads" else [DECOY]] * 16
        peaks = maps.view(16, -1, GRID[0] * GRID[1]).argmax(dim=-1).tolist()
        assert [[divmod(peak, GRID[1]) for peak in own] for own in peaks] == expected, name
