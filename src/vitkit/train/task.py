"""One training step and one validation step, as Lightning's Trainer asks for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from lightning import LightningModule
from torch import Tensor

from vitkit.data.augment import mix_seeds
from vitkit.model import VisionTransformer
from vitkit.train.distill import distillation_loss, label_loss
from vitkit.train.optim import build_optimizer, lr_factor
from vitkit.train.recipe import Recipe


class ClassificationTask(LightningModule):
    """Cross-entropy on every head, or distillation from a teacher.

    Writes `train_loss`, `val_loss`, `val_acc` and `lr` into `metrics` each epoch.

    The learning rate is a function of how far the training is: steps of the total, or seconds of the time budget,
    whichever is further. Nothing of it needs to be restored on resume but the seconds spent.
    """

    def __init__(
        self, model: VisionTransformer, recipe: Recipe, steps: int, imitate: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.model, self.recipe, self.steps = model, recipe, steps
        self.imitate = imitate  # images to the teacher's logits; a function, so that no checkpoint holds the teacher
        self.metrics: dict[str, float] = {}
        self.spent = 0.0  # seconds of training before this process
        self._started = time.monotonic()
        self._losses: list[Tensor] = []
        self._outputs: list[tuple[Tensor, Tensor]] = []

    @property
    def elapsed(self) -> float:
        """Seconds spent in training, over all processes that worked on the run."""
        return self.spent + time.monotonic() - self._started

    @property
    def progress(self) -> float:
        """How much of the training is behind, in [0, 1]."""
        by_steps = self.global_step / self.steps
        by_time = self.elapsed / self.recipe.budget if self.recipe.budget else 0.0
        return min(max(by_steps, by_time), 1.0)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return build_optimizer(self.model, self.recipe)

    def on_train_start(self) -> None:
        self._started = time.monotonic()

    def on_train_epoch_start(self) -> None:
        self._losses.clear()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        torch.manual_seed(mix_seeds(self.recipe.seed, self.global_step))  # dropout, the same after a resume
        lr = self.recipe.lr * lr_factor(self.progress, self.recipe)
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = lr * group["lr_scale"]
        self.metrics["lr"] = lr

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        heads, smoothing = self.model.forward_heads(images), self.recipe.label_smoothing
        if self.imitate is None:
            loss = label_loss(heads, labels, smoothing)
        else:
            loss = distillation_loss(
                heads,
                labels,
                self.imitate(images),
                kind=self.recipe.distillation,
                alpha=self.recipe.distill_alpha,
                temperature=self.recipe.distill_temperature,
                label_smoothing=smoothing,
            )
        self._losses.append(loss.detach())
        return loss

    def on_train_epoch_end(self) -> None:
        self.metrics["train_loss"] = torch.stack(self._losses).mean().item()

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, labels = batch
        self._outputs.append((self.model(images).float(), labels))

    def on_validation_epoch_end(self) -> None:
        logits, labels = (torch.cat(parts) for parts in zip(*self._outputs, strict=True))
        self._outputs.clear()
        self.metrics["val_loss"] = F.cross_entropy(logits, labels).item()
        self.metrics["val_acc"] = (logits.argmax(dim=1) == labels).float().mean().item()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["spent"] = self.elapsed

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.spent = checkpoint["spent"]
