"""One training step and one validation step, as Lightning's Trainer asks for them.

A step is done here and not by Lightning, so that it can be left out, done again in smaller pieces, or made of several
batches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from lightning import LightningModule
from torch import Tensor, nn

from vitkit.data.augment import Mixing, mix_seeds
from vitkit.data.loading import ImageData
from vitkit.errors import VitkitError, is_memory_short
from vitkit.evaluation.multilabel import mean_average_precision
from vitkit.model.vit import VisionTransformer
from vitkit.training.averaging import Average
from vitkit.training.distributed import ALONE, Team, share_out
from vitkit.training.divergence import Guard, Outcome, all_finite
from vitkit.training.draws import Draws
from vitkit.training.later import Later, Place
from vitkit.training.linear import heads_of
from vitkit.training.losses import binary_loss, distillation_loss, label_loss
from vitkit.training.microbatch import Pieces, add_gradients
from vitkit.training.optim import build_optimizer, lr_factor, swa_factor, swa_start
from vitkit.training.recipe import Recipe


class ClassificationTask(LightningModule):
    """Cross-entropy on every head, or distillation from a teacher.

    Writes `train_loss`, `train_acc`, `val_loss`, `val_acc` and `lr` into `metrics` each epoch. Where images may have
    several classes the loss is binary cross-entropy, an accuracy is the part of the images whose every class is right
    at a probability of 1/2, and `val_map` is the mean average precision.

    The learning rate is a function of how far the training is: steps of the total, or seconds of the time budget,
    whichever is further; what went by before the first step, as in fitting a head, is no part of it. Nothing of it
    needs to be restored on resume but these seconds.

    Args:
        model: to train; of frozen parts nothing is trained, and they stay in evaluation mode.
        recipe: how.
        steps: of the whole training.
        imitate: images to the teacher's logits; a function, so that no checkpoint holds the teacher.
        class_weights: (K,) what an image of each class counts; None for all alike.
        sets: (S, K) of a multi-label table the target of each label (`ImageTable.set_targets`).
        shift: (K,) what is added to logits in validation, as it will be to those of the model that is saved.
        guard: watches over the training and tells of it; by default one that prints.
        team: the processes that train together.
    """

    def __init__(
        self,
        model: VisionTransformer,
        recipe: Recipe,
        steps: int,
        imitate: Callable[[Tensor], Tensor] | None = None,
        *,
        class_weights: Tensor | None = None,
        sets: Tensor | None = None,
        shift: Tensor | None = None,
        guard: Guard | None = None,
        team: Team = ALONE,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model, self.recipe, self.steps, self.imitate = model, recipe, steps, imitate
        self.guard = guard or Guard(print)
        self.pieces = Pieces(self.guard.say)
        self.average = Average(model, recipe) if recipe.ema or recipe.swa else None
        self.identity: dict[str, Any] = {}  # of the run, which its checkpoints carry
        self.metrics: dict[str, float] = {}
        self.spent = 0.0  # seconds before this process
        self.ahead = 0.0  # of them before the first step, which a schedule fitted to a time budget leaves out
        self._epoch_began = 0.0  # how much of the time for steps was behind then
        self.went_back = False  # whether this epoch's weights were given up
        self._class_weights, self._sets, self._shift = class_weights, sets, shift
        self._mixing = Mixing(mixup=recipe.mixup, cutmix=recipe.cutmix)
        self._draws = Draws(model)
        self.team = team
        self._started = self._now = time.monotonic()
        self.later: Later | None = None  # on a GPU
        self._compiled: Callable[[Tensor], tuple[Tensor, ...]] | None = None
        self._losses: list[Tensor] = []  # of each batch the sum over its images
        self._images: list[int] = []  # of each batch
        self._hits: list[Tensor] = []
        self._outputs: list[tuple[Tensor, Tensor]] = []
        self._outcome: Outcome | None = None
        self._bad: tuple[str, dict[str, Any]] | None = None  # what was not finite in this step, and its batch
        self._before: dict[str, Tensor] = {}  # the weights to go back to
        self._is_doubtful = False  # whether those are not the ones of the last epoch

    @property
    def elapsed(self) -> float:
        """Seconds spent in training, over all processes that worked on the run."""
        return self.spent + self._now - self._started

    @property
    def progress(self) -> float:
        """How much of the training is behind, in [0, 1]."""
        return min(max(self.global_step / self.steps, self._by_time), 1.0)

    @property
    def _by_time(self) -> float:
        """How much of the time that the budget leaves for steps is behind, in [0, 1]; 0 without a budget."""
        if not self.recipe.budget:
            return 0.0
        left = max(self.recipe.budget - self.ahead, 1e-9)  # a first step is taken even where nothing is left
        return min((self.elapsed - self.ahead) / left, 1.0)

    @property
    def kept(self) -> VisionTransformer:
        """The model that is validated and saved: the average, once there is one."""
        return self.average.model if self.average is not None and self.average.has_begun else self.model

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        recipe, epochs = self.recipe, self.recipe.epochs
        factor = swa_factor(self.current_epoch, recipe)
        if factor is None and recipe.step_per == "epoch":
            factor = lr_factor(max(self.current_epoch / epochs, self._epoch_began), recipe, 1 / epochs)
        elif factor is None:
            factor = lr_factor(self.progress, recipe, 1 / self.steps)
        return recipe.lr * factor * self.guard.lr_scale

    @property
    def _data(self) -> ImageData:
        data = getattr(self.trainer, "datamodule")  # noqa: B009  # Lightning does not declare it
        assert isinstance(data, ImageData)
        return data

    def configure_model(self) -> None:
        """With `--strategy fsdp`, leave each process its part of the weights (Zhao et al., arXiv 2304.11277)."""
        if self._is_shared_out and self.device_mesh is not None:
            share_out(self.model, self.device_mesh)

    def compile_steps(self) -> None:
        """Let torch.compile make the forward and backward pass quicker, from the first step on.

        A batch of another size, as the last of an epoch, is compiled anew: code for any size would be slower for all.
        """
        self._compiled = torch.compile(self.model.forward_heads, dynamic=False)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return build_optimizer(self.model, self.recipe)

    def on_train_start(self) -> None:
        self._started = self._now = self.team.by_first(time.monotonic)
        if self.device.type == "cuda" and self.team.size == 1:
            self.later = Later()
        if not self._is_doubtful:
            self._remember()

    def on_train_epoch_start(self) -> None:
        self._losses.clear()
        self._images.clear()
        self._hits.clear()
        self.went_back, self._outcome = False, None
        self._epoch_began = self._by_time
        if self.recipe.method == "probe-sgd":  # what does not learn should not drop either
            self.model.eval()
            for module in heads_of(self.model):
                module.train()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        lr = self.lr
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = lr * group["lr_scale"]
        self.metrics["lr"] = lr

    def _look_at_the_clock(self) -> None:
        """Where a time budget rules, all processes go by the first one's clock: they must agree on learning rates."""
        self._now = self.team.by_first(time.monotonic) if self.recipe.budget else time.monotonic()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Add up the batch's gradient, and move where it is the last batch of its step."""
        images, labels = batch
        if images.is_cuda:
            images = images.contiguous(memory_format=torch.channels_last)  # as the convolution of patches wants them
        number, last = self._place(batch_idx)
        counted, whole = self._data.images_in(batch_idx, batch_idx)  # of a stand-in none
        _, images_of_step = self._data.images_in(batch_idx - number, last)
        if number == 0:
            self._clear_gradients()
        mixed, targets = self._targets(images, labels, number, whole)
        seed = mix_seeds(self.recipe.seed, self.global_step, number, 1)
        keys = self._draws.of(seed, self._data.places(len(images)), images.device)
        losses: list[Tensor] = []

        def compute(piece: slice) -> None:
            weight = len(targets[piece]) if counted else 0
            with self._draws.told(keys[:, piece]):
                loss, hits = self.loss_of(mixed[piece], targets[piece])
                self._add_gradients(loss * (weight / images_of_step))
            losses.append(loss.detach() * weight)
            self._hits.append(hits[:weight])

        self.pieces.each(len(images), compute)
        loss = torch.stack(losses).sum()
        self._losses.append(loss)
        self._images.append(counted)
        if self.later is not None:
            self.later.note_loss(loss)
        elif self._bad is None and not loss.isfinite():
            self._bad = "loss", self._describe(batch, batch_idx)
        is_last = batch_idx + 1 == self.trainer.num_training_batches
        if batch_idx == last:
            self._move(batch, batch_idx)
            if self.later is not None and (is_last or self.later.is_due):
                self._settle(self.later)
        if is_last:
            self._average_epoch()
        self._look_at_the_clock()  # here, so that a step whose rate has fallen to 0 is not begun

    def _add_gradients(self, loss: Tensor) -> None:
        if self._is_shared_out:  # in the backward pass the processes meet, and each gets the mean of its own part
            (loss * self.team.size).backward()  # type: ignore[no-untyped-call]
        else:
            add_gradients(self._trained(), loss)

    @property
    def _is_shared_out(self) -> bool:
        return self.team.size > 1 and self.recipe.strategy == "fsdp"

    def _place(self, batch_idx: int) -> tuple[int, int]:
        """Which batch of its step this is, from 0, and the step's last: the last step of an epoch may have fewer."""
        number = batch_idx % self.recipe.grad_accum
        return number, min(batch_idx - number + self.recipe.grad_accum, int(self.trainer.num_training_batches)) - 1

    def _trained(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def _clear_gradients(self) -> None:
        self._bad = None
        for parameter in self._trained():
            parameter.grad = None

    def _targets(self, images: Tensor, labels: Tensor, number: int, whole: int) -> tuple[Tensor, Tensor]:
        """The images, mixed if the recipe says so, and their labels (B,) or weighted targets (B, K)."""
        if not self._mixing and self._class_weights is None and self._sets is None:
            return images, labels
        if self._sets is not None:
            self._sets = self._sets.to(labels.device)  # once
            targets = self._sets[labels]  # (B, K)
        else:
            targets = F.one_hot(labels, self.model.config.num_classes).float()  # (B, K)
        if self._class_weights is not None and self._sets is None:
            self._class_weights = self._class_weights.to(targets.device)  # once
            targets *= self._class_weights
        if self._mixing:
            seed = mix_seeds(self.recipe.seed, self.global_step, number)
            before = partial(self.team.before, length=whole)
            images, targets = self._mixing.apply(images, targets, seed, before)
        return images, targets

    def loss_of(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss of some images, and which of them the model had right, (B,).

        Args:
            images: (B, C, height, width).
            targets: labels (B,), or weights of the classes (B, K).
        """
        heads, recipe = (self._compiled or self.model.forward_heads)(images), self.recipe
        if self._sets is not None:
            answers = torch.stack([head.detach().float() for head in heads]).mean(dim=0) > 0
            weights = None if self._class_weights is None else self._class_weights.to(images.device)
            hits = (answers == (targets > 0.5)).all(dim=1)  # (B,)
            return binary_loss(heads, targets, weights, recipe.label_smoothing), hits
        with torch.no_grad():
            answers = torch.stack([head.float() for head in heads]).mean(dim=0).argmax(dim=1)
            hits = answers == (targets if targets.ndim == 1 else targets.argmax(dim=1))  # (B,)
        if self.imitate is None:
            return label_loss(heads, targets, recipe.label_smoothing), hits
        loss = distillation_loss(
            heads,
            targets,
            self.imitate(images),
            kind=recipe.distillation,
            alpha=recipe.distill_alpha,
            temperature=recipe.distill_temperature,
            label_smoothing=recipe.label_smoothing,
        )
        return loss, hits

    def _move(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """One step of the optimiser, unless its gradient is not finite."""
        gradients = [parameter.grad for parameter in self._trained() if parameter.grad is not None]
        self.team.add_up(gradients)
        norm = torch.nn.utils.get_total_norm(gradients)
        if self.later is not None:
            place = Place(self.current_epoch, batch_idx, self.global_step)
            self.later.prepare(self.trainer.optimizers[0], norm, place)
            self._step(norm)
            return
        what = "loss" if self.team.any(self._bad is not None) else "gradient" if not norm.isfinite() else None
        if what is not None:
            self.guard.skip_step(what, self._bad[1] if self._bad else self._describe(batch, batch_idx))
            self._clear_gradients()
            return
        self._step(norm)
        self.guard.pass_step()

    def _step(self, norm: Tensor) -> None:
        """One step of the optimiser along a gradient of this norm."""
        if self.recipe.clip_grad:
            torch.nn.utils.clip_grads_with_norm_(self._trained(), self.recipe.clip_grad, norm)
        try:
            self.optimizers().step()  # type: ignore[union-attr]  # there is one
        except (RuntimeError, MemoryError) as error:
            if is_memory_short(error):
                raise VitkitError(
                    "memory is too small for the optimiser: try --optimizer sgd, --method lora or a smaller --model"
                ) from error
            raise
        if self.average is not None and self.recipe.ema:
            self.average.update(self.model)

    def _settle(self, later: Later) -> None:
        """Tell the guard of the steps since the last time."""
        for place in later.settle():
            if place is None:
                self.guard.pass_step()
                continue
            images, labels = self._data.batch_again(place.epoch, place.batch)
            paths = self._data.paths_of_batch(place.epoch, place.batch)
            batch = {"images": images, "labels": labels, "paths": paths, "epoch": place.epoch, "step": place.step}
            self.guard.skip_step("loss or its gradient", batch)

    def _average_epoch(self) -> None:
        start = swa_start(self.recipe)
        if self.average is not None and start is not None and self.current_epoch >= start:
            self.average.update(self.model)

    def _describe(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Any]:
        images, labels = batch
        paths = self._data.paths_of_batch(self.current_epoch, batch_idx)
        place = {"epoch": self.current_epoch, "step": self.global_step}
        return {"images": images.cpu(), "labels": labels.cpu(), "paths": paths, **place}

    def on_train_epoch_end(self) -> None:
        self._look_at_the_clock()
        losses = torch.stack(self._losses).tolist() if self._losses else []
        own = [(loss, images) for loss, images in zip(losses, self._images, strict=True) if math.isfinite(loss)]
        sums = self.team.gather((sum(loss for loss, _ in own), sum(images for _, images in own)))
        images = sum(images for _, images in sums)
        self.metrics["train_loss"] = sum(loss for loss, _ in sums) / images if images else math.nan
        self.metrics["train_acc"] = torch.cat(self.team.gather(torch.cat(self._hits).cpu())).float().mean().item()
        is_finite, is_good = all_finite(self.state_dict()), self.guard.judge(self._outcome)
        if is_finite and is_good:
            self._remember()
        elif not is_finite:
            self._go_back("the weights are no longer finite")
        elif self.progress >= self.recipe.warmup:
            self._go_back("the model calls all validation images the same")
        else:
            self._is_doubtful = True

    def _remember(self) -> None:
        """Keep the weights of now, to go back to them."""
        learning = {f"model.{name}" for name, own in self.model.named_parameters() if own.requires_grad}
        self._before = {
            name: value.detach().cpu().clone()
            for name, value in self.state_dict().items()
            if name in learning or name.startswith("average.")
        }
        self._is_doubtful = False

    def _go_back(self, what: str) -> None:
        self.guard.lower(self.current_epoch, what)
        self.load_state_dict(self._before, strict=False)
        self._is_doubtful = False
        self.trainer.optimizers[0].state.clear()
        self.went_back = True

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, labels = batch
        self._outputs.append((self.kept(images).float(), labels))

    def on_validation_epoch_end(self) -> None:
        self._look_at_the_clock()
        own = [torch.cat(parts).cpu() for parts in zip(*self._outputs, strict=True)]
        self._outputs.clear()
        logits, labels = (self._data.put_together(shares) for shares in zip(*self.team.gather(own), strict=True))
        said = logits if self._shift is None else logits + self._shift
        if self._sets is not None:  # the guard knows single classes only, and is not asked
            targets = self._sets.cpu()[labels]  # (n, K)
            self.metrics["val_loss"] = F.binary_cross_entropy_with_logits(said, targets).item()
            self.metrics["val_acc"] = ((said > 0) == (targets > 0.5)).all(dim=1).float().mean().item()
            self.metrics["val_map"] = mean_average_precision(targets.bool().numpy(), said.nan_to_num().numpy())
            return
        self._outcome = Outcome(said, labels, self._shift)
        self.metrics["val_loss"] = F.cross_entropy(said, labels).item()
        self.metrics["val_acc"] = self._outcome.accuracy

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["spent"], checkpoint["ahead"] = self.elapsed, self.ahead
        checkpoint["run"] = self.identity
        checkpoint["piece"] = self.pieces.size
        checkpoint["before"] = self._before if self._is_doubtful else None
        checkpoint["guard"] = self.guard.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.spent, self.ahead = checkpoint["spent"], checkpoint["ahead"]
        self.pieces.size = checkpoint["piece"]
        self._is_doubtful = checkpoint["before"] is not None
        self._before = checkpoint["before"] or {}
        self.guard.load_state_dict(checkpoint["guard"])
