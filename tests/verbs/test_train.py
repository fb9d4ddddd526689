"""`vitkit.train`: what `vitkit train` does, from Python."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runs
import vitkit as package
from vitkit.data import read_source
from vitkit.errors import VitkitError
from vitkit.evaluation import evaluate
from vitkit.text import interval_text
from vitkit.training import Recipe
from vitkit.verbs import TrainingRun


def silent(line: str) -> None:
    """Takes a line of the story."""


def test_function_and_command_leave_the_same_run(vitkit: Any, data: Path, tmp_path: Path) -> None:
    told: list[str] = []
    run = package.train(data, **runs.quick_fields(), out=tmp_path / "function", say=told.append)
    printed = vitkit("train", data, *runs.FLAGS, "--out", tmp_path / "command").out
    names = ("recipe.toml", "split.json", "class_indices.json", "findings.json")
    for name in names:
        assert (tmp_path / "command" / name).read_bytes() == (run.folder / name).read_bytes()
    runs.assert_same_outcome(run.folder, tmp_path / "command")
    assert len(told) == len(printed.splitlines())
    assert told[:4] == printed.splitlines()[:4]


def test_named_data_are_trained_by_their_recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from vitkit.training import run

    asked: list[Any] = []
    monkeypatch.setattr(run, "train", lambda request, out, **options: asked.append((request.fields, options["notes"])))
    package.train("digits", epochs=2, max_images=300)
    ((fields, notes),) = asked
    assert (fields["epochs"], fields["max_images"], fields["model"]) == (2, 300, "vit_micro_patch4_16")
    assert any("epochs 2 (published: " in note for note in notes)


def test_the_result_is_what_the_folder_holds(trained: Path, data: Path) -> None:
    run = TrainingRun(trained)
    numbers = json.loads((trained / "evaluation.json").read_text())
    assert run.report.is_file()
    assert {**run.evaluation, "figures": None} == {**numbers, "figures": None}
    assert run.recipe.data == str(data)
    assert run.folds == ()
    outcome = evaluate(run.classifier, read_source(data), "all")
    assert outcome.classes == run.classifier.classes == ("blue", "green", "red")
    assert np.isfinite(outcome.loss)
    assert json.loads(json.dumps(run.to_dict()))["evaluation"] == numbers


def test_a_run_is_shown_in_a_line_and_in_a_notebook(trained: Path) -> None:
    run = TrainingRun(trained)
    line = f"{run.headline.words}; report: {trained / 'report.html'}"
    assert run.lines() == [line]
    assert repr(run) == f"<TrainingRun: {line}>"
    page = run._repr_html_()
    assert f"{run.evaluation['loss']:.4f}" in page
    assert page.count("<tr>") == 7  # the head, and every figure of an evaluation


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda _: None, "expected a JSON object, not NoneType"),
        (lambda _: [1], "expected a JSON object, not list"),
        (lambda _: {}, "it has no accuracy"),
        (lambda numbers: numbers | {"accuracy": "x"}, "accuracy is 'x'"),
        (lambda numbers: numbers | {"balanced_accuracy": []}, r"balanced_accuracy is \[\]"),
        (lambda numbers: numbers | {"chosen_on": [1]}, r"chosen_on is \[1\]"),
        (lambda numbers: numbers | {"images": None}, "images is None"),
        (lambda numbers: numbers | {"intervals_95": {"accuracy": [0.5]}}, "intervals_95 is"),
    ],
)
def test_figures_that_were_damaged_are_named(trained: Path, tmp_path: Path, change: Any, said: str) -> None:
    folder = runs.copy_of(trained, tmp_path / "run")
    numbers = json.loads((folder / "evaluation.json").read_text())
    (folder / "evaluation.json").write_text(json.dumps(change(numbers)))
    for ask in (TrainingRun.lines, TrainingRun._repr_html_, TrainingRun.to_dict):
        with pytest.raises(VitkitError, match=rf"evaluation\.json is damaged: {said}"):
            ask(TrainingRun(folder))


def test_a_run_whose_classes_were_chosen_on_its_images_says_so(trained: Path, tmp_path: Path) -> None:
    folder = runs.copy_of(trained, tmp_path / "run")
    numbers = json.loads((folder / "evaluation.json").read_text())
    changed = numbers | {"split": "val", "chosen_on": ["the epoch"], "task": "multi"}
    (folder / "evaluation.json").write_text(json.dumps(changed))
    (line,) = TrainingRun(folder).lines()
    assert line.startswith("exact match ")
    assert "6 val images (validation, flattered by selection: chosen on these images: the epoch)" in line


def test_a_cross_validation_has_the_runs_of_its_folds(data: Path, tmp_path: Path) -> None:
    run = package.train(data, **runs.quick_fields(epochs=1), folds=2, out=tmp_path / "run", say=silent)
    assert [fold.folder.name for fold in run.folds] == ["fold-1", "fold-2"]
    assert run.accuracy == pytest.approx(sum(fold.accuracy for fold in run.folds) / 2)
    bounds = interval_text(run.evaluation["accuracy"]["interval_95"])
    assert run.lines()[0].startswith(
        f"accuracy {run.accuracy:.4f} (95 %: {bounds}) over 2 folds, on 36 test images (of the folds' models; "
    )
    assert [row["fold"] for row in run.rows()] == [1, 2, "final"]
    assert run.classifier.predict(data / "red" / "img1.png")
    assert run.folds[1].classifier.classes == ("blue", "green", "red")
    assert str(run.report) in run._repr_html_()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"method": "all"}, "method"),
        ({"epoch": 3}, "unknown field 'epoch' .did you mean epochs"),
        ({"epochs": "3"}, "epochs"),
        ({"data_root": "."}, "--data-root .* requires --resume"),
        ({"resume": "run", "epochs": 3}, "--resume takes everything from the run"),
        ({"recipe": "nowhere.toml"}, "no such recipe: nowhere.toml"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_made(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(VitkitError, match=told):
        package.train(data, **arguments)
    assert list(tmp_path.iterdir()) == []


def test_its_signature_and_help_name_every_field_of_the_recipe() -> None:
    parameters = inspect.signature(package.train).parameters
    assert set(Recipe.__dataclass_fields__) <= set(parameters)
    assert parameters["epochs"].default == Recipe.__dataclass_fields__["epochs"].default
    assert all(f"\n        {name}: " in str(package.train.__doc__) for name in Recipe.__dataclass_fields__)
