"""`vitkit train --dry-run`: against a real run, and what it leaves behind."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import vitkit
from cli.conftest import vitkit as command
from refusals import refused
from vitkit.system import environment
from vitkit.training import Loop, bundled, paper_training, step_cost
from vitkit.training.published import is_of_paper

__all__ = ["command"]

QUICK: dict[str, Any] = {"epochs": 2, "max_images": 200, "batch_size": 32, "workers": 0}


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_is_told_is_what_a_run_does(command: Any, inside: Path) -> None:
    found = vitkit.dry_run("digits", vitkit.Recipe(**QUICK), price=3.0)
    assert list(inside.iterdir()) == []
    run = vitkit.train("digits", vitkit.Recipe(**QUICK), out=inside / "run")
    assert found.recipe == run.recipe
    assert (found.images, found.classes, found.steps) == (200, 10, run.rows()[-1]["step"])
    assert found.parameters == found.trained == sum(each.numel() for each in run.classifier.model.parameters())
    assert found.cost == pytest.approx(3.0 * found.seconds / 3600)
    assert found.peak_memory > 5 * 4 * found.parameters, "weights and a copy, gradients and two moments"
    assert found.flops == 400 * found.flops_per_image > 0
    assert repr(found).startswith("<dry_run: vit_micro_patch4_16, method scratch: ")
    flags = ("--epochs", "2", "--max-images", "200", "--workers", "0", "--json", "--out", "new")
    done = command("train", "digits", "--dry-run", *flags)
    keys = json.loads(done.out).keys()
    assert done.code == 0 and keys == found.to_dict().keys()
    assert keys >= {"data", "recipe", "parameters", "flops", "peak_memory", "seconds", "price", "cost", "notes"}
    assert [path.name for path in inside.iterdir()] == ["run"]


def test_a_step_that_does_not_fit_is_said(command: Any, inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(Loop, "loss_of", short)
    command("train", "digits", "--dry-run", "--workers", "0").refused("training.memory-short")
    assert list(inside.iterdir()) == []


def test_batches_of_a_step_share_its_memory(inside: Path) -> None:
    one, four = (vitkit.dry_run("digits", vitkit.Recipe(**QUICK, grad_accum=parts)) for parts in (1, 4))
    assert (one.images_in_step, four.images_in_step) == (32, 128)
    assert one.flops_per_image == four.flops_per_image
    gradients = 4 * one.parameters  # those of the second batch are added to those of the first
    assert one.peak_memory <= four.peak_memory <= one.peak_memory + 2 * gradients


@pytest.mark.parametrize(("parts", "in_step"), [(1, 32), (4, 33)])
def test_the_time_is_that_of_the_images_there_are(
    inside: Path, monkeypatch: pytest.MonkeyPatch, parts: int, in_step: int
) -> None:
    monkeypatch.setattr(step_cost, "_timed", lambda work: (1.0, work()))
    found = vitkit.dry_run("digits", vitkit.Recipe(**QUICK | {"max_images": 33}, grad_accum=parts))
    computed = 1 / 32 / min(parts, 2)  # one or two batches of 32 images take a second
    reading, checked = 1 / 32, 1 / 2
    assert (found.images, found.images_in_step, found.reading_per_image) == (33, in_step, reading)
    assert found.seconds_per_step == pytest.approx(in_step * computed)
    assert found.seconds == pytest.approx(
        found.epochs * (33 * (computed + reading) + found.val_images * (checked + reading))
    )


def test_a_long_step_is_estimated_from_a_few_images(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    larger = QUICK | {"image_size": 48}  # the activations need more memory than the optimiser
    measured = vitkit.dry_run("digits", vitkit.Recipe(**larger))
    monkeypatch.setattr(step_cost, "_LONG", 0.0)
    estimated = vitkit.dry_run("digits", vitkit.Recipe(**larger))
    assert estimated.images_in_step == measured.images_in_step
    assert estimated.peak_memory == pytest.approx(measured.peak_memory, rel=0.15)
    assert any("are estimated from steps with 2 and 4 images" in note for note in estimated.notes)


def test_a_step_too_large_for_the_machine_is_not_taken(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = vitkit.dry_run("digits", vitkit.Recipe(**QUICK)).peak_memory
    monkeypatch.setattr(step_cost, "available_memory", lambda: needed * 3 // 4)
    with refused("training.memory-short", "try batch_size"):
        vitkit.dry_run("digits", vitkit.Recipe(**QUICK | {"batch_size": 64}))
    monkeypatch.setattr(step_cost, "available_memory", lambda: 10_000_000)
    with refused("training.memory-short", "weights, gradients and moments"):
        vitkit.dry_run("digits", vitkit.Recipe(**QUICK))


def test_the_errors_are_those_of_a_training_and_of_flags_that_belong_together(command: Any, inside: Path) -> None:
    (inside / "full").mkdir()
    (inside / "full" / "file").touch()
    command("train", "nowhere", "--dry-run").refused("data.source-missing", "nowhere")
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
