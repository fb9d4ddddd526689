"""Relevance is what autograd finds through the whole written-out model, and it tells classes apart."""

import weakref
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from test_attention import timms
from torch import Tensor

from tiny import VARIETY, build, images, kinds
from vitkit.errors import VitkitError
from vitkit.explanation import (
    class_maps,
    cover,
    exact_matrix,
    find_targets,
    gradient_attention,
    gradient_rollout,
    occlusion,
    readers,
    square_places,
)
from vitkit.model import VisionTransformer

TARGETS = torch.tensor([5, 0])


def relevances(seen: list[Tensor], logits: Tensor) -> list[Any]:
    """(B, N, N) of each layer, from the gradients that the whole graph keeps; in float64."""
    sum(logits[i, target] for i, target in enumerate(TARGETS)).backward()
    layers = []
    for attention in seen:
        assert attention.grad is not None
        layers.append(np.maximum((attention * attention.grad).detach().double().numpy(), 0).mean(axis=1))
    return layers


def followed(layers: list[Any]) -> Any:
    """R, from the identity, first layer to last."""
    product = np.eye(layers[0].shape[-1])
    for relevance in layers:
        product = product + relevance @ product
    return product


def keep(seen: list[Tensor], attention: Tensor) -> Tensor:
    attention.retain_grad()
    seen.append(attention)
    return attention


def own_graph(model: VisionTransformer, batch: Tensor) -> list[Any]:
    seen: list[Tensor] = []

    def watch(matrix: Any, *arguments: Any) -> Tensor:
        return keep(seen, matrix(*arguments))

    model.fused_attention, model.shortcut = False, False
    for block in model.blocks:
        if hasattr(block.attn, "matrix"):
            block.attn.matrix = partial(watch, block.attn.matrix)
    return relevances(seen, model(batch))


def test_relevance_is_that_of_timms_whole_graph() -> None:
    model, seen = build(), []
    theirs = timms(model)
    for block in theirs.blocks:
        block.attn.attn_drop.register_forward_hook(lambda _module, _inputs, output: keep(seen, output))
    layers = relevances(seen, theirs(images()))
    expected = followed(layers)[:, 0, 1:].reshape(2, 3, 4)
    assert expected.std() > 1e-3
    np.testing.assert_allclose(gradient_rollout(model, images(), TARGETS), expected, atol=1e-6, rtol=1e-4)
    for layer in (0, 1, 2, -1, -3):
        expected = layers[layer][:, 0, 1:].reshape(2, 3, 4)
        found = gradient_attention(model, images(), TARGETS, layer)
        np.testing.assert_allclose(found, expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("fields", kinds({name: own for name, own in VARIETY.items() if own.get("pool") != "map"}))
def test_relevance_is_that_of_the_models_whole_graph(fields: dict[str, Any]) -> None:
    model = build(**fields)
    rows, prefix = readers(model.config).double().numpy(), model.config.prefix_tokens
    product = followed(own_graph(build(**fields), images()))
    expected = (rows @ product)[:, prefix:].reshape(2, 3, 4)
    np.testing.assert_allclose(gradient_rollout(model, images(), TARGETS), expected, atol=1e-6, rtol=1e-4)


def test_a_layer_is_forgotten_before_the_next_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Any] = []

    def watched(*arguments: Any) -> Tensor:
        assert [reference() for reference in held] == [None] * len(held)
        matrix = exact_matrix(*arguments)
        held.append(weakref.ref(matrix))
        return matrix

    monkeypatch.setattr(class_maps, "exact_matrix", watched)
    for fused in (True, False):
        held.clear()
        model = build(layers=6)
        model.fused_attention = fused
        gradient_rollout(model, images(), 0)
        assert len(held) == 6


def test_without_a_target_each_image_is_explained_for_what_the_model_says() -> None:
    model, batch = build(), images(8)
    with torch.no_grad():
        predicted = model(batch).argmax(dim=-1)
    assert len(set(predicted.tolist())) > 1
    for method in (gradient_rollout, gradient_attention):
        assert torch.equal(method(model, batch), method(model, batch, predicted))


def test_one_class_may_be_meant_for_all_images() -> None:
    for method in (gradient_rollout, gradient_attention):
        assert torch.equal(method(build(), images(), 3), method(build(), images(), torch.tensor([3, 3])))
        assert torch.equal(method(build(), images(), 3), method(build(), images(), torch.tensor(3)))


def test_an_image_is_explained_as_if_it_were_alone() -> None:
    model, batch = build(), images(3)
    for method in (gradient_rollout, gradient_attention):
        together = method(model, batch, torch.tensor([1, 2, 3]))
        alone = torch.cat([method(model, batch[i : i + 1], i + 1) for i in range(3)])
        torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("target", [7, -1, torch.tensor([0, 7]), torch.tensor([-1, 0])])
def test_a_class_that_is_not_there_is_refused(target: Any) -> None:
    with pytest.raises(VitkitError, match="there are 0 to 6"):
        gradient_rollout(build(), images(), target)


@pytest.mark.parametrize("target", [torch.tensor([0, 1, 2]), torch.tensor([[0, 1]]), 1.5, torch.tensor([True, False])])
def test_targets_that_are_not_one_for_each_image_are_refused(target: Any) -> None:
    with pytest.raises(VitkitError, match="target must be one class or one for each of the 2 images"):
        gradient_rollout(build(), images(), target)


def test_targets_may_be_of_any_whole_type() -> None:
    targets = find_targets(build().config, torch.tensor([1, 2], dtype=torch.uint8), torch.zeros(2, 7))
    assert targets.tolist() == [1, 2]


def test_a_model_without_a_head_is_refused() -> None:
    for method in (gradient_rollout, gradient_attention):
        with pytest.raises(VitkitError, match="the model has no head"):
            method(build(num_classes=0), images())


# --- Occlusion is what happens when squares are covered, one after the other --------------------------


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
