"""Metrics of classifiers on labelled images.

Open `evaluator.py` first: it runs a classifier on images and returns an `Evaluation` (`metrics.py`). `figures.py`
computes the content of evaluation.json. `registry.py` lists the figures, and `headline.py` chooses the figure to quote.
`label_errors.py` finds labels that are likely wrong. No module in this package writes models or pages.
"""

from __future__ import annotations

from vitkit.system import public

__all__, __getattr__ = public(
    __name__,
    {
        "calibration": "Calibration Reliability calibrate fit_temperature log_odds most_rise to_probabilities",
        "evaluator": "evaluate",
        "figures": (
            "Gain all_figures at_temperature calibration_rise chosen_on counted_part describe for_prior gain is_right "
            "operating_points rank_areas tta_figures tta_lines"
        ),
        "headline": "UNRECORDED Headline describe_labels headline_of value_of",
        "intervals": "TAIL Interval Units fold_intervals loss_bounds macro_f1_interval mean_interval",
        "label_choice": "PER_CLASS choose_next",
        "label_errors": (
            "LabelError LabelNoise find_suspects from_features from_predictions in_words probe_out_of_fold summary "
            "write_label_errors"
        ),
        "linear_models": "regress",
        "metrics": (
            "Evaluation MultiEvaluation average_precisions best_thresholds class_curves cross_fitted grouped "
            "mean_average_precision pooled"
        ),
        "drift": "DetectableRise DriftTest Sample detectable_rise drift_tests shares_of",
        "promises": "trust_figures trust_lines",
    },
)
