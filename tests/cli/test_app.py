"""What all verbs have in common: help with an example, the version, a quick start, and flags that nobody changes
unnoticed."""

import inspect
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin
from unittest.mock import Mock

import pytest
import typer

import runs
import vitkit as package
import warm
from vitkit.cli.app import VERBS
from vitkit.cli.commands import SET_ONLY
from vitkit.text.arguments import hints_of
from vitkit.training import Recipe

GOLDEN = Path(__file__).parents[1] / "golden" / "flags.txt"
FUNCTIONS: dict[str, Callable[..., Any]] = {verb: VERBS[verb].function() for verb in VERBS}
SLOW = {"lightning", "lightning_fabric", "pytorch_lightning", "torchvision", "torchmetrics"}


def test_the_version_the_help_and_words_that_are_no_commands(vitkit: Any) -> None:
    outcome = vitkit("--version")
    assert (outcome.code, outcome.out) == (0, f"vitkit {package.__version__}\n")
    for flag in ("--help", "-h"):
        outcome = vitkit(flag)
        assert outcome.code == 0
        assert all(len(re.findall(rf"^  {verb} ", outcome.out, re.M)) == 1 for verb in VERBS)
        assert "More:" not in outcome.out, "every command has its group"
    outcome = vitkit()
    assert "Usage: vitkit" in outcome.out + outcome.err
    outcome = vitkit("label", "photos")
    assert outcome.code == 2 and "No such command 'label'" in outcome.err and "see: vitkit --help" in outcome.err


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb(vitkit: Any, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """It has an example, fits on a screen, names the flags that are used most, and speaks of no type of Python."""
    assert not re.search(r"<(int|float|str|bool|path|list)\b|RANGE|\bTrue\b|\bNone\b", vitkit(verb, "--help-all").out)
    monkeypatch.setenv("COLUMNS", "80")
    outcome = vitkit(verb, "--help")
    assert outcome.code == 0 and f"Example: vitkit {verb}" in outcome.out
    lines = outcome.out.rstrip().splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 80
    common = VERBS[verb].common
    told = re.findall(r"^  (?:-\w, )?--([\w-]+)", "\n".join(lines).partition("Most used options:\n")[2], re.M)
    named = {"as_json": "json", "sets": "set"}
    assert not common or told == [named.get(name, name.replace("_", "-")) for name in (*common, "help")]
    assert bool(common) == (lines[-1].endswith(f" more flags: vitkit {verb} --help-all"))


def modules_after(*commands: tuple[int, list[object]]) -> list[set[str]]:
    """The modules that a fresh interpreter has loaded after each of the commands, which end with these codes."""
    program = (
        "import sys\n"
        "from vitkit.cli.app import main\n"
        f"for code, arguments in {[(code, list(map(str, arguments))) for code, arguments in commands]!r}:\n"
        "    sys.argv = ['vitkit', *arguments]\n"
        "    try:\n        main()\n"
        "    except SystemExit as end:\n        assert (end.code or 0) == code, end.code\n"
        "    sys.stderr.write('\\nloaded ' + ' '.join(list(sys.modules)) + '\\n')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=runs.environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [set(line.split()[1:]) for line in done.stderr.splitlines() if line.startswith("loaded ")]


def test_what_is_slow_to_import_is_not_loaded_before_it_is_needed(trained: Path, data: Path, tmp_path: Path) -> None:
    """Help loads neither torch nor numpy, a refusal no torch, and predict and explain nothing of training."""
    nowhere, picture = tmp_path / "nowhere", data / "red" / "img1.png"
    refused: list[list[object]] = [
        ["train", nowhere],
        ["pretrain", nowhere],
        ["compare", tmp_path, "--models", "a,b", "--set", "group_by=("],
    ]
    loaded = modules_after(
        (0, ["--help"]),
        (0, ["train", "--help"]),
        *((2, command) for command in refused),
        (0, ["predict", trained, picture, "-o", tmp_path / "out.csv", "--resume", "--reject", "0.5"]),
        (0, ["explain", trained, picture, "-o", tmp_path / "explained"]),
    )
    for modules, verbs in zip(loaded, ([], ["train"]), strict=False):
        assert [verb for verb, row in VERBS.items() if f"vitkit.{row.module}" in modules] == verbs
        assert modules & (SLOW | {"torch", "numpy", "matplotlib", "sklearn"}) == set()
        assert ("vitkit.training.recipe" in modules) == bool(verbs)
    *_, refused_last, predicted, explained = loaded
    assert refused_last & (SLOW | {"torch", "matplotlib", "sklearn", "scipy"}) == set()
    assert "torch" in predicted and predicted & (SLOW | {"matplotlib", "sklearn", "scipy"}) == set()
    assert "matplotlib" in explained and explained & (SLOW | {"matplotlib.pyplot"}) == set()


def flags() -> list[str]:
    """A line for each argument and flag of each verb: how it is written, its type, its default."""
    return [f"{verb} {line}" for verb, command in FUNCTIONS.items() for line in _parameters(command)]


def _parameters(command: Callable[..., Any]) -> list[str]:
    lines = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        kind, info = get_args(parameter.annotation)
        if isinstance(info, typer.models.ArgumentInfo):
            written = parameter.name.upper() + ("" if parameter.default is inspect.Parameter.empty else "?")
        else:
            # Inside Annotated, typer keeps the first way of writing a flag as the default.
            written = " ".join(text for text in (info.default, *(info.param_decls or ())) if isinstance(text, str))
        shown = info.show_default if isinstance(info.show_default, str) else parameter.default
        default = "" if shown in (None, inspect.Parameter.empty) else f" = {shown}"
        lines.append(f"{written}: {_type(kind)}{default}")
    return lines


def _type(kind: Any) -> str:
    options = [option for option in get_args(kind) if option is not type(None)]
    if get_origin(kind) is Literal:
        return "|".join(options)
    if get_origin(kind) is tuple:
        return " ".join(map(_type, options))
    if get_origin(kind) is list:
        return f"{_type(options[0])}..."
    return kind.__name__ if isinstance(kind, type) else " ".join(map(_type, options))


def test_flags_are_those_of_the_golden_file_in_one_style_with_a_help_text() -> None:
    text = "".join(f"{line}\n" for line in flags())
    if os.environ.get("VITKIT_UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    known = GOLDEN.read_text(encoding="utf-8").splitlines()
    added, gone = (sorted(a - b) for a, b in ((set(flags()), set(known)), (set(known), set(flags()))))
    assert flags() == known, (
        f"the command line has changed. New: {added}. Gone: {gone}. If that is meant, update the list with\n"
        "    VITKIT_UPDATE_GOLDEN=1 python -m pytest tests/cli/test_app.py\n"
        "and mention the change in CHANGELOG.md"
    )
    for line in flags():
        written = line.partition(" ")[2].partition(":")[0]
        assert re.fullmatch(r"[A-Z]+\??|--[a-z][a-z0-9-]*(/--no-[a-z-]+| -[a-z])?", written), line
    for verb, command in FUNCTIONS.items():
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            assert (get_args(parameter.annotation)[1].help or "").endswith("."), f"{verb} {parameter.name}"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate 2 GiB\nmore")])
def test_short_memory_takes_a_line(vitkit: Any, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr("vitkit.profiling.model_info.describe", Mock(side_effect=error))
    outcome = vitkit("info", "vit_tiny_patch16_224")
    outcome.refused(None, "there is too little memory", (str(error) or "MemoryError").splitlines()[0])
    assert len(outcome.err.splitlines()) == 1


def test_flags_are_completed() -> None:
    asked = {"_TYPER_COMPLETE_ARGS": "vitkit train --weight-d", "_VITKIT_COMPLETE": "complete_zsh"}
    command, environment = [warm.vitkit()], runs.environment() | asked
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--weight-decay" in re.findall(r"[\w-]+", done.stdout)


def test_the_short_help_counts_what_the_whole_help_adds(vitkit: Any) -> None:
    told = {flag: vitkit("train", flag).out for flag in ("--help", "--help-all")}
    short, whole = (set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.M)) for text in told.values())
    assert {"--model", "--weights", "--method", "--epochs", "--lr", "--out"} <= short < whole
    assert f"{len(whole - short)} more flags: vitkit train --help-all" in told["--help"]
    rows = [line.split()[1] for line in GOLDEN.read_text().splitlines() if line.startswith("train --")]
    assert whole == {re.split("[:/]", row)[0] for row in rows} | {"--help"}
    assert f"only --set changes:\n  {min(SET_ONLY, key=list(hints_of(Recipe)).index)}=" in told["--help-all"]


def test_quiet_leaves_results_and_errors_and_nothing_of_a_training(
    vitkit: Any, trained: Path, data: Path, tmp_path: Path
) -> None:
    picture = next(data.rglob("*.png"))
    loud, quiet = (vitkit("predict", trained, picture, *flags) for flags in ((), ("--quiet",)))
    assert loud.out == quiet.out == vitkit("-q", "predict", trained, picture).out != ""
    assert (loud.err != "", quiet.err) == (True, "")
    vitkit("predict", trained, "nowhere.png", "-q").refused("data.source-missing")
    outcome = vitkit("train", data, "-q", *runs.FLAGS, "--epochs", 1, "--out", tmp_path / "run")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
    assert (tmp_path / "run" / "model.json").is_file()


def test_the_guide_lists_every_exit_code_and_the_commands_that_answer_no() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "predicting.md").read_text()
    table = dict(re.findall(r"^\| (\d+) \| (.+) \|$", guide.partition("## Exit codes")[2].partition("\n## ")[0], re.M))
    signals = {128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM)}
    assert {int(code) for code in table} == {0, 1, 2} | signals
    answering = {name for name, verb in VERBS.items() if verb.run.__annotations__["return"].startswith("int")}
    plain = {name for name, verb in VERBS.items() if verb.run.__name__ == "_call_and_print"}  # which returns None
    assert set(re.findall(r"`([a-z]+)`", table["1"])) == answering - plain
