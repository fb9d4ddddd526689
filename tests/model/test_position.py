"""What positions are, and what a model can know of places; whole models are held to the equations in parity/."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tiny import build, images, largest_difference
from vitkit.model import RelativePosition, sincos_1d, sincos_2d

REPRODUCIBLE = settings(derandomize=True, max_examples=40)

TABLES: dict[str, dict[str, Any]] = {
    "learned_1d": {"position": "learned_1d"},
    "learned_2d": {"position": "learned_2d"},
    "sincos_1d": {"position": "sincos_1d"},
    "sincos_2d": {"position": "sincos_2d"},
}
RELATIVE: dict[str, dict[str, Any]] = {
    "relative every_layer": {"position": "relative", "position_at": "every_layer"},
    "relative shared": {"position": "relative", "position_at": "shared"},
}


def wave(position: int, dim: int) -> list[float]:
    angles = [position / 10000 ** (2 * k / dim) for k in range(dim // 2)]
    return [math.sin(a) for a in angles] + [math.cos(a) for a in angles]


@REPRODUCIBLE
@given(positions=st.integers(1, 300), half=st.integers(1, 20))
def test_sincos_1d_is_sines_then_cosines_of_falling_frequencies(positions: int, half: int) -> None:
    table = sincos_1d(positions, 2 * half)
    assert table.dtype == torch.float32
    expected = torch.tensor([wave(p, 2 * half) for p in range(positions)], dtype=torch.float64)
    torch.testing.assert_close(table.double(), expected, rtol=0, atol=1e-7)


@REPRODUCIBLE
@given(h=st.integers(1, 9), w=st.integers(1, 9), quarter=st.integers(1, 10))
def test_sincos_2d_encodes_the_column_then_the_row(h: int, w: int, quarter: int) -> None:
    table = sincos_2d((h, w), 4 * quarter)
    expected = [wave(column, 2 * quarter) + wave(row, 2 * quarter) for row in range(h) for column in range(w)]
    torch.testing.assert_close(table.double(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-7)


def naive_bias(q: Tensor, table: Tensor, tokens: int) -> Tensor:
    B, H, n, _ = q.shape
    bias = torch.empty(B, H, n, tokens, dtype=q.dtype)
    for query in range(n):
        for key in range(tokens):
            bias[:, :, query, key] = q[:, :, query] @ table[query - key + tokens - 1]
    return bias


@REPRODUCIBLE
@given(tokens=st.integers(1, 9), size=st.integers(1, 6), data=st.data())
def test_the_bias_is_the_query_times_the_embedding_of_its_offset(tokens: int, size: int, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, tokens), label="queries")
    torch.manual_seed(tokens * 100 + size)
    relative = RelativePosition(tokens, size).double()
    torch.nn.init.normal_(relative.table)
    q = torch.randn(2, 3, n, size, dtype=torch.float64)
    bias = naive_bias(q, relative.table, tokens)
    torch.testing.assert_close(relative.logits(q), bias, rtol=0, atol=1e-12)
    torch.testing.assert_close(relative(q, q, 0.5)[2], 0.5 * bias, rtol=0, atol=1e-12)


def shuffle_patches(batch: Tensor, order: Tensor) -> Tensor:
    cells = [(row, column) for row in range(3) for column in range(4)]
    shuffled = torch.empty_like(batch)
    for new, old in enumerate(order.tolist()):
        (r, c), (s, d) = cells[new], cells[old]
        shuffled[:, :, 4 * r : 4 * r + 4, 4 * c : 4 * c + 4] = batch[:, :, 4 * s : 4 * s + 4, 4 * d : 4 * d + 4]
    return shuffled


@pytest.mark.parametrize(("pool", "position_at"), [("token", "input"), ("gap", "every_layer"), ("token+gap", "shared")])
@settings(derandomize=True, max_examples=5)
@given(order=st.permutations(range(12)))
@torch.no_grad()
def test_without_positions_the_order_of_the_patches_is_nothing(pool: str, position_at: str, order: list[int]) -> None:
    model = build(position="none", position_at=position_at, pool=pool)
    shuffled = shuffle_patches(images(), torch.tensor(order))
    torch.testing.assert_close(model(shuffled), model(images()), rtol=0, atol=1e-5)
    tokens, prefix = model.forward_features(images()), model.config.prefix_tokens
    moved = torch.cat([tokens[:, :prefix], tokens[:, prefix:][:, order]], dim=1)
    torch.testing.assert_close(model.forward_features(shuffled), moved, rtol=0, atol=1e-5)


@pytest.mark.parametrize("fields", (TABLES | RELATIVE).values(), ids=(TABLES | RELATIVE).keys())
@torch.no_grad()
def test_with_positions_the_order_of_the_patches_matters(fields: dict[str, Any]) -> None:
    for pool in ("token", "gap", "token+gap"):
        model = build(pool=pool, **fields)
        for order in (torch.arange(12).roll(1), torch.arange(12).view(3, 4).flip(0).flatten()):
            assert largest_difference(model(shuffle_patches(images(), order)), model(images())) > 1e-3
