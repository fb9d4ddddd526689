"""What a run says of itself is what `vitkit eval RUN` says, by the same backend and precision, to the last digit."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runs
import vitkit
from vitkit.data import split_from_file
from vitkit.evaluation import at_temperature, best_thresholds, evaluate, fit_temperature
from vitkit.inference import BACKENDS
from vitkit.training import train
from vitkit.weights import load

HALVES: dict[str, Any] = {"epochs": 1, "balance": "loss", "split": (0.4, 0.3, 0.3), "lr": 3e-3}
COMPUTED = {"plain": ("eager", "float32"), "rounded": ("eager", "bfloat16"), "compiled": ("openvino", "float32")}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hard to learn, and twice as many of one class, so that a balanced run changes its head in the end."""
    root = runs.photos(tmp_path_factory.mktemp("data") / "photos", images=24, noise=400.0)
    for i in range(2, 25, 2):
        (root / "red" / f"img{i}.png").unlink()
    return root


@pytest.fixture(params=["rounded", *(pytest.param(name, marks=pytest.mark.accept) for name in ("plain", "compiled"))])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As on processors of several kinds, and of many images."""
    if request.param == "rounded":
        monkeypatch.setattr("vitkit.inference.backends.best_precision", lambda _: "bfloat16")
    if request.param == "compiled":
        pytest.importorskip("openvino")
        monkeypatch.setitem(BACKENDS, "openvino", replace(BACKENDS["openvino"], auto_from=1))
    return str(request.param)


def assert_eval_agrees(run: Path, way: str) -> vitkit.EvaluationResult:
    asked = vitkit.evaluate(run)
    assert (asked.figures["backend"], asked.figures["precision"]) == COMPUTED[way]
    told = json.loads((run / "evaluation.json").read_text(encoding="utf-8"))
    del told["label_errors"]  # of training images too, of which eval does not ask
    assert told == asked.figures
    assert f"<td>computed</td><td>{asked.computed}</td>" in (run / "report.html").read_text(encoding="utf-8")
    return asked


def test_a_run_and_eval_agree_to_the_last_digit(data: Path, tmp_path: Path, way: str) -> None:
    balance = "loss" if way == "compiled" else "none"
    run = train(runs.quick(data, **HALVES | {"balance": balance}), tmp_path / "run")
    asked = assert_eval_agrees(run, way)
    plain = evaluate(load(run), split_from_file(run / "split.json"), "test")
    is_same = bool(np.array_equal(asked.evaluation.probabilities, plain.probabilities))
    assert is_same == (way == "plain"), "else nothing was tried"
    if balance == "none":
        seen = at_temperature(vitkit.evaluate(run, split="val").evaluation, 1.0)
        assert load(run).temperature == pytest.approx(fit_temperature(seen.probabilities, seen.labels), rel=1e-4)


@pytest.mark.parametrize("way", ["rounded"], indirect=True)
def test_thresholds_are_alike_too(data: Path, tmp_path: Path, way: str) -> None:
    paths = [path.relative_to(data) for path in sorted(data.rglob("*.png"))]
    rows = [f"{path},{path.parent}{';odd' if i % 3 == 0 else ''}" for i, path in enumerate(paths)]
    listed = tmp_path / "several.csv"
    listed.write_text("\n".join(["path,labels", *rows]) + "\n")
    for name in runs.COLOURS:
        (tmp_path / name).symlink_to(data / name)
    run = train(runs.quick(listed, **HALVES), tmp_path / "run")
    assert_eval_agrees(run, way)
    seen = vitkit.evaluate(run, split="val").evaluation
    assert load(run).thresholds == pytest.approx(best_thresholds(seen.labels, seen.probabilities), abs=1e-5)
