"""Processes that prepare images, and that die: a line with the cure, and the best model stays."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import runs
import tiny
import warm
from hearing import heard
from refusals import refused
from vitkit.data import EvaluationImages, Preprocess, read_source, report_lost_workers_once
from vitkit.data.loading import check_main_guard
from vitkit.system import reporting_to
from vitkit.training import Recipe, features, run
from vitkit.training import start as setup


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
    with refused("training.worker-lost", cure), reporting_to(kill), heard(lines.append):
        run.train(recipe, folder)
    assert f"the best model so far is in {folder}" in lines
    text = (folder / "recipe.toml").read_text()
    (folder / "recipe.toml").write_text(text.replace("workers = 1", "workers = 0"))
    run.resume(folder)
    assert (folder / "report.html").is_file()


GUARD = 'if __name__ == "__main__":\n    '


@pytest.mark.parametrize("guard", ["", pytest.param(GUARD, marks=pytest.mark.accept)])
def test_a_script_without_a_guard_is_told_to_have_one_where_processes_import_it(tmp_path: Path, guard: str) -> None:
    photos, folder, script = runs.shared_photos(), tmp_path / "run", tmp_path / "own.py"
    recipe = "vitkit.Recipe(weights='none', model='vit_micro_patch8_16', epochs=1, workers=1, cache='none')"
    script.write_text(
        "import multiprocessing\n"
        "multiprocessing.set_start_method('spawn', force=True)\n"
        "print('script starts', flush=True)\nimport vitkit\n"
        f"{guard}vitkit.train({str(photos)!r}, {recipe}, out={str(folder)!r})\n"
    )
    python = sys.executable if guard else warm.python()  # where no process comes that far as to import it
    done = subprocess.run([python, script], capture_output=True, text=True, timeout=120, check=False)
    if guard:
        assert done.returncode == 0 and (folder / "report.html").is_file(), done.stderr
        return
    assert done.stdout.count("script starts") == 1
    assert done.stderr.splitlines()[-1].startswith(
        f'vitkit.errors.VitkitError: {script}: put the call into `if __name__ == "__main__":`'
    )


def test_a_script_with_a_guard_and_one_that_forks_may_start_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (method, text) in enumerate([("spawn", GUARD), ("fork", "")]):
        script = tmp_path / f"{number}.py"
        script.write_text(f"{text}print()\n")
        monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__=str(script)))
        monkeypatch.setattr("multiprocessing.get_start_method", lambda method=method: method)
        check_main_guard()


@pytest.mark.parametrize(
    ("free", "workers"), [(2**40, 7), (64 * 2**20, 0), (4 * 38_535_168, 1), (4 * 38_535_168 - 1, 0), (2**28, 1)]
)
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


UNREADABLE = """Caught VitkitError in DataLoader worker process 0.
Original Traceback (most recent call last):
  ...
vitkit.errors.VitkitError: a.png: not an image
"""


@pytest.mark.parametrize(
    ("message", "code", "named"),
    [
        ("DataLoader worker (pid 7) is killed by signal: Bus error.", "training.worker-lost", "--workers 0"),
        (UNREADABLE, "data.worker-failed", "a.png"),
    ],
)
def test_what_befalls_a_process_computing_features_is_told_in_a_line(
    message: str, code: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> Iterator[object]:
        raise RuntimeError(message)
        yield

    monkeypatch.setattr(features, "DataLoader", failing)
    images = EvaluationImages(read_source(runs.shared_photos()), Preprocess(size=(16, 16)))
    recipe = runs.quick(runs.shared_photos(), workers=2)
    with refused(code, named):
        features.compute_features(tiny.build(), images, recipe, "float32", lambda *_: None)


def test_of_processes_that_die_together_the_program_is_told_once_and_an_ordinary_end_leaves_the_handler_awake() -> None:
    ended: list[int] = []

    def tell(number: int, _: object) -> None:
        ended.append(number)
        if len(ended) > 2:
            raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")

    before = signal.signal(signal.SIGCHLD, tell)
    try:
        report_lost_workers_once()
        for _ in range(2):  # processes that end as they should
            signal.raise_signal(signal.SIGCHLD)
        assert len(ended) == 2
        for _ in range(2):
            with pytest.raises(RuntimeError, match="pid 7"):
                signal.raise_signal(signal.SIGCHLD)
            signal.raise_signal(signal.SIGCHLD)  # in the midst of what is told of the first
            report_lost_workers_once()  # the next training
    finally:
        signal.signal(signal.SIGCHLD, before)
