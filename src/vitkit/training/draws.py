"""What dropout, stochastic depth and patch dropout draw for each image, whichever process computes it and in whichever
piece of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from vitkit.model.layers import Dropout, DropPath
from vitkit.model.network import Network
from vitkit.training.patches import PatchDropout

Keys = Tensor  # (layers, B) int32


class Draws:
    """A random number for each image of a batch and each layer of a model that draws; the layers go by these alone.

    Args:
        model: whose layers of rates above 0 are meant.
    """

    def __init__(self, model: nn.Module) -> None:
        self._is_network = isinstance(model, Network)
        kinds = (Dropout, DropPath, PatchDropout)
        self._layers = [module for module in model.modules() if isinstance(module, kinds) and module.rate > 0]

    def of(self, seed: int, places: range, device: torch.device) -> Keys:
        """The numbers of some images of a batch.

        Args:
            seed: of the batch.
            places: which images of it, counted over all processes.
            device: where the model is.
        """
        whole = np.random.default_rng(seed)
        layers = 1 if self._is_network else len(self._layers)
        drawn = whole.integers(-(2**31), 2**31, (max(places, default=-1) + 1, layers), dtype=np.int32)
        return torch.from_numpy(drawn[places.start : places.stop : places.step].T.copy()).to(device, non_blocking=True)

    @contextmanager
    def told(self, keys: Keys) -> Iterator[None]:
        """Let the layers draw by these numbers, in the pass forward and in blocks that the pass backward repeats."""
        if self._is_network:  # its layers draw from torch's generator, for all images of a piece at once
            with torch.random.fork_rng():
                torch.manual_seed(int(keys[0, 0]) & 0xFFFFFFFF)
                yield
            return
        for layer, own in zip(self._layers, keys, strict=True):
            layer.keys = own
        try:
            yield
        finally:
            for layer in self._layers:
                layer.keys = None
