"""Run the notebooks and store what they print and draw in them: `python benchmarks/notebooks.py FLOWERS WEIGHTS [1 4]`.

FLOWERS is a folder of photographs in class folders, WEIGHTS DeiT-Ti's ImageNet checkpoint; numbers name the notebooks
to run, and without any, all are run. Each runs in an empty folder, without the network.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbclient
import nbformat

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"
_WIDGET = "application/vnd.jupyter.widget-view+json"  # a progress bar of a kernel that has ended


def prepare(folder: Path, flowers: Path, weights: Path) -> None:
    """Make what the notebooks work on in a folder."""
    shutil.copy(NOTEBOOKS / "prepare.py", folder)
    subprocess.run([sys.executable, "prepare.py", flowers, weights], cwd=folder, check=True, capture_output=True)


@contextmanager
def execute(path: Path, folder: Path) -> Iterator[tuple[Any, Callable[[str], None]]]:
    """Run a notebook in a folder; yields it with its outputs, and a function that runs more code in its kernel.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell, or the further code, raises an exception.
    """
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=1200, resources={"metadata": {"path": str(folder)}})
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

    def run(code: str) -> None:
        notebook.cells.append(nbformat.v4.new_code_cell(textwrap.dedent(code)))
        try:
            client.execute_cell(notebook.cells[-1], len(notebook.cells) - 1)
        finally:
            notebook.cells.pop()

    with client.setup_kernel(env=os.environ | {"VITKIT_OFFLINE": "1", "PATH": paths}):
        for index, cell in enumerate(notebook.cells):
            client.execute_cell(cell, index)
        yield notebook, run


def store(notebook: Any, path: Path, folder: Path) -> None:
    """Write a notebook with its outputs, without times of cells, progress bars and the folder in which it ran."""
    count = 0
    for index, cell in enumerate(notebook.cells):
        cell.metadata.clear()
        cell.id = f"cell-{index}"
        if cell.cell_type == "code":
            cell.execution_count = count = count + 1
            cell.outputs = [output for output in cell.outputs if not _is_noise(output)]
            for output in cell.outputs:
                if "execution_count" in output:
                    output["execution_count"] = count
                output.get("data", {}).pop("image/jpeg", None)  # a PIL image is shown as PNG, too
    text = re.sub(r"\\u001b\[[\d;?]*[A-Za-z]", "", nbformat.writes(notebook))  # the escape codes of a terminal
    path.write_text(text.replace(f"{folder.resolve()}/", "") + "\n", encoding="utf-8")


def _is_noise(output: Any) -> bool:
    """Return whether an output is a warning of the kernel, or a progress bar that has disappeared."""
    data = output.get("data", {})
    return output.get("name") == "stderr" or _WIDGET in data or data.get("text/html") == ""


def main(flowers: str, weights: str, *numbers: str) -> None:
    """Run each notebook and store it."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if not numbers or path.name[0] in numbers:
            print(f"running {path.name}", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                prepare(Path(folder), Path(flowers).resolve(), Path(weights).resolve())
                with execute(path, Path(folder)) as (notebook, _):
                    store(notebook, path, Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
