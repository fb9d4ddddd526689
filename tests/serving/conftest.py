"""One server for all tests that ask one, on a port of its own."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from PIL import Image

import photos as pictures
from tiny import build
from vitkit import Compute
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.serving import Server
from vitkit.serving.serve import serve

HOSTILE = '<script>alert("x")</script>'


def classifier(seed: int = 0, **fields: object) -> Classifier:
    names = ("a", "b", "c", "d", "e", "f", HOSTILE)
    return Classifier(build(seed, **fields), names, Preprocess(size=(12, 16)))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models `first`, `second` (another seed) and `several` (several classes an image), and photographs."""
    root = tmp_path_factory.mktemp("serving")
    classifier(0).save(root / "first")
    classifier(1).save(root / "second")
    several = classifier(2)
    several.thresholds = (0.5,) * 7
    several.save(root / "several")
    (root / "photos").mkdir()
    for i in range(9):
        pictures.noise(40 + 3 * i, 30, i).save(root / "photos" / f"{i}.{'jpg' if i % 2 else 'png'}")
    Image.new("I;16", (20, 20), 900).save(root / "photos" / "dark.png")
    return root


@pytest.fixture(scope="session")
def server(folder: Path) -> Iterator[Server]:
    """The models `first`, `second` and `several`."""
    named = [f"first={folder / 'first'}", folder / "second", folder / "several"]
    with serve(named, compute=Compute(backend="eager", precision="float32"), port=0, queue=40) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30) as own:
        yield own
