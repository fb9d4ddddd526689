"""One training step: the loss, the heads it reaches, the randomness it owns, the learning rate it sets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tiny
from vitkit.train.recipe import Recipe
from vitkit.train.task import ClassificationTask

LABELS = torch.tensor([0, 3, 6, 3])


def task_at(step: int, recipe: Recipe, steps: int = 10, **fields: Any) -> ClassificationTask:
    """A task in the middle of a training of `steps` steps."""
    model = tiny.build(**fields).train()
    task = ClassificationTask(model, recipe, steps)
    optimizer = task.configure_optimizers()
    task.trainer = SimpleNamespace(global_step=step, optimizers=[optimizer])  # type: ignore[assignment]
    return task


def loss_of(task: ClassificationTask) -> torch.Tensor:
    batch = (tiny.images(4), LABELS)
    task.on_train_batch_start(batch, 0)
    return task.training_step(batch, 0)


def test_both_heads_of_a_distilled_model_learn_the_labels() -> None:
    task = task_at(1, Recipe(), distill_token=True, distill_head=True)
    loss_of(task).backward()
    for name in ("head", "head_dist"):
        assert task.model.get_submodule(name).weight.grad.abs().sum() > 0, name


def test_the_loss_of_a_distilled_model_is_the_mean_of_its_heads() -> None:
    task = task_at(1, Recipe(label_smoothing=0.0, drop_path=0.0), distill_token=True, distill_head=True)
    with torch.no_grad():
        first, second = (F.cross_entropy(logits, LABELS) for logits in task.model.forward_heads(tiny.images(4)))
        assert first != second
        assert torch.isclose(loss_of(task), (first + second) / 2)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_label_smoothing_is_torchs_and_the_formulas(smoothing: float) -> None:
    task = task_at(1, Recipe(label_smoothing=smoothing))
    with torch.no_grad():
        loss = loss_of(task)
        logits = task.model(tiny.images(4))
    assert torch.isclose(loss, F.cross_entropy(logits, LABELS, label_smoothing=smoothing))
    log_p = logits.log_softmax(-1)
    true = -log_p[torch.arange(4), LABELS]
    assert torch.isclose(loss, ((1 - smoothing) * true - smoothing * log_p.mean(-1)).mean())


def test_validation_loss_has_no_label_smoothing() -> None:
    task = task_at(1, Recipe(label_smoothing=0.5))
    with torch.no_grad():
        task.model.eval()
        task.validation_step((tiny.images(4), LABELS), 0)
        task.on_validation_epoch_end()
        logits = task.model(tiny.images(4))
    assert task.metrics["val_loss"] == pytest.approx(F.cross_entropy(logits, LABELS).item())


def test_validation_weighs_images_not_batches() -> None:
    task = task_at(1, Recipe())
    images = tiny.images(4)
    with torch.no_grad():
        task.model.eval()
        task.validation_step((images[:3], LABELS[:3]), 0)
        task.validation_step((images[3:], LABELS[3:]), 1)
        task.on_validation_epoch_end()
        logits = task.model(images)
    assert task.metrics["val_loss"] == pytest.approx(F.cross_entropy(logits, LABELS).item(), rel=1e-5)
    assert task.metrics["val_acc"] == pytest.approx((logits.argmax(1) == LABELS).float().mean().item())


DROPPING = {"dropout": 0.5, "drop_path": 0.3, "attention_dropout": 0.2}


def dropped_loss(step: int, seed: int, noise: int) -> float:
    """A loss under dropout, after other random numbers were drawn."""
    task = task_at(step, Recipe(seed=seed), **DROPPING)
    torch.rand(noise)
    with torch.no_grad():
        return loss_of(task).item()


def test_the_same_seed_drops_the_same_at_a_step_whatever_was_drawn_before() -> None:
    assert dropped_loss(step=5, seed=1, noise=1) == dropped_loss(step=5, seed=1, noise=77)


def test_another_seed_or_step_drops_otherwise() -> None:
    losses = {dropped_loss(step, seed, 1) for step, seed in [(5, 1), (6, 1), (5, 2), (1, 5)]}
    assert len(losses) == 4


@pytest.mark.parametrize(("step", "part"), [(0, 0.0), (1, 0.5), (2, 1.0), (6, 0.5), (10, 0.0)])
def test_each_step_sets_the_learning_rate_of_its_place(step: int, part: float) -> None:
    task = task_at(step, Recipe(lr=0.4, warmup=0.2))
    loss_of(task)
    assert [group["lr"] for group in task.trainer.optimizers[0].param_groups] == pytest.approx([0.4 * part] * 2)
    assert task.metrics["lr"] == pytest.approx(0.4 * part)


def test_a_time_budget_carries_the_schedule_further_than_the_steps() -> None:
    task = task_at(1, Recipe(time="10s"))
    assert task.progress == pytest.approx(0.1, abs=0.05)
    task.spent = 6.0
    assert task.progress == pytest.approx(0.6, abs=0.05)
    task.spent = 60.0
    assert task.progress == 1.0


def test_the_seconds_spent_are_in_the_checkpoint() -> None:
    task, later = task_at(1, Recipe()), task_at(1, Recipe())
    task.spent = 100.0
    checkpoint: dict[str, Any] = {}
    task.on_save_checkpoint(checkpoint)
    later.on_load_checkpoint(checkpoint)
    assert later.elapsed >= 100.0
