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


def test_rows_and_columns_are_told_from_the_rest() -> None:
    similarity = np.zeros((2, 3, 2, 3), dtype=np.float32)
    for i, j, k, m in product(range(2), range(3), range(2), range(3)):
        similarity[i, j, k, m] = 1.0 if (i, j) == (k, m) else 0.5 if i == k else 0.25 if j == m else -0.1
    assert anatomy.row_and_column_contrast(similarity) == pytest.approx((0.5, 0.25, -0.1))
    row, column, neither = anatomy.row_and_column_contrast(np.ones((1, 3, 1, 3), dtype=np.float32))
    assert row == 1
    assert math.isnan(column)
    assert math.isnan(neither)


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


@pytest.mark.parametrize("name", ["distilled", "interleaved gap"])
def test_attention_entropy_is_shannons(name: str) -> None:
    model, batch = build(**ATTENDING[name]), images(3)
    found = anatomy.attention_entropy(model, batch)
    captured = captured_attention(model, batch)
    for layer, matrices in captured.items():
        for head in range(4):
            rows = matrices[:, head].reshape(-1, model.config.tokens)
            expected = np.mean([-sum(p * math.log2(p) for p in row if p > 0) for row in rows])
            assert found[layer, head] == pytest.approx(expected, abs=1e-4)
    assert np.isnan(found).any(axis=1).sum() == 3 - len(captured)


def test_even_attention_has_the_mean_distance_and_the_highest_entropy() -> None:
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
        np.testing.assert_allclose(anatomy.attention_entropy(model, batch), math.log2(h * w + 1), rtol=1e-5)


def test_the_mean_over_images_does_not_depend_on_how_many_there_are_at_once() -> None:
    model, batch = build(), images(19)
    each = np.mean([anatomy.attention_distance(model, image[None]) for image in batch], axis=0)
    np.testing.assert_allclose(anatomy.attention_distance(model, batch), each, rtol=1e-4)


def centred(matrix: np.ndarray) -> np.ndarray:
    """U-centring, element by element (Szekely & Rizzo 2014), which the unbiased HSIC is the inner product of."""
    n = len(matrix)
    off = matrix.copy()
    np.fill_diagonal(off, 0)
    result = np.zeros_like(off)
    for i, j in product(range(n), range(n)):
        if i != j:
            row, column = off[i].sum() / (n - 2), off[:, j].sum() / (n - 2)
            result[i, j] = off[i, j] - row - column + off.sum() / ((n - 1) * (n - 2))
    return result


def expected_cka(x: np.ndarray, y: np.ndarray) -> float:
    a, b = centred(x @ x.T), centred(y @ y.T)
    return float((a * b).sum() / math.sqrt((a * a).sum() * (b * b).sum()))


def features(n: int, width: int, seed: int) -> torch.Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_cka_is_the_inner_product_of_centred_matrices() -> None:
    x = features(9, 5, 0)
    y = x[:, :3] ** 2 + features(9, 3, 1)
    assert anatomy.linear_cka(x, y) == pytest.approx(expected_cka(x.numpy(), y.numpy()), abs=1e-10)
    rotation = torch.linalg.qr(features(5, 5, 2))[0]
    assert anatomy.linear_cka(x, 3 * x @ rotation + 7) == pytest.approx(1)
    assert anatomy.linear_cka(0.2 * x @ rotation - 1, y) == pytest.approx(anatomy.linear_cka(x, y))


def test_layers_are_compared_by_all_their_tokens_and_those_lengths_are_told() -> None:
    model, batch = build(**VARIETY["registers"]), images(10)
    with torch.no_grad():
        layers = [tokens.flatten(1).double().numpy() for tokens in model.forward_layers(batch)]
    lengths = np.linalg.norm(np.stack(layers).reshape(3, 10, model.config.tokens, -1), axis=-1)
    np.testing.assert_allclose(anatomy.norms_by_layer(model, batch), lengths, rtol=1e-5)
    found = anatomy.layer_similarity(model, batch)
    expected = [[expected_cka(a, b) for b in layers] for a in layers]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    np.testing.assert_allclose(np.diag(found), 1, atol=1e-6)


def test_too_few_images_are_refused() -> None:
    functions = (anatomy.attention_distance, anatomy.attention_entropy, anatomy.norms_by_layer)
    for function, count in (*((function, 0) for function in functions), (anatomy.layer_similarity, 3)):
        with refused("explanation.images-too-few"):
            function(build(), images(3)[:count])


def test_modes_compilation_and_bfloat16_do_not_matter_and_the_model_is_left_as_it_was() -> None:
    model, batch = build(dropout=0.5, attention_dropout=0.5), images(4)
    functions: list[Any] = [anatomy.attention_distance, anatomy.attention_entropy, anatomy.layer_similarity]
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
