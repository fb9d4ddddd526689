"""The verbs: one function for each command, with the same parameters, defaults and decisions, and a result.

`vitkit.train`, `vitkit.evaluate` and so on are these functions. The command line makes its flags and its help from
their signatures and docstrings, calls them, and prints their results. Open `predict.py` first, as an example;
`inputs.py` has what verbs have in common, and `result.py` the base class of their results.
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
