"""What would make a figure flatter is left out of it, or is told with it wherever it is shown."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import runs
import vitkit
from hearing import heard
from photos import scene
from vitkit.errors import VitkitError
from vitkit.training import run
from vitkit.verbs import TrainingRun
from vitkit.weights import load, write


def given(root: Path) -> Path:
    """Given splits, in which each scene has two pictures. Scenes 0 and 1 are torn between train and test."""
    for label, letter in enumerate(("a", "b")):
        scenes = {"train": range(8), "val": (20, 21), "test": (0, 1, 10, 11)}
        for number, (split, own) in enumerate((name, own) for name in scenes for own in scenes[name]):
            folder = root / split / letter
            folder.mkdir(parents=True, exist_ok=True)
            for view in range(2):
                scene(1000 * label + 10 * number + view).save(folder / f"{letter}{own}-{split}{view}.png")
    shutil.copy(root / "test" / "a" / "a10-test0.png", root / "test" / "b" / "b10-again.png")  # a label is wrong
    (root / "test" / "a" / "a12-test0.png").write_bytes(b"no picture")
    return root


def train(data: Path, folder: Path, **fields: Any) -> tuple[Path, str]:
    lines: list[str] = []
    recipe = runs.quick(data, **{"epochs": 1, "group_by": r"([ab]\d+)-", **fields})
    with heard(lines.append):
        return run.train(recipe, folder), "\n".join(lines)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return given(tmp_path_factory.mktemp("flattering") / "photos")


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return train(data, tmp_path_factory.mktemp("flattering-runs") / "run")


def test_images_of_scenes_that_are_trained_on_do_not_count(trained: tuple[Path, str]) -> None:
    folder, said = trained
    assert "4 scenes or groups are in more than one of the data's own splits" in said
    for numbers in (TrainingRun(folder).evaluation, vitkit.evaluate(folder).figures):
        assert (numbers["images"], numbers["seen"]["images"], numbers["with_seen"]["images"]) == (9, 8, 17)
        assert all(f"{path.split('/')[-1][:2]}-" in ("a0-", "a1-", "b0-", "b1-") for path in numbers["seen"]["paths"])


def test_problems_reach_every_headline(trained: tuple[Path, str]) -> None:
    folder, said = trained
    assert "problem: 1 picture is in more than one class, and one label at most is right: " in said
    told = (
        "1 picture is in more than one class, and one label at most is right",
        "1 of the 18 test images cannot be read and does not count",
        "of them independent, the others being copies or of the same scenes",
    )
    stored = json.loads((folder / "evaluation.json").read_text())["headline"]["caveats"]
    assert [any(text in caveat["text"] for caveat in stored) for text in told] == [True] * 3
    evaluated = vitkit.evaluate(folder)
    lines = (said.splitlines()[-1], TrainingRun(folder).lines()[0], evaluated.lines()[-1], evaluated.headline.words)
    assert all(text in line for line in lines for text in told)
    assert all("(95 %: " in line and "more than one split" not in line for line in lines)


def test_what_weights_without_a_record_had_seen_is_unknown(data: Path, tmp_path: Path) -> None:
    classifier = load(train(data, tmp_path / "first")[0])
    classifier.pictures = None
    write(classifier, tmp_path / "plain.npz", "npz")
    fields = {"weights": str(tmp_path / "plain.npz"), "model": None, "method": "probe-sgd", "group_by": None}
    folder, said = train(data, tmp_path / "second", **fields)
    evaluated = vitkit.evaluate(folder)
    for numbers in (TrainingRun(folder).evaluation, evaluated.figures):
        assert numbers["seen"] is None
    assert "had seen these images before is not recorded" in said.splitlines()[-1]
    assert "had seen these images before is not recorded" in evaluated.lines()[-1]


def test_a_run_has_the_figures_of_its_evaluation(trained: tuple[Path, str]) -> None:
    assert TrainingRun(trained[0]).evaluation["figures"] == vitkit.evaluate(trained[0]).figures


def test_the_models_own_answers_are_no_labels(trained: tuple[Path, str], data: Path, tmp_path: Path) -> None:
    folder = trained[0]
    vitkit.predict(folder, data / "train", out=tmp_path / "answers.csv")
    with pytest.raises(
        VitkitError, match=r"answers\.csv is a table of `vitkit predict`, whose labels are a model's answers"
    ):
        vitkit.evaluate(folder, tmp_path / "answers.csv")
    with pytest.raises(VitkitError, match="has the columns 'confidence', 'error'"):
        vitkit.evaluate(folder, labels=tmp_path / "answers.csv")
    photos = [data / "train" / "a" / f"a{scene}-train0.png" for scene in range(4)]
    rows = [f"{row.path},{row.label}\n" for row in vitkit.predict(folder, photos)]
    (tmp_path / "alone.csv").write_text("path,label\n" + "".join(rows))
    told = "every label equals the prediction, as if the labels had been made from predictions of this model"
    assert told in vitkit.evaluate(folder, tmp_path / "alone.csv").lines()[-1]
    assert told not in vitkit.evaluate(folder, data / "train").headline.words


def test_copies_within_other_data_are_told(trained: tuple[Path, str], tmp_path: Path) -> None:
    for number in range(12):
        for letter in "ab":
            (tmp_path / letter).mkdir(exist_ok=True)
            scene(9000 + (number // 4) + 100 * (letter == "b")).save(tmp_path / letter / f"{number}.png")
    evaluated = vitkit.evaluate(trained[0], tmp_path)
    assert evaluated.figures["independent_groups"] == 6
    assert "24 all images (only 6 of them independent" in evaluated.lines()[-1]
