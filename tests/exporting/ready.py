"""A file of one tiny model in each format, exported once for all tests that only need a file."""

from pathlib import Path

import photos
from once import once
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.exporting import Pictures, export


def plain(seed: int = 0) -> Classifier:
    model = build(seed, layers=1, position="sincos_2d")
    return Classifier(model, tuple("abcdefg"), Preprocess(size=(12, 16)), temperature=1.5)


def exported(suffix: str) -> Path:
    """The file `model` with this suffix, of `plain()`, which tests may read but not change."""

    def make(place: Path) -> None:
        place.mkdir()
        export(plain(), place / f"model{suffix}", Pictures("noise", tuple(photos.noise(seed=i) for i in range(3))))

    return once(f"exported{suffix}", make) / f"model{suffix}"
