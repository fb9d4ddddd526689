"""A new option of a verb is added in one place: the class of its group of options."""

import shutil
import subprocess
import sys
from pathlib import Path

import runs
import vitkit

FIELD = """    reject: Annotated[float | None, Between(0, 1)] = None
"""
NEW = '''    surprise: Annotated[int | None, Between(1, 9)] = None
    """Be surprised this often, above all with `reject`."""
'''


def test_an_option_of_predict_is_added_by_a_field_and_its_docstring(tmp_path: Path) -> None:
    copy = tmp_path / "vitkit"
    shutil.copytree(Path(vitkit.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / "verbs" / "options.py").read_text()
    (copy / "verbs" / "options.py").write_text(text.replace(FIELD, NEW + FIELD, 1))

    def run(*arguments: str) -> str:
        environment = runs.environment() | {"PYTHONPATH": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        return " ".join((done.stdout + done.stderr).split())

    predict = ("-m", "vitkit", "predict", "nowhere", "x.png", "--surprise")
    assert "--surprise N Be surprised this often, above all with --reject." in run(*predict[:3], "--help-all")
    assert run(*predict, "10") == "error: --surprise must be between 1 and 9, not 10"
    assert "--surprise" in run(*predict, "often")
    assert "no such file, folder or pattern: x.png" in run(*predict, "2")
    program = "import vitkit\nprint(vitkit.Promises(surprise=3))\nvitkit.Promises(surprise=0)"
    told = run("-c", program)
    assert "surprise=3" in told
    assert told.endswith("VitkitError: surprise must be between 1 and 9, not 0")
