"""The losses of small trainings by every method, step for step what they were when they were written down.

`PYTHONPATH=tests python tests/training/test_curves.py` writes tests/golden/curves.json anew. Processors round
differently, hence the tolerance; on one processor a change that leaves the order of operations leaves every digit.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import runs
from vitkit.training import probe, run, train
from vitkit.training.stages import fit

GOLDEN = Path(__file__).parents[1] / "golden" / "curves.json"
CURVES = ("step", "lr", "train_loss", "val_loss", "val_map")

CASES: dict[str, dict[str, Any]] = {
    "scratch": {},
    "sgd": {"optimizer": "sgd", "lr": 0.05, "clip_grad": 0.5, "schedule": "linear"},
    "adam, decay by layer, sampler": {"optimizer": "adam", "layer_decay": 0.7, "decay_all": True, "balance": "sampler"},
    "a rate for each epoch, averaged by steps": {"step_per": "epoch", "warmup": 0.3, "ema": 0.9, "balance": "none"},
    "accumulated, mixed": {"grad_accum": 2, "batch_size": 4, "mixup": 0.4, "cutmix": 1.0, "label_smoothing": 0.1},
    "what is dropped": {"dropout": 0.2, "attention_dropout": 0.1, "drop_path": 0.2, "patch_dropout": 0.5},
    "averaged by epochs": {"swa": 0.5, "swa_lr": 1e-4},
    "bfloat16": {"precision": "bfloat16"},
    "head first": {"weights": "START", "method": "full", "lp_ft": True, "lr": 1e-3},
    "lora": {"weights": "START", "method": "lora", "lora_rank": 2, "lr": 1e-2},
    "probe-sgd": {"weights": "START", "method": "probe-sgd", "lr": 1e-2},
    "soft teacher": {"teacher": "START", "distillation": "soft", "distill_alpha": 0.5},
    "hard teacher": {"teacher": "START", "distillation": "hard", "model": "deit_micro_distilled_patch8_16"},
    "several classes, mixed, weighed": {"data": "SEVERAL", "mixup": 0.5, "balance": "loss"},
}


class Places:
    """What the cases name, made below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, runs.unlike(folder / "data", (14, 8, 3))
        start = train(runs.quick(self.data, epochs=1, seed=7), folder / "start")
        self.named = {"START": str(start), "SEVERAL": str(runs.several(self.data))}


def curves(places: Places, name: str) -> list[dict[str, float]]:
    """Three epochs of three or four steps of a model of two layers."""
    fields = {field: places.named.get(str(value), value) for field, value in CASES[name].items()}
    size = None if "weights" in fields else runs.SIZE
    folder = train(runs.quick(places.data).replace(seed=3, model_fields=size, **fields), places.folder / name)
    return [{column: row[column] for column in CURVES if column in row} for row in runs.metrics(folder)]


def unseen(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the reports and pictures; and no head is fitted whose weights rounding moves by hundredths."""
    patch.setattr(run, "TRAINING", replace(run.TRAINING, conclude=()))
    patch.setattr(fit, "draw_classes", lambda *_: None)
    patch.setattr(fit, "draw_some", lambda *_: None)
    patch.setattr(probe, "PENALTIES", (1.0,))  # as those of the least one are, where the classes can be parted


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    with pytest.MonkeyPatch.context() as patch:
        unseen(patch)
        return Places(tmp_path_factory.mktemp("curves"))


@pytest.mark.parametrize("name", CASES)
def test_the_losses_are_what_they_were(places: Places, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    unseen(monkeypatch)
    golden = json.loads(GOLDEN.read_text())[name]
    found = curves(places, name)
    assert len(found) == len(golden)
    for own, then in zip(found, golden, strict=True):
        assert own == pytest.approx(then, rel=2e-3), name


if __name__ == "__main__":
    import tempfile

    unseen(pytest.MonkeyPatch())
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN
    with tempfile.TemporaryDirectory() as folder:
        made = Places(Path(folder))
        found = {name: curves(made, name) for name in CASES}
    target.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
