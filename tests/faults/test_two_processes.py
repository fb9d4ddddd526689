"""Ten processes at one place, for real: one works, nine say who does, and nothing is damaged."""

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import runs
import warm
from vitkit.training import run
from vitkit.weights import load

pytestmark = pytest.mark.accept
MANY = 10


def at_once(*arguments: str | Path, place: Path | None = None) -> list[tuple[int, str]]:
    """Exit code and stderr of ten processes that run the same command in a folder."""
    command = [sys.executable, "-m", "vitkit", *map(str, arguments)]
    streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "encoding": "utf-8"}
    crowd = [subprocess.Popen(command, cwd=place, env=runs.environment(), **streams) for _ in range(MANY)]
    return [(process.returncode, err) for process in crowd for err in [process.communicate(timeout=600)[1]]]


def test_ten_trainings_at_one_new_folder_and_at_a_run(tmp_path: Path) -> None:
    data = runs.photos(tmp_path / "photos")
    whole = run.train(runs.quick(data, epochs=90), tmp_path / "whole")
    flags = [*runs.FLAGS, "--epochs", "90", "--out", tmp_path / "run"]
    for extra in ([], ["--force"]):
        outcomes = at_once("train", data, *flags, *extra)
        assert sorted(code for code, _ in outcomes) == [0, *[2] * (MANY - 1)], outcomes
        for code, err in outcomes:
            assert "Traceback" not in err
            assert code == 0 or "is being written by process" in err, err
        runs.assert_same_weights(tmp_path / "run", whole)
        assert runs.metrics(tmp_path / "run") == runs.metrics(whole)
        assert load(tmp_path / "run").provenance["metrics"] == load(whole).provenance["metrics"]
        assert not list((tmp_path / "run").rglob(".*"))


SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL)
FAULTS = dict.fromkeys(("scratch", "probe-sgd", "lora", "full", "probe", "export", "embed", "doctor"), 10) | {
    "predict": 20
}
FEW = 0.3  # seconds in which the program itself starts, and nobody listens yet


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("signals")
    run.train(runs.quick(runs.photos(here / "photos")), here / "source")
    runs.photos(here / "many", images=300)
    return here


def command(verb: str, place: Path, out: Path) -> list[str | Path]:
    photos, source, many = place / "photos", place / "source", place / "many"
    others: dict[str, list[str | Path]] = {
        "predict": ["predict", source, many, "-o", out.with_suffix(".csv"), "--backend", "eager"],
        "export": ["export", source, "--to", "torch", "-o", out.with_suffix(".pt2")],
        "embed": ["embed", source, many, "-o", out.with_suffix(".npz")],
        "doctor": ["doctor", many, "-o", out.with_suffix(".html")],
    }
    if verb in others:
        return others[verb]
    weights = ["--model", "vit_micro_patch8_16", "--weights", "none"] if verb == "scratch" else ["--weights", source]
    fixed = ["--batch-size", "8", "--precision", "float32", "--workers", "0", "--seed", "1"]
    epochs = [] if verb == "probe" else ["--epochs", "20"]
    return ["train", photos, *weights, "--method", verb, *fixed, *epochs, "--out", out]


def start(arguments: list[str | Path]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [warm.vitkit(), *map(str, arguments)],
        env=runs.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in the background
    )  # fmt: skip


def whole(arguments: list[str | Path]) -> None:
    process = start(arguments)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err


def go_on(verb: str, arguments: list[str | Path], out: Path) -> None:
    """As a user would after an interruption."""
    if verb == "predict":
        whole([*arguments, "--resume"])
    elif (out / "recipe.toml").is_file():
        whole(["train", "--resume", out])
    else:
        whole([*arguments, "--force"])


@pytest.mark.parametrize("verb", FAULTS)
def test_signals_at_random_moments(verb: str, place: Path, tmp_path: Path) -> None:
    rng, out = random.Random(verb), tmp_path / "out"
    reference = tmp_path / "reference"
    began = time.monotonic()
    whole(command(verb, place, reference))
    takes = time.monotonic() - began
    stopped = 0
    for _ in range(4 * FAULTS[verb]):
        number, wait = SIGNALS[stopped % len(SIGNALS)], rng.uniform(min(FEW, takes / 2), takes)
        arguments = command(verb, place, out)
        began, process = time.monotonic(), start(arguments)
        try:
            _, err = process.communicate(timeout=wait)
            takes = min(takes, time.monotonic() - began)  # it was done before: no fault
        except subprocess.TimeoutExpired:
            process.send_signal(number)
            sent = time.monotonic()
            _, err = process.communicate(timeout=60)
            assert time.monotonic() - sent < 10, (number, wait)
        # It may have been done just then; the interpreter's own end has no handler, and is cut short by the signal.
        right = {-9} if number == signal.SIGKILL else {128 + number, -number}
        assert process.returncode in right | {0}, (number, wait, err)
        assert "Traceback" not in err, (number, wait, err)
        if process.returncode == 128 + number:
            assert err.splitlines()[-1] == f"stopped by {signal.Signals(number).name}"
        if process.returncode != 0:
            stopped += 1
            go_on(verb, arguments, out)
        if verb == "predict":
            assert out.with_suffix(".csv").read_bytes() == reference.with_suffix(".csv").read_bytes()
        elif verb not in ("export", "embed", "doctor"):
            runs.assert_same_weights(out, reference)
        for left in tmp_path.glob("out*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        if stopped == FAULTS[verb]:
            break
    assert stopped == FAULTS[verb], "the others came when all was done"
