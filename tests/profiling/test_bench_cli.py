"""`vitkit bench`, and the benchmarks' own scripts in their smoke mode."""

import csv
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import vitkit
from cli.conftest import vitkit as command
from refusals import refused
from tiny import build, some
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.errors import VitkitError
from vitkit.verbs import bench

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MICRO = "vit_micro_patch8_16"
__all__ = ["command"]


def test_figures_are_of_every_backend_precision_and_batch() -> None:
    found = vitkit.bench(MICRO, batch_sizes=[2, 1], backends=["eager"], rounds=2)
    told = json.loads(json.dumps(found.to_dict(), default=str))
    assert (told["model"], told["rounds"], told["missing"]) == (MICRO, 2, {})
    assert told["machine"]["threads"] == torch.get_num_threads()
    asked = [(row["name"], row["precision"], row["batch"]) for row in told["results"]]
    assert asked == [("vitkit eager", precision, n) for n in (1, 2) for precision in ("float32", "bfloat16")]
    for row in told["results"]:
        assert row["images_per_s_q1"] <= row["images_per_s"] <= row["images_per_s_q3"]
        assert row["ms_per_batch"] > 0 and row["rounds"] == 2
        assert row["compared_images"] == 16
        if row["precision"] == "float32":
            assert (row["times_eager_float32"], row["same_top1"]) == (1.0, 1.0)
            assert row["largest_difference"] < 1e-5
        else:
            assert 0 < row["largest_difference"] < 0.5
    title, heading, *_ = found.lines()
    assert title.startswith(f"{MICRO} on ")
    assert heading.split() == [name for name, _ in bench.COLUMNS.values()]


@pytest.mark.usefixtures("drawn_pictures")
def test_a_model_folder_and_one_in_memory_are_timed_and_a_table_and_a_picture_written_once(
    command: Any, tmp_path: Path
) -> None:
    classifier = Classifier(build(), tuple("abcdefg"), Preprocess(size=(12, 16)))
    classifier.save(tmp_path / "model")
    out, once = tmp_path / "new" / "speed", {"batch_sizes": 1, "rounds": 1, "precisions": "float32"}
    found = vitkit.bench(classifier, backends="eager", out=out, **once)
    assert found.model == "classifier"
    with (out / "bench.csv").open(newline="") as stream:
        assert [row["batch"] for row in csv.DictReader(stream)] == ["1"]
    with Image.open(out / "bench.png") as picture:
        assert picture.width > 500
    with refused("verbs.out-not-empty", "force"):
        vitkit.bench(classifier, out=str(out), **once)
    flags = ("--batch-sizes", 1, "--rounds", 1, "--precisions", "float32", "--backends", "eager", "--force", "--json")
    told = json.loads(command("bench", tmp_path / "model", *flags, "-o", out).out)
    assert {(row["precision"], row["same_top1"]) for row in told["results"]} == {("float32", 1.0)}
    assert told["model"] == str(tmp_path / "model")


@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        ({"model": "vit_hug_patch16_224"}, "weights.source-missing", "vit_huge_patch14_224"),
        ({"batch_sizes": [1, 0]}, "verbs.option-invalid", "1,0"),
        ({"precisions": "int8"}, "verbs.option-invalid", "int8"),
        ({"rounds": 0}, "text.value-outside", "rounds"),
        ({"out": __file__}, "verbs.out-kind", __file__),
    ],
)
def test_what_cannot_be_measured_is_refused(options: dict[str, Any], code: str, named: str) -> None:
    with refused(code, named):
        vitkit.bench(**{"model": MICRO, **options})


def test_a_backend_that_is_not_installed_is_left_out_and_refused_if_it_is_asked_for(
    command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitkit.inference import backends

    real = backends.open_runner

    def open_runner(model: Any, backend: str, precision: str, **options: Any) -> Any:
        if backend != "eager":
            raise VitkitError(f"backend {backend} needs {backend}: pip install")
        return real(model, backend, precision, **options)

    monkeypatch.setattr(backends, "open_runner", open_runner)
    outcome = command("bench", MICRO, "--batch-sizes", "1", "--rounds", "1", "--json")
    assert outcome.code == 0
    assert set(json.loads(outcome.out)["missing"]) == {
        f"{backend} {precision}" for backend in ("compile", "openvino", "onnx") for precision in ("float32", "bfloat16")
    }
    assert "openvino bfloat16 is left out: backend openvino needs openvino" in outcome.err
    with refused("verbs.backend-unavailable", "backend openvino needs openvino"):
        vitkit.bench(MICRO, batch_sizes=1, rounds=1, backends="openvino")


@pytest.fixture
def smoke_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """What a benchmark prints in its smoke mode, run in this process: most of a new one's time goes into imports."""
    monkeypatch.delenv("VITKIT_TEST_DATA", raising=False)
    monkeypatch.syspath_prepend(BENCHMARKS)

    def lines(script: str, *flags: object) -> list[str]:
        monkeypatch.setattr(sys, "argv", [script, "--smoke", *map(str, flags)])
        runpy.run_path(str(BENCHMARKS / script), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return lines


def tables_in(out: Path) -> dict[str, list[dict[str, str]]]:
    tables = {}
    for file in out.glob("*.csv"):
        with file.open(newline="") as stream:
            tables[file.name.partition("_")[0]] = list(csv.DictReader(stream))
    return tables


def test_label_choice_compares_what_is_chosen_with_what_is_drawn(smoke_here: Any, tmp_path: Path) -> None:
    lines = smoke_here("label_choice.py", "--out", tmp_path)
    rows = tables_in(tmp_path)["label-choice"]
    assert [row["labels"] for row in rows] == ["10", "20", "40", "80", "160"] * 2
    assert all(0 <= float(row[way]) <= 1 for row in rows for way in ("drawn", "chosen"))
    assert lines[-1].startswith("labels 160")
    smoke_here("label_choice.py", "--out", tmp_path, "--shuffled")
    dealt = tables_in(tmp_path)["label-choice-shuffled"]
    assert max(float(row["chosen"]) for row in dealt) < 0.5  # of four classes


SMOKE: dict[str, tuple[int, dict[str, tuple[float, float]]]] = {  # the rows of a table, and the range of its columns
    "watching": (1, {"same": (0, 0.15), "doubled": (0.151, 1)}),
    "later": (9, {"largest_difference": (0, 1e-4), "times_timm": (1e-9, 1e9)}),
    "coverage": (9, {"accuracy": (0, 1)}),
    "comparing": (2, {"false": (0, 1), "pair": (0.5, 1), "best": (0, 1), "found pair": (0, 1)}),
}


@pytest.mark.parametrize("name", some(SMOKE, ["watching", "comparing"]))
def test_a_benchmark_writes_its_table(name: str, smoke_here: Any, tmp_path: Path) -> None:
    pytest.importorskip("timm")
    smoke_here(f"{name}.py", "--out", tmp_path)
    (rows, columns), found = SMOKE[name], tables_in(tmp_path)[name]
    assert len(found) == rows
    assert all(low <= float(row[own]) <= high for row in found for own, (low, high) in columns.items())
