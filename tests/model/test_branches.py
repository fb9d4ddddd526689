"""What computes a block by itself knows each field of the configuration and each part, or refuses."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tiny import build, images, tiny
from vitkit.errors import VitkitError
from vitkit.explanation import attention_maps
from vitkit.inference import Branch, branches, in_order, prepare
from vitkit.inference.backends import graphs
from vitkit.model import MLP, VisionTransformer, ViTConfig, variants
from vitkit.weights import refuse_unless

Compute = Callable[[VisionTransformer], object]


COMPUTE: dict[str, Compute] = {
    "optimized": prepare,
    "graph": graphs.folded,
    "explanation": lambda model: next(iter(attention_maps(model, images(1)))),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Later(ViTConfig):
    """A configuration of some later day."""

    qk_norm: bool = False


WHO = {
    "optimized": "the optimised model",
    "graph": "the optimised model",
    "explanation": "attention maps",
}


def later(**fields: Any) -> VisionTransformer:
    return VisionTransformer(Later(**dataclasses.asdict(tiny()), **fields)).eval()


@pytest.mark.parametrize("name", COMPUTE)
def test_a_field_at_another_value_than_its_default_is_refused_by_name_and_value(name: str) -> None:
    with pytest.raises(VitkitError, match=rf"{WHO[name]} cannot be used with qk_norm=True of ViTConfig"):
        COMPUTE[name](later(qk_norm=True))


@pytest.mark.parametrize("name", COMPUTE)
def test_a_new_field_at_its_default_is_fine(name: str) -> None:
    COMPUTE[name](later())


@pytest.mark.parametrize("to", ["timm", "Hugging Face", "npz"])
def test_layouts_refuse_a_new_field_by_its_value_alone(to: str) -> None:
    refuse_unless(later().config, to, {})
    with pytest.raises(VitkitError, match=f"the {to} layout cannot express qk_norm True"):
        refuse_unless(later(qk_norm=True).config, to, {})


def test_every_field_of_today_is_in_the_registry_once() -> None:
    """A field that changes answers is computed at any value, or at some values."""
    for field in dataclasses.fields(ViTConfig):
        known = (variants.WITHOUT_EFFECT, variants.COMPUTED, {"attention", "block"})
        assert sum(field.name in among for among in known) == 1, field.name
    assert variants.WRITTEN <= variants.COMPUTED


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
        for branch in branches(block):

            def add(x: torch.Tensor, total: torch.Tensor | None, branch: Branch = branch) -> torch.Tensor:
                own = branch.scale(branch.mix(x))
                return own if total is None else total + own

            x = in_order(branch.order, x, branch.norm, add, torch.add)
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
    model.blocks[1].mlp.act = nn.Hardswish()


@pytest.mark.parametrize("name", [name for name in COMPUTE if name != "explanation"])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_other_attention, "the block.attn contains 'q_norm'"),
        (_other_mlp, "the block.mlp is a Scaled"),
        (_other_linear, "the block.attn.qkv is a Doubling"),
        (_other_activation, "the block.mlp.act is a Hardswish"),
    ],
)
def test_a_part_that_is_not_known_is_refused(name: str, change: Callable[[VisionTransformer], None], told: str) -> None:
    model = build()
    change(model)
    with pytest.raises(VitkitError, match=told):
        COMPUTE[name](model)


def test_a_head_of_another_kind_is_converted_as_it_is() -> None:
    model = build()
    model.head = nn.Sequential(nn.Linear(model.config.hidden_size, 7), nn.Tanh())  # type: ignore[assignment]
    torch.testing.assert_close(graphs.folded(model)(images(2)), model(images(2)))
