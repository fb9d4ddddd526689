"""Relevance is what autograd finds through the whole written-out model, and it tells classes apart."""

from __future__ import annotations

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
from vitkit.explanation import class_maps, exact_matrix, find_targets, gradient_attention, gradient_rollout, readers
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
