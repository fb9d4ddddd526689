"""Relevance is what autograd finds through the whole written-out model, and it tells classes apart."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from explanation.written_out import FEW, written_out
from refusals import refused
from tiny import VARIETY, build, images, kinds
from vitkit import explanation
from vitkit.explanation import gradient_rollout, occlusion
from vitkit.model import VisionTransformer

TARGETS = torch.tensor([5, 0])


@pytest.mark.parametrize("fields", kinds({name: own for name, own in VARIETY.items() if own.get("pool") != "map"}, FEW))
def test_relevance_is_that_of_the_models_whole_graph(fields: dict[str, Any]) -> None:
    model = build(**fields)
    rows, prefix = explanation.head_token_weights(model.config).double().numpy(), model.config.prefix_tokens
    logits, seen = written_out(model, images())
    sum(logits[i, target] for i, target in enumerate(TARGETS)).backward()
    products = [(own * own.grad).detach().double().numpy() for own in seen.values()]
    layers = [np.maximum(own, 0).mean(axis=1) for own in products]  # (B, N, N)
    followed: Any = np.eye(layers[0].shape[-1])
    for relevance in layers:
        followed = followed + relevance @ followed
    expected = (rows @ followed)[:, prefix:].reshape(2, 3, 4)
    np.testing.assert_allclose(gradient_rollout(model, images(), TARGETS), expected, atol=1e-6, rtol=1e-4)


def test_which_class_is_explained() -> None:
    """What the model says of each image, one class for all, or one for each: as if the image were alone."""
    model, batch = build(), images(4)
    with torch.no_grad():
        predicted = model(batch).argmax(dim=-1)
    assert len(set(predicted.tolist())) > 1
    for method in (gradient_rollout, occlusion):
        assert torch.equal(method(model, batch), method(model, batch, predicted))
        for target in (torch.tensor([3] * 4), torch.tensor(3), torch.tensor([3] * 4, dtype=torch.uint8)):
            assert torch.equal(method(model, batch, 3), method(model, batch, target))
        together = method(model, batch[:3], torch.tensor([1, 2, 3]))
        alone = torch.cat([method(model, batch[i : i + 1], i + 1) for i in range(3)])
        torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("method", [gradient_rollout, occlusion])
def test_a_class_that_is_not_there_is_refused(method: Any) -> None:
    for target in (7, -1, torch.tensor([0, 7]), torch.tensor([-1, 0])):
        with refused("explanation.class-missing", "0 to 6"):
            method(build(), images(), target)
    for target in (torch.tensor([0, 1, 2]), torch.tensor([[0, 1]]), 1.5, torch.tensor([True, False])):
        with refused("explanation.target-invalid"):
            method(build(), images(), target)
    with refused("explanation.head-missing"):
        method(build(num_classes=0), images())


def probability(model: VisionTransformer, image: Any, target: int) -> float:
    with torch.no_grad():
        return model(image[None]).softmax(-1)[0, target].item()


def one_by_one(model: VisionTransformer, image: Any, target: int, square: int) -> Any:
    """(h, w), covering pixels (4 x 4 patches, a grid of 3 x 4) one image at a time."""
    sums, counts = np.zeros((3, 4)), np.zeros((3, 4))
    height, width = min(square, 3), min(square, 4)
    for top, left in product(range(3 - height + 1), range(4 - width + 1)):
        covered = image.clone()
        covered[:, 4 * top : 4 * (top + height), 4 * left : 4 * (left + width)] = 0
        drop = probability(model, image, target) - probability(model, covered, target)
        sums[top : top + height, left : left + width] += drop
        counts[top : top + height, left : left + width] += 1
    return sums / counts


@pytest.mark.parametrize("square", [1, 2, 9])
def test_it_is_the_mean_drop_over_the_squares_that_cover_a_patch(square: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch, targets = build(), images(2), [4, 1]
    expected = np.stack([one_by_one(model, x, t, square) for x, t in zip(batch, targets, strict=True)])
    for at_a_time in (5, 64):
        monkeypatch.setattr("vitkit.explanation.class_maps._AT_A_TIME", at_a_time)
        found = occlusion(model, batch, torch.tensor(targets), square=square)
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_only_the_pixels_of_the_patches_are_covered() -> None:
    config = build(image_size=(6, 20), patch_size=(2, 4)).config
    patches = torch.zeros(2, 3, 5, dtype=torch.bool)
    patches[0, 2, 1], patches[1, 0, 4] = True, True
    covered = explanation.cover(torch.ones(1, 3, 6, 20), patches, config, 0.0)
    assert covered.shape == (2, 3, 6, 20)
    assert (covered[0, :, 4:6, 4:8] == 0).all()
    assert (covered[1, :, 0:2, 16:20] == 0).all()
    assert (covered == 0).sum() == 2 * 3 * 8
    model = build(image_size=(60, 44), patch_size=1, stem=(1, 1))  # the patches of a stem may reach beyond the image
    assert model.config.grid == (8, 6)
    every = torch.ones(1, 8, 6, dtype=torch.bool)
    assert (explanation.cover(torch.ones(1, 3, 60, 44), every, model.config, 0.0) == 0).all()
    assert occlusion(model, images(1, config=model.config), 0).shape == (1, 8, 6)


def test_an_empty_square_is_refused() -> None:
    with refused("explanation.option-too-small"):
        occlusion(build(), images(), square=0)
