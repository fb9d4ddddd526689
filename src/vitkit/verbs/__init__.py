"""The verbs of vitkit, one module each.

A verb is both a function such as `vitkit.train` and a command such as `vitkit train`. Open `train.py` or `predict.py`
first. The function of a verb checks its arguments, opens a model (`inputs.py`), calls the packages that do the work,
and returns a `Result` (`result.py`). The command line prints the result. `cli` creates the commands from the signatures
and docstrings of these functions.
"""

from __future__ import annotations

from vitkit.system import public

__all__, __getattr__ = public(
    __name__,
    {
        "bench": "chart",
        "inputs": "named_classes open_model",
        "pretrain": "PretrainingRun",
        "train": "TrainingRun",
    },
)
