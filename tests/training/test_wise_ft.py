"""Weights between the start and the end of a fine-tuning: the ends to the bit, a choice by validation, and no luck."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import runs
import vitkit as package
from vitkit.data import read_source
from vitkit.errors import Interrupted, VitkitError
from vitkit.evaluation import Evaluation, evaluate
from vitkit.training import ALPHAS, interpolate, mix_with_start, resume, train
from vitkit.weights import load


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights that know other photographs of the same colours, and noisy photographs to fine-tune them on."""
    root = tmp_path_factory.mktemp("wise")
    train(runs.quick(runs.photos(root / "others", seed=1), epochs=2), root / "source", say=lambda _: None)
    runs.photos(root / "photos", images=24, noise=90)
    return root


def fine_tuned(place: Path, out: Path, **more: Any) -> list[str]:
    said: list[str] = []
    fields = {
        "data": str(place / "photos"),
        "weights": str(place / "source"),
        "wise_ft": True,
        **runs.FINE_TUNING,
        **more,
    }
    train(fields, out, say=said.append)
    return said


@pytest.fixture(scope="module")
def run(place: Path) -> tuple[Path, list[str]]:
    return place / "run", fine_tuned(place, place / "run")


def test_the_ends_of_the_line_are_the_ends_to_the_bit() -> None:
    torch.manual_seed(0)
    for kind in (torch.float32, torch.bfloat16, torch.float64):
        start, end = ({"a": (torch.randn(50, 7) * 10.0 ** torch.randint(-6, 6, (50, 7))).to(kind)} for _ in range(2))
        assert torch.equal(interpolate(start, end, 0.0)["a"], start["a"])
        assert torch.equal(interpolate(start, end, 1.0)["a"], end["a"])
    start, end = (
        {"a": torch.tensor([1.0, -2.0]), "n": torch.tensor(3)},
        {"a": torch.tensor([3.0, 2.0]), "n": torch.tensor(5)},
    )
    mixed = interpolate(start, end, 0.25)
    assert torch.equal(mixed["a"], torch.tensor([1.5, -1.0])) and mixed["n"] == 5


def test_the_start_of_a_run_is_the_backbone_of_its_weights_with_a_fitted_head(place: Path, run: Any) -> None:
    folder, _ = run
    start, source, end = load_file(folder / "start.safetensors"), runs.weights(place / "source"), runs.weights(folder)
    assert start.keys() == end.keys()
    for name, tensor in start.items():
        assert torch.equal(tensor, source[name]) != name.startswith("head"), name
    assert start["head.weight"].abs().max() > 0
    assert any(not torch.equal(tensor, end[name]) for name, tensor in start.items() if name.startswith("blocks"))
    for alpha, expected in ((0.0, start), (1.0, end)):
        mixed = interpolate(start, end, alpha)
        assert all(torch.equal(mixed[name], tensor) for name, tensor in expected.items())


def test_what_was_tried_stands_in_the_log_the_figures_and_the_report(run: Any) -> None:
    folder, said = run
    entry = json.loads((folder / "evaluation.json").read_text())["wise_ft"]
    assert load(folder).provenance["wise_ft"] == entry
    assert [row["alpha"] for row in entry["tried"]] == list(ALPHAS)
    assert entry["images"] == 18 and entry["start"] == "fitted head" and entry["best"] in ALPHAS
    (line,) = [line for line in said if line.startswith("wise-ft: ")]
    assert "18 validation images" in line
    assert "start (fitted head)" in (folder / "report.html").read_text()
    on_validation = package.evaluate(folder, split="val").figures
    assert "mix with the start by accuracy" in on_validation["chosen_on"]
    assert on_validation["wise_ft"] == entry
    held_out = load(folder).held_out
    assert held_out is not None and "mix with the start by accuracy" in held_out.held_out.chosen


def test_without_the_flag_nothing_is_kept_or_tried(place: Path, run: Any, tmp_path: Path) -> None:
    said = fine_tuned(place, tmp_path / "plain", wise_ft=False)
    assert not (tmp_path / "plain" / "start.safetensors").exists()
    assert not any("wise-ft" in line for line in said)
    assert "wise_ft" not in json.loads((tmp_path / "plain" / "evaluation.json").read_text())
    folder, _ = run
    if json.loads((folder / "evaluation.json").read_text())["wise_ft"]["alpha"] == 1:
        runs.assert_same_weights(tmp_path / "plain", folder)


def test_a_mix_that_wins_becomes_the_model_once(place: Path, run: Any, tmp_path: Path) -> None:
    folder = runs.copy_of(run[0], tmp_path / "spoilt")
    classifier, table = load(folder), read_source(place / "photos")
    del classifier.provenance["wise_ft"]
    start = {name: tensor.clone() for name, tensor in load_file(folder / "start.safetensors").items()}
    end = {name: -tensor if name.startswith("head") else tensor for name, tensor in start.items()}  # all wrong
    classifier.model.load_state_dict(end)
    said: list[str] = []
    mix_with_start(folder, classifier, lambda item: evaluate(item, table, "all"), said.append)
    entry = load(folder).provenance["wise_ft"]
    assert entry["alpha"] == entry["best"] < 0.5 and "which becomes the model" in said[0]
    assert entry["tried"][0]["gain"]["interval_95"][0] > 0
    expected = interpolate(start, end, entry["alpha"])
    assert all(torch.equal(tensor, expected[name]) for name, tensor in runs.weights(folder).items())
    again = load(folder)
    mix_with_start(folder, again, lambda item: evaluate(item, table, "all"), said.append)
    assert len(said) == 1
    assert all(torch.equal(tensor, expected[name]) for name, tensor in runs.weights(folder).items())


def test_where_nothing_can_be_learned_no_mix_wins(place: Path, run: Any, tmp_path: Path) -> None:
    """Of 60 sets of shuffled labels, some mix wins in two or fewer; each by itself would win in more."""
    folder = runs.copy_of(run[0], tmp_path / "shuffled")
    table, rng, wins, times = read_source(place / "photos"), np.random.default_rng(0), 0, 60
    classifier = load(folder)
    known: dict[bytes, Evaluation] = {}

    def outcome(item: Any) -> Evaluation:
        key = item.model.head.weight.detach().numpy().tobytes()
        if key not in known:
            known[key] = evaluate(item, table, "all")
        return known[key]

    for _ in range(times):
        labels = rng.permutation(outcome(classifier).labels)
        fresh = load(run[0])
        del fresh.provenance["wise_ft"]

        def judge(item: Any, labels: Any = labels) -> Evaluation:
            return replace(outcome(item), labels=labels)

        mix_with_start(folder, fresh, judge, lambda _: None)
        wins += fresh.provenance["wise_ft"]["alpha"] != 1
    assert wins <= 2


@pytest.mark.parametrize("method", ["full", "lora"])
def test_an_interrupted_run_ends_as_a_whole_one(place: Path, tmp_path: Path, method: str) -> None:
    class Stop:
        def on_epoch_end(self, state: Any) -> None:
            if state.epoch == 0:
                signal.raise_signal(signal.SIGINT)

    fields = {
        "data": str(place / "photos"),
        "weights": str(place / "source"),
        "wise_ft": True,
        **runs.FINE_TUNING,
        "method": method,
    }
    with pytest.raises(Interrupted):
        train(fields, tmp_path / "run", say=lambda _: None, callbacks=[Stop()])
    kept = (tmp_path / "run" / "start.safetensors").read_bytes()
    resume(tmp_path / "run", say=lambda _: None)
    assert (tmp_path / "run" / "start.safetensors").read_bytes() == kept
    fine_tuned(place, tmp_path / "whole", method=method)
    runs.assert_same_outcome(tmp_path / "run", tmp_path / "whole")
    resume(tmp_path / "run", say=lambda _: None)  # a finished run
    runs.assert_same_outcome(tmp_path / "run", tmp_path / "whole")


def test_a_start_that_is_gone_or_belongs_to_another_model_is_refused(place: Path, run: Any, tmp_path: Path) -> None:
    folder = runs.copy_of(run[0], tmp_path / "run")
    (folder / "start.safetensors").unlink()
    with pytest.raises(VitkitError, match=r"start\.safetensors is missing"):
        resume(folder, say=lambda _: None)
    classifier = load(folder)
    del classifier.provenance["wise_ft"]
    for content, message in ((b"nothing", "is damaged"), (None, "belongs to another model")):
        if content is None:
            save_file({"other": torch.zeros(1)}, folder / "start.safetensors")
        else:
            (folder / "start.safetensors").write_bytes(content)
        with pytest.raises(VitkitError, match=message):
            mix_with_start(folder, classifier, lambda _: None, lambda _: None)


def test_trainings_whose_start_does_not_classify_are_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match="whose head must classify: use --lp-ft"):
        fine_tuned(place, tmp_path / "none", lp_ft=False)
    with pytest.raises(VitkitError, match="wise_ft acts only with method full or lora, not with probe"):
        package.train(
            place / "photos", weights=str(place / "source"), method="probe", wise_ft=True, out=tmp_path / "none"
        )
    assert not (tmp_path / "none").exists() or not any((tmp_path / "none").iterdir())


def test_datasets_in_memory_have_it_too(place: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    colours = np.array(list(runs.COLOURS.values()), float)

    def pictures(images: int) -> list[tuple[Any, int]]:
        rows = np.arange(images) % 3
        pixels = np.clip(colours[rows][:, None, None] + rng.normal(0, 60, (images, 16, 16, 3)), 0, 255)
        return [(Image.fromarray(image.astype(np.uint8)), int(row)) for image, row in zip(pixels, rows, strict=True)]

    said: list[str] = []
    result = package.train(
        train_dataset=pictures(24),
        val_dataset=pictures(12),
        class_names=list(runs.COLOURS),
        weights=str(place / "source"),
        out=tmp_path / "run",
        say=said.append,
        wise_ft=True,
        lp_ft=True,
        **{name: value for name, value in runs.FINE_TUNING.items() if name != "split"},
    )
    assert len([line for line in said if line.startswith("wise-ft: ")]) == 1
    assert result.evaluation["wise_ft"]["images"] == 12
    assert "mix with the start by accuracy" in result.evaluation["chosen_on"]
