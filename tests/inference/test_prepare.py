"""The double answers as the untouched model does, whatever its family, and is independent of it."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from refusals import refused
from tiny import VARIETY, build, configs, images, largest_difference, randomise, some
from vitkit.inference import prepare
from vitkit.model import VisionTransformer, ViTConfig

HYBRID: dict[str, dict[str, Any]] = {
    f"hybrid {kind}": {"stem": (1, 1), "stem_kind": kind, "patch_size": (1, 1), "image_size": (16, 24)}
    for kind in ("reference", "timm")
}
FAMILIES = VARIETY | HYBRID
FEW = {  # of each kind of part that is folded or packed; the property below has the others
    *("token", "representation", "no qkv bias", "learned_2d shared", "fc_norm", "layer scale", "swiglu", "clip"),
    *("conv MLP distilled registers", "all mixtures post-norm", "relative_bias shared", "relative_mlp"),
    *("relative distilled", "map of all tokens", "eva02", "rms", "rotary mixed", "res-post gap conv", *HYBRID),
}


@pytest.mark.parametrize("family", some(FAMILIES, FEW))
def test_answers_are_the_models(family: str) -> None:
    model = build(**FAMILIES[family])
    batch = images(3, config=model.config)
    with torch.inference_mode():
        expected = model(batch)
        scale = max(1.0, expected.abs().max().item())
        for dtype, most, packs in (
            (torch.float32, 1e-5, (True, False)),
            (torch.bfloat16, 0.1 * scale, (True, False)),
            (torch.float16, 5e-3 * scale, (False,)),
        ):
            for pack in packs:
                attend = {"attend": "batch"} if dtype == torch.float16 else {}
                found = prepare(model, dtype, pack=pack, **attend)(batch)
                assert found.dtype == torch.float32
                assert largest_difference(found, expected) <= most
        assert torch.equal(model(batch), expected), "the model stays as it was"
    # What is folded is read before it is moved and rounded: on the meta device nothing can be read again.
    double = prepare(model, torch.bfloat16, "meta", pack=False)
    assert {part.device.type for part in (*double.parameters(), *double.buffers())} == {"meta"}


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(config=configs())
def test_any_configuration_can_be_prepared(config: ViTConfig) -> None:
    model = randomise(VisionTransformer(config)).eval()
    batch = images(2, config=config)
    with torch.inference_mode():
        expected, exact = model(batch), copy.deepcopy(model).double()(batch.double())
        rounding = largest_difference(expected, exact)  # large where a norm divides by almost nothing
        most = 1e-5 * max(1.0, expected.abs().max().item()) + 3 * rounding
        assert largest_difference(prepare(model)(batch), expected) <= most


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_later_changes_of_the_model_do_not_reach_the_double(dtype: torch.dtype) -> None:
    model = build(registers=1, norm="post", patch_norm=True)
    double = prepare(model, dtype)
    with torch.inference_mode():
        before = double(images())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    with torch.inference_mode():
        assert torch.equal(double(images()), before)


def test_dropout_is_off_and_the_model_keeps_its_types_gradients_and_mode() -> None:
    model = build(dropout=0.5, drop_path=0.5, attention_dropout=0.5, position_dropout=0.5).train()
    double = prepare(model, torch.bfloat16)
    with torch.inference_mode():
        assert torch.equal(double(images()), double(images()))
    assert model.training
    assert {(parameter.dtype, parameter.requires_grad) for parameter in model.parameters()} == {(torch.float32, True)}
    model(images()).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pack", [True, False])
def test_any_number_of_images_of_one_size_is_taken(pack: bool, dtype: torch.dtype) -> None:
    double = prepare(build(), dtype, pack=pack)
    with torch.inference_mode():
        for batch in (0, 1, 5):
            assert double(images(batch)).shape == (batch, 7)
    with refused("model.images-misshapen"):
        double(torch.zeros(1, 3, 12, 20))


def test_models_without_a_head_or_shortcut_are_taken() -> None:
    headless, long = build(num_classes=0), build()
    long.shortcut = False
    for model in (headless, long):
        with torch.inference_mode():
            assert largest_difference(prepare(model)(images()), model(images())) <= 1e-5
