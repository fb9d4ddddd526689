"""The whole model against one written from the paper's equations with numpy, patch by patch and head by head."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import erf

from tiny import VARIETY, configs, images, randomise, tiny
from vitkit.model import VisionTransformer, ViTConfig

Array = NDArray[np.float64]
Weights = dict[str, Array]


def linear(x: Array, w: Weights, name: str) -> Array:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", np.float64(0))


def layer_norm(x: Array, w: Weights, name: str, eps: float) -> Array:
    if f"{name}.bias" not in w:  # an RMS norm
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"]
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"] + w[f"{name}.bias"]


def gelu(x: Array, kind: str) -> Array:
    if kind == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if kind == "quick":
        return x / (1 + np.exp(-1.702 * x))
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def convolved(x: Array, w: Weights, config: ViTConfig, name: str) -> Array:
    """Each patch with its eight neighbours, channel by channel; beyond the edge there is nothing. Others stay."""
    if f"{name}.conv.weight" not in w:
        return x
    kernel, bias = w[f"{name}.conv.weight"][:, 0], w[f"{name}.conv.bias"]
    (h, width), ahead = config.grid, config.prefix_tokens
    out = x.copy()
    for row in range(h):
        for column in range(width):
            total = np.broadcast_to(bias, out[:, 0].shape).copy()
            for dy in (-1, 0, 1):
                for dx in (-1, 0, 1):
                    if 0 <= row + dy < h and 0 <= column + dx < width:
                        total += x[:, ahead + (row + dy) * width + column + dx] * kernel[:, dy + 1, dx + 1]
            out[:, ahead + row * width + column] = total
    return out


def wave(position: int, size: int) -> list[float]:
    angles = [position / 10000 ** (2 * k / size) for k in range(size // 2)]
    return [math.sin(a) for a in angles] + [math.cos(a) for a in angles]


def table(config: ViTConfig, w: Weights, layer: int) -> Array:
    """The rows added to the tokens: nothing for the prefix tokens of the 2-D kinds."""
    D, (h, width) = config.hidden_size, config.grid
    prefix = [[0.0] * D] * config.prefix_tokens
    cells = [(row, column) for row in range(h) for column in range(width)]
    match config.position:
        case "learned_1d":
            rows = w["pos_embed"][layer]
            return rows if config.prefix_positions else np.concatenate([np.zeros((len(prefix), D)), rows])
        case "learned_2d":
            y, x = w["pos_embed.y"][layer], w["pos_embed.x"][layer]
            return np.array(prefix + [[*y[row], *x[column]] for row, column in cells])
        case "sincos_1d":
            return np.array([wave(position, D) for position in range(config.tokens)])
        case "sincos_2d":
            return np.array(prefix + [wave(column, D // 2) + wave(row, D // 2) for row, column in cells])
    return np.zeros((config.tokens, D))


def turned(x: Array, w: Weights, config: ViTConfig, layer: int, head: int) -> Array:
    """(B, N, D_h): every two features of a patch as a complex number, turned by the patch's place."""
    size, ahead, (h, width) = x.shape[-1], config.prefix_tokens, config.grid
    first, second = np.split(x, 2, axis=-1) if config.rotary == "dinov3" else (x[..., ::2], x[..., 1::2])
    numbers = first + 1j * second
    for patch in range(h * width):
        row, column = divmod(patch, width)
        falling = np.array([config.rotary_base ** (-4 * i / size) for i in range(size // 4)])
        if config.rotary == "mixed":
            angles = column * w["rope.freqs"][0, layer, head] + row * w["rope.freqs"][1, layer, head]
        elif config.rotary == "dinov3":
            y, z = (2 * (row + 0.5) / h - 1), (2 * (column + 0.5) / width - 1)
            angles = 2 * math.pi * np.concatenate([y * falling, z * falling])
        else:
            grid = config.rotary_grid or config.grid
            y, z = ((row + config.rotary_offset) * grid[0] / h, (column + config.rotary_offset) * grid[1] / width)
            angles = np.concatenate(
                [y * falling, z * falling] if config.rotary == "eva" else [z * falling, y * falling]
            )
        numbers[:, ahead + patch] *= np.exp(1j * angles)
    parts = [numbers.real, numbers.imag]
    return np.concatenate(parts, -1) if config.rotary == "dinov3" else np.stack(parts, -1).reshape(x.shape)


def biased(w: Weights, config: ViTConfig, layer: int, head: int) -> Array:
    """(N, N): what a table or an MLP says of two patches that lie so far apart; of a token, three numbers or none."""
    (h, width), ahead, N = config.grid, config.prefix_tokens, config.tokens
    out = np.zeros((N, N))
    name = f"rel_pos.{layer if config.position_at == 'every_layer' else 0}"
    if config.position not in ("relative_bias", "relative_mlp"):
        return out
    last = (2 * h - 1) * (2 * width - 1)
    if config.position == "relative_bias" and ahead:
        out[0], out[:, 0] = w[f"{name}.table"][last, head], w[f"{name}.table"][last + 1, head]
        out[0, 0] = w[f"{name}.table"][last + 2, head]
    for a in range(h * width):
        for b in range(h * width):
            (row, column), (other_row, other_column) = divmod(a, width), divmod(b, width)
            y, z = row - other_row, column - other_column
            if config.position == "relative_bias":
                found = w[f"{name}.table"][(y + h - 1) * (2 * width - 1) + z + width - 1, head]
            else:
                logs = np.array([np.sign(own) * math.log(1 + abs(own)) for own in (y, z)])
                found = linear(np.maximum(linear(logs, w, f"{name}.mlp.fc1"), 0), w, f"{name}.mlp.fc2")[head]
            out[ahead + a, ahead + b] = found
    return out


def attention(x: Array, w: Weights, config: ViTConfig, name: str, offsets: Array | None, layer: int) -> Array:
    B, N, D = x.shape
    if f"{name}.qkv.weight" not in w:  # a layer that convolves
        return linear(gelu(convolved(x, w, config, f"{name}.depthwise"), config.gelu), w, f"{name}.proj")
    sources = [convolved(x, w, config, f"{name}.convolve.{part}") for part in "qkv"]
    q, k, v = (np.split(linear(source, w, f"{name}.qkv"), 3, axis=-1)[i] for i, source in enumerate(sources))
    size = D // config.heads
    scale = 1 / math.sqrt(size) if config.qk_scale is None else config.qk_scale
    out = np.empty_like(x)
    for head in range(config.heads):
        own = slice(head * size, (head + 1) * size)
        if config.rotary != "none":
            q, k = q.copy(), k.copy()
            for part in (q, k):
                part[..., own] = turned(part[..., own], w, config, layer, head)
        biases = biased(w, config, layer, head)
        for b in range(B):
            for i in range(N):
                keys = k[b, :, own]
                if offsets is not None:
                    keys = keys + np.stack([offsets[i - j + N - 1] for j in range(N)])
                logits = keys @ q[b, i, own] * scale + biases[i]
                a = np.exp(logits - logits.max())
                out[b, i, own] = a / a.sum() @ v[b, :, own]
    if config.attention_norm:
        out = layer_norm(out, w, f"{name}.norm", config.norm_eps)
    return linear(out, w, f"{name}.proj")


def attended(x: Array, w: Weights, config: ViTConfig) -> Array:
    """What one learned query reads of all tokens, head by head, and an MLP makes of it."""
    heads = config.pool_heads or config.heads
    size = config.hidden_size // heads
    q = linear(w["attn_pool.latent"][0], w, "attn_pool.q")[0]
    k, v = np.split(linear(x, w, "attn_pool.kv"), 2, axis=-1)
    out = np.empty((len(x), config.hidden_size))
    for head in range(heads):
        own = slice(head * size, (head + 1) * size)
        logits = k[..., own] @ q[own] / math.sqrt(size)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        out[:, own] = np.einsum("bn,bnd->bd", weights / weights.sum(-1, keepdims=True), v[..., own])
    out = linear(out, w, "attn_pool.proj")
    hidden = linear(layer_norm(out, w, "attn_pool.norm", config.norm_eps), w, "attn_pool.mlp.fc1")
    return out + linear(gelu(hidden, config.gelu), w, "attn_pool.mlp.fc2")


def forward(config: ViTConfig, w: Weights, pictures: Array) -> tuple[Array, tuple[Array, ...]]:
    """Normalised tokens, and what each head answers (the features where there is no head)."""
    (ph, pw), (h, width), eps = config.patch_size, config.grid, config.norm_eps
    kernel = w["patch_embed.proj.weight"].reshape(config.hidden_size, -1)
    patches = [
        pictures[:, :, r * ph : (r + 1) * ph, c * pw : (c + 1) * pw].reshape(len(pictures), -1) @ kernel.T
        for r in range(h)
        for c in range(width)
    ]
    x = np.stack(patches, axis=1) + w.get("patch_embed.proj.bias", np.float64(0))
    if config.patch_norm:
        x = layer_norm(x, w, "patch_embed.norm", eps)
    prefix = [np.repeat(w[token], len(x), axis=0) for token in ("cls_token", "dist_token", "reg_token") if token in w]
    x = np.concatenate([*prefix, x], axis=1)
    if config.position_at == "input":
        x = x + table(config, w, 0)
    if config.embed_norm:
        x = layer_norm(x, w, "norm_pre", eps)

    for i in range(config.layers):
        own = i if config.position_at == "every_layer" else 0
        offsets = w[f"rel_pos.{own}.table"] if config.position == "relative" else None
        if config.position_at != "input" and not config.position.startswith("relative"):
            x = x + table(config, w, own)
        block = f"blocks.{i}"

        ls1, ls2 = (w.get(f"{block}.{name}.gamma", np.float64(1)) for name in ("ls1", "ls2"))

        def mlp(y: Array, block: str = block, ls2: Array | np.float64 = ls2) -> Array:
            hidden = convolved(linear(y, w, f"{block}.mlp.fc1"), w, config, f"{block}.mlp.conv")
            if config.mlp_kind == "swiglu":
                gate, value = np.split(hidden, 2, axis=-1)
                hidden = gate / (1 + np.exp(-gate)) * value
            else:
                hidden = gelu(hidden, config.gelu)
            if config.mlp_norm:
                hidden = layer_norm(hidden, w, f"{block}.mlp.norm", eps)
            return linear(hidden, w, f"{block}.mlp.fc2") * ls2

        def mix(y: Array, i: int = i, ls1: Array | np.float64 = ls1, offsets: Array | None = offsets) -> Array:
            return attention(y, w, config, f"blocks.{i}.attn", offsets, i) * ls1

        if config.norm == "post":
            x = layer_norm(x + mix(x), w, f"{block}.norm1", eps)
            x = layer_norm(x + mlp(x), w, f"{block}.norm2", eps)
        elif config.norm == "res-post":
            x = x + layer_norm(mix(x), w, f"{block}.norm1", eps)
            x = x + layer_norm(mlp(x), w, f"{block}.norm2", eps)
        else:
            x = x + mix(layer_norm(x, w, f"{block}.norm1", eps))
            x = x + mlp(layer_norm(x, w, f"{block}.norm2", eps))
    if config.norm != "post" and not config.fc_norm and config.last_norm:
        x = layer_norm(x, w, "norm", eps)

    ahead = sum(w[token].shape[1] for token in ("cls_token", "dist_token", "reg_token") if token in w)
    pooled = {"token": x[:, 0], "gap": x[:, ahead:].mean(1)}
    pooled["token+gap"] = np.concatenate([pooled["token"], pooled["gap"]], axis=-1)
    feature = attended(x, w, config) if config.pool == "map" else pooled[config.pool]
    if config.fc_norm:
        feature = layer_norm(feature, w, "fc_norm", eps)
    if config.representation_size and config.representation == "unit":
        feature = feature @ w["pre_logits.fc.weight"].T
        feature = feature / np.sqrt((feature**2).sum(axis=-1, keepdims=True))
    elif config.representation_size:
        feature = np.tanh(linear(feature, w, "pre_logits.fc"))
    features = [feature, x[:, 1]] if config.distill_head else [feature]
    if config.num_classes:
        features = [linear(f, w, head) for f, head in zip(features, ("head", "head_dist"), strict=False)]
    return x, tuple(features)


def check(config: ViTConfig, shortcut: bool, fused: bool) -> None:
    model = randomise(VisionTransformer(config), std=0.3).double().eval()
    model.shortcut, model.fused_attention = shortcut, fused
    pictures = images(config=config).double()
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    tokens, answers = forward(config, weights, pictures.numpy())
    # The model keeps its sinusoids in float32.
    tolerance = (
        1e-5
        if config.position.startswith("sincos") or config.rotary != "none" or config.position == "relative_mlp"
        else 1e-9
    )
    with torch.no_grad():
        np.testing.assert_allclose(model.forward_features(pictures).numpy(), tokens, rtol=0, atol=tolerance)
        heads = model.forward_heads(pictures)
        for ours, expected in zip(heads, answers, strict=True):
            np.testing.assert_allclose(ours.numpy(), expected, rtol=0, atol=tolerance)
        np.testing.assert_allclose(model(pictures).numpy(), sum(answers) / len(answers), rtol=0, atol=tolerance)


@pytest.mark.parametrize("fields", VARIETY.values(), ids=VARIETY.keys())
def test_every_variety_agrees_with_the_equations(fields: dict[str, object]) -> None:
    check(tiny(**fields), shortcut=True, fused=True)


@settings(max_examples=30)
@given(config=configs(), shortcut=st.booleans(), fused=st.booleans())
def test_any_configuration_agrees_with_the_equations(config: ViTConfig, shortcut: bool, fused: bool) -> None:
    check(config, shortcut, fused)
