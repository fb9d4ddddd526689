"""`vitkit doctor --against`: from a run and photographs to a verdict, a page, and an exit code."""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
from PIL import Image

import runs
import vitkit as package
from browser import browser, is_within, serious, watched
from once import once
from refusals import refused
from vitkit.inference import Trust
from vitkit.serving.serve import serve
from vitkit.training import train
from vitkit.weights import load

__all__ = ["browser"]  # a fixture

if TYPE_CHECKING:
    from playwright.sync_api import Browser

EXACT = package.Compute(backend="eager", precision="float32")


def photographs(folder: Path, counts: dict[str, int], seed: int, noise: float = 60.0) -> Path:
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for name, count in counts.items():
        for i in range(count):
            pixels = np.array(runs.COLOURS[name]) + rng.normal(0, noise, (16, 16, 3))
            Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(folder / f"{name}{i}.png")
    return folder


@pytest.fixture(scope="module")
def run() -> Path:
    """A run with many validation images."""

    def make(place: Path) -> None:
        data = runs.photos(place / "photos", images=60, noise=60, seed=3)
        train(runs.quick(data, split=(0.4, 0.6, 0.0)), place / "run")

    return once("run with many validation images", make) / "run"


def test_photographs_like_those_of_the_training_are_not_different(run: Path, tmp_path: Path, vitkit: Any) -> None:
    now = photographs(tmp_path / "now", dict.fromkeys(runs.COLOURS, 30), 1)
    result = package.doctor(now, against=run)
    assert not result.differs and result.images == 90
    trust = load(run).held_out
    assert trust is not None and result.validation_images == len(trust.held_out)
    outcome = vitkit("doctor", now, "--against", run)
    assert outcome.code == 0 and "no difference between 90 photographs" in outcome.out


def test_a_class_that_is_doubled_is_reported(run: Path, tmp_path: Path, vitkit: Any) -> None:
    now = photographs(tmp_path / "now", {"red": 60, "green": 15, "blue": 15}, 1)
    result = package.doctor(now, against=run)
    assert [test.name for test in result.tests if test.adjusted <= 0.05][:1] == ["classes"]
    assert result.shares["red"][1] == pytest.approx(2 / 3, abs=0.05)
    outcome = vitkit("doctor", now, "--against", run, "--json")
    told = json.loads(outcome.out)
    assert outcome.code == 1 and told["differs"] and told["tests"][0]["name"] == "classes"
    assert told == json.loads(json.dumps(result.to_dict()))


def test_test_images_are_compared_with_too(tmp_path: Path, vitkit: Any) -> None:
    run = runs.shared_run_with_mistakes()
    trust, evaluated = load(run).held_out, package.evaluate(run, compute=EXACT)
    assert trust is not None and trust.tests is not None
    with (run / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(trust.tests) == len(rows) == evaluated.to_dict()["images"]
    names = [load(run).classes[k] for k in trust.tests.predicted]
    assert Counter(names) == Counter(row["predicted"] for row in rows)
    assert sorted(1 - trust.tests.doubt) == pytest.approx(sorted(float(row["confidence"]) for row in rows), abs=1e-4)
    now = photographs(tmp_path / "now", dict.fromkeys(runs.COLOURS, 30), 1)
    result = package.doctor(now, against=run)
    assert (result.validation_images, result.test_images) == (len(trust.held_out), len(rows))
    assert any("of the validation images alone" in note for note in result.notes)
    assert f"the {len(trust.held_out)} validation and {len(rows)} test images" in result.verdict
    both = np.concatenate([trust.held_out.predicted, trust.tests.predicted])
    assert result.shares["red"][0] == pytest.approx((both == load(run).classes.index("red")).mean())
    bare = load(run)
    bare.trust = replace(trust, tests=None).to_bytes()
    alone = package.doctor(now, against=bare)
    bare.trust = replace(trust, held_out=replace(trust.held_out, folds=3)).to_bytes()
    assert any("a model of the other folds (of 3)" in note for note in package.doctor(now, against=bare).notes)
    assert not alone.notes and alone.test_images == 0 and "validation images of" in alone.verdict
    assert [test.p for test in alone.tests][2:] == [test.p for test in result.tests][2:], "scores are of validation"


def test_other_pictures_are_reported_and_listed_first(run: Path, tmp_path: Path) -> None:
    now = photographs(tmp_path / "now", dict.fromkeys(runs.COLOURS, 20), 1)
    for i in range(30):
        Image.new("RGB", (16, 16), (255, 255, 8 * i)).save(now / f"strange{i}.png")
    (now / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    result = package.doctor(now, against=run)
    assert result.differs and len(result.unfamiliar) == 24
    assert sum("strange" in each.path for each in result.unfamiliar) >= 18
    assert [Path(path).name for path in result.errors] == ["broken.png"]
    values = [each.familiar for each in result.unfamiliar]
    assert values == sorted(values)  # type: ignore[type-var]
    rows = {row.path: row.familiar for row in package.predict(run, now, compute=EXACT)}
    assert all(rows[each.path] == pytest.approx(each.familiar, abs=1e-6) for each in result.unfamiliar)


def test_values_that_make_no_sense_are_refused(run: Path, tmp_path: Path) -> None:
    now = photographs(tmp_path / "now", {"red": 2}, 1)
    few = package.doctor(now, against=run)
    assert any("only large differences" in note for note in few.notes)
    with refused("verbs.out-in-source"):
        package.doctor(now, now / "drift.html", against=run)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.png").write_bytes(b"no picture")
    with refused("verbs.images-unreadable"):
        package.doctor(tmp_path / "empty", against=run)
    classifier = load(run)
    trust = classifier.held_out
    classifier.trust = Trust(trust.held_out).to_bytes()
    result = package.doctor(now, against=classifier)
    assert [test.name for test in result.tests] == ["classes", "confidence"]
    assert any("no score for unknown images" in note for note in result.notes)
    classifier.trust = None
    with refused("verbs.record-missing"):
        package.doctor(now, against=classifier)


def test_the_page_fits_and_names_what_differs(run: Path, tmp_path: Path, browser: Browser) -> None:
    now = photographs(tmp_path / "now", {"red": 60, "green": 10, "blue": 10}, 1)
    page_file = tmp_path / "drift.html"
    result = package.doctor(now, page_file, against=run)
    assert result.out == page_file and result.differs
    with refused("verbs.out-exists"):
        package.doctor(now, page_file, against=run)
    with watched(browser, "phone") as page:
        page.goto(page_file.as_uri())
        assert result.verdict in page.inner_text("main")
        assert page.locator("figure img").count() == 24
        assert page.locator("tr.best td").first.inner_text().splitlines()[0] == "predicted classes"
        assert is_within(page) and serious(page) == []


def test_the_server_counts_what_is_compared(run: Path, tmp_path: Path) -> None:
    now = sorted(photographs(tmp_path / "now", {"red": 6, "green": 2}, 1).iterdir())
    rows = list(package.predict(run, now, compute=EXACT))
    files = [("image", (path.name, path.read_bytes())) for path in now]
    with serve([run], port=0, compute=EXACT) as server:
        httpx.post(f"{server.url}/predict?unknown=0.5&reject=0.9", files=files, timeout=30)
        lines = httpx.get(f"{server.url}/metrics", timeout=30).text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    for name in {row.name for row in rows}:
        assert float(values[f'vitkit_predicted_total{{label="{name}",model="run"}}']) == sum(
            r.name == name for r in rows
        )
    unknown = [row.familiar for row in rows if row.familiar is not None]
    at_most = float(values['vitkit_familiar_bucket{le="0.25",model="run"}'])
    assert len(unknown) == 8 and at_most == sum(value <= 0.25 for value in unknown)
    assert float(values['vitkit_confidence_count{model="run"}']) == 8
