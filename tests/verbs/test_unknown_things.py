"""Images of unknown things: through training, saving, files, exports, evaluation, the server and the studio."""

import csv
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

import runs
import tiny
import vitkit as package
from refusals import refused
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.exporting import Pictures, export
from vitkit.model.layers import FeatureHead
from vitkit.serving.serve import serve
from vitkit.training import train
from vitkit.weights import load

EXACT = package.Compute(backend="eager", precision="float32")
LEVEL = 0.2
UNKNOWN = package.Promises(unknown=LEVEL)


def pictures(folder: Path, count: int, seed: int) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(seed)
    for i in range(count):
        colours = rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)
        Image.fromarray(colours).resize((24, 20)).save(folder / f"{i:02}.png")
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny model with a score for unknown images, and photographs, half of which are noise."""
    root = tmp_path_factory.mktemp("made")
    classifier = Classifier(tiny.build(), tuple("abcdefg"), Preprocess(size=(12, 16)), temperature=0.5)
    tiny.with_score(classifier, pictures(root / "known", 40, 0)).save(root / "model")
    photographs = pictures(root / "photos", 6, 1)
    for i in range(6):
        noise = np.random.default_rng(i).integers(0, 2, (20, 24, 3), dtype=np.uint8) * 255
        Image.fromarray(noise).save(photographs / f"noise{i}.png")
    return root / "model", photographs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with 30 validation and 30 test images, from the weights of a run on other colours."""
    root = tmp_path_factory.mktemp("unknown")
    before = train(runs.quick(runs.photos(root / "others", seed=5), epochs=1), root / "before")
    data = runs.photos(root / "photos", images=40, noise=60)
    recipe = runs.quick(data, weights=str(before), split=(0.5, 0.25, 0.25), epochs=2)
    return train(recipe, root / "run")


def test_a_run_fits_a_score_and_reports_its_limits(run: Path) -> None:
    unknown = load(run).unknown
    assert unknown is not None and len(unknown.known) == 30
    numbers = json.loads((run / "evaluation.json").read_text())
    entry = numbers["unknown"]
    assert entry["validation_images"] == 30 and entry["accepted"] == 0.95
    (limit,) = entry["limits"]  # by the weights of the first run, which had not seen them
    assert (limit["kind"], limit["classes"]) == ("unseen classes", 3)
    assert package.evaluate(run).figures["unknown"] == entry
    assert [row["level"] for row in entry["called"]] == [0.05]
    assert package.evaluate(run, split="val").figures["unknown"]["called"] == [], "which fitted the score"
    first = run.parent / "before"
    assert json.loads((first / "evaluation.json").read_text())["unknown"]["limits"] == []


def test_several_classes_per_image_have_no_score(tmp_path: Path) -> None:
    data = runs.photos(tmp_path / "photos")
    rows = [f"{path.relative_to(data)},{'a;b' if i % 2 else 'a'}\n" for i, path in enumerate(data.rglob("*.png"))]
    (data / "several.csv").write_text("".join(["path,labels\n", *rows]))
    run = train(runs.quick(data / "several.csv", epochs=1), tmp_path / "run")
    assert load(run).unknown is None
    with refused("inference.record-missing"):
        package.predict(run, data / "red", promises=package.Promises(unknown=0.5))


def test_values_agree_between_files_json_and_python(vitkit: Any, made: tuple[Path, Path], tmp_path: Path) -> None:
    model, photographs = made
    rows = list(package.predict(model, photographs, promises=UNKNOWN, compute=EXACT))
    classifier = load(model)
    unknown = classifier.unknown
    pixels = np.stack([np.asarray(classifier.read(row.path)) for row in rows])
    assert [row.familiar for row in rows] == pytest.approx(unknown.p_values(classifier.seeing()(pixels).features))
    called = [row.is_unknown for row in rows]
    assert called == [row.familiar is not None and row.familiar <= LEVEL for row in rows] and any(called)
    assert [row.label for row in rows] == ["?" if row.is_unknown else row.name for row in rows]
    for name in ("rows.csv", "rows.jsonl"):
        in_file = list(package.predict(model, photographs, promises=UNKNOWN, out=tmp_path / name, compute=EXACT))
        first, second = ([(row.label, row.name, row.is_unknown) for row in each] for each in (in_file, rows))
        assert first == second
        assert [row.familiar for row in in_file] == pytest.approx([row.familiar for row in rows], abs=1e-6)
    with (tmp_path / "rows.csv").open(newline="") as text:
        cells = list(csv.DictReader(text))
    assert list(cells[0]) == ["path", "label", "confidence", "error", "familiar", "rejected"]
    assert [row["rejected"] for row in cells] == [row.name if row.is_unknown else "" for row in rows]
    flags = ("--backend", "eager", "--precision", "float32")
    printed = vitkit("predict", model, photographs, "--json", *flags).out
    values = [json.loads(line)["familiar"] for line in printed.splitlines()]
    assert values == pytest.approx([row.familiar for row in rows])
    assert "rejected" not in json.loads(printed.splitlines()[0])
    outcome = vitkit("predict", model, photographs, "--unknown", LEVEL, *flags)
    assert f"{sum(called)} rejected, {sum(called)} of them as unknown" in outcome.out + outcome.err


def test_a_label_may_be_withheld_for_both_reasons(made: tuple[Path, Path], tmp_path: Path) -> None:
    model, photographs = made
    known = [row for row in package.predict(model, photographs, promises=UNKNOWN) if not row.is_unknown]
    reject = min(row.confidence for row in known if row.confidence is not None) + 1e-3
    promises = package.Promises(unknown=LEVEL, reject=reject)
    asked: dict[str, Any] = {"promises": promises, "compute": EXACT}
    rows = list(package.predict(model, photographs, **asked))
    assert {row.label for row in rows} >= {"?", None}
    out = tmp_path / "rows.csv"
    assert [row.label for row in package.predict(model, photographs, out=out, **asked)] == [row.label for row in rows]
    lines = out.read_text().splitlines(keepends=True)
    out.rename(tmp_path / "rows.csv.partial").write_text("".join(lines[:5]))
    again = package.predict(model, photographs, out=out, resume=True, **asked)
    assert [row.label for row in again] == [row.label for row in rows]
    with refused("inference.rows-differ"):
        package.predict(model, photographs, out=out, resume=True, **asked | {"promises": promises.replace(unknown=0.9)})


@pytest.fixture(scope="module")
def exported(made: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxruntime")
    out = tmp_path_factory.mktemp("exported") / "model.onnx"
    export(load(made[0]), out, Pictures("photographs", tuple(sorted(made[1].iterdir()))))
    return out


@pytest.mark.parametrize("file", ["plain.onnx", "distilled.xml"])
def test_an_exported_file_has_the_same_score(
    made: tuple[Path, Path], tmp_path: Path, request: pytest.FixtureRequest, file: str
) -> None:
    model, photographs = made
    classifier = load(model)
    if file == "plain.onnx":
        out = request.getfixturevalue("exported")
    else:
        pytest.importorskip("openvino")
        wide = tiny.build(distill_token=True, distill_head=True)
        wide_classifier = Classifier(wide, classifier.classes, classifier.preprocess)
        classifier, out = tiny.with_score(wide_classifier, model.parent / "known"), tmp_path / file
        export(classifier, out, Pictures("photographs", tuple(sorted(photographs.iterdir()))))
    expected = list(package.predict(classifier, photographs, promises=UNKNOWN, compute=EXACT))
    rows = list(package.predict(out, photographs, compute=package.Compute(precision="float32"), promises=UNKNOWN))
    assert [row.label for row in rows] == [row.label for row in expected]
    assert [row.familiar for row in rows] == pytest.approx([row.familiar for row in expected], abs=0.051)  # one of 20


def test_other_programs_find_logits_and_features_in_a_file(made: tuple[Path, Path], exported: Path) -> None:
    classifier = load(made[0])
    pixels = torch.stack([classifier.read(path) for path in sorted(made[1].iterdir())])
    seen = classifier.seeing()(pixels.numpy())
    session = pytest.importorskip("onnxruntime").InferenceSession(str(exported))
    assert [(output.name, output.shape[1]) for output in session.get_outputs()] == [("logits", 7), ("features", 32)]
    for name, expected in (("logits", seen.logits), ("features", seen.features)):
        assert np.allclose(session.run([name], {"images": pixels.numpy()})[0], expected, atol=1e-4)


def test_a_file_with_other_features_is_refused(made: tuple[Path, Path], tmp_path: Path, monkeypatch: Any) -> None:
    classifier = load(made[0])
    from vitkit.exporting import writing
    from vitkit.model import with_features

    class Mirrored(FeatureHead):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            both = super().forward(x)
            return torch.cat([both[:, : self.classes], both[:, self.classes :].flip(1)], dim=1)

    def wrong(model: Any) -> Any:
        wide = with_features(model)
        wide.head.__class__ = Mirrored
        return wide

    for spoil, code in ((wrong, "exporting.features-differ"), (lambda model: model, "exporting.file-damaged")):
        monkeypatch.setattr(writing, "with_features", spoil)
        with refused(code):
            export(classifier, tmp_path / "model.xml", Pictures("photographs", tuple(sorted(made[1].iterdir()))))
    assert not (tmp_path / "model.xml").exists()


def test_logits_do_not_change_by_a_bit(made: tuple[Path, Path]) -> None:
    classifier = load(made[0])
    images = classifier.read(next(made[1].iterdir()))[None]
    plain = classifier.use("eager", "float32", features=False)
    wide = classifier.use("eager", "float32")
    assert wide.unknown is not None and plain.unknown is None
    assert wide.logits(images).equal(plain.logits(images)) and wide.logits(images).equal(classifier.logits(images))


def test_the_server_says_how_unfamiliar_pictures_look(made: tuple[Path, Path]) -> None:
    model, photographs = made
    paths = sorted(photographs.iterdir())
    expected = list(package.predict(model, paths, promises=UNKNOWN, compute=EXACT))
    files = [("image", (path.name, path.read_bytes())) for path in paths]
    with serve([model], port=0, compute=EXACT) as server:
        plain = httpx.post(f"{server.url}/predict", files=files, timeout=30).json()["predictions"]
        rows = httpx.post(f"{server.url}/predict?unknown={LEVEL}", files=files, timeout=30).json()["predictions"]
        few = httpx.post(f"{server.url}/predict?unknown=0.001", files=files[:1], timeout=30)
    assert [row["familiar"] for row in plain] == pytest.approx([row.familiar for row in expected])
    assert [row["label"] for row in plain + rows] == [row.name for row in expected] + [row.label for row in expected]
    assert few.status_code == 400 and "at least 999 validation images" in few.json()["error"]
