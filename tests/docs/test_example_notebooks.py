"""The notebooks run from the first cell to the last, show pictures, and are stored without outputs."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_AMONG = sys.path.copy()
sys.path.insert(0, str(ROOT / "benchmarks"))
from documentation import notebook_text  # noqa: E402

sys.path[:] = _AMONG  # a benchmark has the name of a folder of tests
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
_SLOW = {path.stem for path in NOTEBOOKS} - {"1-the-model"}  # for `make accept`


def test_there_is_one_for_each_article_and_two_more() -> None:
    assert [path.name[0] for path in NOTEBOOKS] == list("1234567")


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


def test_a_page_of_the_site_has_what_a_notebook_prints_and_draws() -> None:
    outputs = [
        {"output_type": "stream", "name": "stderr", "text": ["a warning\n"]},
        {"output_type": "stream", "name": "stdout", "text": ["one\n", "two\n"]},
        {"output_type": "display_data", "data": {"text/plain": ["<HTML>"], "text/html": [""]}},
        {"output_type": "execute_result", "data": {"text/plain": ["<Figure>"], "image/png": ["cGlj\n", "dHVyZQ=="]}},
        {"output_type": "execute_result", "data": {"text/plain": ["<Run>"], "text/html": ["<pre>", "0.9</pre>"]}},
        {"output_type": "execute_result", "data": {"text/plain": ["[1,\n", " 2]"]}},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# A title\n", "\n", "Words."]},
        {"cell_type": "code", "source": ["run()"], "outputs": outputs},
    ]
    text, pictures = notebook_text({"cells": cells}, "0-example")
    assert text.splitlines()[:5] == [
        "# A title",
        "",
        'This page is <a href="0-example.ipynb">a notebook</a> with what it prints and draws.',
        "",
        "Words.",
    ]
    assert text.partition("Words.\n\n")[2] == (
        "```python\nrun()\n```\n\n```text\none\ntwo\n```\n\n"
        '<img src="0-example-1.png" alt="What the cell above draws">\n\n'
        "<div><pre>0.9</pre></div>\n\n```text\n[1,\n 2]\n```\n"
    )
    assert pictures == {"notebooks/0-example-1.png": b"picture"}
