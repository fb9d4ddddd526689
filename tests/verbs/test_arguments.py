"""Public functions refuse arguments of another type in a line, and take what numpy and pathlib have."""

import inspect
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitkit
from photos import noise, save
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.errors import VitkitError

WRONG: list[Any] = [
    *(None, 5, -1, 3.5, float("nan"), "", "a\0b", b"x", bytearray(b"x"), [], [5], [None], ["a", 5], {}, {"a": 1}),
    *(object(), io.BytesIO(b"x"), np.zeros(3), torch.zeros(3, 4, 4), int, (1, 2), {1, 2}, "\udcff", 2**70),
]
_NOT_ASKED = {"progress"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    Classifier(build(), tuple("abcdefg"), Preprocess(size=(12, 16))).save(folder / "model")
    for label in "ab":
        for i in range(2):
            save(noise(20, 16, i), folder / "photos" / label / f"{i}.png")
    return folder


def defaults(place: Path) -> dict[str, dict[str, Any]]:
    model, photo = vitkit.load(place / "model"), place / "photos" / "a" / "0.png"
    return {
        "load": {"source": place / "model"},
        "predict": {"model": model, "sources": photo},
        "embed": {"model": model, "sources": photo},
        "evaluate": {"model": model, "data": place / "photos"},
        "explain": {"model": model, "sources": photo, "out": place / "why", "force": True},
        "info": {"model": place / "model"},
        "doctor": {"data": place / "photos"},
        "models": {},
        "convert": {"source": place / "model", "destination": place / "c.npz", "force": True},
        "create_model": {"name": "vit_micro_patch8_16"},
        "list_models": {},
        "zero_shot": {"source": place / "model", "classes": ["a", "b"]},
    }


@pytest.mark.parametrize(
    "name",
    [
        *("load", "predict", "embed", "evaluate", "explain", "info", "doctor", "models", "convert", "create_model"),
        *("list_models", "zero_shot"),
    ],
)
def test_it_answers_or_says_why_not(name: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    usual, function = defaults(place)[name], getattr(vitkit, name)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in _NOT_ASKED or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        for wrong in WRONG:
            try:
                function(**{**usual, parameter.name: wrong})
            except VitkitError as error:
                assert len(str(error).splitlines()) <= 2
            except OSError:
                pass
    assert {path.name for path in tmp_path.iterdir()} <= {"\udcff"}, "which a folder may be called"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda _: vitkit.load(""), r'source is empty \(""\): pass a path \("\." is the current folder\)'),
        (lambda _: vitkit.load(None), "source must be text or a path, not None"),  # type: ignore[arg-type]
        (lambda own: vitkit.predict("", own), "model is empty"),
        (lambda own: vitkit.predict(b"x", own), "model must be text, a path or a Classifier, not bytes"),  # type: ignore[arg-type]
        (lambda own: vitkit.predict(own, own, top=True), "top must be a whole number, not True"),
        (lambda _: vitkit.Promises(reject="x"), "reject must be a finite number, not 'x'"),
        (lambda own: vitkit.predict(own, own, out=""), "out is empty"),
        (lambda _: vitkit.Names(templates="a {}"), "templates must be texts, not 'a {}'"),
        (lambda own: vitkit.train(""), "data is empty"),
        (
            lambda own: vitkit.train(vitkit.Datasets(5, class_names="ab")),
            "class_names must be a list of names, in the order of the labels, not 'ab'",
        ),
    ],
)
def test_what_is_refused_is_named(call: Any, said: str, place: Path) -> None:
    with pytest.raises(VitkitError, match=said):
        call(str(place / "photos"))


def test_numbers_of_numpy_and_paths_of_pathlib_are_taken(place: Path) -> None:
    class Own(os.PathLike[str]):
        def __fspath__(self) -> str:
            return str(place / "photos" / "a" / "0.png")

    compute, promises = vitkit.Compute(batch_size=np.uint8(4)), vitkit.Promises(reject=np.float32(0.0))
    found = vitkit.predict(place / "model", Own(), compute=compute, promises=promises, top=np.int64(2))
    assert len(found) == 1 and len(next(iter(found)).top) == 2


def test_a_wrong_type_is_a_type_error_and_a_wrong_value_is_not() -> None:
    for make in (lambda: vitkit.Recipe(epochs="x"), lambda: vitkit.Compute(batch_size=1.5), lambda: vitkit.load(5)):
        with pytest.raises(TypeError):
            make()
    with pytest.raises(TypeError, match=r"reject is a field of vitkit.Promises: pass promises="):
        vitkit.predict("model", "photos", reject=0.5)
    for fields in ({"epochs": 0}, {"method": "x"}, {"epoch": 1}, {"weights": ""}):
        with pytest.raises(VitkitError) as caught:
            vitkit.Recipe(**fields)
        assert not isinstance(caught.value, TypeError)


def test_a_promise_is_a_fraction() -> None:
    for name in ("reject", "accuracy", "coverage", "unknown"):
        with pytest.raises(VitkitError, match=f"{name} must be between 0 and 1, not 2"):
            vitkit.Promises(**{name: 2})
