"""Which epoch's weights are kept, when training stops, and what is written down, without training anything."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.errors import Interrupted
from vitkit.system import Deferral
from vitkit.training import Interruption, Metrics, Recipe, RunWriter, TrainingState, read_metrics
from vitkit.weights import load

# val_acc is best in epoch 1, val_loss in epoch 2, and epoch 3 is the last.
DISAGREEING = [
    {"val_loss": loss, "val_acc": accuracy} for loss, accuracy in ((0.9, 0.5), (0.7, 0.8), (0.6, 0.7), (0.8, 0.6))
]


class Story:
    """A run whose metrics are made up; the weights of epoch n are all n."""

    def __init__(self, folder: Path, **fields: Any) -> None:
        recipe = Recipe(epochs=100, **fields)
        model = tiny.build(num_classes=2)
        self.classifier = Classifier(model, ("cat", "dog"), Preprocess(size=model.config.image_size))
        self.lines: list[str] = []
        self.state = TrainingState(model, recipe, 100)
        self.writer = RunWriter(folder, self.classifier, recipe, self.lines.append)

    def tell(self, epochs: list[dict[str, float]]) -> "Story":
        for metrics in epochs:
            if self.state.should_stop:
                break
            with torch.no_grad():
                for parameter in self.classifier.model.parameters():
                    parameter.fill_(self.state.epoch)
            self.state.metrics = {"train_loss": 1.0, "lr": 1e-3, **metrics}
            self.state.step += 3
            self.writer.on_epoch_end(self.state)
            self.state.epoch += 1
        return self


def kept_in(folder: Path) -> int:
    """The epoch whose weights are in the model folder."""
    classifier = load(folder)
    epoch = int(classifier.model.head.bias[0].item())
    assert classifier.provenance["metrics"]["epoch"] == epoch
    return epoch


TIE, DIVERGED = {"val_loss": 1.0, "val_acc": 0.5}, {"val_loss": float("nan"), "val_acc": 1.0}


@pytest.mark.parametrize(
    ("fields", "epochs", "kept"),
    [
        ({"monitor": "val_acc"}, DISAGREEING, 1),
        ({"monitor": "val_loss"}, DISAGREEING, 2),
        ({"keep": "last"}, DISAGREEING, 3),
        ({}, [TIE] * 3, 2),  # the later epoch
        ({}, [{}] * 3, 2),  # no validation images
        ({"monitor": "val_loss"}, [DIVERGED, *DISAGREEING[:2], DIVERGED], 2),
        ({"monitor": "val_acc"}, [DIVERGED, *DISAGREEING[:2], DIVERGED], 2),
    ],
)
def test_the_best_epoch_is_kept(tmp_path: Path, fields: dict[str, Any], epochs: list[Any], kept: int) -> None:
    Story(tmp_path, **fields).tell(epochs)
    assert kept_in(tmp_path) == kept


def test_keep_every_keeps_each_epoch_once_and_the_best_as_the_model(tmp_path: Path) -> None:
    Story(tmp_path, keep="every").tell([{"val_loss": 0.5, "val_acc": 0.1}])  # done again with another outcome
    Story(tmp_path, keep="every").tell(DISAGREEING)
    folders = sorted(path for path in (tmp_path / "checkpoints").iterdir() if path.is_dir())
    assert kept_in(tmp_path) == 1
    assert [kept_in(folder) for folder in folders] == [0, 1, 2, 3]
    assert folders[1].name == "epoch-0001-val_loss=0.7000-val_acc=0.8000"
    (tmp_path / "without_val").mkdir()
    Story(tmp_path / "without_val", keep="every").tell([{}])
    assert (tmp_path / "without_val" / "checkpoints" / "epoch-0000").is_dir()


def test_while_every_epoch_diverges_nothing_is_kept(tmp_path: Path) -> None:
    story = Story(tmp_path).tell([{"val_loss": float("inf"), "val_acc": 0.5}] * 2)
    assert not story.writer.has_saved_model
    assert not (tmp_path / "model.safetensors").exists()


def test_what_is_kept_is_the_average_once_there_is_one(tmp_path: Path) -> None:
    story = Story(tmp_path, ema=0.5).tell(DISAGREEING[:1])
    story.state.average.update(story.classifier.model)  # epoch 0's weights, while the model's are now epoch 1's
    story.tell(DISAGREEING[1:2])
    classifier = load(tmp_path)
    assert classifier.provenance["metrics"]["epoch"] == 1
    assert (classifier.model.head.bias == 0).all()


def test_once_epochs_are_averaged_the_average_is_kept_though_an_earlier_epoch_was_better(tmp_path: Path) -> None:
    story = Story(tmp_path, swa=0.02).tell([{"val_loss": 0.1, "val_acc": 0.99}])
    story.state.epoch = 98
    story.tell(DISAGREEING[:2])
    assert load(tmp_path).provenance["metrics"]["epoch"] == 99


@pytest.mark.parametrize(("patience", "epochs"), [(1, 3), (2, 4), (3, 4), (None, 4)])
def test_patience_counts_epochs_since_the_best(tmp_path: Path, patience: int | None, epochs: int) -> None:
    story = Story(tmp_path, patience=patience).tell(DISAGREEING)
    assert story.state.epoch == epochs
    assert story.state.should_stop == (patience in (1, 2))


def test_patience_and_the_best_survive_a_resume(tmp_path: Path) -> None:
    first, second = Story(tmp_path, patience=2).tell(DISAGREEING[:3]), Story(tmp_path, patience=2)
    second.writer.load_state_dict(first.writer.state_dict())
    second.state.epoch = 3
    assert second.tell(DISAGREEING[3:]).state.should_stop
    assert kept_in(tmp_path) == 1


def test_the_time_budget_stops_the_epoch(tmp_path: Path) -> None:
    story = Story(tmp_path, time="60s").tell(DISAGREEING[:1])
    assert not story.state.should_stop
    story.state.clock.spent = 61.0
    assert story.tell(DISAGREEING[1:]).state.epoch == 2


def test_each_epoch_is_a_line_said_and_a_row_and_the_best_in_the_provenance(tmp_path: Path) -> None:
    said = Story(tmp_path).tell(DISAGREEING).lines
    assert [line.endswith("*") for line in said] == [True, True, False, False]
    assert "val_loss 0.7000  val_acc 0.8000" in said[1]
    assert load(tmp_path).provenance["metrics"] == {"epoch": 1, "train_loss": 1.0, "lr": 1e-3, **DISAGREEING[1]}
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert lines[0] == "epoch,step,train_loss,train_acc,val_loss,val_acc,lr,seconds,waiting"
    assert lines[1].startswith("0,3,1.0,,0.9,0.5,") and lines[4].startswith("3,12,1.0,,0.8,0.6,")
    Metrics(tmp_path / "metrics.csv").truncate(2)
    assert (tmp_path / "metrics.csv").read_text().splitlines() == lines[:3]


def test_missing_values_and_files_are_left_out(tmp_path: Path) -> None:
    Metrics(tmp_path / "metrics.csv").truncate(0)
    assert read_metrics(tmp_path / "metrics.csv") == [] and not (tmp_path / "metrics.csv").exists()
    Metrics(tmp_path / "metrics.csv").append({"epoch": 0, "step": 3, "train_loss": 0.5})
    assert read_metrics(tmp_path / "metrics.csv") == [{"epoch": 0, "step": 3, "train_loss": 0.5}]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_after_the_step_and_a_second_one_at_once(number: int) -> None:
    stop = Deferral()
    interruption = Interruption(stop)
    before = signal.getsignal(number)
    with pytest.raises(Interrupted) as caught, stop:
        interruption.after_step()
        os.kill(os.getpid(), number)
        for _ in range(2):
            with pytest.raises(Interrupted) as noted:
                interruption.after_step()
            assert noted.value.signal_number == number
        os.kill(os.getpid(), number)
        pytest.fail("the second was not answered at once")
    assert caught.value.signal_number == number
    assert signal.getsignal(number) is before
