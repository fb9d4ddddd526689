"""Trainings that are asked for on the page: files in the studio's own folder, and processes that outlive it.

Each job is a file, `jobs/NUMBER.json`, and the run folder that its process writes. `runner` is a process too: it takes
one job after the other, and ends when there is none. Nothing of this is in the server's memory: the page, the server
and the runner may each end, and whoever comes next reads from the folder how things stand.

The studio's own folder is this user's (`workspace.own_folder`) and lies outside of the runs: what came along with
somebody else's runs is never begun, gone on with or stopped.
"""

from __future__ import annotations

import itertools
import math
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from vitkit.errors import VitkitError
from vitkit.model_folder import DESCRIPTION
from vitkit.system.files import exclusive, from_json, is_held, read_text, regular, write_json
from vitkit.system.run_files import EVALUATION, FOLDS, LAST, RECIPE
from vitkit.system.stopping import birth_of, is_same, python
from vitkit.text.cells import plural
from vitkit.webapp.workspace import own_folder

State = Literal["queued", "running", "done", "stopped", "failed"]
_LOCK = "runner.lock"
_BEFORE = ".studio"  # in a folder of runs: where queues were kept before, of whom nobody knows
_FLAGS = {"--out", "--labels", "--weights", "--method", "--time", "--split-from"}  # of a training that is asked for
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
        birth: when that process began, as the system tells it (`system.stopping`); empty: it cannot.
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


class Jobs:
    """The jobs of one folder of runs.

    Args:
        runs: the folder of run folders.
    """

    def __init__(self, runs: Path) -> None:
        self.runs, self.own = runs, own_folder(runs)
        self.folder = self.own / "jobs"

    # --- The files ----------------------------------------------------------------------------------------

    def all(self) -> list[Job]:
        """In the order in which they were asked for; what is damaged is passed over, and told by `notes`."""
        return sorted(filter(None, self._read().values()), key=lambda job: job.number)

    def _read(self) -> dict[Path, Job | None]:
        """By its file each job; None for what is none."""
        found: dict[Path, Job | None] = {}
        for file in sorted(self.folder.glob("*.json")):
            with suppress(FileNotFoundError):  # it was just taken from the queue
                found[file] = _read_job(file)
        return found

    def notes(self) -> list[str]:
        """What the reader should know of the queue, a line each."""
        told = [
            f"{file} is no record of a training: it is left as it is, and can be deleted"
            for file, job in self._read().items()
            if job is None
        ]
        before = self.runs / _BEFORE
        if others := len(list((before / "jobs").glob("*.json"))):
            what = plural(others, "training", "trainings")
            told.append(f"{before} holds {what} of another studio's queue: none is begun or stopped here")
        return told

    def last(self) -> dict[str, Job]:
        """Of each run the last job that writes it, or wrote it; runs in the order in which those were asked for."""
        return {job.run: job for job in self.all()}

    def add(self, run: str, arguments: Sequence[str], asked: dict[str, Any]) -> Job:
        """Put a job at the end of the queue, and see that the queue is worked on."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with exclusive(self.folder, self.own / "jobs.lock", wait=5.0):
            numbers = [int(file.stem) for file in self.folder.glob("*.json") if file.stem.isdecimal()]
            number = max(numbers, default=0) + 1
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

    def reserve(self, name: str) -> str:
        """A name that no run has, and none in the queue; its folder is made, so that nobody else gets it.

        Requests that come at once, other studios and trainings of the command line each get another.
        """
        self.runs.mkdir(parents=True, exist_ok=True)
        taken = {job.run for job in self.all()}
        for number in itertools.count(1):
            own = f"{name}-{number}"
            if own not in taken:
                with suppress(FileExistsError):
                    (self.runs / own).mkdir()
                    return own
        raise AssertionError("numbers have no end")

    def give_back(self, run: str) -> None:
        """Let others have the name of a run that never began."""
        with suppress(OSError):  # where it did, there is something in its folder
            (self.runs / run).rmdir()

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
        return is_same(job.process, job.birth)  # the number may be another process's by now, after a restart above all

    def can_resume(self, run: str) -> bool:
        """Whether there is something to go on from."""
        return (self.runs / run / LAST).is_file() and (self.runs / run / RECIPE).is_file()

    def why_failed(self, job: Job) -> str:
        """The last error of a job's process, in a line; empty where it said none."""
        try:
            lines = read_text(self.log(job), "replace").splitlines()
        except OSError as error:
            return "" if isinstance(error, FileNotFoundError) else f"{self.log(job)}: {error.strerror}"
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return errors[-1] if errors else next((line for line in reversed(lines) if line.strip()), "")

    # --- What is done about it ----------------------------------------------------------------------------

    def see_to_queue(self) -> None:
        """Let a process work on the queue, if there is something in it and none does."""
        if not all(job.started for job in self.all()) and not self.is_worked_on:
            self._start_runner()

    def _start_runner(self) -> None:
        """A process that works on the queue; where another does, it ends."""
        with open(self.own / "runner.log", "ab", opener=regular) as log:
            runner = subprocess.Popen(  # noqa: S603  # this program
                python("vitkit.webapp.runner", str(self.runs)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        threading.Thread(target=runner.wait, daemon=True).start()  # so that it leaves nothing behind when it ends

    def can_stop(self, job: Job | None) -> bool:
        """Whether a job waits, or its process, which this queue has begun, is at work."""
        return job is not None and (not job.started or (not job.ended and is_same(job.process, job.birth)))

    def stop(self, run: str) -> None:
        """Ask the process of a run to stop where it can go on from; take it from the queue if it has not begun.

        Raises:
            VitkitError: it does not run, or was begun by something else than this queue.
        """
        job = self.last().get(run)
        if job is None or not self.can_stop(job):
            where = "was not begun by this studio: stop it where it was begun" if is_held(self.runs / run) else ""
            raise VitkitError(f"{run} {where or 'does not run'}")
        if not job.started:
            (self.folder / f"{job.number:06}.json").unlink(missing_ok=True)
            self.give_back(run)
            return
        with suppress(ProcessLookupError):
            os.kill(job.process, signal.SIGTERM)

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
        self.give_back(run)


def work(runs: Path) -> None:
    """Take one job after the other until there is none. Where another process does that, leave it to it."""
    jobs = Jobs(runs)
    try:
        with exclusive(jobs.own, jobs.own / _LOCK, wait=_PATIENCE):
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
    """What is run for a job.

    Raises:
        VitkitError: it is something else than the studio asks for.
    """
    if not _is_training(job):
        raise VitkitError(f"{shlex.join(job.arguments)!r:.200} is not what the studio asks for: it is not run")
    return python("vitkit", *job.arguments)


def _is_training(job: Job) -> bool:
    """Whether a job's arguments are a training in its own folder, with the flags that the Train tab gives."""
    verb, *rest = job.arguments or ("",)
    sources = rest[:1] if rest and not rest[0].startswith("-") else []
    flags, values = rest[len(sources) :: 2], rest[len(sources) + 1 :: 2]
    if verb != "train" or len(flags) != len(values) or any(value.startswith("-") for value in values):
        return False
    is_known = set(flags) == {"--resume"} if not sources else {"--out"} <= set(flags) <= _FLAGS
    given = dict(zip(flags, values, strict=True))
    return is_known and len(given) == len(flags) and Path(given.get("--out", given.get("--resume", ""))).name == job.run


def _read_job(file: Path) -> Job | None:
    """What a file tells of a job; None where it is no record of one.

    Raises:
        FileNotFoundError: it is gone.
    """
    try:
        stored = from_json(read_text(file))
        is_list = isinstance(stored["arguments"], list)
        job = Job(**{**stored, "arguments": tuple(stored["arguments"])})
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return job if is_list and _is_record(job) and file.name == f"{job.number:06}.json" else None


def _is_record(job: Job) -> bool:
    """Whether every field is of its type, and within what there can be."""
    times = (job.queued, job.started, job.ended)
    return (
        all(type(own) is int and 0 <= own < 2**31 for own in (job.number, job.process))
        and (job.code is None or type(job.code) is int)
        and all(type(own) in (int, float) and 0 <= own < math.inf for own in times)
        and all(isinstance(own, str) for own in (job.run, job.folder, job.birth, *job.arguments))
        and isinstance(job.asked, dict)
        and job.number > 0
        and Path(job.run).name == job.run != ""
    )


def _run(jobs: Jobs, job: Job) -> None:
    if not (jobs.folder / f"{job.number:06}.json").exists():
        return  # it was taken from the queue meanwhile
    try:
        log = open(jobs.log(job), "ab", opener=regular)  # noqa: SIM115
    except OSError:  # it cannot tell what it does
        jobs.write(replace(job, started=time.time(), ended=time.time(), code=1))
        return
    with log:
        try:
            arguments = command(job)
        except VitkitError as error:
            log.write(f"error: {error}\n".encode("utf-8", "replace"))
            jobs.write(replace(job, started=time.time(), ended=time.time(), code=2))
            return
        process = subprocess.Popen(  # noqa: S603  # this program
            arguments,
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
