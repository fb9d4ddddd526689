"""What one module and one registration add: the command line offers it by itself, and it works."""

import json
import subprocess
from pathlib import Path

import pytest
from PIL import Image

import runs
import warm
from refusals import refused
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.weights import inspect

_BACKEND = """
import torch
from vitkit.inference.backends.registry import Backend, register

class Toy:
    backend, precision, is_concurrent, plan = "toy", "float32", True, ""

    def __call__(self, images):
        return torch.tensor([0.0, 0, 9, 0, 0, 0, 0]).repeat(len(images), 1)

def from_model(model, precision):
    return Toy()

register(Backend("toy", "always says c", __name__, precision="float32"))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and an image."""
    folder = tmp_path_factory.mktemp("registration")
    Classifier(build(), tuple("abcdefg"), Preprocess(size=(12, 16))).save(folder / "model")
    Image.new("RGB", (20, 20), (10, 200, 30)).save(folder / "image.png")
    return folder


def vitkit(folder: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process that has imported the module `toys` before anything else of the package."""
    (folder / "toys.py").write_text(module, encoding="utf-8")
    code = (
        "import sys\nfor name in [name for name in sys.modules if name.partition('.')[0] == 'vitkit']:\n"
        "    del sys.modules[name]\n"
        f"import toys\nsys.argv = ['vitkit', *{arguments!r}]\n"
    )
    return subprocess.run(
        [warm.python(), "-c", code + "from vitkit.cli.app import main\nmain()\n"],
        cwd=folder, env=runs.environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_a_backend_is_one_module_and_one_row(place: Path) -> None:
    done = vitkit(place, _BACKEND, "predict", "model", "image.png", "--backend", "toy")
    assert (done.returncode, done.stderr) == (0, "1 image (0 unreadable), toy, float32\n")
    assert done.stdout.splitlines()[1].startswith("image.png,c,0.99")


_SOURCE = """
from vitkit.data.sources import SourceKind, register
from vitkit.data.table import table_of

def read(name, path, layout):
    rows = [line.split() for line in path.read_text().splitlines()]
    return table_of(name, path.parent, [(image, label, "test") for label, image in rows])

register(SourceKind("toy", "a list of toys", read, (".toys",)))
"""


def test_a_kind_of_source_is_one_module_and_one_row(place: Path) -> None:
    (place / "data.toys").write_text("c image.png\na image.png\n", encoding="utf-8")
    done = vitkit(place, _SOURCE, "eval", "model", "data.toys", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["images"] == 2


_SET = """
from PIL import Image
from vitkit.data.named import DataSet, register

def write(raw, folder):
    for name in ("ant", "bee"):
        (folder / name).mkdir()
        Image.new("RGB", (20, 20), name == "ant" and "red" or "blue").save(folder / name / "image.png")

register(DataSet("insects", 2, 2, write=write))
"""


def test_a_named_data_set_is_one_module_and_one_row(place: Path) -> None:
    done = vitkit(place, _SET, "doctor", "insects")
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout.startswith("insects: 2 images in 2 classes, ")


_CHECKPOINT = """
import numpy as np, torch
from vitkit.weights.formats.export import calibrated_tensors
from vitkit.weights.formats import CheckpointFormat, register
from vitkit.weights.layout import Layout, same

PREPROCESS = {"fit": "squash", "interpolation": "nearest", "mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)}

def recognise(checkpoint):
    if not all(name.startswith("toy/") for name in checkpoint.tensors):
        return None
    pieces = {name.removeprefix("toy/"): same(name) for name in checkpoint.tensors}
    return Layout(format="toy", pieces=pieces, fields={"heads": 4, "norm_eps": 1e-6}, preprocess=PREPROCESS,
                  is_preprocess_known=True, image_size=(12, 16))

def write(classifier, destination):
    with destination.open("wb") as file:
        np.savez(file, **{f"toy/{name}": tensor.numpy() for name, tensor in calibrated_tensors(classifier).items()})

register(CheckpointFormat("toy", "nobody's", __name__, __name__, (".box",), preprocess={"toymaker": "PREPROCESS"}))
"""


def test_a_checkpoint_format_is_one_module_and_one_row(place: Path) -> None:
    done = vitkit(place, _CHECKPOINT, "convert", "model", "model.box")
    assert done.returncode == 0, done.stderr
    assert "written and read back, every number the same: model.box" in done.stdout
    with refused("weights.architecture-unknown"):
        inspect(place / "model.box")  # here, where nobody registered it
    done = vitkit(place, _CHECKPOINT, "convert", "--help")
    assert "toymaker" in done.stdout
    assert "toy (nobody's)" in " ".join(done.stdout.replace("│", " ").split())
