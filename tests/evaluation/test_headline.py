"""One function gives the headline figure of an evaluation, with what its reader must know."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from refusals import refused
from vitkit.data import MULTI_LABEL, SINGLE_LABEL
from vitkit.data.doctor.examine import Finding, caveats_of, read_findings
from vitkit.evaluation import (
    UNRECORDED,
    Evaluation,
    MultiEvaluation,
    all_figures,
    best_thresholds,
    chosen_on,
    counted_part,
    describe,
    headline_of,
    value_of,
    verdict_of,
)
from vitkit.evaluation.figures import figures
from vitkit.evaluation.headline import most_mixed_up
from vitkit.reporting.evaluation_report import headline
from vitkit.system.files import write_json
from vitkit.text.cells import interval_text
from vitkit.text.verdict import share_in_words

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
    for said in (f"0.2000 (95 %: {interval_text(told.interval)})", "without 7", "with them 0.6667", "'b' gives 0.8000"):
        assert said in told.words
    assert counted_part(own, numbers).paths == own.paths[7:]
    assert sum(row["support"] for row in numbers["per_class"].values()) == 5
    assert "on 5 images, with them 0.6667" in (describe(numbers) or "")


def test_where_all_were_seen_there_is_no_figure_unless_it_is_of_training_images() -> None:
    own = evaluation("test", right=8, wrong=4)
    numbers = all_figures(own, dict.fromkeys(own.paths, "val"), {})
    assert numbers["accuracy"] is numbers["balanced_accuracy"] is numbers["loss"] is None
    assert (numbers["without_seen"], numbers["with_seen"]["accuracy"]) == (None, pytest.approx(8 / 12))
    told = headline_of(numbers)
    assert (told.value, told.interval, told.images) == (None, None, 0)
    with refused("evaluation.images-seen", "all 12 test images", "0.6667"):
        value_of(told)
    own = evaluation("train", right=8, wrong=4)
    numbers = all_figures(own, dict.fromkeys(own.paths, "train"), {})
    assert (numbers["accuracy"], numbers["images"]) == (pytest.approx(8 / 12), 12)
    assert kinds(numbers) == ["trained_on", "baseline"]


def test_every_caveat_is_told() -> None:
    chosen = {"split": "val", "chosen_on": ["epoch by val_acc"]}
    numbers = {**MAIN, **chosen, "zero_shot": ["a {}"], "precision": "bfloat16"}
    assert kinds(numbers) == ["chosen_on", "zero_shot", "precision"]
    words = headline_of(numbers | {"task": "multi"}).words
    for told in ("exact match 0.2500", "on 4 val images", "flattered by selection", "epoch by val_acc", "bfloat16"):
        assert told in words
    assert kinds({**MAIN, "precision": "float32", "chosen_on": []}) == []


def test_folds_have_their_mean_and_an_interval_within_0_and_1() -> None:
    """Which is not that of the final model."""
    folds = [{**MAIN, "accuracy": value} for value in (0.9, 1.0)]
    numbers = {"accuracy": {"mean": 0.95, "interval_95": [0.8, 0.99]}, "folds": folds}
    told = headline_of(numbers)
    assert told.interval == (0.8, 0.99) and told.caveats == ()
    final = headline_of({**numbers, "final": {"images": 12}})
    assert [caveat.kind for caveat in final.caveats] == ["of_folds"]
    assert "12 images" in final.words


def test_the_accuracy_of_one_answer_is_that_over_all_folds_but_those_of_which_no_image_counts() -> None:
    folds = [all_figures(evaluation("test", right, wrong), {}, {}) for right, wrong in ((52, 48), (49, 51))]
    own = evaluation("test", 60, 40)
    folds.append(all_figures(own, dict.fromkeys(own.paths, "train"), {}))
    told = headline_of({"accuracy": {"mean": 0.505, "interval_95": [0.45, 0.56]}, "folds": folds})
    assert "always answering 'a' gives 0.5050" in told.words


def test_what_weights_had_seen_without_a_record_is_unknown() -> None:
    own = evaluation("test", right=8, wrong=4)
    for seen in (None, {}):
        numbers = all_figures(own, seen, {}, doubt=UNRECORDED)
        assert numbers["seen"] is None and kinds(numbers)[0] == "unrecorded"
    numbers = all_figures(own, {"0.png": "train"}, {}, doubt=UNRECORDED)
    assert numbers["seen"]["images"] == 1 and kinds(numbers)[:2] == ["seen", "unrecorded"]
    assert kinds(all_figures(own, {}, {})) == ["baseline"]


def test_the_accuracy_of_one_answer_is_told_where_it_matters() -> None:
    """The model of `evaluation` always answers a; one that tells even classes apart needs no comparison."""
    for right, wrong in ((95, 5), (50, 50)):
        numbers = all_figures(evaluation("test", right, wrong), {}, {})
        assert numbers["baseline"] == {"label": "a", "accuracy": right / 100}
        assert f"always answering 'a' gives {right / 100:.4f}" in headline_of(numbers).words
    labels = np.arange(40) % 2
    paths = tuple(f"{i}.png" for i in range(40))
    own = Evaluation("test", ("a", "b"), paths, labels, np.eye(2, dtype=np.float32)[labels])
    assert kinds(all_figures(own, {}, {})) == []


def test_groups_and_unreadable_images_are_told() -> None:
    own = evaluation("test", right=78, wrong=2)
    own = replace(own, groups=(0,) * 40 + (1,) * 40, unreadable={"x.png": "truncated", "gone.png": "no such file"})
    changed = {"images": 1, "changed": [], "missing": ["gone.png"], "text": "1 is gone"}
    numbers = all_figures(own, {}, {}, {"changed": changed})
    told = headline_of(numbers)
    assert told.interval is not None and told.interval[0] < 0.2
    assert "only 2 of them independent" in told.words and "without 1 that cannot be read" in told.words
    folds = headline_of({"accuracy": {"mean": 0.9, "interval_95": [0.1, 1.0]}, "folds": [numbers, numbers]})
    assert "only 4 of them independent" in folds.words and "always answering 'a' gives 0.9750" in folds.words


def test_problems_of_the_data_are_caveats_except_settled_ones(tmp_path: Path) -> None:
    findings = [
        Finding("problem", "2 pictures are in more than one class: a.png = b.png"),
        Finding("problem", "3 pictures are in more than one split: c.png = d.png", is_settled=True),
        Finding("warning", "1 class has fewer than 10 images: a"),
    ]
    write_json(tmp_path / "findings.json", [asdict(finding) for finding in findings])
    assert read_findings(tmp_path / "findings.json") == findings
    numbers = all_figures(evaluation("val", 10, 0), {}, {}, {"problems": caveats_of(findings)})
    assert "(2 pictures are in more than one class; always" in headline_of(numbers).words


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


def random_labels(seed: int, images: int = 150, classes: int = 4) -> MultiEvaluation:
    rng = np.random.default_rng(seed)
    labels = (rng.random((images, classes)) < 0.1).astype(np.int64)
    scores = rng.random((images, classes)).astype(np.float32)
    names, paths = tuple("abcdefgh"[:classes]), tuple(map(str, range(images)))
    thresholds = best_thresholds(labels, scores)
    return MultiEvaluation("val", names, paths, labels, scores, thresholds=thresholds, chosen=("thresholds by F1",))


def test_json_and_page_say_what_was_chosen_on_the_images() -> None:
    own = random_labels(0)
    numbers = json.loads(json.dumps(figures(own)))
    assert next(iter(numbers)) == "accuracy"
    assert numbers["chosen_on"] == ["thresholds by F1"]
    assert "flattered by selection" in headline(figures(own))[1]
    single = Evaluation("test", ("a", "b"), ("1",), np.array([0]), np.array([[0.9, 0.1]], np.float32))
    assert figures(single)["chosen_on"] == []


@given(st.integers(1, 20_000).flatmap(lambda count: st.tuples(st.integers(0, count), st.just(count))))
@example((299, 300))
@example((1, 1000))
@example((1, 49))
def test_a_share_in_words_is_never_larger_than_it_is(counts: tuple[int, int]) -> None:
    right, count = counts
    words = share_in_words(right / count, count)
    if words.startswith("all "):
        assert right == count
    elif words.startswith("none of "):
        assert right == 0
    else:
        said, of = (int(number.replace(",", "")) for number in words.replace("every ", "").split(" of "))
        assert 0 <= said < of
        assert said * count <= right * of, words
        assert right / count - said / of <= max(0.15 * min(right, count - right) / count, 0.01) + 1e-9, words


PAIRS = [{"true": "a", "predicted": "b", "count": 3}, {"true": "b", "predicted": "a", "count": 2}]
SEEN: dict[str, Any] = {"seen": {"images": 300}, "without_seen": None, "with_seen": {"accuracy": 0.953}}


@pytest.mark.parametrize(
    ("more", "level", "told"),
    [
        ({}, "good", "19 of every 20"),
        ({"confused": PAIRS}, "good", "a and b"),
        ({"task": "multi"}, "good", "All classes right for 19 of every 20"),
        ({"intervals_95": {"accuracy": [0.7, 0.97]}}, "warning", "19 of every 20"),
        ({"chosen_on": ["epoch"]}, "warning", "19 of every 20"),
        ({"split": "train"}, "problem", "it learned from these"),
        ({"problems": ["two labels"]}, "problem", "a problem to solve"),
        ({"baseline": {"label": "a", "accuracy": 0.94}}, "problem", "always answering 'a'"),
        ({**SEEN, "accuracy": None}, "problem", "had seen all of these"),
    ],
)
def test_the_verdict_says_how_often_it_is_right_and_whether_to_rely_on_that(
    more: dict[str, Any], level: str, told: str
) -> None:
    numbers = {"accuracy": 0.953, "images": 300, "split": "test", "intervals_95": {"accuracy": [0.92, 0.97]}, **more}
    verdict = verdict_of(numbers)
    assert verdict.level == level and told in verdict.sentence


def test_two_classes_are_named_if_they_account_for_many_mistakes_of_images_that_count() -> None:
    numbers: dict[str, Any] = {"accuracy": 0.953, "images": 300, "split": "test", "confused": PAIRS}
    assert most_mixed_up(numbers) == (("a", "b"), 5, 14)
    assert most_mixed_up({**numbers, "accuracy": 0.9}) is None, "5 of 30 mistakes"
    assert most_mixed_up({**numbers, "confused": []}) is None
    assert most_mixed_up({**numbers, "confused": [{**PAIRS[0], "count": 1}]}) is None
    assert most_mixed_up({**numbers, **SEEN, "accuracy": None}) is None
