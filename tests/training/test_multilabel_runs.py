"""Training where an image may have several classes, or none: every method, from a CSV to a saved model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import mannwhitneyu
from sklearn.linear_model import LogisticRegression

import runs
from once import once
from refusals import refused
from vitkit.data import read_source, split_from_file
from vitkit.evaluation import MultiEvaluation, best_thresholds, evaluate, regress
from vitkit.training import Recipe, binary_loss, complete, read_metrics, train
from vitkit.weights import load

CLASSES = ("blue", "green", "red")


@pytest.fixture(scope="module")
def data() -> Path:
    return runs.shared_overlaid()


@pytest.fixture(scope="module")
def scratch(data: Path) -> Path:
    return once("several", lambda place: train(quick(data, epochs=4), place))


def quick(data: Path, **fields: Any) -> Recipe:
    return Recipe.of(runs.quick_fields(**{"data": str(data), "lr": 2e-3, **fields}), "the test")


def assert_learned(folder: Path, data: Path) -> None:
    """Of all images those with a class get higher probabilities of it than those without, more than by chance."""
    outcome = evaluate(load(folder), read_source(data), "all")
    assert isinstance(outcome, MultiEvaluation)
    for has, probabilities in zip(outcome.labels.T == 1, outcome.probabilities.T, strict=True):
        test = mannwhitneyu(probabilities[has], probabilities[~has], alternative="greater")
        assert test.pvalue < 1e-3, test


def test_the_loss_is_pytorchs_on_every_head_and_smoothing_draws_targets_to_a_half() -> None:
    torch.manual_seed(0)
    heads, targets = torch.randn(2, 5, 3), torch.randint(0, 2, (5, 3)).float()
    each = [F.binary_cross_entropy(torch.sigmoid(own), targets) for own in heads]
    assert torch.isclose(binary_loss(list(heads), targets), sum(each) / 2)
    smooth = torch.where(targets == 1, 0.9, 0.1)
    wanted = F.binary_cross_entropy(torch.sigmoid(heads[0]), smooth)
    assert torch.isclose(binary_loss([heads[0]], targets, label_smoothing=0.2), wanted)


def test_a_weight_counts_for_the_images_that_have_the_class_alone() -> None:
    logits, targets = torch.tensor([[0.3, -1.0], [2.0, 0.5]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    p = torch.sigmoid(logits)
    wanted = -(3 * p[0, 0].log() + (1 - p[0, 1]).log() + (1 - p[1, 0]).log() + 0.5 * p[1, 1].log()) / 4
    assert torch.isclose(binary_loss([logits], targets, torch.tensor([3.0, 0.5])), wanted)


def test_the_closed_loop_head_is_scikit_learns_one_vs_rest_regression() -> None:
    rng, penalty = np.random.default_rng(0), 0.03
    x = rng.normal(size=(80, 6))
    y = (x @ rng.normal(size=(6, 3)) + rng.normal(size=(80, 3)) > 0).astype(float)
    start = torch.zeros(3, 6, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    weight, bias = regress(torch.from_numpy(x), torch.from_numpy(y), penalty, *start)
    for k in range(3):
        oracle = LogisticRegression(C=1 / (penalty * len(x)), tol=1e-8, max_iter=1000).fit(x, y[:, k])
        assert np.abs(weight[k].numpy() - oracle.coef_[0]).max() < 1e-3
        assert abs(bias[k].item() - oracle.intercept_[0]) < 1e-3


def test_a_run_learns_every_class_and_says_what_its_figures_are(data: Path, scratch: Path) -> None:
    rows = read_metrics(scratch / "metrics.csv")
    assert len(rows) == 4 and all({"val_loss", "val_acc", "val_map"} <= set(row) for row in rows)
    assert rows[-1]["val_loss"] < rows[0]["val_loss"]
    assert_learned(scratch, data)
    assert 0 < json.loads((scratch / "evaluation.json").read_text())["mean_average_precision"] <= 1
    classifier = load(scratch)
    assert classifier.task == "multi" and classifier.classes == CLASSES and classifier.temperature != 1
    table = split_from_file(scratch / "split.json").of_split("val")
    probabilities = np.stack([row for _, row in classifier.stream(table.file(i) for i in range(len(table)))])
    labels = np.array([table.set_targets()[table.labels[i]] for i in range(len(table))]) == 1
    assert classifier.thresholds == pytest.approx(best_thresholds(labels, probabilities), abs=1e-5)
    assert "predicts one class for all images" not in (scratch / "log.txt").read_text(encoding="utf-8")


@pytest.mark.usefixtures("no_pages")
@pytest.mark.parametrize(
    ("method", "fields"),
    [("probe", {}), ("full", {"mixup": 0.4, "cutmix": 0.5, "label_smoothing": 0.1, "balance": "loss"})],
)
def test_methods_learn_weights(data: Path, scratch: Path, tmp_path: Path, method: str, fields: dict[str, Any]) -> None:
    recipe = quick(data, method=method, weights=str(scratch), epochs=2, model=None, **fields)
    run = train(recipe, tmp_path / "run")
    classifier = load(run)
    assert classifier.task == "multi" and len(classifier.thresholds or ()) == 3
    assert_learned(run, data)
    assert "mean_average_precision" in json.loads((run / "evaluation.json").read_text())


@pytest.mark.usefixtures("no_pages")
def test_a_head_of_single_classes_starts_anew_from_multi_label_weights(scratch: Path, tmp_path: Path) -> None:
    recipe = quick(runs.shared_photos(), method="probe", max_images=12, weights=str(scratch), epochs=1, model=None)
    classifier = load(train(recipe, tmp_path / "run"))
    assert classifier.task == "single" and classifier.thresholds is None
    assert load(scratch, num_classes=5).task == "single"  # a new head has no thresholds yet


@pytest.mark.usefixtures("no_pages")
def test_a_single_class_is_learned_and_without_validation_images_its_threshold_is_a_half(tmp_path: Path) -> None:
    file = runs.overlaid(tmp_path / "data", 30)
    header, *rows = file.read_text().splitlines()
    own = [row.split(",")[0] + ("," + "red" * ("red" in row)) for row in rows]
    file.write_text("\n".join([header, *own]) + "\n")
    run = train(quick(file, epochs=3, split=(0.8, 0.0, 0.2)), tmp_path / "run")
    assert list(json.loads((run / "evaluation.json").read_text())["per_class"]) == ["red"]
    assert_learned(run, file)
    assert load(run).thresholds == (0.5,)
    assert "val_map" not in read_metrics(run / "metrics.csv")[0]


def test_what_knows_one_class_only_is_refused(data: Path, tmp_path: Path) -> None:
    for field, value in (("teacher", "x"), ("balance", "sampler")):
        with refused("data.task-multi-label", f"--{field}"):
            train(quick(data, **{field: value}), tmp_path / "run")


def test_the_loss_decides_and_nothing_is_smoothed_unless_asked_for(data: Path) -> None:
    table = read_source(data)
    recipe, _ = complete(quick(data), table)
    assert (recipe.monitor, recipe.label_smoothing) == ("val_loss", 0.0)
    recipe, _ = complete(quick(data, monitor="val_acc", label_smoothing=0.1), table)
    assert (recipe.monitor, recipe.label_smoothing) == ("val_acc", 0.1)
