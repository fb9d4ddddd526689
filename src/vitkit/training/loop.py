"""The training loop, from the first step to the last.

Read `Loop.take_step` first. A step updates the weights with the mean gradient of one batch, or of several
(`grad_accum`). Several processes compute their shares of each batch and sum their gradients. Other classes handle lack
of memory (`stability.Pieces`), values that are not finite (`stability.FiniteCheck`), averages of the weights
(`optim.WeightAverage`), time budgets (`checkpoint.Clock`), and signals (`Interruption`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed import ReduceOp

from vitkit.data.augment import Mixing
from vitkit.data.loading import Batch, BatchedImages, mix_seeds
from vitkit.errors import Interrupted
from vitkit.model.layers import Dropout, DropPath
from vitkit.model.network import Network
from vitkit.system.processes import Deferral
from vitkit.system.progress import progress
from vitkit.training.adapters import PatchDropout, heads_of
from vitkit.training.checkpoint import Clock, TrainingState, in_evaluation
from vitkit.training.distributed import ALONE, ForwardHeads, ProcessGroup, add_gradients, parallel
from vitkit.training.losses import EpochSums, TrainingObjective
from vitkit.training.optim import set_learning_rate, swa_start
from vitkit.training.stability import LOWER_LR, DivergedError, RunningStatistics, all_finite, optimizer_in_memory

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class StoppedBetweenSteps(Interrupted):
    """A signal stopped the training between two steps. All processes stopped after the same step."""


_MAX_STEPS_APART = 16  # between two agreements
_MAX_SECONDS_APART = 1.0  # between two agreements, approximately; a longer step is followed by an agreement


class Interruption:
    """Let the processes agree after a step whether to stop or to save a checkpoint.

    A single process decides after every step. Several processes agree by one reduction of a few numbers, after at most
    16 steps or about a second, whichever is sooner. No process stops in between. `stop` records the signals that this
    process has received.
    """

    def __init__(self, stop: Deferral, team: ProcessGroup = ALONE) -> None:
        self._stop, self._team = stop, team
        self._steps = 0  # since the last agreement
        self._steps_apart = 1  # between the last agreement and the next one
        self._last = time.monotonic()  # the time of the last agreement

    def after_step(
        self, *, should_stop: bool = False, should_save: bool = False, clock: Clock | None = None, force: bool = False
    ) -> tuple[bool, bool]:
        """Decide with the other processes whether the training ends, and whether a checkpoint is written now.

        All processes must call this method.

        The training ends, or a checkpoint is written, if any process wants this. If no agreement is due after this
        step, neither happens; `force` makes one due. If `clock` is given, it is set to the time of the main process,
        and the training also ends when its time budget is used up.

        Raises:
            StoppedBetweenSteps: a process has received a signal.
        """
        self._steps += 1
        if self._team.size > 1 and self._steps < self._steps_apart and not force:
            return False, False
        now = time.monotonic()
        step_seconds = (now - self._last) / self._steps
        main_time = now if self._team.is_main else -math.inf  # so the maximum is the time of the main process
        wishes = (self._stop.received or 0, should_stop, should_save, step_seconds, main_time)
        signal, any_stops, any_saves, step_seconds, main_time = self._team.reduce(wishes, ReduceOp.MAX)
        self._steps, self._last = 0, now
        affordable_steps = int(_MAX_SECONDS_APART / max(step_seconds, 1e-9))
        self._steps_apart = max(1, min(_MAX_STEPS_APART, affordable_steps))
        if signal:
            raise StoppedBetweenSteps(int(signal))
        is_expired = False
        if clock is not None:
            clock.set(main_time)
            is_expired = clock.is_expired
        return bool(any_stops) or is_expired, bool(any_saves)


@dataclass
class MicroBatch:
    """This process's share of a batch, on its device. If memory is short, it is computed in pieces (slices)."""

    images: Tensor  # (B, C, height, width), already mixed (mixup or cutmix) if the recipe requests it
    targets: Tensor  # labels (B,), or weights of the classes (B, K)
    training_images: int  # 0 if the share is empty, in which case `images` contains placeholders
    batch: Batch  # from the data loader, before mixing
    is_last: bool  # whether this is the last batch of the step
    dropout_keys: Tensor  # the random numbers of the dropout layers, (layers, B)
    losses: list[Tensor] = field(default_factory=list)  # for each computed piece, the sum over its images, ()
    hits: list[Tensor] = field(default_factory=list)  # for each computed piece, which images were classified correctly


class TimedBatches:
    """Iterate over the batches of a data loader, and measure the time spent waiting for them.

    A GPU may still compute earlier steps during this time, so it is idle for at most as long.
    """

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches, self._began, self._waited = batches, time.perf_counter(), 0.0

    def __iter__(self) -> TimedBatches:
        return self

    def __next__(self) -> Batch:
        began = time.perf_counter()
        batch = next(self._batches)
        self._waited += time.perf_counter() - began
        return batch

    @property
    def waiting_fraction(self) -> float:
        """The fraction of the time since the beginning that was spent waiting, in [0, 1]."""
        return self._waited / max(time.perf_counter() - self._began, 1e-9)


HOOKS = ("on_fit_start", "on_step_end", "on_epoch_end", "on_fit_end")  # the methods that a callback may have
# `checkpoint.RunWriter` also has on_save and on_interrupt; `fine_tune.DrawFirstBatch` has draw_first_batch.


class Loop:
    """The training loop.

    It updates `state`, which contains the model and the recipe. The `objective` computes the loss and the validation
    figures, `fabric` (Lightning Fabric) determines the device and the precision, `callbacks` are objects with some of
    `HOOKS`, which receive the state, and `interruption` ends the training when a signal arrives.
    """

    def __init__(
        self,
        state: TrainingState,
        objective: TrainingObjective,
        data: BatchedImages,
        fabric: Fabric,
        *,
        team: ProcessGroup = ALONE,
        callbacks: Sequence[Any] = (),
        interruption: Interruption | None = None,
    ) -> None:
        self.state, self.data, self.fabric, self.team, self.callbacks = state, data, fabric, team, list(callbacks)
        self.objective = objective.to(fabric.device)
        self.interruption = interruption or Interruption(Deferral(), team)
        self._heads = ForwardHeads(state.model)
        self._network: Any = parallel(self._heads) if team.size > 1 else self._heads
        self._parameters = [parameter for parameter in state.model.parameters() if parameter.requires_grad]
        self._mixing = Mixing(mixup=state.recipe.mixup, cutmix=state.recipe.cutmix)
        self._dropout = DropoutNumbers(state.model)
        self._statistics = RunningStatistics(state.model, team)

    def compile_steps(self) -> None:
        """Compile the forward and backward pass with torch.compile, for batches of the usual size.

        Other batches, such as the last one of an epoch, are computed without compiled code: compiling takes up to a
        minute for each size, and code for any size would be slower.
        """
        eager = self._heads.function
        compiled = torch.compile(self.state.model.forward_heads, dynamic=False)
        batch_size, _ = self.data.images_in(0, 0)

        def forward(images: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
            usual_size = min(batch_size, self.state.pieces.size or batch_size)
            return compiled(images, *others) if len(images) == usual_size else eager(images, *others)

        self._heads.function = forward

    # --- Epochs -----------------------------------------------------------------------------------

    def fit(self) -> None:
        """Train from the current state to the last epoch, or until `state.should_stop`.

        Raises:
            Interrupted: a signal arrived.
            DivergedError: losses, gradients or weights are no longer finite.
            VitkitError: memory is too small, or an image cannot be read.
        """
        state = self.state
        state.clock.start()
        self._notify("on_fit_start")
        for epoch in range(state.epoch, state.recipe.epochs):
            if epoch > state.epoch:
                state.next_epoch()
            try:
                self.train_epoch()
                self.validate()
            except StoppedBetweenSteps:
                self._notify_before_saving("on_interrupt")
                raise
            state.clock.read()
            if not all(all_finite(part) for part in (state.model, state.average) if part is not None):
                message = f"the weights are no longer finite after epoch {epoch + 1}: {LOWER_LR}"
                raise DivergedError("training.diverged", message)
            self._notify("on_epoch_end")
            should_stop, _ = self.interruption.after_step(should_stop=state.should_stop, force=True)
            if should_stop:
                break
        self._notify("on_fit_end")

    def train_epoch(self) -> None:
        """Take the steps of an epoch, or the remaining ones if the run was resumed within the epoch."""
        state, grad_accum = self.state, self.state.recipe.grad_accum
        self.begin_epoch()
        self.interruption.after_step(force=True)  # the end of the previous epoch may have taken long
        if state.is_trained:
            return
        batches = TimedBatches(self.data.train_batches(state.epoch, state.batch))
        steps = math.ceil(self.data.batches / grad_accum)
        for first in range(state.batch, self.data.batches, grad_accum):
            self.take_step(first, islice(batches, grad_accum))
            state.batch = min(first + grad_accum, self.data.batches)
            self._notify("on_step_end")
            should_stop = self.between_steps()
            progress(f"epoch {state.epoch + 1}/{state.recipe.epochs}", first // grad_accum + 1, steps)
            if should_stop:
                break
        state.metrics["waiting"] = batches.waiting_fraction
        if not state.should_stop and state.epoch + 1 < state.recipe.epochs:
            self.data.prepare_epoch(state.epoch + 1)  # by workers, while this epoch is evaluated and saved
        self.end_epoch()

    def between_steps(self) -> bool:
        """Write a checkpoint if any process wants one, and return whether the training ends."""
        state = self.state
        should_stop, should_save = self.interruption.after_step(
            should_stop=state.should_stop, should_save=state.should_save, clock=state.clock
        )
        if should_save:
            self._notify_before_saving("on_save")
            state.should_save = False
        state.should_stop |= should_stop
        return should_stop

    def begin_epoch(self) -> None:
        """Reset the sums of the epoch, and put a backbone that is not trained into evaluation mode."""
        state = self.state
        if not state.batch:  # else the run was resumed within the epoch
            state.sums, state.metrics = EpochSums(), {}
            state.epoch_began = state.clock.used_fraction
        if state.recipe.method == "probe-sgd":  # a frozen backbone should not use dropout
            state.model.eval()
            for module in heads_of(state.model):
                module.train()

    def end_epoch(self) -> None:
        """Compute the training figures of the epoch, and with stochastic weight averaging update the average."""
        self.state.finite_check.resolve_pending()
        state, start = self.state, swa_start(self.state.recipe)
        if state.average is not None and start is not None and state.epoch >= start:
            state.average.update(state.model)
        state.metrics.update(state.sums.figures(self.team))
        state.is_trained = True

    # --- One step ---------------------------------------------------------------------------------

    def take_step(self, first: int, batches: Iterable[Batch]) -> None:
        """Update the weights with the mean gradient of some batches. Skip the step if the gradient is not finite.

        `first` is the number of the first batch of the step in the epoch, from 0.
        """
        state, optimizer = self.state, self.state.optimizer
        # The number of images of the step, in this process and in all processes.
        local_images, all_images = self.data.images_in(first, first + state.recipe.grad_accum - 1)
        state.metrics["lr"] = state.lr
        set_learning_rate(optimizer, state.metrics["lr"])
        optimizer.zero_grad()
        self._statistics.begin()
        for number, batch in enumerate(batches, start=first):
            with self.fabric.autocast():
                micro = self._prepare(batch, number, first)
                if state.epoch == number == 0:
                    self._notify("draw_first_batch", micro.batch[0])
                state.pieces.run(len(micro.images), partial(self._accumulate_gradients, micro, all_images))
            loss = torch.stack(micro.losses).sum()
            state.sums.add(loss, micro.training_images, micro.hits)
            state.finite_check.note_loss(loss, state.epoch, state.step)

        state.scaler.unscale_(optimizer)
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        is_finite = state.finite_check.is_finite(norm)
        self._statistics.finish(local_images, is_finite)
        if not state.finite_check.allows(optimizer, is_finite):
            optimizer.zero_grad()
            state.scaler.update()
            return
        if state.recipe.clip_grad:
            torch.nn.utils.clip_grads_with_norm_(state.model.parameters(), state.recipe.clip_grad, norm)
        with optimizer_in_memory():
            state.scaler.step(optimizer)
        state.scaler.update()
        state.step += 1
        if state.average is not None and state.recipe.ema:
            state.average.update(state.model)

    def _accumulate_gradients(self, micro: MicroBatch, all_images: int, piece: slice) -> None:
        """Add the gradients of a piece of a batch, given the number of images of the step in all processes."""
        size = len(micro.targets[piece])
        training_images = size if micro.training_images else 0  # without placeholders
        # Several processes add up their gradients in the last backward pass of the step.
        is_shared = self.team.size > 1
        exchange = self._network.no_sync() if is_shared and not micro.is_last else nullcontext()
        with exchange, self._dropout.using(micro.dropout_keys[:, piece]), self._statistics.normalising(size):
            loss, hits = self.loss_of(micro.images[piece], micro.targets[piece])  # the forward pass
            weighted = self.state.scaler.scale(loss * (training_images / all_images))
            if is_shared:
                total = weighted * self.team.size  # the mean over processes becomes a sum
                with torch.autocast(loss.device.type, enabled=False):
                    total.backward()  # type: ignore[no-untyped-call]
            else:
                add_gradients(self._parameters, weighted)  # the backward pass
        micro.losses.append(loss.detach() * training_images)
        micro.hits.append(hits[:training_images])

    def loss_of(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the mean loss of some images, and whether each was classified correctly, (B,)."""
        heads = self.objective.call_network(self._network, images, targets)
        return self.objective.loss(heads, images, targets), self.objective.hits(heads, targets)

    def _prepare(self, batch: Batch, number: int, first: int) -> MicroBatch:
        # Move batch `number` of the epoch to the device, mix its images, and draw the random numbers of dropout.
        # `first` is the first batch of the step.
        state = self.state
        batch = self.fabric.to_device(batch)
        images, labels = batch
        if images.is_cuda:
            images = images.contiguous(memory_format=torch.channels_last)  # faster for convolutional stems
        training_images, batch_images = self.data.images_in(number, number)
        needs_targets = self._mixing or not self.objective.takes_labels
        targets = self.objective.targets(labels) if needs_targets else labels  # (B, K) or (B,)
        seeds = (state.recipe.seed, state.step, number - first)
        if self._mixing:
            preceding = partial(self.team.preceding_images, length=batch_images)
            images, targets = self._mixing.apply(images, targets, mix_seeds(*seeds), preceding)
        keys = self._dropout.sample(mix_seeds(*seeds, 1), self.data.positions_in_batch(len(images)), images.device)
        is_last = number == min(first + state.recipe.grad_accum, self.data.batches) - 1
        return MicroBatch(images, targets, training_images, batch, is_last, keys)

    # --- Validation -------------------------------------------------------------------------------

    def validate(self) -> None:
        """Evaluate the model on the validation images, if there are any, and store the figures in the state."""
        if not self.data.has_val:
            return
        outputs, labels = list[Tensor](), list[Tensor]()
        with in_evaluation(self.state.model_to_save), torch.no_grad(), self.fabric.autocast():
            for batch in self.data.val_batches():
                output = self.objective.call_network(self.state.model_to_save, *self.fabric.to_device(batch))
                outputs.append(output.float())
                labels.append(batch[1])
                if self.team.size == 1:  # several processes may have different numbers of batches
                    self.interruption.after_step()
        images = self.data.val_images  # without the extra image of a process that has no share
        all_outputs = torch.cat(outputs).cpu()[:images]
        all_labels = torch.cat(labels).cpu()[:images]
        if not self.objective.evaluates_shares:
            all_outputs = self.data.combine_shares(self.team.gather(all_outputs))
            all_labels = self.data.combine_shares(self.team.gather(all_labels))
        self.state.metrics.update(self.objective.validation_figures(all_outputs, all_labels, self.team))

    def _notify_before_saving(self, hook: str) -> None:
        # Before a checkpoint is written, find out which steps were skipped.
        self.state.finite_check.resolve_pending()
        self._notify(hook)

    def _notify(self, hook: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            method = getattr(callback, hook, None)
            if method is not None:
                method(*(arguments or (self.state,)))


# --- Random numbers of dropout -----------------------------------------------------------------------------------


class DropoutNumbers:
    """Random numbers for the dropout layers of a model, one number for each layer and each image of a batch.

    Layers with a rate of 0 get no numbers. The layers of a network of another library share one number for each image.
    """

    def __init__(self, model: nn.Module) -> None:
        self._is_external = isinstance(model, Network)  # of another library
        kinds = (Dropout, DropPath, PatchDropout)
        self._layers = [module for module in model.modules() if isinstance(module, kinds) and module.rate > 0]

    def sample(self, seed: int, indices: range, device: torch.device) -> Tensor:
        """Return the random numbers for B images of a batch, (layers, B); (1, B) for a network of another library.

        `indices` are those of the images in the whole batch. An image gets the same numbers in every division of the
        batch among processes, because the numbers of all images up to the last one are drawn.
        """
        generator = np.random.default_rng(seed)
        layers = 1 if self._is_external else len(self._layers)
        images = max(indices, default=-1) + 1
        numbers = generator.integers(-(2**31), 2**31, (images, layers), dtype=np.int32)
        selected = numbers[indices.start : indices.stop : indices.step].T.copy()
        return torch.from_numpy(selected).to(device, non_blocking=True)

    @contextmanager
    def using(self, keys: Tensor) -> Iterator[None]:
        """Make the dropout layers use `keys`, the numbers that `sample` returned, inside the context.

        Activation checkpointing, which computes a block a second time in the backward pass, sees the same numbers.
        """
        if self._is_external:  # its layers draw from torch's generator, for all images of a piece at once
            with torch.random.fork_rng():
                torch.manual_seed(int(keys[0, 0]) & 0xFFFFFFFF)
                yield
            return
        for layer, layer_keys in zip(self._layers, keys, strict=True):
            layer.keys = layer_keys
        try:
            yield
        finally:
            for layer in self._layers:
                layer.keys = None
