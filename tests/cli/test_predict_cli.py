"""`vitkit predict`: a row an image, in order, as the Python API has it."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import photos as pictures
from vitkit.weights import load


@pytest.fixture
def here(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with photographs under `photos` and files that are none under `odd`."""
    shutil.copytree(data, tmp_path / "photos")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "text.jpg").write_text("not a picture")
    (tmp_path / "odd" / "empty.png").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_columns_begin_with_path_label_confidence(vitkit: Any, trained: Path, here: Path) -> None:
    outcome = vitkit("predict", trained, "photos/red/img1.png", "photos/blue/img2.png")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines()[0] == "path,label,confidence,error"
    assert [(row["path"], row["label"]) for row in table(outcome.out)] == [
        ("photos/red/img1.png", "red"),
        ("photos/blue/img2.png", "blue"),
    ]


def test_predictions_agree_with_python(vitkit: Any, trained: Path, here: Path) -> None:
    rows = table(vitkit("predict", trained, "photos", "--top", 3, "--batch-size", 5).out)
    paths = [row["path"] for row in rows]
    for row, expected in zip(rows, load(trained).predict(paths), strict=True):
        cells = [(row["label"], row["confidence"])] + [(row[f"label_{i}"], row[f"confidence_{i}"]) for i in (2, 3)]
        assert [label for label, _ in cells] == [label for label, _ in expected.ranking]
        assert [float(c) for _, c in cells] == pytest.approx([c for _, c in expected.ranking], abs=2e-6)


@pytest.mark.parametrize(("top", "ranks"), [(1, 1), (2, 2), (3, 3), (9, 3)])
def test_top_adds_two_columns_a_class(vitkit: Any, trained: Path, here: Path, top: int, ranks: int) -> None:
    header = vitkit("predict", trained, "photos/red/img1.png", "--top", top).out.splitlines()[0].split(",")
    further = [f"{name}_{rank}" for rank in range(2, ranks + 1) for name in ("label", "confidence")]
    assert header == ["path", "label", "confidence", "error", *further]


def test_a_bad_image_is_a_row_with_its_reason(vitkit: Any, trained: Path, here: Path) -> None:
    outcome = vitkit("predict", trained, "photos/red/img1.png", "odd/text.jpg", "odd/empty.png", "--top", 2)
    assert outcome.code == 0
    rows = [[row["path"], row["label"], row["confidence"], row["label_2"], row["error"]] for row in table(outcome.out)]
    assert rows[0][4] == ""
    assert rows[1:] == [
        ["odd/text.jpg", "", "", "", "not an image"],
        ["odd/empty.png", "", "", "", "empty file"],
    ]


def test_strict_exits_with_1_for_a_bad_image(vitkit: Any, trained: Path, here: Path) -> None:
    images = ("photos/red/img1.png", "odd/text.jpg")
    assert vitkit("predict", trained, *images).code == 0
    assert vitkit("predict", trained, *images, "--strict").code == 1
    assert vitkit("predict", trained, images[0], "--strict").code == 0


def test_bad_images_alone_exit_with_1(vitkit: Any, trained: Path, here: Path) -> None:
    outcome = vitkit("predict", trained, "odd", "-o", "out.csv")
    assert outcome.code == 1
    assert len(table((here / "out.csv").read_text())) == 2


def test_folders_are_walked_in_natural_order(vitkit: Any, trained: Path, here: Path) -> None:
    rows = table(vitkit("predict", trained, "photos").out)
    names = [f"photos/{colour}/img{i}.png" for colour in ("blue", "green", "red") for i in range(1, 13)]
    assert [row["path"] for row in rows] == names


def test_paths_are_as_they_were_given(vitkit: Any, trained: Path, here: Path) -> None:
    given = [here / "photos" / "red" / "img1.png", "./photos/red/img1.png", "photos/../photos/red/img1.png"]
    assert [row["path"] for row in table(vitkit("predict", trained, *given).out)] == list(map(str, given))


def test_patterns_are_expanded_in_natural_order(vitkit: Any, trained: Path, here: Path) -> None:
    rows = table(vitkit("predict", trained, "photos/*/img[12]*.png").out)
    numbers = (1, 2, 10, 11, 12)
    assert [row["path"] for row in rows] == [
        f"photos/{c}/img{i}.png" for c in ("blue", "green", "red") for i in numbers
    ]
    assert len(table(vitkit("predict", trained, "photos/**/*.png").out)) == 36


def test_out_csv_holds_what_stdout_would_have(vitkit: Any, trained: Path, here: Path) -> None:
    printed = vitkit("predict", trained, "photos").out
    outcome = vitkit("predict", trained, "photos", "-o", "out.csv")
    assert (outcome.code, (here / "out.csv").read_text()) == (0, printed)
    assert "36 images (0 unreadable)" in outcome.out


def test_jsonl_has_valid_json_on_each_line(vitkit: Any, trained: Path, here: Path) -> None:
    assert vitkit("predict", trained, "photos/red/img1.png", "odd/text.jpg", "-o", "out.jsonl").code == 0
    first, second = (json.loads(line) for line in (here / "out.jsonl").read_text().splitlines())
    expected = next(load(trained).predict("photos/red/img1.png"))
    assert first == {"path": "photos/red/img1.png", "label": "red", "confidence": expected.confidence}
    assert second == {"path": "odd/text.jpg", "label": None, "confidence": None, "error": "not an image"}


def test_jsonl_ranks_the_top_classes(vitkit: Any, trained: Path, here: Path) -> None:
    assert vitkit("predict", trained, "photos/red/img1.png", "-o", "out.jsonl", "--top", 2).code == 0
    row = json.loads((here / "out.jsonl").read_text())
    expected = next(load(trained).predict("photos/red/img1.png"))
    assert [(entry["label"], entry["confidence"]) for entry in row["top"]] == list(expected.ranking[:2])


def test_names_in_any_script_and_with_commas_survive(vitkit: Any, trained: Path, here: Path) -> None:
    name = 'été, "näive" 図.png'
    shutil.copy("photos/red/img1.png", name)
    assert table(vitkit("predict", trained, name).out)[0]["path"] == name
    vitkit("predict", trained, name, "-o", "out.csv")
    assert table((here / "out.csv").read_text(encoding="utf-8"))[0]["path"] == name


def test_force_writes_over_out(vitkit: Any, trained: Path, here: Path) -> None:
    (here / "out.csv").write_text("precious")
    assert vitkit("predict", trained, "photos/red", "-o", "out.csv", "--force").code == 0
    assert len(table((here / "out.csv").read_text())) == 12


def test_nothing_is_written_beside_the_photographs(vitkit: Any, trained: Path, here: Path) -> None:
    before = pictures.fingerprint(here)
    vitkit("predict", trained, "photos", "odd")
    assert pictures.fingerprint(here) == before


def test_a_prediction_cut_short_leaves_no_out(
    vitkit: Any, trained: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitkit.classifier import Classifier

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Classifier, "probabilities", stop)
    assert vitkit("predict", trained, "photos", "-o", "out.csv").code == 130
    assert sorted(path.name for path in here.iterdir()) == ["odd", "photos"]
