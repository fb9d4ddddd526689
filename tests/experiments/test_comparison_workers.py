"""The processes that train a comparison's models side by side."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from vitkit.errors import VitkitError
from vitkit.experiments import ComparisonJob
from vitkit.experiments import comparison_runs as comparison_job
from vitkit.experiments.comparison_runs import _environments, _make
from vitkit.system import Worker
from vitkit.training import DivergedError

_FORKING = """
import multiprocessing
from vitkit.system.processes import answer_questions

def answer(question):
    child = multiprocessing.get_context("fork").Process(target=print)
    child.start()
    child.join(20)
    return f"a child ended with {child.exitcode}"

if __name__ == "__main__":
    answer_questions(answer)
"""
_BUSY = """
import sys, time
from pathlib import Path
from vitkit.errors import Interrupted
from vitkit.system import Deferral
from vitkit.system.processes import answer_questions

def answer(question):
    print("what a library prints")
    if question != "wait":
        return question
    try:
        with Deferral() as signal:
            Path("began").touch()
            while signal.received is None:
                time.sleep(0.01)
    except Interrupted:
        Path("stopped").touch()
        sys.exit(0)

if __name__ == "__main__":
    answer_questions(answer, stops_at_end=True)
"""


@pytest.fixture
def worker_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Worker]:
    def start(program: str) -> Worker:
        (tmp_path / "program.py").write_text(program)
        command = [sys.executable, str(tmp_path / "program.py")]
        monkeypatch.setattr("vitkit.system.processes.python", lambda _: command)
        return Worker("program", is_quiet=True)

    monkeypatch.chdir(tmp_path)
    return start


def test_what_a_training_forks_does_not_wait_for_the_next_job(worker_of: Callable[[str], Worker]) -> None:
    """A forked child closes its standard input, which the process that forked it is reading."""
    worker = worker_of(_FORKING)
    assert worker.ask({}) == "a child ended with 0"
    worker.close()
    worker.wait()


def test_a_worker_that_is_busy_when_the_pipe_ends_stops_in_good_order(
    worker_of: Callable[[str], Worker], tmp_path: Path
) -> None:
    worker = worker_of(_BUSY)
    assert worker.ask({"any": (1, tmp_path)}) == {"any": (1, tmp_path)}, "what it prints is no answer"
    ended: list[type[BaseException]] = []

    def ask() -> None:
        try:
            worker.ask("wait")
        except (EOFError, OSError, ValueError) as error:
            ended.append(type(error))

    thread = threading.Thread(target=ask)
    thread.start()
    while not (tmp_path / "began").exists():
        thread.join(0.01)
    worker.close()
    worker.wait()
    thread.join()
    assert (tmp_path / "stopped").exists()
    assert ended


def test_a_worker_tells_a_training_that_is_past_help_from_one_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    job = ComparisonJob("a", 0, 1.0, 1, {}, "runs/a")
    for error, is_past_help in ((DivergedError("no"), True), (VitkitError("no"), False)):
        monkeypatch.setattr(comparison_job, "make", Mock(side_effect=error))
        assert _make((job, Path("out"))) == {"error": "no", "is_past_help": is_past_help}


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    assert _environments(4, "cpu") == [{"OMP_NUM_THREADS": "4"}] * 4
    monkeypatch.setattr("vitkit.experiments.comparison_runs.choose_device", lambda device: "cuda")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert _environments(2, "auto") == [
        {"OMP_NUM_THREADS": "8", "CUDA_VISIBLE_DEVICES": "5"},
        {"OMP_NUM_THREADS": "8", "CUDA_VISIBLE_DEVICES": "7"},
    ]
