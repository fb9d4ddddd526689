"""Loading any published Vision Transformer, exactly, or saying why not.

A checkpoint's names and shapes are read first (`read`). Its layout is recognised (`formats`, one module a publisher),
its configuration inferred (`infer`) and every tensor accounted for (`match`); it is fitted to what was asked for
(`adapt`, `plan`); only then are the numbers read, once, into a model that was never initialised. Names are imported
when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitkit.system.lazy import importer

if TYPE_CHECKING:
    from vitkit.weights.loading import inspect, load, locate

__all__ = ["inspect", "load", "locate"]

__getattr__ = importer(__name__, dict.fromkeys(__all__, "loading"))
