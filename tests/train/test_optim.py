"""Which parameters decay, and how the learning rate rises and falls."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiny
from vitkit.model import VisionTransformer
from vitkit.train.optim import build_optimizer, lr_factor, parameter_groups
from vitkit.train.recipe import Recipe

_ADDED_TO_TOKENS = {"cls_token", "dist_token", "pos_embed", "pos_embed.x", "pos_embed.y"}


def decayed_names(model: VisionTransformer) -> set[str]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = parameter_groups(model, 0.3)
    return {names[id(p)] for group in groups if group["weight_decay"] for p in group["params"]}


@pytest.mark.parametrize("fields", tiny.VARIETY.values(), ids=tiny.VARIETY)
def test_every_parameter_is_in_exactly_one_group(fields: dict[str, Any]) -> None:
    model = tiny.build(**fields)
    grouped = [id(p) for group in parameter_groups(model, 0.3) for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in model.parameters())


@pytest.mark.parametrize("fields", tiny.VARIETY.values(), ids=tiny.VARIETY)
def test_weight_matrices_decay_and_nothing_else(fields: dict[str, Any]) -> None:
    model = tiny.build(**fields)
    matrices = {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, (torch.nn.Linear, torch.nn.Conv2d))
    }
    assert decayed_names(model) == matrices


def test_tokens_and_positions_do_not_decay() -> None:
    for fields in tiny.VARIETY.values():
        assert decayed_names(tiny.build(**fields)) & _ADDED_TO_TOKENS == set()


def test_weight_decay_is_the_recipes() -> None:
    assert {group["weight_decay"] for group in parameter_groups(tiny.build(), 0.3)} == {0.0, 0.3}


def test_frozen_parameters_are_left_out() -> None:
    model = tiny.build()
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.startswith("head.")
    grouped = [p for group in parameter_groups(model, 0.3) for p in group["params"]]
    assert len(grouped) == 2


@pytest.mark.parametrize(
    ("name", "kind"), [("adamw", torch.optim.AdamW), ("adam", torch.optim.Adam), ("sgd", torch.optim.SGD)]
)
def test_the_recipe_names_the_optimiser(name: str, kind: type[torch.optim.Optimizer]) -> None:
    recipe = Recipe(optimizer=name, lr=0.02, momentum=0.8, beta2=0.95)  # type: ignore[arg-type]
    optimizer = build_optimizer(tiny.build(), recipe)
    assert type(optimizer) is kind
    for group in optimizer.param_groups:
        assert group["lr"] == 0.02
        assert group["momentum" if name == "sgd" else "betas"] == (0.8 if name == "sgd" else (0.8, 0.95))


SCHEDULES = st.builds(
    Recipe,
    schedule=st.sampled_from(["cosine", "linear", "constant"]),
    warmup=st.floats(0, 1),
    min_lr=st.floats(0, 1),
)
PART = st.floats(0, 1)


@given(PART, SCHEDULES)
def test_the_factor_is_between_0_and_1(progress: float, recipe: Recipe) -> None:
    assert 0 <= lr_factor(progress, recipe) <= 1


@given(PART, PART, SCHEDULES)
def test_the_factor_rises_in_warm_up_and_falls_after_it(a: float, b: float, recipe: Recipe) -> None:
    a, b = sorted((a, b))
    if b < recipe.warmup:
        assert lr_factor(a, recipe) <= lr_factor(b, recipe)
    elif a >= recipe.warmup:
        assert lr_factor(a, recipe) >= lr_factor(b, recipe) - 1e-12


@given(SCHEDULES)
def test_the_peak_is_where_warm_up_ends(recipe: Recipe) -> None:
    assert math.isclose(lr_factor(recipe.warmup, recipe), 1.0)


@given(SCHEDULES.filter(lambda recipe: recipe.schedule != "constant" and recipe.warmup < 0.999))
def test_training_ends_at_min_lr(recipe: Recipe) -> None:
    assert math.isclose(lr_factor(1.0, recipe), recipe.min_lr, abs_tol=1e-12)


def test_with_warm_up_training_begins_at_0_and_without_at_the_peak() -> None:
    assert lr_factor(0.0, Recipe(warmup=0.1)) == 0.0
    assert lr_factor(0.0, Recipe(warmup=0.0)) == 1.0


def test_warm_up_is_linear() -> None:
    recipe = Recipe(warmup=0.4)
    assert [lr_factor(p, recipe) for p in (0.1, 0.2, 0.3)] == pytest.approx([0.25, 0.5, 0.75])


@pytest.mark.parametrize(
    ("schedule", "quarter", "half"),
    [("cosine", (1 + math.sqrt(0.5)) / 2, 0.5), ("linear", 0.75, 0.5), ("constant", 1.0, 1.0)],
)
def test_the_shapes_of_the_fall(schedule: str, quarter: float, half: float) -> None:
    recipe = Recipe(schedule=schedule, warmup=0.2, min_lr=0.0)  # type: ignore[arg-type]
    assert [lr_factor(p, recipe) for p in (0.4, 0.6)] == pytest.approx([quarter, half])


def test_min_lr_lifts_the_whole_fall() -> None:
    recipe = Recipe(schedule="linear", warmup=0.0, min_lr=0.2)
    assert [lr_factor(p, recipe) for p in (0.0, 0.5, 1.0)] == pytest.approx([1.0, 0.6, 0.2])
