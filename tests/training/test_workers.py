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
from vitkit.data import EvaluationImages, Preprocess, read_source, tell_lost_workers_once
from vitkit.errors import VitkitError
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
    with pytest.raises(VitkitError) as caught, reporting_to(kill):
        run.train(recipe, folder)
    said = str(caught.value)
    assert "a process that prepares images ended" in said
    assert f"set workers = 0 in {folder / 'recipe.toml'}, then continue with --resume" in said
    assert said.endswith(f"; the best model so far is in {folder}")
    assert len(said.splitlines()) == 1
    text = (folder / "recipe.toml").read_text()
    (folder / "recipe.toml").write_text(text.replace("workers = 1", "workers = 0"))
    run.resume(folder)
    assert (folder / "report.html").is_file()


@pytest.mark.parametrize("guard", ["", 'if __name__ == "__main__":\n    '])
def test_a_script_without_a_guard_is_told_to_have_one_where_processes_import_it(tmp_path: Path, guard: str) -> None:
    photos, folder = runs.photos(tmp_path / "photos"), tmp_path / "run"
    recipe = "vitkit.Recipe(weights='none', model='vit_micro_patch8_16', epochs=1, workers=1, cache='none')"
    script = tmp_path / "own.py"
    script.write_text(
        "import multiprocessing\n"
        "multiprocessing.set_start_method('spawn', force=True)\n"
        "print('script starts', flush=True)\nimport vitkit\n"
        f"{guard}vitkit.train({str(photos)!r}, {recipe}, out={str(folder)!r})\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    if guard:
        assert done.returncode == 0 and (folder / "report.html").is_file(), done.stderr
        return
    assert done.stdout.count("script starts") == 1
    assert done.stderr.splitlines()[-1].startswith(
        f'vitkit.errors.VitkitError: {script}: put the call into `if __name__ == "__main__":`'
    )


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
    assert setup.choose_workers(Recipe(), (224, 224)) == 95
    assert setup.choose_workers(Recipe(devices=8), (224, 224)) == 11
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert setup.choose_workers(Recipe(), (224, 224)) == 23
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "64")
    assert setup.choose_workers(Recipe(), (224, 224)) == 0


def test_a_worker_lost_computing_features_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object, **__: object) -> Iterator[object]:
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error.")
        yield

    monkeypatch.setattr(features, "DataLoader", lost)
    recipe = runs.quick(runs.photos(tmp_path / "photos"), workers=2)
    table = read_source(tmp_path / "photos")
    images = EvaluationImages(table, Preprocess(size=(16, 16)))
    with pytest.raises(VitkitError, match=r"process that prepares images ended.* --workers 2; use --workers 0"):
        features.compute_features(tiny.build(), images, recipe, "float32", lambda *_: None)


def test_an_unreadable_image_is_told_without_the_traceback_of_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> Iterator[object]:
        where = "Caught VitkitError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        raise RuntimeError(f"{where}  ...\nvitkit.errors.VitkitError: a.png: not an image\n")
        yield

    monkeypatch.setattr(features, "DataLoader", failing)
    recipe = runs.quick(runs.photos(tmp_path / "photos"), workers=2)
    images = EvaluationImages(read_source(tmp_path / "photos"), Preprocess(size=(16, 16)))
    with pytest.raises(VitkitError, match=r"^a\.png: not an image$"):
        features.compute_features(tiny.build(), images, recipe, "float32", lambda *_: None)


def test_of_processes_that_die_together_the_program_is_told_once() -> None:
    def tell(*_: object) -> None:
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")

    before = signal.signal(signal.SIGCHLD, tell)
    try:
        tell_lost_workers_once()
        with pytest.raises(RuntimeError, match="pid 7"):
            signal.raise_signal(signal.SIGCHLD)
        signal.raise_signal(signal.SIGCHLD)  # in the midst of what is told of the first
        tell_lost_workers_once()  # the next training
        with pytest.raises(RuntimeError, match="pid 7"):
            signal.raise_signal(signal.SIGCHLD)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_process_that_ends_as_it_should_leaves_the_handler_awake() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGCHLD, lambda number, _: heard.append(number))
    try:
        tell_lost_workers_once()
        signal.raise_signal(signal.SIGCHLD)
        signal.raise_signal(signal.SIGCHLD)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert heard == [signal.SIGCHLD, signal.SIGCHLD]
