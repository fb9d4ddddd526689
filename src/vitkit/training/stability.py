"""Incidents in a training: values that are not finite, too little memory, and statistics of too few batches.

`FiniteCheck` skips the steps whose loss or gradient is not finite, and ends a training that does not recover. `Pieces`
divides a batch that does not fit into memory into parts, whose gradients have the same sum. `RunningStatistics` keeps
skipped steps out of the statistics of batch norms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError, is_memory_short
from vitkit.system.progress import Say
from vitkit.training.distributed import ALONE, ProcessGroup

LOWER_LR = "try a lower --lr or a longer --warmup"
_MAX_SKIPPED = 3  # skipped steps in a row after which the training stops
_STEPS_BETWEEN_READS = 50  # after so many steps, a GPU is asked which of them it skipped


class DivergedError(VitkitError):
    """The training diverged and does not recover."""


def all_finite(module: nn.Module) -> bool:
    """Return whether all weights and statistics of a module are finite."""
    return all(bool(tensor.isfinite().all()) for tensor in module.state_dict().values())


class FiniteCheck:
    """Skip the steps whose loss or gradient is not finite, and report each by `say`. The third in a row is an error.

    A fused optimiser, the default on GPUs, skips such a step by itself, as it does for gradient scalers. Which steps it
    skipped is read only every 50 steps, because waiting for the GPU after every step would delay the training. With a
    gradient scaler, a gradient that overflows is not reported as long as the scaler can reduce its scale further.
    """

    def __init__(self, say: Say, scaler: torch.amp.GradScaler | None = None, team: ProcessGroup = ALONE) -> None:
        self.skipped_in_a_row = 0
        self._say, self._scaler, self._team = say, scaler, team
        self._are_losses_finite: Tensor | None = None  # the losses of this step so far, (); None without any
        self._epoch_and_step = 0, 0
        # For each step that has not been reported: whether all is finite, and whether the losses are, (2,); its number.
        self._unread: list[tuple[Tensor, tuple[int, int]]] = []

    def note_loss(self, loss: Tensor, epoch: int, step: int) -> None:
        """Record the loss, (), of a batch of this step."""
        self._epoch_and_step = epoch, step
        is_finite = loss.isfinite()
        self._are_losses_finite = is_finite if self._are_losses_finite is None else self._are_losses_finite & is_finite

    def is_finite(self, norm: Tensor) -> Tensor:
        """Return whether the losses of this step and the norm of the gradient are finite, (), on their device.

        Losses of other processes count, too. All processes must call this method together.
        """
        if self._are_losses_finite is None:
            return norm.isfinite()
        if self._team.size > 1:
            bad = (~self._are_losses_finite).float()
            self._team.all_reduce([bad])
            self._are_losses_finite = bad == 0
        return norm.isfinite() & self._are_losses_finite

    def allows(self, optimizer: torch.optim.Optimizer, is_finite: Tensor) -> bool:
        """Return whether the optimiser may take the step. A fused one always may, because it skips bad steps itself."""
        are_losses_finite = is_finite if self._are_losses_finite is None else self._are_losses_finite
        self._unread.append((torch.stack([is_finite, are_losses_finite]), self._epoch_and_step))
        self._are_losses_finite = None
        if getattr(optimizer, "_step_supports_amp_scaling", False):  # it is fused
            optimizer.grad_scale, optimizer.found_inf = None, (~is_finite).float()  # type: ignore[attr-defined]
            if len(self._unread) >= _STEPS_BETWEEN_READS:
                self.resolve_pending()
            return True
        self.resolve_pending()
        return bool(is_finite)

    def resolve_pending(self) -> None:
        """Report the steps that were skipped since the last call."""
        if not self._unread:
            return
        checks, steps = zip(*self._unread, strict=True)
        self._unread = []
        may_overflow = self._scaler is not None and self._scaler.is_enabled() and self._scaler.get_scale() > 1
        rows = torch.stack(checks).tolist()  # one transfer from the GPU for all steps
        for (is_finite, are_losses_finite), (epoch, step) in zip(rows, steps, strict=True):
            if is_finite:
                self.skipped_in_a_row = 0
            elif not (may_overflow and are_losses_finite):
                self.skipped_in_a_row += 1
                what = "gradient" if are_losses_finite else "loss"
                self._say(f"the {what} is not finite in epoch {epoch + 1}, after {step} steps: step skipped")
                if self.skipped_in_a_row >= _MAX_SKIPPED:
                    raise DivergedError(
                        "training.not-finite",
                        f"the {what} was not finite in {_MAX_SKIPPED} steps in a row: {LOWER_LR}, or "
                        "--precision float32",
                    )


class TooLittleMemory(VitkitError):  # noqa: N818  # it says what is wrong
    """A step of the training does not fit into memory, not even in small pieces."""


class Pieces:
    """The division of batches into pieces that fit into memory. When memory runs out, the pieces become half as large.

    With several processes, this is an error, because they exchange their gradients within a backward pass.
    """

    def __init__(self, say: Say, team: ProcessGroup = ALONE) -> None:
        self.size: int | None = None  # the maximum number of images in a piece; None as long as whole batches fit
        self._say, self._team = say, team

    def run(self, images: int, compute: Callable[[slice], None]) -> None:
        """Call `compute` with slices that divide a batch, or with the whole batch if memory allows.

        If `compute` runs out of memory, it must not have changed the gradients, because it is called again with a
        smaller slice.
        """
        done = 0
        while done < images:
            size = min(self.size or images, images - done)
            try:
                compute(slice(done, done + size))
                done += size
                continue
            except (RuntimeError, MemoryError) as error:
                if not is_memory_short(error):
                    raise
            # This is not in the handler, because the error refers to tensors, whose memory is to be freed.
            if self._team.size > 1:
                message = "out of memory: lower --batch-size (a higher --grad-accum keeps the images of a step)"
                raise TooLittleMemory("training.memory-short", message)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            if size == 1:
                message = "memory is too small to train on one image at a time: use a smaller --model or --image-size"
                raise TooLittleMemory("training.memory-short", message)
            self.size = (size + 1) // 2
            self._say(
                f"out of memory: computing {self.size} images at a time from now on; each step still uses all {images}"
            )


@contextmanager
def optimizer_in_memory() -> Iterator[None]:
    """Advise what to do if memory runs out in the optimiser's first step, which allocates the moments."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if is_memory_short(error):
            message = "memory is too small for the optimiser: try --optimizer sgd, --method lora or a smaller --model"
            raise TooLittleMemory("training.memory-short", message) from error
        raise


class RunningStatistics:
    """The running means, variances and batch counters of the batch norms of a model, if it has any.

    Each process normalises its own share of a batch. After each step the processes average their statistics, weighted
    by the number of images, so that all have the same model. A single process, which normalises whole batches, gets
    other statistics.

    New layers start with mean 0 and variance 1. In the usual exponential average, a fraction of 0.9^n of this variance
    remains after n steps, which exceeds the true variance of the activations for about a hundred steps. In evaluation,
    the network would therefore give almost the same output for all images. To avoid this, the statistics are at first
    the arithmetic mean over all batches, until the exponential average gives the newest batch more weight.
    """

    def __init__(self, model: nn.Module, team: ProcessGroup = ALONE) -> None:
        kind = nn.modules.batchnorm._BatchNorm
        self._norms = [module for module in model.modules() if isinstance(module, kind) and module.track_running_stats]
        self._buffers = [buffer for norm in self._norms for buffer in norm.buffers()]
        self._team = team
        self._before: list[Tensor] = []  # the buffers at the beginning of the step
        window = 0  # the number of batches that an exponential average covers
        for norm in self._norms:
            if not norm.momentum:
                continue
            batches = math.ceil(1 / norm.momentum)
            window = max(window, batches)
            # If pretrained weights lack the counter of batches, the first steps would replace their statistics.
            mean, variance, counter = norm.buffers()
            is_new = not mean.any() and bool((variance == 1).all())
            if not counter and not is_new:
                counter.fill_(batches)
        # After ten times as many steps, the initial values no longer matter, even if some steps are skipped or have a
        # single image.
        self._steps_to_correct = 10 * window

    def begin(self) -> None:
        """Store the statistics at the beginning of a step."""
        self._before = [buffer.clone() for buffer in self._buffers]

    def finish(self, images: int, is_finite: Tensor) -> None:
        """End a step with so many images in this process. Undo its change of the statistics unless `is_finite`, ()."""
        if not self._buffers:
            return
        if self._steps_to_correct:  # later, the correction would have no effect
            self._steps_to_correct -= 1
            self._forget_initial_values()
        if self._team.size > 1:
            floats = [buffer for buffer in self._buffers if buffer.is_floating_point()]
            weighted = [buffer * images for buffer in floats]
            count = torch.full_like(floats[0][:1], images)
            self._team.all_reduce([*weighted, count])
            for buffer, total in zip(floats, weighted, strict=True):
                buffer.copy_(total / count)
        for buffer, before in zip(self._buffers, self._before, strict=True):
            buffer.copy_(torch.where(is_finite, buffer, before))

    def _forget_initial_values(self) -> None:
        """Replace the exponential average by the mean over all batches, if the mean gives this step a larger weight."""
        old = {id(buffer): before for buffer, before in zip(self._buffers, self._before, strict=True)}
        for norm in self._norms:
            if norm.momentum is None:  # the layer itself computes the plain mean
                continue
            mean, variance, batches = norm.buffers()
            batches_before = old[id(batches)]
            # The statistics before the step have this weight in the exponential average. It becomes their weight in the
            # mean over all batches if that is smaller.
            old_weight = (1 - norm.momentum) ** (batches - batches_before)
            new_weight = torch.minimum(old_weight, batches_before / batches)
            factor = torch.where(batches > batches_before, (1 - new_weight) / (1 - old_weight), 1.0)
            for buffer in (mean, variance):
                buffer.copy_(torch.lerp(old[id(buffer)], buffer, factor.to(buffer)))

    @contextmanager
    def normalising(self, images: int) -> Iterator[None]:
        """In this context, normalise a piece with a single image, which has no variance, by the running statistics."""
        switched = [norm for norm in self._norms if norm.training] if images == 1 else []
        for norm in switched:
            norm.eval()
        try:
            yield
        finally:
            for norm in switched:
                norm.train()
