"""What was chosen on the images of a figure is said beside it, and thresholds can be cross-fitted."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax

from vitkit.data import MULTI_LABEL, SINGLE_LABEL
from vitkit.evaluation import (
    Evaluation,
    MultiEvaluation,
    best_thresholds,
    calibration_rise,
    chosen_on,
    cross_fitted,
    most_rise,
)
from vitkit.evaluation.figures import figures
from vitkit.reporting import confidence, headline


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"method": "probe", "monitor": "val_acc"}, ("penalty by log loss",)),
        ({"method": "scratch", "monitor": "val_acc", "keep": "best"}, ("epoch by val_acc",)),
        ({"method": "scratch", "monitor": "val_loss", "keep": "last"}, ()),
        (
            {"method": "full", "monitor": "val_loss", "keep": "best", "lp_ft": True},
            ("penalty of the first head by log loss", "epoch by val_loss"),
        ),
    ],
)
def test_what_chose_is_named(fields: dict[str, object], expected: tuple[str, ...]) -> None:
    assert chosen_on("val", fields, SINGLE_LABEL) == (*expected, "temperature by log loss")
    assert chosen_on("val", fields, MULTI_LABEL) == (*expected, "thresholds by F1")
    assert chosen_on("test", fields, SINGLE_LABEL) == chosen_on("all", fields, MULTI_LABEL) == ()


def random_labels(seed: int, images: int = 150, classes: int = 8) -> MultiEvaluation:
    rng = np.random.default_rng(seed)
    labels = (rng.random((images, classes)) < 0.1).astype(np.int64)
    scores = rng.random((images, classes)).astype(np.float32)
    names, paths = tuple("abcdefgh"), tuple(map(str, range(images)))
    thresholds = best_thresholds(labels, scores)
    return MultiEvaluation("val", names, paths, labels, scores, thresholds=thresholds, chosen=("thresholds by F1",))


def test_cross_fitted_thresholds_report_chance_on_random_labels() -> None:
    reported, fitted, fresh = [], [], []
    for seed in range(20):
        own = random_labels(seed)
        reported.append(own.macro_f1)
        fitted.append(cross_fitted(own)["macro_f1"])
        fresh.append(replace(random_labels(seed + 100), thresholds=own.thresholds).macro_f1)
    error = float(np.std(np.subtract(fitted, fresh), ddof=1)) / 20**0.5
    assert np.mean(reported) - np.mean(fresh) > 4 * error
    assert np.mean(fitted) - np.mean(fresh) < 2.1 * error, "no more than fresh images give"


def test_json_and_page_say_what_was_chosen_on_the_images() -> None:
    own = random_labels(0)
    numbers = json.loads(json.dumps(figures(own)))
    assert next(iter(numbers)) == "accuracy"
    assert numbers["chosen_on"] == ["thresholds by F1"]
    assert numbers["cross_fitted"]["macro_f1"] < numbers["macro_f1"]
    assert "validation, flattered by selection: chosen on these images: thresholds by F1" in headline(figures(own))
    single = Evaluation("test", ("a", "b"), ("1",), np.array([0]), np.array([[0.9, 0.1]], np.float32))
    assert figures(single)["chosen_on"] == []


def test_a_rise_of_the_calibration_error_is_measured_against_chance() -> None:
    logits = np.random.default_rng(0).normal(0, 2, (200, 3))
    now, before, far = (softmax(logits / t, axis=1).max(axis=1) for t in (1.05, 1.0, 0.25))
    assert 0 < most_rise(now, before) < 0.05
    assert most_rise(now, far) < 0, "far from right, it cannot rise"


def test_the_report_says_why_the_calibration_error_rose_and_only_then() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (300, 3))
    told = {}
    for temperature in (0.5, 1.0, 2.0):
        probabilities = softmax(logits / temperature, axis=1)
        labels = np.array([rng.choice(3, p=softmax(row)) for row in logits])  # right at temperature 1
        paths = tuple(map(str, range(300)))
        own = Evaluation(
            "test", ("a", "b", "c"), paths, labels, probabilities.astype(np.float32), temperature=temperature
        )
        told[temperature] = calibration_rise(own, figures(own)), "".join(confidence(own, figures(own), None))
    assert told[1.0][0] is None and "increased" not in told[1.0][1]
    for temperature in (0.5, 2.0):
        rise, page = told[temperature]
        assert rise is not None and rise.by > 0 and not rise.is_chance
        assert "The temperature increased the calibration error" in page and "more than chance" in page
