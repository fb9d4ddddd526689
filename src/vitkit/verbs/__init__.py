"""The verbs of vitkit, one function each: they are `vitkit.train`, `vitkit.evaluate` and so on, and the commands.

Open `train.py` or `predict.py` first. A function checks its arguments, opens a model (`inputs.py`), calls the rooms
that do the work, and returns a `Result` (`result.py`) that the command line prints. Commands are made from the
signatures and docstrings in `cli/`.
"""

from __future__ import annotations

from vitkit.system.lazy import public

__all__, __getattr__ = public(
    __name__,
    {
        "bench": "chart",
        "inputs": "open_model",
        "pretrain": "PretrainingRun",
        "train": "TrainingRun",
        "words": "named_classes",
    },
)
