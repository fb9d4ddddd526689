"""Compare models over many trainings, and predict the time and memory of a training.

Open `compare.py` first: it trains several models on the same images and tests which is better (`statistics.py`).
`comparison_plan.py` plans the trainings, and `comparison_runs.py` runs them. `lab/` repeats experiments of the paper.
`training_plan.py` and `footprint.py` predict time and memory without training.
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
        "footprint": "Footprint Ledger bytes_of materialise rehearse rehearse_step",
        "judging": "JudgingImages subject_of",
        "lab.ablations": "EXPERIMENTS FEW_SHOT trend_with_depth",
        "lab.cost": "fastest_of",
        "lab.data_size": "Transfer changes_in_words halve",
        "lab": "Ablation LabResult Measurement of_model summary_of",
        "lab.lab": "LabList base_config base_fields claims_of pairs_against variant_fields",
        "statistics": "Difference Family LEVEL",
        "comparison_request": "GRID STRESSES stresses_of",
        "training_plan": "job_of memory_of most_that_fit passes",
    },
)
