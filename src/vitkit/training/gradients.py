"""Sum the gradient of a step over the pieces of its batches, and over the processes that train together.

The gradient of a piece is added when it is complete, so that a piece that runs out of memory has no effect
(`add_gradients`). With several processes, the parameters are divided into buckets, as in torch's
DistributedDataParallel. In the last backward pass of a step, a bucket is sent as soon as its gradients are complete,
while the pass computes the gradients of earlier layers. The result is a sum weighted by images, not a mean over
processes.

If the last pass of a step runs out of memory, some buckets may have been sent already. Their gradients were complete,
so nothing is added to them when the batch is computed again in smaller pieces. All processes send the buckets in the
same order, even if a pass fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vitkit.training.distributed import ALONE, ProcessGroup, is_sharded

_BUCKET = 25 * 2**20  # bytes, as in DistributedDataParallel


def add_gradients(parameters: Iterable[nn.Parameter], loss: Tensor) -> None:
    """Add the gradient of a loss to the parameters' gradients, or nothing if memory runs out."""
    trained = list(parameters)
    gradients = _gradients_of(loss, trained)
    for parameter, gradient in zip(trained, gradients, strict=True):
        if gradient is not None:
            parameter.grad = _laid_as(parameter, gradient) if parameter.grad is None else parameter.grad.add_(gradient)


def _gradients_of(loss: Tensor, parameters: list[nn.Parameter]) -> tuple[Tensor | None, ...]:
    with torch.autocast(loss.device.type, enabled=False):
        return torch.autograd.grad(loss, parameters, allow_unused=True)


def _laid_as(parameter: nn.Parameter, gradient: Tensor) -> Tensor:
    """Return the gradient with the strides of its parameter, which the optimiser needs and `backward` produces.

    Convolutions return gradients in channels-last order if the images have this order.
    """
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


class GradientSums:
    """Sum the gradients of a step over its pieces and over all processes.

    Args:
        model: the model in training.
        team: the processes that train together.

    Attributes:
        bad_losses: the number of losses that were not finite, (); after `finish`, the number in all processes. With a
            single process it stays 0.
    """

    def __init__(self, model: nn.Module, team: ProcessGroup = ALONE) -> None:
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._team, self._is_sharded = team, is_sharded(model)
        has_buckets = team.size > 1 and not self._is_sharded
        self._buckets = _in_buckets(self._parameters[::-1]) if has_buckets else []
        self._sent = 0
        self.bad_losses = torch.zeros((), device=self._parameters[0].device if self._parameters else None)

    def begin(self) -> None:
        """Begin a step, whose parameters have no gradients yet."""
        self._sent, self.bad_losses = 0, torch.zeros_like(self.bad_losses)
        for bucket in self._buckets:
            bucket.begin()

    def add(self, loss: Tensor, *, is_last: bool) -> None:
        """Add the gradient of a loss, or nothing if memory runs out.

        Args:
            loss: the loss of a piece, weighted by its part of all images of the step.
            is_last: whether it is the last piece of the step in this process.
        """
        if self._team.size > 1:
            self.bad_losses = self.bad_losses + ~loss.detach().isfinite()
        if self._is_sharded:  # the backward pass averages over processes
            (loss * self._team.size).backward()  # type: ignore[no-untyped-call]
        elif is_last and self._buckets:
            with self._sending():
                _gradients_of(loss, self._parameters)
        else:
            add_gradients(self._parameters, loss)

    def finish(self) -> list[Tensor]:
        """Return the gradients of the parameters that have one, summed over all processes."""
        if self._buckets:
            for bucket in self._buckets[self._sent :]:
                bucket.complete()
            self._send_full_buckets()
            for bucket in self._buckets:
                bucket.receive()
            self.bad_losses = self._buckets[-1].extra
        elif self._team.size > 1:
            dist.all_reduce(self.bad_losses)
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]

    @contextmanager
    def _sending(self) -> Iterator[None]:
        """Send buckets while a backward pass computes gradients. If the pass fails, reset the unsent buckets."""
        hooks = [
            parameter.register_hook(partial(self._take, bucket, number))  # type: ignore[no-untyped-call]
            for bucket in self._buckets
            for number, parameter in enumerate(bucket.parameters)
        ]
        try:
            yield
        except BaseException:
            for bucket in self._buckets[self._sent :]:
                bucket.begin()
            raise
        finally:
            for hook in hooks:
                hook.remove()

    def _take(self, bucket: _Bucket, number: int, gradient: Tensor) -> None:
        if not bucket.is_sent:
            bucket.take(number, gradient)
            self._send_full_buckets()

    def _send_full_buckets(self) -> None:
        while self._sent < len(self._buckets) and self._buckets[self._sent].is_full:
            self._buckets[self._sent].send(self.bad_losses)
            self._sent += 1


class _Bucket:
    """The gradients of some parameters and one additional number, in one flat tensor.

    Args:
        parameters: the parameters, which have the same type and device.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        sizes = [parameter.numel() for parameter in parameters]
        self._flat = parameters[0].new_zeros(sum(sizes) + 1)
        *parts, extra = torch.split(self._flat, [*sizes, 1])
        self._parts = [part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)]
        self.extra = extra[0]
        self._taken: set[int] = set()
        self._without: set[int] = set()  # parameters that have no gradient, in any process
        self._work: Any = None

    @property
    def is_full(self) -> bool:
        """Return whether all gradients are complete."""
        return len(self._taken) == len(self.parameters)

    @property
    def is_sent(self) -> bool:
        """Return whether the gradients have been sent."""
        return self._work is not None

    def begin(self) -> None:
        """Forget all gradients."""
        self._taken.clear()
        self._without.clear()
        self._work = None

    @torch.no_grad()
    def take(self, number: int, gradient: Tensor) -> None:
        """Store a parameter's complete gradient: the sum of the last piece and of `parameter.grad`."""
        earlier = self.parameters[number].grad
        self._parts[number].copy_(gradient if earlier is None else earlier + gradient)
        self._taken.add(number)

    @torch.no_grad()
    def complete(self) -> None:
        """Store the gradients of parameters that the last backward pass did not reach."""
        for number, parameter in enumerate(self.parameters):
            if number in self._taken:
                continue
            self._taken.add(number)
            if parameter.grad is None:
                self._without.add(number)
                self._parts[number].zero_()
            else:
                self._parts[number].copy_(parameter.grad)

    @torch.no_grad()
    def send(self, extra: Tensor) -> None:
        """Begin the sum over all processes; `extra`, (), is summed with the gradients."""
        self.extra.copy_(extra)
        self._work = dist.all_reduce(self._flat, async_op=True)

    def receive(self) -> None:
        """Wait for the sums, on a GPU without blocking the CPU, and assign them to the parameters' gradients."""
        self._work.wait()
        for number, (parameter, summed) in enumerate(zip(self.parameters, self._parts, strict=True)):
            parameter.grad = None if number in self._without else _laid_as(parameter, summed)


def _in_buckets(parameters: Iterable[nn.Parameter]) -> list[_Bucket]:
    """Divide parameters into buckets of one type and device. They are in the order of the backward pass."""
    buckets: list[list[nn.Parameter]] = []
    size = _BUCKET
    for parameter in parameters:
        is_alike = buckets and (parameter.dtype, parameter.device) == (buckets[-1][0].dtype, buckets[-1][0].device)
        if size >= _BUCKET or not is_alike:
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += parameter.numel() * parameter.element_size()
    return [_Bucket(bucket) for bucket in buckets]
