"""What the doctor finds in the photographs, and the labels that a run doubts, by the numbers of photographs."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from vitkit.data.doctor.examine import Diagnosis, examine
from vitkit.data.label_file import EXCLUDED
from vitkit.data.pictures import UNLABELLED
from vitkit.data.split_file import split_from_file
from vitkit.data.table import ImageTable, table_of
from vitkit.data.whereabouts import is_unchanged, read_contents
from vitkit.errors import VitkitError
from vitkit.system.files import regular
from vitkit.system.progress import Progress
from vitkit.system.run_files import LABEL_ERRORS, SPLIT
from vitkit.text.cells import restored
from vitkit.webapp.photographs import State
from vitkit.webapp.stamps import stamp_of
from vitkit.webapp.workspace import Workspace


def diagnose(state: State, progress: Progress) -> dict[str, Any]:
    """What the doctor says of the photographs as they are labelled now, those that are left out aside.

    Raises:
        VitkitError: none of them can be read.
    """
    table = state.table
    kept = [i for i, label in enumerate(state.labels) if label != EXCLUDED]
    rows = [(table.paths[i], state.labels[i], table.splits[i]) for i in kept]
    if not rows:
        raise VitkitError("all photographs are left out")
    labelled = {row[1] for row in rows} - {UNLABELLED}
    if len(labelled) < 2:  # of one class, of which the doctor asks no more than that it can be read
        rows = [(path, UNLABELLED, None) for path, _, _ in rows]
    found = examine(table_of(table.name, table.root, rows), progress=progress)
    return _by_number(found, {path: i for i, path in enumerate(table.paths)})


def _by_number(found: Diagnosis, number: dict[str, int]) -> dict[str, Any]:
    table = found.table
    copies = [
        {
            "images": [number[table.paths[i]] for i in own.images],
            "leak": own.is_leak,
            "conflict": own.is_conflict and len({table.name_of(i) for i in own.images} - {UNLABELLED}) > 1,
        }
        for own in found.copies
    ]
    told = [{"severity": own.severity, "text": own.text} for own in found.findings if UNLABELLED not in own.text]
    unreadable = {str(number[path]): reason for path, reason in found.unreadable.items()}
    return {"unreadable": unreadable, "copies": copies, "findings": told}


def doubted(workspace: Workspace, table: ImageTable) -> dict[int, dict[str, Any]]:
    """The photographs whose label their newest run that looked doubts, with what it would say instead.

    One that holds another picture than the run knew is none of them.
    """
    name, doubts = doubts_of(workspace, table)
    number = {path: i for i, path in enumerate(table.paths)} if doubts else {}
    split = workspace.runs / name / SPLIT
    contents = _contents_of(split, stamp_of(split)) if doubts else {}
    return {
        number[path]: {"label": label, "suggested": suggested, "run": name}
        for path, (label, suggested) in doubts.items()
        if path in number and is_unchanged(table.file(number[path]), contents.get(path))
    }


def doubts_of(workspace: Workspace, table: ImageTable) -> tuple[str, Mapping[str, tuple[str, str]]]:
    """The newest run of these photographs that looked, and label and suggestion of each photograph that it doubts."""
    for name, _ in _runs_of(workspace, table):
        file = workspace.runs / name / LABEL_ERRORS
        if file.exists():
            return name, _doubts_in(file, stamp_of(file))
    return "", {}


@lru_cache(maxsize=4)
def _contents_of(split: Path, changed: str) -> Mapping[str, str]:  # noqa: ARG001  # it is read anew
    try:
        return read_contents(split)
    except VitkitError:
        return {}


@lru_cache(maxsize=4)
def _doubts_in(file: Path, changed: str) -> Mapping[str, tuple[str, str]]:  # noqa: ARG001  # it is read anew
    try:
        with open(file, encoding="utf-8", errors="surrogateescape", newline="", opener=regular) as text:
            rows = [{key: restored(value or "") for key, value in row.items() if key} for row in csv.DictReader(text)]
    except (OSError, csv.Error, AttributeError):
        return {}
    return {row.get("path", ""): (row.get("label", ""), row.get("suggested", "")) for row in rows}


def splits_of(workspace: Workspace, table: ImageTable) -> tuple[list[str | None], str]:
    """The split of each photograph, and the run that says so: the data's own, else those of the newest run."""
    if any(table.splits):
        return list(table.splits), ""
    for name, known in _runs_of(workspace, table):
        split = dict(zip(known.paths, known.splits, strict=True))
        return [split.get(path) for path in table.paths], name
    return list(table.splits), ""


@lru_cache(maxsize=8)
def _table_of(split: Path, changed: str) -> ImageTable:  # noqa: ARG001
    return split_from_file(split)


def _runs_of(workspace: Workspace, table: ImageTable) -> Iterator[tuple[str, ImageTable]]:
    """The runs of these photographs, the newest first, each with its own table of them.

    Runs of other photographs may lie in the same folder, and know others by the same paths.
    """
    for name in workspace.run_names():
        try:
            file = workspace.runs / name / SPLIT
            known = _table_of(file, stamp_of(file))
        except (VitkitError, OSError):
            continue
        if known.root == table.root:
            yield name, known
