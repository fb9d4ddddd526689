"""Data sets that have a name, written once into the cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from photos import folder
from vitkit.data import named
from vitkit.data.decode import decode
from vitkit.data.source import read_source


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_digits_are_the_1797_of_scikit_learn(cache: Path) -> None:
    table = read_source("digits")
    digits = load_digits()
    assert len(table) == 1797
    assert table.classes == tuple("0123456789")
    assert list(table.counts().values()) == np.bincount(digits.target).tolist()
    assert table.ignored == {}
    assert table.file(0).is_relative_to(cache)
    assert sorted(Path(path).stem for path in table.paths) == [f"{i:04d}" for i in range(1797)]
    for row in range(0, len(table), 13):
        i = int(table.file(row).stem)
        assert digits.target[i] == table.labels[row]
        with Image.open(table.file(row)) as stored:
            assert (stored.format, stored.mode, stored.size) == ("PNG", "L", (8, 8))
        expected = np.round(digits.images[i] * 255 / 16)
        for channel in range(3):
            np.testing.assert_array_equal(np.asarray(decode(table.file(row)))[..., channel], expected)


def test_a_set_is_written_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setitem(named.DATASETS, "pair", lambda root: calls.append(root) or folder(root, {"a": 1, "b": 1}))
    assert named.materialise("pair") == named.materialise("pair") == cache / "data" / "pair"
    assert len(calls) == 1
    assert (cache / "data" / "pair").stat().st_mode & 0o777 == 0o755, "others may read it"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_writing_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def interrupted(root: Path) -> None:
        folder(root, {"a": 1})
        raise error

    monkeypatch.setitem(named.DATASETS, "pair", interrupted)
    with pytest.raises(error):
        named.materialise("pair")
    assert list((cache / "data").iterdir()) == []


def test_whoever_comes_second_takes_what_the_first_has_written(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def meanwhile(root: Path) -> None:
        folder(root, {"a": 1, "b": 1})
        folder(cache / "data" / "pair", {"a": 1, "b": 1})

    monkeypatch.setitem(named.DATASETS, "pair", meanwhile)
    assert named.materialise("pair").is_dir()
    assert [path.name for path in (cache / "data").iterdir()] == ["pair"]


def test_a_folder_that_cannot_be_settled_is_an_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(named.DATASETS, "pair", lambda root: (cache / "data" / "pair").touch())
    with pytest.raises(OSError):
        named.materialise("pair")
    assert [path.name for path in (cache / "data").iterdir()] == ["pair"]


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VITKIT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert named.cache_folder() == Path("/home/somebody/.cache/vitkit")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert named.cache_folder() == Path("/xdg/vitkit")
    monkeypatch.setenv("VITKIT_CACHE", "/own")
    assert named.cache_folder() == Path("/own")
