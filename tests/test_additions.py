"""How many files an addition edits: each kind is added to a copy of the package, and tried there.

The numbers are those of the table in CONTRIBUTING.md. An addition is new files and replacements of text in existing
ones; the text that is replaced must occur exactly once.
"""

# ruff: noqa: E501, ISC004  # most of it is the text of other files

import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import runs
import warm

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "vitkit"


@dataclass(frozen=True)
class Addition:
    """Something that a contributor may add.

    Attributes:
        new: the text of new files, by their paths in the package.
        edits: the text that is replaced, and what replaces it, by file.
        trial: a program that uses it, with `data` the path of a folder of photographs and `place` an empty folder.
    """

    trial: str
    new: dict[str, str] = field(default_factory=dict)
    edits: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    def apply(self, package: Path) -> None:
        """Add it to a copy of the package."""
        for name, text in self.new.items():
            assert not (package / name).exists()
            (package / name).write_text(text, encoding="utf-8")
        for name, edits in self.edits.items():
            text = (package / name).read_text(encoding="utf-8")
            for old, new in edits:
                assert text.count(old) == 1, f"{name} has {text.count(old)} times {old!r}"
                text = text.replace(old, new)
            (package / name).write_text(text, encoding="utf-8")


ATTENTION = Addition(
    new={
        "model/qk_norm.py": '''
import torch
from torch import Tensor, nn

from vitkit.model.config import ViTConfig
from vitkit.model.layers import Dropout


class QKNormAttention(nn.Module):
    """Attention with normalised queries and keys (arXiv 2302.05442, sec. 2)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads, self.scale, self.fused = config.heads, config.head_size**-0.5, True
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.q_norm, self.k_norm = nn.LayerNorm(config.head_size), nn.LayerNorm(config.head_size)
        self.attn_drop, self.proj_drop = Dropout(config.attention_dropout), Dropout(config.dropout)

    def forward(self, x: Tensor, queries: int | None = None, relative: object = None) -> Tensor:
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        q, k = self.q_norm(q[:, :, :queries]), self.k_norm(k)
        x = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=self.scale)
        return self.proj_drop(self.proj(x.transpose(1, 2).flatten(2)))
'''
    },
    edits={
        "model/config.py": [
            ('Literal["softmax", "axial", "window"]', 'Literal["softmax", "axial", "window", "qk-norm"]')
        ],
        "model/vit.py": [
            (
                "        self.ls1, self.ls2 = layer_scale(config), layer_scale(config)\n",
                '        if config.attention == "qk-norm":\n'
                "            from vitkit.model.qk_norm import QKNormAttention\n\n"
                "            self.attn = QKNormAttention(config)\n"
                "        self.ls1, self.ls2 = layer_scale(config), layer_scale(config)\n",
            )
        ],
    },
    trial="""
import torch

own = classifier("abc", layers=2, attention="qk-norm")
model = own.model.eval()
x = torch.rand(2, 17, 24)
attention = model.blocks[0].attn
q, k, v = attention.qkv(x).view(2, 17, 3, 2, 12).permute(2, 0, 3, 1, 4)
weights = (attention.q_norm(q) @ attention.k_norm(k).transpose(-2, -1) * 12**-0.5).softmax(dim=-1)
torch.testing.assert_close(attention(x), attention.proj((weights @ v).transpose(1, 2).flatten(2)))
own.save(place / "model")
again = vitkit.load(place / "model")
images = torch.rand(2, 3, 32, 32)
assert torch.equal(again.model(images), model(images))
assert vitkit.train(data, quick(size={"attention": "qk-norm"}), out=place / "run").folder.is_dir()
for to, suffix in (("onnx", "onnx"), ("openvino", "xml")):  # they convert an optimised copy, which does not know it
    assert "attention='qk-norm'" in refusal(vitkit.export, place / "model", to, place / f"model.{suffix}")
photo = str(next(data.rglob("*.png")))
told = refusal(vitkit.explain, place / "model", photo, method="rollout", out=place / "maps")
assert "attention='qk-norm'" in told, told
""",
)

LOSS = Addition(
    edits={
        "training/recipe.py": [
            (
                "    label_smoothing: Annotated",
                "    focal: Annotated[float, Between(0, 10)] = 0.0\n"
                '    """Gamma of the focal loss; 0 is cross-entropy."""\n'
                "    label_smoothing: Annotated",
            )
        ],
        "training/losses.py": [
            (
                "        if self.teacher_logits is None:\n",
                "        if recipe.focal:  # arXiv 1708.02002, eq. 5\n"
                "            loss = torch.stack([_cross_entropy(logits, targets, 0.0) for logits in heads]).mean()\n"
                "            return (1 - (-loss).exp()) ** recipe.focal * loss\n"
                "        if self.teacher_logits is None:\n",
            )
        ],
    },
    trial="""
import csv

def first_loss(**fields):
    out = place / f"run-{len(list(place.iterdir()))}"
    vitkit.train(data, quick(label_smoothing=0.0, **fields), out=out)
    rows = list(csv.DictReader((out / "metrics.csv").open()))
    return next(float(row["train_loss"]) for row in rows if row.get("train_loss"))

plain, focal = first_loss(), first_loss(focal=2.0)
assert 0 < focal < 0.9 * plain, (plain, focal)
""",
)

AUGMENTATION = Addition(
    edits={
        "training/recipe.py": [
            (
                "    random_erasing: Annotated",
                "    grayscale: Annotated[float, Between(0, 1)] = 0.0\n"
                '    """Probability that a picture loses its colours."""\n'
                "    random_erasing: Annotated",
            )
        ],
        "data/augment.py": [
            ("    random_erasing: float = 0.0\n", "    grayscale: float = 0.0\n    random_erasing: float = 0.0\n"),
            (
                "        if self.rand_augment:\n",
                "        if self.grayscale:\n            steps.append(v2.RandomGrayscale(self.grayscale))\n"
                "        if self.rand_augment:\n",
            ),
        ],
    },
    trial="""
import numpy as np
from PIL import Image
from vitkit.data.preprocess import Preprocess
from vitkit.training.recipe import Recipe
from vitkit.training.start import augment_of

picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8))
recipe = Recipe(grayscale=1.0, crop_scale=(0, 0), hflip=False, color_jitter=0.0)
grey = np.array(augment_of(recipe).build(Preprocess(size=(32, 32)))(picture))
assert (grey[..., 0] == grey[..., 1]).all() and (grey[..., 0] == grey[..., 2]).all() and grey.std() > 0
vitkit.train(data, quick(grayscale=0.5), out=place / "run")
assert "grayscale = 0.5" in (place / "run" / "recipe.toml").read_text()
""",
)

METRIC = Addition(
    new={
        "evaluation/matthews.py": """
import math

import numpy as np

from vitkit.evaluation.metrics import Evaluation


def matthews(evaluation: Evaluation) -> float:
    counts = np.zeros((len(evaluation.classes),) * 2)
    np.add.at(counts, (evaluation.labels, evaluation.predicted), 1)
    true, predicted, n = counts.sum(axis=1), counts.sum(axis=0), counts.sum()
    below = math.sqrt((n**2 - predicted @ predicted) * (n**2 - true @ true))
    return float((n * np.trace(counts) - true @ predicted) / below) if below else math.nan
"""
    },
    edits={
        "evaluation/registry.py": [
            (
                '    Metric("ece", ',
                '    Metric("matthews", "Matthews correlation", module="vitkit.evaluation.matthews", tasks=("single",)),\n'
                '    Metric("ece", ',
            )
        ]
    },
    trial="""
import csv, json
from sklearn.metrics import matthews_corrcoef

own = classifier(("blue", "green", "red"), side=16, hidden_size=12, heads=1, mlp_size=24)
for parameter in own.model.parameters():
    parameter.data.normal_()  # so that it predicts more than one class
own.save(place / "model")
vitkit.evaluate(place / "model", data=data, out=place / "out")
figures = json.loads((place / "out" / "evaluation.json").read_text())
rows = list(csv.DictReader((place / "out" / "predictions.csv").open()))
expected = matthews_corrcoef([row["label"] for row in rows], [row["predicted"] for row in rows])
assert expected != 0 and abs(figures["matthews"] - expected) < 1e-9, (figures["matthews"], expected)
assert "Matthews correlation" in (place / "out" / "report.html").read_text()
""",
)

EXPLANATION = Addition(
    new={
        "explanation/saliency.py": """
import torch
from torch import Tensor

from vitkit.explanation.class_maps import find_targets
from vitkit.model.vit import VisionTransformer


def saliency(model: VisionTransformer, images: Tensor, target: object = None) -> Tensor:
    images = images.detach().clone().requires_grad_()
    with torch.enable_grad():
        logits = model(images)
        chosen = find_targets(model.config, target, logits)
        logits.gather(1, chosen[:, None]).sum().backward()
    height, width = model.config.grid
    pixels = images.grad.abs().amax(dim=1, keepdim=True)
    return torch.nn.functional.adaptive_avg_pool2d(pixels, (height, width))[:, 0]
"""
    },
    edits={
        "explanation/methods.py": [
            (
                "for _row in (\n",
                'for _row in (\n    Method("saliency", "The gradient of the class with respect to the pixels.",\n'
                '           f"{_HOME}.saliency", "saliency", is_class_specific=True),\n',
            )
        ]
    },
    trial="""
from vitkit.webapp import look

classifier("abc").save(place / "model")
photo = str(next(data.rglob("*.png")))
vitkit.explain(place / "model", photo, method="saliency", out=place / "maps")
assert any("saliency" in path.name for path in (place / "maps").rglob("*")), list((place / "maps").rglob("*"))
assert "saliency" in look._MAP_METHODS
""",
)

SOURCE_OF_DATA = Addition(
    new={
        "data/npz.py": '''
"""Images in a .npz file: an array (n, height, width, 3) of bytes for each class."""

import io
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from vitkit.data.table import table_of


@dataclass(frozen=True)
class Arrays:
    path: Path

    @property
    def name(self):
        return str(self.path)

    def keys(self):
        with np.load(self.path) as stored:
            return {f"{name}/{i}.png" for name in stored.files for i in range(len(stored[name]))}

    def open(self, key):
        name, _, number = key.removesuffix(".png").partition("/")
        with np.load(self.path) as stored:
            if name not in stored.files:
                raise FileNotFoundError(key)
            pixels = stored[name][int(number)]
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "png")
        file.seek(0)
        return file

    def stamp(self, key):
        return f"{self.path.stat().st_mtime_ns} {key}".encode()


def read_arrays(name, path, layout):
    storage = Arrays(path.resolve())
    rows = [(key, key.partition("/")[0], None) for key in sorted(storage.keys())]
    return replace(table_of(name, path.resolve(), rows), storage=storage)
'''
    },
    edits={
        "data/sources.py": [
            ("from vitkit.data import archive, shards\n", "from vitkit.data import archive, npz, shards\n"),
            (
                '    SourceKind("list", "a CSV", ',
                '    SourceKind("arrays", "a .npz", npz.read_arrays, (".npz",), storage=npz.Arrays),\n'
                '    SourceKind("list", "a CSV", ',
            ),
        ]
    },
    trial="""
import numpy as np

rng = np.random.default_rng(0)
arrays = {name: rng.integers(0, 256, (12, 24, 24, 3), dtype=np.uint8) // 2 + 64 * i for i, name in enumerate("ab")}
np.savez(place / "data.npz", **arrays)
vitkit.doctor(place / "data.npz")
vitkit.train(place / "data.npz", quick(), out=place / "run")
assert vitkit.evaluate(place / "run").to_dict()["accuracy"] is not None
vitkit.predict(place / "run", place / "data.npz" / "a" / "3.png")
vitkit.explain(place / "run", str(place / "data.npz" / "a" / "3.png"), method="rollout", out=place / "maps")
""",
)

VERB = Addition(
    new={
        "verbs/count.py": '''
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitkit.text.arguments import check_arguments
from vitkit.verbs.result import Result


@dataclass(frozen=True, repr=False)
class Count(Result):
    classes: dict[str, int]

    def lines(self) -> list[str]:
        return [f"{name}: {count}" for name, count in self.classes.items()]

    def to_dict(self) -> dict[str, Any]:
        return dict(self.classes)


@check_arguments
def count(data: str | Path) -> Count:
    """Count the images of each class.

    Args:
        data: a folder, CSV file or named data set.
    """
    from vitkit.data.sources import read_source

    table = read_source(data)
    return Count({name: table.labels.count(i) for i, name in enumerate(table.classes)})
'''
    },
    edits={
        "__init__.py": [
            (
                "    from vitkit.verbs.convert import convert as convert\n",
                "    from vitkit.verbs.convert import convert as convert\n    from vitkit.verbs.count import Count as Count, count as count\n",
            )
        ]
    },
    trial="""
import contextlib, io, json
from vitkit.cli.app import main

expected = {folder.name: len(list(folder.iterdir())) for folder in sorted(data.iterdir())}
assert vitkit.count(data).to_dict() == expected
printed = io.StringIO()
sys.argv = ["vitkit", "count", str(data), "--json"]
with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
    main()
assert json.loads(printed.getvalue()) == expected
""",
)

EXPORT = Addition(
    new={
        "exporting/torchscript.py": """
import torch

from vitkit.errors import VitkitError
from vitkit.inference.backends.graph_runner import GraphRunner
from vitkit.model.build import build


class ScriptRunner(GraphRunner):
    backend, precision, batch = "eager", "float32", None

    def __init__(self, program, outputs):
        self._program, self.outputs = program, outputs

    def _run(self, images):
        with torch.inference_mode():
            return {"logits": self._program(torch.from_numpy(images)).numpy()}


def convert(model, storage):
    copy = build(model.config)
    copy.load_state_dict(model.state_dict())
    copy.eval()
    example = torch.zeros(storage.batch or 2, model.config.in_channels, *model.config.image_size)
    with torch.inference_mode():
        return torch.jit.trace(copy, example, check_trace=False), model.config.num_classes


def save(graph, path, card):
    program, classes = graph
    torch.jit.save(program, str(path), _extra_files={"card": card, "classes": str(classes)})


def open_file(path, precision):
    extra = {"card": "", "classes": ""}
    program = torch.jit.load(str(path), _extra_files=extra)
    return ScriptRunner(program, int(extra["classes"])), extra["card"].decode()
"""
    },
    edits={
        "exporting/formats.py": [
            (
                "for _row in (\n",
                'for _row in (\n    Format("torchscript", "TorchScript", ".torchscript", "eager", f"{_HOME}.torchscript"),\n',
            )
        ]
    },
    trial="""
import warnings
warnings.filterwarnings("ignore")

classifier("abc").save(place / "model")
vitkit.export(place / "model", "torchscript", place / "model.torchscript")
photo = str(next(data.rglob("*.png")))
plain, exported = (
    vitkit.predict(model, photo, compute=vitkit.Compute(precision="float32")).to_dict()["predictions"][0]
    for model in (place / "model", place / "model.torchscript")
)
assert plain["label"] == exported["label"]
assert 0 < plain["confidence"] and abs(plain["confidence"] - exported["confidence"]) < 1e-5, (plain, exported)
""",
)

ADDITIONS = {  # and how many existing files each edits, and how many files it touches with its new ones
    "attention": (ATTENTION, 2, 3),
    "loss": (LOSS, 2, 2),
    "export": (EXPORT, 1, 2),
    "metric": (METRIC, 1, 2),
    "augmentation": (AUGMENTATION, 2, 2),
    "explanation": (EXPLANATION, 1, 2),
    "source": (SOURCE_OF_DATA, 1, 2),
    "verb": (VERB, 1, 2),
}


_HEAD = """
import sys
from pathlib import Path
for name in [name for name in sys.modules if name.partition(".")[0] in ("vitkit", "blank")]:  # it has begun with ours
    del sys.modules[name]
sys.path[:0] = sys.argv[1:3]
import blank, vitkit
assert vitkit.__file__.startswith(sys.argv[1])
blank.blank(setattr)
data, root = map(Path, sys.argv[3:])


def quick(**fields):
    size = {"layers": 1, "hidden_size": 24, "heads": 2, "mlp_size": 48, **fields.pop("size", {})}
    asked = {"weights": "none", "epochs": 1, "workers": 0, "logger": "none", **fields}
    return vitkit.Recipe(model="vit_tiny_patch16_32", model_fields=size, **asked)


def classifier(classes, side=32, **fields):
    import torch
    from vitkit.model.build import build

    torch.manual_seed(1)
    size = {"layers": 1, "hidden_size": 24, "heads": 2, "mlp_size": 48, **fields}
    config = vitkit.ViTConfig(image_size=(side, side), patch_size=(8, 8), num_classes=len(classes), **size)
    return vitkit.Classifier(build(config), tuple(classes), vitkit.Preprocess(size=(side, side)))


def refusal(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except vitkit.VitkitError as error:
        return str(error)
    raise AssertionError("it was not refused")
"""


@pytest.mark.parametrize("name", ["all", *(pytest.param(name, marks=pytest.mark.accept) for name in ADDITIONS)])
def test_an_addition_edits_few_files_and_works(name: str, tmp_path: Path) -> None:
    copy, program = tmp_path / "src" / "vitkit", _HEAD
    shutil.copytree(SOURCE, copy)  # with its bytecode, which holds for what is not edited
    for own, (addition, edited, touched) in ADDITIONS.items():
        if name in (own, "all"):
            assert (len(addition.edits), len(addition.edits) + len(addition.new)) == (edited, touched)
            addition.apply(copy)
            (tmp_path / own).mkdir()
            program += f"\nplace = root / {own!r}\n{addition.trial}"
    folders = (copy.parent, Path(__file__).parent, runs.shared_photos(), tmp_path)
    done = subprocess.run(
        [warm.python(), "-c", program, *map(str, folders)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_contributors_read_these_numbers() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| [^|]*<!-- (\w+) --> \| [^|]* \| (\d+) \|$", text, re.MULTILINE))
    assert rows == {name: str(touched) for name, (_, _, touched) in ADDITIONS.items()}
