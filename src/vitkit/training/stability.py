"""Detect instability in training, and recover from it.

`StabilityGuard` reports incidents, and ends a training that does not recover:

- The loss or the gradient of a step is not finite. `FiniteCheck` skips the step.
- The model predicts one class for all images, or its weights are not finite. `SafePoint` restores the weights of the
  last good epoch, and the training continues with a lower learning rate.

`Pieces` divides a batch that does not fit into memory into parts, whose gradients have the same sum.
`RunningStatistics` keeps skipped steps out of the statistics of batch norms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from vitkit.errors import VitkitError, is_memory_short
from vitkit.system.progress import Say
from vitkit.training.distributed import ALONE, ProcessGroup, full_weights, is_sharded, set_full_weights

_MAX_SKIPPED = 3  # skipped steps in a row after which the training stops
_MAX_REDUCTIONS = 2  # how many times the learning rate is reduced before the training stops
_STEPS_BETWEEN_READS = 50  # after so many steps, a GPU is asked which of them it skipped
_ADVICE = "try a lower --lr or a longer --warmup"


class DivergedError(VitkitError):
    """The training diverged and does not recover."""


@dataclass(frozen=True)
class ValidationOutcome:
    """The result of a validation, as sums over images in float64. The sums of several processes can be added.

    The fixed shift is an offset of the logits that is not learned, such as the correction of the class prior. Relative
    logits are the logits of an image without the fixed shift, minus their mean over the classes.
    """

    images: Tensor  # the number of images, ()
    correct: Tensor  # the number of images that were classified correctly, ()
    losses: Tensor  # two sums of the cross-entropy, (2,): for the logits with the fixed shift, and without it
    predicted: Tensor  # the number of images for which each class was predicted, (K,)
    labelled: Tensor  # the number of images of each class, (K,)
    relative: Tensor  # the sum of the relative logits, (K,)
    squared: Tensor  # the sum of the squared relative logits, (K,)

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor, shift: Tensor | None = None) -> ValidationOutcome:
        """Compute the sums from logits (n, K), which include the fixed `shift` (K,), and true classes (n,)."""
        logits, K = logits.double(), logits.shape[1]
        learned = logits if shift is None else logits - shift
        predicted = logits.argmax(dim=1)
        relative = learned - learned.mean(dim=1, keepdim=True)  # softmax is invariant to the mean
        sums = (
            torch.tensor(len(labels)),
            (predicted == labels).sum(),
            torch.stack([F.cross_entropy(scores, labels, reduction="sum") for scores in (logits, learned)]),
            predicted.bincount(minlength=K),
            labels.bincount(minlength=K),
            relative.sum(dim=0),
            relative.square().sum(dim=0),
        )
        return cls(*(part.double() for part in sums))

    def sum_over(self, team: ProcessGroup) -> ValidationOutcome:
        """Return the sums over all processes. All processes must call this method together."""
        sums = [part.clone() for part in vars(self).values()]
        team.all_reduce(sums)
        return ValidationOutcome(*sums)

    @property
    def accuracy(self) -> float:
        return (self.correct / self.images).item()

    @property
    def majority_share(self) -> float:
        """Return the fraction of the images that belong to the most frequent class."""
        return (self.labelled.max() / self.images).item()

    @property
    def spread(self) -> tuple[float, float]:
        """Return how much the relative logits vary, as two standard deviations.

        The first is over the images, the largest of all classes. The second is over the classes, of the mean logit of
        each class.
        """
        means = self.relative / self.images
        variances = (self.squared - self.images * means.square()).clamp(min=0) / (self.images - 1)
        return variances.sqrt().max().item(), means.std().item()


def has_collapsed(outcome: ValidationOutcome, best_accuracy: float = 0.0, collapsed_before: bool = False) -> bool:
    """Return whether a model predicts one class for (almost) all images, although it should do better.

    The result is False for fewer than ten images, or if a class has more than 90 % of the images. Otherwise it is True
    if any logit is not finite, or if all of these conditions hold:

    - At least 99 % of the predictions are the same class.
    - The accuracy does not exceed that of always predicting the most frequent class.
    - At least one of these distinguishes the model from one at the beginning of its training. The loss is very high,
      the logits (almost) do not depend on the image, the model has collapsed before in this training
      (`collapsed_before`), or it was clearly better in an earlier epoch (`best_accuracy`).
    """
    images, majority_share = outcome.images, outcome.majority_share
    if images < 10 or majority_share > 0.9:
        return False
    if not outcome.squared.isfinite().all():  # a logit is not finite
        return True
    if outcome.predicted.max() / images < 0.99 or outcome.accuracy > majority_share:
        return False
    if collapsed_before or best_accuracy > majority_share + 0.1:
        return True
    shares = outcome.labelled / images
    entropy = -torch.xlogy(shares, shares).sum().item()  # the loss of always predicting the class frequencies
    uniform_loss = math.log(len(shares))  # of predicting the same probability for each class
    # Which of the two losses assumes the class frequencies of the images depends on --balance and --prior.
    if outcome.losses.min() / images > max(1.5 * entropy, 1.05 * uniform_loss):
        return True
    by_image, by_class = outcome.spread
    return by_image < 0.01 * by_class


class StabilityGuard:
    """Count incidents, report each by `say`, and end a training that does not recover."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self.reductions = 0  # how many times the learning rate was reduced
        self.best_accuracy = 0.0  # on the validation images of all epochs so far
        self._bad_in_a_row = 0

    @property
    def lr_scale(self) -> float:
        """Return the factor by which incidents have reduced the learning rate."""
        return 0.1**self.reductions

    def state_dict(self) -> dict[str, Any]:
        return {"lowered": self.reductions, "best_accuracy": self.best_accuracy, "bad_in_a_row": self._bad_in_a_row}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.reductions, self.best_accuracy = state["lowered"], state["best_accuracy"]
        self._bad_in_a_row = state["bad_in_a_row"]

    def pass_step(self) -> None:
        """Record that a step had no incident."""
        self._bad_in_a_row = 0

    def skip_step(self, what: str, epoch: int, step: int) -> None:
        """Report that `what` was not finite after so many steps. The third time in a row, this is an error."""
        self._bad_in_a_row += 1
        self.say(f"the {what} is not finite in epoch {epoch + 1}, after {step} steps: step skipped")
        if self._bad_in_a_row >= _MAX_SKIPPED:
            message = f"the {what} was not finite in {_MAX_SKIPPED} steps in a row: {_ADVICE}, or --precision float32"
            raise DivergedError("training.not-finite", message)

    def accepts(self, outcome: ValidationOutcome | None) -> bool:
        """Return whether the model has not collapsed, as far as is known. Remember its accuracy if it has not."""
        if outcome is None:
            return True
        if has_collapsed(outcome, self.best_accuracy, self.reductions > 0):
            return False
        self.best_accuracy = max(self.best_accuracy, outcome.accuracy)
        return True

    def reduce_learning_rate(self, epoch: int, reason: str) -> None:
        """Divide the learning rate by ten, and report the reason. The third time, this is an error."""
        if self.reductions >= _MAX_REDUCTIONS:
            raise DivergedError(
                "training.diverged",
                f"{reason} after epoch {epoch + 1}, even with a {round(1 / self.lr_scale)}th of the learning rate:"
                f" {_ADVICE}, or check the labels",
            )
        self.reductions += 1
        continues = "restored earlier weights, continuing with a tenth of the learning rate"
        self.say(f"{reason} after epoch {epoch + 1}: {continues}")


def all_finite(weights: Mapping[str, Tensor]) -> bool:
    """Return whether all values of these tensors are finite."""
    return all(bool(weight.isfinite().all()) for weight in weights.values())


class FiniteCheck:
    """Skip the steps whose loss or gradient is not finite, and report them to the guard.

    A fused optimiser, the default on GPUs, skips such a step by itself, as it does for gradient scalers. Which steps it
    skipped is read only every 50 steps, because waiting for the GPU after every step would delay the training. With a
    gradient scaler, a gradient that overflows is not reported as long as the scaler can reduce its scale further.
    """

    def __init__(self, guard: StabilityGuard, scaler: torch.amp.GradScaler | None = None) -> None:
        self._guard, self._scaler = guard, scaler
        self._are_losses_finite: Tensor | None = None  # the losses of this step so far, (); None without any
        self._epoch_and_step = 0, 0
        # For each step that has not been reported: whether all is finite, and whether the losses are, (2,); its number.
        self._unread: list[tuple[Tensor, tuple[int, int]]] = []

    def note_loss(self, loss: Tensor, epoch: int, step: int) -> None:
        """Record the loss, (), of a batch of this step."""
        self._epoch_and_step = epoch, step
        is_finite = loss.isfinite()
        self._are_losses_finite = is_finite if self._are_losses_finite is None else self._are_losses_finite & is_finite

    def note_team(self, bad_losses: Tensor) -> None:
        """Record how many losses of this step are not finite in all processes together, ()."""
        self._are_losses_finite = bad_losses == 0

    def is_finite(self, norm: Tensor) -> Tensor:
        """Return whether the losses of this step and the norm of the gradient are finite, (), on their device."""
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        return norm.isfinite() if self._are_losses_finite is None else norm.isfinite() & self._are_losses_finite

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
                self._guard.pass_step()
            elif not (may_overflow and are_losses_finite):
                self._guard.skip_step("gradient" if are_losses_finite else "loss", epoch, step)


class SafePoint:
    """The weights of the last good epoch, or the initial weights, without frozen parameters."""

    def __init__(self, model: nn.Module, average: nn.Module | None = None) -> None:
        self.is_doubtful = False  # whether the weights of the latest epoch were not stored because they may be bad
        self.weights: dict[str, dict[str, Tensor]] = {}  # with the keys `model` and `average`
        self._model, self._average = model, average

    def store(self) -> None:
        """Store the current weights."""
        if is_sharded(self._model):
            self.weights = {"model": full_weights(self._model)}
        else:
            frozen = {name for name, parameter in self._model.named_parameters() if not parameter.requires_grad}
            state = self._model.state_dict()
            self.weights = {"model": {name: state[name].cpu().clone() for name in state if name not in frozen}}
        if self._average is not None:
            averaged = self._average.state_dict()
            self.weights["average"] = {name: tensor.cpu().clone() for name, tensor in averaged.items()}
        self.is_doubtful = False

    def restore(self) -> None:
        """Restore the stored weights."""
        if is_sharded(self._model):
            set_full_weights(self._model, self.weights["model"])
        else:
            self._model.load_state_dict(self.weights["model"], strict=False)  # frozen parameters were not stored
        if self._average is not None:
            self._average.load_state_dict(self.weights["average"], strict=False)
        self.is_doubtful = False

    def update(self, guard: StabilityGuard, outcome: ValidationOutcome | None, *, epoch: int, is_warm: bool) -> bool:
        """Store the current weights if they are good. If they are unusable, restore the stored ones, and return True.

        Weights are unusable if they are not finite, or if the model has collapsed. Before the warm-up is over
        (`is_warm` is False), a collapsed model continues with its current weights, which are not stored.

        Raises:
            DivergedError: the weights are unusable although the learning rate has been lowered twice.
        """
        is_good = guard.accepts(outcome)
        is_finite = all(all_finite(part.state_dict()) for part in (self._model, self._average) if part is not None)
        if is_finite and is_good:
            self.store()
            return False
        if is_finite and not is_warm:
            self.is_doubtful = True
            return False
        reason = "the model predicts one class for all images" if is_finite else "the weights are no longer finite"
        guard.reduce_learning_rate(epoch, reason)
        self.restore()
        return True

    def state_dict(self) -> dict[str, Any] | None:
        """Return the stored weights if the current weights of the model are doubtful, else None."""
        return self.weights if self.is_doubtful else None

    def load_state_dict(self, state: dict[str, Any] | None, *, is_doubtful: bool | None = None) -> None:
        """Load the result of `state_dict`, or `weights` and `is_doubtful` from a checkpoint within an epoch."""
        self.is_doubtful = state is not None if is_doubtful is None else is_doubtful
        self.weights = state or {}


class TooLittleMemory(VitkitError):  # noqa: N818  # it says what is wrong
    """A step of the training does not fit into memory, not even in small pieces."""


class Pieces:
    """The division of batches into pieces that fit into memory. When memory runs out, the pieces become half as large.

    If the weights are sharded, this is an error, because all processes must pass the same pieces through the model.
    """

    def __init__(self, say: Say, *, is_sharded: bool = False) -> None:
        self.size: int | None = None  # the maximum number of images in a piece; None as long as whole batches fit
        self._say, self._is_sharded = say, is_sharded

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
            if self._is_sharded:
                raise TooLittleMemory(
                    "training.memory-short",
                    "out of memory: with --strategy fsdp, lower --batch-size (--grad-accum keeps the images of a step)",
                )
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
        # The number of batches that an exponential average covers. After ten times as many steps, the initial values no
        # longer matter, even if some steps are skipped or have a single image.
        window = max((math.ceil(1 / norm.momentum) for norm in self._norms if norm.momentum), default=0)
        self._steps_to_correct = 10 * window

    def start(self) -> None:
        """Count earlier batches if pretrained weights lack the counter of batches, which would then be 0.

        With that counter, the first steps would replace the pretrained statistics instead of updating them.
        """
        for norm in self._norms:
            mean, variance, counter = norm.buffers()
            is_new = not mean.any() and bool((variance == 1).all())
            if norm.momentum and not counter and not is_new:
                counter.fill_(math.ceil(1 / norm.momentum))

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
