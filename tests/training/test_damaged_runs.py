"""Runs that were stopped, edited, mixed up or damaged: what is kept, what is said, what a resume makes of it."""

import copy
import dataclasses
import json
import os
import shutil
import signal
from collections.abc import Callable
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
from vitkit.training.checkpoint import DamagedError, read
from vitkit.training.stages import examine, fit
from vitkit.weights import load

CKPT = "checkpoints/last.ckpt"


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    own = runs.copy_of(finished, tmp_path / "run")
    (own / "checkpoints" / "before.ckpt").unlink()  # which it would fall back to
    return own


def resume_refused(folder: Path, name: str, code: str, *named: str) -> None:
    with refused(code, str(folder / name), *named):
        run.resume(folder)


@pytest.mark.parametrize(
    ("number", "epoch", "step", "kept"),
    [(signal.SIGINT, 1, 2, "unfinished model"), (signal.SIGHUP, 3, 4, "best model so far")],
    ids=["Ctrl-C in the midst of the first epoch", "between the last step and the end of an epoch"],
)
def test_a_signal_leaves_a_model_and_says_how_to_go_on(
    finished: Path, data: Path, tmp_path: Path, number: int, epoch: int, step: int, kept: str
) -> None:
    folder, lines = tmp_path / "run", list[str]()

    def stop(now: str, done: int, total: int) -> None:
        if now == f"epoch {epoch}/3" and done == step:
            os.kill(os.getpid(), number)

    with pytest.raises(Interrupted) as caught, reporting_to(stop), heard(lines.append):
        run.train(runs.quick(data), folder)
    assert caught.value.signal_number == number
    assert lines[-2:] == [f"stopped; the {kept} is in {folder}", f"to continue: vitkit train --resume {folder}"]
    assert load(folder).classes == ("blue", "green", "red")
    assert not (folder / "report.html").exists()
    run.resume(folder)
    runs.assert_same_outcome(folder, finished)


def raising(error: BaseException) -> Callable[..., Any]:
    def stop(*args: Any, **kwargs: Any) -> Any:
        raise error

    return stop


@pytest.mark.usefixtures("no_reports")
def test_a_signal_before_there_is_a_model_leaves_a_run_to_go_on_with(
    finished: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, lines = tmp_path / "run", list[str]()
    with monkeypatch.context() as patch, pytest.raises(Interrupted), heard(lines.append):
        patch.setattr("vitkit.training.stages.fit.new_classifier", raising(Interrupted(signal.SIGTERM)))
        run.train(runs.quick(data), folder)
    assert lines[-2:] == ["stopped before there was a model", f"to continue: vitkit train --resume {folder}"]
    run.resume(folder)
    runs.assert_same_outcome(folder, finished)


def test_a_signal_during_the_report_is_told(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, lines = runs.copy_of(finished, tmp_path / "run"), list[str]()
    monkeypatch.setattr("vitkit.training.stages.report.write_report", raising(Interrupted(signal.SIGTERM)))
    with pytest.raises(Interrupted), heard(lines.append):
        run.resume(folder)
    assert lines[-1] == f"to continue: vitkit train --resume {folder}"
    runs.assert_same_weights(folder, finished)


def test_a_run_that_another_process_works_on_is_left_to_it(finished: Path, data: Path, tmp_path: Path) -> None:
    """Other locks of this process are as those of another."""
    folder = runs.copy_of(finished, tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with exclusive(folder, folder / ".lock"):
        for work in (
            lambda: run.train(runs.quick(data), folder),
            lambda: run.train(runs.quick(data), folder, force=True),
            lambda: run.resume(folder),
        ):
            with refused("system.path-locked", f"process {os.getpid()} of "):
                work()
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} | {folder: 0} == before | {folder: 0}


def test_a_run_is_held_from_its_start_to_its_end(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def is_held(*args: Any, **kwargs: Any) -> Any:
        with refused("system.path-locked"), exclusive_in(tmp_path / "run"):
            pass
        seen.append(True)
        raise Interrupted(signal.SIGTERM)

    for module, name in ((examine, "examine"), (fit, "new_classifier")):
        with monkeypatch.context() as patch, pytest.raises(Interrupted):
            patch.setattr(module, name, is_held)
            run.train(runs.quick(data), tmp_path / "run")
    assert seen == [True, True]
    with exclusive_in(tmp_path / "run"):
        pass


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


@pytest.mark.usefixtures("no_reports")
def test_a_start_that_was_killed_before_its_recipe_is_overwritten(finished: Path, data: Path, tmp_path: Path) -> None:
    folder = runs.copy_of(finished, tmp_path / "run")
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.name not in ("request.json", "split.json", "log.txt"):
            path.rmdir() if path.is_dir() else path.unlink()
    with refused("training.out-not-empty", str(folder)):
        run.train(runs.quick(data), folder)
    with refused("system.run-empty", str(folder), "--force"):
        run.resume(folder)
    run.train(runs.quick(data, epochs=1), folder, force=True)


@pytest.mark.usefixtures("no_reports")
@pytest.mark.parametrize("part", [None, 0.4])
def test_a_truncated_or_missing_checkpoint_is_replaced_by_the_one_before(
    finished: Path, tmp_path: Path, part: float | None
) -> None:
    folder, lines = runs.copy_of(finished, tmp_path / "run"), list[str]()
    last, before = folder / "checkpoints" / "last.ckpt", folder / "checkpoints" / "before.ckpt"
    whole = last.read_bytes()
    last.unlink()
    if part is not None:
        last.write_bytes(whole[: int(part * len(whole))])
    with heard(lines.append):
        run.resume(folder)
    found = "is missing" if part is None else "is damaged"
    assert lines.count(f"{last} {found}: continuing from the checkpoint before it, {before}") == 1
    assert sum(line.startswith("epoch ") for line in lines) == 1, "the last epoch again, and no other"
    runs.assert_same_outcome(folder, finished)
    lines.clear()
    with heard(lines.append):
        run.resume(folder)
    assert not any("damaged" in line or line.startswith("epoch ") for line in lines)


def test_two_damaged_checkpoints_and_one_of_another_run_are_refused(
    finished: Path, start: Path, tmp_path: Path
) -> None:
    """The other run is on other photographs of the same names."""
    folder = runs.copy_of(finished, tmp_path / "run")
    last, before = folder / CKPT, folder / "checkpoints" / "before.ckpt"
    shutil.copyfile(start / CKPT, last)
    resume_refused(folder, CKPT, "training.checkpoint-differs", "pictures")
    for path in (last, before):
        path.write_bytes(path.read_bytes()[:1000])
    resume_refused(folder, CKPT, "training.checkpoint-damaged")


@pytest.mark.usefixtures("no_reports")
def test_the_checkpoint_before_needs_no_links(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", raising(OSError("this file system has no links")))
    folder = run.train(runs.quick(data, epochs=2), tmp_path / "run")
    whole = runs.copy_of(folder, tmp_path / "whole")
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["before.ckpt", "last.ckpt"]
    (folder / CKPT).unlink()
    run.resume(folder)
    runs.assert_same_outcome(folder, whole)


def test_a_recipe_that_was_edited_meets_no_state_of_before(folder: Path) -> None:
    text = (folder / "recipe.toml").read_text()
    for before, after, differs in (
        ("vit_micro_patch8_16", "vit_tiny_patch8_16", "model vit_micro_patch8_16, not vit_tiny_patch8_16"),
        ('optimizer = "adamw"', 'optimizer = "sgd"', "optimizer adamw, not sgd"),
        ("lr = 0.001", "lr = 0.01", "lr 0.001, not 0.01"),
        ("hflip = true", "hflip = false", "hflip True, not False"),
    ):
        assert before in text
        (folder / "recipe.toml").write_text(text.replace(before, after))
        resume_refused(folder, CKPT, "training.checkpoint-differs", differs)


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
    for place in range(0, len(whole), 3):
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
        with pytest.raises(VitkitError, match=r"last\.ckpt"):
            run.resume(folder)


def test_metrics_and_findings_that_are_junk_are_named(folder: Path) -> None:
    for junk in ("{", "null", "{}", "3"):
        (folder / "findings.json").write_text(junk)
        resume_refused(folder, "findings.json", "data.run-damaged")
    (folder / "findings.json").unlink()
    for junk in ("a,b\n1,2\n", "epoch,step,seconds\nx,1,2\n", "epoch,step,seconds\nnan,1,2\n", "a\n\0\n"):
        (folder / "metrics.csv").write_text(junk)
        resume_refused(folder, "metrics.csv", "training.metrics-damaged")


@pytest.mark.parametrize(
    "left", [None, "junk", *(pytest.param(own, marks=pytest.mark.accept) for own in ("", "epoch,step\n0,2\n"))]
)
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
        resume_refused(folder, "split.json", "data.run-damaged")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("split.json", "data.run-file-missing"),
        ("groups.json", "data.run-damaged"),
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


def test_places_may_be_paths() -> None:
    assert Recipe(data=Path("photos")).data == "photos"  # type: ignore[arg-type]
    assert Recipe.of({"data": Path("photos"), "weights": Path("a.pth")}).weights == "a.pth"
    assert Recipe(data="x").replace(data=Path("photos")).data == "photos"


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


def test_a_pipe_in_the_place_of_the_log_is_refused_and_not_waited_for(folder: Path) -> None:
    for name in ("log.txt", "report.html"):
        (folder / name).unlink()
    os.mkfifo(folder / "log.txt")
    with pytest.raises(OSError, match="pipe or a device"):
        run.resume(folder)
