"""What computes a block by itself knows each field of the configuration and each part, or refuses."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from refusals import refused
from tiny import build, images, tiny
from vitkit.explanation import attention_maps
from vitkit.inference import prepare
from vitkit.inference.backends import graphs
from vitkit.model import MLP, VisionTransformer, ViTConfig, variants
from vitkit.weights import check_expressible

Compute = Callable[[VisionTransformer], object]


COMPUTE: dict[str, Compute] = {
    "optimized": prepare,
    "graph": graphs.exportable_copy,
    "explanation": lambda model: next(iter(attention_maps(model, images(1)))),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Later(ViTConfig):
    """A configuration of some later day."""

    qk_norm: bool = False


def later(**fields: Any) -> VisionTransformer:
    return VisionTransformer(Later(**dataclasses.asdict(tiny()), **fields)).eval()


@pytest.mark.parametrize("name", COMPUTE)
def test_a_new_field_is_refused_by_name_but_at_its_default(name: str) -> None:
    COMPUTE[name](later())
    with refused("model.option-unsupported", "qk_norm=True"):
        COMPUTE[name](later(qk_norm=True))


@pytest.mark.parametrize("to", ["timm", "Hugging Face", "npz"])
def test_layouts_refuse_a_new_field_by_its_value_alone(to: str) -> None:
    check_expressible(later().config, to, {})
    with refused("weights.layout-unsuitable", "qk_norm True"):
        check_expressible(later(qk_norm=True).config, to, {})


def test_every_field_of_today_is_in_the_registry_once() -> None:
    """A field that changes answers is computed at any value, or at some values."""
    for field in dataclasses.fields(ViTConfig):
        known = (variants.WITHOUT_EFFECT, variants.COMPUTED, {"attention", "block"})
        assert sum(field.name in among for among in known) == 1, field.name
    assert variants.WRITTEN <= variants.COMPUTED


class Scaled(MLP):
    """An MLP that computes something else with the same parts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


class Doubling(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


CHANGES: dict[str, Compute] = {
    "q_norm": lambda model: model.blocks[1].attn.add_module("q_norm", nn.LayerNorm(model.config.head_size)),
    "Scaled": lambda model: setattr(model.blocks[1], "mlp", Scaled(model.config)),
    "Doubling": lambda model: setattr(model.blocks[1].attn, "qkv", Doubling(32, 96)),
    "Hardswish": lambda model: setattr(model.blocks[1].mlp, "act", nn.Hardswish()),
}


@pytest.mark.parametrize("name", ["optimized", "graph"])
@pytest.mark.parametrize("part", CHANGES)
def test_a_part_that_is_not_known_is_refused(name: str, part: str) -> None:
    model = build()
    CHANGES[part](model)
    with refused("inference.layer-unsupported", part):
        COMPUTE[name](model)


def test_a_head_of_another_kind_is_converted_as_it_is() -> None:
    model = build()
    model.head = nn.Sequential(nn.Linear(model.config.hidden_size, 7), nn.Tanh())  # type: ignore[assignment]
    torch.testing.assert_close(graphs.exportable_copy(model)(images(2)), model(images(2)))
