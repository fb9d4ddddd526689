"""Python files among the photographs: of all that a program could import from the current folder, vitkit runs nothing.

Real interpreters, whose start is what is tested. `make accept` runs every verb; the ordinary tests run each kind of
process that vitkit starts.
"""

import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import runs
import wordy
from vitkit.cli.app import VERBS as KNOWN
from vitkit.system import python_command
from vitkit.training import run

SOURCE = Path(__file__).parents[2] / "src" / "vitkit"
VITKIT = Path(sys.executable).with_name("vitkit")
PLANTED = (
    "import os\nopen(os.path.join({marks!r}, __name__), 'w').close()\nraise ImportError('a planted file was run')\n"
)
MOST_SECONDS = 300


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs by class, and beside them a Python file for each module that anything here could import."""
    here, marks = tmp_path_factory.mktemp("place"), tmp_path_factory.mktemp("marks")
    runs.photos(here / "photos", images=20)
    names = {*sys.stdlib_module_names, *importlib.metadata.packages_distributions(), *map(_top, sys.modules)}
    for name in filter(str.isidentifier, names):
        (here / f"{name}.py").write_text(PLANTED.format(marks=str(marks)))
    assert len(list(here.glob("*.py"))) >= 200
    (here / "marks").symlink_to(marks)
    return here


@pytest.fixture(scope="module")
def place_of_run(place: Path) -> Path:
    """With a run, `runs/first`."""
    run.train(runs.quick(place / "photos"), place / "runs" / "first")
    return place


def _top(name: str) -> str:
    return name.partition(".")[0]


@pytest.fixture(autouse=True)
def _none_is_run(place: Path) -> Iterator[None]:
    yield
    found = [mark.name for mark in (place / "marks").iterdir()]
    for name in found:
        (place / "marks" / name).unlink()
    assert found == []


def execute(place: Path, *command: str | Path) -> str:
    """Where the files are; what it says on stdout."""
    done = subprocess.run(
        list(map(str, command)), cwd=place, env=runs.environment(), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=MOST_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_planted_files_are_run_by_what_does_not_take_care(place: Path) -> None:
    done = subprocess.run([sys.executable, "-c", "import queue"], cwd=place, capture_output=True, check=False)
    assert done.returncode != 0
    assert (place / "marks" / "queue").is_file()
    (place / "marks" / "queue").unlink()


def test_one_function_starts_python() -> None:
    """Whoever needs another interpreter takes `system.processes.python_command`."""
    files = {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    users = {name for name, text in files.items() if re.search(r"\bsys\.executable\b", text)}
    assert users == {"system/processes.py"}


@pytest.mark.parametrize(
    "program",
    [
        "vitkit models",
        *(
            pytest.param(program, marks=pytest.mark.accept)
            for program in ("vitkit.webapp.jobs queue", "vitkit.data.file_facts", "vitkit.experiments.comparison_runs")
        ),
    ],
)
def test_a_process_that_vitkit_starts(place: Path, program: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(sys, "path", ["", str(place), *sys.path])  # as `python` and `python -m` have it
        command = python_command(*program.split())
    execute(place, *command)


SPAWNING = """
import multiprocessing, sys
from vitkit.__main__ import main
if __name__ == "__main__":
    method, sys.argv = sys.argv[1], ["vitkit", "--version"]
    try:
        main()
    except SystemExit:
        pass
    with multiprocessing.get_context(method).Pool(1) as pool:
        print(pool.map(abs, [-3]))
"""


@pytest.mark.parametrize("method", ["spawn", pytest.param("forkserver", marks=pytest.mark.accept)])
def test_a_process_that_a_library_starts(place: Path, tmp_path: Path, method: str) -> None:
    """As `multiprocessing` does it: by `python -c`."""
    (tmp_path / "script.py").write_text(SPAWNING)
    assert execute(place, sys.executable, tmp_path / "script.py", method).endswith("[3]\n")


def test_the_command_line(place: Path) -> None:
    assert "vit_tiny_patch8_224" in execute(place, VITKIT, "models")


def test_python_m_vitkit(place: Path, tmp_path: Path) -> None:
    """But for what Python itself imports before it comes to vitkit, and for another `vitkit` in the current folder."""
    (tmp_path / "control.py").write_text("import sys\nprint(*sys.modules)\n")
    before = {*map(_top, execute(tmp_path, sys.executable, "-m", "control").split()), "vitkit"}
    assert not {"json", "queue", "typing", "threading", "torch"} & before
    for path in place.glob("*.py"):
        if path.stem not in before:
            (tmp_path / path.name).symlink_to(path)
    assert len(list(tmp_path.glob("*.py"))) >= 200
    assert "vit_tiny_patch8_224" in execute(tmp_path, sys.executable, "-m", "vitkit", "models")


SMALL = ("--model", "vit_micro_patch8_16", "--weights", "none", "--epochs", "1", "--batch-size", "8")
ONE_EPOCH = ("--set", "epochs=1", "--set", "batch_size=8")
VERBS: dict[str, tuple[str, ...]] = {
    "doctor": ("doctor", "many", "-o", "OUT.html"),
    "train": ("train", "photos", *SMALL, "--workers", "2", "--out", "OUT"),
    "train --devices 2": ("train", "photos", *SMALL, "--device", "cpu", "--devices", "2", "--out", "OUT"),
    "train --folds 2": ("train", "photos", *SMALL, "--folds", "2", "--workers", "0", "--out", "OUT"),
    "pretrain": ("pretrain", "photos", "--set", f"model={SMALL[1]}", *ONE_EPOCH, "--set", "workers=1", "--out", "OUT"),
    "compare": (
        *("compare", "photos", "--models", "vit_micro_patch8_16@none,vit_micro_patch4_16@none"),
        *("--set", "device=cpu", "--seeds", "2", *ONE_EPOCH, "--out", "OUT"),
    ),
    "lab": ("lab", "head", "--data", "photos", *SMALL[:2], *ONE_EPOCH, "--seeds", "1", "--out", "OUT"),
    "eval": ("eval", "runs/first", "-o", "OUT"),
    "predict": ("predict", "runs/first", "photos", "-o", "OUT.csv"),
    "convert": ("convert", "runs/first", "OUT.pth", "--to", "timm"),
    "embed": ("embed", "runs/first", "photos", "-o", "OUT.npz"),
    "embed by text": ("embed", "CLIP", "photos", "--text", "a red photograph"),
    "explain": ("explain", "runs/first", "photos/red/img1.png", "--method", "all", "-o", "OUT"),
    "info": ("info", "runs/first"),
    "models": ("models",),
    "plan": ("plan", "vit_micro_patch8_16", "--images", "1000", "--epochs", "2"),
    "export to ONNX": ("export", "runs/first", "--to", "onnx", "-o", "OUT.onnx"),
    "export to OpenVINO": ("export", "runs/first", "--to", "openvino", "-o", "OUT.xml"),
    "export to PyTorch": ("export", "runs/first", "--to", "torch", "-o", "OUT.pt2"),
    "bench": ("bench", "runs/first", "--batch-sizes", "1", "--rounds", "1"),
}  # fmt: skip


@pytest.mark.accept
@pytest.mark.parametrize("verb", VERBS)
def test_verbs(verb: str, place_of_run: Path, tmp_path: Path) -> None:
    assert {words[0] for words in VERBS.values()} | {"serve", "studio"} == set(KNOWN)
    if verb == "doctor" and not (place_of_run / "many").is_dir():  # as many as are looked at by several processes
        runs.photos(place_of_run / "many", images=700)
    if verb == "embed by text":
        wordy.clip(tmp_path / "clip")
    words = [re.sub("^OUT", str(tmp_path / "out"), word) for word in VERBS[verb]]
    execute(place_of_run, VITKIT, *(str(tmp_path / "clip") if word == "CLIP" else word for word in words))
