"""Finished runs are compared as they are: on common images with common labels, without a training."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binomtest

import runs
import vitkit
from refusals import refused
from vitkit.data import split_from_file


@pytest.fixture(autouse=True, scope="module")
def _cheap_reports() -> None: ...


def answering(folder: Path, wrong: set[int], labels: dict[int, str] | None = None) -> Path:
    """A run whose test images are all 36 photographs, of which it answers these wrongly."""
    shutil.copytree(runs.shared_run(), folder)
    table = split_from_file(folder / "split.json")
    with (folder / "predictions.csv").open("w", encoding="utf-8", newline="") as text:
        writer = csv.writer(text)
        writer.writerow(["path", "label", "predicted", "confidence"])
        for i, (path, label) in enumerate(zip(table.paths, table.labels, strict=True)):
            own = (labels or {}).get(i, table.classes[label])
            said = table.classes[(label + 1) % 3] if i in wrong else own
            writer.writerow([path, own, said, "0.9"])
    return folder


def changed(folder: Path, change: Any) -> None:
    file = folder / "split.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content)
    file.write_text(json.dumps(content), encoding="utf-8")


def test_a_run_that_is_right_more_often_is_better_and_the_page_shows_where_they_differ(tmp_path: Path) -> None:
    first = answering(tmp_path / "first", {0, 1, 2})
    second = answering(tmp_path / "second", {2, *range(12, 30)})
    found = vitkit.compare([first, second], out=tmp_path / "compared")
    (pair,), (a, b) = found.pairs, found.models
    assert (a["accuracy"], b["accuracy"]) == (33 / 36, 17 / 36)
    assert pair["difference"] == pytest.approx(16 / 36) and pair["only"] == [18, 2]
    assert pair["better"]["trained"] == "first" and pair["p"] < 0.05
    assert pair["p"] == pytest.approx(binomtest(18, 20).pvalue, abs=0.01), "McNemar's exact test, roughly"
    assert repr(found) == "<compare: first is better than second by 44.4 points>"
    third = answering(tmp_path / "third", {2, 3})
    again = vitkit.compare([first, third], out=tmp_path / "again")
    assert again.pairs[0]["better"]["trained"] is None
    assert "third cannot be told apart from first" in repr(again)
    page = (tmp_path / "compared" / "comparison.html").read_text(encoding="utf-8")
    assert page.count("<figure>") == 20
    written = sorted(path.name for path in (tmp_path / "compared").iterdir())
    assert written == ["comparison.csv", "comparison.html", "comparison.json"], "nothing was trained"
    assert {row["class"]: row["right"] for row in found.figures["classes"]}.keys() == set(runs.COLOURS)
    assert sum(row["right"][1] for row in found.figures["classes"]) == 17


def test_only_images_count_that_are_the_same_with_the_same_label_and_unseen(tmp_path: Path) -> None:
    first = answering(tmp_path / "first", {0})
    second = answering(tmp_path / "second", {1}, {2: "violet"})
    path = split_from_file(second / "split.json").paths
    changed(second, lambda content: content["contents"].update({path[3]: "00" * 32}))
    numbers = json.loads((first / "evaluation.json").read_text(encoding="utf-8"))
    numbers |= {"seen": {"images": 1, "paths": [path[4]]}, "without_seen": dict(numbers), "with_seen": dict(numbers)}
    (first / "evaluation.json").write_text(json.dumps(numbers), encoding="utf-8")
    found = vitkit.compare([first, second], out=tmp_path / "compared")
    assert found.figures["test_images"] == 33 and found.pairs[0]["only"] == [1, 1]
    assert "second was also tested on 3 other images, left out here" in found.figures["notes"]


def test_too_few_common_images_and_a_run_given_twice_are_refused(tmp_path: Path) -> None:
    first, second = (
        answering(tmp_path / "first", {0}),
        answering(tmp_path / "second", {1}, dict.fromkeys(range(20), "x")),
    )
    with refused("experiments.images-too-few", "first, second", "16 common images", "split_from"):
        vitkit.compare([first, second], out=tmp_path / "compared")
    with refused("experiments.run-repeated"):
        vitkit.compare([first, first], out=tmp_path / "compared")
    with refused("experiments.run-missing", "photos is not a finished run", "first is"):
        vitkit.compare([first, tmp_path / "photos"], out=tmp_path / "compared")
    with refused("experiments.data-several"):
        vitkit.compare(["digits", "flowers102"], "vit_micro_patch8_16", out=tmp_path / "compared")
    assert not (tmp_path / "compared").exists()


def test_runs_of_the_same_name_are_told_apart_and_need_no_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    answering(tmp_path / "a" / "run", {0}), answering(tmp_path / "b" / "run", set(range(9)))
    found = vitkit.compare(["a/run", "b/run"])
    assert [model["name"] for model in found.models] == ["a/run", "b/run"]
    assert found.folder.parent.name == "runs" and found.folder.name.startswith("compare-run-")


def test_what_trains_is_refused_for_finished_runs(tmp_path: Path) -> None:
    first, second = answering(tmp_path / "first", {0}), answering(tmp_path / "second", {1})
    for options in ({"seeds": 2}, {"budget": "flops=1e9"}, {"recipe": vitkit.Recipe(epochs=2)}):
        with refused("experiments.argument-unused"):
            vitkit.compare([first, second], out=tmp_path / "compared", **options)
