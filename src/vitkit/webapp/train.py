"""The Train tab: choose a model to start from, queue trainings, and show the progress of each training.

A training can start from the model of a run, from a local file, or from published weights. The progress of a training
is read from its run folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from vitkit.data import DATASETS, EXCLUDED, UNLABELLED, CurrentLabels
from vitkit.errors import VitkitError
from vitkit.system import LOG, METRICS, RECIPE, cache_folder, offline, read_text
from vitkit.training import bundled, read_metrics
from vitkit.webapp.jobs import Job, Jobs
from vitkit.webapp.photographs import photographs_in
from vitkit.webapp.results import figures_in, is_cross_tested
from vitkit.webapp.workspace import Workspace, make_numbered_folder

_SUFFIXES = (".pth", ".safetensors", ".npz", ".pt", ".bin", ".ckpt")
_PUBLISHED = (  # common models of each size, the smallest first; the command line offers all models
    ("deit_tiny_patch16_224.fb_in1k", "small and quick", 5_717_416),
    ("deit_small_patch16_224.fb_in1k", "medium", 22_050_664),
    ("vit_small_patch16_224.augreg_in21k_ft_in1k", "medium, trained on more images", 22_050_664),
    ("vit_base_patch16_224.augreg_in21k_ft_in1k", "large and slow", 86_567_656),
)


@dataclass(frozen=True)
class Offer:
    """A model to start a training from."""

    source: str  # the value for --weights
    title: str  # shown to users
    kind: str  # run, file or published
    is_local: bool = True  # on this machine, so that it need not be downloaded
    megabytes: int = 0  # the size in MiB if it is published

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for the page, as plain JSON types."""
        return {
            "source": self.source,
            "title": self.title,
            "kind": self.kind,
            "here": self.is_local,
            "megabytes": self.megabytes,
        }


def offers(workspace: Workspace) -> list[Offer]:
    """Return the models that a training can start from, beginning with models on this machine.

    Files are the weights that the user named, and those in the current folder. Models that would have to be downloaded
    are left out if downloads are forbidden.
    """
    named = [Offer(weights, Path(weights).name, "file") for weights in workspace.weights]
    named_files = {Path(weights).resolve() for weights in workspace.weights}
    files = [path for path in sorted(Path.cwd().iterdir()) if path.suffix in _SUFFIXES and path.is_file()]
    others = [Offer(str(file), file.name, "file") for file in files if file.resolve() not in named_files]
    runs = [Offer(str(workspace.runs / name), f"run {name}", "run") for name in workspace.model_names()]
    return [*named, *others, *runs, *_published()]


def find_offer(workspace: Workspace, source: str) -> Offer:
    """Return the offer with this source. The page can use only offered sources, not arbitrary files."""
    for offer in offers(workspace):
        if offer.source == source:
            return offer
    raise VitkitError("webapp.model-unknown", f"{source!r} is not among the available models")


def best_feature_model(workspace: Workspace) -> Offer | None:
    """Return the local model that presumably has the best features; None if there is no local model.

    Files and published weights come before models of runs, because they were probably trained on more data.
    """
    kinds = ("file", "published", "run")
    local = [offer for offer in offers(workspace) if offer.is_local]
    return min(local, key=lambda offer: kinds.index(offer.kind), default=None)


def smallest_download() -> Offer | None:
    """Return the smallest published model that is not on this machine; None if downloads are forbidden."""
    return next((offer for offer in _published() if not offer.is_local), None)


def _published() -> list[Offer]:
    from vitkit.weights import cache_path, find

    published = []
    for name, about, parameters in _PUBLISHED:
        entry = find(name)
        if entry is None:
            continue
        is_local = entry.url is not None and cache_path(entry.url).is_file()
        if is_local or offline() is None:
            megabytes = round(4 * parameters / 2**20)  # float32
            published.append(Offer(name, f"{name.partition('.')[0]}: {about}", "published", is_local, megabytes))
    return sorted(published, key=lambda offer: not offer.is_local)


_FROM_SCRATCH = "none"  # weights of a training from scratch
PROGRESS = re.compile(r"(?P<what>[^:\r\n]+): (?P<done>\d+)(?: of (?P<total>\d+))?")  # a line that commands print
WEIGHTS_ADVICE = "put a file of weights into the folder of the studio, or start it with --weights FILE"


class TrainingRequest(BaseModel):
    """A request for a training.

    `weights` is the `source` of an `Offer`, or `none` to train from scratch. `time` is a budget.
    `split_from` is the run whose split is kept.
    """

    weights: str = Field(max_length=4000)
    method: Literal["auto", "probe", "lora", "full", "scratch"] = "auto"
    time: Literal["", "2m", "10m", "30m", "1h", "3h"] = ""
    split_from: str = Field(default="", max_length=300)


def router(workspace: Workspace) -> APIRouter:
    """Return the routes of the training tab, and start a runner for jobs that an earlier studio left in the queue."""
    routes, jobs = APIRouter(prefix="/api/train"), Jobs(workspace.runs)
    jobs.start_runner_if_needed()

    @routes.get("/offers")
    def show_offers() -> dict[str, Any]:
        return {"offers": [offer.to_dict() for offer in offers(workspace)]}

    @routes.post("/start")
    def start(request: TrainingRequest) -> dict[str, Any]:
        arguments, notes = _arguments(workspace, request)
        # An empty folder with an unused name, so that concurrent requests, other studios and the command line each get
        # a different one.
        prefix = re.sub(r"[^\w.-]+", "_", workspace.name).strip("._")[:60] or "run"  # safe in URLs
        name = make_numbered_folder(workspace.runs, prefix, jobs.last().keys()).name
        try:
            jobs.add(name, [*arguments, "--out", str(workspace.runs / name)], request.model_dump())
        except BaseException:
            jobs.release_name(name)
            raise
        return {"run": name, "notes": notes}

    @routes.get("/runs")
    def show_runs() -> dict[str, Any]:
        jobs.start_runner_if_needed()
        last = jobs.last()
        runs = [_summary(workspace, jobs, name, last.get(name)) for name in _job_and_run_names(workspace, last)]
        return {"runs": runs}

    @routes.get("/runs/{name}")
    def show_run(name: str) -> dict[str, Any]:
        job = _job(workspace, jobs, name)
        folder = workspace.runs / name
        metrics: list[dict[str, float]] = []
        with suppress(VitkitError, OSError):  # the last row is just being written
            metrics = read_metrics(folder / METRICS)
        output = [] if job is None else _tail(jobs.log(job))

        step: dict[str, Any] | None = None  # the progress that was printed last, unless something else followed
        match = PROGRESS.fullmatch(output[-1]) if output else None
        if match is not None and match["total"] is not None:
            step = {"what": match["what"], "done": int(match["done"]), "total": int(match["total"])}

        shown = {"metrics": metrics, "step": step, "log": _tail(folder / LOG) or output}
        return {**_summary(workspace, jobs, name, job), **shown}

    @routes.post("/runs/{name}/stop")
    def stop(name: str) -> dict[str, Any]:
        _job(workspace, jobs, name)
        jobs.stop(name)
        return {"run": name}

    @routes.post("/runs/{name}/resume")
    def resume(name: str) -> dict[str, Any]:
        folder, last_job = workspace.run_folder(name), jobs.last().get(name)
        state = jobs.state(name, last_job)
        if state != "stopped" or not jobs.can_resume(name):
            reason = f"{name} is {state}: only a stopped training with a checkpoint can be continued"
            raise VitkitError("webapp.run-not-stopped", reason)
        jobs.add(name, ("train", "--resume", str(folder)), {} if last_job is None else last_job.request)
        return {"run": name}

    return routes


def _arguments(workspace: Workspace, request: TrainingRequest) -> tuple[list[str], list[str]]:
    """Return the arguments of `vitkit` for a request, and lines about labels that match no photograph."""
    labels = CurrentLabels(photographs_in(workspace.photographs))
    labels.take(workspace.label_file.read())
    if len(set(labels.labels) - {EXCLUDED, UNLABELLED}) < 2:
        reason = "a classifier requires at least two classes: label photographs of two classes first (Data)"
        raise VitkitError("webapp.classes-too-few", reason)
    photographs = workspace.photographs
    is_scratch = request.weights == _FROM_SCRATCH or request.method == "scratch"
    arguments = ["train", str(photographs)]
    if workspace.labels.is_file():
        arguments += ["--labels", str(workspace.labels)]
    if is_scratch:
        # A named data set is trained from scratch by the recipe that `vitkit train NAME` uses.
        is_named = photographs.parent == (cache_folder() / "data").resolve() and photographs.name in DATASETS
        if is_named and photographs.name in bundled():
            arguments += ["--recipe", photographs.name]
        arguments += ["--weights", _FROM_SCRATCH, "--method", "scratch"]
    else:
        arguments += ["--weights", find_offer(workspace, request.weights).source, "--method", request.method]
    if request.time:
        arguments += ["--time", request.time]
    if request.split_from:
        earlier_run = workspace.run_folder(request.split_from)
        if is_cross_tested(earlier_run):
            # Only a new head, on a model that has not learned from these photographs, can be tested in the same way.
            can_cross_test = False
            if request.weights != _FROM_SCRATCH and request.method in ("auto", "probe"):
                can_cross_test = find_offer(workspace, request.weights).kind != "run"
            if not can_cross_test:
                reason = (
                    f"{earlier_run.name} tested every photograph by a last layer that was trained without it. To test "
                    "in the same way, train only the last layer (or choose Automatic), and begin from a model that "
                    "does not know the photographs; or draw a new split, whose figures cannot be compared"
                )
                raise VitkitError("webapp.run-cross-tested", reason)
        arguments += ["--split-from", str(earlier_run)]
    return arguments, labels.describe_lost(workspace.labels.name)


def _job_and_run_names(workspace: Workspace, job_names: Iterable[str]) -> list[str]:
    """Return the names of jobs that have no run yet, followed by the names of all runs; both newest first."""
    run_names = workspace.run_names()
    waiting = [name for name in job_names if name not in run_names]
    return [*reversed(waiting), *run_names]


def _job(workspace: Workspace, jobs: Jobs, name: str) -> Job | None:
    """Return the last job of a run; None if the run was not started by this studio."""
    last = jobs.last()
    if name not in _job_and_run_names(workspace, last):
        raise VitkitError("webapp.run-unknown", f"there is no run {name!r}")
    return last.get(name)


def _summary(workspace: Workspace, jobs: Jobs, name: str, job: Job | None) -> dict[str, Any]:
    folder = workspace.runs / name
    state, result = jobs.state(name, job), figures_in(folder)
    begun = 0.0
    if job is not None:
        begun = job.started or job.queued
    else:
        with suppress(OSError):
            begun = (folder / RECIPE).stat().st_mtime
    return {
        "name": name,
        "state": state,
        "figures": result.get("figures", {}),
        "caveats": result.get("caveats", []),
        "verdict": result.get("verdict"),
        "why": jobs.last_error(job) if state == "failed" and job is not None else "",
        "begun": begun,
        "asked": job.request if job is not None else {},
        "can_resume": jobs.can_resume(name),
        "can_stop": job is not None and (not job.started or jobs.is_starting(job)),
    }


def _tail(file: Path) -> list[str]:
    try:
        return read_text(file, "replace").splitlines()[-200:]
    except OSError:
        return []
