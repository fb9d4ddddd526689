"""Load any published Vision Transformer exactly, or report why it cannot be loaded.

Open `loading.py` first. It reads a checkpoint's names and shapes (`checkpoint.py`), recognises its layout (`formats/`,
one module a publisher), infers the configuration (`infer.py`), accounts for every tensor (`layout.py`) and adapts them
to the requested size and classes (`adapt.py`). Only then are the numbers read, once, into a model that was never
initialised. `catalog.py` lists the published weights, and `download.py` fetches them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitkit.system.lazy import importer

if TYPE_CHECKING:
    from vitkit.weights.loading import inspect, load, locate

__all__ = ["inspect", "load", "locate"]

__getattr__ = importer(__name__, dict.fromkeys(__all__, "loading"))
