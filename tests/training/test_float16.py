"""Training in float16: losses are scaled so that small gradients survive, and an overflow lowers the scale."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import tiny
from refusals import refused
from vitkit.data import Augment, ImageData, ImageTable, Preprocess
from vitkit.training import (
    FiniteCheck,
    Loop,
    Objective,
    ProcessGroup,
    Recipe,
    StabilityGuard,
    TrainingState,
    check_team,
    fabric_of,
)

BATCH = tiny.images(4), torch.tensor([0, 3, 6, 3])


def loop_of(lines: list[str], *, precision: str = "float16", fused: bool = False) -> Loop:
    recipe = Recipe(batch_size=4, precision=precision, clip_grad=0.0, drop_path=0.0)  # type: ignore[arg-type]
    table = ImageTable("t", Path(), tuple("abcdefg"), tuple("1234"), (0, 3, 6, 3), ("train",) * 4)
    data = ImageData(table, Preprocess(size=(12, 16)), Augment(), batch_size=4, workers=0, seed=0)
    make = (lambda groups: torch.optim.AdamW(groups, lr=1e-3, fused=True)) if fused else None
    state = TrainingState(tiny.build().train(), recipe, 50, StabilityGuard(lines.append), make_optimizer=make)
    return Loop(state, Objective(recipe, 7), data, fabric_of(precision, "cpu"))


def scale_by(loop: Loop, scale: float) -> None:
    loop.state.scaler.scale(torch.zeros(()))  # which makes the scale
    loop.state.scaler.update(scale)


def weights_of(loop: Loop) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in loop.state.model.parameters()])


def gradient_of(loop: Loop, scale: float) -> Tensor:
    """What the optimiser would be given, if losses are scaled so."""
    found: list[Tensor] = []
    scale_by(loop, scale)
    loop.state.optimizer.step = lambda: found.extend(  # type: ignore[method-assign]
        parameter.grad.flatten() for parameter in loop.state.model.parameters() if parameter.grad is not None
    )
    loop.take_step(0, [BATCH])
    return torch.cat(found)


def test_the_gradient_is_that_of_float32_whatever_the_scale_but_vanishes_without_one() -> None:
    exact = gradient_of(loop_of([], precision="float32"), 1.0)
    small, middle, large = (gradient_of(loop_of([]), scale) for scale in (1e-6, 2.0**8, 2.0**16))
    for found in (middle, large):
        assert float((found - exact).norm() / exact.norm()) < 0.02
        assert float(found.norm() / exact.norm()) == pytest.approx(1, abs=0.02)
    # Of a loss a millionth as large most of the gradient is below what float16 can hold.
    assert (small == 0).sum() > 2 * (large == 0).sum() + 10
    assert float((large - exact).norm()) < float((small - exact).norm())


@pytest.mark.parametrize("fused", [False, True])
def test_an_overflow_lowers_the_scale_and_is_no_incident(fused: bool) -> None:
    lines: list[str] = []
    loop = loop_of(lines, fused=fused)
    scale_by(loop, 2.0**30)
    before, moved = weights_of(loop), list[bool]()
    for _ in range(24):
        loop.take_step(0, [BATCH])
        after = weights_of(loop)
        moved.append(not torch.equal(before, after))
        before = after
    loop.finite_check.resolve_pending()
    assert moved[:4] == [False] * 4 and moved[-4:] == [True] * 4 and moved == sorted(moved)
    assert lines == []
    assert 1 < loop.state.scaler.get_scale() < 2**30


@pytest.mark.parametrize("fused", [False, True])
def test_a_loss_that_is_not_finite_is_an_incident_as_in_other_precisions(fused: bool) -> None:
    lines: list[str] = []
    loop = loop_of(lines, fused=fused)
    bad = torch.full_like(BATCH[0], float("nan")), BATCH[1]
    before = weights_of(loop)
    with refused("training.not-finite"):
        for _ in range(3):
            loop.take_step(0, [bad])
        loop.finite_check.resolve_pending()
    assert torch.equal(weights_of(loop), before)
    assert len(lines) == 3


def test_overflows_at_the_lowest_scale_are_incidents() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    scaler.scale(torch.zeros(()))
    lines: list[str] = []
    check = FiniteCheck(StabilityGuard(lines.append), scaler)
    check.note_loss(torch.zeros(()), 0, 0)
    assert not check.allows(None, check.is_finite(torch.tensor(float("inf"))))  # type: ignore[arg-type]
    assert len(lines) == 1


def test_shards_and_scaled_gradients_do_not_go_together() -> None:
    with refused("training.strategy-unsupported"):
        check_team(Recipe(strategy="fsdp", precision="float16"), ProcessGroup(size=2))
