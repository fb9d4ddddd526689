"""Label files on the command line, and what the doctor makes of a run's doubtful labels."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from vitkit.data import EXCLUDED, Edit, add_edits, split_from_file

NASTY = "<script>alert(1)</script>"


@pytest.fixture
def suspected(trained: Path, tmp_path: Path) -> Path:
    """A run whose label_errors.csv names three images."""
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    paths = split_from_file(run / "split.json").paths
    chosen = [next(path for path in paths if path.startswith(name)) for name in ("blue", "green", "red")]
    rows = [f"{path},{path.split('/')[0]},{NASTY},0.{9 - i}00000,0.7" for i, path in enumerate(chosen)]
    (run / "label_errors.csv").write_text("path,label,suggested,score,chance\n" + "\n".join(rows) + "\n")
    return run


def rows(run: Path) -> list[list[str]]:
    return [line.split(",") for line in (run / "label_errors.csv").read_text().splitlines()[1:]]


def test_the_doctor_shows_doubtful_labels_and_how_to_correct_them(
    vitkit: Any, suspected: Path, data: Path, tmp_path: Path
) -> None:
    outcome = vitkit("doctor", suspected / "label_errors.csv", "-o", tmp_path / "page.html")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"{suspected}/label_errors.csv: 3 labels look wrong, of 36")
    for path, label, *_ in rows(suspected):
        assert path in outcome.out
        assert f"{label} -> {NASTY}" in outcome.out
    assert f"vitkit train {data} --labels COPY.csv --split-from {suspected}" in outcome.out
    table = split_from_file(suspected / "split.json")
    held_out = sum(path in table.of_split("test").paths for path, *_ in rows(suspected))
    assert f"{held_out} of these images " in outcome.out
    assert "the test figure keeps counting its previous label" in outcome.out
    page = (tmp_path / "page.html").read_text()
    assert page.count("<img ") == 3 and "<script" not in page
    assert str(data.parent) not in page and str(suspected.parent) not in page
    vitkit("doctor", suspected / "label_errors.csv", "-o", data / "page.html").refused("verbs.out-in-source")


def test_the_doctor_says_how_many_are_expected_by_chance(vitkit: Any, suspected: Path, tmp_path: Path) -> None:
    first, *_ = rows(suspected)
    outcome = vitkit("doctor", suspected / "label_errors.csv")
    assert "3 labels look wrong, of 36; about 2.1 of these 3 are probably right" in outcome.out
    add_edits(tmp_path / "labels.csv", [Edit(first[0], first[1])])
    flags = ("--labels", tmp_path / "labels.csv", "--json")
    left = json.loads(vitkit("doctor", suspected / "label_errors.csv", *flags).out)
    assert left["expected_by_chance"] == pytest.approx(1.4) and left["suspects"][0]["chance"] == 0.7


def test_doubtful_labels_that_are_decided_are_not_shown_again(vitkit: Any, suspected: Path, tmp_path: Path) -> None:
    first, second, third = rows(suspected)
    add_edits(tmp_path / "labels.csv", [Edit(first[0], first[1])])  # looked at, and right
    (suspected / "label_errors.csv").write_text(
        f"path,label,suggested,score,chance\n{','.join(first)}\n{second[0]},red,x,0.8,0.7\n{','.join(third)}\n"
    )
    outcome = vitkit("doctor", suspected / "label_errors.csv", "--labels", tmp_path / "labels.csv")
    assert "1 label looks wrong, of 36, 2 more decided already" in outcome.out
    assert third[0] in outcome.out
    assert first[0] not in outcome.out
    found = json.loads(vitkit("doctor", suspected / "label_errors.csv", "--json").out)
    assert [own["path"] for own in found["suspects"]] == [first[0], third[0]]
    assert found["decided"] == 1


def test_rows_that_the_run_has_read_decide_nothing(vitkit: Any, suspected: Path, tmp_path: Path) -> None:
    first, second, third = rows(suspected)
    file = tmp_path / "labels.csv"
    add_edits(file, [Edit(first[0], first[1]), Edit(second[0], second[1], second[1]), Edit(third[0], third[1])])
    shutil.copy(file, suspected / "labels.csv")

    def left() -> list[str]:
        found = json.loads(vitkit("doctor", suspected / "label_errors.csv", "--labels", file, "--json").out)
        return [own["path"] for own in found["suspects"]]

    assert left() == [first[0], third[0]], "the second row confirms the label"
    with file.open("a") as text:
        text.write(f"{third[0]},{third[1]},,,\n")
    assert left() == [first[0]], "added since the run"


def test_a_list_away_from_its_run_is_refused(vitkit: Any, suspected: Path, tmp_path: Path, data: Path) -> None:
    errors = suspected / "label_errors.csv"
    vitkit("doctor", shutil.copy(errors, tmp_path / "alone.csv")).refused("verbs.run-missing", "alone.csv")
    vitkit("doctor", errors, "--layout", "classes").refused("verbs.option-conflict", "--layout")
    vitkit("train", data, "--labels", errors, "-o", tmp_path / "out").refused("data.labels-unchanged")
    assert not (tmp_path / "out").exists()


def test_doctor_and_eval_read_a_label_file(vitkit: Any, data: Path, tmp_path: Path, trained: Path) -> None:
    file = tmp_path / "labels.csv"
    add_edits(file, [Edit("red/img1.png", EXCLUDED), Edit("red/img2.png", "pink"), Edit("red/none.png", "pink")])
    outcome = vitkit("doctor", data, "--labels", file)
    assert outcome.code == 0
    assert "35 images in 4 classes" in outcome.out
    assert "note: labels.csv: 1 picture left out, 1 picture with another label" in outcome.out
    assert "warning: 1 path of labels.csv matches no picture" in outcome.out
    held = split_from_file(trained / "split.json").of_split("test")
    add_edits(tmp_path / "held.csv", [Edit(held.paths[0], EXCLUDED)])
    outcome = vitkit("eval", trained, "--labels", tmp_path / "held.csv", "--json")
    assert outcome.code == 0
    assert json.loads(outcome.out)["images"] == len(held) - 1
    assert "note: held.csv: 1 picture left out" in outcome.err
    vitkit("eval", trained, "--labels", tmp_path / "none.csv").refused("data.labels-unreadable", "none.csv")
