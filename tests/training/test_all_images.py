"""Few images, none set aside: all train the model, and each tests a head that was fitted without it."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import runs
import vitkit
from hearing import heard
from photos import noise, save
from vitkit.data import EXCLUDED, Edit, add_edits, split_from_file, table_of
from vitkit.errors import VitkitError
from vitkit.evaluation import headline_of
from vitkit.training import PENALTIES, OutOfFold, Recipe, folds_of, nested_cross_validation, prepared, resume, train
from vitkit.weights import load

CLASSES = 3


def clouds(n: int, seed: int = 0, spread: float = 1.5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features, labels, and the fold of each."""
    rng, labels = np.random.default_rng(seed), np.arange(n) % CLASSES
    centres = np.random.default_rng(99).normal(size=(CLASSES, 8))
    x = torch.from_numpy((centres[labels] + rng.normal(0, spread, (n, 8))).astype(np.float32))
    fold_of = folds_of(table_of("few", Path(), [(str(i), str(k), "train") for i, k in enumerate(labels)]), {}, seed)
    assert fold_of is not None
    return x, torch.from_numpy(labels), fold_of


# --- The figures --------------------------------------------------------------------------------------


def test_the_predictions_are_those_of_a_nested_cross_validation_by_scikit_learn() -> None:
    x, y, fold_of = clouds(60)
    logits, temperatures = nested_cross_validation(x, y, fold_of, CLASSES)

    def fitted(penalty: float, rows: np.ndarray) -> Any:
        model = LogisticRegression(C=1 / (penalty * rows.sum()), max_iter=5000, tol=1e-8)
        return make_pipeline(StandardScaler(), model).fit(x[rows], y[rows])

    for k in (0, 3):
        rest = (fold_of != k).numpy()
        inner = {}
        for penalty in PENALTIES:
            inner[penalty] = np.zeros((60, CLASSES))
            for j in set(range(5)) - {k}:
                out = (fold_of == j).numpy()
                inner[penalty][out] = fitted(penalty, rest & ~out).predict_log_proba(x[out])
        penalty = min(PENALTIES, key=lambda value: log_loss(y[rest], np.exp(inner[value][rest])))
        true = y[rest].numpy()

        def cost(log_t: float, scores: np.ndarray = inner[penalty][rest], true: np.ndarray = true) -> float:
            chosen = log_softmax(scores / np.exp(log_t), axis=1)[np.arange(len(true)), true]
            return float(-chosen.sum() + log_t**2 / 2)

        temperature = np.exp(minimize_scalar(cost, bounds=(-3, 3), method="bounded").x)
        assert temperatures[k] == pytest.approx(temperature, rel=0.05)
        ours = softmax(logits[~rest].numpy(), axis=1)
        np.testing.assert_allclose(ours, fitted(penalty, rest).predict_proba(x[~rest]), atol=0.01)


def test_the_label_of_an_image_has_no_influence_on_its_own_test() -> None:
    x, y, fold_of = clouds(45)
    wrong = y.clone()
    wrong[fold_of == 2] = (y[fold_of == 2] + 1) % CLASSES
    logits, temperatures = nested_cross_validation(x, y, fold_of, CLASSES)
    changed, changed_too = nested_cross_validation(x, wrong, fold_of, CLASSES)
    torch.testing.assert_close(logits[fold_of == 2], changed[fold_of == 2], rtol=0, atol=0)
    assert temperatures[2] == changed_too[2]
    assert not torch.allclose(logits[fold_of != 2], changed[fold_of != 2])


# --- When ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.photos(tmp_path_factory.mktemp("all-data") / "photos", images=15, noise=300)


def fields(start: Path, **more: Any) -> dict[str, Any]:
    return {"weights": str(start), "precision": "float32", "workers": 0, **more}


def sets_aside(data: Path, **given: Any) -> bool:
    start = prepared(Recipe(data=str(data), **given), (), chooses_method=True)
    parts = [part.images.table.splits for part in start.parts]
    return any({"test", "val"} & set(splits) for splits in parts)


def test_a_head_is_also_what_is_trained_on_images_that_would_have_been_set_aside(tmp_path: Path, start: Path) -> None:
    """50 images of each class are enough to train the whole model, and 35 of them are not."""
    asked = Recipe.of({"data": str(runs.photos(tmp_path / "photos", images=50)), **fields(start)})
    chosen = prepared(asked, (), chooses_method=True)
    assert (chosen.recipe.method, chosen.recipe.split) == ("probe", (1.0, 0.0, 0.0))
    assert any("about 35 training images per class are too few" in reason for reason in chosen.reasons)
    assert not any("for validation" in reason for reason in chosen.reasons)


def test_what_the_user_decides_about_the_images_is_kept(data: Path, start: Path, tmp_path: Path) -> None:
    assert not sets_aside(data, **fields(start))
    for given in ({"split": (0.8, 0.0, 0.2)}, {"split_seed": 3}, {"folds": 3}, {"prior": "uniform"}):
        assert sets_aside(data, **fields(start, **given)), given
    for split, images in (("train", 12), ("test", 4)):
        runs.photos(tmp_path / "split" / split, images=images, seed=images)
    assert sets_aside(tmp_path / "split", **fields(start))


# --- A run --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(data: Path, start: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return runs.followed(data, tmp_path_factory.mktemp("all") / "run", **fields(start))


def test_the_headline_is_of_all_images_and_says_which_model_it_is_of(finished: tuple[Path, str]) -> None:
    folder, said = finished
    assert set(split_from_file(folder / "split.json").splits) == {"train"}
    figures = json.loads((folder / "evaluation.json").read_text())
    headline = headline_of(figures)
    assert (headline.split, headline.images, figures["chosen_on"]) == ("cross-validated", 45, [])
    assert [caveat.kind for caveat in headline.caveats] == ["of_folds"]
    assert figures["headline"] == headline.to_dict()
    assert figures["seen"]["images"] == 0 and "promises" not in figures
    assert figures["temperature"] == load(folder).temperature
    assert headline.words in said and "45 cross-validated images" in (folder / "report.html").read_text()
    assert "every image trains the model" in said and "--split 0.8 0 0.2" in said
    predictions = OutOfFold.read(folder)
    assert predictions is not None and predictions.tested is not None
    assert figures["accuracy"] == pytest.approx((predictions.tested.argmax(axis=1) == predictions.labels).mean())
    assert len((folder / "predictions.csv").read_text().splitlines()) == 46


def test_its_interval_is_that_of_a_cross_validation(finished: tuple[Path, str]) -> None:
    """It is wider than that of as many independent images."""
    figures = json.loads((finished[0] / "evaluation.json").read_text())
    low, high = figures["headline"]["interval_95"]
    n, p = figures["images"], figures["accuracy"]
    assert low < p < high
    assert high - low > 2 * 1.96 * (p * (1 - p) / n) ** 0.5


def test_too_few_for_folds_and_images_seen_before_are_set_aside(tmp_path: Path, data: Path, start: Path) -> None:
    assert sets_aside(runs.photos(tmp_path / "four", images=4, seed=3), **fields(start))
    known = train(runs.quick(data, epochs=1), tmp_path / "known")
    assert sets_aside(data, **fields(known))


def test_an_evaluation_of_the_same_images_states_the_figure_again(finished: tuple[Path, str]) -> None:
    again = vitkit.evaluate(finished[0])
    assert again.headline.value is None, "the model was trained on all of them"
    words = headline_of(json.loads((finished[0] / "evaluation.json").read_text())).words
    assert again.notes[0].endswith(f"cross-validated: {words}")


def test_killed_before_its_report_it_ends_with_the_same_figures(finished: tuple[Path, str], tmp_path: Path) -> None:
    folder = runs.copy_of(finished[0], tmp_path / "run")
    for name in ("report.html", "evaluation.json"):
        (folder / name).unlink()
    resume(folder)
    assert (folder / "evaluation.json").read_bytes() == (finished[0] / "evaluation.json").read_bytes()


@pytest.mark.parametrize("name", ["tested", "temperatures"])
def test_damaged_tests_are_named(finished: tuple[Path, str], tmp_path: Path, name: str) -> None:
    from safetensors.numpy import load_file, save_file

    predictions = finished[0] / "out_of_fold.safetensors"
    data = predictions.read_bytes()
    about = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    arrays = load_file(predictions)
    arrays[name] = np.ascontiguousarray(arrays[name][:1])
    save_file(arrays, tmp_path / "out_of_fold.safetensors", about)
    with pytest.raises(VitkitError, match="is damaged"):
        OutOfFold.read(tmp_path)


def test_the_model_learns_every_image(finished: tuple[Path, str], data: Path, start: Path, tmp_path: Path) -> None:
    aside = vitkit.train(data, vitkit.Recipe(split=(1, 0, 0), method="probe", **fields(start)), out=tmp_path / "aside")
    for (name, ours), theirs in zip(
        load(finished[0]).model.state_dict().items(), aside.classifier.model.state_dict().values(), strict=True
    ):
        assert torch.equal(ours, theirs), name


def test_a_continued_run_tests_the_same_images_in_the_same_way_with_their_earlier_labels(
    finished: tuple[Path, str], data: Path, start: Path, tmp_path: Path
) -> None:
    """The heads that test are fitted as in the first run, without changed labels and without labels of a model."""
    first = vitkit.TrainingRun(finished[0])
    more = Path(shutil.copytree(data, tmp_path / "more"))
    (more / "unlabelled").mkdir()
    save(noise(32, 32, 3), more / "unlabelled" / "new.png")
    names = sorted(path.relative_to(data).as_posix() for path in data.rglob("*.png"))
    red, green = (next(name for name in names if name.startswith(colour)) for colour in ("red", "green"))
    add_edits(
        tmp_path / "labels.csv",
        [
            Edit(red, "blue", "red"),
            Edit(green, EXCLUDED, "green"),
            Edit("unlabelled/new.png", "blue", proposed_by=first.folder.name),
        ],
    )
    lines: list[str] = []
    given = {"labels": str(tmp_path / "labels.csv"), "split_from": str(finished[0])}
    with heard(lines.append):
        second = vitkit.train(more, vitkit.Recipe(**fields(start, **given)), out=tmp_path / "second")
    assert any(f"as in {first.folder.name}" in line for line in lines)
    assert (second.headline.split, second.headline.images) == ("cross-validated", first.headline.images)
    assert second.evaluation["relabelled"]["paths"] == [red]
    assert second.evaluation["with_labels_now"]["images"] == 44
    assert second.evaluation["missing_tests"]["images"] == 1
    predictions = OutOfFold.read(second.folder)
    assert predictions is not None and len(predictions.paths) == 44
    assert not {green, "unlabelled/new.png"} & set(predictions.paths)
    assert len(split_from_file(second.folder / "split.json")) == 45, "the new image is a training image"
    words = "1 label has changed since"
    assert any(words in caveat.text for caveat in second.headline.caveats)
    assert any(words in line for line in lines)


def test_a_continued_run_that_cannot_test_in_the_same_way_is_refused(
    finished: tuple[Path, str], data: Path, start: Path, tmp_path: Path
) -> None:
    first = str(finished[0])
    for given, reason in (
        ({"method": "full"}, "method full does not allow"),
        ({"split": (0.8, 0.0, 0.2)}, "split does not allow"),
        ({"weights": first}, "has seen 45 of the 45 pictures"),
    ):
        recipe = vitkit.Recipe(**{**fields(start), **given, "split_from": first})
        with pytest.raises(VitkitError, match=reason):
            vitkit.train(data, recipe, out=tmp_path / "second")
        assert not (tmp_path / "second" / "split.json").exists()


def test_a_class_with_one_image(start: Path, tmp_path: Path) -> None:
    data = runs.photos(tmp_path / "photos", images=11)
    for file in [*data.glob("red/*.png"), *data.glob("blue/img1?.png"), *data.glob("blue/img[2-9].png")]:
        file.unlink()
    run = vitkit.train(data, vitkit.Recipe(**fields(start)), out=tmp_path / "run")
    assert (run.headline.split, run.headline.images) == ("cross-validated", 12)
    assert run.evaluation["per_class"]["blue"]["recall"] == 0, "no head that was trained without it knows the class"


@pytest.mark.parametrize("seeds", [1, pytest.param(3, marks=pytest.mark.accept)])
def test_shuffled_labels_report_chance(start: Path, tmp_path: Path, seeds: int) -> None:
    right, images, inside = 0.0, 0, list[bool]()
    for seed in range(seeds):
        data = runs.shuffled(runs.photos(tmp_path / f"photos-{seed}", images=15, noise=200, seed=seed), seed)
        run = vitkit.train(data, vitkit.Recipe(seed=seed, **fields(start)), out=tmp_path / f"run-{seed}")
        assert run.headline.split == "cross-validated" and run.headline.interval is not None
        right += run.headline.images * run.accuracy
        images += run.headline.images
        inside.append(run.headline.interval[0] <= 1 / 3)
    assert right / images - 1 / 3 < 3 * (2 / 9 / images) ** 0.5
    assert all(inside)
