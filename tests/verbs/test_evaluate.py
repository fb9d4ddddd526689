"""`vitkit.evaluate`: what `vitkit eval` does, from Python."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import vitkit as package
from hearing import heard
from refusals import refused
from vitkit.data import read_source, split_from_file
from vitkit.evaluation import Evaluation, evaluate
from vitkit.evaluation.figures import figures
from vitkit.system import to_json
from vitkit.text import interval_text
from vitkit.weights import load


@pytest.fixture(scope="module")
def expected(trained: Path) -> Evaluation:
    return evaluate(load(trained), split_from_file(trained / "split.json"), "test")


@pytest.mark.parametrize("flags", [(), ("--split", "val", "--backend", "eager", "--precision", "bfloat16")])
def test_function_and_command_give_the_same_figures(
    vitkit: Any, trained: Path, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    compute = package.Compute(backend="eager", precision="bfloat16")
    told: list[str] = []
    with heard(told.append):
        found = package.evaluate(trained, out=own, **({"split": "val", "compute": compute} if flags else {}))
    outcome = vitkit("eval", trained, *flags, "-o", other)
    assert outcome.out == "".join(f"{line}\n" for line in found.lines()).replace(str(own), str(other))
    assert outcome.err == "".join(f"note: {note}\n" for note in told)
    assert list(found.notes) == told
    for name in ("evaluation.json", "predictions.csv"):
        assert (own / name).read_bytes() == (other / name).read_bytes()
    assert sorted(path.name for path in other.iterdir()) == ["evaluation.json", "predictions.csv", "report.html"]
    assert vitkit("eval", trained, *flags, "--json").out == to_json(found.to_dict(), indent=2) + "\n"
    assert ("(eager, bfloat16)" in outcome.out) == bool(flags)
    assert (found.report, repr(found)) == (own / "report.html", f"<EvaluationResult: {found.headline.words}>")
    assert f"{found.figures['loss']:.4f}" in found._repr_html_()


def test_figures_and_predictions_are_pythons(vitkit: Any, trained: Path, expected: Evaluation, tmp_path: Path) -> None:
    outcome = vitkit("eval", trained, "--out", tmp_path / "new" / "out")
    lines, bounds = outcome.out.splitlines(), figures(expected)["intervals_95"]
    assert (outcome.code, outcome.err) == (0, "") and lines[0].startswith("6 test images of ")
    for name in ("accuracy", "macro_f1", "loss"):
        assert f"{name:18} {getattr(expected, name):.4f} (95 %: {interval_text(bounds[name])})" in lines
    for name, row in expected.per_class().items():
        words = [f"{row['precision']:.3f}", f"{row['recall']:.3f}", f"{row['f1']:.3f}", str(row["support"])]
        assert [name, *words] in [line.split() for line in lines]
    numbers = json.loads((tmp_path / "new" / "out" / "evaluation.json").read_text())
    assert {name: numbers[name] for name in expected.summary()} == expected.summary()
    assert next(iter(numbers)) == "accuracy"
    assert numbers.keys() >= {*load(trained).computation, *figures(expected), "seen", "promises", "unknown"}
    assert (numbers["backend"], numbers["precision"]) == ("eager", "float32")
    assert (numbers["headline"]["value"], numbers["headline"]["caveats"]) == (expected.accuracy, [])
    assert numbers["per_class"] == figures(expected)["per_class"]
    assert (numbers["split"], numbers["images"]) == ("test", 6)
    with (tmp_path / "new" / "out" / "predictions.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["path", "label", "predicted", "confidence"]
    assert [row["path"] for row in rows] == list(expected.paths)
    assert [row["label"] for row in rows] == [expected.classes[i] for i in expected.labels]
    assert [row["predicted"] for row in rows] == [expected.classes[i] for i in expected.predicted]
    confidences = expected.probabilities.max(axis=1).tolist()
    assert [float(row["confidence"]) for row in rows] == pytest.approx(confidences, abs=1e-6)


def test_a_classifier_in_memory_is_evaluated_on_named_data(trained: Path, data: Path) -> None:
    by_name = package.evaluate(trained, data, split="all")
    in_memory = package.evaluate(load(trained), str(data), split="all")
    assert in_memory.to_dict() == by_name.to_dict()
    assert in_memory.report is None
    assert len(in_memory.evaluation.paths) == 36
    with refused("verbs.record-missing"):
        package.evaluate(load(trained))


@pytest.mark.usefixtures("drawn_pictures")
def test_images_of_one_class_are_evaluated_and_drawn(trained: Path, data: Path, tmp_path: Path) -> None:
    shutil.copytree(data / "red", tmp_path / "reds" / "red")
    found = package.evaluate(trained, tmp_path / "reds")
    answers = [prediction.label for prediction in package.predict(trained, tmp_path / "reds")]
    assert len(answers) == 12 and found.accuracy == pytest.approx(answers.count("red") / 12)
    assert [row["class"] for row in found.rows() if row["support"]] == ["red"]
    caption = next(iter(found.pictures()))
    assert found.save(tmp_path / "picture.svg", caption).stat().st_size > 1000
    (tmp_path / "reds" / "red").rename(tmp_path / "reds" / "pictures")
    with refused("evaluation.class-unknown", "pictures"):
        package.evaluate(trained, tmp_path / "reds")


def test_a_stopped_training_is_noted_and_one_without_model_refused(trained: Path, tmp_path: Path, vitkit: Any) -> None:
    stopped = shutil.copytree(trained, tmp_path / "stopped")
    for name in ("evaluation.json", "report.html"):
        (stopped / name).unlink()
    expected = f"the training in {stopped} has not finished"
    notes = package.evaluate(stopped).notes
    assert [note.endswith(f"vitkit train --resume {stopped}") for note in notes if note.startswith(expected)] == [True]
    picture = next(path for path in split_from_file(trained / "split.json").files())
    assert [note for note in package.predict(stopped / "model.safetensors", picture).notes if note.startswith(expected)]
    assert not [note for note in package.predict(trained, picture).notes if "has not finished" in note]
    assert f"warning: {expected}" in vitkit("info", stopped).out and "warning" not in vitkit("info", trained).out
    for name in ("model.json", "model.safetensors"):
        (stopped / name).unlink()
    with refused("weights.run-unfinished", "vitkit train --resume"):
        package.predict(stopped, picture)


def test_classes_in_another_order_than_the_run_split_them_are_refused(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    told = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    told["classes"].reverse()
    (folder / "model.json").write_text(json.dumps(told), encoding="utf-8")
    with refused("verbs.class-order", "split.json"):
        package.evaluate(folder)


@pytest.mark.parametrize(("split", "images"), [("train", 27), ("val", 3), ("all", 36)])
def test_split_chooses_the_images(vitkit: Any, trained: Path, split: str, images: int) -> None:
    numbers = json.loads(vitkit("eval", trained, "--split", split, "--json").out)
    counted = numbers.get("with_seen", numbers)
    assert (numbers["split"], counted["images"]) == (split, images)
    assert numbers["images"] == {"all": 6}.get(split, images), "those that the weights had not seen count"
    kinds = [own["kind"] for own in numbers["headline"]["caveats"]]
    assert kinds == {"train": ["trained_on"], "val": ["chosen_on", "baseline"], "test": [], "all": ["seen"]}[split]


def test_other_data_may_be_split_in_any_usual_way(vitkit: Any, trained: Path, data: Path, tmp_path: Path) -> None:
    for split in ("Validation", "Testing"):
        for name in ("green", "red", "blue") if split == "Testing" else ("red", "blue"):
            shutil.copytree(data / name, tmp_path / "photos" / split / name)
    numbers = json.loads(vitkit("eval", trained, tmp_path / "photos", "--json").out)
    assert (numbers["split"], numbers["with_seen"]["images"]) == ("test", 36)
    outcome = vitkit("eval", trained, tmp_path / "photos", "--layout", "classes")
    outcome.refused("evaluation.class-unknown", "Testing")


def test_other_data_need_only_some_of_the_classes(vitkit: Any, trained: Path, data: Path, tmp_path: Path) -> None:
    for name in ("green", "red"):
        shutil.copytree(data / name, tmp_path / "photos" / name)
    outcome = vitkit("eval", trained, tmp_path / "photos", "--json")
    numbers = json.loads(outcome.out)
    assert numbers["accuracy"] == evaluate(load(trained), read_source(tmp_path / "photos"), "all").accuracy
    assert numbers["per_class"]["blue"]["support"] == 0
    assert numbers["absent_classes"] == ["blue"]
    out = vitkit("eval", trained, tmp_path / "photos").out
    (line,) = [line.split() for line in out.splitlines() if "blue " in line]
    assert (line[2], line[4]) == ("-", "0"), "recall, and the number of images"
    assert "no image of 1 of the model's 3 classes: blue" in outcome.err
    assert "means over the 2 that occur" in outcome.err


def test_pictures_that_were_seen_are_counted_named_and_left_out(vitkit: Any, trained: Path, data: Path) -> None:
    outcome = vitkit("eval", trained, data, "--json")
    numbers = json.loads(outcome.out)
    assert (numbers["with_seen"]["images"], numbers["seen"]["images"]) == (36, 30)
    assert (numbers["seen"]["trained_on"], numbers["seen"]["chosen_by"]) == (27, 3)
    table = split_from_file(trained / "split.json")
    assert set(numbers["seen"]["paths"]) == {*table.of_split("train").paths, *table.of_split("val").paths}
    own = evaluate(load(trained), table, "test")
    assert (numbers["without_seen"]["images"], numbers["without_seen"]["accuracy"]) == (6, own.accuracy)
    assert (numbers["images"], numbers["accuracy"], numbers["headline"]["value"]) == (6, own.accuracy, own.accuracy)
    assert sum(row["support"] for row in numbers["per_class"].values()) == 6
    assert "30 of 36 images had been seen by the weights (27 trained on, 3 chosen by)" in outcome.err
    assert f"without them accuracy {own.accuracy:.4f}" in outcome.err


def test_an_exported_file_knows_what_its_model_had_seen(vitkit: Any, trained: Path, data: Path, tmp_path: Path) -> None:
    assert vitkit("export", trained, "--to", "openvino", "-o", tmp_path / "model.xml").code == 0
    shutil.copytree(data, tmp_path / "renamed")
    for file in (tmp_path / "renamed").rglob("*.png"):
        file.rename(file.with_name(f"other-{file.name}"))
    numbers = json.loads(vitkit("eval", tmp_path / "model.xml", tmp_path / "renamed", "--json").out)
    assert (numbers["images"], numbers["seen"]["images"], numbers["with_seen"]["images"]) == (6, 30, 36)


def test_without_a_record_it_says_it_cannot_know(vitkit: Any, trained: Path, data: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    described = json.loads((tmp_path / "run" / "model.json").read_text())
    (tmp_path / "run" / "pictures.npz").unlink()
    vitkit("eval", tmp_path / "run", data).refused("model.folder-damaged", "pictures.npz")
    del described["pictures_sha256"]
    (tmp_path / "run" / "model.json").write_text(json.dumps(described))
    assert json.loads(vitkit("eval", tmp_path / "run", data, "--json").out)["seen"] is None


def test_the_held_out_figure_is_had(vitkit: Any, trained: Path, data: Path, tmp_path: Path) -> None:
    expected = json.loads(vitkit("eval", trained, "--json").out)
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    stored = json.loads((run / "split.json").read_text())
    (run / "split.json").write_text(json.dumps({**stored, "root": str(tmp_path / "old")}))
    vitkit("eval", run).refused("data.images-moved", "--data-root DIR")
    new = Path(shutil.copytree(data, tmp_path / "new" / "place"))
    assert json.loads(vitkit("eval", run, "--data-root", new, "--json").out) == expected
    for number, file in enumerate(sorted(new.rglob("*.png"))):
        file.rename(new / f"{number:03}.png")
    assert json.loads(vitkit("eval", run, "--data-root", new, "--json").out) == expected
    vitkit("eval", trained, "--data-root", tmp_path / "run").refused("data.images-missing", "36 images")
