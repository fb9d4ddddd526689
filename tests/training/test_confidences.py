"""What a run says of itself is what `vitkit eval RUN` says, by the same backend and precision, to the last digit."""

import json
from pathlib import Path

import numpy as np
import pytest

import runs
import vitkit
from vitkit.data import split_from_file
from vitkit.evaluation import at_temperature, evaluate, fit_temperature
from vitkit.training import train
from vitkit.weights import load


def test_a_run_and_eval_agree_to_the_last_digit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where answers are rounded, as on processors that have bfloat16, the temperature is fitted to such answers too."""
    monkeypatch.setattr("vitkit.inference.backends.best_precision", lambda _: "bfloat16")
    data = runs.photos(tmp_path / "photos", images=24, noise=400.0)
    run = train(runs.quick(data, epochs=1, balance="none", split=(0.4, 0.3, 0.3), lr=3e-3), tmp_path / "run")
    asked, told = vitkit.evaluate(run), json.loads((run / "evaluation.json").read_text(encoding="utf-8"))
    assert (asked.figures["backend"], asked.figures["precision"]) == ("eager", "bfloat16")
    del told["label_errors"]  # of training images too, of which eval does not ask
    assert told == asked.figures
    assert f"<td>computed</td><td>{asked.computed}</td>" in (run / "report.html").read_text(encoding="utf-8")
    plain = evaluate(load(run), split_from_file(run / "split.json"), "test")
    assert not np.array_equal(asked.evaluation.probabilities, plain.probabilities), "else nothing was tried"
    seen = at_temperature(vitkit.evaluate(run, split="val").evaluation, 1.0)
    assert load(run).temperature == pytest.approx(fit_temperature(seen.probabilities, seen.labels), rel=1e-4)
