"""The commands in README.md and docs/guide exist, and those that are marked run, as all Python does.

A block is fenced with ```console; its commands begin with `$ `. Every `$ vitkit ...` must name a verb and flags that
there are. A block below the line `<!-- run -->` is run, each page's blocks in order in one folder where `docs` is ours;
each command must exit with 0. What several pages have is run once for all, before the rest of each. Below
`<!-- run with FLAGS -->` each command gets these flags too, to be quick enough. Each block fenced with ```python runs
after them, in the same folder and process, but with no name of another.
"""

import functools
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest
import typer

import warm
from once import once
from vitkit.cli.app import VERBS

ROOT = Path(__file__).parents[2]
LESSON = ROOT / "docs" / "guide" / "lesson.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
_FENCE = re.compile(
    r"(?P<mark>^<!-- run(?: with (?P<extra>.*?))? -->[ \t]*\n)?^```console[ \t]*\n(?P<text>.*?)^```[ \t]*$", re.M | re.S
)
_MODEL = 'model="vit_micro_patch8_16",'
_PYTHON = re.compile(r"^```python[ \t]*\n(?P<text>.*?)^```[ \t]*$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """The commands of a fenced block, and whether they are to be run."""

    commands: tuple[str, ...]
    runs: bool
    extra: str = ""  # flags that make the commands quick enough for a test


def blocks(page: str) -> list[Block]:
    """The commands are the lines after `$ `, with those that continue them after a backslash."""
    found = []
    for match in _FENCE.finditer(page):
        lines = match["text"].replace("\\\n", " ").splitlines()
        commands = tuple(line[2:].strip() for line in lines if line.startswith("$ "))
        found.append(Block(commands, match["mark"] is not None, match["extra"] or ""))
    return found


@functools.cache
def known_flags(verb: str) -> set[str]:
    """The ways to write each flag of a verb."""
    found = {"-h", "--help", "--debug"}
    for parameter in inspect.signature(VERBS[verb].function(), eval_str=True).parameters.values():
        info = get_args(parameter.annotation)[1]
        if isinstance(info, typer.models.OptionInfo):
            written = [text for text in (info.default, *(info.param_decls or ())) if isinstance(text, str)]
            found |= {flag for text in written for flag in text.split("/")}
    return found


def faults(command: str) -> list[str]:
    """What is wrong with the calls of vitkit in a line for the shell."""
    words = list(shlex.shlex(command, posix=True, punctuation_chars=True))
    calls: list[list[str]] = [[]]
    for word in words:
        if set(word) <= set("();<>|&"):
            calls.append([])
        else:
            calls[-1].append(word)
    wrapped = [fault for word in words if " " in word and "vitkit " in word for fault in faults(word)]  # for sbatch
    return wrapped + [fault for call in calls for fault in faults_of_call(call)]


def faults_of_call(words: list[str]) -> list[str]:
    """The faults of a call of vitkit, which a launcher may start; other programs have none."""
    start = next((i for i, word in enumerate(words) if Path(word).name == "vitkit"), None)
    if start is None or (start > 0 and not {"torchrun", "srun"} & set(words[:start])):
        return []
    verb, *rest = [word for word in words[start + 1 :] if word != "--debug"] or ["--help"]
    if verb in ("--version", "--help", "-h"):
        return []
    if verb not in VERBS:
        return [f"there is no verb {verb}"]
    given = [word.partition("=")[0] for word in rest if re.match(r"--?[a-zA-Z]", word)]
    return [f"{verb} has no flag {flag}" for flag in given if flag not in known_flags(verb)]


def marked(page: str) -> list[str]:
    return [f"{command} {block.extra}" for block in blocks(page) if block.runs for command in block.commands]


# Where a command needs no shell, this process runs it, which has imported already what an earlier one needed.
_RUN = """
import glob, json, shlex, subprocess, sys, types
from vitkit.cli import main

commands, programs = map(json.loads, sys.argv[1:])
for command in commands:
    print("$", command, flush=True)
    if command.startswith("vitkit ") and not set(command) & set("|&;<>{}()'"):
        sys.argv = [part for word in shlex.split(command) for part in sorted(glob.glob(word)) or [word]]
        try:
            main()
        except SystemExit as end:
            assert not end.code, end
    else:
        subprocess.run(["bash", "-o", "pipefail", "-c", command], check=True)
for program in programs:
    print(program, flush=True)
    sys.argv, sys.modules["__main__"] = ["-c"], types.ModuleType("__main__")
    exec(program, sys.modules["__main__"].__dict__)
"""


def run(commands: list[str], programs: list[str], folder: Path) -> None:
    path = os.pathsep.join([str(Path(warm.vitkit()).parent), os.environ["PATH"]])
    done = subprocess.run(
        [warm.python(), "-c", _RUN, json.dumps(commands), json.dumps(programs)],
        cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def quick(program: str) -> str:
    """With a smaller model and fewer images than a page's reader has."""
    if "max_images=300" in program:
        program = program.replace("max_images=300", "max_images=60")
        program = program.replace(_MODEL, f'{_MODEL} model_fields={{"layers": 1}},')
    return program.replace("rounds=3", "rounds=1")


_COUNTED = Counter(command for path in PAGES for command in dict.fromkeys(marked(path.read_text(encoding="utf-8"))))
COMMON = [command for command, pages in _COUNTED.items() if pages > 1]


def prepare(folder: Path) -> None:
    """What the commands that several pages have leave in a folder."""
    folder.mkdir()
    (folder / "docs").symlink_to(ROOT / "docs")
    run(COMMON, [], folder)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_commands_of_a_page_exist_and_the_marked_run(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = path.read_text(encoding="utf-8")
    assert [fault for block in blocks(page) for command in block.commands for fault in faults(command)] == []
    commands = marked(page)
    monkeypatch.setenv("VITKIT_CACHE", str(once("cache of the pages", Path.mkdir)))
    monkeypatch.setenv("WARM_PYTHON", warm.python())
    if set(commands) & set(COMMON):
        shutil.copytree(once("pages", prepare), tmp_path, symlinks=True, dirs_exist_ok=True)
    else:
        (tmp_path / "docs").symlink_to(ROOT / "docs")
    if path.name != "README.md":  # whose pictures are drawn
        monkeypatch.setenv("BLANK_PICTURES", "1")
    if path == LESSON:
        prepare_lesson(tmp_path)
    programs = [quick(block["text"]) for block in _PYTHON.finditer(page)]
    run([command for command in commands if command not in COMMON], programs, tmp_path)


def prepare_lesson(folder: Path) -> None:
    """Put into a folder what the lesson needs: photographs in three classes, weights, and pictures of digits."""
    import runs
    from tiny import build
    from vitkit.classifier import Classifier
    from vitkit.data import Preprocess

    runs.photos(folder / "data" / "flowers", images=5)  # every method explains those of one class
    for name, colour in zip(("daisy", "roses", "tulips"), sorted(runs.COLOURS), strict=True):
        (folder / "data" / "flowers" / colour).rename(folder / "data" / "flowers" / name)
    model = build(num_classes=7)
    pixels = Preprocess(size=model.config.image_size)
    Classifier(model, tuple("abcdefg"), pixels).save(folder / "deit_tiny_patch16_224.pth")
    shutil.copytree(ROOT / "docs" / "pictures", folder / "pictures")


def test_most_pages_have_commands_that_are_run() -> None:
    assert len(_COUNTED) >= 50 and len(COMMON) >= 3
    page = "<!-- run with -n hello -->\n```console\n$ echo \\\n  a\n3\n```\n"
    assert blocks(page) == [Block(("echo    a",), runs=True, extra="-n hello")]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("vitkit train photos --epochs=3 --no-hflip -o runs/mine --debug", []),
        ("vitkit predict runs/mine 'a *.jpg' -o out.csv && vitkit eval runs/mine --json > metrics.json", []),
        ("vitkit trian photos", ["there is no verb trian"]),
        ("vitkit train photos --epoch 3", ["train has no flag --epoch"]),
        ("cat list | .venv/bin/vitkit predict runs/mine --tpo=3", ["predict has no flag --tpo"]),
        ("torchrun --nnodes 2 vitkit train photos --epoch 3", ["train has no flag --epoch"]),
        ("JOB=$(sbatch --wrap 'srun vitkit predict a b --epoch 3')", ["predict has no flag --epoch"]),
    ],
)
def test_what_is_wrong_with_a_command(command: str, expected: list[str]) -> None:
    assert faults(command) == expected


@pytest.mark.parametrize(
    ("commands", "programs"),
    [(["cat nowhere | sort"], []), (["vitkit predict nowhere x.png"], []), ([], ["import nowhere"])],
)
def test_what_fails_on_a_page_is_noticed(tmp_path: Path, commands: list[str], programs: list[str]) -> None:
    with pytest.raises(AssertionError, match="nowhere"):
        run(commands, programs, tmp_path)
