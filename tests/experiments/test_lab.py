"""`vitkit lab`: every experiment can be built, says what it found, and goes on where it was stopped."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng

import runs
import tiny
import vitkit as package
from hearing import heard
from refusals import refused
from vitkit.classifier import Classifier
from vitkit.cli.app import app
from vitkit.data import Preprocess, read_source
from vitkit.errors import Interrupted
from vitkit.evaluation import Units
from vitkit.experiments import (
    EXPERIMENTS,
    Ablation,
    Measurement,
    RunPredictions,
    base_config,
    base_fields,
    claims_of,
    model_variant,
    pairs_against,
    summary_of,
    variant_fields,
)
from vitkit.experiments.lab import AblationVariant, cost, data_size, result_of
from vitkit.experiments.lab import ablations as few_shot
from vitkit.experiments.lab import lab as verb
from vitkit.model import ViTConfig, config_for
from vitkit.model.build import build
from vitkit.profiling import describe
from vitkit.training import Recipe, bundled, complete, config_of, without_vit_fields

ABLATIONS = {name: own for name, own in EXPERIMENTS.items() if isinstance(own, Ablation)}


@pytest.fixture(scope="module")
def photos() -> Path:
    return runs.shared_photos()


MICRO = {"data": "d", "model": "vit_micro_patch4_16", "weights": "none"}


def recipes_of(name: str, base: dict[str, Any]) -> list[Recipe]:
    """Of each variant of an ablation."""
    variants = ABLATIONS[name].variants(base_config(base))
    return [without_vit_fields(Recipe.of(variant_fields(base, {}, variant)))[0] for variant in variants]


@pytest.mark.parametrize("model", ["vit_micro_patch4_16", "vit_base_patch16_224"])
@pytest.mark.parametrize("name", ABLATIONS)
def test_every_variant_can_be_built_and_differs_from_the_others(name: str, model: str) -> None:
    own, base = ABLATIONS[name], {**MICRO, "model": model, "lr": 0.008}
    variants, recipes = own.variants(base_config(base)), recipes_of(name, base)
    labels = [variant.label for variant in variants]
    assert len(set(labels)) == len(labels) > 1
    assert {own.against, *own.better} <= set(labels)
    assert own.recipe in bundled() or name in ("resolution", "pretraining", "optimizer")
    configs = [config_of(recipe, 10) for recipe in recipes]
    if name == "pretraining":
        assert {variant.pretraining.get("objective") for variant in variants} == {None, "masked-patch", "mae"}
    elif name != "resolution":
        assert {config.image_size for config in configs} == {config_for(model).image_size}
        trained = {(config, recipe.lr, recipe.epochs) for config, recipe in zip(configs, recipes, strict=True)}
        assert len(trained) == len(labels)


def test_the_published_recipe_is_the_papers() -> None:
    head, pooling = (base_fields(ABLATIONS[name], "photos", "paper", {}) for name in ("head", "pooling"))
    parameters = [describe(config_of(recipe, 21_843)).parameters for recipe in recipes_of("head", head)]
    assert parameters == [102_595_923, 103_186_515]
    rates = [recipe.lr for recipe in recipes_of("pooling", pooling)]
    assert rates == pytest.approx([8e-4, 8e-4, 3e-4]), "the two rates of Figure 9"


def test_the_experiments_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    found = package.lab()
    assert [line.split()[0] for line in found.lines()] == list(EXPERIMENTS) == list(found.to_dict())
    app(["lab"], standalone_mode=False)
    assert capsys.readouterr().out.splitlines() == found.lines()


def test_the_papers_positions_are_those_of_the_same_column() -> None:
    for where, paper in (
        ({}, ["61.382", "64.206", "64.001", "64.032", None]),
        ({"position_at": "every_layer"}, [None, "63.964", "64.046", None, None]),
        ({"position_at": "shared"}, [None, "64.292", "64.022", None, None]),
    ):
        base = config_for("vit_micro_patch4_16", **where)
        assert [variant.paper for variant in ABLATIONS["position"].variants(base)] == paper
    deep = {"model_fields": {"layers": 2}}  # fields of variants stay with those of the base
    fields = variant_fields({**MICRO, **deep}, deep, model_variant("none", position="none"))
    assert fields["model_fields"] == {"layers": 2, "position": "none"}
    recipes = recipes_of("regularisation", {**MICRO, "model_fields": {"position_dropout": 0.1}})
    rates = [(config.dropout, config.position_dropout) for config in (config_of(own, 10) for own in recipes)]
    assert rates == [(0, 0), (0.1, 0.1), (0, 0)], "dropout is after the positions, too"


def test_the_resnet_is_as_large_as_the_vit() -> None:
    recipes = recipes_of("hybrid", base_fields(ABLATIONS["hybrid"], "photos", "small", {"drop_path": 0.0}))
    models = [build(config_of(recipe, 10)) for recipe in recipes]
    parameters = [sum(each.numel() for each in model.parameters()) for model in models]
    assert max(parameters) < 1.5 * min(parameters)


def test_a_resnet_is_trained_with_sgd_and_with_adam() -> None:
    base = {**MICRO, "lr": 0.001, "drop_path": 0.0}
    sgd, adam = recipes_of("optimizer", base)
    assert (sgd.optimizer, sgd.momentum, sgd.lr, adam.optimizer, adam.lr) == ("sgd", 0.9, 0.01, "adamw", 0.001)
    assert sgd.model == adam.model == "custom:bit_resnet_micro"
    papers = {"SGD": (78.24, 97.46, 85.17, 91.00, 92.06), "Adam": (77.54, 97.67, 86.07, 91.11, 94.26)}  # Table 7
    printed = {own.label: own.paper for own in ABLATIONS["optimizer"].variants(base_config(base))}
    assert printed == {name: f"{np.mean(row):.2f}" for name, row in papers.items()}


def test_each_block_becomes_attention_in_rows_and_then_in_columns() -> None:
    whole, deeper, axial = (config_of(recipe, 10) for recipe in recipes_of("axial", MICRO))
    assert (whole.layers, deeper.layers, axial.layers) == (4, 8, 8)
    assert (axial.attention, axial.prefix_tokens) == ("axial", 0), "as in app. D.6, there is no class token"
    assert describe(axial).parameters == describe(deeper).parameters
    assert describe(whole).gmacs < describe(axial).gmacs < describe(deeper).gmacs


def test_the_model_that_is_compared_with_the_resnet_can_be_chosen() -> None:
    own, chosen = ABLATIONS["hybrid"], {"model": "vit_micro_patch8_16", "image_size": 32, "drop_path": 0.0}
    base = base_fields(own, "photos", "small", chosen)
    fields = [variant_fields(base, chosen, variant) for variant in own.variants(base_config(base))]
    assert {each["image_size"] for each in fields} == {32}
    assert "custom:bit_resnet_micro" in {each["model"] for each in fields}
    digits = base_fields(ABLATIONS["position"], "digits", "small", {"lr": 0.5})
    assert (digits["model"], digits["rotate"], digits["lr"]) == ("vit_micro_patch4_16", 8.0, 0.5)
    assert digits["epochs"] < 70 and base_config(base_fields(own, "photos", "small", {})).image_size == (32, 32)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"name": "positon"}, "text.value-wrong"),
        ({"name": "position", "model_fields": {"position": "none"}}, "experiments.field-varied"),
        ({"name": "optimizer", "lr": 0.1, "optimizer": "sgd"}, "experiments.field-varied"),
        ({"name": "position", "folds": 3}, "experiments.field-refused"),
        ({"name": "position", "seeds": 0}, "text.value-outside"),
        ({"name": "few-shot"}, "experiments.argument-missing"),
        ({"name": "few-shot", "model": "m", "epochs": 3}, "experiments.argument-unused"),
        ({"name": "few-shot", "model": "m", "preset": "paper"}, "experiments.recipe-missing"),
        ({"name": "hybrid", "model": "vit_micro_patch2_16"}, "experiments.model-unsuitable"),
        ({"name": "norm", "model": "torchvision:resnet18"}, "experiments.model-unsuitable"),
        ({"name": "cost"}, "experiments.argument-unused"),
        ({"name": "cost", "data": None, "preset": "paper", "model": "m"}, "experiments.argument-unused"),
        ({"name": "norm", "data": None, "preset": "paper"}, "experiments.argument-missing"),
        ({"name": "norm", "upstream": "photos"}, "experiments.argument-unused"),
        ({"data": None, "model": "vit_nope"}, "experiments.experiment-missing"),
        ({"data": None, "resume": True}, "experiments.argument-missing"),
        ({"data": None, "resume": True, "name": "position"}, "experiments.argument-changed"),
        ({"name": "data-size", "upstream": "photos", "model": "vit_micro_patch8_16"}, "experiments.sources-overlap"),
        ({"name": "data-size", "model": "vit_micro_patch8_16"}, "experiments.data-not-halved"),
        ({"name": "data-size", "upstream": "photos", "model": "a, b,a"}, "experiments.model-twice"),
    ],
)
def test_what_cannot_be_done_is_refused(photos: Path, arguments: dict[str, Any], code: str) -> None:
    own = {"data": photos, **arguments} | ({"upstream": photos} if "upstream" in arguments else {})
    with refused(code):
        package.lab(**runs.divided(package.lab, **own))


def predictions_of(**accuracy: float) -> RunPredictions:
    """Predictions of three trainings of each variant for 400 images, correct with this probability."""
    correct = {
        (label, seed): row
        for label, part in accuracy.items()
        for seed, row in enumerate(default_rng(0).random((3, 400)) < part)
    }
    paths = tuple(map(str, range(400)))
    return RunPredictions(1.0, paths, ("a",) * 400, correct, Units.of(400, None))


def test_a_claim_is_held_by_the_test_of_the_verdicts() -> None:
    judged = predictions_of(none=0.6, better=0.8, same=0.61, worse=0.4)
    own = replace(ABLATIONS["position"], against="none", better=("better", "same", "worse"))
    pairs = pairs_against("none", ["none", "better", "same", "worse"], judged)
    assert [claim["outcome"] for claim in claims_of(own, pairs, 3)] == ["held", "not shown", "the other way round"]
    for pair in pairs:
        exact = judged.correct_of(pair["a"]).mean() - judged.correct_of("none").mean()
        assert pair["difference"] == pytest.approx(exact)
        assert pair["interval"][0] < exact < pair["interval"][1]
        assert pair["p"] >= pair["p_alone"], "corrected for three pairs"
    assert "better is better than none here" in pairs[0]["verdict"]
    assert "for other seeds this is undecided" in pairs[1]["verdict"]


def test_a_claim_never_contradicts_its_verdict() -> None:
    """Alone, the first difference would be significant (its interval is above 0); among eight pairs, it is not."""
    right = {"none": 0.60, "a": 0.64, **{f"b{i}": 0.60 + i / 1000 for i in range(7)}}
    judged = predictions_of(**right)
    pairs = pairs_against("none", list(right), judged)
    first = next(pair for pair in pairs if pair["a"] == "a")
    assert first["p_alone"] < 0.05 <= first["p"] and first["interval"][0] > 0
    own = replace(ABLATIONS["position"], against="none", better=("a",))
    assert "for other seeds this is undecided" in first["verdict"]
    assert [claim["outcome"] for claim in claims_of(own, pairs, 3)] == ["not shown"]
    assert summary_of(pairs, 3).startswith("also with other seeds: a, b0, b1"), "none can be distinguished"


SMALL = {**runs.SIZE, "layers": 1}
QUICK = {"model": "vit_micro_patch8_16", "epochs": 1, "batch_size": 8, "precision": "float32", "workers": 0, "seeds": 2}


def small(**fields: Any) -> dict[str, Any]:
    """Arguments of a quick experiment."""
    return runs.divided(package.lab, **{**QUICK, "model_fields": SMALL, **fields})


@contextmanager
def stopped_at(beginning: str) -> Iterator[None]:
    """By a signal, once such a line is said."""

    def stop(line: str) -> None:
        if line.startswith(beginning):
            raise Interrupted(2)

    with pytest.raises(Interrupted), heard(stop):
        yield


@pytest.fixture(scope="module")
def done(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> package.Result:
    """Stopped by a signal after its first run, and gone on with."""
    out = tmp_path_factory.mktemp("lab") / "norm"
    with stopped_at("run 1 of 4"):
        package.lab("norm", photos, **small(), out=out)
    said: list[str] = []
    with heard(said.append):
        found = package.lab(resume=True, out=out)
    assert said[0] == "1 of 4 runs are finished already"
    assert isinstance(found, package.Result)
    return found


def test_an_experiment_is_its_runs(done: package.Result) -> None:
    figures = json.loads((done.folder / "lab.json").read_text())
    assert figures == json.loads(json.dumps(done.figures))
    pre, post = figures["variants"]
    for own, norm in ((pre, "pre"), (post, "post")):
        config = [package.load(done.folder / run["folder"]).model.config for run in own["runs"]]
        assert {(each.norm, each.layers) for each in config} == {(norm, 1)}
        evaluations = [json.loads((done.folder / run["folder"] / "evaluation.json").read_text()) for run in own["runs"]]
        accuracies = [each["accuracy"] for each in evaluations]
        assert [run["accuracy"] for run in own["runs"]] == accuracies
        assert own["accuracy"] == pytest.approx(np.mean(accuracies))
        assert own["interval"][0] <= own["accuracy"] <= own["interval"][1]
    (pair,) = figures["pairs"]
    assert pair["difference"] == pytest.approx(post["accuracy"] - pre["accuracy"])
    splits = [json.loads(file.read_text())["splits"] for file in done.folder.glob("runs/*/split.json")]
    assert all(own["test"] == splits[0]["test"] for own in splits)


def test_the_page_says_how_to_do_it_again_and_done_again_it_is_the_same_and_never_written_over(
    done: package.Result,
) -> None:
    page, lines = unescape(done.page.read_text()), "\n".join(done.lines())
    assert all(text in page and text in lines for text in ("pre-norm", "post-norm", done.experiment.differs))
    (command,) = re.findall(r"<code>(.*?)</code>", page)
    words = re.sub("<[^>]+>", "", command)
    assert words.startswith("vitkit lab norm --data photos") and "--set model.layers=1" in words
    assert package.lab(resume=True, out=done.folder).to_dict() == done.figures
    with refused("experiments.folder-taken"):
        package.lab("norm", "digits", **small(), out=done.folder)


PARTS = (1 / 3, 1.0)  # of the images to pre-train on; an experiment has a ninth of them, too


@pytest.fixture(scope="module")
def transferred(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> package.Result:
    """Two models, pre-trained on photographs of one kind and transferred to those of another."""
    root = tmp_path_factory.mktemp("transfer")
    upstream = runs.photos(root / "upstream", images=18, seed=7)
    own = small(model="vit_micro_patch8_16,vit_micro_patch4_16", seeds=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_size, "SIZES", PARTS)
        found = package.lab("data-size", photos, **own, upstream=upstream, out=root / "lab")
    assert isinstance(found, package.Result)
    return found


def test_every_model_is_pre_trained_on_each_part_and_transferred(transferred: package.Result) -> None:
    figures, folder = transferred.figures, transferred.folder
    counts = [part["images"] for part in figures["models"][0]["by_size"]]
    assert counts == [round(part * counts[-1]) for part in PARTS]
    for place, model in enumerate(figures["models"]):
        for part in model["by_size"]:
            run = next(folder.glob(f"runs/{place + 1}-*-{part['images']}-seed0"))
            before = Path(f"{run}-pretrained")
            learned = json.loads((before / "split.json").read_text())["splits"]["train"]
            assert sum(map(len, learned.values())) == part["images"]
            assert package.load(run).provenance["weights"]["source"] == before.name
            evaluation = json.loads((run / "evaluation.json").read_text())
            assert part["fine_tuned"]["accuracy"] == pytest.approx(evaluation["accuracy"])
            assert part["few_shot"]["interval"][0] <= part["few_shot"]["accuracy"] <= part["few_shot"]["interval"][1]
    assert {pair["fraction"] for pair in figures["pairs"]} == set(PARTS)
    page = transferred.page.read_text(encoding="utf-8")
    assert page.count("data:image/svg+xml") == 3
    assert figures["sentence"] in transferred.lines()


def test_digits_are_halved_by_class(tmp_path: Path) -> None:
    from vitkit.experiments import split_by_class

    upstream, downstream = map(read_source, split_by_class("digits", tmp_path))
    assert (upstream.classes, downstream.classes) == (tuple("02468"), tuple("13579"))
    assert len(upstream) + len(downstream) == 1797


def test_too_few_images_to_pre_train_on_are_refused_before_anything_is_trained(photos: Path, tmp_path: Path) -> None:
    few = runs.photos(tmp_path / "few", images=10, seed=7)
    with refused("experiments.images-few", "21", "at least 23"):
        package.lab("data-size", photos, **small(seeds=1), upstream=few, out=tmp_path / "lab")
    assert not list((tmp_path / "lab").rglob("*.*"))


def test_the_papers_pre_trainings_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    large = "paper-vit-l16-jft"
    table = {name: own for name, own in cost.TABLE_2.items() if own[0] in (None, large)}
    monkeypatch.setattr(cost, "TABLE_2", table)
    costs = package.lab("cost", preset="paper")
    (same,) = (own for own in costs.figures["models"] if own.get("recipe") == large)
    assert (same["parameters"], same["paper_core_days"]) == (323_099_507, 680), "with the representation layer"
    guide = (Path(__file__).parents[2] / "docs/guide/lab.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| L/16, .* \| {same['core_days']:,.0f} \| 680 \|", guide, re.MULTILINE)
    assert "87.76" in "\n".join(costs.lines())


def test_models_are_timed_on_two_sizes_of_images(tmp_path: Path) -> None:
    name = "custom:bit_resnet_micro"
    found = package.lab("cost", recipe=package.Recipe(image_size=16), model=name, out=tmp_path / "cost")
    models = json.loads((tmp_path / "cost/lab.json").read_text())["models"]
    assert [(model["name"], model["image_size"]) for model in models] == [(name, 16), (name, 32)]
    for model in models:
        low, high = model["quartiles"]
        assert 0 < low <= model["images_per_s"] <= high
    assert models[1]["gmacs"] == pytest.approx(4 * models[0]["gmacs"], rel=0.1), "a convolution's grow with the pixels"
    assert "four times the pixels take" in "\n".join(found.lines())


def test_the_sentence_says_what_all_pairs_say() -> None:
    def said(*pairs: tuple[str, float, float, float]) -> str:
        rows = [{"a": a, "b": "x", "difference": gain, "p": p, "trained": {"p": of}} for a, gain, p, of in pairs]
        return summary_of(rows, 3).removeprefix("also with other seeds: ")

    assert said(("a b", 0.2, 0.01, 0.01), ("c", -0.2, 0.01, 0.01), ("d", 0.1, 0.3, 0.01)) == (
        "“a b” is better than x; c is worse than x; d cannot be distinguished from x"
    )
    assert said(("a", 0.2, 0.01, 0.01), ("b", 0.1, 0.02, 0.2)) == "a and b are better than x"


def test_the_papers_tables_agree_with_each_other() -> None:
    """Models are in both tables: those of Table 5 on JFT-300M are of 7 epochs in Table 6, and L/16 is of 14."""
    by_computation, by_images = (EXPERIMENTS[name].printed for name in ("hybrid", "data-size"))
    assert by_computation is not None and by_images is not None
    by_data = {name: dict(points)[303e6] for name, points in by_images.lines.items()}
    scaling = dict(by_computation.lines["ViT"])
    assert [by_data[f"ViT-{name}"] for name in ("B/32", "B/16", "L/32", "L/16")] == [
        scaling[flops] for flops in (55, 224, 196, 1567)
    ]
    for points in (*by_computation.lines.values(), *by_images.lines.values()):
        assert [x for x, _ in points] == sorted({x for x, _ in points})
    hybrid, resnet = (dict(by_computation.lines[name]) for name in ("hybrid", "ResNet"))
    assert all(hybrid[flops] > max(v for f, v in scaling.items() if f <= flops) for flops in (106, 246, 274, 859))
    assert all(resnet[flops] < min(v for f, v in scaling.items() if f >= flops) for flops in resnet)


def test_pictures_have_every_variant_and_the_papers_numbers_next_to_ours(done: package.Result) -> None:
    def pictures(**changed: Any) -> dict[str, Any]:
        experiment = replace(done.experiment, **changed)
        shown = done.figures, done.headings, done.cells, done.remarks, done.folder, done.arrays
        return dict(result_of(experiment, *shown).pictures())

    for kind in ("dots", "curves", "computation"):
        (drawn,) = pictures(picture=kind).values()
        texts = [text.get_text() for text in drawn().findobj(lambda own: hasattr(own, "get_text"))]
        assert {"pre-norm", "post-norm"} <= set(texts)
    for printed in (EXPERIMENTS["hybrid"].printed, EXPERIMENTS["data-size"].printed):
        (axis,) = pictures(printed=printed)[printed.caption]().axes
        lines = {str(line.get_label()): line.get_xydata() for line in axis.lines}
        assert lines.keys() == printed.lines.keys()
        for label, points in printed.lines.items():
            np.testing.assert_allclose(lines[label] * (1, 100), points)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    Classifier(tiny.build(image_size=(16, 16), num_classes=3), ("a", "b", "c"), Preprocess(size=(16, 16))).save(folder)
    return folder


def test_images_of_which_none_can_be_held_out_are_refused(model: Path, tmp_path: Path) -> None:
    few = runs.photos(tmp_path / "few", images=1)
    for name in (name for name, own in EXPERIMENTS.items() if isinstance(own, Measurement)):
        with refused("experiments.test-images-few"):
            package.lab(name, few, model=model, seeds=1, out=tmp_path / name)
        assert not list((tmp_path / name).rglob("*.*"))


def test_few_shot_counts_what_ridge_regression_has_right(photos: Path, model: Path, tmp_path: Path) -> None:
    """The oracle is scikit-learn's, from the features that `vitkit embed` writes."""
    from sklearn.linear_model import RidgeCV

    from vitkit.experiments import subject_of

    found = package.lab("few-shot", photos, model=model, seeds=2, out=tmp_path / "lab").to_dict()["few_shot"]
    assert [own["shots"] for own in found] == [1, 2, 5]
    subject = subject_of(str(model), str(photos), 2, 0)
    train, test = subject.table.of_split("train"), subject.table.of_split("test")
    x, x_test = (
        np.array([package.load(model).embed([part.root / path], "head").__next__()[1] for path in part.paths])
        for part in (train, test)
    )
    labels, true = np.array(train.labels), np.array(test.labels)
    for own in found[1:]:
        for seed, accuracy in enumerate(own["by_seed"]):
            chosen = few_shot.draw_images(labels, own["shots"], seed)
            few = x[chosen].astype(np.float64)
            scale = ((few - few.mean(axis=0)) ** 2).mean()
            targets = np.where(labels[chosen][:, None] == np.arange(3), 1.0, -1.0)
            ridge = RidgeCV(alphas=[scale * penalty for penalty in few_shot.PENALTIES]).fit(few, targets)
            assert accuracy == pytest.approx((ridge.predict(x_test).argmax(axis=1) == true).mean())


def test_more_shots_have_the_fewer_among_them() -> None:
    labels = default_rng(0).integers(0, 4, 200)
    for seed in range(3):
        five, ten = (set(few_shot.draw_images(labels, shots, seed)) for shots in (5, 10))
        assert five < ten and np.bincount(labels[list(ten)]).tolist() == [10] * 4
    assert set(few_shot.draw_images(labels, 5, 0)) != set(few_shot.draw_images(labels, 5, 1))
    ones = np.array([1, 1, 1, 1, 0, 0])  # features that say nothing leave the largest class
    assert few_shot.fit_and_predict(np.ones((6, 4)), ones, np.ones((3, 4)), 2).tolist() == [1, 1, 1]


def test_attention_distances_are_the_models(photos: Path, model: Path, tmp_path: Path) -> None:
    from vitkit.explanation import uniform_distance

    found = package.lab("attention-distance", photos, model=model, out=tmp_path / "lab")
    own = package.load(model).model
    assert np.array(found.figures["attention_distance"]).shape == (own.config.layers, own.config.heads)
    assert len(found.rows()) == own.config.layers
    h, w = own.config.grid
    places = np.stack(np.meshgrid(range(h), range(w), indexing="ij"), -1).reshape(-1, 2) * own.config.patch_size[0]
    every = np.linalg.norm(places[:, None] - places[None], axis=-1).mean()
    assert uniform_distance(own) == pytest.approx(every)
    assert found.figures["everywhere"] == pytest.approx(every)
    assert "test images, evenly spread" in "\n".join(found.lines())


def test_a_variant_starts_from_the_run_of_its_seed(photos: Path, tmp_path: Path) -> None:
    """Wherever the experiment's folder has been moved to in the meantime."""
    with stopped_at("run 1 of 3"):
        package.lab("resolution", photos, **small(seeds=1), out=tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    found = package.lab(resume=True, out=tmp_path / "there")
    trained, same, larger = found.figures["variants"]
    for own, size in ((trained, 16), (same, 16), (larger, 32)):
        classifier = package.load(tmp_path / "there" / own["runs"][0]["folder"])
        assert classifier.model.config.image_size == (size, size)
        if own is not trained:
            assert classifier.provenance["weights"]["source"] == Path(trained["runs"][0]["folder"]).name
    assert larger["gmacs"] > 3 * same["gmacs"]


def test_pretraining_learns_from_all_training_images_and_tests_none(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few labels there are; a run that was pre-trained for has its split, and stopped it goes on."""
    ablation = ABLATIONS["pretraining"]

    def shortened(base: ViTConfig) -> list[AblationVariant]:
        variants = ablation.variants(base)
        return [replace(own, pretraining=own.pretraining and {**own.pretraining, "epochs": 2}) for own in variants]

    monkeypatch.setitem(EXPERIMENTS, "pretraining", replace(ablation, variants=shortened))
    own = small(model="vit_micro_patch4_16", seeds=1, max_images=9)
    with stopped_at("run 3 of 4"):
        package.lab("pretraining", photos, **own, out=tmp_path / "lab")
    found = package.lab(resume=True, out=tmp_path / "lab")
    folders = [tmp_path / "lab" / own["runs"][0]["folder"] for own in found.figures["variants"]]
    splits = [json.loads((folder / "split.json").read_text())["splits"] for folder in folders]
    assert all(own["test"] == splits[0]["test"] for own in splits)
    for own, folder in zip(found.figures["variants"], folders, strict=True):
        assert own["parameters"] == sum(each.numel() for each in package.load(folder).model.parameters())
    tested = {path for paths in splits[0]["test"].values() for path in paths}
    for folder, objective in zip(folders[2:], ("masked-patch", "mae"), strict=True):
        encoder = Path(f"{folder}-pretrained")
        assert package.load(encoder).provenance["pretraining"]["objective"] == objective
        learned = json.loads((encoder / "split.json").read_text())["splits"]["train"]
        assert len(seen := {path for paths in learned.values() for path in paths}) > 9
        assert not seen & tested
        assert package.load(folder).provenance["weights"]["source"] == encoder.name


def test_a_training_after_pretraining_has_the_recipe_of_one_from_scratch(photos: Path) -> None:
    ablation, table = ABLATIONS["pretraining"], read_source(photos)
    base = base_fields(ablation, str(photos), "small", {})
    recipes = []
    for variant in ablation.variants(base_config(base)):
        weights = {"weights": "somewhere"} if variant.pretraining else {}
        recipes.append(complete(Recipe.of({**variant_fields(base, {}, variant), **weights}), table)[0].to_dict())
    fresh, longer, *tuned = recipes
    assert {name for name in fresh if longer[name] != fresh[name]} == {"epochs"}
    assert {name for own in tuned for name in fresh if own[name] != fresh[name]} <= {"weights", "method"}


def test_the_command_that_does_it_again_is_one_that_a_shell_takes() -> None:
    options = {"split": (0.3, 0.1, 0.6), "seeds": 3, "max_images": 9, "model_fields": {"position": None}}
    words = "vitkit lab head --data digits --set split=0.3,0.1,0.6 --set max_images=9 --set model.position=none"
    assert verb._command(EXPERIMENTS["head"], "/somewhere/digits", options) == words


def test_a_recipe_file_names_the_data_and_divides_nothing(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    for text, code in (('data = "nowhere"\n', "data.source-missing"), ("folds = 2\n", "experiments.field-refused")):
        recipe.write_text(text)
        with refused(code):
            package.lab("head", recipe=recipe, out=tmp_path / "out")
