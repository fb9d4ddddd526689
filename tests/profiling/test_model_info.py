"""What `describe` says of a model, against measurements of the whole model."""

import functools
import json

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tiny import VARIETY, images, some, tiny
from vitkit.model import VisionTransformer, ViTConfig, config_for
from vitkit.profiling import ModelInfo, describe

MORE = {
    "one layer": {"layers": 1},
    "no head": {"num_classes": 0},
    "distilled without classes": {"num_classes": 0, "distill_token": True, "distill_head": True},
    "one channel, eight layers": {"in_channels": 1, "layers": 8},
}


FEW = {
    *("token", "representation", "patch norm", "no qkv bias", "conv MLP distilled registers", "all mixtures post-norm"),
    *("gap with a class token", "fc_norm", "relative_mlp", "relative distilled", "map of other sizes", "eva02"),
    *("aimv2", "rotary axial", "dinov3", "res-post gap conv"),
}


@pytest.fixture(params=some([*VARIETY, *MORE], {*FEW, *MORE}))
def config(request: pytest.FixtureRequest) -> ViTConfig:
    return tiny(**(VARIETY | MORE)[request.param])


described = functools.cache(describe)


def on_meta(config: ViTConfig, shortcut: bool) -> VisionTransformer:
    with torch.device("meta"):
        model = VisionTransformer(config).eval()
    model.shortcut = shortcut
    return model


def macs(model: VisionTransformer) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.empty(1, model.config.in_channels, *model.config.image_size, device="meta"))
    return counter.get_total_flops() // 2


def test_costs_equal_those_of_the_whole_model(config: ViTConfig) -> None:
    told = described(config)
    assert told.parameters == sum(parameter.numel() for parameter in VisionTransformer(config).parameters())
    assert round(told.gmacs * 1e9) == macs(on_meta(config, shortcut=False))
    assert round(told.gmacs_executed * 1e9) == macs(on_meta(config, shortcut=True))
    assert told.weight_bytes == {"float32": 4 * told.parameters, "bfloat16": 2 * told.parameters}
    assert sum(stage.parameters * stage.times for stage in told.stages) == told.parameters
    assert sum(stage.macs * stage.times for stage in told.stages) == round(told.gmacs * 1e9)
    assert all(stage.macs >= 0 and stage.parameters >= 0 for stage in told.stages)
    assert len({stage.name for stage in told.stages}) == len(told.stages)
    back = json.loads(json.dumps(told.to_dict()))
    assert (back["parameters"], ViTConfig.from_dict(back["config"])) == (told.parameters, told.config)


def kept_bytes(model: VisionTransformer, batch: Tensor) -> int:
    """Bytes of the storages that autograd keeps, the model's own aside."""
    kept: dict[int, Tensor] = {}

    def save(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        model(batch)
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    return sum(t.untyped_storage().nbytes() for address, t in kept.items() if address not in own)


def test_activation_memory_is_what_a_real_model_keeps_and_never_less_than_training(config: ViTConfig) -> None:
    model = VisionTransformer(config).eval()
    training = kept_bytes(model, images(1, config=config))
    model.shortcut = False
    assert model.fused_attention
    told = described(config).activation_bytes
    assert told == kept_bytes(model, images(1, config=config))
    assert training <= told <= 3 * training


def stage_shapes(told: ModelInfo) -> dict[str, tuple[int, ...]]:
    return {stage.name: stage.shape for stage in told.stages}


def test_the_walk_has_the_shapes_of_the_paper() -> None:
    told = describe(config_for("vit_base_patch16_224"))
    assert told.parameters == 86_567_656
    assert told.gmacs == pytest.approx(17.56, abs=0.02)  # attention products included
    assert 0.9 < told.gmacs_executed / told.gmacs < 0.95
    expected = {
        "image": (224, 224, 3),
        "patch embedding": (14, 14, 768),
        "patches in a row": (196, 768),
        "tokens, positions added": (197, 768),
        "q, k, v": (197, 3 * 768),
        "q of each head (k, v alike)": (12, 197, 64),
        "attention, per head": (12, 197, 197),
        "MLP hidden": (197, 3072),
        "what the head reads": (768,),
        "classes": (1000,),
    }
    assert stage_shapes(told).items() >= expected.items()


def test_the_walk_follows_the_configuration() -> None:
    told = describe(tiny(representation_size=20))
    assert stage_shapes(told)["representation layer"] == (20,)
    assert stage_shapes(told)["what the head reads"] == (20,)
    assert {stage.times for stage in told.stages} == {1, 3}
    distilled = stage_shapes(describe(tiny(distill_token=True, distill_head=True)))
    assert distilled["tokens, positions added"] == (14, 32)
    assert distilled["classes, distilled"] == (7,)
    assert "relative positions" in stage_shapes(describe(tiny(position="relative", position_at="shared")))
    assert "classes" not in stage_shapes(describe(tiny(num_classes=0)))
    assert stage_shapes(describe(tiny(pool="token+gap")))["what the head reads"] == (64,)
