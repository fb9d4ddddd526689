"""Comparisons from beginning to end: one split for all, nothing lost when killed, and what is refused at once."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import runs
import vitkit
from hearing import heard
from refusals import refused
from vitkit.data import Edit, add_edits, split_from_file
from vitkit.evaluation import Units
from vitkit.experiments import ComparisonImages, Family, RunPredictions, comparison_plan, comparison_runs, findings_of
from vitkit.experiments.compare import compare
from vitkit.model import config_for
from vitkit.profiling import describe
from vitkit.training import DivergedError

A, B = "vit_micro_patch8_16", "vit_micro_patch4_16"
OF_ANY_MODEL: dict[str, Any] = {name: value for name, value in runs.QUICK.items() if name not in ("model", "epochs")}
FIELDS: dict[str, Any] = {**OF_ANY_MODEL, "epochs": 1, "model_fields": {**runs.SIZE, "layers": 1}}
CLOCKS = {"seconds", "train_images_per_s", "predict_images_per_s"}


def timeless(value: Any) -> Any:
    """Figures without those of the clock."""
    if isinstance(value, dict):
        return {key: timeless(own) for key, own in value.items() if key not in CLOCKS}
    return [timeless(own) for own in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.photos(tmp_path_factory.mktemp("compare") / "photos", images=20, noise=120)


def plan_of(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "plan.json").read_text(encoding="utf-8"))["plan"])


class _Killed(BaseException):
    """As a power cut would."""


def planned(out: Path, *arguments: Any, **options: Any) -> tuple[dict[str, Any], list[str]]:
    """The plan of a comparison of which nothing is trained, and what was said."""
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch, pytest.raises(_Killed), heard(lines.append):
        patch.setattr(comparison_runs, "train_all", Mock(side_effect=_Killed))
        compare(*arguments, **options, out=out)
    return plan_of(out), lines


@pytest.fixture(scope="module")
def found(data: Path, tmp_path_factory: pytest.TempPathFactory) -> vitkit.Result:
    """Two models at two fractions, that tests may read but not change."""
    out = tmp_path_factory.mktemp("compared") / "out"
    return compare(data, [A, B], vitkit.Recipe(seed=3, **FIELDS), seeds=2, fractions=[0.5, 1], out=out)


@pytest.fixture
def copied(found: vitkit.Result, tmp_path: Path) -> Path:
    return Path(shutil.copytree(found.folder, tmp_path / "out"))


def test_every_run_is_judged_by_the_same_images(found: vitkit.Result) -> None:
    tables = [split_from_file(folder / "split.json") for folder in (found.folder / "runs").iterdir()]
    assert len(tables) == 2 * 2 * 2
    judged = {name: {frozenset(own.of_split(name).paths) for own in tables} for name in ("train", "val", "test")}
    assert (len(judged["val"]), len(judged["test"])) == (1, 1)
    whole = max(judged["train"], key=len)
    halves = judged["train"] - {whole}
    assert len(halves) == 2  # a fresh one for each seed, the same for the models
    assert all(own < whole and len(own) == len(whole) // 2 for own in halves)


def test_the_figures_are_those_of_the_runs(found: vitkit.Result) -> None:
    stored = json.loads((found.folder / "comparison.json").read_text(encoding="utf-8"))
    assert stored == found.to_dict()
    assert [own["name"] for own in stored["models"]] == [A, B]
    assert len(stored["test_hash"]) == 64
    for model in stored["models"]:
        assert [(run["fraction"], run["seed"]) for run in model["runs"]] == [(0.5, 3), (0.5, 4), (1, 3), (1, 4)]
        whole = [run["accuracy"] for run in model["runs"] if run["fraction"] == 1]
        assert model["accuracy"] == pytest.approx(sum(whole) / 2)
        assert model["interval"][0] <= model["accuracy"] <= model["interval"][1]
        assert model["parameters"] > 0 and model["gmacs"] > 0 and model["predict_images_per_s"] > 0
        for run in model["runs"]:
            own = json.loads((found.folder / run["folder"] / "evaluation.json").read_text(encoding="utf-8"))
            assert (run["accuracy"], run["loss"], run["ece"]) == (own["accuracy"], own["loss"], own["ece"])
    with (found.folder / "comparison.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["model"] for row in rows] == [name for name in (A, B) for _ in range(4)]


def test_each_pair_has_a_verdict_at_each_fraction(found: vitkit.Result) -> None:
    for pair in found.pairs:
        assert "better" in pair["verdict"] or "cannot be distinguished" in pair["verdict"]
        assert pair["interval"][0] <= pair["difference"] <= pair["interval"][1]
    assert {(pair["fraction"], pair["a"], pair["b"]) for pair in found.figures["pairs_by_fraction"]} == {
        (fraction, pair["a"], pair["b"]) for fraction in (0.5, 1) for pair in found.pairs
    }


def test_it_is_shown(found: vitkit.Result) -> None:
    lines = found.lines()
    assert lines[0].endswith("12 test images, 2 seeds")
    assert {*found.verdicts, *found.summary[1:]} <= set(lines)
    assert lines[-1].startswith(f"{found.summary[0]}, on 12 test images (")
    assert lines[-2].removesuffix(".") in repr(found)
    best, luck = found.figures["best"], found.figures["luck"]
    assert best["of"] == 2 and best["model"] in (A, B)
    assert best["interval"][0] <= best["expected"] <= best["measured"] == max(own["accuracy"] for own in found.models)
    assert luck["trainings"] == 4 and luck["by_model"].keys() == {A, B}
    assert "measured" in found.summary[0] and "correction for its selection" in found.summary[0]
    assert "expected accuracy" in found.report.read_text(encoding="utf-8")
    assert "<table>" in found._repr_html_()


@pytest.mark.parametrize("when", ["at once", "epoch"])
def test_killed_anywhere_and_resumed_it_gives_the_same(found: vitkit.Result, copied: Path, when: str) -> None:
    """The first two runs are there; the third is killed before its recipe is written, or in the midst of training."""
    third = plan_of(copied)["jobs"][2]["folder"]
    for name in ("comparison.json", "comparison.csv"):
        (copied / name).unlink()
    shutil.rmtree(copied / third)

    def kill(what: str, done: int, total: int | None) -> None:
        if when in what or when == "at once":
            raise _Killed

    with pytest.raises(_Killed):
        compare(out=copied, resume=True, progress=kill)
    assert not (copied / "comparison.json").exists()
    assert timeless(compare(out=copied, resume=True).to_dict()) == timeless(found.to_dict())


def test_a_model_whose_training_leads_nowhere_is_left_out_and_the_reader_told(
    found: vitkit.Result, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = next(job["folder"] for job in plan_of(copied)["jobs"] if job["model"] == B and job["seed"] == 4)
    shutil.rmtree(copied / lost)
    monkeypatch.setattr(comparison_runs, "train_job", Mock(side_effect=DivergedError("past help")))
    lines: list[str] = []
    with heard(lines.append):
        left = compare(out=copied, resume=True)
    assert [model["name"] for model in left.models] == [A]
    assert timeless(left.models[0])["runs"] == timeless(found.models[0])["runs"]
    (told,) = (note for note in left.figures["notes"] if "left out" in note)
    assert f"{B}, seed 4" in told and told.endswith("past help")
    assert told in lines and told in left.report.read_text(encoding="utf-8")
    shutil.rmtree(copied / "runs")
    with refused("experiments.training-diverged", f"{A}, seed", f"{B}, seed"):
        compare(out=copied, resume=True)


def test_a_run_that_was_judged_by_other_images_is_refused(copied: Path) -> None:
    plan = json.loads((copied / "plan.json").read_text(encoding="utf-8"))
    plan["plan"]["test_hash"] = "0" * 64
    (copied / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    with refused("experiments.test-images-differ"):
        compare(out=copied, resume=True)


def test_arguments_are_not_given_again(found: vitkit.Result) -> None:
    for name, value in {"models": [A], "fractions": "0.3,1", "seeds": 5, "lr": 0.5}.items():
        with refused("experiments.argument-changed"):
            compare(**runs.divided(compare, **{name: value}), out=found.folder, resume=True)


def test_a_folder_that_is_taken(found: vitkit.Result, data: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    for folder in (found.folder, tmp_path):
        with refused("experiments.folder-taken"):
            compare(data, [A], vitkit.Recipe(**FIELDS), out=folder)
    with refused("experiments.plan-missing"):
        compare(out=tmp_path, resume=True)
    with refused("experiments.argument-missing"):
        compare(resume=True)


@pytest.mark.parametrize(
    ("models", "fields", "code", "named"),
    [
        ([A, B, f"{A}@no/such/file.pth"], {}, "weights.source-missing", "file.pth"),
        ([A, f"{A}@"], {}, "experiments.models-invalid", A),
        ([A, B, f"{A}@none"], {}, "experiments.model-twice", f"{A} and {A}@none"),
        ([A, "none-such.toml"], {}, "training.recipe-unknown", "none-such.toml"),
        (["some.toml"], {"recipe": "digits"}, "experiments.recipe-twice", "some.toml"),
        ([A], {"budget": "time=soon"}, "experiments.budget-invalid", "soon"),
        ([A], {"budget": "flops=many"}, "experiments.budget-invalid", "many"),
        ([A], {"budget": "flops=1e9", "epochs": 3}, "experiments.budget-twice", ""),
        ([A], {"fractions": "0,1"}, "experiments.fractions-invalid", ""),
        ([A], {"fractions": "0.01,1"}, "data.limit-too-small", "0.01"),
        ([A, "torchvision:resnet0"], {}, "model.name-unknown", "resnet0"),
        ([A], {"model": B}, "experiments.field-refused", "model"),
        (None, {}, "experiments.argument-missing", "models"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_trained(
    data: Path, tmp_path: Path, models: Any, fields: dict[str, Any], code: str, named: str
) -> None:
    own = {name: value for name, value in FIELDS.items() if "budget" not in fields or name != "epochs"}
    asked = {"recipe": fields["recipe"]} if "recipe" in fields else runs.divided(compare, **{**own, **fields})
    with refused(code, named):
        compare(data, models, **asked, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_recipe_is_a_model_with_its_own_way_to_be_trained(data: Path, tmp_path: Path) -> None:
    large, small = tmp_path / "large.toml", tmp_path / "small.toml"
    large.write_text(f'model = "{A}"\nweights = "none"\nimage_size = 32\nepochs = 3\n', encoding="utf-8")
    small.write_text(f'model = "{A}"\nweights = "none"\nepochs = 5\n', encoding="utf-8")
    flag, _ = planned(tmp_path / "flag", data, [large, str(small)], vitkit.Recipe(epochs=4), seeds=1)
    own, _ = planned(tmp_path / "own", data, f"{large},{small}", seeds=1)
    for plan, epochs in ((flag, [4, 4]), (own, [3, 5])):
        assert plan["models"] == ["large", "small"]
        assert [job["fields"].get("image_size") for job in plan["jobs"]] == [32, None]
        assert [job["fields"]["epochs"] for job in plan["jobs"]] == epochs


def test_the_method_is_chosen_by_as_many_images_as_there_will_be(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = Mock(side_effect=comparison_plan.prepared)
    monkeypatch.setattr(comparison_plan, "prepared", resolve)
    recipe = vitkit.Recipe(max_images=20, **FIELDS)
    plan, _ = planned(tmp_path / "out", data, [A], recipe, fractions="0.5,1", seeds=1)
    assert [call.args[0].max_images for call in resolve.call_args_list] == [20]
    assert [(job["images"], job["fields"]["max_images"]) for job in plan["jobs"]] == [(10, 10), (20, 20)]


def test_a_budget_of_flops_is_told_in_epochs(data: Path, tmp_path: Path) -> None:
    recipe = vitkit.Recipe(**OF_ANY_MODEL)
    plan, lines = planned(tmp_path / "out", data, [A, B], recipe, budget="flops=1e10", fractions="0.5,1")
    epochs = {(job["model"], job["fraction"]): job["fields"]["epochs"] for job in plan["jobs"]}
    assert epochs[A, 0.5] > epochs[A, 1] > epochs[B, 1] >= 1
    assert epochs[A, 1] == int(1e10 // (3 * 2e9 * describe(config_for(A, 3)).gmacs * 42))
    assert any(line.startswith(f"{A}: {epochs[A, 1]} epochs of 42 images are ") for line in lines)


def test_what_is_of_vision_transformers_is_left_out_for_networks_and_told(data: Path, tmp_path: Path) -> None:
    network = "torchvision:resnet18"
    own = vitkit.Recipe(**OF_ANY_MODEL, epochs=1, init="reference", drop_path=0.1, image_size=32)
    plan, lines = planned(tmp_path / "out", data, [A, network], own)
    assert all(any(line.startswith(f"{network}: {name}") for line in lines) for name in ("init", "drop_path"))
    assert {(job["model"], job["fields"].get("init")) for job in plan["jobs"]} == {(A, "reference"), (network, None)}


def test_rows_of_a_label_file_that_match_no_picture_are_said(data: Path, tmp_path: Path) -> None:
    add_edits(tmp_path / "labels.csv", [Edit("red/img1.png", "blue", "red"), Edit("azure/img1.png", "blue")])
    rest: dict[str, Any] = {"recipe": None, "seeds": 2, "fractions": [1.0], "budget": None}
    asked = {"data": str(data), "models": [A], **rest}
    plan = comparison_plan.make_plan(asked, {**FIELDS, "labels": str(tmp_path / "labels.csv")})
    assert any("1 path of labels.csv matches no picture" in note for note in plan.notes)
    assert any("1 picture with another label" in note for note in plan.notes)


def test_a_model_at_chance_is_named() -> None:
    labels = tuple("aab" * 20)
    right = np.arange(60) % 2 < 1
    judged = RunPredictions(1.0, tuple(map(str, range(60))), labels, {}, Units.of(60, None))
    assert judged.chance == pytest.approx(2 / 3)
    models = [
        {"name": name, "interval": list(Family(own[None, None], judged.units).interval(0))}
        for name, own in (("lost", right), ("good", np.ones(60, bool)))
    ]
    judging = ComparisonImages("test", 60, {})
    (line,) = findings_of(models, judged, judging)
    assert line == "lost is not distinguished from chance: always predicting the most frequent class (66.7 %)"
    assert findings_of(models[1:], judged, judging) == []


@pytest.mark.accept
def test_labels_drawn_by_lot_are_at_chance_and_make_no_difference(tmp_path: Path) -> None:
    data = runs.photos(tmp_path / "photos", images=40, noise=1e5)  # no colour is left
    found = compare(data, [A, B], vitkit.Recipe(**FIELDS | {"epochs": 5}), out=tmp_path / "out")
    (finding,) = found.figures["findings"]
    assert A in finding and B in finding
    assert all("cannot be distinguished" in verdict for verdict in found.verdicts)
