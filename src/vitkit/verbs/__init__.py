"""The verbs of vitkit, one module each.

A verb is both a function such as `vitkit.train` and a command such as `vitkit train`. Open `train.py` or `predict.py`
first. The function of a verb checks its arguments, opens a model (`inputs.py`), calls the packages that do the work,
and returns a `Result` (`result.py`). The command line prints the result. `cli` creates the commands from the signatures
and docstrings of these functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitkit.system import lazily

if TYPE_CHECKING:
    from vitkit.verbs.bench import chart
    from vitkit.verbs.inputs import check_data, named_classes, open_model
    from vitkit.verbs.pretrain import PretrainingRun
    from vitkit.verbs.options import Compute
    from vitkit.verbs.result import Notes, Result, csv_table
    from vitkit.verbs.train import TrainingRun
else:
    __getattr__ = lazily(__name__)
