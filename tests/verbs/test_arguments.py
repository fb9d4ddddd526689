"""Public functions refuse arguments of another type in a line, and take what numpy and pathlib have."""

import inspect
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitkit
from photos import noise, save
from refusals import refused
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.errors import VitkitError

WRONG: list[Any] = [
    *(None, -1, float("nan"), "", "a\0b", b"x", [], [5], ["a", 5], {"a": 1}),
    *(object(), io.BytesIO(b"x"), np.zeros(3), int, "\udcff", 2**70),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    Classifier(build(), tuple("abcdefg"), Preprocess(size=(12, 16))).save(folder / "model")
    for label in "ab":
        for i in range(2):
            save(noise(20, 16, i), folder / "photos" / label / f"{i}.png")
    return folder


def defaults(place: Path) -> dict[str, dict[str, Any]]:
    model, photo = place / "model", place / "photos" / "a" / "0.png"
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


@pytest.mark.parametrize("name", defaults(Path()))
def test_it_answers_or_says_why_not(name: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    usual, function = defaults(place)[name], getattr(vitkit, name)
    if name in ("predict", "embed", "evaluate", "explain"):
        usual["model"] = vitkit.load(place / "model")
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "progress" or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
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
    ("call", "code", "named"),
    [
        (lambda _: vitkit.load(None), "text.value-wrong", "source"),  # type: ignore[arg-type]
        (lambda own: vitkit.predict("", own), "text.path-empty", "model"),
        (lambda own: vitkit.predict(own, own, top=True), "text.value-wrong", "top"),
        (lambda own: vitkit.predict(own, own, reject=0.5), "text.field-misplaced", "vitkit.Promises"),
        (lambda _: vitkit.train(vitkit.Datasets(5, class_names="ab")), "data.class-names-invalid", "class_names"),
        *(
            (lambda _, name=name: vitkit.Promises(**{name: 2}), "text.value-outside", name)
            for name in ("reject", "accuracy", "coverage", "unknown")
        ),
        (lambda _: vitkit.Recipe(epochs=0), "text.value-outside", "epochs"),
    ],
)
def test_what_is_refused_is_named(call: Any, code: str, named: str, place: Path) -> None:
    with refused(code, named):
        call(str(place / "photos"))


def test_numbers_of_numpy_and_paths_of_pathlib_are_taken(place: Path) -> None:
    class Own(os.PathLike[str]):
        def __fspath__(self) -> str:
            return str(place / "photos" / "a" / "0.png")

    compute, promises = vitkit.Compute(batch_size=np.uint8(4)), vitkit.Promises(reject=np.float32(0.0))
    found = vitkit.predict(place / "model", Own(), compute=compute, promises=promises, top=np.int64(2))
    assert len(found) == 1 and len(next(iter(found)).top) == 2


def test_a_wrong_type_is_a_type_error_and_a_wrong_value_is_not() -> None:
    for make in (lambda: vitkit.Recipe(epochs="x"), lambda: vitkit.load(5), lambda: vitkit.predict("a", "b", reject=1)):
        with pytest.raises(TypeError):
            make()
    with pytest.raises(VitkitError) as caught:
        vitkit.Recipe(epochs=0)
    assert not isinstance(caught.value, TypeError)
