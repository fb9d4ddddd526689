"""`vitkit.evaluate`: what `vitkit eval` does, from Python."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import vitkit as package
from vitkit.data import split_from_file
from vitkit.errors import VitkitError
from vitkit.system import exclusive_in, to_json
from vitkit.weights import load


@pytest.mark.parametrize(
    ("values", "flags"),
    [({}, ()), ({"split": "val", "precision": "float32"}, ("--split", "val", "--precision", "float32"))],
)
def test_function_and_command_give_the_same_figures(
    vitkit: Any, trained: Path, tmp_path: Path, values: dict[str, Any], flags: tuple[Any, ...]
) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    told: list[str] = []
    found = package.evaluate(trained, out=own, note=told.append, **values)
    outcome = vitkit("eval", trained, *flags, "-o", other)
    assert outcome.out == "".join(f"{line}\n" for line in found.lines()).replace(str(own), str(other))
    assert outcome.err == "".join(f"note: {note}\n" for note in told)
    assert list(found.notes) == told
    for name in ("evaluation.json", "predictions.csv"):
        assert (own / name).read_bytes() == (other / name).read_bytes()
    assert vitkit("eval", trained, *flags, "--json").out == to_json(found.to_dict(), indent=2) + "\n"
    assert found.report == own / "report.html"
    assert found.accuracy == json.loads((own / "evaluation.json").read_text())["accuracy"]


def test_a_classifier_in_memory_is_evaluated_on_named_data(trained: Path, data: Path) -> None:
    by_name = package.evaluate(trained, data, split="all")
    in_memory = package.evaluate(load(trained), str(data), split="all")
    assert in_memory.to_dict() == by_name.to_dict()
    assert in_memory.report is None
    assert len(in_memory.evaluation.paths) == 36


@pytest.mark.usefixtures("drawn_pictures")
def test_images_of_one_class_are_evaluated_and_drawn(trained: Path, data: Path, tmp_path: Path) -> None:
    shutil.copytree(data / "red", tmp_path / "reds" / "red")
    found = package.evaluate(trained, tmp_path / "reds")
    answers = [prediction.label for prediction in package.predict(trained, tmp_path / "reds")]
    assert len(answers) == 12 and found.accuracy == pytest.approx(answers.count("red") / 12)
    assert [row["class"] for row in found.rows() if row["support"]] == ["red"]
    for number, caption in enumerate(found.pictures()):
        assert found.save(tmp_path / f"{number}.svg", caption).stat().st_size > 1000
    assert "red &" in found.to_latex() and "red" in found._repr_html_()
    (tmp_path / "reds" / "red").rename(tmp_path / "reds" / "pictures")
    with pytest.raises(VitkitError, match="pictures"):
        package.evaluate(trained, tmp_path / "reds")


def test_an_evaluation_is_shown_in_a_line_and_in_a_notebook(trained: Path) -> None:
    found = package.evaluate(trained)
    assert repr(found) == f"<EvaluationResult: {found.headline.words}>"
    page = found._repr_html_()
    assert f"{found.figures['loss']:.4f}" in page
    assert all(name in page for name in ("blue", "green", "red", "95 % interval"))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"layout": "pairs"}, "--layout 'pairs' is none of auto, classes, splits"),
        ({"layout": "classes"}, "--layout classes applies to the folders of DATA"),
        ({"backend": "fastest"}, "fastest"),
        ({"precision": "float16"}, "float16"),
        ({"split": "tset"}, "tset"),
        ({"data_root": "nowhere"}, "--data-root nowhere: no such folder"),
    ],
)
def test_what_cannot_be_is_refused(trained: Path, values: dict[str, Any], told: str) -> None:
    with pytest.raises(VitkitError, match=told):
        package.evaluate(trained, **values)


def test_figures_of_a_run_that_is_being_trained_say_so(trained: Path) -> None:
    with exclusive_in(trained):
        notes = package.evaluate(trained).notes
    assert [note for note in notes if "still being trained" in note] == [
        f"{trained} is still being trained: this is the model that it holds now"
    ]
    assert not [note for note in package.evaluate(trained).notes if "still being trained" in note]


def test_a_training_that_was_stopped_is_noted_wherever_its_model_is_used(
    trained: Path, data: Path, tmp_path: Path, vitkit: Any
) -> None:
    stopped = shutil.copytree(trained, tmp_path / "stopped")
    for name in ("evaluation.json", "report.html"):
        (stopped / name).unlink()
    expected = f"the training in {stopped} has not finished"
    notes = package.evaluate(stopped).notes
    assert [note.endswith(f"vitkit train --resume {stopped}") for note in notes if note.startswith(expected)] == [True]
    picture = next(path for path in split_from_file(trained / "split.json").files())
    assert [note for note in package.predict(stopped, picture).notes if note.startswith(expected)]
    assert not [note for note in package.predict(trained, picture).notes if "has not finished" in note]
    weights = stopped / "model.safetensors"
    assert [note for note in package.predict(weights, picture).notes if note.startswith(expected)]
    for model in (stopped, weights):
        assert f"warning: {expected}" in vitkit("info", model).out
    assert f"warning: {expected}" in vitkit("convert", stopped, tmp_path / "converted").out
    assert "warning" not in vitkit("info", trained).out + vitkit("info", tmp_path / "converted").out
    said: list[str] = []
    package.train(data, weights=str(stopped), method="probe", out=tmp_path / "run", say=said.append)
    begun = next(i for i, line in enumerate(said) if line.startswith("frozen backbone"))
    assert [line for line in said[:begun] if line.startswith(f"note: {expected}")]
    for name in ("model.json", "model.safetensors"):
        (stopped / name).unlink()
    with pytest.raises(VitkitError, match="has not saved a model yet: continue it with vitkit train --resume"):
        package.predict(stopped, picture)


def test_a_classifier_in_memory_has_no_data_of_its_own(trained: Path) -> None:
    with pytest.raises(VitkitError, match="a classifier in memory has no record of its data: pass the data"):
        package.evaluate(load(trained))


def test_classes_in_another_order_than_the_run_split_them_are_refused(trained: Path, tmp_path: Path) -> None:
    """Where class_indices.json was edited along with the model's description, or is gone."""
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    told = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    told["classes"].reverse()
    (folder / "model.json").write_text(json.dumps(told), encoding="utf-8")
    with pytest.raises(VitkitError, match=r"another order than class_indices\.json"):
        package.evaluate(folder)
    (folder / "class_indices.json").unlink()
    with pytest.raises(VitkitError, match=r"another order than split\.json"):
        package.evaluate(folder)
