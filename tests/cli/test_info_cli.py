"""`vitkit info` and `vitkit models`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vitkit.model import list_models
from vitkit.weights import create_model

# Of the published checkpoints.
PARAMETERS = {
    "vit_base_patch16_224": 86_567_656,
    "vit_tiny_patch16_224": 5_717_416,
    "vit_large_patch16_224": 304_326_632,
}
B16_SHAPES = [
    *("224x224x3", "14x14x768", "196x768", "197x768", "197x768", "197x2304", "12x197x64", "12x197x197"),
    *("197x768", "197x768", "197x3072", "197x768", "197x768", "768", "1000"),
]


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items())
def test_json_has_the_exact_parameters(vitkit: Any, name: str, parameters: int) -> None:
    outcome = vitkit("info", name, "--json")
    measured = json.loads(outcome.out)
    assert (outcome.code, outcome.err) == (0, "")
    assert (measured["name"], measured["parameters"]) == (name, parameters)
    assert measured["config"]["patch_size"] == [16, 16]


def test_shapes_walk_the_image_through_the_model(vitkit: Any) -> None:
    out = vitkit("info", "vit_base_patch16_224", "--shapes").out
    rows = out[out.index("\nstage") + 1 :].splitlines()[1:]
    assert [row[28:].split()[0] for row in rows] == B16_SHAPES


def test_the_parameters_of_the_stages_sum_to_the_models(vitkit: Any) -> None:
    stages = json.loads(vitkit("info", "vit_micro_patch4_16", "--json").out)["stages"]
    model = create_model("vit_micro_patch4_16")
    assert sum(stage["parameters"] * stage["times"] for stage in stages) == sum(p.numel() for p in model.parameters())


def test_a_run_folder_is_described_with_its_classes(vitkit: Any, trained: Path) -> None:
    out = vitkit("info", trained).out
    assert "blue, green, red" in out
    assert "vit_micro_patch8_16" in out
    described = json.loads(vitkit("info", trained, "--json").out)
    assert described["classes"] == ["blue", "green", "red"]
    assert described["config"]["num_classes"] == 3
    assert described["preprocess"]["size"] == [16, 16]


def test_models_lists_all_names_and_json_parses(vitkit: Any) -> None:
    assert json.loads(vitkit("models", "--json").out) == list_models()
    lines = vitkit("models").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list_models()


@pytest.mark.parametrize("pattern", ["base", "*base*"])
def test_models_takes_a_part_of_the_name_or_a_pattern(vitkit: Any, pattern: str) -> None:
    names = json.loads(vitkit("models", pattern, "--json").out)
    assert names == [name for name in list_models() if "base" in name] != []
