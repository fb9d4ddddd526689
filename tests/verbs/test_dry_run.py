"""`vitkit train --dry-run`: against a real run, and what it leaves behind."""

import json
from pathlib import Path
from typing import Any

import pytest

import runs
import vitkit
from cli.conftest import vitkit as command
from refusals import refused
from vitkit.system import environment
from vitkit.training import bundled, paper_training, step_cost
from vitkit.training.published import is_of_paper
from vitkit.verbs import TrainingRun
from vitkit.verbs.result import Result

__all__ = ["command"]

LARGE: dict[str, Any] = {"image_size": 48}  # the activations need more memory than the optimiser


def dry_run(**fields: Any) -> Result:
    return vitkit.dry_run(runs.shared_photos(), vitkit.Recipe(**runs.quick_fields() | fields), price=3.0)


@pytest.fixture(scope="module")
def told() -> Result:
    """Of the run that all tests share."""
    return dry_run()


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_is_told_is_what_a_run_does(command: Any, inside: Path, told: Result) -> None:
    run = TrainingRun(runs.shared_run())
    assert told.recipe == run.recipe
    assert (told.images, told.classes, told.steps) == (27, 3, run.rows()[-1]["step"])
    assert told.parameters == told.trained == sum(each.numel() for each in run.classifier.model.parameters())
    assert told.cost == pytest.approx(3.0 * told.seconds / 3600)
    assert told.peak_memory > 5 * 4 * told.parameters, "weights and a copy, gradients and two moments"
    assert told.flops == 81 * told.flops_per_image > 0
    assert repr(told).startswith("<dry_run: vit_micro_patch8_16 ") and "method scratch: " in repr(told)
    done = command("train", runs.shared_photos(), "--dry-run", *runs.FLAGS, "--json", "--out", "new")
    keys = json.loads(done.out).keys()
    assert done.code == 0 and keys == told.to_dict().keys()
    assert keys >= {"data", "recipe", "parameters", "flops", "peak_memory", "seconds", "price", "cost", "notes"}
    assert list(inside.iterdir()) == []


def test_batches_of_a_step_share_its_memory(told: Result) -> None:
    three = dry_run(grad_accum=3)
    assert (told.images_in_step, three.images_in_step) == (8, 24)
    assert told.flops_per_image == three.flops_per_image
    gradients = 4 * told.parameters  # those of the second batch are added to those of the first
    assert told.peak_memory <= three.peak_memory <= told.peak_memory + 2 * gradients


def test_the_time_is_that_of_the_images_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_cost, "_timed", lambda work: (1.0, work()))
    found = dry_run(grad_accum=4)
    computed, reading, checked = 1 / 16, 1 / 8, 1 / 2  # two batches of 8 images take a second
    assert (found.images, found.images_in_step, found.reading_per_image) == (27, 27, reading)
    assert found.seconds_per_step == pytest.approx(27 * computed)
    assert found.seconds == pytest.approx(
        found.epochs * (27 * (computed + reading) + found.val_images * (checked + reading))
    )


def test_a_long_step_is_estimated_from_a_few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = dry_run(**LARGE)
    monkeypatch.setattr(step_cost, "_LONG", 0.0)
    estimated = dry_run(**LARGE)
    assert estimated.images_in_step == measured.images_in_step
    assert estimated.peak_memory == pytest.approx(measured.peak_memory, rel=0.15)
    assert any("are estimated from steps with 2 and 4 images" in note for note in estimated.notes)


def test_a_step_too_large_for_the_machine_is_not_taken(monkeypatch: pytest.MonkeyPatch, told: Result) -> None:
    for free, named in ((25, "try batch_size"), (15, "weights, gradients and moments")):  # bytes for a parameter
        monkeypatch.setattr(step_cost, "available_memory", lambda free=free: free * told.parameters)
        with refused("training.memory-short", named):
            dry_run(**LARGE)


def test_the_errors_are_those_of_a_training_and_of_flags_that_belong_together(command: Any, inside: Path) -> None:
    (inside / "full").mkdir()
    (inside / "full" / "file").touch()
    command("train", "digits", "--dry-run", "--out", "full").refused("training.out-not-empty", "full")
    command("train", "digits", "--price", "2").refused("cli.option-missing", "--dry-run")
    command("train", "--dry-run", "--resume", "runs/x").refused("cli.option-conflict", "--resume")


def test_a_recipe_of_the_paper_is_measured_on_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in bundled():
        if is_of_paper(name):
            training = paper_training(vitkit.Recipe.load(name))
            assert training.config.num_classes == training.corpus.classes and training.steps > 0
    monkeypatch.setattr(environment, "best_precision", lambda _: "float32")
    small = {"model_fields": {"layers": 1, "hidden_size": 16, "heads": 2, "mlp_size": 16}}
    found = vitkit.dry_run(
        recipe=vitkit.Recipe.load("paper-vit-b16-imagenet").replace(batch_size=4, device="cpu", **small)
    )
    assert (found.images, found.classes) == (1_281_167, 1000)
    assert any("noise instead of the 1,281,167 images" in note for note in found.notes)
    assert found.precision == found.recipe.precision == "float32"
    assert any("bfloat16 far more slowly" in note for note in found.notes)
