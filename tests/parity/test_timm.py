"""The same weights in timm's Vision Transformer give the same numbers."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tiny import TINY, build, images, largest_difference, tiny
from vitkit.model import VisionTransformer
from vitkit.training import parameter_groups

deit = pytest.importorskip("timm.models.deit")
param_groups_layer_decay = pytest.importorskip("timm.optim").param_groups_layer_decay
timm = pytest.importorskip("timm.models.vision_transformer")


Case = tuple[dict[str, Any], dict[str, Any]]  # what differs from TINY, and the arguments that say the same to timm
GAP = {"class_token": False, "global_pool": "avg", "fc_norm": False}
PATCH_NORM = {"patch_norm": True}, {"embed_norm_layer": partial(nn.LayerNorm, eps=1e-6)}
DROPOUT = {"dropout": 0.5, "attention_dropout": 0.5, "position_dropout": 0.5, "drop_path": 0.5}
CASES: dict[str, Case] = {
    "token": ({}, {}),
    "patch norm": PATCH_NORM,
    "dropout in eval mode": (DROPOUT, {}),
}


def reference(ours: VisionTransformer, cls: Any = timm.VisionTransformer, **kwargs: Any) -> Any:
    """timm's model holding the same weights; strict loading also shows that the names are timm's."""
    defaults = {
        "img_size": TINY["image_size"],
        "patch_size": TINY["patch_size"],
        "embed_dim": TINY["hidden_size"],
        "depth": TINY["layers"],
        "num_heads": TINY["heads"],
        "mlp_ratio": TINY["mlp_size"] / TINY["hidden_size"],
        "num_classes": TINY["num_classes"],
    }
    model = cls(**defaults | kwargs).eval()
    model.load_state_dict(ours.state_dict())
    return model


def assert_equal(ours: Tensor, theirs: Tensor) -> None:
    assert 0.3 < theirs.std().item() < 10, "the weights should be large enough for a difference to show"
    assert largest_difference(ours, theirs) <= 1e-5


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@torch.no_grad()
def test_logits_and_features_are_timms(case: Case) -> None:
    ours = build(**case[0])
    theirs, batch = reference(ours, **case[1]), images(3, config=ours.config)
    assert_equal(ours(batch), theirs(batch))
    assert_equal(ours.forward_features(batch), theirs.forward_features(batch))
    head_input = ours.forward_head(ours.forward_features(batch), pre_logits=True)
    assert_equal(head_input, theirs.forward_head(theirs.forward_features(batch), pre_logits=True))


@torch.no_grad()
def test_a_distilled_models_heads_are_timms() -> None:
    ours = build(distill_token=True, distill_head=True)
    theirs = reference(ours, deit.VisionTransformerDistilled)
    assert_equal(ours(images()), theirs(images()))
    assert_equal(ours.forward_features(images()), theirs.forward_features(images()))
    ours.train(), theirs.train().set_distilled_training(True)
    mine, expected = ours.forward_heads(images()), theirs(images())
    assert len(mine) == len(expected) == 2
    assert_equal(mine[0], expected[0])
    assert_equal(mine[1], expected[1])
    assert largest_difference(mine[0], mine[1]) > 0.1
    assert isinstance(ours(images()), Tensor), "one tensor in training too"


def test_gradients_are_timms() -> None:
    ours = build()
    theirs = reference(ours)
    for model in (ours, theirs):
        nn.functional.cross_entropy(model(images(4)), torch.tensor([0, 3, 6, 2])).backward()
    expected = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layers", [1, 2, 12])
def test_drop_path_rates_follow_timms_linear_rule(layers: int) -> None:
    ours = VisionTransformer(tiny(layers=layers, drop_path=0.3))
    theirs = timm.VisionTransformer(img_size=16, embed_dim=12, num_heads=3, depth=layers, drop_path_rate=0.3)
    expected = [getattr(block.drop_path1, "drop_prob", 0.0) for block in theirs.blocks]
    assert [block.drop_path1.rate for block in ours.blocks] == pytest.approx(expected)


RATES: dict[str, tuple[Case, Any]] = {
    "token": (({}, {}), timm.VisionTransformer),
    "gap": (({"pool": "gap"}, GAP), timm.VisionTransformer),
    "fc_norm": (({"pool": "gap", "fc_norm": True}, GAP | {"fc_norm": True}), timm.VisionTransformer),
    "registers": (({"registers": 3}, {"reg_tokens": 3}), timm.VisionTransformer),
    "layer scale": (({"layer_scale": 0.1}, {"init_values": 0.1}), timm.VisionTransformer),
    "patch norm": (PATCH_NORM, timm.VisionTransformer),
    "distilled": (({"distill_token": True, "distill_head": True}, {}), deit.VisionTransformerDistilled),
}


@pytest.mark.parametrize(("case", "cls"), RATES.values(), ids=RATES)
def test_every_layer_learns_at_timms_rate_under_layer_decay(case: Case, cls: Any) -> None:
    ours = build(**case[0])
    theirs = reference(ours, cls, **case[1])
    found, expected = (
        {name: group["lr_scale"] for name, own in model.named_parameters() for group in groups if _holds(group, own)}
        for model, groups in (
            (ours, parameter_groups(ours, 0.05, 0.5)),
            (theirs, param_groups_layer_decay(theirs, layer_decay=0.5)),
        )
    )
    # The last LayerNorm reads what the blocks put out: BEiT and MAE count it with the head, timm with the last block.
    of_norm = {"norm.weight": 0.5, "norm.bias": 0.5} if "norm.weight" in found else {}
    assert found | of_norm == expected


def _holds(group: dict[str, Any], parameter: nn.Parameter) -> bool:
    return any(own is parameter for own in group["params"])
