"""A head that begins from the class names: zero-shot is epoch 0, and what training adds is told beside it."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import runs
import vitkit
import wordy
from once import once
from refusals import refused
from vitkit.data import images_of_run
from vitkit.errors import Interrupted
from vitkit.evaluation import evaluate
from vitkit.language import why_indistinguishable
from vitkit.language.zero_shot import zero_shot
from vitkit.training import Fit, Hooks, Recipe, choose_head, read_metrics, resume, train
from vitkit.weights import imagenet_synsets, load

pytestmark = pytest.mark.usefixtures("two_penalties")


def models(folder: Path) -> None:
    wordy.clip(folder / "clip")
    wordy.siglip(folder / "siglip")


@pytest.fixture(scope="module")
def place() -> Path:
    return once("first-head-models", models)


def asked(place: Path, kind: str = "clip", **more: Any) -> Recipe:
    """The fields of a file, of which some have no effect."""
    quick = {"method": "full", "epochs": 2, "batch_size": 8, "precision": "float32", "workers": 0}
    fields = {"data": str(runs.shared_photos()), "weights": str(place / kind), **quick, **more}
    return Recipe.of(fields, "the test")


def told(place: Path, out: Path, kind: str = "clip", **more: Any) -> list[str]:
    return runs.told(asked(place, kind, **more), out)[1].splitlines()


def rows(folder: Path) -> dict[int, dict[str, float]]:
    """metrics.csv by epoch, none of which may be there twice."""
    found = read_metrics(folder / "metrics.csv")
    assert len({row["epoch"] for row in found}) == len(found)
    return {int(row["epoch"]): row for row in found}


@pytest.mark.parametrize(
    ("names", "unsuitable"),
    [
        (["red_tulip", "blue_tulip"], None),
        (["猫", "犬"], None),
        (["n01440764", "dog"], None),
        (sorted(imagenet_synsets()), None),
        (["daisy", "7"], "'7'"),
        (["class_1", "daisy"], "'class_1'"),
        (["a", "b"], "'a'"),
        (["n99999999", "dog"], "'n99999999'"),
        (["cat", "Cat"], "'cat' and 'Cat'"),
    ],
)
def test_which_names_are_words(names: list[str], unsuitable: str | None) -> None:
    why = why_indistinguishable(names)
    assert why is None if unsuitable is None else why is not None and why.startswith(unsuitable)


@pytest.mark.usefixtures("no_pages")
@pytest.mark.parametrize(("kind", "method"), [("clip", "full"), ("siglip", "probe")])
def test_zero_shot_is_epoch_0(place: Path, tmp_path: Path, kind: str, method: str) -> None:
    run = tmp_path / "run"
    said = told(place, run, kind, method=method, split=(0.7, 0.1, 0.2), keep="last")
    template = "a photo of a {}." if kind == "clip" else "This is a photo of {}."
    assert f"the head starts from the class names, as {template!r}; the zero-shot model is epoch 0" in said
    provenance = vitkit.load(run).provenance
    assert (provenance["recipe"]["head_from"], provenance["recipe"]["lp_ft"]) == ("names", False)
    assert provenance["head"] == {"from": "names", "templates": [template]}
    before = zero_shot(place / kind, sorted(runs.COLOURS), one=True)
    expected, start = evaluate(before, images_of_run(run / "split.json"), "val"), rows(run)[-1]
    assert start["val_acc"] == pytest.approx(expected.accuracy)
    assert start["val_loss"] == pytest.approx(expected.loss, abs=1e-4)
    if method.startswith("probe"):
        first, after = before.model.state_dict(), load(run).model.state_dict()
        changed = {name for name in first if not torch.equal(first[name], after[name])}
        assert changed == {"head.weight", "head.bias"}, "the backbone stays frozen"
        assert "zero_shot" not in json.loads((run / "evaluation.json").read_text())


@pytest.mark.usefixtures("no_pages")
def test_a_probe_from_names_learns_and_stays_near_them(place: Path, tmp_path: Path) -> None:
    train(asked(place, method="probe"), tmp_path / "run")
    runs.assert_learned(tmp_path / "run", runs.shared_photos())
    x, y = torch.randn(40, 6), torch.arange(40) % 3
    begun = Fit(torch.randn(3, 6), torch.zeros(3), math.inf, 1.0, None, None)
    far, near = (choose_head(x, y, None, 3, penalty, begun) for penalty in (1e-3, 1e4))
    assert torch.dist(near.weight, begun.weight) <= 1e-2 < torch.dist(far.weight, begun.weight)


def test_what_was_not_learned_is_not_credited_to_training() -> None:
    """Labels without a meaning, and a head that knows the classes already: nothing fitted to them is better."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(4, 16, generator=generator)
    x = torch.randn(200, 16, generator=generator)
    y = (x @ truth.T).argmax(dim=1)
    shuffled = torch.randint(0, 4, (100,), generator=generator)
    held_out = x[100:], y[100:]
    begun = Fit(5 * truth, torch.zeros(4), math.inf, 1.0, 0.05, 1.0)
    assert choose_head(x[:100], shuffled, held_out, 4, initial=begun) is begun
    wrong = Fit(-truth, torch.zeros(4), math.inf, 9.0, 9.0, 0.0)
    assert choose_head(x[:100], y[:100], held_out, 4, initial=wrong).penalty < 2


@pytest.mark.usefixtures("no_pages")
def test_shuffled_labels_end_at_chance(place: Path, tmp_path: Path) -> None:
    data = runs.shuffled(runs.photos(tmp_path / "photos", images=30, noise=2000.0), seed=3)
    run = train(asked(place, method="full", split=(0.5, 0.1, 0.4), data=str(data)), tmp_path / "run")
    figures = json.loads((run / "evaluation.json").read_text())
    error = math.sqrt(1 / 3 * 2 / 3 / figures["images"])  # a 95 % interval would miss chance in one of twenty runs
    assert abs(figures["accuracy"] - 1 / 3) < 3 * error


@pytest.mark.usefixtures("no_pages")
def test_the_best_epoch_may_be_the_start(place: Path, tmp_path: Path) -> None:
    """A training that spoils the model leaves the zero-shot one, and says so."""

    class Spoil:
        def on_step_end(self, state: Any) -> None:
            with torch.no_grad():
                state.model.head.weight.zero_()
                state.model.head.bias.copy_(torch.tensor([100.0, 0.0, 0.0]))  # wrong for two classes, and sure

    run = train(asked(place, monitor="val_loss"), tmp_path / "run", hooks=Hooks([Spoil()]))
    classifier = load(run)
    assert classifier.provenance["metrics"]["epoch"] == -1
    batch = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert torch.equal(classifier.model(batch), zero_shot(place / "clip", sorted(runs.COLOURS)).model(batch))
    figures = json.loads((run / "evaluation.json").read_text())
    assert figures["zero_shot"] == vitkit.evaluate(run).figures["zero_shot"] == ["a photo of a {}."]


@pytest.mark.usefixtures("no_reports")
def test_a_run_goes_on_to_the_same_weights(place: Path, tmp_path: Path) -> None:
    def stop(state: Any) -> None:
        if state.epoch == 0:
            raise Interrupted(15)

    told(place, tmp_path / "whole")
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        train(asked(place), out, hooks=Hooks([SimpleNamespace(on_step_end=stop)]))
    resume(out)
    runs.assert_same_outcome(tmp_path / "whole", out)
    assert sorted(rows(out)) == [-1, 0, 1]


@pytest.mark.usefixtures("no_reports")
def test_why_a_head_begins_from_zero_is_said(place: Path, tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    numbers.mkdir()
    for i, colour in enumerate(runs.COLOURS):
        (numbers / f"class_{i}").symlink_to(runs.shared_photos() / colour)
    fields = {"data": str(numbers), "follow_links": True, "method": "probe"}
    said = told(place, tmp_path / "zero", **fields)
    assert any("starts from zero: the class names are not suitable ('class_0'" in line for line in said)
    assert vitkit.load(tmp_path / "zero").provenance["recipe"]["head_from"] == "zero"
    assert -1 not in rows(tmp_path / "zero")
    told(place, tmp_path / "asked", **fields, head_from="names")
    assert -1 in rows(tmp_path / "asked")
    told(place, tmp_path / "fitted", lp_ft=True, epochs=1)
    assert -1 not in rows(tmp_path / "fitted"), "the head is fitted to the photographs"
    state, bare = load_file(place / "clip" / "model.safetensors"), tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_bytes((place / "clip" / "config.json").read_bytes())
    vision = {name: own for name, own in state.items() if not name.startswith("text_")}
    for number, (kept, lacking) in enumerate([(state, "no tokenizer"), (vision, "without its text encoder")]):
        save_file(kept, bare / "model.safetensors")
        said = told(place, tmp_path / str(number), method="probe", weights=str(bare))
        assert any("starts from zero" in line and lacking in line for line in said)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"lp_ft": True}, "training.fields-conflict"),
        ({"model_fields": {"pool": "gap"}}, "training.head-names-unsuitable"),
        ({"data": "several.csv"}, "training.head-names-unsuitable"),  # CLIP has no probability of each class
    ],
)
def test_what_cannot_begin_from_names_is_refused(place: Path, tmp_path: Path, more: dict[str, Any], code: str) -> None:
    if "data" in more:
        more = {"data": str(runs.shared_overlaid())}
    with refused(code):
        train(asked(place, **{"head_from": "names", **more}), tmp_path / "run")


@pytest.mark.usefixtures("no_reports")
def test_of_several_classes_siglip_has_a_probability_of_each(place: Path, tmp_path: Path) -> None:
    run = train(asked(place, "siglip", data=str(runs.shared_overlaid()), epochs=1), tmp_path / "run")
    start, names = rows(run)[-1], ["blue", "green", "red"]
    expected = evaluate(zero_shot(place / "siglip", names), images_of_run(run / "split.json"), "val")
    assert {"val_loss", "val_acc", "val_map"} <= start.keys()
    assert start["val_loss"] == pytest.approx(expected.loss, abs=1e-4)


@pytest.mark.usefixtures("no_pages")
def test_folds(place: Path, tmp_path: Path) -> None:
    said = told(place, tmp_path / "folds", folds=2, epochs=1, lr=5.0, monitor="val_loss")
    assert all(-1 in rows(tmp_path / "folds" / f"fold-{number}") for number in (1, 2))
    assert "note: in 2 of 2 folds the model is the zero-shot one: no epoch was better" in said
