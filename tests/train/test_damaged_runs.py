"""Runs whose files were edited, mixed up or damaged: a line that names the file, never a traceback or another model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import runs
from vitkit.errors import VitkitError
from vitkit.train import run
from vitkit.train.checkpoint import seal
from vitkit.train.recipe import Recipe, build

CKPT = "checkpoints/last.ckpt"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("runs")
    recipe = runs.quick(runs.photos(here / "photos"), epochs=1)
    return run.train(recipe, here / "finished", say=lambda _: None)


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    return runs.copy_of(finished, tmp_path / "run")


def refused(folder: Path, name: str) -> str:
    with pytest.raises(VitkitError) as caught:
        run.resume(folder, say=lambda _: None)
    said = str(caught.value)
    assert str(folder / name) in said
    assert len(said.splitlines()) == 1
    return said


def edit(path: Path, change: Callable[[str], str]) -> None:
    before = path.read_text()
    path.write_text(change(before))
    assert path.read_text() != before


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("vit_micro_patch8_16", "vit_tiny_patch8_16", "model vit_micro_patch8_16, not vit_tiny_patch8_16"),
        ("seed = 0", "seed = 7", "seed 0, not 7"),
        ('optimizer = "adamw"', 'optimizer = "sgd"', "optimizer adamw, not sgd"),
    ],
)
def test_a_recipe_that_was_edited_meets_no_state_of_before(folder: Path, before: str, after: str, told: str) -> None:
    edit(folder / "recipe.toml", lambda text: text.replace(before, after))
    assert told in refused(folder, CKPT)


def test_the_state_of_a_run_on_other_images_is_refused(folder: Path, tmp_path: Path) -> None:
    other = run.train(
        runs.quick(runs.photos(tmp_path / "more", images=15), epochs=1), tmp_path / "b", say=lambda _: None
    )
    shutil.copyfile(other / CKPT, folder / CKPT)
    assert "is of another run" in refused(folder, CKPT)


@pytest.mark.parametrize("place", [0, 100, 0.3, 0.5, 0.9, -10])
def test_a_byte_of_the_state_that_changed_is_noticed(folder: Path, place: float) -> None:
    data = bytearray((folder / CKPT).read_bytes())
    data[int(place * len(data)) if isinstance(place, float) else place] ^= 1
    (folder / CKPT).write_bytes(data)
    assert "is damaged; delete it" in refused(folder, CKPT)


@pytest.mark.parametrize("state", [{}, [1], {"run": None}, {"run": {}}, "text"])
def test_a_state_of_another_make_is_refused_though_it_is_whole(folder: Path, state: object) -> None:
    torch.save(state, folder / CKPT)
    refused(folder, CKPT)
    seal(folder / CKPT)
    refused(folder, CKPT)


@pytest.mark.parametrize(
    "junk",
    ["a,b\n1,2\n", "epoch,step,seconds\nx,1,2\n", "epoch,step,seconds\nnan,1,2\n", "a\n\0\n"],
)
def test_metrics_that_are_junk_are_named(folder: Path, junk: str) -> None:
    (folder / "metrics.csv").write_text(junk)
    assert "delete it" in refused(folder, "metrics.csv")


@pytest.mark.parametrize("empty", ["", "epoch,step\n", "junk", "epoch,step\n0,2\n"])
def test_metrics_without_a_row_are_no_curves(folder: Path, empty: str) -> None:
    (folder / "metrics.csv").write_text(empty)
    run.resume(folder, say=lambda _: None)


def test_a_run_goes_on_without_metrics_and_findings(folder: Path) -> None:
    (folder / "metrics.csv").unlink()
    (folder / "findings.json").unlink()
    run.resume(folder, say=lambda _: None)
    assert (folder / "report.html").is_file()


@pytest.mark.parametrize("junk", ["{", "null", "{}", "3"])
def test_findings_that_are_junk_are_named(folder: Path, junk: str) -> None:
    (folder / "findings.json").write_text(junk)
    refused(folder, "findings.json")


def of_first(change: str) -> Callable[[str], str]:
    def edited(text: str) -> str:
        stored = json.loads(text)
        if change == "path":
            stored["splits"]["train"]["red"][0] = None
        elif change == "contents":
            stored["contents"] = dict.fromkeys(stored["contents"])
        elif change == "digest":
            stored["contents"] = dict.fromkeys(stored["contents"], "no digits")
        else:
            stored[change] = None
        return json.dumps(stored)

    return edited


@pytest.mark.parametrize("change", ["path", "contents", "digest", "root", "data", "classes", "splits", "hash"])
def test_a_split_with_holes_is_named(folder: Path, change: str) -> None:
    edit(folder / "split.json", of_first(change))
    refused(folder, "split.json")


@pytest.mark.parametrize("name", ["momentum", "beta2"])
@pytest.mark.parametrize("value", [1.0, -0.1, 2])
def test_a_beta_that_optimisers_refuse_is_out_of_range(name: str, value: float) -> None:
    with pytest.raises(VitkitError, match=f"{name} must be between 0 and 0.999999"):
        build({name: value})


def test_places_may_be_paths() -> None:
    assert Recipe(data=Path("photos")).data == "photos"  # type: ignore[arg-type]
    assert build({"data": Path("photos"), "weights": Path("a.pth")}).weights == "a.pth"
    assert Recipe(data="x").replace(data=Path("photos")).data == "photos"
    with pytest.raises(VitkitError, match="model must be text"):
        build({"model": 3})
