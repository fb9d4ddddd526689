"""The Train tab: what is begun from, the queue, and how each training goes, read from its run folder."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field

from vitkit.data.corrected import labels_after
from vitkit.data.label_file import EXCLUDED, labels_so_far
from vitkit.data.pictures import UNLABELLED
from vitkit.errors import VitkitError
from vitkit.evaluation.registry import read_figures
from vitkit.system.run_files import EVALUATION, LOG, METRICS, PICTURES, RECIPE, REPORT
from vitkit.training.metrics_file import read_metrics
from vitkit.webapp.jobs import Job, Jobs
from vitkit.webapp.offers import offered, offers
from vitkit.webapp.photographs import read_photographs, see_label_file
from vitkit.webapp.workspace import Workspace

_NONE = "none"  # weights of a training from scratch
_DURATION = re.compile(r"[0-9]{1,6}(\.[0-9]{1,3})?[smh]")
_LINES = 200  # of a log
_FIGURES = ("accuracy", "balanced_accuracy", "log_loss", "images", "split")
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
        name = jobs.new_run(_safe(workspace.name))
        jobs.add(name, _arguments(workspace, asked, name), asked.model_dump())
        return {"run": name}

    @routes.get("/runs")
    def show_runs() -> dict[str, Any]:
        jobs.see_to_queue()
        last = jobs.last()
        return {"runs": [_summary(workspace, jobs, name, last.get(name)) for name in _names(workspace, last)]}

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


def _arguments(workspace: Workspace, asked: Asked, run: str) -> list[str]:
    """Of `vitkit`, from what is known here: the page names no files of its own.

    Raises:
        VitkitError: there is nothing to learn from, or something that was not offered is asked for.
    """
    if len(_classes(workspace)) < 2:
        raise VitkitError("a classifier tells at least two classes apart: give photographs two classes first (Data)")
    given = ["train", str(workspace.photographs), "--out", str(workspace.runs / run)]
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
    return given


def _classes(workspace: Workspace) -> set[str]:
    see_label_file(workspace)
    labels = labels_after(read_photographs(workspace), labels_so_far(workspace.labels))
    return set(labels) - {EXCLUDED, UNLABELLED}


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
    figures: dict[str, Any] = {}
    if (folder / EVALUATION).is_file():
        try:
            found = read_figures(folder / EVALUATION)
            figures = {key: found[key] for key in _FIGURES if key in found}
        except (OSError, VitkitError):
            figures = {}
    why = jobs.why_failed(job) if state == "failed" and job is not None else ""
    begun = job.started or job.queued if job is not None else _time(folder / RECIPE)
    own = {"name": name, "state": state, "figures": figures, "why": why, "begun": begun}
    return {**own, "asked": job.asked if job is not None else {}, "can_resume": jobs.can_resume(name)}


def _time(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _metrics(folder: Path) -> list[dict[str, float]]:
    try:
        return read_metrics(folder / METRICS)
    except VitkitError:
        return []  # a row is just being written


def _tail(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()[-_LINES:]
    except OSError:
        return []
