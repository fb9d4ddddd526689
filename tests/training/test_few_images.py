"""Few images: none is set aside, and cross-validation chooses the penalty, calibrates the head and tests it."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import runs
import vitkit
from once import once
from photos import noise, save
from refusals import refused
from vitkit.data import EXCLUDED, Edit, add_edits, split_from_file, table_of
from vitkit.evaluation import headline_of
from vitkit.training import (
    OutOfFold,
    Recipe,
    choose,
    cross_validate_head,
    folds_of,
    nested_cross_validation,
    probe,
    resume,
)
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


def test_the_penalty_is_that_of_a_cross_validation_by_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PENALTIES", TRIED)
    x, y = clouds(60)
    fold_of = folds(y)
    penalty, logits = cross_validate_head(x, y, fold_of, 4)
    predicted = {tried: np.zeros((len(x), 4)) for tried in TRIED}
    for tried, p in predicted.items():
        for k in range(5):
            rest, out = (fold_of != k).numpy(), (fold_of == k).numpy()
            model = LogisticRegression(C=1 / (tried * rest.sum()), max_iter=5000, tol=1e-8)
            p[out] = make_pipeline(StandardScaler(), model).fit(x[rest], y[rest]).predict_proba(x[out])
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


def test_the_predictions_are_those_of_a_nested_cross_validation_by_scikit_learn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "PENALTIES", TRIED)
    x, y = clouds(60, 3, 8, 1.5)
    fold_of = folds(y)
    logits, temperatures = nested_cross_validation(x, y, fold_of, 3)

    def fitted(penalty: float, rows: np.ndarray) -> Any:
        model = LogisticRegression(C=1 / (penalty * rows.sum()), max_iter=5000, tol=1e-8)
        return make_pipeline(StandardScaler(), model).fit(x[rows], y[rows])

    for k in (0, 3):
        rest = (fold_of != k).numpy()
        inner = {}
        for penalty in TRIED:
            inner[penalty] = np.zeros((60, 3))
            for j in set(range(5)) - {k}:
                out = (fold_of == j).numpy()
                inner[penalty][out] = fitted(penalty, rest & ~out).predict_log_proba(x[out])
        penalty = min(TRIED, key=lambda value: log_loss(y[rest], np.exp(inner[value][rest])))
        true = y[rest].numpy()

        def cost(log_t: float, scores: np.ndarray = inner[penalty][rest], true: np.ndarray = true) -> float:
            chosen = log_softmax(scores / np.exp(log_t), axis=1)[np.arange(len(true)), true]
            return float(-chosen.sum() + log_t**2 / 2)

        temperature = np.exp(minimize_scalar(cost, bounds=(-3, 3), method="bounded").x)
        assert temperatures[k] == pytest.approx(temperature, rel=0.05)
        ours = softmax(logits[~rest].numpy(), axis=1)
        np.testing.assert_allclose(ours, fitted(penalty, rest).predict_proba(x[~rest]), atol=0.01)


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
        ({"weights": "none"}, 8, (0.7, 0.1, 0.2)),
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


def test_the_headline_is_of_images_that_nothing_was_chosen_on(finished: Path) -> None:
    said = said_by(finished)
    assert Counter(split_from_file(finished / "split.json").splits) == {"train": 36, "test": 9}
    figures = figures_of(finished)
    headline = headline_of(figures)
    assert (headline.split, headline.images, figures["chosen_on"]) == ("test", 9, [])
    assert "flattered by the selection" in said and "val_acc" not in said
    assert "fitted on 36 cross-validated images" in said


def test_its_promises_rest_on_predictions_out_of_fold(finished: Path, data: Path) -> None:
    classifier, predictions = load(finished), OutOfFold.read(finished)
    assert predictions is not None and classifier.held_out is not None and classifier.unknown is not None
    held_out = classifier.held_out.held_out
    assert (len(held_out), held_out.folds, len(classifier.unknown.known)) == (36, 5, 36)
    assert held_out.chosen == ("penalty by log loss", "temperature by log loss")
    assert set(predictions.paths) == set(split_from_file(finished / "split.json").of_split("train").paths)
    assert (held_out.predicted == predictions.logits.argmax(axis=1)).all()
    rows = vitkit.predict(finished, data, promises=vitkit.Promises(coverage=0.9, unknown=0.1)).rows()
    assert all({"set", "familiar"} <= row.keys() for row in rows)
    assert "36 cross-validated images" in (finished / "report.html").read_text()


def test_killed_before_its_report_it_is_calibrated_the_same(finished: Path, tmp_path: Path) -> None:
    folder = runs.copy_of(finished, tmp_path / "run")
    for name in ("report.html", "evaluation.json", "trust.safetensors"):
        (folder / name).unlink()
    described = json.loads((folder / "model.json").read_text())
    del described["trust_sha256"]
    described["temperature"] = 1.0
    (folder / "model.json").write_text(json.dumps(described))
    resume(folder)
    assert load(folder).temperature == load(finished).temperature
    assert load(folder).trust == load(finished).trust


def test_pictures_that_the_weights_had_seen_make_no_promise(finished: Path, data: Path, tmp_path: Path) -> None:
    """Another head on the weights of a run over the same photographs: every one of them is known."""
    run = runs.head_on(data, tmp_path / "second", method="probe", weights=str(finished)).folder
    assert split_from_file(run / "split.json").splits.count("test") == 9
    assert load(run).trust is None and "not calibrated" in said_by(run)


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


def test_a_cross_validation_ends_with_a_calibrated_head_on_all(tmp_path: Path) -> None:
    run = runs.head_on(runs.shared_few(), tmp_path / "run", folds=2, method="probe")
    assert run.headline.images == 21 and run.headline.folds == 2
    splits = {split for fold in run.folds for split in split_from_file(fold.folder / "split.json").splits}
    assert splits == {"train", "test"}
    held_out, unknown = run.classifier.held_out, run.classifier.unknown
    assert held_out is not None and len(held_out.held_out) == 21 and unknown is not None


def test_datasets_without_validation_images_are_calibrated_too(tmp_path: Path) -> None:
    pixels = torch.randn(24, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    datasets = vitkit.Datasets(train=[(image, i % 2) for i, image in enumerate(pixels)], class_names=["a", "b"])
    held_out = runs.head_on(datasets, tmp_path / "run", method="probe").classifier.held_out
    assert held_out is not None and len(held_out.held_out) == 24


def fields(**more: Any) -> dict[str, Any]:
    return {"weights": str(runs.shared_start()), "precision": "float32", "workers": 0, **more}


def test_a_head_is_also_what_is_trained_on_images_that_would_have_been_set_aside(tmp_path: Path) -> None:
    """50 images of each class are enough to train the whole model, and 35 of them are not."""
    asked = Recipe.of({"data": str(runs.photos(tmp_path / "photos", images=50)), **fields()})
    chosen = runs.chosen(asked)
    assert (chosen.recipe.method, chosen.recipe.split) == ("probe", (1.0, 0.0, 0.0))
    assert any("about 35 training images per class are too few" in reason for reason in chosen.reasons)


def sets_aside(data: Path, **more: Any) -> bool:
    parts = runs.chosen(Recipe(data=str(data), **fields(**more))).parts
    return any({"test", "val"} & set(part.images.table.splits) for part in parts)


def test_images_are_set_aside_if_the_user_decides_so_if_they_are_too_few_or_seen(
    data: Path, finished: Path, tmp_path: Path
) -> None:
    assert not sets_aside(data)
    for asked in ({"split": (0.8, 0.0, 0.2)}, {"split_seed": 3}, {"folds": 3}, {"prior": "uniform"}):
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
    assert headline.words in said and "45 cross-validated images" in (whole / "report.html").read_text()
    assert "every image trains the model" in said
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


def test_killed_before_its_report_it_has_the_same_figures_in_the_end(whole: Path, tmp_path: Path) -> None:
    folder = runs.copy_of(whole, tmp_path / "run")
    for name in ("report.html", "evaluation.json"):
        (folder / name).unlink()
    assert figures_of(resume(folder)) == figures_of(whole)


@pytest.mark.parametrize("name", ["tested", "temperatures"])
def test_damaged_tests_are_named(whole: Path, tmp_path: Path, name: str) -> None:
    with safe_open(whole / "out_of_fold.safetensors", "numpy") as file:
        arrays, about = {key: file.get_tensor(key) for key in file.keys()}, file.metadata()  # noqa: SIM118
    save_file({**arrays, name: arrays[name][:1].copy()}, tmp_path / "out_of_fold.safetensors", about)
    with refused("training.predictions-damaged", "out_of_fold.safetensors"):
        OutOfFold.read(tmp_path)


def test_the_model_learns_every_image(whole: Path, data: Path, tmp_path: Path) -> None:
    runs.assert_same_weights(whole, runs.head_on(data, tmp_path / "aside", split=(1, 0, 0), method="probe").folder)


def test_a_continued_run_tests_the_same_images_in_the_same_way_with_their_earlier_labels(
    whole: Path, data: Path, tmp_path: Path
) -> None:
    """The heads that test are fitted as in the first run, without changed labels and without labels of a model."""
    first, more = vitkit.TrainingRun(whole), runs.copy_of(data, tmp_path / "more")
    (more / "unlabelled").mkdir()
    save(noise(32, 32, 3), more / "unlabelled" / "new.png")
    red, green, new = "red/img1.png", "green/img1.png", "unlabelled/new.png"
    proposed = Edit(new, "blue", proposed_by=whole.name)
    add_edits(tmp_path / "labels.csv", [Edit(red, "blue", "red"), Edit(green, EXCLUDED, "green"), proposed])
    given = {"labels": str(tmp_path / "labels.csv"), "split_from": str(whole)}
    second = runs.head_on(more, tmp_path / "second", **given)
    said, predictions = said_by(second.folder), OutOfFold.read(second.folder)
    assert f"as in {whole.name}" in said
    assert (second.headline.split, second.headline.images) == ("cross-validated", first.headline.images)
    assert second.evaluation["relabelled"]["paths"] == [red]
    assert second.evaluation["with_labels_now"]["images"] == 44
    assert second.evaluation["missing_tests"]["images"] == 1
    assert predictions is not None and len(predictions.paths) == 44
    assert not {green, new} & set(predictions.paths)
    assert len(split_from_file(second.folder / "split.json")) == 45, "the new image is a training image"
    words = "1 label has changed since"
    assert any(words in caveat.text for caveat in second.headline.caveats) and words in said


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"method": "full"}, "training.protocol-conflict"),
        ({"split": (0.8, 0.0, 0.2)}, "training.protocol-conflict"),
        ({"weights": "FIRST"}, "training.images-seen"),
    ],
)
def test_a_continued_run_that_cannot_test_in_the_same_way_is_refused(
    whole: Path, data: Path, tmp_path: Path, given: dict[str, Any], code: str
) -> None:
    more = {name: str(whole) if value == "FIRST" else value for name, value in given.items()}
    with refused(code):
        runs.head_on(data, tmp_path / "second", split_from=str(whole), **more)
    assert not (tmp_path / "second" / "split.json").exists()


def test_a_class_with_one_image(tmp_path: Path) -> None:
    data = runs.photos(tmp_path / "photos", images=11)
    for file in [*data.glob("red/*.png"), *data.glob("blue/img1?.png"), *data.glob("blue/img[2-9].png")]:
        file.unlink()
    run = runs.head_on(data, tmp_path / "run")
    assert (run.headline.split, run.headline.images) == ("cross-validated", 12)
    assert run.evaluation["per_class"]["blue"]["recall"] == 0, "no head that was trained without it knows the class"
