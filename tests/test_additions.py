"""How many files an addition edits: an attention is added to a copy of the package, and tried there."""

import re
import shutil
import subprocess
from pathlib import Path

import runs
import warm

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "vitkit"
_MODULE = '''
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
_EDITS = {  # what is replaced, and by what
    "model/config.py": (
        'Literal["softmax", "axial", "window"]',
        'Literal["softmax", "axial", "window", "qk-norm"]',
    ),
    "model/vit.py": (
        "        self.ls1, self.ls2 = layer_scale(config)",
        """        if config.attention == "qk-norm":
            from vitkit.model.qk_norm import QKNormAttention

            self.attn = QKNormAttention(config)
        self.ls1, self.ls2 = layer_scale(config)""",
    ),
}
_TRIAL = """
import sys
from pathlib import Path
for name in [name for name in sys.modules if name.partition(".")[0] in ("vitkit", "blank")]:  # it has begun with ours
    del sys.modules[name]
sys.path[:0] = sys.argv[1:3]
import blank, torch, vitkit
from vitkit.model.build import build

assert vitkit.__file__.startswith(sys.argv[1])
blank.blank(setattr)
data, place = map(Path, sys.argv[3:])
torch.manual_seed(1)
size = {"layers": 2, "hidden_size": 24, "heads": 2, "mlp_size": 48, "attention": "qk-norm"}
model = build(vitkit.ViTConfig(image_size=(32, 32), patch_size=(8, 8), num_classes=3, **size))
own = vitkit.Classifier(model, ("a", "b", "c"), vitkit.Preprocess(size=(32, 32)))
x = torch.rand(2, 17, 24)
attention = model.blocks[0].attn
q, k, v = attention.qkv(x).view(2, 17, 3, 2, 12).permute(2, 0, 3, 1, 4)
weights = (attention.q_norm(q) @ attention.k_norm(k).transpose(-2, -1) * 12**-0.5).softmax(dim=-1)
torch.testing.assert_close(attention(x), attention.proj((weights @ v).transpose(1, 2).flatten(2)))
own.save(place / "model")
again = vitkit.load(place / "model")
images = torch.rand(2, 3, 32, 32)
assert torch.equal(again.model(images), model(images))
recipe = {"weights": "none", "epochs": 1, "workers": 0, "logger": "none"}
recipe = vitkit.Recipe(model="vit_tiny_patch16_32", model_fields=size, **recipe)
assert vitkit.train(data, recipe, out=place / "run").folder.is_dir()


def refusal(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except vitkit.VitkitError as error:
        return str(error)
    raise AssertionError("it was not refused")


for to, suffix in (("onnx", "onnx"), ("openvino", "xml")):  # they convert an optimised copy, which does not know it
    assert "attention='qk-norm'" in refusal(vitkit.export, place / "model", to, place / f"model.{suffix}")
photo = str(next(data.rglob("*.png")))
told = refusal(vitkit.explain, place / "model", photo, method="rollout", out=place / "maps")
assert "attention='qk-norm'" in told, told
"""


def test_an_attention_edits_as_few_files_as_contributors_read_and_works_or_is_refused(tmp_path: Path) -> None:
    package = tmp_path / "src" / "vitkit"
    shutil.copytree(SOURCE, package)  # with its bytecode, which holds for what is not edited
    (package / "model" / "qk_norm.py").write_text(_MODULE, encoding="utf-8")
    for name, (old, new) in _EDITS.items():
        text = (package / name).read_text(encoding="utf-8")
        assert text.count(old) == 1, name
        (package / name).write_text(text.replace(old, new), encoding="utf-8")
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| an attention variant .* \| {1 + len(_EDITS)} \|$", guide, re.MULTILINE)
    folders = (package.parent, Path(__file__).parent, runs.shared_photos(), tmp_path)
    done = subprocess.run(
        [warm.python(), "-c", _TRIAL, *map(str, folders)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
