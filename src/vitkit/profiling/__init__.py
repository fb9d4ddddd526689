"""The cost of a model: parameters, multiply-accumulates, memory and time.

Open `model_info.py` first: `describe` counts the cost of a configuration without allocating its weights. `speed`
compares the speeds of implementations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitkit.system import lazily

if TYPE_CHECKING:
    from vitkit.profiling.model_info import ModelInfo, describe
    from vitkit.profiling.speed import Contender, Quartiles, Speed, Timing, compare, drift_of
    from vitkit.profiling.speed import interleave, open_backends, random_model
    from vitkit.profiling.speed import row, stopwatch_for, wall_seconds
else:
    __getattr__ = lazily(__name__)
