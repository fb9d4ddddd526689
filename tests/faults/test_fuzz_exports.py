"""5,000 changed files of each format that is opened, as `vitkit predict` opens them: no code, no crash, no hang.

Bytes and values of XML are changed, and checksums made right again, as a forger would.
"""

import json
import os
import re
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import numpy as np
import pytest
from PIL import Image

import mutations
import photos
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.exporting import Pictures, export
from vitkit.exporting import card as seal

pytestmark = pytest.mark.accept
FILES = 5000
PATIENCE = 10.0  # seconds for a file
_ATTRIBUTE = re.compile(rb'="([^"<>&]*)"')
_TEXTS = [str(own).encode("utf-8", "replace") for own in mutations.ODD]


def changed_xml(content: bytes, rng: Random) -> bytes:
    """One attribute of the graph with another value, or with that of another attribute."""
    place, other = rng.choices(list(_ATTRIBUTE.finditer(content)), k=2)
    value = other[1] if rng.random() < 0.4 else rng.choice(_TEXTS)
    return content[: place.start(1)] + value + content[place.end(1) :]


def forge_onnx(ours: Path, target: Path, rng: Random) -> None:
    content = mutations.mutate_bytes((ours / "model.onnx").read_bytes(), rng)
    if rng.random() < 0.95:
        with suppress(ValueError):
            content = seal.with_checksum(content)
    target.write_bytes(content)


def forge_xml(ours: Path, target: Path, rng: Random) -> None:
    content, weights = (ours / "model.xml").read_bytes(), (ours / "model.bin").read_bytes()
    way = rng.random()
    if way < 0.6:
        content = changed_xml(content, rng)
    elif way < 0.9:
        content = mutations.mutate_bytes(content, rng)
    else:
        weights = mutations.mutate_bytes(weights, rng)
    if rng.random() < 0.95:
        with suppress(ValueError):
            content = seal.with_checksum(content, weights)
    target.write_bytes(content)
    target.with_suffix(".bin").write_bytes(weights)


FORGERS: dict[str, Callable[[Path, Path, Random], None]] = {"model.onnx": forge_onnx, "model.xml": forge_xml}


class Opener:
    """A process that opens files; when one of them ends it, or takes it too long, another goes on."""

    def __init__(self, picture: Path, ours: Path) -> None:
        self._command = [sys.executable, str(Path(__file__).with_name("opening.py")), str(picture)]
        self._ours = ours
        self._begin()

    def _begin(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1"}, cwd=self._ours.parent,
        )  # fmt: skip
        kind, text = self.ask(self._ours, patience=120)
        assert kind == "answered", f"our own file: {text}"

    def ask(self, path: Path, patience: float = PATIENCE) -> tuple[str, str]:
        """What came of a file; `hang` and `crash` are the child's."""
        self._process.stdin.write(f"{path}\n".encode())
        self._process.stdin.flush()
        is_answered, *_ = select.select([self._process.stdout], [], [], patience)
        if is_answered and (line := self._process.stdout.readline()):
            kind, text = json.loads(line)
            return kind, text
        self.end()
        self._begin()
        return ("crash" if is_answered else "hang"), f"over {patience} s" * (not is_answered)

    def end(self) -> None:
        """Of the process; what it read from and wrote to is closed."""
        self._process.kill()
        with suppress(BrokenPipeError):
            self._process.communicate()


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of each format, and a picture."""
    folder = tmp_path_factory.mktemp("ours")
    own = Classifier(build(layers=1), tuple("abcdefg"), Preprocess(size=(12, 16)), temperature=1.5)
    for file in FORGERS:
        export(own, folder / file, Pictures("noise", tuple(photos.noise(21, 17, seed) for seed in range(3))))
    Image.fromarray(np.full((12, 16, 3), 99, np.uint8)).save(folder / "picture.png")
    return folder


@pytest.mark.parametrize("file", FORGERS)
def test_any_file_is_refused_or_taken(ours: Path, tmp_path: Path, file: str, request: pytest.FixtureRequest) -> None:
    opener = Opener(ours / "picture.png", ours / file)
    request.addfinalizer(opener.end)
    rng = Random(len(file))
    kinds: Counter[str] = Counter()
    wrong: list[str] = []
    target = tmp_path / file
    for number in range(FILES):
        FORGERS[file](ours, target, rng)
        kind, text = opener.ask(target)
        kinds[kind] += 1
        if kind not in ("refused", "answered") or len(text.splitlines()) > 2:
            kept = target.rename(tmp_path / f"{number}{target.suffix}")
            wrong.append(f"{kept}: {kind}: {text[-600:]}")
    assert opener.ask(ours / file)[0] == "answered", "our own file opens"
    assert kinds.total() == FILES
    assert wrong == [], f"{len(wrong)} of {FILES}: {kinds}"
