"""Token merging against an implementation in numpy, written from the paper, token by token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tiny import VARIETY, build, images, largest_difference, tiny
from vitkit.errors import VitkitError
from vitkit.inference import merge, merge_tokens
from vitkit.model import VisionTransformer

Array = NDArray[np.float64]

_PLACED = (  # need each patch in its place
    *("every_layer", "shared", "relative", "conv", "interleaved", "mixtures", "eva02", "rotary", "dinov3"),
)
REFUSED = [name for name in VARIETY if any(word in name for word in _PLACED)]
MERGED = [name for name in VARIETY if name not in REFUSED and not name.startswith("map")]


# --- The oracle --------------------------------------------------------------------------------------


class Token:
    """A token with how many patches are in it, and whether it may be merged."""

    def __init__(self, x: Array, size: float = 1.0, is_patch: bool = True) -> None:
        self.x, self.size, self.is_patch = x, size, is_patch


def by_the_paper(tokens: list[Token], keys: Array, r: int) -> list[Token]:
    """Sec. 3, step by step: deal into A and B, an edge from each of A, keep the r best, merge, put together."""
    a = [i for i in range(len(tokens)) if i % 2 == 0 and tokens[i].is_patch]
    b = [i for i in range(len(tokens)) if i % 2 == 1 and tokens[i].is_patch]
    r = min(r, sum(token.is_patch for token in tokens) // 2)
    if r == 0:
        return tokens

    def cosine(i: int, j: int) -> float:
        return float(keys[i] @ keys[j] / (np.linalg.norm(keys[i]) * np.linalg.norm(keys[j])))

    edges = {i: max(b, key=lambda j: cosine(i, j)) for i in a}
    kept = sorted(edges, key=lambda i: -cosine(i, edges[i]))[:r]
    merged = {j: Token(tokens[j].x * tokens[j].size, tokens[j].size) for j in b}
    for i in kept:
        into = merged[edges[i]]
        into.x, into.size = into.x + tokens[i].x * tokens[i].size, into.size + tokens[i].size
    for token in merged.values():
        token.x = token.x / token.size
    ahead = [token for token in tokens if not token.is_patch]
    return [*ahead, *(tokens[i] for i in a if i not in kept), *(merged[j] for j in b)]


def numpy_of(module: torch.nn.Module) -> Any:
    return {name: tensor.detach().double().numpy() for name, tensor in module.named_parameters()}


def normalised(x: Array, w: dict[str, Array], name: str, eps: float) -> Array:
    if f"{name}.weight" not in w:
        return x
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"] + w[f"{name}.bias"]


def encode_by_the_paper(model: VisionTransformer, image: torch.Tensor, r: int) -> tuple[Array, list[Token]]:
    """All normalised tokens of one image of a plain pre-norm model, and the tokens themselves."""
    from scipy.special import erf

    c, w = model.config, numpy_of(model)
    start = model.embed(image[None])[0].detach().double().numpy()
    tokens = [Token(x, is_patch=i >= c.prefix_tokens) for i, x in enumerate(start)]
    for layer in range(c.layers):
        at = f"blocks.{layer}"
        x, sizes = np.stack([token.x for token in tokens]), np.array([token.size for token in tokens])
        normal = normalised(x, w, f"{at}.norm1", c.norm_eps)
        q, k, v = np.split(normal @ w[f"{at}.attn.qkv.weight"].T + w[f"{at}.attn.qkv.bias"], 3, axis=1)
        outputs, d = [], c.head_size
        for head in range(c.heads):
            own = slice(head * d, (head + 1) * d)
            weights = sizes * np.exp(q[:, own] @ k[:, own].T / np.sqrt(d))  # eq. 1: log(size) inside the exponent
            outputs.append(weights / weights.sum(1, keepdims=True) @ v[:, own])
        x = x + np.concatenate(outputs, axis=1) @ w[f"{at}.attn.proj.weight"].T + w[f"{at}.attn.proj.bias"]
        for token, row in zip(tokens, x, strict=True):
            token.x = row
        tokens = by_the_paper(tokens, k.reshape(-1, c.heads, d).mean(axis=1), r)
        x = np.stack([token.x for token in tokens])
        hidden = normalised(x, w, f"{at}.norm2", c.norm_eps) @ w[f"{at}.mlp.fc1.weight"].T + w[f"{at}.mlp.fc1.bias"]
        hidden = hidden * (1 + erf(hidden / np.sqrt(2))) / 2
        x = x + hidden @ w[f"{at}.mlp.fc2.weight"].T + w[f"{at}.mlp.fc2.bias"]
        for token, row in zip(tokens, x, strict=True):
            token.x = row
    return normalised(np.stack([token.x for token in tokens]), w, "norm", c.norm_eps), tokens


def logits_by_the_paper(model: VisionTransformer, image: torch.Tensor, r: int) -> Array:
    x, tokens = encode_by_the_paper(model, image, r)
    c, w = model.config, numpy_of(model)
    sizes = np.array([token.size for token in tokens])[c.prefix_tokens :, None]
    pooled = (x[c.prefix_tokens :] * sizes).sum(axis=0) / c.patches
    read = {"token": x[0], "gap": pooled, "token+gap": np.concatenate([x[0], pooled])}[c.pool]
    logits = normalised(read, w, "fc_norm", c.norm_eps) @ w["head.weight"].T + w["head.bias"]
    if c.distill_head:
        logits = (logits + x[1] @ w["head_dist.weight"].T + w["head_dist.bias"]) / 2
    return logits


# --- The comparison ----------------------------------------------------------------------------------


@pytest.mark.parametrize("r", [0, 1, 2, 3, 100])
@pytest.mark.parametrize(
    "name", ["token", "gap", "token+gap", "distilled", "gap with a class token", "registers", "fc_norm"]
)
def test_logits_are_those_of_the_paper(name: str, r: int) -> None:
    model = build(image_size=(16, 20), **VARIETY[name])  # 20 patches
    batch = images(3, config=model.config)
    with torch.inference_mode():
        found = merge(model, r)(batch)
    expected = np.stack([logits_by_the_paper(model, image, r) for image in batch])
    np.testing.assert_allclose(found, expected, atol=2e-5)


@given(
    ahead=st.integers(0, 5),
    patches=st.integers(1, 17),
    r=st.integers(0, 12),
    seed=st.integers(0, 99),
    old=st.booleans(),
)
@settings(max_examples=60)
def test_merged_tokens_are_those_of_the_paper(ahead: int, patches: int, r: int, seed: int, old: bool) -> None:
    """Whatever lies ahead of the patches; from tokens that are merged already, too."""
    rng = np.random.default_rng(seed)
    n = ahead + patches
    x, metric = rng.normal(size=(2, n, 6)), rng.normal(size=(2, n, 3))
    sizes = np.concatenate([np.ones((2, ahead)), rng.integers(1, 9, (2, patches))], axis=1) if old else None
    config = tiny(class_token=ahead > 0, pool="token" if ahead else "gap", registers=max(ahead - 1, 0))
    found, grown = merge_tokens(
        torch.tensor(x), torch.tensor(metric), None if sizes is None else torch.tensor(sizes).float(), r, config
    )
    for image in range(2):
        start = [Token(x[image, i], 1.0 if sizes is None else sizes[image, i], is_patch=i >= ahead) for i in range(n)]
        expected = by_the_paper(start, metric[image], r)
        np.testing.assert_allclose(found[image], np.stack([token.x for token in expected]), atol=1e-6)
        if grown is not None:
            assert grown[image].tolist() == [token.size for token in expected]


@pytest.mark.parametrize("name", MERGED)
def test_merging_nothing_is_the_plain_model(name: str) -> None:
    model = build(**VARIETY[name])
    with torch.inference_mode():
        assert largest_difference(merge(model, 0)(images()), model(images())) < 1e-5


@pytest.mark.parametrize("name", MERGED)
def test_every_model_that_can_merge_does(name: str) -> None:
    model = build(**VARIETY[name])
    with torch.inference_mode():
        logits = merge(model, 3)(images())
        assert logits.shape == model(images()).shape
        assert logits.isfinite().all()
        assert largest_difference(logits, model(images())) > 1e-6


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_need_each_patch_in_its_place_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(VitkitError, match="tokens of this model cannot be merged") as raised:
        merge(build(**VARIETY[name]), 2)
    assert "\n" not in str(raised.value)


def test_attention_pooling_is_refused() -> None:
    with pytest.raises(VitkitError, match="does not support pool 'map'"):
        merge(build(pool="map"), 2)


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(VitkitError, match="0 or more, not -1"):
        merge(build(), -1)


def test_an_image_is_merged_alike_whatever_is_beside_it() -> None:
    double, batch = merge(build(pool="gap"), 2), images(5)
    with torch.inference_mode():
        alone = torch.cat([double(image[None]) for image in batch])
        assert largest_difference(double(batch), alone) < 1e-5


def test_patches_that_are_all_alike_lose_nothing_by_merging() -> None:
    """With the same token everywhere, proportional attention and the weighted mean give the plain model's answer."""
    model = build(position="none", pool="token+gap")
    flat = torch.ones(2, 3, *model.config.image_size)
    with torch.inference_mode():
        assert largest_difference(merge(model, 4)(flat), model(flat)) < 1e-5


def test_bfloat16_is_close_and_answers_in_float32() -> None:
    model = build(pool="token+gap")
    with torch.inference_mode():
        exact, coarse = (merge(model, 2, dtype)(images()) for dtype in (torch.float32, torch.bfloat16))
    assert coarse.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(exact, coarse).min() > 0.99
