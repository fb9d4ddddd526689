"""What one module and one registration add: the command line offers it by itself, and it works."""

import json
import subprocess
from pathlib import Path

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


_SOURCE = """
from vitkit.data.sources import SourceKind, register
from vitkit.data.table import table_of

def read(name, path, layout):
    rows = [line.split() for line in path.read_text().splitlines()]
    return table_of(name, path.parent, [(image, label, "test") for label, image in rows])

register(SourceKind("toy", "a list of toys", read, (".toys",)))
"""


_SET = """
from PIL import Image
from vitkit.data.named import DataSet, register

def write(raw, folder):
    for name in ("ant", "bee"):
        (folder / name).mkdir()
        Image.new("RGB", (20, 20), name == "ant" and "red" or "blue").save(folder / name / "image.png")

register(DataSet("insects", 2, 2, write=write))
"""


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


# A process that has imported the modules before anything else of the package.
_PROGRAM = """
import contextlib, io, json, sys
for name in [name for name in sys.modules if name.partition('.')[0] == 'vitkit']:
    del sys.modules[name]
import toy_backend, toy_source, toy_set, toy_checkpoint
from vitkit.cli.app import main
done = []
for command in json.loads(sys.argv[1]):
    sys.argv, out, err = ["vitkit", *command.split()], io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            done.append((end.code or 0, out, err))
print(json.dumps([(code, out.getvalue(), err.getvalue()) for code, out, err in done]))
"""


def test_each_kind_of_addition_is_one_module_and_one_row(tmp_path: Path) -> None:
    Classifier(build(), tuple("abcdefg"), Preprocess(size=(12, 16))).save(tmp_path / "model")
    Image.new("RGB", (20, 20), (10, 200, 30)).save(tmp_path / "image.png")
    (tmp_path / "data.toys").write_text("c image.png\na image.png\n", encoding="utf-8")
    for name, text in {"backend": _BACKEND, "source": _SOURCE, "set": _SET, "checkpoint": _CHECKPOINT}.items():
        (tmp_path / f"toy_{name}.py").write_text(text, encoding="utf-8")
    commands = ["predict model image.png --backend toy", "eval model data.toys --json", "doctor insects"]
    commands += ["convert model model.box", "convert --help"]
    done = subprocess.run(
        [warm.python(), "-c", _PROGRAM, json.dumps(commands)],
        cwd=tmp_path, env=runs.environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    predicted, evaluated, examined, converted, helped = json.loads(done.stdout)
    assert (predicted[0], predicted[2]) == (0, "1 image (0 unreadable), toy, float32\n")
    assert predicted[1].splitlines()[1].startswith("image.png,c,0.99")
    assert evaluated[0] == 0 and json.loads(evaluated[1])["images"] == 2, evaluated
    assert examined[0] in (0, 1) and examined[1].startswith("insects: 2 images in 2 classes, "), examined
    assert "written and read back, every number the same: model.box" in converted[1], converted
    with refused("weights.architecture-unknown"):
        inspect(tmp_path / "model.box")  # here, where nobody registered it
    assert "toymaker" in helped[1] and "toy (nobody's)" in " ".join(helped[1].replace("│", " ").split())
