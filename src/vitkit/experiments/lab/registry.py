"""The experiments, one row each: adding one is a module and a row. Nothing here loads torch.

The command line, its help and the documentation derive from this table.
"""

from __future__ import annotations

from vitkit.experiments.lab import head, hybrid, norm, pooling, position, pretraining, regularisation, resolution, shape
from vitkit.experiments.lab.attention_distance import EXPERIMENT as ATTENTION_DISTANCE
from vitkit.experiments.lab.experiment import Experiment
from vitkit.experiments.lab.few_shot import EXPERIMENT as FEW_SHOT

EXPERIMENTS: dict[str, Experiment] = {
    own.name: own
    for own in (
        position.EXPERIMENT,
        pooling.EXPERIMENT,
        shape.EXPERIMENT,
        norm.EXPERIMENT,
        regularisation.EXPERIMENT,
        head.EXPERIMENT,
        hybrid.EXPERIMENT,
        resolution.EXPERIMENT,
        pretraining.EXPERIMENT,
        FEW_SHOT,
        ATTENTION_DISTANCE,
    )
}


def names() -> tuple[str, ...]:
    """As they are asked for."""
    return tuple(EXPERIMENTS)
