import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tiny import VARIETY, build, images, tiny
from vitkit.model import VisionTransformer, build_with_weights

D, M, LAYERS = 128, 192, 2
WIDE: dict[str, Any] = {"hidden_size": D, "mlp_size": M, "layers": LAYERS, "representation_size": 96, "patch_size": 4}
TABLES: dict[str, dict[str, Any]] = {
    "sincos_1d": {"position": "sincos_1d"},
    "sincos_2d": {"position": "sincos_2d", "distill_token": True},
    "relative every_layer": {"position": "relative", "position_at": "every_layer"},
    "relative shared": {"position": "relative", "position_at": "shared"},
    "learned_2d": {"position": "learned_2d"},
}


def fresh(seed: int = 0, **fields: Any) -> VisionTransformer:
    torch.manual_seed(seed)
    return VisionTransformer(tiny(**fields))


def assert_normal(weight: Tensor, std: float) -> None:
    """Mean and deviation within five standard errors, and no value beyond five deviations."""
    n = weight.numel()
    assert n >= 96
    assert abs(weight.mean().item()) < 5 * std / math.sqrt(n)
    assert weight.std().item() == pytest.approx(std, rel=5 / math.sqrt(2 * n))
    assert weight.abs().max().item() < 5 * std
    assert weight.abs().max().item() > 1.5 * std, "not uniform"


def assert_xavier_uniform(weight: Tensor, fan_in: int, fan_out: int) -> None:
    bound = math.sqrt(6 / (fan_in + fan_out))
    assert weight.shape == (fan_out, fan_in)
    assert 0.99 * bound < weight.abs().max().item() <= bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03), "uniform up to its bound"


def assert_lecun_normal(weight: Tensor, fan_in: int) -> None:
    """Variance 1 / fan_in after cutting at two deviations of the normal that was cut."""
    std = math.sqrt(1 / fan_in)
    assert weight.std().item() == pytest.approx(std, rel=0.04)
    cut = 2 * std / 0.8796
    assert 0.97 * cut < weight.abs().max().item() <= cut * 1.001


def test_reference_weights_are_xavier_lecun_normal_or_zero() -> None:
    model = fresh(init="reference", **WIDE)
    for block in model.blocks:
        for part in range(3):
            assert_xavier_uniform(block.attn.qkv.weight[part * D : (part + 1) * D], D, D)
        assert_xavier_uniform(block.attn.proj.weight, D, D)
        assert_xavier_uniform(block.mlp.fc1.weight, D, M)
        assert_xavier_uniform(block.mlp.fc2.weight, M, D)
        assert_normal(block.mlp.fc1.bias, 1e-6)
        assert_normal(block.mlp.fc2.bias, 1e-6)
    assert_lecun_normal(model.patch_embed.proj.weight, 3 * 4 * 4)
    assert isinstance(model.pre_logits, nn.Sequential)
    assert_lecun_normal(model.pre_logits.fc.weight, D)
    zero = {name for name, p in model.named_parameters() if (p == 0).all()}
    expected = {"cls_token", "patch_embed.proj.bias", "pre_logits.fc.bias", "head.weight", "head.bias"}
    expected |= {f"blocks.{i}.attn.{layer}.bias" for i in range(LAYERS) for layer in ("qkv", "proj")}
    expected |= {f"blocks.{i}.norm{k}.bias" for i in range(LAYERS) for k in (1, 2)} | {"norm.bias"}
    assert zero == expected
    assert (model(images()) == 0).all(), "no class is preferred before training"
    distilled = fresh(init="reference", distill_token=True, distill_head=True)
    assert (distilled.head.weight == 0).all() and (distilled.head_dist.weight == 0).all()


def test_trunc_normal_weights_have_the_published_deviations_and_no_bias() -> None:
    model = fresh(**WIDE)
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert len(linears) == 4 * LAYERS + 2
    for linear in linears:
        assert_normal(linear.weight, 0.01)
        assert (linear.bias == 0).all()
    assert_normal(model.patch_embed.proj.weight, math.sqrt(2 / (D * 4 * 4)))  # Kaiming's, by fan-out
    assert (model.patch_embed.proj.bias == 0).all()


@pytest.mark.parametrize("position", ["learned_1d", "learned_2d"])
def test_tokens_and_positions_have_deviation_two_hundredths(position: str) -> None:
    fields = {"distill_token": True, "distill_head": True, "position": position, "hidden_size": D}
    for init, beginnings in (("trunc_normal", ("cls_", "dist_", "pos_embed")), ("reference", ("pos_embed",))):
        model = fresh(init=init, **fields)
        names = [name for name, _ in model.named_parameters() if name.startswith(beginnings)]
        assert len(names) >= len(beginnings)
        for name in names:
            assert_normal(model.get_parameter(name), 0.02)


@pytest.mark.parametrize("init", ["trunc_normal", "reference"])
def test_norms_start_as_the_identity_and_relative_tables_small(init: str) -> None:
    model = fresh(init=init, position="relative", position_at="every_layer", patch_norm=True)
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 2 * 3 + 2
    for norm in norms:
        assert (norm.weight == 1).all()
        assert (norm.bias == 0).all()
    for relative in model.rel_pos:
        assert_normal(relative.table, 0.02)


@pytest.mark.parametrize("init", ["trunc_normal", "reference"])
@pytest.mark.parametrize("fields", [VARIETY[name] for name in ("token", "map of all tokens", "all mixtures post-norm")])
def test_the_same_random_state_gives_the_same_weights_another_others(fields: dict[str, Any], init: str) -> None:
    first, again, other = (dict(fresh(s, init=init, **fields).named_parameters()) for s in (0, 0, 1))
    for name, parameter in first.items():
        assert torch.equal(parameter, again[name]), name
        drawn = parameter.unique().numel() > 1
        assert torch.equal(parameter, other[name]) != drawn, name
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in first.values())


def on_meta(**fields: Any) -> VisionTransformer:
    with torch.device("meta"):
        return VisionTransformer(tiny(**fields)).eval()


@pytest.mark.parametrize("fields", TABLES.values(), ids=TABLES.keys())
@torch.no_grad()
def test_a_model_built_on_meta_draws_nothing_and_answers_once_it_has_weights(fields: dict[str, Any]) -> None:
    for init in ("trunc_normal", "reference"):
        before = torch.random.get_rng_state()
        model = on_meta(init=init, **fields)
        assert all(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])
        assert torch.equal(torch.random.get_rng_state(), before)
        assert model(torch.empty(2, 3, 12, 16, device="meta")).shape == (2, 7)
    original = build(**fields)
    for assign in (False, True):
        model = on_meta(**fields)
        if not assign:
            model.to_empty(device="cpu")
            for buffer in model.buffers():
                buffer.zero_()  # what to_empty leaves is arbitrary; it may not be what is needed by luck
        model.load_state_dict(original.state_dict(), assign=assign)
        model.rebuild_tables()
        assert not any(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])
        assert torch.equal(model(images()), original(images()))
    rounded, batch = original.bfloat16(), images().bfloat16()
    before = rounded(batch)
    rounded.rebuild_tables()
    assert torch.equal(rounded(batch), before)


def test_weights_have_the_strides_of_new_ones() -> None:
    """timm's DeiT file has a class token of strides (1, 1, 1); gradients and fused optimisers differ from such."""
    model = build()
    odd = {name: own.detach() for name, own in model.state_dict().items()}
    odd["cls_token"] = torch.as_strided(odd["cls_token"], odd["cls_token"].shape, (1, 1, 1))
    odd["head.weight"] = odd["head.weight"].T.contiguous().T
    found = build_with_weights(model.config, odd).state_dict()
    for name, own in model.state_dict().items():
        assert torch.equal(found[name], own), name
        assert found[name].stride() == own.stride(), name
