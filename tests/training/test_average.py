"""Averages of weights against sums written out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tiny
from vitkit.model import VisionTransformer
from vitkit.training import Recipe, WeightAverage, add_low_rank, merge_low_rank


def flat(model: VisionTransformer) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).double()


def walk(model: VisionTransformer, average: WeightAverage, steps: int) -> list[Tensor]:
    """Weights after each of some steps in random directions, all of which the average takes in."""
    path = []
    for step in range(steps):
        tiny.randomise(model, seed=step + 10)
        average.update(model)
        path.append(flat(model))
    return path


def test_before_the_first_update_there_is_no_average() -> None:
    model = tiny.build()
    average = WeightAverage(model, Recipe(ema=0.9))
    assert not average.has_begun
    walk(model, average, 1)
    assert average.has_begun
    assert torch.equal(flat(average.model), flat(model)), "the weights of before the training have no part in it"


@pytest.mark.parametrize("limit", [0.5, 0.9, 0.9999])
def test_the_moving_average_is_the_sum_written_out(limit: float) -> None:
    model = tiny.build()
    average = WeightAverage(model, Recipe(ema=limit))
    path = walk(model, average, 25)
    expected = path[0]
    for n in range(1, 25):
        decay = min(limit, (1 + n) / (10 + n))
        expected = decay * expected + (1 - decay) * path[n]
    assert torch.allclose(flat(average.model), expected, atol=1e-6)


def test_stochastic_weight_averaging_is_the_equal_mean() -> None:
    model = tiny.build()
    average = WeightAverage(model, Recipe(swa=0.5))
    path = walk(model, average, 7)
    assert torch.allclose(flat(average.model), torch.stack(path).mean(dim=0), atol=1e-6)


@pytest.mark.parametrize("fields", [{"ema": 0.9}, {"swa": 0.5}], ids=str)
def test_an_average_survives_its_state_dict_to_the_bit(fields: dict[str, Any]) -> None:
    model, other = tiny.build(), tiny.build(seed=4)
    average, restored = WeightAverage(model, Recipe(**fields)), WeightAverage(other, Recipe(**fields))
    walk(model, average, 3)
    restored.load_state_dict(average.state_dict())
    tiny.randomise(model, seed=99)
    average.update(model)
    restored.update(model)
    assert torch.equal(flat(average.model), flat(restored.model))


def test_the_average_has_no_gradient_and_the_model_keeps_its_own() -> None:
    model = tiny.build()
    average = WeightAverage(model, Recipe(ema=0.9))
    assert not any(parameter.requires_grad for parameter in average.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_low_rank_changes_are_averaged_and_merged() -> None:
    model = tiny.build()
    add_low_rank(model, 2, 0)
    average = WeightAverage(model, Recipe(ema=0.9))
    walk(model, average, 3)
    whole = merge_low_rank(average.model)
    images = tiny.images()
    with torch.no_grad():
        assert torch.allclose(whole.eval()(images), average.model.eval()(images), atol=1e-5)
    assert whole.state_dict().keys() == tiny.build().state_dict().keys()
