"""Sets of classes and sure predictions: through training, saving, files, exports, evaluation and the server."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save

import runs
import vitkit as package
from refusals import refused
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.exporting import Pictures, export
from vitkit.inference import HeldOut, Trust
from vitkit.serving.serve import serve
from vitkit.weights import load

EXACT = package.Compute(backend="eager", precision="float32")


@pytest.fixture(scope="module")
def run() -> Path:
    return runs.shared_run_with_mistakes()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny model with held-out predictions that follow its probabilities, and photographs."""
    root = tmp_path_factory.mktemp("made")
    classifier = Classifier(build(), tuple("abcdefg"), Preprocess(size=(12, 16)), temperature=0.5)
    (root / "photos").mkdir()
    rng = np.random.default_rng(0)
    for i in range(8):
        Image.fromarray(rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(root / "photos" / f"{i}.png")
    logits = rng.normal(size=(400, 7)) * 2
    p = (np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)).astype(np.float32)
    labels = (rng.random((400, 1)) > p.cumsum(axis=1)).sum(axis=1).clip(max=6)
    classifier.trust = Trust(HeldOut.from_probabilities(p, labels, ("temperature by log loss",))).to_bytes()
    classifier.save(root / "model")
    return root / "model", root / "photos"


def test_a_run_records_its_validation_images_and_measures_on_test_images(run: Path) -> None:
    trust = load(run).held_out
    assert len(trust.held_out) == 36
    assert trust.held_out.chosen == ("epoch by val_acc", "temperature by log loss")
    figures = json.loads((run / "evaluation.json").read_text())
    (ninety, ninetyfive), accuracy = figures["promises"]["coverage"], figures["promises"]["accuracy"]
    assert ninety["requested"] == 0.9 and ninety["images"] == figures["images"]
    assert ninety["interval_95"][0] <= ninety["measured"] <= ninety["interval_95"][1]
    assert sum(ninety["sizes"]) == ninety["images"] and ninetyfive["mean_size"] >= ninety["mean_size"]
    assert ["refused" in row for row in accuracy] == [True, True]  # 36 images show no more than 0.92
    assert "Sets and sure predictions" in (run / "report.html").read_text()
    assert package.evaluate(run).figures["promises"] == figures["promises"]
    assert "promises" not in package.evaluate(run, split="val").figures, "of the images that made them"
    assert {trust.to_bytes() for _ in range(20)} == {load(run).trust}
    row = package.evaluate(run, promises=package.Promises(coverage=0.8)).figures["promises"]["coverage"]
    assert [each["requested"] for each in row] == [0.8] and "measured" in row[0]
    with refused("inference.images-too-few", "coverage 0.99", "99 validation images"):
        package.evaluate(run, promises=package.Promises(coverage=0.99))


def test_saving_keeps_the_record_to_the_bit_and_damage_is_named(run: Path, tmp_path: Path) -> None:
    classifier = load(run)
    classifier.save(tmp_path / "again")
    assert load(tmp_path / "again").trust == classifier.trust == (run / "trust.safetensors").read_bytes()
    classifier.trust = None
    classifier.save(tmp_path / "again")
    assert not (tmp_path / "again" / "trust.safetensors").exists() and load(tmp_path / "again").trust is None
    folder = runs.copy_of(run, tmp_path / "run")
    file = folder / "trust.safetensors"
    for content in (b"", b"\x00" * 40, None):
        file.unlink() if content is None else file.write_bytes(content)
        with refused("model.folder-damaged", "trust.safetensors", "trust_sha256"):
            load(folder)


def test_a_record_of_a_newer_version_is_refused(run: Path) -> None:

    classifier = load(run)
    classifier.trust = save({}, {"trust": json.dumps({"format_version": 9})})
    with refused("inference.record-newer"):
        _ = classifier.held_out


def test_sets_agree_between_memory_files_json_and_python(vitkit: Any, made: tuple[Path, Path], tmp_path: Path) -> None:
    model, photographs = made
    asked: dict[str, Any] = {"promises": package.Promises(coverage=0.8, reject=0.3), "top": 2, "compute": EXACT}
    in_memory = package.predict(model, photographs, **asked)
    rules = load(model).rules(coverage=0.8)
    for row, prediction in zip(
        in_memory, load(model).predict(str(p) for p in sorted(photographs.iterdir())), strict=True
    ):
        p = np.array([dict(prediction.ranking)[name] for name in "abcdefg"], np.float32)
        by_hand = [name for name, _ in prediction.ranking if 1 - dict(prediction.ranking)[name] <= rules.sets.limit]
        assert list(row.set or ()) == by_hand, p
    assert {len(row.set or ()) for row in in_memory} - {1}
    for name in ("rows.csv", "rows.jsonl"):
        in_file = package.predict(model, photographs, out=tmp_path / name, **asked)
        assert [row.set for row in in_file] == [row.set for row in in_memory]
        assert [row.is_rejected for row in in_file] == [row.is_rejected for row in in_memory]
    with (tmp_path / "rows.csv").open(newline="") as text:
        rows = list(csv.DictReader(text))
    assert list(rows[0])[:6] == ["path", "label", "confidence", "error", "rejected", "set"]
    assert [tuple(filter(None, row["set"].split(";"))) for row in rows] == [row.set for row in in_memory]
    flags = ("--backend", "eager", "--precision", "float32")
    printed = vitkit("predict", model, photographs, "--coverage", 0.8, "--json", *flags).out
    assert [tuple(json.loads(line)["set"]) for line in printed.splitlines()] == [row.set for row in in_memory]


def test_labels_that_are_not_sure_are_withheld_and_models_that_cannot_know_refused(made: tuple[Path, Path]) -> None:
    model, photographs = made
    sure = load(model).rules(accuracy=0.6).sure
    assert sure is not None and 0 < sure.share < 1
    rows = package.predict(model, photographs, promises=package.Promises(accuracy=0.6), compute=EXACT)
    assert [row.label is None for row in rows] == [(row.confidence or 0) <= sure.confidence for row in rows]
    assert any(f"{sure.answered} of 400 validation images" in note for note in rows.notes)
    assert any("the same validation images were used to choose: temperature" in note for note in rows.notes)
    model, photographs = made
    classifier = load(model)
    classifier.trust = None
    for asked in ("coverage", "accuracy"):
        with refused("inference.record-missing", asked):
            package.predict(classifier, photographs, promises=package.Promises(**{asked: 0.9}))
    with refused("inference.record-missing", "coverage"):
        package.predict(model, photographs, promises=package.Promises(coverage=0.8), preprocess="mean=0.1,std=0.9")


def test_an_exported_file_and_the_server_make_the_same_promises(made: tuple[Path, Path], tmp_path: Path) -> None:
    model, photographs = made
    paths, out = sorted(photographs.iterdir()), tmp_path / "model.xml"
    promises = package.Promises(coverage=0.8, accuracy=0.6)
    expected = [(row.set, row.label) for row in package.predict(model, paths, promises=promises, compute=EXACT)]
    export(load(model), out, Pictures("photographs", tuple(paths)))
    assert [(row.set, row.label) for row in package.predict(out, paths, promises=promises)] == expected
    files = [("image", (path.name, path.read_bytes())) for path in paths]
    with serve([model], port=0, compute=EXACT) as server:
        rows = httpx.post(f"{server.url}/predict?coverage=0.8&accuracy=0.6", files=files, timeout=30).json()
        few = httpx.post(f"{server.url}/predict?coverage=0.999", files=files[:1], timeout=30)
    assert [(tuple(row["set"]), row["label"]) for row in rows["predictions"]] == expected
    assert few.status_code == 400 and "at least 999 validation images" in few.json()["error"]


def test_copies_among_validation_images_count_once(run: Path, tmp_path: Path) -> None:
    from vitkit.evaluation import Evaluation
    from vitkit.training.finalize import ValidationFacts, calibrate_on

    classifier = load(runs.copy_of(run, tmp_path / "run"))
    p = np.tile(np.array([[0.7, 0.2, 0.1]], np.float32), (6, 1))
    seen = Evaluation("val", classifier.classes, tuple("uvwxyz"), np.array([0, 0, 0, 1, 0, 2]), p)
    facts = ValidationFacts(groups={"u": 0, "v": 0, "w": 0}, seen={"z": "train"})
    calibrate_on(classifier, lambda: seen, facts)
    assert classifier.held_out.held_out.label.tolist() == [0, 1, 0]
    shutil.rmtree(tmp_path / "run")


def test_photographs_unlike_the_validation_images_have_no_promise(run: Path, tmp_path: Path) -> None:
    told = "from the images of the run (predicted classes"
    same = package.predict(run, run.parent / "photos", promises=package.Promises(accuracy=0.5), compute=EXACT).notes
    assert any("for photographs like the validation images" in note for note in same)
    assert not any("differ from the images of the run" in note for note in same)
    for number in range(30):
        Image.new("RGB", (16, 16), (200, 50, 40)).save(tmp_path / f"{number}.png")
    notes = package.predict(run, tmp_path, promises=package.Promises(accuracy=0.5), compute=EXACT).notes
    assert any(told in note and "so --accuracy promises nothing about them" in note for note in notes)
