"""Runs that were stopped, edited, mixed up or damaged: what is kept, what is said, what a resume makes of it."""

import copy
import dataclasses
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import runs
from hearing import heard
from refusals import refused
from vitkit.data import images_of_run, move_run, read_contents
from vitkit.errors import Interrupted, VitkitError
from vitkit.system import exclusive, exclusive_in, reporting_to
from vitkit.training import MAY_CHANGE, Recipe, identity, load_run_recipe, run, save
from vitkit.training.checkpoint import read
from vitkit.training.stages import examine, fit
from vitkit.weights import load

CKPT = "checkpoints/last.ckpt"


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    return runs.copy_of(finished, tmp_path / "run")


def resume_refused(folder: Path, name: str, code: str, *named: str) -> None:
    with refused(code, str(folder / name), *named):
        run.resume(folder)


@pytest.mark.usefixtures("no_reports")
def test_a_signal_in_the_first_epoch_leaves_a_model_to_go_on_with(finished: Path, data: Path, tmp_path: Path) -> None:
    folder, lines = tmp_path / "run", list[str]()

    def stop(now: str, done: int, total: int) -> None:
        if now == "epoch 1/3" and done == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted), reporting_to(stop), heard(lines.append):
        run.train(runs.quick(data), folder)
    assert lines[-2:] == [
        f"stopped; the unfinished model is in {folder}",
        f"to continue: vitkit train --resume {folder}",
    ]
    assert load(folder).classes == ("blue", "green", "red")
    run.resume(folder)
    runs.assert_same_outcome(folder, finished)


def test_a_run_that_another_process_works_on_is_left_to_it(finished: Path, data: Path, tmp_path: Path) -> None:
    """Other locks of this process are as those of another."""
    folder = runs.copy_of(finished, tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with exclusive(folder, folder / ".lock"):
        for work in (lambda: run.train(runs.quick(data), folder, force=True), lambda: run.resume(folder)):
            with refused("system.path-locked", f"process {os.getpid()} of "):
                work()
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} | {folder: 0} == before | {folder: 0}


@pytest.mark.usefixtures("no_reports")
def test_a_run_is_held_from_its_start_and_one_stopped_before_there_is_a_model_goes_on(
    finished: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, seen = tmp_path / "run", list[bool]()

    def is_held(*args: Any, **kwargs: Any) -> Any:
        with refused("system.path-locked"), exclusive_in(folder):
            pass
        seen.append(True)
        raise Interrupted(signal.SIGTERM)

    for module, name in ((examine, "examine"), (fit, "new_classifier")):
        with monkeypatch.context() as patch, pytest.raises(Interrupted):
            patch.setattr(module, name, is_held)
            run.train(runs.quick(data), folder)
    assert seen == [True, True]
    run.resume(folder)
    runs.assert_same_outcome(folder, finished)


def test_only_what_a_run_was_writing_is_swept(finished: Path, data: Path, tmp_path: Path) -> None:
    folder = runs.copy_of(finished, tmp_path / "run")
    own = [".model.safetensors.77.tmp", ".report.html.77.tmp", "checkpoints/.last.ckpt.77.tmp"]
    others = [".notes.txt.77.tmp", ".mine.tmp", "kept/.model.json.77.tmp", ".last.ckpt.tmp"]
    others.append(".run.onnx.77.tmp/run.onnx")  # of an export that was killed
    for work in (lambda: run.resume(folder), lambda: run.train(runs.quick(data, epochs=1), folder, force=True)):
        for path in (folder / name for name in (*own, *others)):
            path.parent.mkdir(exist_ok=True)
            path.write_text("half")
        work()
        assert [name for name in own if (folder / name).exists()] == []
        assert [name for name in others if (folder / name).read_text() != "half"] == []


def test_a_checkpoint_of_another_run_is_refused(folder: Path, start: Path) -> None:
    """The other run is on other photographs of the same names."""
    shutil.copyfile(start / CKPT, folder / CKPT)
    resume_refused(folder, CKPT, "training.checkpoint-differs", "pictures")


def test_a_recipe_that_was_edited_meets_no_state_of_before(folder: Path) -> None:
    text = (folder / "recipe.toml").read_text()
    (folder / "recipe.toml").write_text(text.replace("lr = 0.001", "lr = 0.01"))
    resume_refused(folder, CKPT, "training.checkpoint-differs", "lr 0.001, not 0.01")


@pytest.mark.usefixtures("no_reports")
def test_a_run_goes_on_for_longer_and_computed_otherwise(folder: Path) -> None:
    before = Recipe.load(folder / "recipe.toml")
    after = before.replace(epochs=4, time="10m", patience=9, keep="last", cache="none", workers=1, precision="auto")
    (folder / "recipe.toml").write_text(after.to_toml())
    run.resume(folder)
    assert [row["epoch"] for row in runs.metrics(folder)] == [0, 1, 2, 3]


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
    there = images_of_run(split)
    first = identity(recipe, there, read_contents(split))
    for i, path in enumerate(there.paths):
        target = tmp_path / "elsewhere" / Path(path).parent / f"renamed-{i}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(there.file(i), target)
    move_run(split, tmp_path / "elsewhere")
    table, contents = images_of_run(split), read_contents(split)
    assert "renamed-" in split.read_text() and identity(recipe, table, contents) == first
    swapped, train, val = list(table.splits), table.splits.index("train"), table.splits.index("val")
    swapped[train], swapped[val] = "val", "train"
    others = (
        identity(recipe, dataclasses.replace(table, splits=tuple(swapped)), contents),
        identity(recipe, table, contents | {table.paths[-1]: "00" * 8}),
        identity(recipe, dataclasses.replace(table, classes=("a", *table.classes[1:])), contents),
    )
    assert [{name for name in first if first[name] != other[name]} for other in others] == [{"pictures"}] * 3


def test_a_bit_that_flips_anywhere_in_a_checkpoint_is_noticed_or_changes_nothing(folder: Path, tmp_path: Path) -> None:
    whole = (folder / CKPT).read_bytes()
    (folder / CKPT).write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    resume_refused(folder, CKPT, "training.checkpoint-damaged")
    path, state = tmp_path / "last.ckpt", {"run": {}, "step": 4, "model": {"w": torch.randn(7, 5)}}
    save(state, path)
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with suppress(VitkitError):
            found = read(path, {})
            assert torch.equal(found["model"].pop("w"), state["model"]["w"])
            assert found == {"run": {}, "step": 4, "model": {}}
        path.write_bytes(whole[:place])
        with refused("training.checkpoint-damaged"):
            read(path, {})


def test_a_run_goes_on_without_metrics_and_findings_but_not_with_damaged_ones(folder: Path) -> None:
    (folder / "metrics.csv").write_text("epoch,step,seconds\nnan,1,2\n")
    resume_refused(folder, "metrics.csv", "training.metrics-damaged")
    for name in ("metrics.csv", "findings.json", "report.html"):
        (folder / name).unlink()
    run.resume(folder)
    assert (folder / "report.html").is_file()


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("split.json", "data.run-file-missing"),
        ("findings.json", "data.run-damaged"),
        ("pictures.npz", "data.record-damaged"),
    ],
)
def test_a_run_that_cannot_go_on_loses_nothing(folder: Path, name: str, code: str) -> None:
    """Even if it has no model yet: whoever repairs the file can resume it."""
    shutil.rmtree(folder / "checkpoints")
    for lost in ("model.safetensors", "model.json", "report.html"):
        (folder / lost).unlink()
    (folder / name).write_text("[[1")
    if name == "split.json":
        (folder / name).unlink()
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    resume_refused(folder, name, code)
    assert {path: path.read_bytes() for path in before if path.is_file()} == before


def test_a_recipe_cut_short_is_refused(finished: Path, tmp_path: Path) -> None:
    """TOML is whole after any line, and fields have defaults. The last is for the workers, who change no outcome."""
    whole = load_run_recipe(finished / "recipe.toml").replace(model_fields=None).to_toml()
    path = tmp_path / "recipe.toml"
    assert whole.endswith("\nworkers = 0\n")
    for end in range(0, len(whole) - len("\nworkers = 0\n"), 7):
        path.write_text(whole[:end], "utf-8")
        with pytest.raises(VitkitError, match=r"recipe\.toml"):
            load_run_recipe(path)
    path.write_text(whole, "utf-8")
    assert load_run_recipe(path).to_toml() == whole
    path.write_text("\n".join(line for line in whole.splitlines() if not line.startswith("epochs ")), "utf-8")
    with refused("training.field-missing", "epochs"):
        load_run_recipe(path)
