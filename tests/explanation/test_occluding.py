"""Occlusion is what happens when squares are covered, one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tiny import build, images
from vitkit.errors import VitkitError
from vitkit.explanation import cover, occlusion, square_places
from vitkit.model import VisionTransformer


def probability(model: VisionTransformer, image: Any, target: int) -> float:
    with torch.no_grad():
        return model(image[None]).softmax(-1)[0, target].item()


def one_by_one(model: VisionTransformer, image: Any, target: int, square: int, stride: int, fill: float) -> Any:
    """(h, w), covering pixels (4 x 4 patches, a grid of 3 x 4) one image at a time."""
    sums, counts = np.zeros((3, 4)), np.zeros((3, 4))
    height, width = min(square, 3), min(square, 4)
    tops = sorted({*range(0, 3 - height + 1, min(stride, height)), 3 - height})
    lefts = sorted({*range(0, 4 - width + 1, min(stride, width)), 4 - width})
    for top in tops:
        for left in lefts:
            covered = image.clone()
            covered[:, 4 * top : 4 * (top + height), 4 * left : 4 * (left + width)] = fill
            drop = probability(model, image, target) - probability(model, covered, target)
            sums[top : top + height, left : left + width] += drop
            counts[top : top + height, left : left + width] += 1
    return sums / counts


@pytest.mark.parametrize(
    ("square", "stride", "fill"), [(1, 1, 0.0), (2, 1, 0.0), (3, 1, 0.0), (2, 2, -1.0), (1, 3, 0.5), (9, 1, 0.0)]
)
def test_it_is_the_mean_drop_over_the_squares_that_cover_a_patch(square: int, stride: int, fill: float) -> None:
    model, batch, targets = build(), images(2), [4, 1]
    expected = np.stack([one_by_one(model, x, t, square, stride, fill) for x, t in zip(batch, targets, strict=True)])
    for batch_size in (1, 5, 64):
        found = occlusion(
            model, batch, torch.tensor(targets), square=square, stride=stride, fill=fill, batch_size=batch_size
        )
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("stride", [1, 2, 3, 7])
@pytest.mark.parametrize("square", [1, 2, 3, 6])
@pytest.mark.parametrize("grid", [(1, 1), (2, 5), (7, 3)])
def test_every_patch_is_covered(grid: tuple[int, int], square: int, stride: int) -> None:
    places = square_places(grid, square, stride)
    assert places.any(dim=0).all()
    assert len(places.flatten(1).unique(dim=0)) == len(places), "no place twice"
    assert (places.flatten(1).sum(1) == min(square, grid[0]) * min(square, grid[1])).all()


def test_only_the_pixels_of_the_patches_are_covered() -> None:
    config = build(image_size=(6, 20), patch_size=(2, 4)).config
    patches = torch.zeros(2, 3, 5, dtype=torch.bool)
    patches[0, 2, 1], patches[1, 0, 4] = True, True
    covered = cover(torch.ones(1, 3, 6, 20), patches, config, 0.0)
    assert covered.shape == (2, 3, 6, 20)
    assert (covered[0, :, 4:6, 4:8] == 0).all()
    assert (covered[1, :, 0:2, 16:20] == 0).all()
    assert (covered == 0).sum() == 2 * 3 * 8


def test_a_hybrids_patches_are_the_stems_and_may_reach_beyond_the_image() -> None:
    model = build(image_size=(60, 44), patch_size=1, stem=(1, 1))
    assert model.config.grid == (8, 6)
    patches = torch.ones(1, 8, 6, dtype=torch.bool)
    assert (cover(torch.ones(1, 3, 60, 44), patches, model.config, 0.0) == 0).all()
    assert occlusion(model, images(1, config=model.config), 0, stride=3).shape == (1, 8, 6)


def test_without_a_target_the_predicted_class_is_meant() -> None:
    model = build()
    with torch.no_grad():
        predicted = model(images(4)).argmax(-1)
    assert torch.equal(occlusion(model, images(4)), occlusion(model, images(4), predicted))


@pytest.mark.parametrize("name", ["square", "stride", "batch_size"])
def test_numbers_that_make_no_sense_are_refused(name: str) -> None:
    with pytest.raises(VitkitError, match=f"{name} must be at least 1, not 0"):
        occlusion(build(), images(), **{name: 0})


def test_a_model_without_a_head_and_a_class_that_is_not_there_are_refused() -> None:
    with pytest.raises(VitkitError, match="the model has no head"):
        occlusion(build(num_classes=0), images())
    with pytest.raises(VitkitError, match="there are 0 to 6"):
        occlusion(build(), images(), 7)
