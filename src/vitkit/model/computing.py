"""How a model's parts compute, set for all of them at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

_LOCK = threading.Lock()
_ASKED: WeakKeyDictionary[nn.Module, tuple[int, list[nn.Module]]] = WeakKeyDictionary()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Have a model compute in evaluation mode, whatever mode its parts are in, and put them back afterwards.

    Dropout and stochastic depth would give another answer each time, and batch norms would learn from what they are
    asked. Several threads may ask at once: the first switches the modes, and the last puts them back.
    """
    with _LOCK:
        count, training = _ASKED.get(model, (0, []))
        training = [*training, *(module for module in model.modules() if module.training)]
        for module in training:
            module.training = False
        _ASKED[model] = (count + 1, training)
    try:
        yield
    finally:
        with _LOCK:
            count, training = _ASKED.pop(model)
            if count > 1:
                _ASKED[model] = (count - 1, training)
            else:
                for module in training:
                    module.training = True


class Computing:
    """Methods of `VisionTransformer` that reach into all of its parts."""

    @property
    def fused_attention(self: Any) -> bool:
        """Whether eqs. 6-7 are one kernel; written out they give the same numbers."""
        return all(block.attn.fused for block in self.blocks if hasattr(block.attn, "fused"))

    @fused_attention.setter
    def fused_attention(self: Any, fused: bool) -> None:
        for block in self.blocks:
            if hasattr(block.attn, "fused"):
                block.attn.fused = fused

    def rebuild_tables(self: Any) -> None:
        """Compute the fixed tables anew, beside the parameters, after the model left the meta device."""
        for module in self.modules():
            if module is not self and hasattr(module, "rebuild_tables"):
                module.rebuild_tables(self.patch_embed.proj.weight)
