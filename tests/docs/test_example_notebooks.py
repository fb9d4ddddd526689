"""The notebooks run from the first cell to the last, show pictures, and are stored without outputs."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))
_SLOW = {"2-fine-tuning", "3-lightning", "4-attention", "5-comparison"}  # for `make accept`


def test_there_is_one_for_each_article() -> None:
    assert [path.name[0] for path in NOTEBOOKS] == list("12345")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert cells[0]["cell_type"] == "markdown" and "".join(cells[0]["source"]).startswith("# ")
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=pytest.mark.accept if path.stem in _SLOW else ()) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("VITKIT_OFFLINE", "1")
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    notebook, start = nbformat.read(path, as_version=4), time.monotonic()
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    data = [key for output in outputs for key in output.get("data", {})]
    assert "image/png" in data or any("data:image" in str(output) for output in outputs), "no picture"
    assert not [output for output in outputs if output["output_type"] == "error"]
    stderr = [output["text"] for output in outputs if output.get("name") == "stderr"]
    assert not [text for text in stderr if "Warning" in text and "IProgress" not in text], (
        "a reader would see a warning"
    )
    print(f"{path.stem}: {time.monotonic() - start:.0f} s")
