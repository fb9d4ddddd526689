"""One function gives the headline figure of an evaluation, with what its reader must know."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vitkit.errors import VitkitError
from vitkit.evaluation import Evaluation, all_figures, counted_part, describe, headline_of, value_of

MAIN: dict[str, Any] = {"accuracy": 0.25, "images": 4, "intervals_95": {"accuracy": [0.1, 0.5]}, "split": "test"}


def evaluation(split: str, right: int, wrong: int) -> Evaluation:
    """The first images are right, the others wrong."""
    labels = np.array([0] * right + [1] * wrong)
    probabilities = np.tile(np.array([[0.8, 0.2]], np.float32), (right + wrong, 1))
    return Evaluation(split, ("a", "b"), tuple(f"{i}.png" for i in range(right + wrong)), labels, probabilities)


def kinds(numbers: dict[str, Any]) -> list[str]:
    return [caveat.kind for caveat in headline_of(numbers).caveats]


def test_images_that_the_weights_had_seen_do_not_count() -> None:
    own = evaluation("test", right=8, wrong=4)
    numbers = all_figures(own, {f"{i}.png": "train" for i in range(7)}, {})
    assert numbers["accuracy"] == pytest.approx(1 / 5) and numbers["with_seen"]["accuracy"] == pytest.approx(8 / 12)
    told = headline_of(numbers)
    assert (told.value, told.images, told.split) == (numbers["accuracy"], 5, "test")
    assert told.interval == tuple(numbers["intervals_95"]["accuracy"])
    assert numbers["headline"] == told.to_dict()
    assert told.words == "accuracy 0.2000 on 5 test images (without 7 that the weights had seen; with them 0.6667)"
    assert counted_part(own, numbers).paths == own.paths[7:]
    assert sum(row["support"] for row in numbers["per_class"].values()) == 5
    said = describe(numbers)
    assert said is not None and "7 of 12 images had been seen" in said and "on 5 images, with them 0.6667" in said


def test_where_all_were_seen_there_is_no_figure() -> None:
    own = evaluation("test", right=8, wrong=4)
    numbers = all_figures(own, dict.fromkeys(own.paths, "val"), {})
    assert numbers["accuracy"] is numbers["balanced_accuracy"] is numbers["loss"] is None
    assert (numbers["without_seen"], numbers["with_seen"]["accuracy"]) == (None, pytest.approx(8 / 12))
    told = headline_of(numbers)
    assert (told.value, told.interval, told.images) == (None, None, 0)
    text = "no accuracy can be given: the weights had seen all 12 test images; with them 0.6667"
    with pytest.raises(VitkitError, match=text):
        value_of(told)


def test_a_figure_of_training_images_is_of_all_and_says_so() -> None:
    own = evaluation("train", right=8, wrong=4)
    numbers = all_figures(own, dict.fromkeys(own.paths, "train"), {})
    assert (numbers["accuracy"], numbers["images"]) == (pytest.approx(8 / 12), 12)
    assert kinds(numbers) == ["trained_on"]


def test_what_earlier_versions_wrote_is_read_without_what_was_seen() -> None:
    """Their main figures are of all images."""
    seen = {"images": 36, "trained_on": 36, "chosen_by": 0, "paths": []}
    old = {"accuracy": 0.9, "images": 40, "split": "test", "intervals_95": {"accuracy": [0.7, 0.95]}, "seen": seen}
    told = headline_of({**old, "without_seen": MAIN})
    assert (told.value, told.interval, told.images) == (0.25, (0.1, 0.5), 4)
    assert told.caveats[0].text == "without 36 that the weights had seen; with them 0.9000"
    assert headline_of({**old, "without_seen": None}).value is None
    for seen in (None, {"images": 0, "paths": []}):
        assert headline_of({**old, "seen": seen}).value == 0.9


def test_every_caveat_is_told() -> None:
    numbers = {
        **MAIN,
        "split": "val",
        "task": "multi",
        "chosen_on": ["epoch by val_acc"],
        "zero_shot": ["a {}"],
        "precision": "bfloat16",
    }
    assert kinds(numbers) == ["chosen_on", "zero_shot", "precision"]
    assert headline_of(numbers).words == (
        "exact match 0.2500 on 4 val images (validation, flattered by selection: chosen on these images: epoch by "
        "val_acc; zero-shot: by the class names alone; computed in bfloat16)"
    )
    assert kinds({**MAIN, "precision": "float32", "chosen_on": []}) == []


def test_folds_have_their_mean_and_an_interval_within_0_and_1() -> None:
    folds = [{**MAIN, "accuracy": value} for value in (0.9, 1.0)]
    told = headline_of({"accuracy": {"mean": 0.95, "margin_95": 0.6}, "folds": folds})
    assert (told.value, told.interval, told.images, told.folds) == (0.95, (pytest.approx(0.35), 1.0), 8, 2)
    told = headline_of({"accuracy": {"mean": 0.95, "interval_95": [0.8, 0.99]}, "folds": folds})
    assert told.interval == (0.8, 0.99) and told.caveats == ()


def test_figures_of_folds_are_not_those_of_the_final_model() -> None:
    folds = [{**MAIN, "accuracy": 0.9}] * 2
    numbers = {"accuracy": {"mean": 0.9, "interval_95": [0.8, 0.99]}, "folds": folds, "final": {"images": 12}}
    headline = headline_of(numbers)
    assert [caveat.kind for caveat in headline.caveats] == ["of_folds"]
    assert "(of the folds' models; the final model was trained on all 12 images" in headline.words
    assert headline.to_dict()["caveats"][0]["text"] == headline.caveats[0].text
