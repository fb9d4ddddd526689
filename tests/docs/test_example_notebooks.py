"""The notebooks run from the first cell to the last, teach what they say, and are stored with what they show."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("nbclient")
ROOT = Path(__file__).parents[2]
_AMONG = sys.path.copy()
sys.path.insert(0, str(ROOT / "benchmarks"))
from notebooks import execute, prepare  # noqa: E402

sys.path[:] = _AMONG  # a benchmark has the name of a folder of tests
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))

# What each notebook teaches, in terms of its own variables after the last cell.
TEACHES = {
    "1-the-model": """
        assert curve[-1] > 0.7 and curve[-1] > curve[0], curve  # guessing is 0.1
        assert changes["without"] < 1e-6 < 1e-4 < changes["with positions"], changes
        ink = (shown + 1).reshape(-1, 4, 2, 4, 2).mean(dim=(2, 4))
        strokes = (first * (ink > ink.median())).sum(dim=(1, 2)) / first.sum(dim=(1, 2))
        assert strokes.mean() > 0.6, strokes  # 0.5 without training
    """,
    "2-fine-tuning": """
        assert losses[-1] < 0.6 * losses[0], losses  # ln 5 = 1.61 is guessing
        assert accuracy > 0.6 and run.accuracy > 0.6, (accuracy, run.accuracy)
        assert evaluation.figures["accuracy"] == run.accuracy
    """,
    "3-lightning": """
        assert run.accuracy > 0.5, run.accuracy  # guessing is 0.1
        assert same and difference < 1e-4, difference
        assert float(trainer.callback_metrics["val_acc"]) > 0.3, trainer.callback_metrics
    """,
    "4-attention": """
        assert answers[0] == "ringlet" and answers.count("daisy") >= 2, answers
        butterfly = (by_hand[4:9, 4:10].mean() / by_hand.mean()).item()
        assert butterfly > 1.3, butterfly  # 1 without training
        near, far = similarity[5, 5, 5, 6], similarity[5, 5, 0, 12]
        assert near > 0.3 and near > far + 0.3, (near, far)  # embeddings that were not trained are all alike
        focus = torch.stack([matrix[0, :, 0, 1:].max() for matrix in maps])
        assert focus.max() > 10 / len(positions), focus  # a head attends to something
    """,
    "5-comparison": """
        assert all(model["interval"][0] > 0.5 for model in comparison.models), comparison.models  # guessing is 0.1
    """,
    "6-your-photographs": """
        assert len(found) >= 8 and len(suspects) < 60, (found, suspects)  # of twelve photographs in wrong folders
        assert labels.read_text().count(",first\\n") == len(found), labels.read_text()
        assert second.accuracy > 0.6, second.accuracy  # guessing is 1/3
    """,
    "7-timm-and-lightning": """
        assert losses[-1] < losses[0], losses
        assert logger.rows[-1]["val_acc"] > 0.5, logger.rows  # guessing is 1/3
        assert run.accuracy > 0.5, run.accuracy
    """,
}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_with_what_it_shows(path: Path) -> None:
    assert path.stem in TEACHES
    text = path.read_text(encoding="utf-8")
    code = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream", "execute_result", "display_data"}
    assert not any(output.get("name") == "stderr" for output in outputs)
    assert not re.findall(r"/tmp/|/root/|/home/|\d{4}-\d\d-\d\dT\d|\\u001b", text), "a place, a time or an escape code"
    assert len(text) < 300_000


@pytest.mark.accept
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore")
def test_a_notebook_runs_and_teaches_what_it_says(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    if "prepare.py" in path.read_text(encoding="utf-8"):
        data = Path(os.environ.get("VITKIT_TEST_DATA", "missing"))
        flowers, weights = data / "data" / "flowers", data / "weights" / "deit_tiny_patch16_224.pth"
        if not (flowers.is_dir() and weights.is_file()):
            pytest.skip("needs photographs and weights in VITKIT_TEST_DATA")
        prepare(tmp_path, flowers, weights)
    with execute(path, tmp_path) as (notebook, run):
        run(TEACHES[path.stem])
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    stderr = [output["text"] for output in outputs if output.get("name") == "stderr"]
    assert not [text for text in stderr if "Warning" in text and "IProgress" not in text], "a reader would see it"
