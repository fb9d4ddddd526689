"""`vitkit eval` of pictures that the weights have seen, and of a run whose data moved."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from vitkit.data import split_from_file
from vitkit.evaluation import evaluate
from vitkit.weights import load


def paths_of(trained: Path, *splits: str) -> set[str]:
    table = split_from_file(trained / "split.json")
    return {path for path, split in zip(table.paths, table.splits, strict=True) if split in splits}


def test_pictures_that_were_seen_are_counted_named_and_left_out(vitkit: Any, trained: Path, data: Path) -> None:
    outcome = vitkit("eval", trained, data, "--json")
    numbers = json.loads(outcome.out)
    assert (numbers["with_seen"]["images"], numbers["seen"]["images"]) == (36, 30)
    assert (numbers["seen"]["trained_on"], numbers["seen"]["chosen_by"]) == (27, 3)
    assert set(numbers["seen"]["paths"]) == paths_of(trained, "train", "val")
    own = evaluate(load(trained), split_from_file(trained / "split.json"), "test")
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


def test_a_model_without_a_record_says_that_it_cannot_know(
    vitkit: Any, trained: Path, data: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained, tmp_path / "run")
    described = json.loads((tmp_path / "run" / "model.json").read_text())
    (tmp_path / "run" / "pictures.npz").unlink()
    outcome = vitkit("eval", tmp_path / "run", data)
    assert (outcome.code, "pictures.npz is gone" in outcome.err) == (2, True)
    del described["pictures_sha256"]
    (tmp_path / "run" / "model.json").write_text(json.dumps(described))
    assert json.loads(vitkit("eval", tmp_path / "run", data, "--json").out)["seen"] is None


@pytest.mark.parametrize("is_renamed", [False, True])
def test_the_held_out_figure_can_be_had_wherever_the_data_are(
    vitkit: Any, trained: Path, data: Path, tmp_path: Path, is_renamed: bool
) -> None:
    expected = json.loads(vitkit("eval", trained, "--json").out)
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    stored = json.loads((run / "split.json").read_text())
    (run / "split.json").write_text(json.dumps({**stored, "root": str(tmp_path / "old")}))
    outcome = vitkit("eval", run)
    assert (outcome.code, "set their folder with --data-root DIR" in outcome.err) == (2, True)
    new = Path(shutil.copytree(data, tmp_path / "new" / "place"))
    for number, file in enumerate(sorted(new.rglob("*.png")) if is_renamed else ()):
        file.rename(new / f"{number:03}.png")
    numbers = json.loads(vitkit("eval", run, "--data-root", tmp_path / "new" / "place", "--json").out)
    assert numbers == expected


def test_another_picture_under_an_old_name_is_not_taken_for_it(
    vitkit: Any, trained: Path, data: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(data, tmp_path / "copy"))
    one, other = sorted(paths_of(trained, "test"))[:2]
    shutil.copy(copy / sorted(paths_of(trained, "train"))[0], copy / one)
    outcome = vitkit("eval", trained, "--data-root", copy)
    assert outcome.out.startswith("5 test images of ")
    assert f"left out {one} (another picture now)" in outcome.out
    assert other not in outcome.out


def test_a_root_that_holds_none_of_the_images_is_refused(vitkit: Any, trained: Path, tmp_path: Path) -> None:
    assert "no such folder" in vitkit("eval", trained, "--data-root", tmp_path / "nowhere").err
    outcome = vitkit("eval", trained, "--data-root", tmp_path)
    assert (outcome.code, "contains none of the run's 36 images" in outcome.err) == (2, True)
