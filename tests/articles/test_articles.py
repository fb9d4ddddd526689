"""docs/articles.md: every line of its tables, and scripts such as those in articles with vitkit's model in them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import runs
import vitkit
import warm

PAGE = Path(__file__).parents[2] / "docs" / "articles.md"
SCRIPTS = Path(__file__).parent / "scripts"
_ROW = re.compile(r"^\| (?P<what>[^|]+) \| `(?P<line>[^`]+)` \|$", re.MULTILINE)
_SCRIPT = re.compile(r"^\| (?P<name>\w+\.py): [^|]+ \| (?P<lines>\d+) \| `[^`]+` \| (?P<ours>\d+) \|$", re.MULTILINE)
ROWS = {match["what"]: match["line"] for match in _ROW.finditer(PAGE.read_text(encoding="utf-8"))}
SLOW = {  # run by `make accept`
    *("images per second", "days on a TPU for the paper's training", "parameters and computation of each"),
    *("accuracy by the amount of data", "the same budget of computation", "class token or mean (Figure 9)"),
    *("parameters and multiply-accumulates of each layer", "the same training for several models"),
    *("positions: none, 1-D, 2-D, relative (Table 8)", "cross-validation", "finds the learning rate"),
}
_TRAINED = ("--epochs", "1", "--workers", "0", "--batch-size", "8", "--precision", "float32", "--image-size", "32")
_COMPARED = ("--workers", "0", "--image-size", "16")


class Pictures:
    """A data set as torchvision's are."""

    classes = ("blue", "green", "red")

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        pixels = np.random.default_rng(index).integers(0, 60, (16, 16, 3), dtype=np.uint8)
        pixels[..., 2 - index % 3] += 150
        return Image.fromarray(pixels), index % 3


class Callback:
    def on_epoch_end(self, state: Any) -> None:
        assert state.metrics


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the lines name: photographs, weights, a run."""
    place = tmp_path_factory.mktemp("article")
    runs.photos(place / "flower_photos", images=10)
    shutil.copy(place / "flower_photos" / "red" / "img1.png", place / "tulip.jpg")
    torch.manual_seed(0)
    model = tiny_model(21_843)
    nn.init.normal_(model.head.weight, std=0.02)
    torch.save(model.state_dict(), place / "vit_base_patch16_224_in21k.pth")
    torch.save(tiny_model().state_dict(), place / "model.pth")
    vitkit.train(place / "flower_photos", **runs.quick_fields(epochs=1), out=place / "runs/flowers", say=lambda _: None)
    vitkit.embed(place / "runs/flowers", place / "flower_photos", out=place / "features.npz")
    return place


def tiny_model(num_classes: int = 3) -> Any:
    return vitkit.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=1, num_classes=num_classes
    )


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=pytest.mark.accept if what in SLOW else ()) for what in ROWS]
)
def test_a_line_of_the_page_runs(place: Path, what: str) -> None:
    line = ROWS[what]
    if not line.startswith("vitkit "):
        names = {
            "torch": torch,
            "nn": nn,
            "vitkit": vitkit,
            "Path": Path,
            "model": tiny_model(),
            "images": torch.randn(2, 3, 32, 32),
            "dataset": Pictures(),
            "callback": Callback(),
            "network": nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3)),
        }
        exec(compile(line, what, "exec"), names)
        return
    words = shlex.split(line)
    if words[1] == "train" and "--resume" not in words:
        added = list(_TRAINED)
        for flag in set(added[::2]) & set(words):
            del added[(i := added.index(flag)) : i + 2]
        if "probe" in words:
            del added[(i := added.index("--epochs")) : i + 2]
        if "none" in words:
            added[added.index("--image-size") + 1] = "16"
        words += added
    elif words[1] in ("compare", "lab"):
        words += _COMPARED
    done = subprocess.run([warm.vitkit(), *words[1:]], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"$ {shlex.join(words)}\n{done.stdout}{done.stderr}"


def test_the_page_has_its_five_tables() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if re.match(r"\| (?!what|script|---)", line)]
    assert len(rows) == len(ROWS) + len(_SCRIPT.findall(page)), "a row that is not run"
    assert page.count("| what the article does | here |") == 5


def test_lines_are_counted_as_the_page_says() -> None:
    rows = {match["name"]: match for match in _SCRIPT.finditer(PAGE.read_text(encoding="utf-8"))}
    assert rows.keys() == {script.name for script in SCRIPTS.glob("*.py")}
    for name, row in rows.items():
        lines = [line for line in (SCRIPTS / name).read_text(encoding="utf-8").splitlines() if line.strip()]
        assert int(row["lines"]) == len(lines), name
        assert int(row["ours"]) * 5 <= len(lines), f"{name}: more than a fifth"


# --- Scripts with vitkit's model ---------------------------------------------------------------------


def run_script(name: str, place: Path, *arguments: str) -> str:
    command = [sys.executable, str(SCRIPTS / name), *arguments]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, env=runs.environment(), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_script_that_trains_and_the_one_that_predicts(place: Path) -> None:
    flags = ["--data-path", "flower_photos", "--num_classes", "3", "--lr", "0.01", "--epochs", "2"]
    out = run_script(
        "train_flowers.py", place, *flags, "--weights", "vit_base_patch16_224_in21k.pth", "--freeze-layers"
    )
    assert out.count("training head.") == 2
    assert "missing_keys=['head.weight', 'head.bias'], unexpected_keys=[]" in out
    before, after = (torch.load(place / "weights" / f"model-{i}.pth") for i in (0, 1))
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"head.weight", "head.bias"}
    said = run_script("predict_flower.py", place, "tulip.jpg", "weights/model-1.pth")
    assert re.findall(r"class: (\w+)", said) == ["blue", "green", "red"]
    (place / "weights" / "class_indices.json").write_text((place / "class_indices.json").read_text())
    classifier = vitkit.load(
        place / "weights" / "model-1.pth", heads=1, preprocess="resize=32,crop=32,mean=0.5,std=0.5"
    )
    (answer,) = classifier.predict([place / "tulip.jpg"])
    likely = dict(
        zip(re.findall(r"class: (\w+)", said), map(float, re.findall(r"prob: ([\d.e-]+)", said)), strict=True)
    )
    assert answer.confidence == pytest.approx(likely[answer.label], abs=5e-3)


@pytest.mark.filterwarnings("ignore")
def test_the_lightning_module(place: Path) -> None:
    pytest.importorskip("lightning")
    assert "test_acc" in run_script("lightning_images.py", place, "flower_photos")


def test_rollout_by_hooks_is_vitkits(place: Path) -> None:
    from vitkit.explanation import rollout

    run_script("attention_rollout.py", place, "runs/flowers", "tulip.jpg", "mask.png")
    classifier = vitkit.load(place / "runs/flowers")
    with Image.open(place / "tulip.jpg") as photograph, Image.open(place / "mask.png") as mask:
        assert mask.size == photograph.size
        image = torch.from_numpy(classifier.preprocess(photograph.convert("RGB")))[None]
    ours = rollout(classifier.model, image)[0]
    theirs = torch.from_numpy(np.load(place / "mask.png.npy"))
    torch.testing.assert_close(ours / ours.sum(), theirs / theirs.sum(), rtol=1e-4, atol=1e-5)


def test_the_loop_that_compares(place: Path) -> None:
    lines = run_script("compare_models.py", place, "flower_photos").splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        [name, part] for name in ("ViT", "hybrid", "ResNet-18") for part in ("0.5", "1.0")
    ]


def test_timms_model_is_trained_by_vitkit(place: Path) -> None:
    """The other way round: an article's model in vitkit's training."""
    import timm

    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2, "num_classes": 3}
    theirs = timm.models.vision_transformer.VisionTransformer(**sizes)
    left_out = ("model", "model_fields", "weights")
    fields = {name: value for name, value in runs.quick_fields().items() if name not in left_out}
    run = vitkit.train(
        place / "flower_photos", model=theirs, image_size=16, **fields, out=place / "runs/timm", say=lambda _: None
    )
    trained = vitkit.load(run.folder).model.network
    assert type(trained) is type(theirs)
    assert any(not torch.equal(tensor, theirs.state_dict()[name]) for name, tensor in trained.state_dict().items())
