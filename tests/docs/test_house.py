"""docs/house.md: its picture is that of the imports, and its walks name files in the order that they are entered."""

import os
import re
import subprocess
from pathlib import Path

import pytest

import warm

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "house.md").read_text(encoding="utf-8")
SCRIPT = ROOT / "benchmarks" / "house.py"
WALKS = {
    "photograph to a label": "predict",
    "folder to a run": "from scratch",
    "checkpoint to a model": "load a timm .pth",
}


def files_of(title: str) -> list[str]:
    """The file that each item of a walk begins with, or names first."""
    section = re.split(r"^### ", PAGE, flags=re.MULTILINE)
    (text,) = [part for part in section if title in part.partition("\n")[0]]
    return [match[1] for match in re.finditer(r"^\d+\. [^`]*`([\w/]+\.py)`", text, re.MULTILINE)]


def test_the_picture_is_that_of_the_imports(tmp_path: Path) -> None:
    subprocess.run([warm.python(), SCRIPT, "--picture", tmp_path / "house.svg"], check=True)
    assert (tmp_path / "house.svg").read_text() == (ROOT / "docs" / "house.svg").read_text(), f"run {SCRIPT} --picture"


def test_every_room_is_named() -> None:
    rooms = {path.parent.name for path in (ROOT / "src" / "vitkit").glob("*/__init__.py")} - {"recipes"}
    table = PAGE.partition("## Rooms")[2].partition("## Walks")[0]
    assert {room for room in rooms if f"`{room}`" not in table} == set()


def in_house(program: str, *arguments: str | Path, cache: Path) -> str:
    """What a program prints that begins with `import house`, the script of the walks."""
    head = f"import sys\nsys.path.insert(0, {str(SCRIPT.parent)!r})\nimport house\nfrom pathlib import Path\n"
    done = subprocess.run(
        [warm.python(), "-c", head + program, *arguments],
        env=os.environ | {"XDG_CACHE_HOME": str(cache), "VITKIT_CACHE": str(cache / "vitkit")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("walks")
    in_house("house._prepare(Path(sys.argv[1]))", folder, cache=folder / "cache")
    return folder


@pytest.mark.parametrize("title", WALKS)
def test_a_walk_enters_the_files_in_this_order(title: str, place: Path, tmp_path: Path) -> None:
    expected = files_of(title)
    assert len(expected) >= 8
    program = "print(*dict.fromkeys(house.walk(sys.argv[1], Path(sys.argv[2])).calls))"
    entered = in_house(program, WALKS[title], place, cache=tmp_path).splitlines()[-1].split()
    assert [file for file in entered if file in expected] == expected
