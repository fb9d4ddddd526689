"""Figures of many images and classes: each as its definition has it, in one pass and without a second table."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from vitkit.evaluation import (
    Evaluation,
    LabelNoise,
    Units,
    loss_bounds,
    macro_f1_bounds,
    mean_interval,
)
from vitkit.evaluation.figures import figures
from vitkit.evaluation.intervals import _quantile
from vitkit.reporting import plots
from vitkit.system import empty_array

TINY = np.finfo(np.float32).tiny


def draw_evaluation(images: int, classes: int, seed: int = 0, sharpness: float = 2.0) -> Evaluation:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, images)
    logits = rng.normal(size=(images, classes))
    logits[np.arange(images), labels] += 1
    probabilities = softmax(sharpness * logits, axis=1).astype(np.float32)
    names = tuple(f"class {i}" for i in range(classes))
    return Evaluation("test", names, tuple(f"{i}.png" for i in range(images)), labels, probabilities, temperature=1.5)


drawn = st.builds(draw_evaluation, st.integers(2, 40), st.integers(2, 8), st.integers(0, 2**32 - 1))


def test_more_classes_than_a_picture_has_rows_are_counted_several_to_a_row() -> None:
    own = draw_evaluation(200, 7)
    whole, coarse = own.confusion(), own.confusion(4)
    assert coarse.shape == (4, 4)
    for i, j in np.ndindex(4, 4):
        assert coarse[i, j] == whole[2 * i : 2 * i + 2, 2 * j : 2 * j + 2].sum()
    assert (own.confusion(7) == whole).all()


@settings(max_examples=10)
@given(drawn)
def test_labels_are_doubted_alike_however_many_rows_are_computed_at_a_time(own: Evaluation) -> None:
    whole = LabelNoise.of(own.probabilities, own.labels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitkit.evaluation.calibration._NUMBERS", 8)
        few = LabelNoise.of(own.probabilities, own.labels)
    assert few.p == pytest.approx(whole.p, abs=1e-3)
    assert few.wrong == pytest.approx(whole.wrong, abs=1e-3)
    assert ((whole.wrong >= 0) & (whole.wrong <= 1)).all()
    assert (whole.suggested != own.labels).all()


@settings(max_examples=30)
@given(drawn)
def test_the_interval_of_macro_f1_is_that_of_indicators_of_every_class(own: Evaluation) -> None:
    units = Units.of(len(own.labels), None)
    there = np.unique(own.labels)
    ends = []
    for classes, is_upper in ((np.union1d(there, own.predicted), False), (there, True)):
        k, part = len(classes), units.imagined / len(classes)
        is_true, is_said = (each[:, None] == classes for each in (own.labels, own.predicted))  # (n, k)
        either = is_true.sum(axis=0) + is_said.sum(axis=0) + 2 * part
        f1 = 2 * ((is_true & is_said).sum(axis=0) + part * is_upper) / either
        influence = ((2.0 * (is_true & is_said) - f1 * is_true - f1 * is_said) / either).sum(axis=1) / k
        imagined, mean = float((2 * part * (is_upper - f1) / either).sum()) / k, float(f1.mean())
        spread = float((1 / (is_true.sum(axis=0) + part)).sum()) / k**2
        least = units.effect(own.labels == own.predicted) * mean * (1 - mean) * spread
        ends.append(_quantile(mean, units.variance(influence, imagined, least), 1.0, is_upper=is_upper))
    assert macro_f1_bounds(own, units) == pytest.approx(ends, abs=1e-9)


@settings(max_examples=30)
@given(drawn)
def test_the_interval_of_the_log_loss_is_that_of_every_logarithm(own: Evaluation) -> None:
    losses = -np.log(np.maximum(own.probabilities.astype(np.float64), TINY))
    true = losses[np.arange(len(own.labels)), own.labels]
    most = max(true.max(), np.quantile(np.sort(losses, axis=1)[:, 1], 0.9))
    units = Units.of(len(own.labels), None)
    assert loss_bounds(own, units) == mean_interval(true, most, units)


def test_rows_are_computed_alike_in_any_number_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    own = draw_evaluation(50, 6)

    def all_of_them() -> list[Any]:
        rows = [own.briers, own.is_among(3), own.confidence_untempered]
        return [figures(own), *(each.tolist() for each in rows)]

    whole = all_of_them()
    for module in ("calibration", "metrics"):
        monkeypatch.setattr(f"vitkit.evaluation.{module}._NUMBERS", 20)
        assert all_of_them() == whole


@pytest.mark.usefixtures("drawn_pictures")
def test_ten_thousand_classes_are_one_outline() -> None:
    names = [f"class {i}" for i in range(10_000)]
    axis = plots.class_counts({"train": dict.fromkeys(names, 3), "test": dict.fromkeys(names, 2)}, names).axes[0]
    assert len(axis.patches) + len(axis.texts) + len(axis.collections) == 2


def test_a_large_table_is_a_file_without_a_name_or_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("a file where the folder should be", encoding="utf-8")
    for name, is_stored in (("cache", True), ("file", False)):
        monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / name))
        table = empty_array((3, 2**25))  # 384 MiB
        assert table.shape == (3, 2**25) and table.dtype == np.float32
        table[:, -1] = 1, 2, 3
        assert table[:, -1].tolist() == [1, 2, 3]
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        assert any(str(tmp_path) in line and "(deleted)" in line for line in maps) == is_stored
        del table
    assert list((tmp_path / "cache").iterdir()) == []
