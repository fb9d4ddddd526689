"""What batch norms remember of the images they have seen: no weight, and yet a part of the model.

A step that is left out leaves nothing in them, nor does an attempt that runs out of memory. Each process sees its own
share of a batch; after each step all take the mean of what they have, each counted by its images, so that the model is
the same everywhere. (A network that normalises a share by itself is not the one that sees whole batches.)

New ones begin with a mean of 0 and a variance of 1, which are nobody's. What is left of them after n steps, 0.9^n, is
more than the true variance for some hundred steps, and that in layer upon layer: in evaluation such a network gives
all images the same answer while it learns well. So they begin as the mean over the first batches, and forget as they
do anywhere once that is slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitkit.training.distributed import ALONE, ProcessGroup

_AMPLE = 10  # the third step in a row that is left out ends a training, and batches of one picture are not seen


class RunningStatistics:
    """The running means, variances and counters of a model's batch norms; of a model without any nothing is done.

    Args:
        model: in training.
        team: the processes that train together.
    """

    def __init__(self, model: nn.Module, team: ProcessGroup = ALONE) -> None:
        kind = nn.modules.batchnorm._BatchNorm
        self._norms = [module for module in model.modules() if isinstance(module, kind) and module.track_running_stats]
        self._buffers = [buffer for norm in self._norms for buffer in norm.buffers()]
        self._team = team
        self._before: list[Tensor] = []
        memory = max((math.ceil(1 / norm.momentum) for norm in self._norms if norm.momentum), default=0)
        self._young = _AMPLE * memory  # steps after which the beginnings are long forgotten, whatever was left out

    def start(self) -> None:
        """Before the first step: what came with weights goes on as it is, also from a file that does not count."""
        for norm in self._norms:
            *remembered, counter = norm.buffers()
            if norm.momentum and not counter and not _are_new(*remembered):
                counter.fill_(math.ceil(1 / norm.momentum))

    def begin(self) -> None:
        """A step begins."""
        self._before = [buffer.clone() for buffer in self._buffers]

    def finish(self, images: int, is_finite: Callable[[], Tensor]) -> None:
        """A step ends: make the statistics the same in all processes, and undo the step's share if it is not finite.

        Args:
            images: how many images of the step this process has seen.
            is_finite: whether loss and gradient are finite, (). Nothing waits for the device to answer.
        """
        if not self._buffers:
            return
        if self._young:  # later it would change nothing, and each norm costs some small kernels
            self._young -= 1
            self._forget_beginnings()
        if self._team.size > 1:
            self._average_over_processes(images)
        finite = is_finite()
        for buffer, before in zip(self._buffers, self._before, strict=True):
            buffer.copy_(torch.where(finite, buffer, before))

    def _average_over_processes(self, images: int) -> None:
        floats = [buffer for buffer in self._buffers if buffer.is_floating_point()]
        weighed = [buffer * images for buffer in floats]
        count = torch.full_like(floats[0][:1], images)
        self._team.all_reduce([*weighed, count])
        for buffer, total in zip(floats, weighed, strict=True):
            buffer.copy_(total / count)

    def _forget_beginnings(self) -> None:
        """Let the step's batches count as many among all seen, where that is more than the momentum gives them."""
        old = {id(buffer): before for buffer, before in zip(self._buffers, self._before, strict=True)}
        for norm in self._norms:
            if norm.momentum is None:  # the mean over all batches as it is
                continue
            *remembered, seen_now = norm.buffers()
            seen = old[id(seen_now)]
            left = (1 - norm.momentum) ** (seen_now - seen)  # of what was remembered before the step
            wanted = torch.minimum(left, seen / seen_now)
            factor = torch.where(seen_now > seen, (1 - wanted) / (1 - left), 1.0)
            for buffer in remembered:
                buffer.copy_(torch.lerp(old[id(buffer)], buffer, factor.to(buffer)))

    @contextmanager
    def attempt(self, images: int) -> Iterator[None]:
        """A pass over so many images, after which all is as before where it fails.

        A batch of one picture is normalised by what is remembered, as in evaluation.
        """
        before = [buffer.clone() for buffer in self._buffers]
        learning = [norm for norm in self._norms if norm.training] if images == 1 else []
        for norm in learning:
            norm.eval()
        try:
            yield
        except BaseException:
            for buffer, old in zip(self._buffers, before, strict=True):
                buffer.copy_(old)
            raise
        finally:
            for norm in learning:
                norm.train()


def _are_new(mean: Tensor, variance: Tensor) -> bool:
    """Whether they remember nothing yet."""
    return not mean.any() and bool((variance == 1).all())
