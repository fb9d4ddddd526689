"""A run that is stopped: what is kept, what is said, what a resume makes of it."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import runs
from hearing import heard
from vitkit.errors import Interrupted, VitkitError
from vitkit.system import exclusive, exclusive_in, reporting_to
from vitkit.training import run
from vitkit.training.stages import examine, fit


@pytest.mark.parametrize(("number", "epoch"), [(signal.SIGTERM, 1), (signal.SIGHUP, 3)])
def test_a_signal_between_the_last_step_and_the_end_of_an_epoch_stops_the_run(
    finished: Path, data: Path, tmp_path: Path, number: int, epoch: int
) -> None:
    lines: list[str] = []

    def stop(now: str, done: int, total: int) -> None:
        if now == f"epoch {epoch}/3" and done == total:
            os.kill(os.getpid(), number)

    with pytest.raises(Interrupted) as caught, reporting_to(stop), heard(lines.append):
        run.train(runs.quick(data), tmp_path / "run")
    assert caught.value.signal_number == number
    assert lines[-1] == f"to continue: vitkit train --resume {tmp_path / 'run'}"
    assert lines[-2].startswith("stopped; the ")
    assert not (tmp_path / "run" / "report.html").exists()
    run.resume(tmp_path / "run")
    runs.assert_same_outcome(tmp_path / "run", finished)


def test_a_signal_before_there_is_a_model_leaves_a_run_to_go_on_with(
    finished: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr("vitkit.training.stages.fit.new_classifier", raising(Interrupted(signal.SIGTERM)))
        with heard(lines.append):
            run.train(runs.quick(data), tmp_path / "run")
    assert lines[-2:] == ["stopped before there was a model", f"to continue: vitkit train --resume {tmp_path / 'run'}"]
    run.resume(tmp_path / "run")
    runs.assert_same_outcome(tmp_path / "run", finished)


def test_a_signal_during_the_report_is_told(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = runs.copy_of(finished, tmp_path / "run")
    lines: list[str] = []
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr("vitkit.training.stages.report.write_report", raising(Interrupted(signal.SIGTERM)))
        with heard(lines.append):
            run.resume(folder)
    assert lines[-2:] == [
        f"stopped; the model is in {folder}, but its report is not finished",
        f"to continue: vitkit train --resume {folder}",
    ]
    runs.assert_same_weights(folder, finished)


def raising(error: BaseException) -> Callable[..., Any]:
    def stop(*args: Any, **kwargs: Any) -> Any:
        raise error

    return stop


# --- Two processes at one run -----------------------------------------------------------------------


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
            with pytest.raises(VitkitError, match=f"run is being written by process {os.getpid()} of "):
                work()
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} | {folder: 0} == before | {folder: 0}


def test_a_run_is_held_from_its_start_to_its_end(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def look(name: str) -> Callable[..., Any]:
        def is_held(*args: Any, **kwargs: Any) -> Any:
            with pytest.raises(VitkitError, match="is being written by"), exclusive_in(tmp_path / "run"):
                pass
            seen.append(name)
            raise Interrupted(signal.SIGTERM)

        return is_held

    for module, name in ((examine, "examine"), (fit, "new_classifier")):
        with monkeypatch.context() as patch, pytest.raises(Interrupted):
            patch.setattr(module, name, look(name))
            run.train(runs.quick(data), tmp_path / "run")
    assert seen == ["examine", "new_classifier"]
    with exclusive_in(tmp_path / "run"):
        pass


# --- What others leave in a run's folder ------------------------------------------------------------


def test_only_what_a_run_was_writing_is_swept(finished: Path, data: Path, tmp_path: Path) -> None:
    folder = runs.copy_of(finished, tmp_path / "run")
    own = [".model.safetensors.77.tmp", ".report.html.77.tmp", "checkpoints/.last.ckpt.77.tmp"]
    others = [".notes.txt.77.tmp", ".mine.tmp", "kept/.model.json.77.tmp", ".last.ckpt.tmp"]
    (folder / "kept").mkdir()
    (folder / ".run.onnx.77.tmp").mkdir()  # of an export that was killed
    (folder / ".run.onnx.77.tmp" / "run.onnx").write_text("half")
    for name in (*own, *others):
        (folder / name).write_text("half")
    run.resume(folder)
    assert [name for name in own if (folder / name).exists()] == []
    for name in own:
        (folder / name).write_text("half")
    run.train(runs.quick(data, epochs=1), folder, force=True)
    assert [name for name in own if (folder / name).exists()] == []
    assert [name for name in others if not (folder / name).is_file()] == []
    assert (folder / ".run.onnx.77.tmp" / "run.onnx").read_text() == "half"


# --- Runs that go on after an interrupted start, or from checkpoints that were damaged ----------------


def test_a_start_that_was_killed_before_its_recipe_is_overwritten(finished: Path, data: Path, tmp_path: Path) -> None:
    folder = runs.copy_of(finished, tmp_path / "run")
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.name not in ("request.json", "split.json", "log.txt"):
            path.rmdir() if path.is_dir() else path.unlink()
    with pytest.raises(VitkitError, match="exists and is not empty"):
        run.train(runs.quick(data), folder)
    with pytest.raises(VitkitError, match="repeat the command that started it, with --force"):
        run.resume(folder)
    run.train(runs.quick(data), folder, force=True)
    runs.assert_same_weights(folder, finished)


def test_a_recipe_of_an_earlier_version_is_read(finished: Path, tmp_path: Path) -> None:
    folder = runs.copy_of(finished, tmp_path / "run")
    recipe = folder / "recipe.toml"
    recipe.write_text(f"views = 0\nwise_ft = false\n{recipe.read_text()}")
    run.resume(folder)
    runs.assert_same_outcome(folder, finished)
    recipe.write_text(recipe.read_text().replace("views = 0", "views = 3"))
    with pytest.raises(VitkitError, match="unknown field 'views'"):
        run.resume(folder)
    recipe.write_text(recipe.read_text().replace("views = 3", "views = 0").replace("wise_ft = false", "wise_ft = true"))
    with pytest.raises(VitkitError, match="unknown field 'wise_ft'"):
        run.resume(folder)


def cut(path: Path, part: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])


@pytest.mark.parametrize("part", [0.0, 0.4, 0.999])
def test_truncated_checkpoints_fall_back_by_one(finished: Path, data: Path, tmp_path: Path, part: float) -> None:
    folder, lines = runs.copy_of(finished, tmp_path / "run"), []
    last, before = folder / "checkpoints" / "last.ckpt", folder / "checkpoints" / "before.ckpt"
    cut(last, part)
    with heard(lines.append):
        run.resume(folder)
    expected = f"{last} is damaged: continuing from the checkpoint before it, {before}"
    assert lines.count(expected) == 1
    assert sum(line.startswith("epoch ") for line in lines) == 1, "the last epoch again, and no other"
    runs.assert_same_outcome(folder, finished)
    lines.clear()
    with heard(lines.append):
        run.resume(folder)
    assert not any("damaged" in line or line.startswith("epoch ") for line in lines)


def test_a_missing_checkpoint_is_replaced_by_the_one_before_and_two_damaged_ones_are_an_error(
    finished: Path, tmp_path: Path
) -> None:
    folder, lines = runs.copy_of(finished, tmp_path / "run"), []
    (folder / "checkpoints" / "last.ckpt").unlink()
    with heard(lines.append):
        run.resume(folder)
    assert any("last.ckpt is missing: continuing from the checkpoint before it" in line for line in lines)
    runs.assert_same_outcome(folder, finished)
    for path in (folder / "checkpoints").glob("*.ckpt"):
        cut(path, 0.5)
    with pytest.raises(VitkitError, match=r"last\.ckpt is damaged; delete it"):
        run.resume(folder)


def test_the_checkpoint_before_needs_no_links(finished: Path, data: Path, tmp_path: Path, monkeypatch: Any) -> None:
    def refuse(*_: object) -> None:
        raise OSError("this file system has no links")

    monkeypatch.setattr(os, "link", refuse)
    folder = run.train(runs.quick(data), tmp_path / "run")
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["before.ckpt", "last.ckpt"]
    cut(folder / "checkpoints" / "last.ckpt", 0.5)
    run.resume(folder)
    runs.assert_same_outcome(folder, finished)


def test_checkpoints_of_another_run_are_no_reason_to_fall_back(finished: Path, data: Path, tmp_path: Path) -> None:
    folder = runs.copy_of(finished, tmp_path / "run")
    other = run.train(runs.quick(data, seed=9, epochs=1), tmp_path / "other")
    (other / "checkpoints" / "last.ckpt").replace(folder / "checkpoints" / "last.ckpt")
    with pytest.raises(VitkitError, match=r"last\.ckpt belongs to another run"):
        run.resume(folder)
