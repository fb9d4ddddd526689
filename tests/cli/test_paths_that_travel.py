"""What people mail says nothing of where it was made: no path from the root of a disk, and no home folder."""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import runs

STAY = {"request.json", "recipe.toml", "split.json", "log.txt"}  # what a run needs to go on where it was made


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose name must not be in what is written below it."""
    return tmp_path_factory.mktemp("jane-doe")


@pytest.fixture(scope="module")
def photos(secret: Path) -> Path:
    return runs.photos(secret / "photos", images=6)


def contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file below a folder, and what is in those that are archives."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.name, path.read_bytes()
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    for name in archive.namelist():
                        yield f"{path.name}:{name}", archive.read(name)


def telling(folder: Path, secret: Path) -> list[str]:
    words = [secret.name.encode(), str(Path.home()).encode() + b"/"]
    return [
        f"{name}: ...{content[max(0, content.index(word) - 60) : content.index(word) + 60]!r}"
        for name, content in contents(folder)
        for word in words
        if name not in STAY and word in content
    ]


@pytest.fixture(scope="module")
def made(secret: Path, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from another run's weights, by absolute paths."""
    from vitkit.training import Recipe, train

    first, second = secret / "first", secret / "second"
    train(runs.quick(photos, epochs=1), first)
    fields = {"data": str(photos), "weights": str(first), "teacher": str(first), "method": "full", "epochs": 1}
    train(Recipe(**fields, seed=0, precision="float32", workers=0), second)
    return second


def test_a_run_says_what_it_was_made_from_and_nothing_of_where(made: Path, secret: Path) -> None:
    assert telling(made, secret) == telling(made.parent / "first", secret) == []
    provenance = json.loads((made / "model.json").read_text())["provenance"]
    assert provenance["data"] == provenance["recipe"]["data"] == "photos"
    assert provenance["weights"]["source"] == provenance["recipe"]["weights"] == "first"
    assert provenance["teacher"]["name"] == "first"


@pytest.mark.parametrize(
    "command",
    [
        "eval MODEL DATA -o OUT/other",
        "doctor DATA -o OUT/page.html",
        "explain MODEL DATA/red/img1.png -o OUT/explained",
        pytest.param("export MODEL -o OUT/model.pt2", marks=pytest.mark.accept),
        pytest.param("export MODEL -o OUT/model.onnx", marks=pytest.mark.accept),
        "export MODEL -o OUT/model.xml",
        "convert MODEL OUT/hf --to hf",
    ],
)
def test_what_commands_write_says_nothing_of_where_it_was_made(
    vitkit: Any, made: Path, photos: Path, secret: Path, tmp_path: Path, command: str
) -> None:
    for name, path in {"MODEL": made, "DATA": photos, "OUT": tmp_path}.items():
        command = command.replace(name, str(path))
    outcome = vitkit(*command.split())
    assert outcome.code == 0, outcome.err
    assert list(contents(tmp_path))
    assert telling(tmp_path, secret) == []
    assert str(tmp_path).encode() not in b"".join(content for _, content in contents(tmp_path))
