"""Comparisons from beginning to end: one split for all, nothing lost when killed, and what is refused at once."""

import csv
import json
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runs
import vitkit
import warm
from hearing import heard
from vitkit.data import Edit, add_edits, split_from_file
from vitkit.errors import VitkitError
from vitkit.evaluation import Units
from vitkit.experiments import Family, Judged, JudgingImages, comparison_plan, comparison_runs, findings_of
from vitkit.experiments import compare as comparison_costs
from vitkit.experiments.compare import compare
from vitkit.training import DivergedError

A, B = "vit_micro_patch8_16", "vit_micro_patch4_16"
OF_ANY_MODEL: dict[str, Any] = {name: value for name, value in runs.QUICK.items() if name not in ("model", "epochs")}
FIELDS: dict[str, Any] = {**OF_ANY_MODEL, "epochs": 1, "model_fields": runs.SIZE}
CLOCKS = {"seconds", "train_images_per_s", "seconds_to_90", "seconds_to_best", "peak_memory", "predict_images_per_s"}


def quiet(line: str) -> None:
    """Says nothing."""


def timeless(value: Any) -> Any:
    """Figures without those of the clock and the memory."""
    if isinstance(value, dict):
        return {key: timeless(own) for key, own in value.items() if key not in CLOCKS}
    return [timeless(own) for own in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.photos(tmp_path_factory.mktemp("compare") / "photos", images=20, noise=120)


@pytest.fixture(scope="module")
def found(data: Path, tmp_path_factory: pytest.TempPathFactory) -> vitkit.Result:
    """Two models, one of them by two names, at two fractions, that tests may read but not change."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison_costs, "ROUNDS", 1)
        out = tmp_path_factory.mktemp("compared") / "out"
        return compare(data, [A, f"{A}@none", B], vitkit.Recipe(seed=3, **FIELDS), seeds=2, fractions=[0.5, 1], out=out)


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
    assert [own["name"] for own in stored["models"]] == [A, f"{A}@none", B]
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
    assert [row["model"] for row in rows] == [name for name in (A, f"{A}@none", B) for _ in range(4)]


def test_two_names_of_one_configuration_are_tied_and_share_their_runs(found: vitkit.Result) -> None:
    tied, *others = found.pairs
    assert tied["better"] == {"recipe": None, "trained": None}
    assert (tied["a"], tied["b"]) == (A, f"{A}@none")
    assert (tied["difference"], tied["interval"], tied["p"]) == (0, [0, 0], 1)
    assert "tied, difference exactly 0" in tied["verdict"]
    for pair in others:
        assert "better" in pair["verdict"] or "cannot be distinguished" in pair["verdict"]
        assert pair["interval"][0] <= pair["difference"] <= pair["interval"][1]
    assert {(pair["fraction"], pair["a"], pair["b"]) for pair in found.figures["pairs_by_fraction"]} == {
        (fraction, pair["a"], pair["b"]) for fraction in (0.5, 1) for pair in found.pairs
    }


def test_it_is_shown(found: vitkit.Result) -> None:
    lines = found.lines()
    assert lines[0].endswith("12 test images, 2 seeds")
    assert all(any(name in line for line in lines) for name in (A, B))
    assert set(found.verdicts) <= set(lines) and set(found.summary[1:]) <= set(lines)
    assert lines[-1].startswith(f"{found.summary[0]}, on 12 test images (")
    best, luck = found.figures["best"], found.figures["luck"]
    assert best["of"] == 2 and best["model"] in (A, B), "two names of one configuration are one model"
    assert best["interval"][0] <= best["expected"] <= best["measured"] == max(own["accuracy"] for own in found.models)
    assert luck["trainings"] == 4 and luck["by_model"][A] == luck["by_model"][f"{A}@none"]
    assert "measured" in found.summary[0] and "correction for its selection" in found.summary[0]
    assert all(
        text in found.report.read_text(encoding="utf-8")
        for text in ("expected accuracy", "The seed changes the accuracy")
    )
    assert "<table>" in found._repr_html_()


class _Killed(BaseException):
    """As a power cut would."""


@pytest.mark.parametrize("when", ["at once", "epoch"])
def test_killed_anywhere_and_resumed_it_gives_the_same(
    found: vitkit.Result, tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two runs are there; the third is killed before its recipe is written, or in the midst of training."""
    monkeypatch.setattr(comparison_costs, "ROUNDS", 1)
    out = tmp_path / "out"
    shutil.copytree(found.folder, out)
    jobs = json.loads((out / "plan.json").read_text(encoding="utf-8"))["plan"]["jobs"]
    third = list(dict.fromkeys(job["folder"] for job in jobs))[2]
    for name in ("comparison.json", "comparison.csv", "speeds.json", f"costs/{Path(third).name}.json"):
        (out / name).unlink()
    shutil.rmtree(out / third)

    def kill(what: str, done: int, total: int | None) -> None:
        if when in what or when == "at once":
            raise _Killed

    with pytest.raises(_Killed):
        compare(out=out, resume=True, progress=kill)
    assert not (out / "comparison.json").exists()
    again = compare(out=out, resume=True)
    assert timeless(again.to_dict()) == timeless(found.to_dict())


@pytest.mark.parametrize("damage", ["[1]", "{", '{"a": "x"}', "null"])
def test_speeds_that_cannot_be_read_are_measured_again(
    found: vitkit.Result, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison_costs, "ROUNDS", 1)
    out = tmp_path / "out"
    shutil.copytree(found.folder, out)
    (out / "comparison.json").unlink()
    names = json.loads((out / "speeds.json").read_text(encoding="utf-8"))
    (out / "speeds.json").write_text(damage.replace('"a"', f'"{next(iter(names))}"'), encoding="utf-8")
    compare(out=out, resume=True)
    assert json.loads((out / "speeds.json").read_text(encoding="utf-8")).keys() == names.keys()


def test_a_model_whose_training_leads_nowhere_is_left_out_and_the_reader_told(
    found: vitkit.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    shutil.copytree(found.folder, out)
    jobs = json.loads((out / "plan.json").read_text(encoding="utf-8"))["plan"]["jobs"]
    lost = next(job["folder"] for job in jobs if job["model"] == B and job["seed"] == 4)
    shutil.rmtree(out / lost)

    def diverge(*_: Any) -> None:
        raise DivergedError("the loss was not finite")

    monkeypatch.setattr(comparison_runs, "make", diverge)
    lines: list[str] = []
    with heard(lines.append):
        left = compare(out=out, resume=True)
    assert [model["name"] for model in left.models] == [A, f"{A}@none"]
    assert [own["runs"] for own in timeless(left.models)] == [own["runs"] for own in timeless(found.models[:2])]
    (told,) = (note for note in left.figures["notes"] if "left out" in note)
    assert told.startswith(f"{B} is left out of what follows: {B}, seed 4") and told.endswith("not finite")
    assert told in lines and told in left.report.read_text(encoding="utf-8")


def test_where_every_model_leads_nowhere_that_is_said(
    found: vitkit.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(found.folder, tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "runs")
    monkeypatch.setattr(comparison_runs, "make", lambda *_: (_ for _ in ()).throw(DivergedError("past help")))
    with pytest.raises(VitkitError, match=f"{A}, seed .*: past help; .*{B}, seed .*: past help"):
        compare(out=tmp_path / "out", resume=True)


def test_under_stress_all_models_are_asked_about_the_same_pictures(found: vitkit.Result, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(found.folder, out)
    stressed = compare(out=out, resume=True, stress="occlusion,blur")
    assert {key: own for key, own in timeless(stressed.to_dict()).items() if key != "stress"} == {
        key: own for key, own in timeless(found.to_dict()).items() if key != "stress"
    }
    rows = stressed.figures["stress"]
    assert [row["kind"] for row in rows] == ["occlusion", "blur"]
    for row in rows:
        assert row["models"][A] == row["models"][f"{A}@none"]  # one configuration
        for model in stressed.models:
            own = row["models"][model["name"]]
            assert len(own["accuracy"]) == len(own["interval"]) == len(row["strengths"])
            assert all(low <= mean <= high for mean, (low, high) in zip(own["accuracy"], own["interval"], strict=True))
            assert own["accuracy"][0] == pytest.approx(model["accuracy"], abs=0.1)  # as it is, but for its size
    answers = sorted((out / "stress").iterdir())
    assert len(answers) == 4  # of each run on all the data
    for file in answers:  # what is known is not asked again
        known = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps({key: "1" * len(bits) for key, bits in known.items()}), encoding="utf-8")
    again = compare(out=out, resume=True, stress="blur")
    assert again.figures["stress"][0]["models"][A]["accuracy"] == [1.0] * 5
    assert "Under stress: blurred" in again.report.read_text(encoding="utf-8")


def test_a_run_that_was_judged_by_other_images_is_refused(found: vitkit.Result, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(found.folder, out)
    plan = json.loads((out / "plan.json").read_text(encoding="utf-8"))
    plan["plan"]["test_hash"] = "0" * 64
    (out / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    with pytest.raises(VitkitError, match="tested on other images"):
        compare(out=out, resume=True)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"models": [A]}, "started with"),
        ({"fractions": "0.3,1"}, "started with"),
        ({"seeds": 5}, "started with 2"),
        ({"lr": 0.5}, "lr 0.5"),
    ],
)
def test_another_comparison_is_not_gone_on_with(found: vitkit.Result, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(VitkitError, match=message):
        compare(**runs.divided(compare, **changed), out=found.folder, resume=True)


def test_a_folder_that_is_taken(found: vitkit.Result, data: Path, tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match="continue it with resume=True"):
        compare(data, [A], vitkit.Recipe(**FIELDS), out=found.folder)
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(VitkitError, match="not empty"):
        compare(data, [A], vitkit.Recipe(**FIELDS), out=tmp_path)
    with pytest.raises(VitkitError, match="no comparison to continue"):
        compare(out=tmp_path, resume=True)
    with pytest.raises(VitkitError, match="requires out"):
        compare(resume=True)


@pytest.mark.parametrize(
    ("models", "fields", "message"),
    [
        ([A, B, "vit_nothing_16"], {}, "vit_nothing_16"),
        ([A, B, f"{A}@no/such/file.pth"], {}, "file.pth"),
        ([A, f"{A}@"], {}, "must be followed by weights"),
        ([A, "none-such.toml"], {}, "none-such.toml"),
        (["some.toml"], {"recipe": "digits"}, "leave out recipe"),
        ("a,,b", {}, "models must"),
        ([A], {"budget": "epochs=0"}, "epochs="),
        ([A], {"budget": "time=soon"}, "duration"),
        ([A], {"budget": "flops=many"}, "flops="),
        ([A], {"budget": "days=3"}, "budget must"),
        ([A], {"budget": "epochs=2", "epochs": 3}, "both limit"),
        ([A], {"fractions": "0,1"}, "fractions must"),
        ([A], {"fractions": "0.01,1"}, "fractions 0.01"),
        ([A], {"seeds": 0}, "seeds must"),
        ([A], {"stress": "blur,fog"}, "'fog' is none of"),
        ([A, "torchvision:resnet0"], {}, "resnet0"),
        ([A], {"folds": 3}, "folds"),
        ([A], {"model": B}, "model"),
        (None, {}, "no models"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_trained(
    data: Path, tmp_path: Path, models: Any, fields: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison_runs, "make_all", lambda *_: pytest.fail("a training began"))
    own = {name: value for name, value in FIELDS.items() if "budget" not in fields or name != "epochs"}
    asked = {"recipe": fields["recipe"]} if "recipe" in fields else runs.divided(compare, **{**own, **fields})
    with pytest.raises(VitkitError, match=message):
        compare(data, models, **asked, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_recipe_is_a_model_with_its_own_way_to_be_trained(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, small = tmp_path / "large.toml", tmp_path / "small.toml"
    large.write_text(f'model = "{A}"\nweights = "none"\nimage_size = 32\nepochs = 3\n', encoding="utf-8")
    small.write_text(f'model = "{A}"\nweights = "none"\nepochs = 5\n', encoding="utf-8")
    monkeypatch.setattr(comparison_runs, "make_all", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        compare(data, [large, str(small)], vitkit.Recipe(epochs=4), seeds=1, out=tmp_path / "flag")
    with pytest.raises(ZeroDivisionError):
        compare(data, f"{large},{small}", seeds=1, out=tmp_path / "out")
    for out, epochs in (("flag", [4, 4]), ("out", [3, 5])):
        plan = json.loads((tmp_path / out / "plan.json").read_text(encoding="utf-8"))["plan"]
        assert plan["models"] == ["large", "small"]
        assert [job["fields"].get("image_size") for job in plan["jobs"]] == [32, None]
        assert [job["fields"]["epochs"] for job in plan["jobs"]] == epochs


def test_the_method_is_chosen_by_as_many_images_as_there_will_be(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def resolve(recipe: vitkit.Recipe) -> Any:
        seen.append(recipe.max_images)
        return resolved(recipe)

    resolved = comparison_plan.prepared
    monkeypatch.setattr(comparison_plan, "prepared", resolve)
    monkeypatch.setattr(comparison_runs, "make_all", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        compare(
            data,
            [A],
            vitkit.Recipe(max_images=20, **FIELDS),
            fractions="0.5,1",
            seeds=1,
            out=tmp_path / "out",
        )
    plan = json.loads((tmp_path / "out" / "plan.json").read_text(encoding="utf-8"))["plan"]
    assert seen == [20]
    assert [(job["images"], job["fields"]["max_images"]) for job in plan["jobs"]] == [(10, 10), (20, 20)]


def test_a_budget_of_flops_is_told_in_epochs(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stop(Exception):
        """Once it is planned."""

    def stop(*_: Any) -> None:
        raise Stop

    monkeypatch.setattr(comparison_runs, "make_all", stop)
    lines: list[str] = []
    with pytest.raises(Stop):
        out = tmp_path / "out"
        with heard(lines.append):
            compare(
                data,
                [A, B],
                vitkit.Recipe(**OF_ANY_MODEL),
                budget="flops=1e10",
                fractions="0.5,1",
                out=out,
            )
    plan = json.loads((tmp_path / "out" / "plan.json").read_text(encoding="utf-8"))["plan"]
    epochs = {(job["model"], job["fraction"]): job["fields"]["epochs"] for job in plan["jobs"]}
    assert epochs[A, 0.5] > epochs[A, 1] > epochs[B, 1] >= 1
    from vitkit.model import config_for
    from vitkit.profiling import describe

    epoch = 3 * 2e9 * describe(config_for(A, 3)).gmacs * 42
    assert epochs[A, 1] == int(1e10 // epoch)
    assert any(line.startswith(f"{A}: {epochs[A, 1]} epochs of 42 images are ") for line in lines)


def test_what_is_of_vision_transformers_is_left_out_for_networks_and_told(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise _Killed

    monkeypatch.setattr(comparison_runs, "make_all", stop)
    lines: list[str] = []
    network = "torchvision:resnet18"
    with pytest.raises(_Killed):
        own = {"epochs": 1, "init": "reference", "drop_path": 0.1, "image_size": 32}
        with heard(lines.append):
            compare(data, [A, network], vitkit.Recipe(**OF_ANY_MODEL, **own), out=tmp_path / "out")
    assert f"{network}: init reference requires a Vision Transformer, and is left out" in lines
    assert f"{network}: drop_path 0.1 is left out: the network has none" in lines
    plan = json.loads((tmp_path / "out" / "plan.json").read_text(encoding="utf-8"))["plan"]
    assert {(job["model"], job["fields"].get("init")) for job in plan["jobs"]} == {(A, "reference"), (network, None)}


def test_rows_of_a_label_file_that_match_no_picture_are_said(data: Path, tmp_path: Path) -> None:
    add_edits(tmp_path / "labels.csv", [Edit("red/img1.png", "blue", "red"), Edit("azure/img1.png", "blue")])
    asked = {
        "data": str(data),
        "models": [A],
        "recipe": None,
        "seeds": 2,
        "fractions": [1.0],
        "budget": None,
        "stress": (),
    }
    plan = comparison_plan.make_plan(asked, {**FIELDS, "labels": str(tmp_path / "labels.csv")})
    assert any("1 path of labels.csv matches no picture" in note for note in plan.notes)
    assert any("1 picture with another label" in note for note in plan.notes)


def test_a_model_at_chance_is_named() -> None:
    labels = tuple("aab" * 20)
    right = np.arange(60) % 2 < 1
    judged = Judged(1.0, tuple(map(str, range(60))), labels, {}, Units.of(60, None))
    assert judged.chance == pytest.approx(2 / 3)
    models = [
        {"name": name, "interval": list(Family(own[None, None], judged.units).interval(0))}
        for name, own in (("lost", right), ("good", np.ones(60, bool)))
    ]
    judging = JudgingImages("test", 60, {})
    (line,) = findings_of(models, judged, judging)
    assert line == "lost is not distinguished from chance: always predicting the most frequent class (66.7 %)"
    assert findings_of(models[1:], judged, judging) == []


@pytest.mark.accept
def test_labels_drawn_by_lot_are_at_chance_and_make_no_difference(tmp_path: Path) -> None:
    data = runs.photos(tmp_path / "photos", images=40, noise=1e5)  # no colour is left
    found = compare(data, [A, B], vitkit.Recipe(**FIELDS | {"epochs": 5}), out=tmp_path / "out")
    assert (
        len(found.figures["findings"]) == 1 and A in found.figures["findings"][0] and B in found.figures["findings"][0]
    )
    assert all("cannot be distinguished" in verdict for verdict in found.verdicts)


# --- As processes ---------------------------------------------------------------------------------------------


def command(data: Path, out: Path, *flags: str) -> list[str]:
    given = [flag for flag in runs.FLAGS if flag not in ("--model", runs.QUICK["model"])]
    common = ["--models", f"{A},{B}", "--seeds", "2", "--fractions", "0.5,1", "--epochs", "2", "--seed", "3"]
    return [warm.vitkit(), "compare", str(data), *given, *common, "--out", str(out), *flags]


@pytest.mark.accept
def test_killed_again_and_again_it_gives_the_same_table(data: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    done = subprocess.run(command(data, whole), env=runs.environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    wait, kills = random.Random(0), 0
    while True:
        resume = ["--resume"] if (broken / "plan.json").exists() else []
        with subprocess.Popen(command(data, broken, *resume), env=runs.environment()) as process:
            try:
                process.wait(wait.uniform(3, 9))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                kills += 1
                continue
        assert process.returncode == 0
        break
    assert kills >= 2
    tables = [json.loads((own / "comparison.json").read_text(encoding="utf-8")) for own in (whole, broken)]
    assert timeless(tables[0]) == timeless(tables[1])


@pytest.mark.accept
def test_side_by_side_it_is_the_same_and_none_is_left_at_work(data: Path, tmp_path: Path) -> None:
    tables = []
    for out, devices in (("one", "1"), ("two", "2")):
        done = subprocess.run(
            command(data, tmp_path / out, "--devices", devices),
            env=runs.environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        tables.append(json.loads((tmp_path / out / "comparison.json").read_text(encoding="utf-8")))
    assert timeless(tables[0]) == timeless(tables[1])
    killed = subprocess.Popen(command(data, tmp_path / "three", "--devices", "2"), env=runs.environment())
    while not list((tmp_path / "three").glob("runs/*/metrics.csv")):
        time.sleep(0.2)
    killed.kill()
    killed.wait()
    resumed = command(data, tmp_path / "three", "--devices", "2", "--resume")
    for _ in range(60):  # until the workers have ended
        done = subprocess.run(resumed, env=runs.environment(), capture_output=True, text=True, check=False)
        if "is being written by" not in done.stderr:
            break
        time.sleep(1)
    assert done.returncode == 0, done.stderr
    table = json.loads((tmp_path / "three" / "comparison.json").read_text(encoding="utf-8"))
    assert timeless(table) == timeless(tables[0])
