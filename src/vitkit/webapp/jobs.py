"""The queue of trainings that were started on the page. The queue is stored in files, so it outlives the server.

Each job has a file, `jobs/NUMBER.json`, and a run folder that the process of the job writes. Another process, the
runner (`python -m vitkit.webapp.jobs RUNS`), runs one job after the other and ends when the queue is empty. The server
keeps no state of jobs in memory. Page, server and runner may end at any time, because each of them reads the state from
the files when it starts again.

The folder of the queue belongs to the user (`workspace.state_of_runs`) and lies outside the runs. Therefore a queue
that was copied together with another user's runs is never started, resumed or stopped.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from vitkit.errors import VitkitError
from vitkit.model_folder import DESCRIPTION
from vitkit.system import (
    EVALUATION,
    FOLDS,
    LAST,
    RECIPE,
    REPORT,
    STOP_FILE,
    detached_options,
    exclusive,
    from_json,
    is_locked,
    is_same_process,
    python_command,
    read_text,
    request_stop,
    start_time_of,
    write_json,
)
from vitkit.text import coerce_types
from vitkit.webapp.workspace import state_of_runs

State = Literal["queued", "running", "done", "stopped", "failed"]
_LOCK = "runner.lock"
_PATIENCE = 3.0  # seconds that a second runner waits for the first, which may be about to end


@dataclass(frozen=True)
class Job:
    """A training in the queue. Times are in seconds since 1970."""

    number: int  # increases with each request
    run: str  # the name of the run folder that the training writes
    arguments: tuple[str, ...]  # the command line after `vitkit`
    folder: str  # the working directory of the process
    request: dict[str, Any]  # the content of the page's request, for display
    queued: float
    started: float = 0.0  # 0 if the process has not started yet
    ended: float = 0.0  # 0 if the process has not ended yet
    process: int = 0
    birth: str = ""  # the start time of the process (`system.processes.start_time_of`), if known
    code: int | None = None  # the exit status; None while the process runs, or if no runner existed when it ended


class Jobs:
    """The queue of trainings of one folder of runs."""

    def __init__(self, runs: Path) -> None:
        self.runs, self.state_folder = runs, state_of_runs(runs)
        self.folder = self.state_folder / "jobs"

    # --- The files ----------------------------------------------------------------------------------------

    def all(self) -> list[Job]:
        """List the jobs in the order of their requests. Files that are not jobs are ignored."""
        jobs = []
        for file in self.folder.glob("*.json"):
            with suppress(OSError, ValueError, TypeError, KeyError, VitkitError):  # such as one that was just removed
                stored = from_json(read_text(file))
                job = Job(request=stored.pop("asked"), **stored)
                coerce_types(job, exclude=("request",))
                jobs.append(job)
        return sorted(jobs, key=lambda job: job.number)

    def last(self) -> dict[str, Job]:
        """Return the last job of each run, by the name of the run."""
        return {job.run: job for job in self.all()}

    def add(self, run: str, arguments: Sequence[str], request: dict[str, Any]) -> Job:
        """Append a job to the queue, and start a runner. The new runner ends soon if another runner is working."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with exclusive(self.folder, self.state_folder / "jobs.lock", wait=5.0):
            numbers = [int(file.stem) for file in self.folder.glob("*.json") if file.stem.isdecimal()]
            number = max(numbers, default=0) + 1
            job = Job(number, run, tuple(arguments), str(Path.cwd()), request, time.time())
            self.write(job)
        self._start_runner()  # always, because an existing runner may be about to end
        return job

    def write(self, job: Job) -> None:
        """Write the state of a job to its file."""
        stored = asdict(job)
        stored["asked"] = stored.pop("request")
        write_json(self.folder / f"{job.number:06}.json", stored)

    def log(self, job: Job) -> Path:
        """Return the file with the output of the job's process."""
        return self.folder / f"{job.number:06}.log"

    def stop_file(self, job: Job) -> Path:
        """Return the file whose existence asks the job's process to stop, on systems without signals."""
        return self.folder / f"{job.number:06}.stop"

    def release_name(self, run: str) -> None:
        """Delete the empty folder of a run that never started, so that its name is free again."""
        with suppress(OSError):  # the folder of a run that started is not empty
            (self.runs / run).rmdir()

    # --- State --------------------------------------------------------------------------------------------

    def state(self, run: str, job: Job | None) -> State:
        """Return the state of a run, derived from its folder, its last job and the lock on the folder."""
        folder = self.runs / run
        if job is not None and not job.started:
            return "queued"
        if is_locked(folder) or (job is not None and self.is_starting(job)):
            return "running"
        is_cross_validated = (folder / FOLDS).is_file() and (folder / REPORT).is_file()
        if (folder / EVALUATION).is_file() or is_cross_validated:
            return "done"
        has_model = (folder / DESCRIPTION).is_file()
        return "stopped" if has_model or self.can_resume(run) else "failed"

    def is_starting(self, job: Job) -> bool:
        """Return whether the process of a job runs, even if it has not locked its run folder yet."""
        # After a restart, another process may have the same number.
        return bool(job.started and not job.ended) and is_same_process(job.process, job.birth)

    def can_resume(self, run: str) -> bool:
        """Return whether the run has a checkpoint to resume from."""
        return (self.runs / run / LAST).is_file() and (self.runs / run / RECIPE).is_file()

    def last_error(self, job: Job) -> str:
        """Return the last error that a job printed, or else its last line of output; empty if there is none."""
        log = self.log(job)
        lines = read_text(log, "replace").splitlines() if log.is_file() else []
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        if errors:
            return errors[-1]
        return next((line for line in reversed(lines) if line.strip()), "")

    # --- Actions -----------------------------------------------------------------------------------------

    def start_runner_if_needed(self) -> None:
        """Start a runner if a job is waiting and no runner is working."""
        is_waiting = any(not job.started for job in self.all())
        if is_waiting and not is_locked(self.state_folder, self.state_folder / _LOCK):
            self._start_runner()

    def _start_runner(self) -> None:
        """Start a runner process. It ends soon if another runner is working."""
        with (self.state_folder / "runner.log").open("ab") as log:
            runner = subprocess.Popen(  # noqa: S603  # this program
                python_command("vitkit.webapp.jobs", str(self.runs)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **detached_options(),
            )
        threading.Thread(target=runner.wait, daemon=True).start()  # so that no zombie process remains

    def stop(self, run: str) -> None:
        """Ask the process of a run to stop and save a checkpoint.

        A waiting job, or one that failed before it began, is removed from the queue with its empty folder.
        """
        job = self.last().get(run)
        state = self.state(run, job)
        has_failed_early = state == "failed" and not (self.runs / run / RECIPE).is_file()
        if job is not None and (not job.started or has_failed_early):
            (self.folder / f"{job.number:06}.json").unlink(missing_ok=True)
            self.log(job).unlink(missing_ok=True)
            self.release_name(run)
        elif job is not None and self.is_starting(job):
            request_stop(job.process, self.stop_file(job))
        else:
            reason = f"{run} is not running"
            if is_locked(self.runs / run):
                reason = f"{run} was not started by this studio: stop it where it was started"
            elif state == "failed":
                reason = f"{run} has results and stays in the list: delete its folder {self.runs / run} to remove it"
            raise VitkitError("webapp.run-not-running", reason)


def work(runs: Path) -> None:
    """Run one job after the other until the queue is empty. If another runner is working, run no job."""
    jobs = Jobs(runs)
    try:
        with exclusive(jobs.state_folder, jobs.state_folder / _LOCK, wait=_PATIENCE):
            while (job := next((waiting for waiting in jobs.all() if not waiting.started), None)) is not None:
                _run_job(jobs, job)
    except VitkitError:
        return


def command(job: Job) -> list[str]:
    """Return the command line of a job's process."""
    return python_command("vitkit", *job.arguments)


def _run_job(jobs: Jobs, job: Job) -> None:
    """Wait until no other job trains, run the job unless it was removed meanwhile, and record its exit status."""
    unrecorded = [other for other in jobs.all() if other.started and not other.ended]  # their runner was killed
    for other in unrecorded:
        while is_locked(jobs.runs / other.run) or jobs.is_starting(other):
            time.sleep(0.2)
        jobs.write(replace(other, ended=time.time()))
    if not (jobs.folder / f"{job.number:06}.json").exists():
        return  # it was removed from the queue meanwhile
    with jobs.log(job).open("ab") as log:
        process = subprocess.Popen(  # noqa: S603  # this program
            command(job),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=job.folder if Path(job.folder).is_dir() else None,
            env={**os.environ, STOP_FILE: str(jobs.stop_file(job))},
            **detached_options(),
        )
        job = replace(job, started=time.time(), process=process.pid, birth=start_time_of(process.pid))
        jobs.write(job)
        code = process.wait()
        jobs.stop_file(job).unlink(missing_ok=True)
    jobs.write(replace(job, ended=time.time(), code=code))


if __name__ == "__main__":
    work(Path(sys.argv[1]))
