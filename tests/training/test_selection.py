"""Weights that are chosen by the training images: of the best, by nothing else, within the time, and told."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

import runs
import vitkit
from vitkit.classifier import Classifier
from vitkit.data import Preprocess, split_from_file
from vitkit.errors import Interrupted, VitkitError
from vitkit.system import from_json, reporting_to
from vitkit.training import (
    FEWEST,
    LEAST,
    Cost,
    Selection,
    Trial,
    affordable,
    build,
    choose_and_resolve,
    load_fields,
    no_difference,
    resume,
    selection,
    train,
)
from vitkit.weights import load

PIXELS = Preprocess(size=(16, 16))
FIELDS: dict[str, Any] = {"method": "probe", "precision": "float32", "workers": 0, "batch_size": 8}


def blind(folder: Path, source: Path) -> Path:
    """A model that sees nothing: whatever the picture, its features are the same."""
    own = load(source)
    with torch.no_grad():
        own.model.get_parameter("patch_embed.proj.weight").zero_()
    Classifier(own.model, own.classes, own.preprocess).save(folder)
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Weights that tell colours apart, and weights that are blind; neither has seen a picture."""
    root = tmp_path_factory.mktemp("weights")
    torch.manual_seed(1)
    model = vitkit.create_model("vit_micro_patch8_16", num_classes=3, **runs.SIZE)
    seeing = Classifier(model, tuple("abc"), PIXELS)
    seeing.save(root / "seeing")
    return str(root / "seeing"), str(blind(root / "blind", root / "seeing"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.photos(tmp_path_factory.mktemp("data") / "photos", images=20)


def chosen(data: Path, names: Sequence[str], out: Path, **fields: Any) -> tuple[dict[str, Any], list[str]]:
    said: list[str] = []
    options = {"select_time": "10m", **FIELDS, **fields}
    train({"data": str(data), "weights": list(names), **options}, out, say=said.append)
    return from_json((out / "selection.json").read_text()), said


def settled(data: Path, names: Sequence[str], **fields: Any) -> Selection:
    """The choice alone, without the training that follows."""
    asked = {"data": str(data), "weights": list(names), "select_time": "10m", **FIELDS, **fields}
    _, found = choose_and_resolve(asked, lambda *_: None)
    return found


@pytest.fixture(scope="module")
def outcome(
    data: Path, two: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any], list[str]]:
    out = tmp_path_factory.mktemp("runs") / "chosen"
    return out, *chosen(data, [two[1], two[0]], out)


def test_the_best_is_trained_as_if_it_had_been_named(
    outcome: tuple[Path, dict[str, Any], list[str]], data: Path, two: tuple[str, str], tmp_path: Path
) -> None:
    folder, told, _ = outcome
    named = train({"data": str(data), "weights": two[0], **FIELDS}, tmp_path / "named", say=lambda _: None)
    assert told["chosen"] == two[0]
    runs.assert_same_outcome(folder, named)
    assert (folder / "recipe.toml").read_text() == (named / "recipe.toml").read_text()
    assert (folder / "split.json").read_text() == (named / "split.json").read_text()
    assert build(load_fields(folder / "recipe.toml")).select_time is None


def test_the_table_is_told_in_the_log_the_folder_and_the_report(
    outcome: tuple[Path, dict[str, Any], list[str]], two: tuple[str, str]
) -> None:
    folder, told, said = outcome
    by_name = {own["weights"]: own for own in told["trials"]}
    assert by_name[two[0]]["accuracy"] > 0.9
    low, high = by_name[two[1]]["interval"]
    assert low < 1 / 3 < high
    assert told["images"] == told["of"] == split_from_file(folder / "split.json").splits.count("train")
    line = next(line for line in said if two[0] in line and f"{by_name[two[0]]['accuracy']:.4f}" in line)
    assert line.split()[1:3] == [str(told["images"]), f"{by_name[two[0]]['accuracy']:.4f}"]
    assert line.endswith("16x16")
    log, page = (folder / "log.txt").read_text(), (folder / "report.html").read_text()
    assert line in log
    assert "Which weights suit these photographs" in page
    assert f"{by_name[two[0]]['accuracy']:.4f}" in page
    assert "is the best of several and therefore optimistic" in page
    assert str(Path(two[0]).parent) not in page


def test_nothing_but_training_images_is_looked_at(two: tuple[str, str], tmp_path: Path) -> None:
    """Other validation and test pictures, under other labels: the choice has the same figures to the last digit."""
    figures = []
    for name, seed in (("a", 5), ("b", 6)):
        root = tmp_path / name
        runs.photos(root / "train", images=10)
        for split in ("val", "test"):
            runs.photos(root / split, images=4, seed=seed, noise=90.0)
        if name == "b":
            for split in ("val", "test"):
                (root / split / "red").rename(root / split / "x")
                (root / split / "blue").rename(root / split / "red")
                (root / split / "x").rename(root / split / "blue")
        figures.append([replace(own, seconds=None) for own in settled(root, two).trials])
    assert figures[0] == figures[1]


def test_a_run_that_was_stopped_goes_on_with_what_was_chosen(
    data: Path, two: tuple[str, str], tmp_path: Path, outcome: tuple[Path, dict[str, Any], list[str]]
) -> None:
    cut = runs.copy_of(outcome[0], tmp_path / "run")
    for name in ("model.safetensors", "model.json", "metrics.csv", "report.html"):
        (cut / name).unlink()
    said: list[str] = []
    resume(cut, say=said.append)
    runs.assert_same_outcome(cut, outcome[0])
    assert not any("weights tried" in line for line in said)
    assert "Which weights suit these photographs" in (cut / "report.html").read_text()


def test_a_choice_that_is_stopped_leaves_nothing_behind(data: Path, two: tuple[str, str], tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int | None) -> None:
        if what.startswith("trying"):
            raise Interrupted(2)

    with pytest.raises(Interrupted), reporting_to(stop):
        train(
            {"data": str(data), "weights": list(two), "select_time": "10m", **FIELDS},
            tmp_path / "run",
            say=lambda _: None,
        )
    assert not (tmp_path / "run").exists() or not any((tmp_path / "run").iterdir())


# --- The time ----------------------------------------------------------------------------------------------------


def test_what_does_not_fit_into_the_time_is_said(
    data: Path, two: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(2)
    slow = tmp_path / "slow"
    Classifier(vitkit.create_model("vit_micro_patch8_16", num_classes=3, **runs.SIZE), tuple("abc"), PIXELS).save(slow)
    costs = {two[0]: Cost(0.0, 1e-4), two[1]: Cost(0.0, 1e-4), str(slow): Cost(0.0, 60.0)}
    monkeypatch.setattr(selection, "_cost", lambda candidate, judges: costs[candidate.recipe.weights])
    told = settled(data, [*two, str(slow)], select_time="30s")
    assert [own.reason is None for own in told.trials] == [True, True, False]
    assert any(str(slow) in line and "not measured" in line and "would take" in line for line in told.lines())
    assert told.lines()[0].startswith("2 of 3 weights")


def test_less_time_is_fewer_images_and_the_same_for_all(
    data: Path, two: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "_cost", lambda *_: Cost(0.0, 100 * 0.8 / (2 * (LEAST + 1.5))))
    told = settled(data, two, select_time="100s")
    assert told.images in (LEAST, LEAST + 1)
    assert told.of == 48, "a head on few images has no validation images"


def test_a_time_for_less_than_two_is_refused(data: Path, two: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match="too short to try two"):
        chosen(data, two, tmp_path / "run", select_time="0.001s")
    assert not (tmp_path / "run" / "recipe.toml").exists()


costs = st.lists(st.builds(Cost, st.floats(0, 50), st.floats(1e-4, 5)), min_size=1, max_size=6)


@given(costs, st.integers(1, 60), st.integers(60, 5000), st.floats(0, 1000))
def test_the_plan_fits_into_the_time_and_leaves_out_no_more_than_it_must(
    costs: list[Cost], least: int, most: int, seconds: float
) -> None:
    count, kept = affordable(costs, least, most, seconds)
    if not kept:
        assert min(own.of(least) for own in costs) > seconds
        return
    assert least <= count <= most
    assert sum(costs[i].of(count) for i in kept) <= seconds * (1 + 1e-9) or count == least
    if count < most:
        assert sum(costs[i].of(count + 2) for i in kept) > seconds
    left = [i for i in range(len(costs)) if i not in kept]
    if left:
        cheapest = min(left, key=lambda i: costs[i].of(least))
        assert sum(costs[i].of(least) for i in [*kept, cheapest]) > seconds * (1 - 1e-9)
        assert costs[cheapest].of(least) >= max(costs[i].of(least) for i in kept)


# --- What is measured --------------------------------------------------------------------------------------------


def right(x: torch.Tensor, y: torch.Tensor, parts: int) -> torch.Tensor:
    fold_of = torch.arange(len(y)) % parts
    found = torch.zeros(len(y), dtype=torch.bool)
    for part in range(parts):
        own = selection._right_of_part(x, y, fold_of, part, 4)
        assert not (own & (fold_of != part)).any()
        found |= own
    return found


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_an_image_is_not_judged_by_a_probe_that_knows_it(parts: int) -> None:
    """Features that name each image, and labels by lot: who has seen the label knows it, and nobody else does."""
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.permutation(np.arange(240) % 4))
    x = torch.eye(240) + 0.01 * torch.from_numpy(rng.normal(size=(240, 240)).astype(np.float32))
    low, high = binomtest(int(right(x, y, parts).sum()), 240).proportion_ci(0.999)
    assert low < 0.25 < high


def test_features_that_tell_the_classes_apart_are_right() -> None:
    y = torch.arange(200) % 4
    x = torch.eye(4)[y] + 0.1 * torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    assert right(x, y, 5).all()
    assert right(x, torch.eye(4)[y], 5).float().mean() > 0.95  # the same as sets of one class


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_the_sign_test_is_the_binomial_one(pairs: list[tuple[bool, bool]]) -> None:
    first, second = (np.array(own) for own in zip(*pairs, strict=True))
    better, worse = int((first & ~second).sum()), int((second & ~first).sum())
    wanted = binomtest(better, better + worse).pvalue if better + worse else 1.0
    assert no_difference(first, second, range(len(pairs))) == pytest.approx(wanted)
    twice = np.repeat(first, 2), np.repeat(second, 2)  # copies of an image say nothing new
    assert no_difference(*twice, np.repeat(range(len(pairs)), 2).tolist()) == pytest.approx(wanted)


def test_of_equal_weights_the_quicker_are_chosen() -> None:
    slow, quick = (Trial(name, (16, 16), seconds, 0.5, (0.4, 0.6)) for name, seconds in (("slow", 2.0), ("quick", 1.0)))
    assert min((slow, quick), key=selection.rank) is quick


def test_what_is_not_told_apart_is_said() -> None:
    trials = (
        Trial("a", (16, 16), 1.0, 0.9, (0.8, 1.0)),
        Trial("b", (16, 16), 0.25, 0.88, (0.8, 1.0), alike=0.4),
        Trial("c", (16, 16), 0.25, 0.5, (0.4, 0.6), alike=0.001),
    )
    told = Selection(trials, "a", 100, 100, 5, 5, 300.0, 20.0)
    assert told.lines()[-1] == "these images do not distinguish it from b (p 0.4, 0.25 x its time an image)"
    assert Selection.from_dict(json.loads(json.dumps(told.to_dict())), Path("x")).lines() == told.lines()


# --- What is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"weights": "a"}, "chooses among several"),
        ({"weights": "a,a"}, "list different names"),
        ({"weights": "a,,b"}, "chooses among several"),
        ({"weights": "auto"}, "chooses among several"),
        ({"weights": "a,none"}, "cannot use none"),
        ({"weights": ["a", "b,c"]}, "contains a comma"),
        ({"weights": "a,b", "folds": 3}, "leave out select_time or folds"),
        ({"weights": "a,b", "select_time": "soon"}, "select_time must be a duration"),
        ({"weights": "a,b", "method": "scratch"}, "without weights"),
    ],
)
def test_what_cannot_be_chosen_among_is_refused_in_a_line(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(VitkitError, match=words) as refusal:
        build({"select_time": "5m", **fields})
    assert "\n" not in str(refusal.value)


def test_several_without_a_time_say_which_flag_there_is(data: Path, two: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match="--select-time 5m"):
        train({"data": str(data), "weights": ",".join(two), **FIELDS}, tmp_path / "run", say=lambda _: None)


def test_one_that_is_not_there_is_named_before_images_are_read(
    data: Path, two: tuple[str, str], tmp_path: Path
) -> None:
    with pytest.raises(VitkitError, match=r"gone\.pth"):
        chosen(data, [two[0], "gone.pth"], tmp_path / "run")


def test_weights_that_know_the_images_are_refused(
    data: Path, two: tuple[str, str], outcome: tuple[Path, dict[str, Any], list[str]], tmp_path: Path
) -> None:
    for names in ([two[0], str(outcome[0])], [str(outcome[0]), two[0]]):
        with pytest.raises(VitkitError, match=rf"{outcome[0].name} has seen 48 of these 60 images"):
            chosen(data, names, tmp_path / "run")


def test_too_few_images_are_refused(two: tuple[str, str], tmp_path: Path) -> None:
    data = runs.photos(tmp_path / "few", images=8)
    with pytest.raises(VitkitError, match=f"this needs at least {FEWEST}"):
        chosen(data, two, tmp_path / "run")


def test_commands_that_do_not_choose_say_so(two: tuple[str, str]) -> None:
    with pytest.raises(VitkitError, match="select_time requires `vitkit train`"):
        vitkit.plan("vit_micro_patch8_16", images=100, weights=",".join(two), select_time="5m")


# --- Labels that mean nothing ------------------------------------------------------------------------------------


@pytest.mark.accept
def test_with_labels_by_lot_the_test_images_are_right_by_chance(two: tuple[str, str], tmp_path: Path) -> None:
    """Six candidates and labels by lot: the figure of the choosing flatters, the one of the test images does not."""
    names = [*two]
    for seed in range(4):
        torch.manual_seed(10 + seed)
        model = vitkit.create_model("vit_micro_patch8_16", num_classes=3, **runs.SIZE)
        Classifier(model, tuple("abc"), PIXELS).save(tmp_path / f"weights{seed}")
        names.append(str(tmp_path / f"weights{seed}"))
    best, hits, images = [], 0, 0
    for seed in range(12):
        data = _by_lot(tmp_path / f"photos{seed}", seed)
        told, _ = chosen(data, names, tmp_path / f"run{seed}", seed=seed)
        best.append(max(own["accuracy"] for own in told["trials"]))
        figures = from_json((tmp_path / f"run{seed}" / "evaluation.json").read_text())
        hits, images = hits + round(figures["accuracy"] * figures["images"]), images + figures["images"]
        shutil.rmtree(tmp_path / f"run{seed}")
    error = math.sqrt(1 / 3 * 2 / 3 / images)
    assert abs(hits / images - 1 / 3) < 3 * error
    assert np.mean(best) > 1 / 3 + 0.03  # so that it would have been noticed


def _by_lot(root: Path, seed: int) -> Path:
    photos = runs.photos(root / "given", images=20, seed=seed)
    files = sorted(photos.rglob("*.png"))
    for i, place in enumerate(np.random.default_rng(seed).permutation(len(files))):
        folder = root / "lot" / "abc"[place % 3]
        folder.mkdir(parents=True, exist_ok=True)
        shutil.move(files[i], folder / f"{i}.png")
    return root / "lot"
