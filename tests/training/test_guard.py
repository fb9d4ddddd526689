"""When a model has collapsed, and when it only looks so."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from refusals import refused
from vitkit.training import FiniteCheck, StabilityGuard, ValidationOutcome, has_collapsed

TRUE = torch.arange(60) % 3


def always(answer: int, strength: float, images: int = 60, classes: int = 3, noise: float = 0.0) -> Tensor:
    """Logits that favour one class by so much."""
    logits = torch.zeros(images, classes)
    logits[:, answer] = strength
    return logits + noise * torch.randn(images, classes, generator=torch.Generator().manual_seed(0))


def test_what_has_collapsed_and_what_has_just_begun_to_learn() -> None:
    assert has_collapsed(ValidationOutcome.of(always(1, 9.0, noise=0.5), TRUE)), "surely one class of three"
    assert has_collapsed(ValidationOutcome.of(always(1, 0.1, noise=1e-5), TRUE)), "it has only learned the shares"
    young = ValidationOutcome.of(always(1, 0.5, noise=0.05), TRUE)
    assert not has_collapsed(young) and not has_collapsed(young, best_accuracy=0.4)
    assert has_collapsed(young, best_accuracy=0.5), "it once was better"
    logits = always(1, 0.5, noise=1.0)
    logits[3] = math.nan
    assert has_collapsed(ValidationOutcome.of(logits, TRUE))
    assert not has_collapsed(ValidationOutcome.of(always(1, 9.0, 9), TRUE[:9])), "a handful of images says nothing"
    assert has_collapsed(ValidationOutcome.of(always(1, 9.0, 12), TRUE[:12]))


def test_what_a_model_has_been_given_is_not_held_against_it() -> None:
    """Validation adds the classes' shares to what a balanced training learned: more than a young model tells apart."""
    shift, uneven = torch.tensor([0.0, 4.0, 0.0]), torch.tensor([1] * 51 + [0] * 5 + [2] * 4)
    young, dead = always(1, 0.05, noise=0.02), always(1, 0.1, noise=1e-5)
    assert has_collapsed(ValidationOutcome.of(young + shift, uneven)), "as it would seem"
    assert not has_collapsed(ValidationOutcome.of(young + shift, uneven, shift))
    assert has_collapsed(ValidationOutcome.of(dead + shift, uneven, shift))


def test_data_that_are_nearly_one_class_are_no_collapse() -> None:
    for largest, collapsed in ((40, True), (53, True), (55, False), (60, False)):
        labels = torch.tensor([1] * largest + [0] * (60 - largest))
        assert has_collapsed(ValidationOutcome.of(always(1, 30.0), labels)) == collapsed


def test_one_other_prediction_in_a_hundred_is_still_a_collapse_and_two_are_none() -> None:
    labels = torch.arange(200) % 4
    for others, collapsed in [(2, True), (3, False)]:
        logits = always(0, 20.0, 200, 4)
        wrong = (labels == 2).nonzero().flatten()[:others]
        logits[wrong] = always(1, 20.0, others, 4)
        assert has_collapsed(ValidationOutcome.of(logits, labels)) == collapsed


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.integers(0, 2**30), st.floats(0, 50))
def test_a_model_better_than_the_largest_class_has_never_collapsed(labels: list[int], seed: int, scale: float) -> None:
    logits = scale * torch.randn(len(labels), 5, generator=torch.Generator().manual_seed(seed))
    outcome = ValidationOutcome.of(logits, torch.tensor(labels))
    assert outcome.accuracy <= outcome.majority_share or not has_collapsed(outcome, best_accuracy=1.0)


def test_what_was_good_is_remembered_and_a_collapse_is_not() -> None:
    guard = StabilityGuard(lambda _: None)
    assert guard.accepts(None)
    assert guard.accepts(ValidationOutcome.of(torch.eye(3)[TRUE], TRUE))
    assert guard.best_accuracy == 1.0
    assert not guard.accepts(ValidationOutcome.of(always(1, 0.5, noise=0.05), TRUE))
    later = StabilityGuard(lambda _: None)
    later.load_state_dict(guard.state_dict())
    assert not later.accepts(ValidationOutcome.of(always(1, 0.5, noise=0.05), TRUE))


def test_after_one_collapse_no_further_sign_is_needed_and_after_two_it_is_over() -> None:
    guard, beginning = StabilityGuard(lambda _: None), ValidationOutcome.of(always(1, 0.5, noise=0.05), TRUE)
    assert guard.accepts(beginning)
    for epoch in range(2):
        guard.reduce_learning_rate(epoch, "it fell")
    assert guard.lr_scale == pytest.approx(0.01)
    assert not guard.accepts(beginning)
    with refused("training.diverged", "it fell", "epoch 3"):
        guard.reduce_learning_rate(2, "it fell")


def test_a_bad_share_of_another_process_skips_the_step() -> None:
    lines: list[str] = []
    check = FiniteCheck(StabilityGuard(lines.append))
    check.note_loss(torch.tensor(0.5), 0, 3)
    check.note_team(torch.tensor(1.0))
    assert not check.allows(None, check.is_finite(torch.tensor(1.0)))  # type: ignore[arg-type]
    assert lines == ["the loss is not finite in epoch 1, after 3 steps: step skipped"]
