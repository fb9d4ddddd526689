"""A head that begins from the class names: zero-shot is epoch 0, and what training adds is told beside it."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import runs
import vitkit
import wordy
from hearing import heard
from vitkit.data import images_of_run
from vitkit.errors import Interrupted, VitkitError
from vitkit.evaluation import evaluate
from vitkit.language import spoken, why_no_words
from vitkit.language.zero_shot import zero_shot
from vitkit.training import Fit, Hooks, Recipe, choose_head, read_metrics, resume, train
from vitkit.verbs import TrainingRun
from vitkit.weights import imagenet_synsets, load

QUICK: dict[str, Any] = {"method": "full", "epochs": 2, "batch_size": 8, "precision": "float32", "workers": 0}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first")
    wordy.clip(folder / "clip")
    wordy.siglip(folder / "siglip")
    runs.photos(folder / "photos")
    return folder


def asked(place: Path, kind: str = "clip", **more: Any) -> Recipe:
    """The fields of a file, of which some have no effect."""
    fields = {"data": str(place / "photos"), "weights": str(place / kind), **QUICK, **more}
    return Recipe.of(fields, "the test")


def told(place: Path, out: Path, kind: str = "clip", **more: Any) -> list[str]:
    said: list[str] = []
    with heard(said.append):
        train(asked(place, kind, **more), out)
    return said


def rows(folder: Path) -> dict[int, dict[str, float]]:
    """metrics.csv by epoch, none of which may be there twice."""
    found = read_metrics(folder / "metrics.csv")
    assert len({row["epoch"] for row in found}) == len(found)
    return {int(row["epoch"]): row for row in found}


def test_which_names_are_words() -> None:
    for names in (
        ["daisy", "rose"],
        ["red_tulip", "blue_tulip"],
        ["猫", "犬"],
        ["кошка", "собака"],
        ["n01440764", "dog"],
    ):
        assert why_no_words(names) is None
    for names, said in (
        (["daisy", "7"], "'7' is not a word"),
        (["class_1", "daisy"], "'class_1' is not a word"),
        (["a", "b"], "'a' is not a word"),
        (["n99999999", "dog"], "'n99999999' is not a word"),
        (["leaf_1", "leaf_2"], "'leaf_1' and 'leaf_2' differ in no word"),
        (["cat", "Cat"], "'cat' and 'Cat' differ in no word"),
    ):
        assert why_no_words(names) == said
    assert spoken(["n01440764", "red__tulip", "T-shirt"]) == ("tench", "red tulip", "T-shirt")
    assert why_no_words(sorted(imagenet_synsets())) is None


@pytest.mark.parametrize(
    ("kind", "method"), [("clip", "full"), ("siglip", "lora"), ("clip", "probe-sgd"), ("siglip", "probe")]
)
def test_zero_shot_is_epoch_0(place: Path, tmp_path: Path, kind: str, method: str) -> None:
    said = told(place, tmp_path / "run", kind, method=method, split=(0.7, 0.1, 0.2), keep="last")
    template = "a photo of a {}." if kind == "clip" else "This is a photo of {}."
    assert f"the head starts from the class names, as {template!r}; the zero-shot model is epoch 0" in said
    recipe = vitkit.load(tmp_path / "run").provenance["recipe"]
    assert (recipe["head_from"], recipe["lp_ft"]) == ("names", False)
    table = images_of_run(tmp_path / "run" / "split.json")
    expected = evaluate(zero_shot(place / kind, sorted(runs.COLOURS), one=True), table, "val")
    start = rows(tmp_path / "run")[-1]
    assert start["val_acc"] == pytest.approx(expected.accuracy)
    assert start["val_loss"] == pytest.approx(expected.loss, abs=1e-4)
    assert sum("zero-shot" in line and f"val_loss {start['val_loss']:.4f}" in line for line in said) == 1
    assert "with the class names alone, before any training" in (tmp_path / "run" / "report.html").read_text()
    provenance = json.loads((tmp_path / "run" / "model.json").read_text())["provenance"]
    assert provenance["head"] == {"from": "names", "templates": [template]}
    if method.startswith("probe"):
        before = zero_shot(place / kind, sorted(runs.COLOURS), one=True).model.state_dict()
        after = load(tmp_path / "run").model.state_dict()
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert changed == {"head.weight", "head.bias"}, "the backbone stays frozen"


def test_a_probe_from_names_learns_and_stays_near_them(place: Path, tmp_path: Path) -> None:
    told(place, tmp_path / "run", method="probe")
    runs.assert_learned(tmp_path / "run", place / "photos")
    assert "zero_shot" not in json.loads((tmp_path / "run" / "evaluation.json").read_text())
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


@pytest.mark.parametrize("method", ["probe", "full"])
def test_shuffled_labels_end_at_chance(place: Path, tmp_path: Path, method: str) -> None:
    draw = np.random.default_rng(3)
    names = sorted(runs.COLOURS)
    for i in range(90):
        pixels = draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        path = tmp_path / "photos" / names[i % 3] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    recipe = asked(place, method=method, split=(0.5, 0.1, 0.4), data=str(tmp_path / "photos"))
    train(recipe, tmp_path / "run")
    figures = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    error = math.sqrt(1 / 3 * 2 / 3 / figures["images"])  # a 95 % interval would miss chance in one of twenty runs
    assert abs(figures["accuracy"] - 1 / 3) < 3 * error


def test_the_best_epoch_may_be_the_start(place: Path, tmp_path: Path) -> None:
    """A training that spoils the model leaves the zero-shot one, and says so."""

    class Spoil:
        def on_step_end(self, state: Any) -> None:
            noise = torch.randn(3, 24, generator=torch.Generator().manual_seed(state.step))
            with torch.no_grad():
                state.model.head.weight.copy_(30 * noise)

    said: list[str] = []
    with heard(said.append):
        train(asked(place, monitor="val_loss"), tmp_path / "run", hooks=Hooks([Spoil()]))
    classifier = load(tmp_path / "run")
    assert classifier.provenance["metrics"]["epoch"] == -1
    batch = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    expected = zero_shot(place / "clip", sorted(runs.COLOURS)).model(batch)
    assert torch.equal(classifier.model(batch), expected)
    assert any("the model is the zero-shot one" in line for line in said)
    assert "kept: epoch 0, zero-shot" in (tmp_path / "run" / "report.html").read_text()
    figures = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert figures["zero_shot"] == vitkit.evaluate(tmp_path / "run").figures["zero_shot"] == ["a photo of a {}."]
    assert "zero-shot: by the class names alone" in str(TrainingRun(tmp_path / "run").lines())


def test_a_run_goes_on_to_the_same_weights(place: Path, tmp_path: Path) -> None:
    class Stop:
        def on_epoch_end(self, state: Any) -> None:
            if state.epoch == 0:
                raise Interrupted(15)

    class StopAtOnce:
        def on_step_end(self, state: Any) -> None:
            raise Interrupted(15)

    told(place, tmp_path / "whole")
    for stop in (Stop(), StopAtOnce()):
        out = tmp_path / type(stop).__name__
        with pytest.raises(Interrupted):
            train(asked(place), out, hooks=Hooks([stop]))
        resume(out)
        runs.assert_same_outcome(tmp_path / "whole", out)
        assert sorted(rows(out)) == [-1, 0, 1]


def test_why_a_head_begins_from_zero_is_said(place: Path, tmp_path: Path) -> None:
    for old, new in (("blue", "class_0"), ("green", "class_1"), ("red", "class_2")):
        (tmp_path / "numbers").mkdir(exist_ok=True)
        (tmp_path / "numbers" / new).symlink_to(place / "photos" / old)
    numbers = {"data": str(tmp_path / "numbers"), "follow_links": True, "method": "probe"}
    said = told(place, tmp_path / "zero", **numbers)
    assert any("starts from zero: the class names are not suitable ('class_0' is not a word" in line for line in said)
    assert vitkit.load(tmp_path / "zero").provenance["recipe"]["head_from"] == "zero"
    assert -1 not in rows(tmp_path / "zero")
    said = told(place, tmp_path / "asked", **numbers, head_from="names")
    assert any("'class_0' read as 'class 0'; the zero-shot model is epoch 0" in line for line in said)
    said = told(place, tmp_path / "fitted", lp_ft=True, epochs=1)
    assert "the head starts from zero: lp_ft fits the head to the photographs" in said
    assert any("a fit to frozen features" in line for line in said)
    state = load_file(place / "clip" / "model.safetensors")
    bare = tmp_path / "bare"
    bare.mkdir()
    save_file(state, bare / "model.safetensors")
    (bare / "config.json").write_bytes((place / "clip" / "config.json").read_bytes())
    said = told(place, tmp_path / "untold", method="probe", weights=str(bare))
    assert any("starts from zero" in line and "no tokenizer" in line for line in said)
    kept = {name: own for name, own in state.items() if not name.startswith("text_")}
    save_file(kept, bare / "model.safetensors")
    said = told(place, tmp_path / "half", method="probe", weights=str(bare))
    assert any("starts from zero" in line and "without its text encoder" in line for line in said)
    said = told(place, tmp_path / "own", method="probe", weights=str(tmp_path / "zero"), data=str(place / "photos"))
    assert not any("head starts" in line for line in said), "of weights without words nothing is to be said"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"lp_ft": True}, "lp_ft fits it to photographs"),
        ({"weights": "none", "model": "vit_micro_patch8_16", "method": "scratch"}, "set weights of CLIP or SigLIP"),
        ({"model_fields": {"pool": "gap"}}, "model.pool differs"),
    ],
)
def test_what_cannot_begin_from_names_is_refused(place: Path, tmp_path: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(VitkitError, match=said):
        train(asked(place, **{"head_from": "names", **more}), tmp_path / "run")


def test_images_of_several_classes(place: Path, tmp_path: Path) -> None:
    """SigLIP has a probability of each class; CLIP has none."""
    photos = runs.photos(tmp_path / "data" / "train"), runs.photos(tmp_path / "data" / "val", 4, seed=1)
    table = runs.several(photos[0].parent)
    table.write_text(table.read_text().replace("a;b", "red;blue").replace("a;c", "red;green"))
    text = table.read_text().splitlines()
    words = {"a": "red", "b": "blue", "c": "green"}
    table.write_text("\n".join([text[0], *(_renamed(line, words) for line in text[1:])]) + "\n")
    said: list[str] = []
    with heard(said.append):
        train(asked(place, "siglip", data=str(table), epochs=1), tmp_path / "siglip")
    start = rows(tmp_path / "siglip")[-1]
    expected = evaluate(
        zero_shot(place / "siglip", ["blue", "green", "red"]), images_of_run(tmp_path / "siglip/split.json"), "val"
    )
    assert {"val_loss", "val_acc", "val_map"} <= start.keys()
    assert start["val_loss"] == pytest.approx(expected.loss, abs=1e-4)
    with pytest.raises(VitkitError, match="trained with softmax"):
        recipe = asked(place, data=str(table), epochs=1, head_from="names")
        with heard(said.append):
            train(recipe, tmp_path / "clip")


def _renamed(line: str, words: dict[str, str]) -> str:
    path, labels, split = line.split(",")
    return ",".join([path, ";".join(words.get(label, label) for label in labels.split(";")), split])


def test_folds(place: Path, tmp_path: Path) -> None:
    said = told(place, tmp_path / "folds", method="probe", folds=2)
    assert sum("the zero-shot model is epoch 0" in line for line in said) == 1
    assert all(-1 in rows(tmp_path / "folds" / f"fold-{number}") for number in (1, 2))
    said = told(place, tmp_path / "spoilt", folds=2, epochs=1, lr=5.0, monitor="val_loss")
    assert "note: in 2 of 2 folds the model is the zero-shot one: no epoch was better" in said
    assert (tmp_path / "spoilt" / "report.html").read_text().count("</a>, zero-shot") == 2


def test_datasets_of_the_callers_own(place: Path, tmp_path: Path) -> None:
    class Pictures:
        classes = ("blue", "red")

        def __len__(self) -> int:
            return 8

        def __getitem__(self, i: int) -> tuple[Any, int]:
            return Image.new("RGB", (16, 16), (200 * (i % 2) + i, 40, 100)), i % 2

    own = {name: value for name, value in asked(place, epochs=1).set_fields().items() if name != "data"}
    vitkit.train(vitkit.Datasets(train=Pictures(), val=Pictures()), vitkit.Recipe(**own), out=tmp_path / "run")
    assert sorted(rows(tmp_path / "run")) == [-1, 0]
