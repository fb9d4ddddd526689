"""How many files an addition edits: kinds of them are added to a copy of the package, and tried there.

The numbers are those of the table in CONTRIBUTING.md. An addition is new files and replacements of text in existing
ones; the text that is replaced must occur exactly once.
"""

# ruff: noqa: E501, ISC004  # most of it is the text of other files

import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import runs
import warm

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "vitkit"


@dataclass(frozen=True)
class Addition:
    """A program that uses it (`data`: photographs, `place`: an empty folder), and by file: new texts, replacements."""

    trial: str
    new: dict[str, str] = field(default_factory=dict)
    edits: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    def apply(self, package: Path) -> None:
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

ADDITIONS = {  # and how many existing files each edits, and how many files it touches with its new ones
    "attention": (ATTENTION, 2, 3),
    "loss": (LOSS, 2, 2),
    "metric": (METRIC, 1, 2),
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


def test_additions_edit_few_files_and_work(tmp_path: Path) -> None:
    copy, program = tmp_path / "src" / "vitkit", _HEAD
    shutil.copytree(SOURCE, copy)  # with its bytecode, which holds for what is not edited
    for name, (addition, edited, touched) in ADDITIONS.items():
        assert (len(addition.edits), len(addition.edits) + len(addition.new)) == (edited, touched)
        addition.apply(copy)
        (tmp_path / name).mkdir()
        program += f"\nplace = root / {name!r}\n{addition.trial}"
    folders = (copy.parent, Path(__file__).parent, runs.shared_photos(), tmp_path)
    done = subprocess.run(
        [warm.python(), "-c", program, *map(str, folders)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_contributors_read_these_numbers() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| [^|]*<!-- (\w+) --> \| [^|]* \| (\d+) \|$", text, re.MULTILINE))
    assert rows == {name: str(touched) for name, (_, _, touched) in ADDITIONS.items()}
