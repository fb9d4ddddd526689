"""Attention maps are the matrices that the model attends with, in whatever way it runs."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from explanation.written_out import FEW, written_out
from refusals import refused
from tiny import build, configs, images, kinds, largest_difference, randomise
from vitkit import explanation as explain
from vitkit.explanation import (
    attention_maps,
    head_maps,
    last_attention,
    patch_attention,
    rollout,
    unwrap_compiled,
)
from vitkit.model import VisionTransformer, ViTConfig


@pytest.mark.parametrize("fields", kinds(few=FEW))
@torch.no_grad()
def test_maps_are_what_the_model_attends_with(fields: dict[str, Any]) -> None:
    model, batch = build(**fields), images()
    mine = list(attention_maps(model, batch))
    _, own = written_out(model, batch)
    for a, b in zip(mine, own.values(), strict=True):
        assert largest_difference(a, b) <= 1e-5


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(config=configs(), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_every_row_sums_to_one(config: ViTConfig, dtype: torch.dtype) -> None:
    model = randomise(VisionTransformer(config)).to(dtype)
    if len(config.conv_layers) == config.layers:
        return
    maps = list(attention_maps(model, images(2, config=config)))
    assert len(maps) == config.layers - len(config.conv_layers)
    for attention in maps:
        assert attention.shape == (2, config.heads, config.tokens, config.tokens)
        assert attention.min() >= 0
        assert (attention.sum(-1) - 1).abs().max() <= 1e-5


def snapshot(model: nn.Module) -> dict[str, Any]:
    """All that an explanation could leave behind in a model."""
    return {
        "modes": {name: module.training for name, module in model.named_modules()},
        "attributes": {name: sorted(vars(module)) for name, module in model.named_modules()},
        "requires_grad": {name: p.requires_grad for name, p in model.named_parameters()},
        "grad": {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()},
        "weights": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "fused": [getattr(block.attn, "fused", None) for block in model.blocks],
    }


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b


@pytest.mark.parametrize("name", explain.METHODS)
def test_the_model_is_left_as_it_was(name: str) -> None:
    rates = {"dropout": 0.5, "attention_dropout": 0.5, "position_dropout": 0.5, "drop_path": 0.5}
    model = build(**rates)
    expected = explain.METHODS[name](model, images())
    model.train()
    model.blocks[1].eval()
    model.blocks[0].mlp.fc1.weight.requires_grad_(False)
    model(images()).sum().backward()
    before = snapshot(model)
    found = explain.METHODS[name](model, images())
    assert same(snapshot(model), before)
    assert torch.equal(found, expected), "dropout was on"
    assert not found.requires_grad
    assert torch.is_grad_enabled()


def test_the_model_is_left_as_it_was_while_the_maps_are_not_yet_all_asked_for() -> None:
    model = build(dropout=0.5).train()
    before = snapshot(model)
    next(attention_maps(model, images()))
    assert same(snapshot(model), before) and torch.is_grad_enabled()


@pytest.mark.parametrize("name", explain.METHODS)
def test_a_compiled_model_has_the_same_maps(name: str) -> None:
    method, expected = explain.METHODS[name], explain.METHODS[name](build(), images())
    compiled, in_place, by_block = torch.compile(build(), backend="eager"), build(), build()
    assert unwrap_compiled(compiled) is not compiled and unwrap_compiled(in_place) is in_place
    in_place.compile(backend="eager")
    for i, block in enumerate(by_block.blocks):
        by_block.blocks[i] = torch.compile(block, backend="eager")
    for model in (compiled, in_place, by_block):
        assert torch.equal(method(model, images()), expected)


@pytest.mark.parametrize("name", explain.METHODS)
def test_the_callers_mode_of_autograd_does_not_matter(name: str) -> None:
    method, expected = explain.METHODS[name], explain.METHODS[name](build(), images())
    with torch.no_grad():
        assert torch.equal(method(build(), images()), expected)
    with torch.inference_mode():
        made_inside, inference_images = build(), images()
        target = {"target": build()(images()).argmax(-1)} if method.is_class_specific else {}
        assert torch.equal(method(made_inside, images(), **target), expected)
    for model, batch in ((made_inside, inference_images), (build(), images().requires_grad_())):
        assert torch.equal(method(model, batch, **target), expected)


@pytest.mark.parametrize("name", explain.METHODS)
def test_autocast_and_bfloat16_weights_give_nearly_the_same_maps(name: str) -> None:
    method, target = explain.METHODS[name], {"target": 3} if explain.METHODS[name].is_class_specific else {}
    expected = method(build(), images(), **target)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        casting = method(build(), images(), **target)
        matrices = list(attention_maps(build(), images()))
    assert all((matrix.sum(-1) - 1).abs().max() <= 1e-5 for matrix in matrices)
    for found in (casting, method(build().bfloat16(), images(), **target)):
        assert found.dtype == torch.float32
        assert np.corrcoef(found.flatten(), expected.flatten())[0, 1] > 0.99


@pytest.mark.parametrize(
    ("fields", "rows"),
    [
        ({"pool": "gap"}, dict.fromkeys(range(12), 1 / 12)),
        ({"pool": "gap", "class_token": True}, dict.fromkeys(range(1, 13), 1 / 12)),
        ({"pool": "token+gap", "registers": 2}, {0: 0.5} | dict.fromkeys(range(3, 15), 1 / 24)),
        ({"distill_token": True, "distill_head": True}, {0: 0.5, 1: 0.5}),
        ({"registers": 2}, {0: 1.0}),
    ],
)
def test_what_the_head_reads_decides_the_rows(fields: dict[str, Any], rows: dict[int, float]) -> None:
    model = build(**fields)
    prefix, maps = model.config.prefix_tokens, list(attention_maps(model, images()))
    for layer in (0, 1, 2, -1, -2, -3):
        attention = maps[layer].numpy().astype(np.float64)
        expected = sum(weight * attention[:, :, row, prefix:] for row, weight in rows.items()).reshape(2, 4, 3, 4)
        np.testing.assert_allclose(head_maps(model, images(), layer), expected, atol=1e-6)
        np.testing.assert_allclose(last_attention(model, images(), layer), expected.mean(axis=1), atol=1e-6)


def test_where_the_last_layer_convolves_the_last_that_attends_is_shown() -> None:
    model = build(conv_layers=(0, 2), pool="gap")
    assert torch.equal(last_attention(model, images()), last_attention(model, images(), 1))
    for function in (last_attention, head_maps):
        with refused("explanation.attention-missing"):
            function(model, images(), layer=2)


@pytest.mark.parametrize("name", explain.METHODS)
def test_what_a_method_cannot_explain_is_refused(name: str) -> None:
    method = explain.METHODS[name]
    with refused("explanation.model-kind"):
        method(nn.Linear(3, 3), images())
    with refused("model.images-misshapen"):
        method(build(), torch.zeros(1, 3, 8, 8))
    for layer in (3, -4) if method.is_layer_specific else ():
        with refused("model.layer-missing"):
            method(build(), images(), layer=layer)
    convolving = build(conv_layers=(0, 1, 2), pool="gap")
    if name == "occlusion":
        assert method(convolving, images()).shape == (2, 3, 4)
    else:
        with refused("explanation.attention-missing"):
            method(convolving, images())


def test_a_patch_that_is_not_there_is_refused() -> None:
    h, w = build().config.grid
    for row, column in ((-1, 0), (h, 0), (0, w)):
        with refused("explanation.patch-missing"):
            patch_attention(build(), images(1), row, column)


@pytest.mark.parametrize("fields", [{"registers": 2}, {"pool": "gap"}, {"conv_layers": (1,)}], ids=str)
def test_it_is_the_row_of_the_patch(fields: dict[str, object]) -> None:
    model, batch = build(**fields), images(1)
    h, w = model.config.grid
    maps = list(attention_maps(model, batch))
    prefix = model.config.prefix_tokens
    for row, column in ((0, 0), (1, 2), (h - 1, w - 1)):
        found = patch_attention(model, batch, row, column)  # (L, H, h, w)
        expected = torch.stack([own[0, :, prefix + row * w + column, prefix:].reshape(-1, h, w) for own in maps])
        assert torch.equal(found, expected)


Array = npt.NDArray[np.float64]


def by_loops(layers: list[Array]) -> Array:
    """(B, N, N) from (B, H, N, N) of each layer, one image and one layer at a time, in float64."""
    products = []
    for image in range(len(layers[0])):
        product = np.eye(layers[0].shape[-1])
        for layer in layers:
            mixed = layer[image].mean(axis=0) + np.eye(len(product))
            product = (mixed / mixed.sum(axis=1, keepdims=True)) @ product
        products.append(product)
    return np.stack(products)


@pytest.mark.parametrize(
    ("fields", "rows"),  # the number of the first tokens that the head reads, whose rows are averaged
    [
        ({"pool": "gap"}, 12),
        ({"registers": 3}, 1),
        ({"distill_token": True, "distill_head": True}, 2),
        ({"conv_layers": (1,)}, 1),
    ],
    ids=str,
)
def test_rollout_is_the_product_written_with_loops(fields: dict[str, Any], rows: int) -> None:
    model = build(**fields)
    product = by_loops([attention.double().numpy() for attention in attention_maps(model, images())])
    expected = product[:, :rows].mean(axis=1)[:, model.config.prefix_tokens :].reshape(2, 3, 4)
    np.testing.assert_allclose(rollout(model, images()), expected, atol=1e-6)
