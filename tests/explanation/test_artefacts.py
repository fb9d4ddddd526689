"""Patches of very great length are found, and maps are shown without them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tiny import build, images, kinds
from vitkit.errors import VitkitError
from vitkit.explanation import find_artefacts, mask_artefacts, token_norms


@pytest.mark.parametrize("fields", kinds())
def test_norms_are_those_of_the_last_layers_patches(fields: dict[str, Any]) -> None:
    model = build(**fields)
    with torch.no_grad():
        tokens = model.forward_layers(images())[-1][:, model.config.prefix_tokens :]
    expected = np.linalg.norm(tokens.double().numpy(), axis=-1).reshape(2, 3, 4)
    np.testing.assert_allclose(token_norms(model, images()), expected, rtol=1e-5)
    norms = token_norms(model.bfloat16(), images())
    assert norms.dtype == torch.float32
    np.testing.assert_allclose(norms, expected, rtol=0.1)


def test_a_planted_artefact_is_found_and_no_other_patch() -> None:
    model = build(std=0.1)
    assert not find_artefacts(token_norms(model, images())).any()
    hooked = model.blocks[2].register_forward_hook(
        lambda _module, _inputs, x: x * torch.ones(13, 1).index_fill(0, torch.tensor([1 + 6]), 9.0)
    )
    found = find_artefacts(token_norms(model, images()))
    hooked.remove()
    assert found.nonzero().tolist() == [[0, 1, 2], [1, 1, 2]]


def test_flagged_patches_have_the_mean_of_their_neighbours() -> None:
    maps = torch.arange(12.0).view(1, 3, 4)
    flags = torch.zeros(1, 3, 4, dtype=torch.bool)
    flags[0, 0, 0], flags[0, 1, 2], flags[0, 1, 3] = True, True, True
    expected = maps.clone()
    expected[0, 0, 0] = (1 + 4 + 5) / 3
    expected[0, 1, 2] = (1 + 2 + 3 + 5 + 9 + 10 + 11) / 7
    expected[0, 1, 3] = (2 + 3 + 10 + 11) / 4
    torch.testing.assert_close(mask_artefacts(maps, flags), expected)
    by_head = torch.stack([maps, 2 * maps], dim=1)
    torch.testing.assert_close(mask_artefacts(by_head, flags), torch.stack([expected, 2 * expected], dim=1))


@given(flags=st.lists(st.booleans(), min_size=24, max_size=24))
def test_nothing_but_flagged_patches_changes_and_no_value_is_new(flags: list[bool]) -> None:
    maps = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    flagged = torch.tensor(flags).view(2, 3, 4)
    before, found = maps.clone(), mask_artefacts(maps, flagged)
    assert torch.equal(maps, before)
    assert torch.equal(found[~flagged], maps[~flagged])
    for image, flag, masked in zip(maps, flagged, found, strict=True):
        if flag.all():
            assert torch.equal(masked, image)
        else:
            assert image[~flag].min() - 1e-6 <= masked.min()
            assert masked.max() <= image[~flag].max() + 1e-6


@pytest.mark.parametrize("factor", [1.0, 0.0, float("nan")])
def test_a_factor_that_makes_no_sense_is_refused(factor: float) -> None:
    with pytest.raises(VitkitError, match="must be above 1"):
        find_artefacts(torch.ones(1, 2, 2), factor)
