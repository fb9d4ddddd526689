"""Compare models over many trainings.

Open `compare.py` first: it trains several models on the same images and tests which is better (`statistics.py`).
`comparison_plan.py` plans the trainings, and `comparison_runs.py` runs them. `lab/` repeats experiments of the paper.
"""

from __future__ import annotations

from vitkit.system import public

__all__, __getattr__ = public(
    __name__,
    {
        "compare": "Comparison HEADINGS cells",
        "comparison_figures": "CHANGES Judged at_one_size changed findings_of variants verdict",
        "comparison_plan": "ComparisonJob Plan",
        "comparison_suite": "ComparisonSuite",
        "judging": "JudgingImages subject_of",
        "lab.ablations": "EXPERIMENTS FEW_SHOT trend_with_depth",
        "lab.cost": "fastest_of training_flops",
        "lab.data_size": "Transfer changes_in_words halve",
        "lab": "Ablation LabResult Measurement of_model summary_of",
        "lab.lab": "LabList base_config base_fields claims_of pairs_against variant_fields",
        "statistics": "Difference Family LEVEL",
        "comparison_request": "GRID STRESSES stresses_of",
    },
)
