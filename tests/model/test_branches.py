"""What computes a block by itself knows each field of the configuration and each part, or refuses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tiny import build, images, tiny
from vitkit.errors import VitkitError
from vitkit.inference.backends.optimized import prepare
from vitkit.inference.backends.token_merging import merge
from vitkit.model import branches
from vitkit.model.config import ViTConfig
from vitkit.model.vit import MLP, VisionTransformer

Compute = Callable[[VisionTransformer], object]


def draw(model: VisionTransformer) -> object:
    onnx_graph = pytest.importorskip("vitkit.inference.backends.onnx_graph")
    return onnx_graph.to_graph(model)


COMPUTE: dict[str, Compute] = {
    "optimized": prepare,
    "graph_builder": draw,
    "token_merging": lambda model: merge(model, 1),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Later(ViTConfig):
    """A configuration of some later day."""

    qk_norm: bool = False


@pytest.mark.parametrize("name", COMPUTE)
def test_a_field_that_is_not_known_is_refused_by_name(name: str) -> None:
    later = VisionTransformer(Later(**dataclasses.asdict(tiny()), qk_norm=True)).eval()
    with pytest.raises(VitkitError, match=rf"{name}\) does not know 'qk_norm' of ViTConfig"):
        COMPUTE[name](later)


@pytest.mark.parametrize("name", COMPUTE)
@pytest.mark.parametrize("field", dataclasses.fields(ViTConfig), ids=lambda field: field.name)
def test_every_field_of_today_is_known_once(name: str, field: Any) -> None:
    """Fields that change no answer are known to all; of each other one each says by itself that it computes it."""
    import importlib

    known = importlib.import_module(f"vitkit.inference.backends.{name}")._KNOWN
    assert (field.name in known) != (field.name in branches.WITHOUT_EFFECT)


@pytest.mark.parametrize(
    "changes",
    [{"norm": norm, "layer_scale": scale} for norm in ("pre", "post") for scale in (None, 0.1)]
    + [{"norm": "res-post"}],
)
def test_the_description_computes_what_the_block_does(changes: dict[str, Any]) -> None:
    """To the bit, for whoever takes parts and order from it and folds nothing."""
    model = build(**changes)
    block = model.blocks[0]
    with torch.inference_mode():
        x = model.embed(images(2))
        expected = block(x)
        for branch in branches.branches(block):

            def add(x: torch.Tensor, total: torch.Tensor | None, branch: branches.Branch = branch) -> torch.Tensor:
                own = branch.scale(branch.mix(x))
                return own if total is None else total + own

            x = branches.in_order(branch.order, x, branch.norm, add, torch.add)
        assert torch.equal(x, expected)


class Scaled(MLP):
    """An MLP that computes something else with the same parts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


class Doubling(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def _other_attention(model: VisionTransformer) -> None:
    model.blocks[1].attn.add_module("q_norm", nn.LayerNorm(model.config.head_size))


def _other_mlp(model: VisionTransformer) -> None:
    model.blocks[1].mlp = Scaled(model.config)


def _other_linear(model: VisionTransformer) -> None:
    model.blocks[1].attn.qkv = Doubling(model.config.hidden_size, 3 * model.config.hidden_size)


def _other_activation(model: VisionTransformer) -> None:
    model.blocks[1].mlp.act = nn.ReLU()


@pytest.mark.parametrize("name", COMPUTE)
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_other_attention, "its block.attn, which has a part 'q_norm'"),
        (_other_mlp, "its block.mlp, a Scaled"),
        (_other_linear, "its block.attn.qkv, a Doubling"),
        (_other_activation, "its block.mlp.act, a ReLU"),
    ],
)
def test_a_part_that_is_not_known_is_refused(name: str, change: Callable[[VisionTransformer], None], told: str) -> None:
    model = build()
    change(model)
    with pytest.raises(VitkitError, match=told):
        COMPUTE[name](model)


def test_a_head_of_another_kind_is_not_drawn_as_none() -> None:
    model = build()
    model.head = nn.Sequential(nn.Linear(model.config.hidden_size, 7))  # type: ignore[assignment]
    with pytest.raises(VitkitError, match="its head, a Sequential"):
        draw(model)
