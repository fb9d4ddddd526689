"""Runs whose files were edited, mixed up or damaged: a line that names the file, never a traceback or another model."""

import copy
import dataclasses
import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import runs
from vitkit.data import images_of_run, move_run, read_contents
from vitkit.errors import VitkitError
from vitkit.training import MAY_CHANGE, Recipe, identity, load_of_run, run, save
from vitkit.training.checkpoint import DamagedError, read

CKPT = "checkpoints/last.ckpt"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("runs")
    recipe = runs.quick(runs.photos(here / "photos"), epochs=1)
    return run.train(recipe, here / "finished")


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    return runs.copy_of(finished, tmp_path / "run")


def refused(folder: Path, name: str) -> str:
    with pytest.raises(VitkitError) as caught:
        run.resume(folder)
    said = str(caught.value)
    assert str(folder / name) in said and len(said.splitlines()) == 1
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
        ("lr = 0.001", "lr = 0.01", "it has lr 0.001, not 0.01; undo the change"),
        ("hflip = true", "hflip = false", "hflip True, not False"),
        ("batch_size = 8", "batch_size = 9", "batch_size 8, not 9"),
    ],
)
def test_a_recipe_that_was_edited_meets_no_state_of_before(folder: Path, before: str, after: str, told: str) -> None:
    edit(folder / "recipe.toml", lambda text: text.replace(before, after))
    assert told in refused(folder, CKPT)


def test_the_state_of_a_run_on_other_pictures_of_the_same_names_is_refused(folder: Path, tmp_path: Path) -> None:
    recipe = runs.quick(runs.photos(tmp_path / "photos", seed=1), epochs=1)
    other = run.train(recipe, tmp_path / "b")
    shutil.copyfile(other / CKPT, folder / CKPT)
    assert re.search("it has pictures [0-9a-f]{12}, not [0-9a-f]{12}; undo the change", refused(folder, CKPT))


def test_a_state_that_differs_in_much_is_told_in_a_short_line(folder: Path) -> None:
    other = Recipe(lr=0.5, seed=3, hflip=False, mixup=0.5, cutmix=0.5, beta2=0.9, momentum=0.3)
    lines = other.replace(data="x", model="vit_micro_patch8_16", weights="none", workers=0).to_toml()
    (folder / "recipe.toml").write_text(lines)
    assert re.search(r"; and \d+ more; undo the change", refused(folder, CKPT))


def test_a_run_goes_on_for_longer_and_computed_otherwise(folder: Path) -> None:
    before = Recipe.load(folder / "recipe.toml")
    after = before.replace(epochs=2, time="10m", patience=9, keep="last", cache="none", workers=1, precision="auto")
    (folder / "recipe.toml").write_text(after.to_toml())
    run.resume(folder)
    assert [row["epoch"] for row in runs.metrics(folder)] == [0, 1]


def test_a_field_may_change_or_is_part_of_what_a_run_is(finished: Path) -> None:
    table, contents = images_of_run(finished / "split.json"), read_contents(finished / "split.json")
    recipe = Recipe.load(finished / "recipe.toml")
    one, same = identity(recipe, table, contents), set[str]()
    for field in dataclasses.fields(Recipe):
        changed = copy.copy(recipe)
        object.__setattr__(changed, field.name, "something else")
        if identity(changed, table, contents) == one:
            same.add(field.name)
    assert same == set(MAY_CHANGE)
    assert identity(recipe, table, contents, "another teacher") != one


def test_a_run_stays_itself_where_its_photographs_move_but_not_where_they_change(folder: Path, tmp_path: Path) -> None:
    recipe, split = Recipe.load(folder / "recipe.toml"), folder / "split.json"

    def own() -> dict[str, object]:
        return identity(recipe, images_of_run(split), read_contents(split))

    first, there = own(), images_of_run(split)
    moved = tmp_path / "elsewhere"
    for i, path in enumerate(there.paths):
        target = moved / Path(path).parent / f"renamed-{i}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(there.file(i), target)
    move_run(split, moved)
    assert "renamed-" in split.read_text()
    assert own() == first
    table, contents = images_of_run(split), read_contents(split)
    train, val = table.splits.index("train"), table.splits.index("val")
    swapped = list(table.splits)
    swapped[train], swapped[val] = "val", "train"
    others = (
        identity(recipe, dataclasses.replace(table, splits=tuple(swapped)), contents),
        identity(recipe, table, contents | {table.paths[-1]: "00" * 8}),
        identity(recipe, dataclasses.replace(table, classes=("a", *table.classes[1:])), contents),
    )
    assert [{name for name in first if first[name] != other[name]} for other in others] == [{"pictures"}] * 3


def test_a_byte_of_the_state_that_changed_is_noticed(folder: Path) -> None:
    whole = (folder / CKPT).read_bytes()
    for place in (0, 100, *(int(part * len(whole)) for part in (0.3, 0.5, 0.9))):
        (folder / CKPT).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert "is damaged; delete it" in refused(folder, CKPT)


def test_a_bit_that_flips_anywhere_in_a_checkpoint_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    path, state = tmp_path / "last.ckpt", {"run": {}, "step": 4, "model": {"w": torch.randn(7, 5)}}
    save(state, path)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with suppress(DamagedError):
            found = read(path, {})
            assert torch.equal(found["model"].pop("w"), state["model"]["w"])
            assert found == {"run": {}, "step": 4, "model": {}}
        path.write_bytes(whole[:place])
        with pytest.raises(DamagedError):
            read(path, {})


def test_a_state_of_another_make_is_refused_though_it_is_whole(folder: Path) -> None:
    for state in ({}, [1], {"run": None}, {"run": {}}, "text"):
        torch.save(state, folder / CKPT)
        refused(folder, CKPT)


def test_a_state_of_an_earlier_version_has_a_checksum_as_comment_and_is_read(finished: Path, folder: Path) -> None:
    with zipfile.ZipFile(folder / CKPT, "a") as archive:
        archive.comment = b"0" * 64
    (folder / "report.html").unlink()
    run.resume(folder)
    runs.assert_same_weights(folder, finished)


def test_metrics_and_findings_that_are_junk_are_named(folder: Path) -> None:
    for junk in ("{", "null", "{}", "3"):
        (folder / "findings.json").write_text(junk)
        refused(folder, "findings.json")
    (folder / "findings.json").unlink()
    for junk in ("a,b\n1,2\n", "epoch,step,seconds\nx,1,2\n", "epoch,step,seconds\nnan,1,2\n", "a\n\0\n"):
        (folder / "metrics.csv").write_text(junk)
        assert "delete it" in refused(folder, "metrics.csv")


@pytest.mark.parametrize("left", [None, "", "epoch,step\n", "junk", "epoch,step\n0,2\n"])
def test_a_run_goes_on_without_metrics_and_findings(folder: Path, left: str | None) -> None:
    for name in ("metrics.csv", "findings.json", "report.html"):
        (folder / name).unlink()
    if left is not None:
        (folder / "metrics.csv").write_text(left)
    run.resume(folder)
    assert (folder / "report.html").is_file()


def test_a_split_with_holes_is_named(folder: Path) -> None:
    whole = (folder / "split.json").read_text()
    for change in ("path", "contents", "digest", "root", "data", "classes", "splits", "hash"):
        stored = json.loads(whole)
        if change == "path":
            stored["splits"]["train"]["red"][0] = None
        elif change in ("contents", "digest"):
            stored["contents"] = dict.fromkeys(stored["contents"], "no digits" if change == "digest" else None)
        else:
            stored[change] = None
        (folder / "split.json").write_text(json.dumps(stored))
        refused(folder, "split.json")


@pytest.mark.parametrize("name", ["split.json", "groups.json", "findings.json", "pictures.npz"])
def test_a_run_that_cannot_go_on_loses_nothing(folder: Path, name: str) -> None:
    """Even if it has no model yet: whoever repairs the file can resume it."""
    shutil.rmtree(folder / "checkpoints")
    for lost in ("model.safetensors", "model.json", "report.html"):
        (folder / lost).unlink()
    if name == "split.json":
        (folder / name).unlink()
    else:
        (folder / name).write_text("[[1")
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    refused(folder, name)
    assert {path: path.read_bytes() for path in before if path.is_file()} == before


def test_places_may_be_paths() -> None:
    assert Recipe(data=Path("photos")).data == "photos"  # type: ignore[arg-type]
    assert Recipe.of({"data": Path("photos"), "weights": Path("a.pth")}).weights == "a.pth"
    assert Recipe(data="x").replace(data=Path("photos")).data == "photos"
    with pytest.raises(VitkitError, match="model must be text"):
        Recipe.of({"model": 3})


def test_a_recipe_cut_short_is_refused(finished: Path, tmp_path: Path) -> None:
    """TOML is whole after any line, and fields have defaults. The last is for the workers, who change no outcome."""
    whole = load_of_run(finished / "recipe.toml").replace(model_fields=None).to_toml()
    path = tmp_path / "recipe.toml"
    assert whole.endswith("\nworkers = 0\n")
    for end in range(0, len(whole) - len("\nworkers = 0\n"), 7):
        path.write_text(whole[:end], "utf-8")
        with pytest.raises(VitkitError, match=r"recipe\.toml"):
            load_of_run(path)
    path.write_text(whole, "utf-8")
    assert load_of_run(path).to_toml() == whole
    path.write_text(
        "".join(line for line in whole.splitlines(keepends=True) if not line.startswith("epochs ")), "utf-8"
    )
    with pytest.raises(VitkitError, match="lacks epochs: it is damaged, or an earlier version of vitkit wrote it"):
        load_of_run(path)


def test_a_pipe_in_the_place_of_the_log_is_refused_and_not_waited_for(folder: Path) -> None:
    (folder / "log.txt").unlink()
    os.mkfifo(folder / "log.txt")
    (folder / "report.html").unlink()
    with pytest.raises(OSError, match="pipe or a device"):
        run.resume(folder)
