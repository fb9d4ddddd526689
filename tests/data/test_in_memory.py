"""Pictures in memory are answered as files of them are; what is no picture is refused by its type."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from photos import noise, save, smooth
from refusals import refused
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess

CLASSES = tuple("abcdefg")
FILES = Path("/proc/self/fd")  # that are open


@pytest.fixture(scope="module")
def asked() -> Classifier:
    return Classifier(build(), CLASSES, Preprocess(size=(12, 16), crop_pct=0.9))


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(smooth(40, 30), tmp_path_factory.mktemp("photos") / "photo.png")


def pixels() -> np.ndarray[Any, Any]:
    return np.asarray(smooth(40, 30))


def as_tensor() -> torch.Tensor:
    return torch.from_numpy(pixels().copy()).permute(2, 0, 1)


SAME: dict[str, Callable[[], Any]] = {
    "PIL": lambda: smooth(40, 30),
    "array": pixels,
    "floats": lambda: pixels().astype(np.float32) / 255,
    "opacity": lambda: np.asarray(smooth(40, 30).convert("RGBA")),
    "float tensor": lambda: as_tensor() / 255,
    "one of four axes": lambda: pixels()[None],
    "generator": lambda: (own for own in [as_tensor()]),
    "with a gradient": lambda: (as_tensor() / 255).requires_grad_(),
}


@pytest.mark.parametrize("make", SAME.values(), ids=SAME)
def test_a_picture_in_memory_is_answered_as_its_file(asked: Classifier, photo: Path, make: Callable[[], Any]) -> None:
    (expected,) = asked.predict(photo)
    (found,) = asked.predict(make())
    assert (found.path, found.ranking) == ("picture 0", expected.ranking)
    (row,) = vitkit.predict(asked, make(), compute=vitkit.Compute(backend="eager", precision="float32"))
    assert (row.path, row.label, row.confidence) == ("picture 0", expected.label, expected.confidence)
    (vector,) = vitkit.embed(asked, make()).features
    assert np.array_equal(vector, vitkit.embed(asked, photo).features[0])


def test_it_is_explained_and_read_as_its_file(asked: Classifier, photo: Path) -> None:
    expected = asked.explain(photo, "gradient")
    for picture in (pixels(), as_tensor(), smooth(40, 30), as_tensor() / 255):
        assert torch.equal(asked.read(picture), asked.read(photo))
        found = asked.explain(picture, "gradient")
        assert found.path is None and found.ranking == expected.ranking
        assert np.array_equal(found.maps["gradient"], expected.maps["gradient"])
    for source in (5, None, ["a"], {"a": 1}, io.BytesIO(b"x")):
        with refused("text.type-wrong"):
            asked.explain(source)  # type: ignore[arg-type]
    (row,) = asked.predict(photo)
    for paths in (np.array([str(photo)]), (path for path in [photo])):
        assert next(asked.predict(paths)).ranking == row.ranking


def test_grey_is_grey(asked: Classifier) -> None:
    grey = smooth(40, 30).convert("L")
    (expected,) = asked.predict(grey)
    for same in (np.asarray(grey)[:, :, None], torch.tensor(np.asarray(grey)[None]), np.asarray(grey) / 255):
        assert next(asked.predict(same)).ranking == expected.ranking


def test_several_are_a_row_each_in_order(asked: Classifier) -> None:
    images = [noise(40, 30, seed) for seed in range(20)]
    expected = [p.ranking for p in asked.predict(images)]
    batch = np.stack([np.asarray(image) for image in images])
    for several in (batch, torch.from_numpy(batch).permute(0, 3, 1, 2), list(batch), tuple(images)):
        rows = list(vitkit.predict(asked, several, compute=vitkit.Compute(backend="eager", precision="float32"), top=7))
        assert [row.path for row in rows] == [f"picture {i}" for i in range(20)]
        assert [row.top for row in rows] == [tuple(own) for own in expected]


def test_rows_of_pictures_are_written_and_read_again(asked: Classifier, tmp_path: Path) -> None:
    found = vitkit.predict(asked, [pixels(), smooth(30, 30)], out=tmp_path / "answers.csv")
    assert [row.path for row in found] == ["picture 0", "picture 1"] and found.is_whole
    with refused("verbs.option-conflict", "pictures in memory"):
        vitkit.predict(asked, pixels(), resume=True, out=tmp_path / "answers.csv")


def test_a_picture_that_cannot_be_read_is_a_row_with_its_reason(asked: Classifier, photo: Path) -> None:
    whole = io.BytesIO()
    noise(40, 30).save(whole, "png")
    cut = Image.open(io.BytesIO(whole.getvalue()[:1000]))
    closed = Image.open(photo)
    closed.close()
    rows = list(asked.predict([cut, closed, Image.new("RGB", (0, 4)), smooth(9, 9)]))
    assert [row.error is None for row in rows] == [False, False, False, True]
    assert rows[0].error == "truncated" and rows[2].error == "it has no pixels"


REFUSED: dict[str, tuple[Callable[[], Any], ...]] = {
    "data.source-type": (*(lambda: b"\x89PNG", lambda: 5, lambda: None, lambda: {"a": 1}, lambda: [b"x"]),),
    "text.path-empty": (lambda: "",),
    "text.path-invalid": (lambda: ["a\0b"],),
    "data.image-shape": (
        *(lambda: np.zeros(4, np.uint8), lambda: np.zeros((3, 8, 8), np.uint8), lambda: np.zeros((8, 8, 2), np.uint8)),
        lambda: np.zeros((0, 8, 3), np.uint8),
        lambda: torch.zeros(8, 8, 3, dtype=torch.uint8),
    ),
    "data.image-values": (
        *(lambda: np.zeros((8, 8), np.uint16), lambda: torch.zeros(1, 8, 8, dtype=torch.bool)),
        *(lambda: torch.full((3, 8, 8), -1.5), lambda: np.full((8, 8, 3), 200.0), lambda: np.full((8, 8, 3), np.nan)),
    ),
    "verbs.pictures-in-memory": (lambda: ["photo.png", np.zeros((8, 8, 3), np.uint8)],),
}


@pytest.mark.parametrize(("code", "make"), [(code, make) for code, makes in REFUSED.items() for make in makes])
def test_what_is_no_picture_is_refused(asked: Classifier, code: str, make: Callable[[], Any]) -> None:
    opened = len(list(FILES.iterdir())) if FILES.is_dir() else 0
    for ask in (vitkit.predict, vitkit.embed):
        with refused(code):
            ask(asked, make())
    if not code.startswith("verbs"):
        with refused(code):
            list(asked.predict(make()))
    assert not FILES.is_dir() or len(list(FILES.iterdir())) <= opened
