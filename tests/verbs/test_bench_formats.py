"""`vitkit bench --export`: the files of all formats side by side."""

import csv
from pathlib import Path
from typing import Any

import pytest

import vitkit
from cli.conftest import vitkit as command
from refusals import refused
from vitkit.exporting import FORMATS
from vitkit.verbs import bench_formats

__all__ = ["command"]


@pytest.mark.accept
def test_files_of_all_formats_are_compared(classifier_folder: Path, tmp_path: Path, command: Any) -> None:
    said = command("bench", classifier_folder, "--export", "--batch-sizes", "1,2", "--rounds", "2", "-o", tmp_path)
    assert said.code == 0
    assert "openvino float32" in said.out
    assert "note: onnx int8 is left out: " in said.err
    assert (tmp_path / "bench.png").read_bytes()[:4] == b"\x89PNG"
    rows = list(csv.DictReader((tmp_path / "bench.csv").read_text(encoding="utf-8").splitlines()))
    here = {name for name, form in FORMATS.items() if form.is_input and name != "litert"}
    assert {row["file"].split()[0] for row in rows} >= here
    assert {row["batch"] for row in rows} == {"1", "2"}
    for row in rows:
        assert float(row["agreement"]) == 1
        assert float(row["images_per_s_q1"]) <= float(row["images_per_s"]) <= float(row["images_per_s_q3"])
        assert float(row["megabytes"]) > 0.05
        assert row["accuracy"] == "", "synthetic images have no labels"
    command("bench", classifier_folder, "--export", "-o", tmp_path).refused("verbs.out-not-empty", "--force")


def test_a_format_that_fails_is_left_out_by_name(classifier_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_formats, "_PRECISIONS", ("float32",))
    for name in ("executorch", "litert", "onnx"):
        monkeypatch.setitem(FORMATS, name, bench_formats.FORMATS["torch"])
    found = vitkit.bench(classifier_folder, export=True, batch_sizes=1, rounds=1)
    assert [row["file"] for row in found.rows()] == ["openvino float32"]


@pytest.mark.parametrize(
    ("model", "options", "code"),
    [
        ("vit_micro_patch4_16", {}, "verbs.model-not-file"),
        (None, {"backends": "onnx"}, "verbs.option-conflict"),
    ],
)
def test_what_does_not_go_with_files_is_refused(classifier_folder: Path, model: Any, options: Any, code: str) -> None:
    with refused(code):
        vitkit.bench(model or classifier_folder, export=True, **options)
