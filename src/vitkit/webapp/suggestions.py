"""Suggest classes for photographs without one: the predictions of the newest run on these photographs.

`vitkit predict` computes them in a separate process. An accepted suggestion is recorded as proposed by the run
(docs/decisions/0028-label-files.md): the run was trained on its training split alone, and the next run keeps this
split, so that suggestions carry nothing of the test labels.
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path
from typing import Any

from vitkit.data.table import UNLABELLED
from vitkit.errors import VitkitError
from vitkit.text.cells import restored
from vitkit.webapp.likeness import Background, run_vitkit
from vitkit.webapp.photographs import State
from vitkit.webapp.workspace import Workspace

_FILES = 500  # photographs that are passed by name; if there are more, the whole folder is predicted
_Found = dict[int, tuple[str, float]]  # the class and its confidence, by number of the photograph


class Suggestions:
    """The suggestions for a workspace, which are kept in memory."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.work: Background[_Found] = Background()

    def start(self, state: State, run: str) -> None:
        """Start to predict the photographs without a class, unless a prediction is running.

        Raises:
            VitkitError: there is no run, or every photograph has a class.
        """
        if not run:
            raise VitkitError("no model is trained on these photographs yet: train one first")
        numbers = [i for i, label in enumerate(state.labels) if label == UNLABELLED]
        if not numbers:
            raise VitkitError("every photograph has a class already")
        self.work.start((state.version, run), lambda: self._predict(state, run, numbers))

    def to_dict(self, state: State, run: str) -> dict[str, Any]:
        """Return the progress, and the suggestions for photographs that still have no class.

        Args:
            state: the photographs with their current labels.
            run: the run whose model suggests; empty if there is none.
        """
        known = self.work.result((state.version, run))
        open_items = {str(i): item for i, item in (known or {}).items() if state.labels[i] == UNLABELLED}
        shown = None if known is None else open_items
        return {**self.work.to_dict(), "run": run, "version": state.version, "found": shown}

    def _predict(self, state: State, run: str, numbers: list[int]) -> _Found:
        files = {str(state.table.file(i)): i for i in numbers}
        sources = list(files) if len(files) <= _FILES else [str(self.workspace.photographs)]
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "suggestions.csv"
            run_vitkit(["predict", str(self.workspace.run_folder(run)), *sources, "--out", str(out)])
            with out.open(encoding="utf-8", errors="surrogateescape", newline="") as text:
                rows = [{name: restored(cell or "") for name, cell in row.items()} for row in csv.DictReader(text)]
        return {
            files[row["path"]]: (row["label"], float(row["confidence"]))
            for row in rows
            if row["path"] in files and row["label"] and row["confidence"]
        }
