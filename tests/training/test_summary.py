"""What a run does once it has trained: calibrate, evaluate, doubt labels, and write all of it down."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

import runs
from once import once
from vitkit.data import groups_from_file, split_from_file
from vitkit.evaluation import at_temperature, evaluate, fit_temperature, grouped
from vitkit.evaluation.figures import figures
from vitkit.evaluation.intervals import intervals
from vitkit.system import LABEL_ERRORS
from vitkit.training import Inputs, Run, blueprint_of, label_search, resume, train
from vitkit.weights import load


@pytest.fixture(scope="module")
def data() -> Path:
    return once("summary-photos", lambda place: runs.photos(place, noise=90.0))


@pytest.fixture(scope="module")
def finished(data: Path) -> Path:
    return once("summary-run", lambda place: train(runs.quick(data), place))


def doubted(folder: Path) -> list[dict[str, str]]:
    with (folder / LABEL_ERRORS).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_temperature_is_the_one_that_the_validation_images_ask_for(finished: Path) -> None:
    classifier, table = load(finished), split_from_file(finished / "split.json")
    assert classifier.temperature != 1
    calibrated = evaluate(classifier, table, "val")
    plain = at_temperature(calibrated, 1.0)
    assert classifier.temperature == pytest.approx(fit_temperature(plain.probabilities, plain.labels), rel=1e-4)
    assert calibrated.loss <= plain.loss


def test_the_figures_of_the_run_are_those_of_the_saved_model(finished: Path) -> None:
    outcome = evaluate(load(finished), split_from_file(finished / "split.json"), "test")
    numbers = json.loads((finished / "evaluation.json").read_text())
    assert numbers.pop("seen") == {"images": 0, "trained_on": 0, "chosen_by": 0, "paths": []}
    chances = [float(row["chance"]) for row in doubted(finished)]
    listed = numbers.pop("label_errors")
    assert listed == {"listed": len(chances), "expected_by_chance": pytest.approx(sum(chances), abs=1e-4)}
    assert "the run had 3" in numbers.pop("promises")["accuracy"][0]["refused"]
    assert numbers.pop("headline")["value"] == outcome.accuracy
    assert numbers.pop("unknown")["validation_images"] == 3
    assert numbers == figures(outcome) | load(finished).computation


def test_a_finished_run_that_is_resumed_comes_to_the_same(finished: Path, tmp_path: Path) -> None:
    copied = runs.copy_of(finished, tmp_path / "copy")
    resume(copied)
    for name in ("model.json", "evaluation.json", LABEL_ERRORS):
        assert (copied / name).read_bytes() == (finished / name).read_bytes(), name
    runs.assert_same_weights(copied, finished)


def test_a_run_from_nothing_doubts_held_out_labels_alone(finished: Path) -> None:
    table = split_from_file(finished / "split.json")
    held_out = set(table.of_split("val").paths) | set(table.of_split("test").paths)
    rows = doubted(finished)
    assert {row["path"] for row in rows} <= held_out
    for split in ("val", "test"):
        outcome = evaluate(load(finished), table, split)
        wrong = {outcome.paths[i] for i in np.flatnonzero(outcome.predicted != outcome.labels)}
        assert {row["path"] for row in rows} & set(outcome.paths) <= wrong


def test_labels_are_doubted_by_the_weights_a_run_began_from(start: Path, data: Path, tmp_path: Path) -> None:
    steps = {"mixup": 0.2, "patch_dropout": 0.25, "balance": "loss"}  # which a head fitted at once would refuse
    recipe = runs.quick(data, weights=str(start), model=None, epochs=1, method="full", **steps)
    folder, said = runs.told(recipe, tmp_path / "run")
    assert any("look" in line and "(of 36 images, frozen features in " in line for line in said.splitlines())
    rows = [tuple(row.values()) for row in doubted(folder)]
    table = split_from_file(folder / "split.json")
    # Other weights than those it began from would not do: the run's own have changed.
    begun = Run(recipe)
    begun.recipe, begun.inputs = recipe, Inputs(table, "", {}, {})
    begun.set_folder(folder)
    begun.blueprint = blueprint_of(recipe, table.classes)
    begun.frozen_features = label_search.frozen_features(begun)
    found = label_search.find_label_errors(begun)
    assert found is not None and len(begun.frozen_features) == 36
    assert rows == [(*own[:3], f"{own.score:.6f}", f"{own.chance:.6f}") for own in found]
    assert {row[1] for row in rows} <= set(table.classes)


def test_the_worst_mistakes_are_explained_in_the_report_which_is_whole_without_the_run(tmp_path: Path) -> None:
    data = runs.photos(tmp_path / "photos", images=20, noise=2000.0)  # nothing to learn: there are mistakes
    folder = train(runs.quick(data, epochs=1), tmp_path / "run")
    assert json.loads((folder / "evaluation.json").read_text())["accuracy"] < 1
    page = (folder / "report.html").read_text()
    explained = len(re.findall("<h3>[a-z]+, taken for [a-z]+</h3>", page))
    assert explained >= 1 and page.count('<img alt="evidence for') == 2 * explained
    assert not re.findall('href="(?!#part-)([^"]*)', page), "mailed, they would lead nowhere"
    assert str(tmp_path) not in page


def test_copies_count_as_one_image_in_the_intervals_of_the_run(data: Path, tmp_path: Path) -> None:
    source = runs.copy_of(data, tmp_path / "photos")
    for i in range(1, 13):
        copied = source / "red" / f"img{i}.png"
        (source / "red" / f"copy{i}.png").write_bytes(copied.read_bytes())
    folder = train(runs.quick(source, epochs=1), tmp_path / "run")
    groups = groups_from_file(folder / "groups.json")
    assert len(groups) == 24 and groups["red/img3.png"] == groups["red/copy3.png"]
    outcome = evaluate(load(folder), split_from_file(folder / "split.json"), "test")
    told = json.loads((folder / "evaluation.json").read_text())
    assert told.pop("seen")["images"] == 0
    assert told.pop("label_errors")["listed"] == 0
    assert told.pop("headline")["interval_95"] == told["intervals_95"]["accuracy"]
    del told["unknown"], told["promises"]
    assert told == figures(grouped(outcome, groups)) | load(folder).computation
    assert told["independent_groups"] < told["images"]
    assert told["intervals_95"]["accuracy"] != list(intervals(outcome)["accuracy"])
