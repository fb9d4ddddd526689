"""Hooks of scripts see all tokens of the last block, as in timm, and `model.blocks(tokens)` applies all layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer as Timms
from torch import Tensor, nn

from tiny import build
from vitkit.errors import VitkitError
from vitkit.model import VisionTransformer

SMALL: dict[str, Any] = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 3}
TOKENS = 5


def pair() -> tuple[Any, Any, Tensor]:
    torch.manual_seed(0)
    reference = Timms(**SMALL).eval()
    ours = VisionTransformer(**SMALL).eval()
    ours.load_state_dict(reference.state_dict())
    return ours, reference, torch.randn(2, 3, 16, 16)


PLACES: dict[str, Callable[[Any], nn.Module]] = {
    "blocks": lambda model: model.blocks,
    "blocks[-1]": lambda model: model.blocks[-1],
    "norm1": lambda model: model.blocks[-1].norm1,
    "attn": lambda model: model.blocks[-1].attn,
    "attn.qkv": lambda model: model.blocks[-1].attn.qkv,
    "attn.proj": lambda model: model.blocks[-1].attn.proj,
    "mlp.fc1": lambda model: model.blocks[-1].mlp.fc1,
    "mlp.act": lambda model: model.blocks[-1].mlp.act,
    "norm": lambda model: model.norm,
}


@pytest.mark.parametrize("place", PLACES)
def test_a_forward_hook_sees_what_it_sees_in_timm(place: str) -> None:
    ours, reference, images = pair()
    seen: list[Tensor] = []
    for model in (ours, reference):
        PLACES[place](model).register_forward_hook(lambda module, inputs, output: seen.append(output.detach()))
        model(images)
    assert len(seen) == 2 and seen[0].shape[1] == TOKENS
    torch.testing.assert_close(*seen, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["forward_pre", "full_backward", "full_backward_pre"])
def test_other_hooks_see_all_tokens(kind: str) -> None:
    ours, reference, images = pair()
    seen: list[Tensor] = []
    for model in (ours, reference):
        register = getattr(model.blocks[-1].attn.qkv, f"register_{kind}_hook")
        register(lambda module, *values: seen.append(values[-1][0].detach()))
        model(images)[:, 1].sum().backward()
    assert len(seen) == 2 and seen[0].shape[1] == TOKENS
    torch.testing.assert_close(*seen, rtol=1e-4, atol=1e-5)


class Spy(nn.Module):
    """A module of a script's, around one of the model."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.seen = inner, list[Tensor]()

    def forward(self, *inputs: Any) -> Tensor:
        output: Tensor = self.inner(*inputs)
        self.seen.append(output.detach())
        return output


def global_hook(model: Any, images: Tensor) -> list[Tensor]:
    seen: list[Tensor] = []

    def keep(module: nn.Module, inputs: Any, output: Tensor) -> None:
        if module is model.blocks[-1].mlp.fc1:
            seen.append(output.detach())

    handle = nn.modules.module.register_module_forward_hook(keep)
    model(images)
    handle.remove()
    return seen


def own_module(model: Any, images: Tensor) -> list[Tensor]:
    model.blocks[-1].mlp = Spy(model.blocks[-1].mlp)
    model(images)
    return list(model.blocks[-1].mlp.seen)


@pytest.mark.parametrize("watch", [global_hook, own_module])
def test_other_ways_to_look_see_all_tokens(watch: Callable[[Any, Tensor], list[Tensor]]) -> None:
    ours, reference, images = pair()
    seen = [*watch(ours, images), *watch(reference, images)]
    assert len(seen) == 2 and seen[0].shape[1] == TOKENS
    torch.testing.assert_close(*seen, rtol=1e-4, atol=1e-5)


def test_the_shortcut_is_back_when_the_hook_is_removed() -> None:
    ours, _, images = pair()
    logits = ours(images)
    handle = ours.blocks[-1].mlp.fc2.register_forward_hook(lambda *_: None)
    torch.testing.assert_close(ours(images), logits)
    assert ours.is_observed
    handle.remove()
    assert not ours.is_observed
    ours.blocks[0].register_forward_hook(lambda *_: None)  # this one sees all tokens anyway
    assert not ours.is_observed


def test_blocks_applies_all_layers() -> None:
    ours, reference, images = pair()
    tokens = ours.embed(images)
    torch.testing.assert_close(ours.blocks(tokens), reference.blocks(tokens), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.blocks[:1](tokens), reference.blocks[:1](tokens), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.norm(ours.blocks(tokens)), ours.forward_features(images))
    with pytest.raises(VitkitError, match=r"use encode\(tokens\)"):
        build(position="relative", position_at="every_layer").blocks(torch.zeros(1, 17, 32))


def test_a_compiled_and_an_exported_model_compute_the_same() -> None:
    ours, _, images = pair()
    logits = ours(images)
    compiled = torch.compile(ours, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(images), logits)
    program = torch.export.export(ours, (images,))
    torch.testing.assert_close(program.module()(images), logits)
    seen: list[Tensor] = []
    ours.blocks[-1].attn.qkv.register_forward_hook(lambda module, inputs, output: seen.append(output.detach()))
    torch.compile(ours, backend="eager")(images)
    assert seen and seen[0].shape[1] == TOKENS
