"""Metrics of classifiers on labelled images.

Open `evaluator.py` first: it runs a classifier on images and returns an `Evaluation` (`metrics.py`, or `multilabel.py`
for several classes per image). `figures.py` makes evaluation.json of it, `registry.py` lists the figures, and
`headline.py` chooses the one to quote. `label_errors.py` looks for wrong labels. Nothing in this package writes models
or pages.
"""
