"""Processes that prepare images, and that die: a line with the cure, and the best model stays."""

import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

import runs
import warm
from hearing import heard
from refusals import refused
from vitkit.data.loading import check_main_guard, explain_worker_errors
from vitkit.system import reporting_to
from vitkit.training import Recipe, run
from vitkit.training import start as setup


@pytest.mark.usefixtures("no_reports")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's own word may come late
def test_a_worker_that_is_killed_ends_the_run_in_a_line_and_the_best_model_stays(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def kill(what: str, done: int, total: int) -> None:
        if what == "epoch 2/3" and done == 1:
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            for child in {int(child) for child in children} - {server.pid for server in warm._servers}:
                os.kill(child, signal.SIGKILL)

    recipe = runs.quick(runs.photos(tmp_path / "photos", images=40), workers=1)
    cure, lines = f"workers = 0 in {folder / 'recipe.toml'}", list[str]()
    with refused("data.worker-lost", cure), reporting_to(kill), heard(lines.append):
        run.train(recipe, folder)
    assert f"the best model so far is in {folder}" in lines
    text = (folder / "recipe.toml").read_text()
    (folder / "recipe.toml").write_text(text.replace("workers = 1", "workers = 0"))
    run.resume(folder)
    assert len(runs.metrics(folder)) == 3


GUARD = 'if __name__ == "__main__":\n    '


@pytest.mark.parametrize(("method", "text"), [("spawn", ""), ("spawn", GUARD), ("fork", "")])
def test_a_script_that_processes_import_is_told_to_have_a_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, text: str
) -> None:
    script = tmp_path / "own.py"
    script.write_text(f"{text}print()\n")
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__=str(script)))
    monkeypatch.setattr("multiprocessing.get_start_method", lambda: method)
    with nullcontext() if text or method == "fork" else refused("data.main-unguarded", str(script)):
        check_main_guard()


@pytest.mark.parametrize(("free", "workers"), [(2**40, 7), (4 * 38_535_168, 1), (4 * 38_535_168 - 1, 0)])
def test_as_many_workers_as_memory_has_room_for(free: int, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "cores", lambda: 8)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    recipe = Recipe(batch_size=64)
    assert setup.choose_workers(recipe, (224, 224)) == workers  # 38,535,168 bytes a batch
    assert setup.choose_workers(recipe.replace(workers=3), (224, 224)) == 3
    of_levels = setup.choose_workers(recipe, (224, 224), bytes_per_pixel=3)
    assert of_levels == min(7, free // 38_535_168), "a quarter of the bytes"


def test_the_processes_of_a_team_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "cores", lambda: 96)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2**40))
    assert [setup.choose_workers(own, (224, 224)) for own in (Recipe(), Recipe(devices=8))] == [95, 11]
    for processes, workers in (("4", 23), ("64", 0)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
        assert setup.choose_workers(Recipe(), (224, 224)) == workers


def test_an_error_of_a_process_is_told_without_its_traceback() -> None:
    traceback = "Caught VitkitError in DataLoader worker process 0.\nTraceback ...\nVitkitError: a.png: not an image"
    with refused("data.worker-failed", "a.png: not an image"), explain_worker_errors(2, "use --workers 0"):
        raise RuntimeError(traceback)
    for workers, message in ((2, "a shape does not fit"), (0, traceback)):
        with pytest.raises(RuntimeError), explain_worker_errors(workers, "use --workers 0"):
            raise RuntimeError(message)
