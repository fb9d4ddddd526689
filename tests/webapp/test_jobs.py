"""The queue of trainings: in order, one at a time, on disk, and independent of who asked for them."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from refusals import refused
from vitkit.system import exclusive, is_locked
from vitkit.webapp import Job, Jobs, work
from vitkit.webapp import jobs as module

# A training as the queue sees it: holds its run folder, writes what a run has, ends well when it is told to stop.
TRAINING = """
import signal, sys, time
from pathlib import Path
sys.path.insert(0, {source!r})
from vitkit.system.files import exclusive_in
folder, seconds, out = Path(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[1]).parent / "order.txt"
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
with exclusive_in(folder):
    with out.open("a") as order:
        order.write("begin " + folder.name + "\\n")
    (folder / "recipe.toml").write_text("")
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "checkpoints" / "last.ckpt").write_text("")
    time.sleep(seconds)
    (folder / "evaluation.json").write_text("{{}}")
    with out.open("a") as order:
        order.write("end " + folder.name + "\\n")
"""
SOURCE = str(Path(module.__file__).parents[2])


def until(what: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.02)


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    """A queue whose trainings take as long as their name says, and whose runner is started by the test."""
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Jobs, "_start_runner", lambda self: None)
    script = TRAINING.format(source=SOURCE)
    begin = (sys.executable, "-c", script)
    monkeypatch.setattr(module, "command", lambda job: [*begin, str(tmp_path / "runs" / job.run), job.arguments[0]])
    yield Jobs(tmp_path / "runs")


def states(jobs: Jobs) -> dict[str, str]:
    return {run: jobs.state(run, job) for run, job in jobs.last().items()}


def order(jobs: Jobs) -> list[str]:
    return (jobs.runs / "order.txt").read_text().split()


def test_one_after_the_other_in_the_order_in_which_they_were_asked_for(jobs: Jobs) -> None:
    for i in range(3):
        jobs.add(f"a-{i}", ("0.05",), {})
    assert states(jobs) == {"a-0": "queued", "a-1": "queued", "a-2": "queued"}
    work(jobs.runs)
    assert order(jobs) == [word for i in range(3) for word in ("begin", f"a-{i}", "end", f"a-{i}")]
    assert set(states(jobs).values()) == {"done"}
    assert [job.code for job in jobs.all()] == [0, 0, 0]


def test_of_two_runners_one_works(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.05)
    jobs.add("a-1", ("0.6",), {})
    threads = [threading.Thread(target=work, args=(jobs.runs,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: states(jobs)["a-1"] == "running")
    for thread in threads:
        thread.join()
    assert order(jobs) == ["begin", "a-1", "end", "a-1"]


def test_a_runner_is_started_with_a_job_or_where_there_is_none(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    monkeypatch.setattr(Jobs, "_start_runner", lambda self: started.append(1))
    jobs.start_runner_if_needed()
    assert not started  # there is nothing to do
    jobs.add("a-1", ("0.5",), {})
    jobs.start_runner_if_needed()
    assert len(started) == 2
    thread = threading.Thread(target=work, args=(jobs.runs,))
    thread.start()
    until(lambda: states(jobs)["a-1"] == "running")
    jobs.add("a-2", ("0",), {})
    for _ in range(20):  # as a page asks, each second
        jobs.start_runner_if_needed()
    assert len(started) == 3
    thread.join()
    jobs.start_runner_if_needed()
    assert len(started) == 3


def test_a_training_that_is_stopped_can_be_gone_on_with_and_a_waiting_one_is_taken_back(jobs: Jobs) -> None:
    jobs.add("a-1", ("30",), {})
    jobs.add("a-2", ("0",), {})
    thread = threading.Thread(target=work, args=(jobs.runs,))
    thread.start()
    until(lambda: (jobs.runs / "a-1" / "checkpoints" / "last.ckpt").exists())
    assert states(jobs) == {"a-1": "running", "a-2": "queued"}
    assert is_locked(jobs.runs / "a-1")
    jobs.stop("a-2")
    jobs.stop("a-1")
    thread.join(20)
    assert states(jobs) == {"a-1": "stopped"}
    assert jobs.can_resume("a-1")
    assert jobs.all()[0].code == 143
    for name in ("a-1", "../a-1"):
        with refused("webapp.run-not-running"):
            jobs.stop(name)


def test_a_killed_runner_takes_no_training_with_it_and_the_next_waits_for_that(jobs: Jobs) -> None:
    jobs.add("a-1", ("1.5",), {})
    jobs.add("a-2", ("0",), {})
    code = (
        f"import sys; sys.path.insert(0, {SOURCE!r})\nfrom pathlib import Path\nfrom vitkit.webapp import jobs\n"
        f"script = {TRAINING.format(source=SOURCE)!r}\n"
        f"runs = Path({str(jobs.runs)!r})\n"
        "jobs.command = lambda job: [sys.executable, '-c', script, str(runs / job.run), job.arguments[0]]\n"
        "jobs.work(runs)\n"
    )
    runner = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    until(lambda: is_locked(jobs.runs / "a-1"))
    os.killpg(runner.pid, signal.SIGKILL)
    runner.wait()
    assert states(jobs) == {"a-1": "running", "a-2": "queued"}
    work(jobs.runs)  # the next one
    assert order(jobs) == ["begin", "a-1", "end", "a-1", "begin", "a-2", "end", "a-2"]
    assert set(states(jobs).values()) == {"done"}
    assert jobs.all()[0].code is None


def test_a_number_that_another_process_has_by_now_is_not_waited_for(jobs: Jobs) -> None:
    jobs.folder.mkdir(parents=True)
    began = "long ago, before the machine was started anew"
    jobs.write(Job(1, "a-1", ("0",), "", {}, queued=1.0, started=2.0, process=os.getpid(), birth=began))
    jobs.add("a-2", ("0",), {})
    with exclusive(jobs.state_folder, jobs.state_folder / "runner.lock"):
        assert states(jobs) == {"a-1": "failed", "a-2": "queued"}
    work(jobs.runs)
    assert states(jobs)["a-2"] == "done"


def test_a_training_that_fails_says_why_and_can_be_forgotten(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = "import sys; print('note: x'); sys.stderr.write('error: there is no such thing\\n'); sys.exit(2)"
    monkeypatch.setattr(module, "command", lambda job: [sys.executable, "-c", failing])
    job = jobs.add("a-1", ("0",), {})
    work(jobs.runs)
    assert states(jobs) == {"a-1": "failed"}
    assert jobs.last_error(job) == "there is no such thing"
    jobs.stop("a-1")
    assert states(jobs) == {} and not list(jobs.folder.iterdir())
