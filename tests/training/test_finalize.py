"""Confidences at the end of a training: for the data as they come, whatever was weighed or drawn."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor

import photos as pictures
import runs
import tiny
import vitkit
from refusals import refused
from vitkit.data import MULTI_LABEL, EpochSampler, split_from_file
from vitkit.evaluation import (
    best_thresholds,
    evaluate,
)
from vitkit.training import (
    Balance,
    PriorCorrection,
    Recipe,
    binary_loss,
    class_weights,
    correction_of,
    label_loss,
    log_weights,
    logit_shift,
    prior_correction,
    resolve_balance,
    resume,
    train,
    with_correction,
)
from vitkit.weights import load

pytestmark = pytest.mark.usefixtures("two_penalties")
MEANS = torch.tensor([[0.0, 0.0], [1.5, 0.0], [0.0, 1.5]], dtype=torch.float64)
SHARES = torch.tensor([0.80, 0.15, 0.05], dtype=torch.float64)


def cloud(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Points (n, 2), their classes (n,), and log p(class | point) for the shares as they are, (n, 3)."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.multinomial(SHARES, n, replacement=True, generator=generator)
    x = MEANS[labels] + torch.randn(n, 2, generator=generator, dtype=torch.float64)
    return x, labels, truth(x, SHARES)


def truth(x: Tensor, shares: Tensor) -> Tensor:
    return (-((x[:, None] - MEANS) ** 2).sum(-1) / 2 + shares.log()).log_softmax(dim=1)


def fit(x: Tensor, loss_of: Any, classes: int) -> Tensor:
    """(n, K) logits of the linear model of the least loss."""
    weight = torch.zeros(classes, x.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS((weight, bias), max_iter=200, line_search_fn="strong_wolfe")

    def step() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = loss_of(x @ weight.T + bias)
        loss.backward()
        return loss

    optimizer.step(step)
    return (x @ weight.T + bias).detach()


@pytest.mark.parametrize("balance", ["loss", "sampler"])
def test_after_a_balanced_training_the_probabilities_are_the_true_ones(balance: Balance) -> None:
    x, y, expected = cloud(20_000, seed=0)
    counts, alike = y.bincount().tolist(), torch.full((3,), 1 / 3, dtype=torch.float64)
    if balance == "loss":
        targets = F.one_hot(y).double() * class_weights(counts).double()
        logits = fit(x, lambda own: label_loss([own], targets), 3)
    else:
        drawn = torch.tensor([key[1] for key in EpochSampler(len(y), 0, y.tolist())])
        by_weight = torch.bincount(drawn, minlength=len(y)).double()  # how often each was shown
        logits = fit(x, lambda own: (F.cross_entropy(own, y, reduction="none") * by_weight).mean(), 3)
    for prior, shares in (("data", SHARES), ("uniform", alike)):
        shift = prior_correction(counts, balance, prior, tiny.build(num_classes=3)).shift  # type: ignore[arg-type]
        found = (logits + torch.tensor(shift).double()).softmax(1)
        assert (found - truth(x, shares).exp()).abs().mean() < 0.012
    assert (logits.softmax(1) - expected.exp()).abs().mean() > 0.1, "without the shift they are far off"


def test_several_classes_an_image_have_their_true_probabilities_too() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20_000, 2, generator=generator, dtype=torch.float64)
    expected = torch.sigmoid(
        x @ torch.tensor([[1.0, 0.0], [0.5, -1.0]], dtype=torch.float64).T + torch.tensor([1.0, -3.5])
    )
    y = torch.bernoulli(expected, generator=generator)
    counts = y.sum(0).int().tolist()
    weights = class_weights(counts, MULTI_LABEL)
    assert weights.min() == 1 and weights.max() > 5, "a common class weighs no less than without balance"
    logits = fit(x, lambda own: binary_loss([own], y, weights.float()), 2)
    shift = torch.tensor(prior_correction(counts, "loss", "data", tiny.build(num_classes=2), task=MULTI_LABEL).shift)
    assert ((logits + shift).sigmoid() - expected).abs().mean() < 0.01
    assert (logits.sigmoid() - expected)[:, 1].mean() > 0.05, "without the shift the rare class is said too often"


@pytest.mark.parametrize("fields", [{}, {"distill_token": True, "distill_head": True}], ids=["one head", "two heads"])
@pytest.mark.parametrize("has_teacher", [False, True])
def test_the_saved_model_is_shifted_and_the_trained_one_stays(fields: dict[str, Any], has_teacher: bool) -> None:
    model = tiny.build(**fields)
    images, counts = tiny.images(4), [90, 9, 30, 1, 0, 5, 7]
    standing = prior_correction(counts, "loss", "data", model, has_teacher=has_teacher)
    assert standing.heads == (("head", "head_dist") if fields and not has_teacher else ("head",))
    before = {name: own.clone() for name, own in model.state_dict().items()}
    with torch.no_grad():
        plain, heads = model(images), model.forward_heads(images)
        with with_correction(model, standing):
            shifted, inside = model(images), model.forward_heads(images)
    whole = torch.tensor(counts).clamp(min=1).double().log()
    given_to_first = (inside[0] - heads[0])[0].double()
    assert torch.allclose(given_to_first - given_to_first[0], whole - whole[0], atol=1e-5)
    assert torch.allclose(shifted - plain, logit_shift(model, standing).expand_as(plain), atol=1e-5)
    assert all(torch.equal(before[name], own) for name, own in model.state_dict().items())


COUNTS = {"common": 110, "rare": 20}


def go(data: Path, out: Path, **fields: Any) -> tuple[Path, list[str]]:
    recipe = Recipe(**runs.quick_fields(**{"data": str(data), "epochs": 1, "label_smoothing": 0.0, **fields}))
    folder, said = runs.told(recipe, out)
    return folder, said.splitlines()


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures that say nothing of their class."""
    return pictures.folder(tmp_path_factory.mktemp("noise"), COUNTS, 16, 16)


def mean_of_rare(run: Path, data: Path) -> float:
    outcomes = [own for _, own in load(run).stream(sorted(map(str, data.glob("*/*.png"))))]
    return float(np.mean([own[1] for own in outcomes]))  # type: ignore[index]


# A rate of next to nothing leaves the logits at next to nothing: what balanced training wants where nothing can be
# told, whatever this processor makes of it.
STILL = {"lr": 1e-12}


@pytest.mark.usefixtures("no_pages")
@pytest.mark.parametrize(("prior", "share"), [("data", COUNTS["rare"] / sum(COUNTS.values())), ("uniform", 0.5)])
def test_untold_confidences_are_the_classes_shares(noise: Path, tmp_path: Path, prior: str, share: float) -> None:
    run, _ = go(noise, tmp_path / "run", prior=prior, **STILL)
    assert mean_of_rare(run, noise) == pytest.approx(share, abs=0.04)
    numbers = json.loads((run / "evaluation.json").read_text())
    assert numbers["loss"] < 0.5 or prior == "uniform"


def saved_and_trained(run: Path) -> tuple[Tensor, Tensor, PriorCorrection]:
    """The head's bias in the model folder and in training, and what is written down of the difference."""
    state = torch.load(run / "checkpoints" / "last.ckpt", map_location="cpu", weights_only=True)["model"]
    standing = correction_of(load(run))
    assert standing is not None
    return runs.weights(run)["head.bias"], state["head.bias"], standing


@pytest.mark.usefixtures("no_pages")
@pytest.mark.parametrize(
    "fields",
    [{"balance": "sampler", "keep": "every", "epochs": 2, "lr": 1e-3}, {"balance": "loss", "split": (0.8, 0.0, 0.2)}],
    ids=["every epoch", "no validation"],
)
def test_what_is_saved_otherwise_is_written_down(noise: Path, tmp_path: Path, fields: dict[str, Any]) -> None:
    run, _ = go(noise, tmp_path / "run", **fields)
    saved, trained, standing = saved_and_trained(run)
    temperature, table = load(run).temperature, split_from_file(run / "split.json")
    assert standing.in_head == pytest.approx([temperature * standing.strength * own for own in standing.shift])
    if "split" in fields:
        assert torch.allclose(saved - trained, torch.tensor(standing.in_head), atol=1e-5)
        assert (temperature, standing.strength) == (1.0, 1.0)
    epochs = sorted((run / "checkpoints").glob("epoch-*"))
    assert len(epochs) == (2 if "keep" in fields else 0)
    for row, epoch in zip(runs.metrics(run), epochs, strict=False):
        outcome, own = evaluate(load(epoch), table, "val"), correction_of(load(epoch))
        assert row["val_loss"] == pytest.approx(outcome.loss, rel=1e-4), "as the saved model says"
        assert row["val_acc"] == pytest.approx(outcome.accuracy)
        assert own is not None
        if epoch == epochs[-1]:  # that of the checkpoint
            shift = runs.weights(epoch)["head.bias"] - trained
            assert torch.allclose(shift, torch.tensor(own.shift), atol=1e-5)
    before = runs.weights(run)
    resume(run)  # which settles the confidences again
    assert all(torch.allclose(before[name], own, atol=1e-5) for name, own in runs.weights(run).items())
    assert load(run).temperature == pytest.approx(temperature, rel=1e-3)


@pytest.mark.usefixtures("no_pages")
def test_a_head_is_fitted_as_the_recipe_records(noise: Path, start: Path, tmp_path: Path) -> None:
    run, _ = go(noise, tmp_path / "run", method="probe", weights=str(start), prior="uniform", batch_size=64)
    assert Recipe.load(run / "recipe.toml").balance == "none"
    standing = correction_of(load(run))
    assert standing is not None and standing.balance == "none"
    assert np.diff(standing.shift) == pytest.approx(-np.diff(np.log(standing.counts)), abs=1e-5)
    assert mean_of_rare(run, noise) == pytest.approx(0.5, abs=0.12)


@pytest.mark.usefixtures("no_pages")
def test_a_head_start_begins_where_the_training_is_bound_for(noise: Path, start: Path, tmp_path: Path) -> None:
    fields = {"method": "full", "lp_ft": True, "weights": str(start), "patch_dropout": 0.0, "max_images": 40, **STILL}
    _, trained, standing = saved_and_trained(go(noise, tmp_path / "run", balance="loss", **fields)[0])
    _, fitted, _ = saved_and_trained(go(noise, tmp_path / "plain", balance="none", **fields)[0])
    assert torch.allclose(trained - fitted, log_weights(standing.counts, "loss"), atol=1e-4)


def assert_eval_agrees(run: Path) -> vitkit.EvaluationResult:
    """What a run says of itself is what `vitkit eval RUN` says, rounded alike, to the last digit."""
    asked, told = vitkit.evaluate(run), json.loads((run / "evaluation.json").read_text(encoding="utf-8"))
    assert (asked.figures["backend"], asked.figures["precision"]) == ("eager", "bfloat16")
    del told["label_errors"]  # of training images too, of which eval does not ask
    assert told == asked.figures
    assert f"<td>computed</td><td>{asked.computed}</td>" in (run / "report.html").read_text(encoding="utf-8")
    return asked


def test_of_several_classes_probabilities_are_calibrated_and_thresholds_chosen_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are fitted to answers as `vitkit eval` computes them, here rounded as on processors that have bfloat16."""
    monkeypatch.setattr("vitkit.inference.backends.best_precision", lambda _: "bfloat16")
    rng, rows, data = np.random.default_rng(0), ["path,labels"], tmp_path / "data"
    data.mkdir()
    for i in range(60):
        has = rng.random(2) < (0.9, 0.15)
        Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(data / f"{i}.png")
        rows.append(f"{i}.png," + ";".join(name for name, own in zip(("common", "rare"), has, strict=True) if own))
    (data / "all.csv").write_text("\n".join(rows) + "\n")
    with refused("data.task-multi-label"):
        go(data / "all.csv", tmp_path / "refused", prior="uniform")
    run, said = go(data / "all.csv", tmp_path / "run", balance="loss", split=(0.5, 0.3, 0.2), lr=1e-3)
    classifier = load(run)
    saved, trained, standing = saved_and_trained(run)
    assert standing.shift[0] == 0 and standing.shift[1] < -1
    assert torch.allclose(saved - trained, torch.tensor(standing.in_head), atol=1e-5)
    assert classifier.temperature != 1 and any(line.startswith("temperature ") for line in said)
    assert_eval_agrees(run)
    seen = vitkit.evaluate(run, split="val").evaluation
    assert classifier.thresholds == pytest.approx(best_thresholds(seen.labels, seen.probabilities), abs=1e-5)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=8), st.integers(0, 3))
def test_the_weights_are_scikit_learns_and_nothing_where_classes_have_no_image(counts: list[int], empty: int) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    expected = compute_class_weight("balanced", classes=np.arange(len(counts)), y=labels)
    np.testing.assert_allclose(class_weights(counts).numpy(), expected, rtol=1e-6)
    weights = class_weights(counts + [0] * empty).numpy()
    assert (weights[: len(counts)] * counts).sum() / sum(counts) == pytest.approx(1, rel=1e-5)
    assert (weights[len(counts) :] == 0).all()


def test_auto_weighs_where_the_largest_has_more_than_three_times_the_smallest() -> None:
    for counts in ([10, 30], [10, 0, 30], [7]):
        assert resolve_balance("auto", counts) == ("none", None)
    for counts in ([10, 31], [10, 20, 31]):
        balance, line = resolve_balance("auto", counts)
        assert balance == "loss" and "10 to 31" in line
    for asked in ("loss", "sampler", "none"):
        assert resolve_balance(asked, [1, 100]) == (asked, None)  # type: ignore[arg-type]


def test_a_run_and_eval_agree_to_the_last_digit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where answers are rounded, as on processors that have bfloat16, the temperature is fitted to such answers too."""
    monkeypatch.setattr("vitkit.inference.backends.best_precision", lambda _: "bfloat16")
    data = runs.photos(tmp_path / "photos", images=24, noise=400.0)
    run = train(runs.quick(data, epochs=1, balance="none", split=(0.4, 0.3, 0.3), lr=3e-3), tmp_path / "run")
    asked = assert_eval_agrees(run)
    plain = evaluate(load(run), split_from_file(run / "split.json"), "test")
    assert not np.array_equal(asked.evaluation.probabilities, plain.probabilities), "else nothing was tried"
    seen = runs.untempered(vitkit.evaluate(run, split="val").evaluation)
    assert load(run).temperature == pytest.approx(runs.fitted_temperature(seen), rel=1e-4)
