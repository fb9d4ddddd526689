"""Doubtful labels as a table: planted ones come first."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import torch

from vitkit.data.sources import ImageTable
from vitkit.evaluation.doubts import Doubt, from_features, from_predictions, write_doubts
from vitkit.evaluation.metrics import Evaluation


def test_planted_label_errors_come_first() -> None:
    rng = np.random.default_rng(0)
    true = np.arange(200) % 4
    features = torch.from_numpy((np.eye(4)[true] * 3 + rng.normal(0, 1, (200, 4))).astype(np.float32))
    labels, wrong = true.copy(), [3, 50, 77, 120, 199]
    labels[wrong] = (labels[wrong] + 1) % 4
    table = ImageTable("t", Path(), tuple("abcd"), tuple(f"{i}.png" for i in range(200)), tuple(labels), (None,) * 200)
    doubts = from_features(table, features, torch.from_numpy(labels))
    first = {doubt.path for doubt in doubts[:8]}
    assert len(first & {f"{i}.png" for i in wrong}) >= 4
    assert [doubt.score for doubt in doubts] == sorted((doubt.score for doubt in doubts), reverse=True)
    named = next(doubt for doubt in doubts if doubt.path == "3.png")
    assert (named.label, named.suggested) == ("abcd"[labels[3]], "abcd"[true[3]])


def test_predictions_that_differ_are_doubts_the_surest_first() -> None:
    rows = np.array([[0.9, 0.1], [0.4, 0.6], [0.05, 0.95]], np.float32)
    own = Evaluation("val", ("a", "b"), ("x", "y", "z"), np.array([0, 0, 0]), rows)
    other = Evaluation("test", ("a", "b"), ("w",), np.array([1]), np.array([[0.75, 0.25]], np.float32))
    doubts = from_predictions([own, other])
    assert [doubt[:3] for doubt in doubts] == [("z", "a", "b"), ("w", "b", "a"), ("y", "a", "b")]
    np.testing.assert_allclose([doubt.score for doubt in doubts], [0.9, 0.5, 0.2], atol=1e-6)


def test_the_file_can_be_read_back_whatever_the_names(tmp_path: Path) -> None:
    doubts = [Doubt('a "b",c.png', "cat; dog", "x\ny", 0.5), Doubt("d.png", "ö", "e", 0.25)]
    write_doubts(tmp_path / "d.csv", doubts)
    with (tmp_path / "d.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["path", "label", "suggested", "score"]
    assert [Doubt(*row[:3], float(row[3])) for row in rows[1:]] == doubts


def test_mistakes_that_the_probabilities_explain_are_no_doubts_and_labels_that_they_do_not_are() -> None:
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.full(5, 0.2), 400).astype(np.float32)
    labels = np.array([rng.choice(5, p=row / row.sum()) for row in rows.astype(np.float64)])
    own = Evaluation("test", tuple("abcde"), tuple(map(str, range(400))), labels, rows)
    assert len(own.mistakes(400)) > 60
    assert len(from_predictions([own])) <= 5
    sure = np.flatnonzero((rows.max(axis=1) > 0.9) & (rows.argmax(axis=1) == labels))[:12]
    wrong = labels.copy()
    wrong[sure] = rows[sure].argmin(axis=1)
    spoilt = Evaluation("test", own.classes, own.paths, wrong, rows)
    found = {doubt.path for doubt in from_predictions([spoilt])[:15]}
    assert len(found & set(map(str, sure))) >= 10
