"""Trainings that are asked for on the page: files in the studio's own folder, and processes that outlive it.

Each job is a file, `jobs/NUMBER.json`, and the run folder that its process writes. `runner` is a process too: it takes
one job after the other, and ends when there is none. Nothing of this is in the server's memory: the page, the server
and the runner may each end, and whoever comes next reads from the folder how things stand.
"""

from __future__ import annotations

import os
import signal
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
from vitkit.system.files import from_json, holder, is_held, sole, write_json
from vitkit.system.processes import birth_of
from vitkit.system.run_files import EVALUATION, FOLDS, LAST, RECIPE
from vitkit.text.fields import settle_types

State = Literal["queued", "running", "done", "stopped", "failed"]
_LOCK = "runner.lock"
_PATIENCE = 3.0  # seconds that a second runner waits for the first to end, which may just have looked for the last time
_BEGINNING = 60.0  # seconds in which a process has come to its folder
_ENDING = 0.2  # seconds between two looks at a process that is no child of the runner


@dataclass(frozen=True)
class Job:
    """One training that was asked for.

    Attributes:
        number: in the order in which they were asked for.
        run: the name of the run folder that it writes.
        arguments: of `vitkit`.
        folder: in which it is started.
        asked: what the page asked for, to be shown.
        queued, started, ended: seconds since 1970; 0: not yet.
        process: its number while it is running.
        birth: when that process began, as the system tells it (`system.processes`); empty: it cannot.
        code: with which its process ended; None: not yet, or nobody was there to hear it.
    """

    number: int
    run: str
    arguments: tuple[str, ...]
    folder: str
    asked: dict[str, Any]
    queued: float
    started: float = 0.0
    ended: float = 0.0
    process: int = 0
    birth: str = ""
    code: int | None = None

    def __post_init__(self) -> None:
        settle_types(self, but=("asked",))
        if not isinstance(self.asked, dict):
            raise VitkitError(f"asked must be an object, not {self.asked!r:.80}")
        if self.number < 1 or self.process < 0:
            raise VitkitError(f"a job has number {self.number} and process {self.process}")


class Jobs:
    """The jobs of one folder of runs.

    Args:
        runs: the folder of run folders.
    """

    def __init__(self, runs: Path) -> None:
        self.runs, self.own = runs, runs / ".studio"
        self.folder = self.own / "jobs"

    # --- The files ----------------------------------------------------------------------------------------

    def all(self) -> list[Job]:
        """In the order in which they were asked for; what is damaged is passed over."""
        found = []
        for file in sorted(self.folder.glob("*.json")) if self.folder.is_dir() else ():
            with suppress(OSError, ValueError, TypeError, KeyError):
                stored = from_json(file.read_text(encoding="utf-8"))
                job = Job(**stored)
                if file.stem == f"{job.number:06}":  # else the job would be written to another file, and begun again
                    found.append(job)
        return sorted(found, key=lambda job: job.number)

    def last(self) -> dict[str, Job]:
        """Of each run the last job that writes it, or wrote it; runs in the order in which those were asked for."""
        return {job.run: job for job in self.all()}

    def add(self, run: str, arguments: Sequence[str], asked: dict[str, Any]) -> Job:
        """Put a job at the end of the queue, and see that the queue is worked on."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with sole(self.folder, self.own / "jobs.lock", wait=5.0):
            number = max((job.number for job in self.all()), default=0) + 1
            job = Job(number, run, tuple(arguments), str(Path.cwd()), asked, time.time())
            self.write(job)
        self._start_runner()  # one that is there may just have looked for the last time
        return job

    def write(self, job: Job) -> None:
        """Keep how a job stands."""
        write_json(self.folder / f"{job.number:06}.json", asdict(job))

    def log(self, job: Job) -> Path:
        """What its process says."""
        return self.folder / f"{job.number:06}.log"

    def new_run(self, name: str) -> str:
        """A name that no run has, and none in the queue."""
        taken = {job.run for job in self.all()}
        number = 1
        while (self.runs / f"{name}-{number}").exists() or f"{name}-{number}" in taken:
            number += 1
        return f"{name}-{number}"

    # --- How things stand ---------------------------------------------------------------------------------

    @property
    def is_worked_on(self) -> bool:
        """Whether a runner is there."""
        return is_held(self.own, self.own / _LOCK)

    def state(self, run: str, job: Job | None) -> State:
        """How a run stands, by its folder, its last job and who holds it."""
        folder = self.runs / run
        if job is not None and not job.started:
            return "queued"
        if is_held(folder) or (job is not None and self.is_beginning(job)):
            return "running"
        if (folder / EVALUATION).is_file() or (folder / FOLDS).is_file():
            return "done"
        return "stopped" if self.can_resume(run) or (folder / DESCRIPTION).is_file() else "failed"

    def is_beginning(self, job: Job) -> bool:
        """Whether a job's process is there that has not come to its folder yet, or has just left it."""
        if not job.started or job.ended or not job.process:
            return False
        if not self.is_worked_on and time.time() - job.started >= _BEGINNING:
            return False
        if job.birth:  # the number may be another process's by now, after a restart above all
            return birth_of(job.process) == job.birth
        with suppress(OSError):
            os.kill(job.process, 0)
            return time.time() - job.started < _BEGINNING
        return False

    def can_resume(self, run: str) -> bool:
        """Whether there is something to go on from."""
        return (self.runs / run / LAST).is_file() and (self.runs / run / RECIPE).is_file()

    def why_failed(self, job: Job) -> str:
        """The last error of a job's process, in a line; empty where it said none."""
        with suppress(OSError):
            lines = self.log(job).read_text(encoding="utf-8", errors="replace").splitlines()
            errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
            return errors[-1] if errors else next((line for line in reversed(lines) if line.strip()), "")
        return ""

    # --- What is done about it ----------------------------------------------------------------------------

    def see_to_queue(self) -> None:
        """Let a process work on the queue, if there is something in it and none does."""
        if not all(job.started for job in self.all()) and not self.is_worked_on:
            self._start_runner()

    def _start_runner(self) -> None:
        """A process that works on the queue; where another does, it ends."""
        with (self.own / "runner.log").open("ab") as log:
            runner = subprocess.Popen(  # noqa: S603  # this program
                [sys.executable, "-m", "vitkit.webapp.runner", str(self.runs)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        threading.Thread(target=runner.wait, daemon=True).start()  # so that it leaves nothing behind when it ends

    def stop(self, run: str) -> None:
        """Ask the process of a run to stop where it can go on from; take it from the queue if it has not begun.

        Raises:
            VitkitError: it does not run.
        """
        job = self.last().get(run)
        if job is not None and not job.started:
            (self.folder / f"{job.number:06}.json").unlink(missing_ok=True)
            return
        process = holder(self.runs / run)
        if process is None and job is not None and self.is_beginning(job):
            process = job.process
        if process is None:
            where = "on another machine, or is just beginning: stop it there" if is_held(self.runs / run) else ""
            raise VitkitError(f"{run} runs {where}" if where else f"{run} does not run")
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)

    def forget(self, run: str) -> None:
        """No longer tell of a run that left nothing behind.

        Raises:
            VitkitError: it is there, or is to come.
        """
        job = self.last().get(run)
        if job is None or self.state(run, job) != "failed" or (self.runs / run / RECIPE).is_file():
            raise VitkitError(f"{run} cannot be taken from the list: it is in {self.runs}")
        for own in self.all():
            if own.run == run:
                (self.folder / f"{own.number:06}.json").unlink(missing_ok=True)
                self.log(own).unlink(missing_ok=True)


def work(runs: Path) -> None:
    """Take one job after the other until there is none. Where another process does that, leave it to it."""
    jobs = Jobs(runs)
    try:
        with sole(jobs.own, jobs.own / _LOCK, wait=_PATIENCE):
            while (job := next((own for own in jobs.all() if not own.started), None)) is not None:
                _wait_for_others(jobs)
                _run(jobs, job)
    except VitkitError:
        return


def _wait_for_others(jobs: Jobs) -> None:
    """For a training whose runner was killed, and which goes on without it."""
    for own in jobs.all():
        if own.started and not own.ended:
            while is_held(jobs.runs / own.run) or jobs.is_beginning(own):
                time.sleep(_ENDING)
            jobs.write(replace(own, ended=time.time()))


def command(job: Job) -> list[str]:
    """What is run for a job."""
    return [sys.executable, "-m", "vitkit", *job.arguments]


def _run(jobs: Jobs, job: Job) -> None:
    if not (jobs.folder / f"{job.number:06}.json").exists():
        return  # it was taken from the queue meanwhile
    with jobs.log(job).open("ab") as log:
        process = subprocess.Popen(  # noqa: S603  # this program
            command(job),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=job.folder if Path(job.folder).is_dir() else None,
            start_new_session=True,
        )
        job = replace(job, started=time.time(), process=process.pid, birth=birth_of(process.pid))
        jobs.write(job)
        code = process.wait()
    jobs.write(replace(job, ended=time.time(), code=code))
