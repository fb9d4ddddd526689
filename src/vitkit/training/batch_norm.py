"""The running statistics of batch normalisation layers, which are not weights but belong to the model.

A skipped step does not change them, nor does an attempt that runs out of memory. Each process normalises its share of
a batch by itself. After each step the processes average their statistics, weighted by the number of images, so that the
model is the same everywhere. (The result differs from that of one process that normalises whole batches.)

New layers start with a mean of 0 and a variance of 1, which belong to no data. After n steps a part of 0.9^n of this
initial variance remains. It exceeds the true variance for about a hundred steps, in every layer, so in evaluation the
network answers the same for all images although it learns well. Here the statistics are therefore the plain mean over
the first batches until the usual exponential average forgets faster than that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitkit.training.distributed import ALONE, ProcessGroup

_MARGIN = 10  # times the memory of the average; generous, as skipped steps and batches of one image do not count


class RunningStatistics:
    """The running means, variances and counters of a model's batch norms. Without batch norms it does nothing.

    Args:
        model: the model in training.
        team: the processes that train together.
    """

    def __init__(self, model: nn.Module, team: ProcessGroup = ALONE) -> None:
        kind = nn.modules.batchnorm._BatchNorm
        self._norms = [module for module in model.modules() if isinstance(module, kind) and module.track_running_stats]
        self._buffers = [buffer for norm in self._norms for buffer in norm.buffers()]
        self._team = team
        self._before: list[Tensor] = []
        memory = max((math.ceil(1 / norm.momentum) for norm in self._norms if norm.momentum), default=0)
        self._steps_to_correct = _MARGIN * memory  # after these the initial values are certainly forgotten

    def start(self) -> None:
        """Prepare for the first step: statistics that came with the weights are continued, not replaced.

        A file of weights may hold statistics without their counter; such a counter is set here.
        """
        for norm in self._norms:
            mean, variance, counter = norm.buffers()
            is_new = not mean.any() and bool((variance == 1).all())
            if norm.momentum and not counter and not is_new:
                counter.fill_(math.ceil(1 / norm.momentum))

    def begin(self) -> None:
        """Remember the statistics at the beginning of a step."""
        self._before = [buffer.clone() for buffer in self._buffers]

    def finish(self, images: int, is_finite: Callable[[], Tensor]) -> None:
        """End a step: make the statistics equal in all processes, and undo their change if the step is not finite.

        Args:
            images: the number of images of the step that this process has seen.
            is_finite: returns whether loss and gradient are finite, (). The result stays on the device, so nothing
                waits for it.
        """
        if not self._buffers:
            return
        if self._steps_to_correct:  # later it would change nothing, and each norm costs some small kernels
            self._steps_to_correct -= 1
            self._forget_initial_values()
        if self._team.size > 1:
            self._average_over_processes(images)
        finite = is_finite()
        for buffer, before in zip(self._buffers, self._before, strict=True):
            buffer.copy_(torch.where(finite, buffer, before))

    def _average_over_processes(self, images: int) -> None:
        floats = [buffer for buffer in self._buffers if buffer.is_floating_point()]
        weighted = [buffer * images for buffer in floats]
        count = torch.full_like(floats[0][:1], images)
        self._team.all_reduce([*weighted, count])
        for buffer, total in zip(floats, weighted, strict=True):
            buffer.copy_(total / count)

    def _forget_initial_values(self) -> None:
        """Weight the step's batches as in a plain mean over all batches, where the momentum gives them less weight."""
        old = {id(buffer): before for buffer, before in zip(self._buffers, self._before, strict=True)}
        for norm in self._norms:
            if norm.momentum is None:  # the layer itself computes the plain mean
                continue
            mean, variance, batches = norm.buffers()
            batches_before = old[id(batches)]
            weight_before = (1 - norm.momentum) ** (batches - batches_before)  # of the statistics before the step
            wanted = torch.minimum(weight_before, batches_before / batches)
            factor = torch.where(batches > batches_before, (1 - wanted) / (1 - weight_before), 1.0)
            for buffer in (mean, variance):
                buffer.copy_(torch.lerp(old[id(buffer)], buffer, factor.to(buffer)))

    @contextmanager
    def attempt(self, images: int) -> Iterator[None]:
        """Restore the statistics if the block, a pass over this many images, fails.

        A batch of one image is normalised by the running statistics, as in evaluation.
        """
        before = [buffer.clone() for buffer in self._buffers]
        switched = [norm for norm in self._norms if norm.training] if images == 1 else []
        for norm in switched:
            norm.eval()
        try:
            yield
        except BaseException:
            for buffer, old in zip(self._buffers, before, strict=True):
                buffer.copy_(old)
            raise
        finally:
            for norm in switched:
                norm.train()
