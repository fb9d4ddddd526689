"""What a patch attends to, beside the matrices themselves."""

from __future__ import annotations

import pytest
import torch

from tiny import build, images
from vitkit.errors import VitkitError
from vitkit.explanation import attention_maps, patch_attention


@pytest.mark.parametrize("fields", [{}, {"registers": 2}, {"pool": "gap"}, {"conv_layers": (1,)}], ids=str)
def test_it_is_the_row_of_the_patch(fields: dict[str, object]) -> None:
    model, batch = build(**fields), images(1)
    h, w = model.config.grid
    maps = list(attention_maps(model, batch))
    prefix = model.config.prefix_tokens
    for row, column in ((0, 0), (1, 2), (h - 1, w - 1)):
        found = patch_attention(model, batch, row, column)  # (L, H, h, w)
        expected = torch.stack([own[0, :, prefix + row * w + column, prefix:].reshape(-1, h, w) for own in maps])
        assert torch.equal(found, expected)
    for row, column in ((-1, 0), (h, 0), (0, w)):
        with pytest.raises(VitkitError, match="there is no patch"):
            patch_attention(model, batch, row, column)
