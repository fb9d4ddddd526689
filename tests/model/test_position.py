import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tiny import build, images, largest_difference, tiny
from vitkit.model import Attention, RelativePosition, VisionTransformer, sincos_1d, sincos_2d

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


@pytest.mark.parametrize("fields", [{}, {"pool": "gap"}, {"distill_token": True}, {"pool": "token+gap"}], ids=str)
def test_two_dimensional_tables_leave_the_prefix_tokens_alone(fields: dict[str, Any]) -> None:
    for position in ("learned_2d", "sincos_2d"):
        model = build(position=position, **fields)
        table, prefix = model.positions(), model.config.prefix_tokens
        assert table.shape == (prefix + 12, 32)
        assert (table[:prefix] == 0).all()
        assert (table[prefix:].abs().sum(dim=1) > 0).all()


def test_learned_2d_is_the_row_half_beside_the_column_half() -> None:
    model = build(position="learned_2d")
    y, x = model.pos_embed.y[0], model.pos_embed.x[0]
    assert (y.shape, x.shape) == ((3, 16), (4, 16))
    table = model.positions()
    for row in range(3):
        for column in range(4):
            assert torch.equal(table[1 + row * 4 + column], torch.cat([y[row], x[column]]))


def test_one_dimensional_tables_number_the_prefix_tokens_too() -> None:
    for fields, tokens in (({}, 13), ({"pool": "gap"}, 12), ({"distill_token": True}, 14)):
        sines = build(position="sincos_1d", **fields).positions()
        torch.testing.assert_close(sines.double(), torch.tensor([wave(p, 32) for p in range(tokens)]).double())
        model = build(**fields)
        learned = model.positions()
        assert torch.equal(learned, model.pos_embed[0])
        assert learned.shape == (tokens, 32)


@pytest.mark.parametrize("fields", TABLES.values(), ids=TABLES.keys())
@torch.no_grad()
def test_the_table_is_added_to_the_embedded_patches_once(fields: dict[str, Any]) -> None:
    model = build(**fields)
    bare = build(position="none")
    bare.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("pos_")})
    torch.testing.assert_close(model.embed(images()), bare.embed(images()) + model.positions())


@pytest.mark.parametrize("position_at", ["every_layer", "shared"])
@pytest.mark.parametrize("fields", TABLES.values(), ids=TABLES.keys())
@torch.no_grad()
def test_later_tables_are_added_ahead_of_each_layer(fields: dict[str, Any], position_at: str) -> None:
    model = build(position_at=position_at, **fields)
    patches = model.patch_embed.proj(images()).flatten(2).transpose(1, 2)
    x = torch.cat([model.cls_token.expand(2, 1, 32), patches], dim=1)
    assert torch.equal(model.embed(images()), x), "nothing is added at the input"
    for i, block in enumerate(model.blocks):
        x = block(x + model.positions(i))
    torch.testing.assert_close(model.forward_features(images()), model.norm(x))
    assert model.head is not None
    torch.testing.assert_close(model(images()), model.head(model.norm(x)[:, 0]))


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


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "explicit"])
@pytest.mark.parametrize("qk_scale", [None, 0.9])
@torch.no_grad()
def test_the_bias_is_scaled_with_the_logits(qk_scale: float | None, fused: bool) -> None:
    torch.manual_seed(0)
    attention = Attention(tiny(qk_scale=qk_scale))
    attention.fused = fused
    relative = RelativePosition(6, 8)
    torch.nn.init.normal_(relative.table)
    x = torch.randn(2, 6, 32)
    q, k, v = attention.qkv(x).view(2, 6, 3, 4, 8).permute(2, 0, 3, 1, 4)
    logits = q @ k.transpose(-1, -2) + naive_bias(q, relative.table, 6)
    weights = (logits * (qk_scale or 8**-0.5)).softmax(dim=-1)
    expected = attention.proj((weights @ v).transpose(1, 2).reshape(2, 6, 32))
    torch.testing.assert_close(attention(x, relative=relative), expected)


def test_relative_tables_are_one_a_layer_or_one_for_all() -> None:
    def shapes(**fields: Any) -> list[torch.Size]:
        model = VisionTransformer(tiny(position="relative", **fields))
        return [p.shape for name, p in model.named_parameters() if name.startswith("rel_pos")]

    assert shapes(position_at="every_layer") == [(25, 8)] * 3
    assert shapes(position_at="shared") == [(25, 8)]
    assert shapes(position_at="shared", distill_token=True) == [(27, 8)]
    assert shapes(position_at="shared", pool="gap") == [(23, 8)]


@torch.no_grad()
def test_every_layer_uses_its_own_relative_table() -> None:
    model = build(position="relative", position_at="every_layer")
    whole = model(images())
    for module in model.rel_pos:
        kept = module.table.clone()
        module.table.add_(torch.randn_like(kept))
        assert largest_difference(model(images()), whole) > 1e-3
        module.table.copy_(kept)


def shuffle_patches(batch: Tensor, order: Tensor) -> Tensor:
    cells = [(row, column) for row in range(3) for column in range(4)]
    shuffled = torch.empty_like(batch)
    for new, old in enumerate(order.tolist()):
        (r, c), (s, d) = cells[new], cells[old]
        shuffled[:, :, 4 * r : 4 * r + 4, 4 * c : 4 * c + 4] = batch[:, :, 4 * s : 4 * s + 4, 4 * d : 4 * d + 4]
    return shuffled


@pytest.mark.parametrize(("pool", "position_at"), [("token", "input"), ("gap", "every_layer"), ("token+gap", "shared")])
@settings(derandomize=True, max_examples=10)
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
