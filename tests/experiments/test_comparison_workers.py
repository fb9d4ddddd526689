"""The processes that train a comparison's models side by side."""

from __future__ import annotations

import subprocess
import sys
from unittest.mock import Mock

import pytest

from vitkit.errors import VitkitError
from vitkit.experiments import ComparisonJob
from vitkit.experiments import comparison_runs as comparison_job
from vitkit.experiments.comparison_runs import _environments, _make
from vitkit.training import DivergedError

_FORKING = """
import multiprocessing
import vitkit.experiments.comparison_runs as workers

def make(asked):
    child = multiprocessing.get_context("fork").Process(target=print)
    child.start()
    child.join(20)
    return {"error": f"a child ended with {child.exitcode}"}

workers._make = make
workers.main()
"""


def test_what_a_training_forks_does_not_wait_for_the_next_job() -> None:
    """A forked child closes its standard input, which the process that forked it is reading."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", _FORKING], text=True, **pipes) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        worker.stdin.write('{"job": {}}\n')
        worker.stdin.flush()
        answer = worker.stdout.readline()
        worker.stdin.close()
    assert answer == '{"error": "a child ended with 0"}\n'


def test_a_worker_tells_a_training_that_is_past_help_from_one_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    job = vars(ComparisonJob("a", 0, 1.0, 1, {}, "runs/a"))
    for error, is_past_help in ((DivergedError("no"), True), (VitkitError("no"), False)):
        monkeypatch.setattr(comparison_job, "make", Mock(side_effect=error))
        assert _make({"job": job, "out": "out"}) == {"error": "no", "is_past_help": is_past_help}


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
