"""The anatomy of a checkpoint equals what loops over plain numbers say."""

import copy
import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from explanation.written_out import written_out
from refusals import refused
from tiny import VARIETY, build, images, randomise
from vitkit.explanation import model_analysis as anatomy
from vitkit.model import VisionTransformer, ViTConfig

ATTENDING = {name: VARIETY[name] for name in ("token", "distilled", "interleaved gap", "relative shared")}


def hybrid(**fields: Any) -> VisionTransformer:
    config = ViTConfig(
        image_size=(40, 56), patch_size=1, stem=(1, 1), hidden_size=16, heads=2, layers=2, mlp_size=16, num_classes=3,
        **fields,
    )  # fmt: skip
    return randomise(VisionTransformer(config)).eval()


@torch.no_grad()
def captured_attention(model: VisionTransformer, batch: torch.Tensor) -> dict[int, np.ndarray]:
    return {layer: own.double().numpy() for layer, own in written_out(model, batch)[1].items()}


@pytest.mark.parametrize("fields", [{}, {"in_channels": 1}, {"patch_size": (3, 8)}])
def test_filters_are_the_principal_components_that_scikit_learn_finds(fields: dict[str, Any]) -> None:
    model = build(**fields)
    filters = model.patch_embed.proj.weight.detach().numpy()
    pca = PCA(n_components=10, svd_solver="full").fit(filters.reshape(len(filters), -1))
    found = anatomy.filter_components(model, 10)
    ph, pw = model.config.patch_size
    assert found.shape == (10, ph, pw, model.config.in_channels)
    for component, expected in zip(found, pca.components_, strict=True):
        assert abs(np.vdot(component.transpose(2, 0, 1).ravel(), expected)) == pytest.approx(1, abs=1e-4)
        assert component.ravel()[np.abs(component).argmax()] > 0


def test_there_are_no_more_components_than_the_filters_span() -> None:
    assert len(anatomy.filter_components(build(), 1000)) == 32
    assert len(anatomy.filter_components(build(hidden_size=8), 28)) == 8
    with refused("explanation.filters-undrawable"):
        anatomy.filter_components(hybrid())


@pytest.mark.parametrize(
    "name",
    [
        "gap",
        "registers",
        "registers without positions",
        "learned_1d every_layer",
        "learned_2d",
        "sincos_1d",
        "sincos_2d",
    ],
)
def test_positions_are_compared_patch_by_patch_and_prefix_tokens_left_out(name: str) -> None:
    model = build(**VARIETY[name])
    h, w = model.config.grid
    found = anatomy.position_similarity(model)
    assert (found.shape, found.dtype) == ((h, w, h, w), np.float32)
    if name == "learned_2d":
        y, x = (table.detach()[0].numpy() for table in (model.pos_embed.y, model.pos_embed.x))
        places = {(i, j): np.concatenate([y[i], x[j]]) for i in range(h) for j in range(w)}
    else:
        table = model.pos_embed.table if name.startswith("sincos") else model.pos_embed.detach()[0]
        rows = table.numpy()[-h * w :]
        places = {(i, j): rows[i * w + j] for i in range(h) for j in range(w)}
    for a, b in product(places, places):
        cosine = places[a] @ places[b] / (np.linalg.norm(places[a]) * np.linalg.norm(places[b]))
        assert found[a + b] == pytest.approx(cosine, abs=1e-5)


def test_positions_of_special_models() -> None:
    model = build()
    torch.nn.init.zeros_(model.pos_embed)
    assert (anatomy.position_similarity(model) == 0).all(), "what is zero is like nothing"
    assert anatomy.position_similarity(hybrid()).shape == (5, 7, 5, 7), "the grid of its feature map"
    for name in ("none", "relative shared"):
        with refused("explanation.positions-missing"):
            anatomy.position_similarity(build(**VARIETY[name]))


@pytest.mark.parametrize("name", ATTENDING)
def test_attention_distance_is_what_loops_over_pixels_say(name: str) -> None:
    model, batch = build(**ATTENDING[name]), images(3)
    _, w = model.config.grid
    prefix, (ph, pw) = model.config.prefix_tokens, model.config.patch_size
    found = anatomy.attention_distance(model, batch)
    captured = captured_attention(model, batch)
    assert found.shape == (3, 4)
    for layer, head in product(range(3), range(4)):
        if layer not in captured:
            assert math.isnan(found[layer, head])
            continue
        total = []
        for matrix in captured[layer][:, head]:
            for query in range(model.config.patches):
                to_patches = matrix[prefix + query, prefix:]
                reached = 0.0
                for key, weight in enumerate(to_patches / to_patches.sum()):
                    dy, dx = (query // w - key // w) * ph, (query % w - key % w) * pw
                    reached += weight * math.hypot(dy, dx)
                total.append(reached)
        assert found[layer, head] == pytest.approx(np.mean(total), rel=1e-4)


def test_even_attention_has_the_mean_distance() -> None:
    """Distances are in pixels of the image, a hybrid's too."""
    for model, (high, wide) in ((build(patch_size=(4, 2)), (4, 2)), (hybrid(), (8, 8))):
        for block in model.blocks:
            torch.nn.init.zeros_(block.attn.qkv.weight)
            torch.nn.init.zeros_(block.attn.qkv.bias)
        h, w = model.config.grid
        places = [(high * i, wide * j) for i in range(h) for j in range(w)]
        mean = np.mean([math.dist(a, b) for a, b in product(places, places)])
        batch = images(2, config=model.config)
        np.testing.assert_allclose(anatomy.attention_distance(model, batch), mean, rtol=1e-5)


def test_the_mean_over_images_does_not_depend_on_how_many_there_are_at_once() -> None:
    model, batch = build(), images(19)
    each = np.mean([anatomy.attention_distance(model, image[None]) for image in batch], axis=0)
    np.testing.assert_allclose(anatomy.attention_distance(model, batch), each, rtol=1e-4)


def test_the_lengths_are_those_of_all_tokens_of_each_layer() -> None:
    model, batch = build(**VARIETY["registers"]), images(10)
    with torch.no_grad():
        layers = [tokens.double().numpy() for tokens in model.forward_layers(batch)]
    np.testing.assert_allclose(anatomy.norms_by_layer(model, batch), np.linalg.norm(layers, axis=-1), rtol=1e-5)
    for function in (anatomy.attention_distance, anatomy.norms_by_layer):
        with refused("explanation.images-too-few"):
            function(build(), images(3)[:0])


def test_modes_compilation_and_bfloat16_do_not_matter_and_the_model_is_left_as_it_was() -> None:
    model, batch = build(dropout=0.5, attention_dropout=0.5), images(4)
    functions: list[Any] = [anatomy.attention_distance, anatomy.norms_by_layer]
    plain = [function(model, batch) for function in functions]
    model.train()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    compiled, half = torch.compile(model, backend="eager"), copy.deepcopy(model).bfloat16()
    for function, expected in zip(functions, plain, strict=True):
        np.testing.assert_allclose(function(model, batch), expected, rtol=1e-5)
        np.testing.assert_allclose(function(compiled, batch), expected, rtol=1e-5)
        found = function(half, batch)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=0.1, atol=0.05)
    for look in (anatomy.position_similarity, anatomy.filter_components):
        np.testing.assert_array_equal(look(compiled), look(model))
    assert np.isfinite(anatomy.position_similarity(half)).all()
    assert model.training
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
