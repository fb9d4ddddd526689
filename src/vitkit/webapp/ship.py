"""The Ship tab: the card of a run's model, its exported files, and the command to serve it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field

from vitkit.data.preprocess import Preprocess
from vitkit.data.task import Task, task_of
from vitkit.errors import VitkitError
from vitkit.evaluation.headline import counted_figures, headline_of
from vitkit.evaluation.registry import read_figures
from vitkit.exporting.formats import FORMATS
from vitkit.model_folder import DESCRIPTION
from vitkit.system.files import read_json
from vitkit.system.run_files import EVALUATION, SPLIT
from vitkit.webapp.likeness import Background
from vitkit.webapp.workspace import Workspace

EXPORTS = "exports"  # below the folder of runs
CARD = "MODEL_CARD.md"
_FIGURES = {  # of evaluation.json, for people
    "accuracy": "right answers",
    "balanced_accuracy": "right answers, each class counted alike",
    "ece": "calibration error (how far confidences are from the truth)",
}
_ROLES = {"train": "learned from", "val": "to choose by", "test": "held back for the test"}
_LISTED = 30  # classes


def shippable(workspace: Workspace) -> list[str]:
    """Return the runs that have a model, newest first."""
    return [name for name in workspace.run_names() if (workspace.runs / name / DESCRIPTION).is_file()]


def write_export(workspace: Workspace, run: str, to: str) -> dict[str, Any]:
    """Export a run's model to a format, and compare the file with the model.

    Returns:
        The format and the result of the comparison, for the page.

    Raises:
        VitkitError: the run or the format does not exist, or the file predicts differently; then no file is left.
    """
    from vitkit.verbs.export import export

    folder = _folder(workspace, run)
    if to not in FORMATS:
        raise VitkitError(f"{to!r} is none of {', '.join(FORMATS)}")
    place = workspace.runs / EXPORTS
    place.mkdir(parents=True, exist_ok=True)
    result = export(folder, to, place / f"{run}{FORMATS[to].suffix}", force=True)
    outcome = result.outcome
    compared = outcome.comparison
    return {
        "run": run,
        "to": to,
        "runtime": FORMATS[to].runtime,
        "compared_on": result.compared_on.partition(" of ")[0],
        "agreement": compared.agreement,
        "precision": outcome.precision,
        "lines": result.lines()[:-1],
    }


def exported(workspace: Workspace, run: str) -> list[dict[str, Any]]:
    """Return the existing files of a run's exports."""
    place, exports = workspace.runs / EXPORTS, []
    for form in FORMATS.values():
        files = form.files(place / f"{run}{form.suffix}")
        if all(file.is_file() for file in files):
            listed = [{"name": file.name, "bytes": file.stat().st_size} for file in files]
            exports.append(
                {"to": form.name, "runtime": form.runtime, "files": listed, "when": files[-1].stat().st_mtime}
            )
    return exports


def export_file(workspace: Workspace, name: str) -> Path:
    """Return the path of an exported file, by its name.

    Raises:
        VitkitError: no run has an exported file with this name.
    """
    for run in shippable(workspace):
        if any(name == file["name"] for form in exported(workspace, run) for file in form["files"]):
            return workspace.runs / EXPORTS / name
    raise VitkitError(f"there is no exported file {name!r}")


def serve_command(workspace: Workspace, run: str) -> str:
    """Return the command line that serves this run's model."""
    return shlex.join(["vitkit", "serve", str(_folder(workspace, run))])


def model_card(workspace: Workspace, run: str) -> str:
    """Return a model card in Markdown: the model, its training data and its accuracy, without local paths."""
    from vitkit.weights import inspect

    folder = _folder(workspace, run)
    model = inspect(folder)  # which refuses what is damaged
    made_with = read_json(folder / DESCRIPTION).get("vitkit_version", "")
    figures = read_figures(folder / EVALUATION) if (folder / EVALUATION).is_file() else {}
    parts = [
        [f"# {_text(run)}", "", f"A classifier of photographs, made with vitkit {_text(made_with)}."],
        _about_classes(model.classes, task_of(model.thresholds)),
        _about_training(model.provenance, _counts(folder / SPLIT)),
        _about_figures(figures),
        _about_use(model.preprocess, run),
    ]
    return "\n".join(line for part in parts for line in [*part, ""]).rstrip() + "\n"


def _about_classes(classes: Sequence[str], task: Task) -> list[str]:
    listed = [f"- {_text(name)}" for name in classes[:_LISTED]]
    more = [f"- and {len(classes) - _LISTED} more"] if len(classes) > _LISTED else []
    return [
        f"## What it tells apart: {len(classes)} classes",
        "",
        f"It knows nothing else. {task.description}".rstrip(),
        "",
        *listed,
        *more,
    ]


def _counts(file: Path) -> dict[str, int]:
    """Return the number of photographs of each split in a split.json; empty if the file is missing or invalid."""
    with suppress(OSError, VitkitError, AttributeError, TypeError):
        splits = read_json(file).get("splits", {})
        return {name: sum(len(images) for images in by_class.values()) for name, by_class in splits.items()}
    return {}


def _about_training(provenance: Mapping[str, Any], counts: Mapping[str, int]) -> list[str]:
    recipe = provenance.get("recipe", {})
    rows = {
        "model": recipe.get("model"),
        "began from": Path(str(recipe.get("weights"))).name if recipe.get("weights") else None,
        "what learned": recipe.get("method"),
        "photographs": ", ".join(f"{number:,} {_ROLES.get(name, name)}" for name, number in counts.items()) or None,
        "digest of the photographs": str(provenance.get("data_hash", ""))[:16] or None,
        "seed": recipe.get("seed"),
    }
    return [
        "## How it was made",
        "",
        *(f"- {name}: {_text(value)}" for name, value in rows.items() if value is not None),
    ]


def _about_figures(figures: dict[str, Any]) -> list[str]:
    if not figures:
        return ["## How good it is", "", "It was not evaluated: nobody knows."]
    quoted, counted = headline_of(figures), counted_figures(figures)
    where = "held back for the test" if quoted.split == "test" else f"of the split {_text(quoted.split)}"
    lines = ["## How good it is", "", f"On {quoted.images} photographs {where}:", ""]
    if quoted.value is None:
        lines = ["## How good it is", "", "Nobody knows: no figure can be given."]
    lines += [f"- note: {_text(caveat.text)}" for caveat in quoted.caveats]
    for key, name in _FIGURES.items():
        if isinstance(counted.get(key), (int, float)):
            bounds = counted.get("intervals_95", {}).get(key)
            spread = f" (95 % interval {100 * bounds[0]:.1f} to {100 * bounds[1]:.1f} %)" if bounds else ""
            lines.append(f"- {name}: {100 * counted[key]:.1f} %{spread}")
    confused = [
        f"{_text(quoted['true'])} taken for {_text(quoted['predicted'])}" for quoted in figures.get("confused", [])[:5]
    ]
    lines += [f"- most often wrong: {', '.join(confused)}"] if confused and quoted.value is not None else []
    return [*lines, "", "On photographs of another kind, of another camera or place, it may be worse."]


def _about_use(pixels: Preprocess, run: str) -> list[str]:
    height, width = pixels.size
    return [
        "## How to ask it",
        "",
        f"    vitkit predict {shlex.quote(run)} PHOTOS",
        f"    vitkit serve {shlex.quote(run)}",
        "",
        f"It reads {width} x {height} pixels ({pixels.fit}); everything it needs travels with it.",
    ]


def _folder(workspace: Workspace, run: str) -> Path:
    if run not in shippable(workspace):
        raise VitkitError(f"there is no run {run!r} with a model")
    return workspace.runs / run


def _text(value: Any) -> str:
    """Escape a name so that Markdown shows it literally."""
    one_line = " ".join(str(value).split())
    return "".join(f"\\{character}" if character in "\\`*_{}[]<>()#+!|~&" else character for character in one_line)


class Wanted(BaseModel):
    """A request for an export."""

    run: str = Field(max_length=300)
    to: Literal[tuple(FORMATS)]  # type: ignore[valid-type]


def router(workspace: Workspace) -> APIRouter:
    """Return the routes of the tab."""
    routes = APIRouter(prefix="/api/ship")
    work: Background[dict[str, Any]] = Background()
    last: list[tuple[str, str]] = []  # what the last export was of

    @routes.get("/models")
    def show_models() -> dict[str, Any]:
        forms = [{"name": form.name, "runtime": form.runtime, "suffix": form.suffix} for form in FORMATS.values()]
        return {"models": shippable(workspace), "formats": forms}

    @routes.get("/model")
    def show_model(run: str) -> dict[str, Any]:
        card, command = model_card(workspace, run), serve_command(workspace, run)
        return {"run": run, "card": card, "command": command, "exports": exported(workspace, run)}

    @routes.post("/export")
    def start(wanted: Wanted) -> dict[str, Any]:
        if not work.is_running:
            last[:] = [(wanted.run, wanted.to)]
            work.start(last[0], lambda: write_export(workspace, wanted.run, wanted.to))
        return _state()

    @routes.get("/export")
    def show_state() -> dict[str, Any]:
        return _state()

    def _state() -> dict[str, Any]:
        run, to = last[0] if last else ("", "")
        return {**work.to_dict(), "run": run, "to": to, "found": work.result(last[0]) if last else None}

    @routes.get("/file/{name}")
    def download(name: str) -> FileResponse:
        return FileResponse(export_file(workspace, name), filename=name, media_type="application/octet-stream")

    @routes.get("/card")
    def download_card(run: str) -> Response:
        disposition = f'attachment; filename="{CARD}"'
        text = model_card(workspace, run).encode("utf-8", "replace")
        return Response(text, media_type="text/markdown", headers={"Content-Disposition": disposition})

    return routes
