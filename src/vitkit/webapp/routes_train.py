"""The Train tab: what is begun from, the queue, and how each training goes, read from its run folder."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field

from vitkit.data.corrected import Followed
from vitkit.data.label_file import EXCLUDED
from vitkit.data.pictures import UNLABELLED
from vitkit.errors import VitkitError
from vitkit.system.files import read_text
from vitkit.system.run_files import LOG, METRICS, PICTURES, RECIPE, REPORT
from vitkit.training.metrics_file import read_metrics
from vitkit.webapp.jobs import Job, Jobs
from vitkit.webapp.offers import offered, offers
from vitkit.webapp.photographs import read_photographs
from vitkit.webapp.results import figures_in
from vitkit.webapp.workspace import Workspace

_NONE = "none"  # weights of a training from scratch
_DURATION = re.compile(r"[0-9]{1,6}(\.[0-9]{1,3})?[smh]")
_LINES = 200  # of a log
_SAMPLES = "What the model sees in training"


class Asked(BaseModel):
    """A training that is asked for.

    Attributes:
        weights: one of the offers, or `none`.
        method: what of the model learns.
        time: a budget as in 10m; empty: none.
        split_from: the run whose split is kept; empty: none.
    """

    weights: str = Field(max_length=4000)
    method: Literal["auto", "probe", "lora", "full", "scratch"] = "auto"
    time: str = Field(default="", max_length=20)
    split_from: str = Field(default="", max_length=300)


def router(workspace: Workspace) -> APIRouter:
    """The routes of the tab. A queue that was left is worked on again."""
    routes, jobs = APIRouter(prefix="/api/train"), Jobs(workspace.runs)
    jobs.see_to_queue()

    @routes.get("/offers")
    def show_offers() -> dict[str, Any]:
        return {"offers": [own.to_dict() for own in offers(workspace)]}

    @routes.post("/start")
    def start(asked: Asked) -> dict[str, Any]:
        arguments, notes = _arguments(workspace, asked)
        name = jobs.reserve(_safe(workspace.name))
        try:
            jobs.add(name, [*arguments, "--out", str(workspace.runs / name)], asked.model_dump())
        except BaseException:
            jobs.give_back(name)
            raise
        return {"run": name, "notes": notes}

    @routes.get("/runs")
    def show_runs() -> dict[str, Any]:
        jobs.see_to_queue()
        last = jobs.last()
        told = [_summary(workspace, jobs, name, last.get(name)) for name in _names(workspace, last)]
        return {"runs": told, "notes": jobs.notes()}

    @routes.get("/runs/{name}")
    def show_run(name: str) -> dict[str, Any]:
        job = _job(workspace, jobs, name)
        folder = workspace.runs / name
        said = _tail(folder / LOG) or ([] if job is None else _tail(jobs.log(job)))
        figures = {**_summary(workspace, jobs, name, job), "metrics": _metrics(folder), "log": said}
        return {**figures, "samples": (folder / PICTURES[_SAMPLES]).is_file(), "report": (folder / REPORT).is_file()}

    @routes.get("/runs/{name}/samples")
    def show_samples(name: str) -> FileResponse:
        picture = workspace.run_folder(name) / PICTURES[_SAMPLES]
        if not picture.is_file():
            raise VitkitError(f"{name} has no such picture yet")
        return FileResponse(picture, headers={"Cache-Control": "no-cache"})

    @routes.post("/runs/{name}/stop")
    def stop(name: str) -> dict[str, Any]:
        _job(workspace, jobs, name)
        jobs.stop(name)
        return {"run": name}

    @routes.post("/runs/{name}/forget")
    def forget(name: str) -> dict[str, Any]:
        _job(workspace, jobs, name)
        jobs.forget(name)
        return {"run": name}

    @routes.post("/runs/{name}/resume")
    def resume(name: str) -> dict[str, Any]:
        folder, before = workspace.run_folder(name), jobs.last().get(name)
        state = jobs.state(name, before)
        if state != "stopped" or not jobs.can_resume(name):
            raise VitkitError(f"{name} is {state}: only a training that was stopped goes on")
        jobs.add(name, ("train", "--resume", str(folder)), {} if before is None else before.asked)
        return {"run": name}

    return routes


def _arguments(workspace: Workspace, asked: Asked) -> tuple[list[str], list[str]]:
    """Of `vitkit`, from what is known here: the page names no files of its own; and which labels match nothing.

    Raises:
        VitkitError: there is nothing to learn from, or something that was not offered is asked for.
    """
    labels = Followed(read_photographs(workspace))
    labels.take(workspace.said.read())
    if len(set(labels.labels) - {EXCLUDED, UNLABELLED}) < 2:
        raise VitkitError("a classifier tells at least two classes apart: give photographs two classes first (Data)")
    given = ["train", str(workspace.photographs)]
    if workspace.labels.is_file():
        given += ["--labels", str(workspace.labels)]
    if asked.weights == _NONE or asked.method == "scratch":
        given += ["--weights", _NONE, "--method", "scratch"]
    else:
        given += ["--weights", offered(workspace, asked.weights).source, "--method", asked.method]
    if asked.time:
        if not _DURATION.fullmatch(asked.time):
            raise VitkitError(f"{asked.time!r} is no time: write it as 90s, 10m or 2h")
        given += ["--time", asked.time]
    if asked.split_from:
        given += ["--split-from", str(workspace.run_folder(asked.split_from))]
    return given, labels.lines(workspace.labels.name)


def _safe(name: str) -> str:
    """A run's name from a folder's: letters, digits and the like, so that it is the same in every address."""
    return re.sub(r"[^\w.-]+", "_", name).strip("._")[:60] or "run"


def _names(workspace: Workspace, asked: Iterable[str]) -> list[str]:
    """The runs that are waited for, and those that are there, the newest first."""
    there = workspace.run_names()
    return [name for name in reversed(list(asked)) if name not in there] + there


def _job(workspace: Workspace, jobs: Jobs, name: str) -> Job | None:
    """The last job of a run that is in the list; None: it was trained elsewhere.

    Raises:
        VitkitError: there is no such run.
    """
    last = jobs.last()
    if name not in _names(workspace, last):
        raise VitkitError(f"there is no run {name!r}")
    return last.get(name)


def _summary(workspace: Workspace, jobs: Jobs, name: str, job: Job | None) -> dict[str, Any]:
    folder, state = workspace.runs / name, jobs.state(name, job)
    found = figures_in(folder)
    why = jobs.why_failed(job) if state == "failed" and job is not None else ""
    begun = job.started or job.queued if job is not None else _time(folder / RECIPE)
    figures = {"figures": found.get("figures", {}), "caveats": found.get("caveats", [])}
    own = {"name": name, "state": state, **figures, "why": why, "begun": begun}
    able = {"can_resume": jobs.can_resume(name), "can_stop": jobs.can_stop(job)}
    return {**own, "asked": job.asked if job is not None else {}, **able}


def _time(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _metrics(folder: Path) -> list[dict[str, float]]:
    try:
        return read_metrics(folder / METRICS)
    except (VitkitError, OSError):
        return []  # a row is just being written


def _tail(file: Path) -> list[str]:
    try:
        return read_text(file, "replace").splitlines()[-_LINES:]
    except OSError:
        return []
