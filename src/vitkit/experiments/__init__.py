"""Compare models over many trainings.

Open `compare.py` first: it trains several models on the same images and tests which is better (`statistics.py`).
`comparison_plan.py` plans the trainings, and `comparison_runs.py` runs them. `lab/` repeats experiments of the paper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitkit.system import lazily

if TYPE_CHECKING:
    from vitkit.experiments.comparison_figures import RunPredictions, findings_of, verdict
    from vitkit.experiments.comparison_plan import ComparisonJob, Plan
    from vitkit.experiments.comparison_table import HEADINGS, cells
    from vitkit.experiments.comparison_images import ComparisonImages, subject_of
    from vitkit.experiments.lab import Ablation, Measurement, model_variant, summary_of, variant_fields
    from vitkit.experiments.lab.ablations import EXPERIMENTS, FEW_SHOT
    from vitkit.experiments.lab.cost import training_flops
    from vitkit.experiments.lab.data_size import split_by_class
    from vitkit.experiments.lab.lab import base_config, base_fields, claims_of, pairs_against
    from vitkit.experiments.statistics import LEVEL, Difference, Family
else:
    __getattr__ = lazily(__name__)
