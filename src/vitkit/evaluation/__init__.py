"""Metrics of classifiers on labelled images.

Open `evaluator.py` first: it runs a classifier on images and returns an `Evaluation` (`metrics.py`). `figures.py`
computes the content of evaluation.json. `registry.py` lists the figures, and `headline.py` chooses the figure to quote.
`label_errors.py` finds labels that are likely wrong. No module in this package writes models or pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitkit.system import lazily

if TYPE_CHECKING:
    from vitkit.evaluation.calibration import Calibration, Reliability, calibrate, log_odds
    from vitkit.evaluation.calibration import to_probabilities
    from vitkit.evaluation.drift import DriftTest, Sample, class_shares, drift_tests
    from vitkit.evaluation.evaluator import evaluate
    from vitkit.evaluation.figures import all_figures, chosen_on, counted_part, describe, gain
    from vitkit.evaluation.figures import seen_to_exclude, tta_figures, tta_lines
    from vitkit.evaluation.headline import BY_FOLDS, UNRECORDED, Headline, describe_labels, headline_of
    from vitkit.evaluation.headline import images_in_words, value_of, verdict_of
    from vitkit.evaluation.intervals import TAIL, Interval, Units, fold_intervals, loss_bounds, macro_f1_bounds
    from vitkit.evaluation.intervals import mean_interval
    from vitkit.evaluation.label_choice import PER_CLASS, choose_next
    from vitkit.evaluation.label_errors import LabelError, LabelNoise, find_suspects, from_features, from_predictions
    from vitkit.evaluation.label_errors import describe_errors, probe_out_of_fold, summary, write_label_errors
    from vitkit.evaluation.linear_models import regress
    from vitkit.evaluation.metrics import Evaluation, MultiEvaluation, average_precisions, best_thresholds, class_curves
    from vitkit.evaluation.metrics import grouped, mean_average_precision, pooled
    from vitkit.evaluation.promises import trust_figures, trust_lines
    from vitkit.evaluation.registry import read_figures
else:
    __getattr__ = lazily(__name__)
