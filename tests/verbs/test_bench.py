"""`vitkit.bench`, beside `vitkit bench`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import vitkit
from cli.conftest import vitkit as command
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess

__all__ = ["command"]

MICRO = "vit_micro_patch8_16"
TIMED = ("images_per_s", "ms_per_batch", "ceiling", "times_eager", "memory")  # what no two runs have alike


def untimed(rows: Any) -> list[dict[str, Any]]:
    return [{name: v for name, v in row.items() if not any(part in name for part in TIMED)} for row in rows]


@pytest.fixture(scope="module")
def found() -> vitkit.Benchmark:
    return vitkit.bench(MICRO, batch_sizes=[2, 1], backends=["eager"], precisions=["float32"], rounds=2)


def test_function_and_command_agree(command: Any, found: vitkit.Benchmark) -> None:
    flags = ("--batch-sizes", "2,1", "--backends", "eager", "--precisions", "float32", "--rounds", "2")
    told = json.loads(command("bench", MICRO, *flags, "--json").out)
    ours = json.loads(json.dumps(found.to_dict()))
    assert untimed(told.pop("results")) == untimed(ours.pop("results"))
    assert told == ours


def test_a_benchmark_is_shown_as_a_table(found: vitkit.Benchmark) -> None:
    assert repr(found) == f"<Benchmark: {found.title}>"
    assert found.title.startswith(f"{MICRO} on ") and found.title.endswith(", 2 rounds")
    assert [line.split()[:3] for line in found.lines()[2:4]] == [["eager", "float32", batch] for batch in "12"]
    assert found._repr_html_().count("<tr>") == 3


def test_a_classifier_in_memory_is_timed_and_its_table_written(tmp_path: Path) -> None:
    classifier = Classifier(build(), tuple("abcdefg"), Preprocess(size=(12, 16)))
    found = vitkit.bench(
        classifier, batch_sizes=1, backends="eager", precisions="float32", rounds=1, out=tmp_path / "speed"
    )
    assert found.model == "classifier"
    assert {path.name for path in (tmp_path / "speed").iterdir()} >= {"bench.csv", "bench.png"}
    assert found.lines()[-1] == f"{tmp_path / 'speed' / 'bench.csv'}, {tmp_path / 'speed' / 'bench.png'}"
    with pytest.raises(vitkit.VitkitError, match="contains bench"):
        vitkit.bench(classifier, rounds=1, out=str(tmp_path / "speed"))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"batch_sizes": [1, 0]}, "--batch-sizes '1,0' must be whole numbers above 0"),
        ({"batch_sizes": "1,x"}, "--batch-sizes '1,x' must be"),
        ({"batch_sizes": []}, "--batch-sizes '' must be"),
        ({"backends": ["auto"]}, "--backends 'auto' is none of eager, compile, openvino, onnx"),
        ({"precisions": []}, "--precisions '' is none of float32, bfloat16"),
        ({"rounds": 0}, "--rounds must be at least 1, not 0"),
    ],
)
def test_what_is_no_choice_is_refused(options: Any, complaint: str) -> None:
    with pytest.raises(vitkit.VitkitError, match=complaint):
        vitkit.bench(MICRO, **options)
