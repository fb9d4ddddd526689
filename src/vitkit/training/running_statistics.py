"""What batch norms remember of the images they have seen: no weight, and yet a part of the model.

A step that is left out leaves nothing in them, nor does an attempt that runs out of memory. Each process sees its own
share of a batch; after each step all take the mean of what they have, each counted by its images, so that the model is
the same everywhere. (A network that normalises a share by itself is not the one that sees whole batches.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitkit.training.distributed import ALONE, Team


class RunningStatistics:
    """The running means, variances and counters of a model's batch norms; of a model without any nothing is done.

    Args:
        model: in training.
        team: the processes that train together.
    """

    def __init__(self, model: nn.Module, team: Team = ALONE) -> None:
        kind = nn.modules.batchnorm._BatchNorm
        self._norms = [module for module in model.modules() if isinstance(module, kind) and module.track_running_stats]
        self._buffers = [buffer for norm in self._norms for buffer in norm.buffers()]
        self._team = team
        self._before: list[Tensor] = []

    @property
    def are_kept(self) -> bool:
        """Whether the model has any."""
        return bool(self._buffers)

    def begin(self) -> None:
        """A step begins."""
        self._before = [buffer.clone() for buffer in self._buffers]

    def end(self, images: int) -> None:
        """The step's images have been seen, so many of them by this process: make it the same everywhere."""
        if self._team.size == 1 or not self._buffers:
            return
        floats = [buffer for buffer in self._buffers if buffer.is_floating_point()]
        weighed = [buffer * images for buffer in floats]
        count = torch.full_like(floats[0][:1], images)
        self._team.add_up([*weighed, count])
        for buffer, total in zip(floats, weighed, strict=True):
            buffer.copy_(total / count)

    def keep_if(self, sound: Tensor) -> None:
        """Be as before the step unless it is sound, (); nothing waits for the device to say whether it is."""
        for buffer, before in zip(self._buffers, self._before, strict=True):
            buffer.copy_(torch.where(sound, buffer, before))

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
