"""A head on frozen features: the backbone stays, and the fit is the best there is."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import runs
from vitkit.data import ImageTable, split_from_file
from vitkit.evaluation import regress
from vitkit.training import PENALTIES, Recipe, choose_head, complete, features, resume, train
from vitkit.weights import load


def clouds(n: int = 240, k: int = 4, spread: float = 1.5, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Overlapping clouds of points, (n, 12), and which one each is of."""
    labels = np.arange(n) % k
    centres = np.random.default_rng(99).normal(size=(k, 12))
    points = centres[labels] + np.random.default_rng(seed).normal(0, spread, (n, 12))
    return torch.from_numpy(points.astype(np.float32)), torch.from_numpy(labels)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("penalty", [0.3, 0.01])
def test_the_regression_is_scikit_learns(classes: int, penalty: float) -> None:
    x, y = clouds(k=classes)
    weight, bias = regress(x, y, penalty, torch.zeros(classes, 12), torch.zeros(classes))
    # scikit-learn's binary case has one row of weights for the difference: |w|^2 / 2 stands for both rows together.
    strength = 1 / (penalty * len(x)) * (2 if classes == 2 else 1)
    theirs = LogisticRegression(C=strength, max_iter=2000, tol=1e-8).fit(x.numpy(), y.numpy())
    probabilities = (x @ weight.T + bias).softmax(1).numpy()
    assert np.abs(probabilities - theirs.predict_proba(x.numpy())).max() < 2e-3


def test_the_penalty_is_the_one_that_suits_the_held_out_images_best() -> None:
    x, y = clouds(80, spread=3.0)
    held_out = clouds(400, spread=3.0, seed=1)
    chosen = choose_head(x, y, held_out, 4)
    losses = []
    mean, scale = x.mean(0), x.std(0)
    for penalty in PENALTIES:
        weight, bias = regress((x - mean) / scale, y, penalty, torch.zeros(4, 12), torch.zeros(4))
        logits = (held_out[0] - mean) / scale @ weight.T + bias
        losses.append(torch.nn.functional.cross_entropy(logits, held_out[1]).item())
    assert chosen.penalty == PENALTIES[int(np.argmin(losses))]
    assert chosen.val_loss == pytest.approx(min(losses), rel=1e-2)


def test_the_head_takes_features_of_any_scale_as_they_are() -> None:
    x, y = clouds()
    plain, scaled = choose_head(x, y, (x, y), 4), choose_head(1000 * x + 50, y, (1000 * x + 50, y), 4)
    agree = (x @ plain.weight.T + plain.bias).argmax(1) == ((1000 * x + 50) @ scaled.weight.T + scaled.bias).argmax(1)
    assert agree.float().mean() > 0.99


def test_a_class_without_a_training_image_is_not_predicted() -> None:
    x, y = clouds()
    kept = y != 2
    fitted = choose_head(x[kept], y[kept], None, 4)
    assert fitted.val_loss is None
    assert not ((x @ fitted.weight.T + fitted.bias).argmax(1) == 2).any()


def head_run(data: Path, start: Path, out: Path, **fields: Any) -> Path:
    asked = {"method": "probe", "precision": "float32", "workers": 0, "batch_size": 8, **fields}
    return train(Recipe(data=str(data), weights=str(start), **asked), out)


def test_the_head_alone_learns(data: Path, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed, original = list[int](), features.compute_features

    def count(model: Any, images: Any, *rest: Any) -> Any:
        computed.append(len(images))
        return original(model, images, *rest)

    monkeypatch.setattr(features, "compute_features", count)
    folder = head_run(data, start, tmp_path / "run")
    before, after = runs.weights(start), runs.weights(folder)
    assert [name for name in before if not name.startswith("head") and not torch.equal(before[name], after[name])] == []
    assert load(folder).model.config.pool == "token+gap"
    runs.assert_learned(folder, data)
    assert sum(computed) == len(split_from_file(folder / "split.json")), "each image once"


def test_a_run_cut_short_ends_in_the_same_head(data: Path, start: Path, tmp_path: Path) -> None:
    whole = head_run(data, start, tmp_path / "a", seed=3, max_images=12)
    cut = runs.copy_of(whole, tmp_path / "b")
    for name in ("model.safetensors", "model.json", "metrics.csv", "report.html"):
        (cut / name).unlink()
    resume(cut)
    runs.assert_same_weights(whole, cut)


def test_few_images_get_a_head_and_many_the_whole_model(data: Path, start: Path) -> None:
    few = split_from_file(start / "split.json")
    many = few.take([i % len(few) for i in range(40 * len(few))])

    def chosen(table: ImageTable, **fields: Any) -> Recipe:
        return complete(Recipe.of({"data": str(data), "weights": str(start), **fields}), table)[0]

    assert chosen(few).method == "probe"
    assert chosen(many).method == "full"
    assert chosen(many, max_images=30).method == "probe", "a limit is of training images"
    assert chosen(many, weights="none").method == "scratch"
    assert complete(Recipe.of({"data": str(data), "method": "scratch"}), many)[0].weights == "none"
    assert chosen(many, lr=0.5, method="full").lr == 0.5
