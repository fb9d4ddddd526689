"""A head on frozen features: for few images, of which none is set aside, or where it is right nearly always."""

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import photos as pictures
import runs
import vitkit
from once import once
from photos import noise, save
from refusals import refused
from vitkit.data import EXCLUDED, Edit, add_edits, split_from_file, table_of
from vitkit.evaluation import headline_of
from vitkit.training import (
    FeatureStore,
    OutOfFold,
    Recipe,
    choose,
    cross_validate_head,
    folds_of,
    nested_cross_validation,
    prepared,
    probe,
    resume,
)
from vitkit.training.stages import resolve as selection
from vitkit.weights import load

pytestmark = pytest.mark.usefixtures("two_penalties")  # those that the resumed runs were begun with
TRIED = (1.0, 0.1, 0.01, 0.001)


def clouds(n: int, classes: int = 4, size: int = 10, spread: float = 2.5) -> tuple[torch.Tensor, torch.Tensor]:
    rng, labels = np.random.default_rng(0), np.arange(n) % classes
    centres = np.random.default_rng(99).normal(size=(classes, size))
    points = centres[labels] + rng.normal(0, spread, (n, size))
    return torch.from_numpy(points.astype(np.float32)), torch.from_numpy(labels)


def folds(labels: torch.Tensor, groups: dict[str, int] | None = None, seed: int = 0) -> torch.Tensor:
    rows = [(str(i), str(k), "train") for i, k in enumerate(labels.tolist())]
    fold_of = folds_of(table_of("few", Path(), rows), groups or {}, seed)
    assert fold_of is not None
    return fold_of


def fitted_by_scikit_learn(x: torch.Tensor, y: torch.Tensor, penalty: float, rows: np.ndarray) -> Any:
    model = LogisticRegression(C=1 / (penalty * rows.sum()), max_iter=5000, tol=1e-8)
    return make_pipeline(StandardScaler(), model).fit(x[rows], y[rows])


def test_the_penalty_is_that_of_a_cross_validation_by_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PENALTIES", TRIED)
    x, y = clouds(60)
    fold_of = folds(y)
    penalty, logits = cross_validate_head(x, y, fold_of, 4)
    predicted = {tried: np.zeros((len(x), 4)) for tried in TRIED}
    for tried, p in predicted.items():
        for k in range(5):
            out = (fold_of == k).numpy()
            p[out] = fitted_by_scikit_learn(x, y, tried, ~out).predict_proba(x[out])
    assert penalty == min(TRIED, key=lambda tried: log_loss(y, predicted[tried]))
    np.testing.assert_allclose(logits.softmax(dim=1).numpy(), predicted[penalty], atol=0.01)


def test_no_image_and_no_copy_of_it_has_an_influence_on_its_own_prediction() -> None:
    x, y = clouds(40)
    groups = {"0": 0, "4": 0}  # two copies
    fold_of = folds(y, groups)
    assert fold_of[0] == fold_of[4]
    wrong = y.clone()
    wrong[0] = wrong[4] = 3
    own, other = (cross_validate_head(x, labels, fold_of, 4, fold_of != fold_of[0]) for labels in (y, wrong))
    assert own[0] == other[0], "these images did not choose the penalty here"
    torch.testing.assert_close(own[1][fold_of == fold_of[0]], other[1][fold_of == fold_of[0]])
    assert not torch.allclose(own[1][fold_of != fold_of[0]], other[1][fold_of != fold_of[0]])


@given(st.lists(st.integers(1, 9), min_size=2, max_size=5).filter(lambda each: max(each) > 1), st.integers(0, 5))
def test_folds_divide_each_class_evenly(each: list[int], seed: int) -> None:
    labels = torch.tensor([k for k, count in enumerate(each) for _ in range(count)])
    fold_of, parts = folds(labels, seed=seed), min(5, max(each))
    assert set(fold_of.tolist()) <= set(range(parts))
    for k, count in enumerate(each):
        assert max(Counter(fold_of[labels == k].tolist()).values()) <= -(-count // parts)


def test_images_that_the_weights_had_seen_do_not_choose() -> None:
    """Of these, the features give the label away; the others say nothing, so that the largest penalty is best."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(80, 10)).astype(np.float32))
    y = torch.from_numpy(rng.permutation(np.arange(80) % 2))
    x[:60, 0] = 3.0 * y[:60]
    is_new = torch.arange(80) >= 60
    honest, _ = cross_validate_head(x, y, folds(y), 2, is_new)
    flattered, _ = cross_validate_head(x, y, folds(y), 2)
    assert honest > flattered


def test_a_nested_cross_validation_predicts_as_that_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PENALTIES", TRIED)
    x, y = clouds(60, 3, 8, 1.5)
    fold_of = folds(y)
    logits, temperatures = nested_cross_validation(x, y, fold_of, 3)
    rest = (fold_of != 3).numpy()
    true = y[rest].numpy()
    inner = {penalty: np.zeros((60, 3)) for penalty in TRIED}
    for penalty, scores in inner.items():
        for j in (0, 1, 2, 4):
            out = (fold_of == j).numpy()
            scores[out] = fitted_by_scikit_learn(x, y, penalty, rest & ~out).predict_log_proba(x[out])
    penalty = min(TRIED, key=lambda value: log_loss(true, np.exp(inner[value][rest])))

    def cost(log_t: float) -> float:
        chosen = log_softmax(inner[penalty][rest] / np.exp(log_t), axis=1)[np.arange(len(true)), true]
        return float(-chosen.sum() + log_t**2 / 2)

    temperature = np.exp(minimize_scalar(cost, bounds=(-3, 3), method="bounded").x)
    assert temperatures[3] == pytest.approx(temperature, rel=0.05)
    ours = softmax(logits[~rest].numpy(), axis=1)
    expected = fitted_by_scikit_learn(x, y, penalty, rest).predict_proba(x[~rest])
    np.testing.assert_allclose(ours, expected, atol=0.01)


def test_the_label_of_an_image_has_no_influence_on_its_own_test() -> None:
    x, y = clouds(45, 3, 8, 1.5)
    fold_of = folds(y)
    wrong = y.clone()
    wrong[fold_of == 2] = (y[fold_of == 2] + 1) % 3
    logits, temperatures = nested_cross_validation(x, y, fold_of, 3)
    changed, changed_too = nested_cross_validation(x, wrong, fold_of, 3)
    torch.testing.assert_close(logits[fold_of == 2], changed[fold_of == 2], rtol=0, atol=0)
    assert temperatures[2] == changed_too[2]
    assert not torch.allclose(logits[fold_of != 2], changed[fold_of != 2])


@pytest.mark.parametrize(
    ("fields", "each", "split"),
    [
        ({}, 8, (0.8, 0.0, 0.2)),
        ({"method": "probe"}, 90, (0.8, 0.0, 0.2)),
        ({"method": "probe"}, 300, (0.7, 0.1, 0.2)),
        ({"method": "full"}, 8, (0.7, 0.1, 0.2)),
        ({"method": "probe", "split": (0.7, 0.1, 0.2)}, 8, (0.7, 0.1, 0.2)),
    ],
)
def test_a_head_for_few_needs_no_validation(fields: dict[str, Any], each: float, split: tuple[float, ...]) -> None:
    recipe, reasons = choose(Recipe.of(fields), each)
    assert recipe.split == split
    assert any("no image is set aside for validation" in reason for reason in reasons) == (split[1] == 0)
    recipe, reasons = choose(Recipe.of(fields), each, is_split=True)
    assert split[1] or (recipe.split == (0.7, 0.1, 0.2) and not any("set aside" in reason for reason in reasons))


@pytest.fixture(scope="module")
def data() -> Path:
    return once("few-data", lambda place: runs.photos(place, images=15, noise=300))


@pytest.fixture(scope="module")
def finished(data: Path) -> Path:
    """A probe, tested by images that were set aside."""
    return once("few-probe", lambda place: runs.head_on(data, place, method="probe"))


@pytest.fixture(scope="module")
def whole(data: Path) -> Path:
    """A run that has set no image aside, for the test either: each tests a head that was fitted without it."""
    return once("few-whole", lambda place: runs.head_on(data, place))


def said_by(folder: Path) -> str:
    return (folder / "log.txt").read_text()


def figures_of(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "evaluation.json").read_text()))


def test_headline_and_promises_are_of_images_that_nothing_was_chosen_on(finished: Path, data: Path) -> None:
    said = said_by(finished)
    assert Counter(split_from_file(finished / "split.json").splits) == {"train": 36, "test": 9}
    figures = figures_of(finished)
    headline = headline_of(figures)
    assert (headline.split, headline.images, figures["chosen_on"]) == ("test", 9, [])
    assert "flattered by the selection" in said and "val_acc" not in said
    classifier, predictions = load(finished), OutOfFold.read(finished)
    assert predictions is not None and classifier.held_out is not None and classifier.unknown is not None
    held_out = classifier.held_out.held_out
    assert (len(held_out), held_out.folds, len(classifier.unknown.known)) == (36, 5, 36)
    assert held_out.chosen == ("penalty by log loss", "temperature by log loss")
    assert set(predictions.paths) == set(split_from_file(finished / "split.json").of_split("train").paths)
    assert (held_out.predicted == predictions.logits.argmax(axis=1)).all()
    rows = vitkit.predict(finished, data, promises=vitkit.Promises(coverage=0.9, unknown=0.1)).rows()
    assert all({"set", "familiar"} <= row.keys() for row in rows)


def test_killed_before_its_report_it_is_calibrated_and_tested_the_same(whole: Path, tmp_path: Path) -> None:
    folder = runs.copy_of(whole, tmp_path / "run")
    for name in ("report.html", "evaluation.json", "trust.safetensors"):
        (folder / name).unlink()
    described = json.loads((folder / "model.json").read_text())
    del described["trust_sha256"]
    described["temperature"] = 1.0
    (folder / "model.json").write_text(json.dumps(described))
    resume(folder)
    assert figures_of(folder) == figures_of(whole)
    assert (load(folder).temperature, load(folder).trust) == (load(whole).temperature, load(whole).trust)


@pytest.mark.usefixtures("no_pages")
def test_pictures_that_the_weights_had_seen_make_no_promise(finished: Path, data: Path, tmp_path: Path) -> None:
    """Another head on the weights of a run over the same photographs: every one of them is known."""
    run = runs.head_on(data, tmp_path / "second", method="probe", weights=str(finished)).folder
    assert split_from_file(run / "split.json").splits.count("test") == 9
    assert load(run).trust is None and "not calibrated" in said_by(run)


@pytest.mark.usefixtures("no_pages")
@pytest.mark.parametrize("method", ["probe", "auto"])
@pytest.mark.parametrize("seeds", [1, pytest.param(3, marks=pytest.mark.accept)])
def test_shuffled_labels_report_chance(tmp_path: Path, seeds: int, method: str) -> None:
    """Over several runs, the headline is as often right as chance, and sets hold their class as often as promised."""
    right, images, covered = 0.0, 0, list[float]()
    for seed in range(seeds):
        data = runs.shuffled(runs.photos(tmp_path / f"photos-{seed}", images=30, noise=200, seed=seed), seed)
        run = runs.head_on(data, tmp_path / f"run-{seed}", method=method, seed=seed)
        assert run.headline.split == ("test" if method == "probe" else "cross-validated")
        assert run.headline.interval is not None and run.headline.interval[0] <= 1 / 3
        right += run.headline.images * run.accuracy
        images += run.headline.images
        if method == "probe":
            covered.append(run.evaluation["promises"]["coverage"][0]["measured"])
    assert right / images - 1 / 3 < 3 * (2 / 9 / images) ** 0.5
    assert not covered or np.mean(covered) > 0.9 - 3 * (0.09 / images) ** 0.5


def test_datasets_without_validation_images_are_calibrated_too(tmp_path: Path) -> None:
    pixels = torch.randn(24, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    datasets = vitkit.Datasets(train=[(image, i % 2) for i, image in enumerate(pixels)], class_names=["a", "b"])
    held_out = runs.head_on(datasets, tmp_path / "run", method="probe").classifier.held_out
    assert held_out is not None and len(held_out.held_out) == 24


def fields(**more: Any) -> dict[str, Any]:
    return {"weights": str(runs.shared_start()), "precision": "float32", "workers": 0, **more}


def resolved(data: Path, source: str = "", **more: Any) -> Any:
    return runs.chosen(Recipe.of(fields(data=str(data), **more), source))


def sets_aside(data: Path, **more: Any) -> bool:
    parts = resolved(data, **more).parts
    return any({"test", "val"} & set(part.images.table.splits) for part in parts)


def test_images_are_set_aside_if_asked_for_too_few_or_seen(data: Path, finished: Path, tmp_path: Path) -> None:
    assert not sets_aside(data)
    for asked in ({"split": (0.8, 0.0, 0.2)}, {"folds": 3}, {"prior": "uniform"}):
        assert sets_aside(data, **asked), asked
    for split, images in (("train", 12), ("test", 4)):
        runs.photos(tmp_path / "split" / split, images=images, seed=images)
    assert sets_aside(tmp_path / "split")
    assert sets_aside(runs.photos(tmp_path / "four", images=4, seed=3)), "too few for folds"
    assert sets_aside(data, weights=str(finished)), "which has seen them"


def test_the_headline_is_of_all_images_and_says_which_model_it_is_of(whole: Path) -> None:
    said = said_by(whole)
    assert set(split_from_file(whole / "split.json").splits) == {"train"}
    figures = figures_of(whole)
    headline = headline_of(figures)
    assert (headline.split, headline.images, figures["chosen_on"]) == ("cross-validated", 45, [])
    assert [caveat.kind for caveat in headline.caveats] == ["of_folds"]
    assert figures["headline"] == headline.to_dict()
    assert figures["seen"]["images"] == 0 and "promises" not in figures
    assert figures["temperature"] == load(whole).temperature
    assert headline.words in said
    predictions = OutOfFold.read(whole)
    assert predictions is not None and predictions.tested is not None
    accuracy = (predictions.tested.argmax(axis=1) == predictions.labels).mean()
    assert figures["accuracy"] == pytest.approx(accuracy)
    assert len((whole / "predictions.csv").read_text().splitlines()) == 46
    low, high = figures["headline"]["interval_95"]
    assert low < accuracy < high
    assert high - low > 2 * 1.96 * (accuracy * (1 - accuracy) / 45) ** 0.5, "wider than of independent images"
    again = vitkit.evaluate(whole)
    assert again.headline.value is None, "the model was trained on all of them"
    assert again.notes[0].endswith(f"cross-validated: {headline.words}")


@pytest.mark.usefixtures("no_pages")
def test_a_continued_run_tests_the_same_images_by_their_earlier_labels(whole: Path, data: Path, tmp_path: Path) -> None:
    """The heads that test are fitted as in the first run, without changed labels and without labels of a model."""
    first, more = vitkit.TrainingRun(whole), runs.copy_of(data, tmp_path / "more")
    (more / "unlabelled").mkdir()
    save(noise(32, 32, 3), more / "unlabelled" / "new.png")
    red, green, new = "red/img1.png", "green/img1.png", "unlabelled/new.png"
    proposed = Edit(new, "blue", proposed_by=whole.name)
    add_edits(tmp_path / "labels.csv", [Edit(red, "blue", "red"), Edit(green, EXCLUDED, "green"), proposed])
    given = {"labels": str(tmp_path / "labels.csv"), "split_from": str(whole)}
    second = runs.head_on(more, tmp_path / "second", **given)
    predictions = OutOfFold.read(second.folder)
    assert (second.headline.split, second.headline.images) == ("cross-validated", first.headline.images)
    assert second.evaluation["relabelled"]["paths"] == [red]
    assert second.evaluation["with_labels_now"]["images"] == 44
    assert second.evaluation["missing_tests"]["images"] == 1
    assert predictions is not None and len(predictions.paths) == 44
    assert not {green, new} & set(predictions.paths)
    assert len(split_from_file(second.folder / "split.json")) == 45, "the new image is a training image"
    assert any("1 label has changed since" in caveat.text for caveat in second.headline.caveats)


@pytest.mark.parametrize(
    ("given", "code"),
    [({"method": "full"}, "training.protocol-conflict"), ({"weights": "FIRST"}, "training.images-seen")],
)
def test_a_continued_run_that_cannot_test_in_the_same_way_is_refused(
    whole: Path, data: Path, tmp_path: Path, given: dict[str, Any], code: str
) -> None:
    more = {name: str(whole) if value == "FIRST" else value for name, value in given.items()}
    with refused(code):
        runs.head_on(data, tmp_path / "second", split_from=str(whole), **more)
    assert not (tmp_path / "second" / "split.json").exists()


EACH = 58  # photographs of each class, of which 40 are trained on


@pytest.fixture(scope="module")
def easy() -> Path:
    return once("choose-method-easy", lambda place: runs.photos(place, images=EACH, noise=30))


@pytest.fixture(scope="module")
def hard() -> Path:
    """Pictures whose classes say nothing about them."""
    return once("choose-method-hard", lambda place: pictures.folder(place, dict.fromkeys("ab", EACH), 16, 16))


@pytest.mark.usefixtures("no_pages")
def test_a_head_that_is_right_nearly_always_becomes_the_model(easy: Path, tmp_path: Path) -> None:
    folder, said = runs.told(Recipe(**fields(data=str(easy))), tmp_path / "run")
    lines = said.splitlines()
    assert Recipe.load(folder / "recipe.toml").method == "probe"
    assert any("100.0 % of 120 training images" in line for line in lines)
    assert sum(line.startswith("method ") for line in lines) == 1
    assert (folder / "evaluation.json").is_file() and not (folder / "checkpoints").exists()
    assert json.loads((folder / "request.json").read_text()).keys() == {"data", "weights", "workers", "precision"}
    assert resolved(easy, weights=str(folder)).recipe.method == "full", "which know the photographs"
    full = prepared(Recipe(**fields(data=str(easy), method="full"))).parts[0].images.table
    table = split_from_file(folder / "split.json")
    assert set(table.of_split("test").paths) == set(full.of_split("test").paths) != set()
    assert "val" not in table.splits


def test_shuffled_labels_are_predicted_by_chance_so_that_the_head_does_not(hard: Path) -> None:
    assert resolved(hard).recipe.method == "full"
    full = prepared(Recipe(**fields(data=str(hard), method="full")))
    part = full.parts[0].images
    _, interval, images = selection.probe_accuracy(
        FeatureStore(full.recipe, full.blueprint.weights), part.table, part.groups
    )
    assert interval[0] <= 0.5 <= interval[1] and images == 80


@pytest.mark.parametrize(
    ("given", "source", "method"),
    [
        ({"epochs": 2}, "", "full"),
        ({"folds": 2}, "mine.toml", "full"),  # every image is tested
        ({"lora_rank": 8}, "mine.toml", "probe"),  # a field that nothing needs
    ],
)
def test_it_is_tried_only_where_it_may_become_the_model(
    easy: Path, given: dict[str, Any], source: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Any] = []
    measure = selection.probe_accuracy
    monkeypatch.setattr(selection, "probe_accuracy", lambda *args: tried.append(args) or measure(*args))
    assert resolved(easy, source, **given).recipe.method == method
    assert bool(tried) == (method == "probe")


@pytest.mark.parametrize("parts", [2, 3])
def test_an_image_is_not_judged_by_a_probe_that_knows_it(parts: int) -> None:
    """Features that name each image, and labels by lot: who has seen the label knows it, and nobody else does."""
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.permutation(np.arange(240) % 4))
    x = torch.eye(240) + 0.01 * torch.from_numpy(rng.normal(size=(240, 240)).astype(np.float32))
    table = table_of("named", Path(), [(str(i), str(k), "train") for i, k in enumerate(y.tolist())])
    store: Any = SimpleNamespace(recipe=Recipe(), features=lambda own, _: x[[int(path) for path in own.paths]])
    accuracy, _, images = selection.probe_accuracy(store, table, [i % parts for i in range(240)])
    low, high = binomtest(round(accuracy * images), images).proportion_ci(0.999)
    assert images == 240 and low < 0.25 < high
