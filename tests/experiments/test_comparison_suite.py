"""Comparisons on several data sets: each is an ordinary comparison, and the table is made of them."""

import csv
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from scipy.stats import binomtest

import runs
import vitkit
from hearing import heard
from refusals import refused
from vitkit.errors import Interrupted, VitkitError
from vitkit.experiments import ComparisonJob
from vitkit.experiments import comparison_runs as comparison_job
from vitkit.experiments.comparison_runs import _environments, _train_in_worker
from vitkit.experiments.comparison_suite import figures_of
from vitkit.system import Worker
from vitkit.training import DivergedError

A, B = "vit_micro_patch8_16", "vit_micro_patch4_16"
OF_ANY_MODEL: dict[str, Any] = {name: value for name, value in runs.QUICK.items() if name not in ("model", "epochs")}
FIELDS: dict[str, Any] = {**OF_ANY_MODEL, "epochs": 1, "model_fields": {**runs.SIZE, "layers": 1}, "seeds": 1}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("several")
    return [str(runs.photos(root / name, images=10, seed=seed)) for seed, name in enumerate(("photos", "others"))]


Suite = tuple[vitkit.Result, list[str]]


@pytest.fixture(scope="module")
def suite(folders: list[str], tmp_path_factory: pytest.TempPathFactory) -> Suite:
    """Stopped by a signal after the second run, and continued."""
    out, said = tmp_path_factory.mktemp("suite") / "out", []

    def stop(line: str) -> None:
        said.append(line)
        if line.startswith("photos: run 2 of 2"):
            raise Interrupted(2)

    with pytest.raises(Interrupted), heard(stop):
        vitkit.compare(folders, [A, B], **runs.divided(vitkit.compare, **FIELDS), out=out)
    with heard(said.append):
        result = vitkit.compare(resume=True, out=out)
    assert isinstance(result, vitkit.Result)
    return result, said


def test_the_cells_are_those_of_the_comparisons_with_means_and_ranks_over_them(
    suite: Suite,
) -> None:
    result, said = suite
    assert result.figures == json.loads((result.folder / "suite.json").read_text())
    assert "photos: 2 of 2 runs are finished already" in said
    for data, folder in result.figures["folders"].items():
        single = json.loads((result.folder / folder / "comparison.json").read_text())
        for model in single["models"]:
            row = next(row for row in result.rows() if (row["model"], row["data"]) == (model["name"], data))
            assert [row["accuracy"], row["low"], row["high"]] == [model["accuracy"], *model["interval"]]
    with (result.folder / "suite.csv").open(encoding="utf-8", newline="") as file:
        found = [(row["model"], row["data"]) for row in csv.DictReader(file)]
    assert found == [(model, data) for model in (A, B) for data in ("photos", "others")]
    for model in result.figures["models"]:
        cells = list(model["by_data"].values())
        assert model["mean"]["accuracy"] == pytest.approx(sum(cell["accuracy"] for cell in cells) / 2)
        assert model["mean"]["interval"][0] <= model["mean"]["accuracy"] <= model["mean"]["interval"][1]
        assert model["mean_rank"] == sum(cell["rank"] for cell in cells) / 2
    assert sum(model["mean_rank"] for model in result.figures["models"]) == 3, "of two models, with ties halved"


@pytest.mark.parametrize(("images", "rates"), [(5, (0.8, 0.8)), (50, (0.99, 0.5))])
def test_the_interval_of_a_mean_covers_the_true_mean(images: int, rates: tuple[float, ...]) -> None:
    """Over 500 simulated comparisons of a model with known accuracies, whose own intervals are Clopper's."""
    rng, covered = np.random.default_rng(0), 0
    ends = [binomtest(right, images).proportion_ci() for right in range(images + 1)]
    labels = [f"data {i}" for i in range(len(rates))]
    for _ in range(500):
        contents = []
        for rate in rates:
            right = int(rng.binomial(images, rate))
            model = {"name": "a", "accuracy": right / images, "interval": [ends[right].low, ends[right].high]}
            contents.append({"models": [{**model, "runs": [{"training_flops": None}]}], "pairs": [], "seeds": [0]})
        (row,) = figures_of(labels, contents)["models"]
        low, high = row["mean"]["interval"]
        assert 0 <= low <= row["mean"]["accuracy"] <= high <= 1
        covered += low <= sum(rates) / len(rates) <= high
    assert covered > 465


def test_significant_differences_are_counted() -> None:
    same = {"accuracy": 0.5, "interval": [0.4, 0.6], "runs": [{"training_flops": 1.0}]}

    def sentences(*better: str | None) -> list[str]:
        contents = []
        for own in better:
            pairs = [{"a": "a", "b": "b", "better": {"recipe": None, "trained": own}}]
            contents.append({"models": [{**same, "name": name} for name in "abc"], "pairs": pairs, "seeds": [0]})
        return list(figures_of(["x", "y"], contents)["sentences"])

    assert sentences(None, None)[0].startswith("on none of these data sets is a model significantly better")
    for name, told in zip("ab", sentences("a", "b"), strict=False):
        assert told.startswith(f"{name} is significantly better than another model in 1 and worse in 1 of 4")


def test_it_is_shown_and_what_each_training_costs_before_it_begins(suite: Suite) -> None:
    result, said = suite
    first = next(place for place, line in enumerate(said) if "run 1 of" in line)
    (row,) = (line for line in said[:first] if line.startswith(A))
    single = json.loads((result.folder / "1-photos" / "comparison.json").read_text())
    (run,) = next(model["runs"] for model in single["models"] if model["name"] == A)
    assert float(row.split()[2]) == pytest.approx(run["training_flops"], rel=0.01)
    page, text = result.report.read_text(encoding="utf-8"), "\n".join(result.lines())
    assert "1-photos/comparison.html" in page and "data:image/svg+xml" in page
    assert "mean ranks are not tested" in text and "not over other data sets" in text
    assert "<table>" in result._repr_html_()


def test_what_cannot_be_done_is_refused_before_anything_is_written(folders: list[str], tmp_path: Path) -> None:
    cases: list[tuple[list[str], dict[str, Any], str, str]] = [
        (folders, {"models": None}, "experiments.argument-missing", ""),
        ([folders[0], f"{folders[1]}/../photos"], {}, "experiments.data-twice", ""),
        (folders, {"models": ["no_such_model"]}, "model.name-unknown", "photos: "),
        (folders, {"folds": 3}, "experiments.field-refused", "folds"),
    ]
    for data, fields, code, named in cases:
        with refused(code, named):
            own = runs.divided(vitkit.compare, **FIELDS, **{"models": [A], **fields})
            vitkit.compare(data, **own, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


_FORKING = """
import multiprocessing
from vitkit.system.processes import serve_calls

def answer(question):
    child = multiprocessing.get_context("fork").Process(target=print)
    child.start()
    child.join(20)
    return f"a child ended with {child.exitcode}"

if __name__ == "__main__":
    serve_calls(answer)
"""
_BUSY = """
import sys, time
from pathlib import Path
from vitkit.errors import Interrupted
from vitkit.system import Deferral
from vitkit.system.processes import serve_calls

def answer(question):
    print("what a library prints")
    if question != "wait":
        return question
    try:
        with Deferral() as signal:
            Path("began").touch()
            while signal.received is None:
                time.sleep(0.01)
    except Interrupted:
        Path("stopped").touch()
        sys.exit(0)

if __name__ == "__main__":
    serve_calls(answer, stops_at_end=True)
"""


@pytest.fixture
def worker_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Worker]:
    def start(program: str) -> Worker:
        (tmp_path / "program.py").write_text(program)
        command = [sys.executable, str(tmp_path / "program.py")]
        monkeypatch.setattr("vitkit.system.processes.python_command", lambda _: command)
        return Worker("program", is_quiet=True)

    monkeypatch.chdir(tmp_path)
    return start


def test_what_a_training_forks_does_not_wait_for_the_next_job(worker_of: Callable[[str], Worker]) -> None:
    """A forked child closes its standard input, which the process that forked it is reading."""
    worker = worker_of(_FORKING)
    assert worker.call({}) == "a child ended with 0"
    worker.close()
    worker.wait()


def test_a_worker_that_is_busy_stops_in_good_order(worker_of: Callable[[str], Worker], tmp_path: Path) -> None:
    worker = worker_of(_BUSY)
    assert worker.call({"any": (1, tmp_path)}) == {"any": (1, tmp_path)}, "what it prints is no answer"
    ended: list[type[BaseException]] = []

    def ask() -> None:
        try:
            worker.call("wait")
        except (EOFError, OSError, ValueError) as error:
            ended.append(type(error))

    thread = threading.Thread(target=ask)
    thread.start()
    while not (tmp_path / "began").exists():
        thread.join(0.01)
    worker.close()
    worker.wait()
    thread.join()
    assert (tmp_path / "stopped").exists()
    assert ended


def test_a_worker_tells_a_training_that_diverged_from_one_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    job = ComparisonJob("a", 0, 1.0, 1, {}, "runs/a")
    for error, diverged in ((DivergedError("no"), True), (VitkitError("data.class-single", "no"), False)):
        monkeypatch.setattr(comparison_job, "train_job", Mock(side_effect=error))
        assert _train_in_worker((job, Path("out"))) == {
            "error": "no",
            "code": error.code,
            "diverged": diverged,
        }


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    assert _environments(4, "cpu") == [{"OMP_NUM_THREADS": "4"}] * 4
    monkeypatch.setattr("vitkit.experiments.comparison_runs.choose_device", lambda device: "cuda")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert _environments(2, "auto") == [
        {"OMP_NUM_THREADS": "8", "CUDA_VISIBLE_DEVICES": "5"},
        {"OMP_NUM_THREADS": "8", "CUDA_VISIBLE_DEVICES": "7"},
    ]
