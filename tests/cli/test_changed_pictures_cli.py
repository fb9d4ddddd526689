"""A run's pictures that were overwritten or removed since: every command that reads them says so, or refuses."""

import json
import shutil
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import runs
import vitkit as package
from hearing import heard
from refusals import refused
from vitkit.data import split_from_file
from vitkit.errors import Interrupted
from vitkit.experiments import comparison_table as comparison_costs
from vitkit.experiments.compare import compare
from vitkit.exporting.pictures import choose_pictures
from vitkit.system import SPLIT
from vitkit.training import run as training


@pytest.fixture
def run(trained: Path, data: Path, tmp_path: Path) -> Path:
    """A run whose photographs a test may change."""
    own = Path(shutil.copytree(trained, tmp_path / "run"))
    copy = Path(shutil.copytree(data, tmp_path / "photos"))
    stored = json.loads((own / SPLIT).read_text())
    (own / SPLIT).write_text(json.dumps({**stored, "root": str(copy)}))
    return own


def held_out(run: Path, split: str = "test") -> list[Path]:
    table = split_from_file(run / SPLIT)
    return [table.root / path for path in table.of_split(split).paths]


def overwrite(files: Sequence[Path]) -> None:
    """With other pictures, as a camera does that counts from the start again."""
    for number, file in enumerate(files):
        noise = np.random.default_rng(1000 + number).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(noise).save(file)


def test_eval_leaves_out_those_that_changed_and_says_so(vitkit: Any, run: Path, trained: Path, tmp_path: Path) -> None:
    changed, gone, *rest = held_out(run)
    overwrite([changed])
    gone.unlink()
    outcome = vitkit("eval", run, "--json", "--out", tmp_path / "out")
    text = "2 of the run's 6 test images are no longer what they were: 1 holds another picture (first: "
    assert outcome.code == 0 and f"{text}{changed.parent.name}/{changed.name}), 1 is gone" in outcome.err
    numbers = json.loads(outcome.out)
    assert (numbers["images"], numbers["unreadable"], numbers["changed"]["images"]) == (4, 2, 2)
    assert [own["kind"] for own in numbers["headline"]["caveats"]] == ["missing", "changed", "baseline"]
    assert numbers["headline"]["images"] == 6, "those count as the run predicted them"
    assert text in unescape((tmp_path / "out" / "report.html").read_text())
    before = {own.name: own for own in held_out(trained)}
    assert {own.name for own in rest} < before.keys()
    assert f"left out {changed.parent.name}/{changed.name} (another picture now)" in vitkit("eval", run).out


def test_images_may_be_copies_of_what_they_were_and_not_all_other_ones(vitkit: Any, run: Path, trained: Path) -> None:
    for file in held_out(run):
        shutil.copy(file, file.with_suffix(".tmp"))
        file.unlink()
        file.with_suffix(".tmp").rename(file)
    assert json.loads(vitkit("eval", run, "--json").out) == json.loads(vitkit("eval", trained, "--json").out)
    overwrite(held_out(run))
    vitkit("eval", run).refused("data.images-changed", "6 of the run's 6 test images", "--data-root DIR")


def test_a_run_does_not_go_on_with_other_pictures(vitkit: Any, run: Path) -> None:
    overwrite(held_out(run, "train")[:1])
    before = {file.name: file.read_bytes() for file in run.iterdir() if file.is_file()}
    vitkit("train", "--resume", run).refused("data.images-changed", "1 of the run's 36 images")
    assert {file.name: file.read_bytes() for file in run.iterdir() if file.is_file()} == before


def test_pictures_that_change_during_the_training_do_not_count(data: Path, tmp_path: Path) -> None:
    photos, said = Path(shutil.copytree(data, tmp_path / "photos")), list[str]()

    class Camera:
        def on_fit_end(self, state: Any) -> None:
            overwrite(held_out(tmp_path / "run")[:2])

    hooks = package.Hooks(callbacks=[Camera()])
    with heard(said.append):
        folder = training.train(runs.quick(photos, epochs=1), tmp_path / "run", hooks=hooks)
    text = "2 of the run's 9 val and test images are no longer what they were: 2 hold other pictures"
    assert any(line.startswith(f"problem: {text}") for line in said)
    numbers = json.loads((folder / "evaluation.json").read_text())
    assert (numbers["images"], numbers["changed"]["images"]) == (4, 2) and text in numbers["changed"]["text"]
    assert text in unescape((folder / "report.html").read_text())


def test_an_export_is_compared_on_pictures_that_are_what_they_were(run: Path) -> None:
    overwrite(held_out(run, "val")[:1])
    assert choose_pictures(run, None).description.startswith("2 val images of ")
    overwrite(held_out(run, "val"))
    told = "synthetic images (3 of the run's 3 val images are no longer what they were"
    assert told in choose_pictures(run, None).description


def test_no_comparison_goes_on_with_other_pictures(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison_costs, "ROUNDS", 1)
    photos = Path(shutil.copytree(data, tmp_path / "photos"))
    fields = runs.quick_fields(epochs=1)
    name = fields.pop("model")

    def stop(what: str, *_: object) -> None:
        if what.startswith("run 2 of 2"):
            raise Interrupted(2)

    with pytest.raises(Interrupted):
        compare(photos, [name], package.Recipe(**fields), seeds=2, out=tmp_path / "out", progress=stop)
    (first,) = (folder for folder in (tmp_path / "out" / "runs").iterdir() if (folder / "report.html").is_file())
    overwrite(held_out(first, "train")[:1])
    with refused("data.images-changed", "1 of the run's 36 images"):
        compare(out=tmp_path / "out", resume=True)
