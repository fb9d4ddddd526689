"""A run from beginning to end: what it leaves behind, what it says, and that neither crash nor Ctrl-C can spoil it."""

import csv
import json
import re
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import photos as pictures
import runs
from refusals import refused
from runs import resolved
from runs import told as train
from vitkit.classifier import Classifier
from vitkit.data import Preprocess, groups_from_file, split_from_file
from vitkit.errors import VitkitError
from vitkit.evaluation import evaluate, grouped, label_errors
from vitkit.evaluation.figures import figures
from vitkit.evaluation.intervals import intervals
from vitkit.model import VisionTransformer, config_for
from vitkit.system import LABEL_ERRORS
from vitkit.training import FeatureStore, Loop, Metrics, Recipe, lr_factor, read_metrics, run
from vitkit.training import checkpoint as writer
from vitkit.verbs import TrainingRun
from vitkit.weights import load

ARTEFACTS = (
    *("model.safetensors", "model.json", "recipe.toml", "split.json", "metrics.csv", "log.txt", "report.html"),
    *("curves.png", "classes.png", "confusion.png", "train_batch.png", "checkpoints/last.ckpt"),
)


def test_a_run_folder_has_its_files_with_the_users_permissions_and_no_other(finished: Path, tmp_path: Path) -> None:
    assert [name for name in ARTEFACTS if not (finished / name).stat().st_size] == []
    assert [path.name for path in finished.rglob("*") if "tmp" in path.name or path.name.startswith(".")] == []
    (tmp_path / "usual").touch()
    modes = {path.stat().st_mode for path in finished.rglob("*") if path.is_file()}
    assert modes == {(tmp_path / "usual").stat().st_mode}


def test_what_is_written_down_is_what_was_done(finished: Path, data: Path) -> None:
    with (finished / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["epoch"], row["step"]) for row in rows] == [("0", "4"), ("1", "8"), ("2", "12")]
    assert all(value for row in rows for value in row.values())
    table = split_from_file(finished / "split.json")
    for name, expected in {"train": 9, "val": 1, "test": 2}.items():
        assert Counter(table.of_split(name).labels) == {0: expected, 1: expected, 2: expected}
    runs.assert_learned(finished, data)
    assert Recipe.load(finished / "recipe.toml") == runs.quick(data).replace(method="scratch", head_from="zero")
    provenance = load(finished).provenance
    assert provenance["data"] == data.name, "not where it lies"
    assert provenance["data_hash"] == json.loads((finished / "split.json").read_text())["hash"]
    assert provenance["versions"]["torch"] == torch.__version__.partition("+")[0]


@pytest.mark.usefixtures("no_reports")
def test_one_seed_gives_one_result_and_another_seed_another(
    finished: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0}, raising=False)  # more workers than cores, if need be
    again, _ = train(runs.quick(data, workers=2), tmp_path / "again")
    runs.assert_same_weights(finished, again)
    assert runs.metrics(finished) == runs.metrics(again)
    other, _ = train(runs.quick(data, seed=1, epochs=1), tmp_path / "other")
    assert not torch.equal(runs.weights(finished)["head.weight"], runs.weights(other)["head.weight"])
    assert (finished / "split.json").read_text() != (other / "split.json").read_text()


@pytest.mark.usefixtures("no_pages")
def test_a_run_without_val_images_keeps_the_last_epoch_and_is_not_calibrated(data: Path, tmp_path: Path) -> None:
    folder, said = train(runs.quick(data, epochs=2, split=(0.8, 0.0, 0.2)), tmp_path / "run")
    classifier = load(folder)
    assert classifier.provenance["metrics"]["epoch"] == 1 and classifier.temperature == 1
    assert "0 val" in said and "the confidences are not calibrated" in said
    assert [sorted(row) for row in runs.metrics(folder)] == [["epoch", "lr", "step", "train_acc", "train_loss"]] * 2


def test_a_run_with_training_images_alone_is_evaluated_on_them_and_says_so(data: Path, tmp_path: Path) -> None:
    folder, said = train(runs.quick(data, epochs=1, split=(1.0, 0.0, 0.0)), tmp_path / "run")
    with_them = json.loads((folder / "evaluation.json").read_text())["with_seen"]["accuracy"]
    assert "no accuracy can be given" in said and f"with them {with_them:.4f}" in said
    with refused("evaluation.images-seen"):
        TrainingRun(folder).accuracy  # noqa: B018  # a property
    assert "No figure" in (folder / "report.html").read_text()


@pytest.mark.usefixtures("no_reports")
def test_a_time_budget_ends_the_run_with_the_learning_rate_fallen(data: Path, tmp_path: Path) -> None:
    folder, _ = train(runs.quick(data, epochs=100_000, time="1s"), tmp_path / "run")
    rows = read_metrics(folder / "metrics.csv")
    assert 1.0 <= rows[-1]["seconds"] < 5.0
    behind = rows[-2]["seconds"] - 0.05 if len(rows) > 1 else 0.0  # when the last epoch began
    assert 0 < rows[-1]["lr"] <= max(1e-3 * lr_factor(behind, Recipe(), 1.0), 1e-3 * (behind < Recipe().warmup))
    run.resume(runs.copy_of(folder, tmp_path / "copied"))
    assert runs.metrics(tmp_path / "copied") == runs.metrics(folder), "it is over"
    runs.assert_same_weights(tmp_path / "copied", folder)


class Crash(BaseException):
    """The process ends here."""


def stop_when(monkeypatch: pytest.MonkeyPatch, step: str, epoch: int) -> None:
    """Crash before a step of the epoch's writing down."""
    home: Any = {"append": Metrics, "_update_best": writer.RunWriter, "save": writer}[step]
    original = getattr(home, step)
    calls = Counter[str]()

    def crash_or(*args: Any, **kwargs: Any) -> Any:
        calls[step] += 1
        if calls[step] == epoch + 1:
            raise Crash
        return original(*args, **kwargs)

    monkeypatch.setattr(home, step, crash_or)


@pytest.mark.usefixtures("no_reports")
@pytest.mark.parametrize(("step", "epoch"), [("append", 1), ("_update_best", 1), ("save", 1), ("append", 0)])
def test_a_crash_between_any_two_steps_of_saving_changes_nothing_after_a_resume(
    finished: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, epoch: int
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Crash):
        stop_when(patch, step, epoch)
        train(runs.quick(data), tmp_path / "run")
    if epoch == 0:
        assert list(tmp_path.iterdir()) == [], "without a model there is no folder"
        return
    assert load(tmp_path / "run").classes == ("blue", "green", "red")
    run.resume(tmp_path / "run")
    runs.assert_same_outcome(tmp_path / "run", finished)


def test_without_out_runs_are_numbered_and_lie_outside_of_the_data(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "TRAINING", replace(run.TRAINING, fit=lambda _: None, conclude=()))
    assert run.train(runs.quick(data)) == Path("runs", "photos-1")
    assert run.train(runs.quick(data)) == Path("runs", "photos-2")
    monkeypatch.chdir(data)
    before = pictures.fingerprint(data)
    with suppress(VitkitError):  # asking where to is as good
        run.train(runs.quick(Path()))
    assert pictures.fingerprint(data) == before


@pytest.mark.usefixtures("no_reports")
def test_force_leaves_nothing_of_the_earlier_run(data: Path, tmp_path: Path) -> None:
    folder, _ = train(runs.quick(data, epochs=2, max_images=6, keep="every"), tmp_path / "run")
    assert len(list((folder / "checkpoints").glob("epoch-*"))) == 2
    before = set(folder.rglob("events*"))
    train(runs.quick(data, epochs=1, max_images=6), folder, force=True)
    assert list((folder / "checkpoints").glob("epoch-*")) == []
    assert before & set(folder.rglob("events*")) == set()
    assert len(runs.metrics(folder)) == 1


def test_force_keeps_the_earlier_run_when_the_new_one_cannot_begin(finished: Path, tmp_path: Path) -> None:
    folder = runs.copy_of(finished, tmp_path / "run")
    before = pictures.fingerprint(folder)
    with refused("data.source-missing", "nowhere"):
        train(runs.quick(tmp_path / "nowhere"), folder, force=True)
    assert pictures.fingerprint(folder) == before


@pytest.mark.usefixtures("no_reports")
def test_averaged_weights_have_the_logged_figures_and_batches_are_added_up(data: Path, tmp_path: Path) -> None:
    """27 training images: 6 batches of 4 and one of 3, in two steps an epoch."""
    folder, _ = train(runs.quick(data, ema=0.8, batch_size=4, grad_accum=4, epochs=2), tmp_path / "run")
    assert [row["step"] for row in runs.metrics(folder)] == [2, 4]
    outcome = evaluate(load(folder), split_from_file(folder / "split.json"), "val")
    assert outcome.loss == pytest.approx(load(folder).provenance["metrics"]["val_loss"], rel=1e-4)


def test_a_learning_rate_of_10_ends_in_a_message_or_a_finite_model(tmp_path: Path) -> None:
    source = runs.photos(tmp_path / "photos", images=40)
    fields = {"model_fields": None, "optimizer": "sgd", "epochs": 4, "schedule": "constant"}
    recipe = runs.quick(source, lr=10.0, warmup=0.0, clip_grad=0.0, **fields)
    with pytest.raises(VitkitError, match="try a lower --lr"):
        train(recipe, tmp_path / "run")
    if (tmp_path / "run" / "model.safetensors").exists():
        assert all(tensor.isfinite().all() for tensor in runs.weights(tmp_path / "run").values())


@pytest.mark.usefixtures("no_reports")
def test_the_flowers_recipe_trains_the_head_alone_at_the_rates_of_the_script(tmp_path: Path) -> None:
    """With a small model that has a representation layer, on small photographs."""
    source = pictures.folder(tmp_path / "photos", {"daisy": 10, "roses": 15, "tulips": 10})
    torch.manual_seed(0)
    config = config_for("vit_micro_patch8_16", 4, **runs.SIZE).replace(representation_size=24)
    Classifier(VisionTransformer(config), tuple("abcd"), Preprocess(size=(16, 16))).save(tmp_path / "small")
    given = {"data": str(source), "weights": str(tmp_path / "small"), "model": "vit_micro_patch8_16", "workers": 0}
    folder, _ = train(resolved(given, "flowers-head"), tmp_path / "run")
    start, end = runs.weights(tmp_path / "small"), runs.weights(folder)
    changed = {name for name in end if not torch.equal(end[name], start.get(name, end[name] + 1))}
    assert changed == {"head.weight", "head.bias"}
    assert not any(name.startswith("pre_logits") for name in end)
    rates = [f"{row['lr']:.3e}" for row in runs.metrics(folder)]
    assert (len(rates), rates[0], rates[5], rates[8]) == (10, "1.000e-03", "5.050e-04", "1.045e-04")
    assert json.loads((folder / "class_indices.json").read_text()) == {"0": "daisy", "1": "roses", "2": "tulips"}
    kept = sorted((folder / "checkpoints").glob("epoch-*"))
    assert [path.name[:10] for path in kept] == [f"epoch-{epoch:04d}" for epoch in range(10)]
    assert load(kept[-1]).preprocess.crop_pct == 0.875
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator").EventAccumulator(
        str(folder / "tensorboard")
    )
    events.Reload()
    assert {"train_loss", "train_acc", "val_loss", "val_acc", "lr"} <= set(events.Tags()["scalars"])


@pytest.mark.usefixtures("no_reports")
def test_the_cifar_recipe_keeps_the_mean_of_its_last_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for i in range(80):
        path = tmp_path / "photos" / ("train" if i < 60 else "test") / f"class{i % 10}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
    ends: list[dict[str, torch.Tensor]] = []
    original = Loop.validate

    def note(loop: Loop) -> Any:
        ends.append({name: own.detach().clone() for name, own in loop.state.model.state_dict().items()})
        return original(loop)

    small = {"model_fields": runs.SIZE, "weights": "none", "method": "scratch", "model": "vit_micro_patch8_16"}
    given = {"data": str(tmp_path / "photos"), "epochs": 5, "swa": 0.5, "batch_size": 16, "workers": 0, **small}
    monkeypatch.setattr(Loop, "validate", note)
    folder, _ = train(resolved(given, "cifar10-vit-tiny"), tmp_path / "run")
    rows, kept = runs.metrics(folder), sorted((folder / "checkpoints").glob("epoch-*"))
    cosine = [1e-3 * (1 + np.cos(np.pi * epoch / 5)) / 2 for epoch in range(5)]
    start = 5 - round(0.5 * 5)
    assert [row["lr"] for row in rows] == pytest.approx(cosine[:start] + [cosine[start]] * (5 - start))
    for epoch in range(5):
        own = ends[start : epoch + 1] or [ends[epoch]]
        for name, tensor in runs.weights(kept[epoch]).items():
            assert torch.allclose(tensor, torch.stack([end[name] for end in own]).mean(dim=0), atol=1e-6), name
    best = min(rows[start:], key=lambda row: row["val_loss"])
    assert load(folder).provenance["metrics"]["epoch"] == best["epoch"], "the loss is monitored"


def test_the_temperature_is_the_one_that_the_validation_images_ask_for(finished: Path) -> None:
    classifier, table = load(finished), split_from_file(finished / "split.json")
    assert classifier.temperature != 1
    calibrated = evaluate(classifier, table, "val")
    plain = runs.untempered(calibrated)
    assert plain.accuracy == pytest.approx(classifier.provenance["metrics"]["val_acc"])
    assert plain.loss == pytest.approx(classifier.provenance["metrics"]["val_loss"], rel=1e-4)
    assert classifier.temperature == pytest.approx(runs.fitted_temperature(plain), rel=1e-4)
    assert calibrated.loss <= plain.loss


def test_the_figures_of_the_run_are_those_of_the_saved_model(finished: Path) -> None:
    outcome = evaluate(load(finished), split_from_file(finished / "split.json"), "test")
    numbers = json.loads((finished / "evaluation.json").read_text())
    assert numbers.pop("seen") == {"images": 0, "trained_on": 0, "chosen_by": 0, "paths": []}
    assert numbers.pop("label_errors") == {"listed": 0, "expected_by_chance": 0}
    assert "the run had 3" in numbers.pop("promises")["accuracy"][0]["refused"]
    assert numbers.pop("headline")["value"] == outcome.accuracy
    assert numbers.pop("unknown")["validation_images"] == 3
    assert numbers == figures(outcome) | load(finished).computation


def test_a_finished_run_that_is_resumed_comes_to_the_same(finished: Path, tmp_path: Path) -> None:
    copied = runs.copy_of(finished, tmp_path / "copy")
    run.resume(copied)
    for name in ("model.json", "evaluation.json", LABEL_ERRORS):
        assert (copied / name).read_bytes() == (finished / name).read_bytes(), name
    runs.assert_same_weights(copied, finished)


@pytest.mark.usefixtures("no_pages")
def test_labels_are_doubted_by_the_weights_a_run_began_from(
    start: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, plain = list[torch.Tensor](), label_errors.from_features
    monkeypatch.setattr(label_errors, "from_features", lambda *own: seen.append(own[1]) or plain(*own))
    steps = {"mixup": 0.2, "patch_dropout": 0.25, "balance": "loss"}  # which a head fitted at once would refuse
    recipe = runs.quick(data, weights=str(start), model=None, epochs=1, method="full", **steps)
    folder, _ = train(recipe, tmp_path / "run")
    table = split_from_file(folder / "split.json")
    assert torch.equal(seen[0], FeatureStore(recipe).features(table, ""))
    assert not torch.equal(seen[0], FeatureStore(recipe.replace(weights=str(folder))).features(table, ""))


def test_a_run_from_random_weights_doubts_labels_of_held_out_images_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(probabilities: np.ndarray, labels: np.ndarray) -> list[label_errors.Disagreement]:
        """Doubt each label that is not predicted, however few these are."""
        found = probabilities.argmax(1)
        wrong = np.flatnonzero(found != labels).tolist()
        return [label_errors.Disagreement(i, (int(labels[i]),), (int(found[i]),), 0.5, 0.5) for i in wrong]

    monkeypatch.setattr(label_errors, "find_suspects", mistaken)
    source = runs.photos(tmp_path / "photos", images=20, noise=2000.0)  # nothing to learn: there are mistakes
    folder, _ = train(runs.quick(source, epochs=1), tmp_path / "run")
    with (folder / LABEL_ERRORS).open(encoding="utf-8", newline="") as file:
        doubted = [row["path"] for row in csv.DictReader(file)]
    table, classifier = split_from_file(folder / "split.json"), load(folder)
    held_out = [evaluate(classifier, table, split) for split in ("val", "test")]
    assert doubted == [own.paths[i] for own in held_out for i in np.flatnonzero(own.predicted != own.labels)]
    assert {table.splits[table.paths.index(path)] for path in doubted} == {"val", "test"}


def test_the_worst_mistakes_are_explained_in_the_report_which_is_whole_without_the_run(tmp_path: Path) -> None:
    source = runs.photos(tmp_path / "photos", images=20, noise=2000.0)  # nothing to learn: there are mistakes
    folder, _ = train(runs.quick(source, epochs=1), tmp_path / "run")
    assert json.loads((folder / "evaluation.json").read_text())["accuracy"] < 1
    page = (folder / "report.html").read_text()
    explained = len(re.findall("<h3>[a-z]+, taken for [a-z]+</h3>", page))
    assert explained >= 1 and page.count('<img alt="evidence for') == 2 * explained
    assert not re.findall('href="(?!#part-)([^"]*)', page), "mailed, they would lead nowhere"
    assert str(tmp_path) not in page


@pytest.mark.usefixtures("no_pages")
def test_copies_count_as_one_image_in_the_intervals_of_the_run(data: Path, tmp_path: Path) -> None:
    source = runs.copy_of(data, tmp_path / "photos")
    for i in range(1, 13):
        copied = source / "red" / f"img{i}.png"
        (source / "red" / f"copy{i}.png").write_bytes(copied.read_bytes())
    folder, _ = train(runs.quick(source, epochs=1), tmp_path / "run")
    groups = groups_from_file(folder / "groups.json")
    assert len(groups) == 24 and groups["red/img3.png"] == groups["red/copy3.png"]
    outcome = evaluate(load(folder), split_from_file(folder / "split.json"), "test")
    told = json.loads((folder / "evaluation.json").read_text())
    assert told.pop("seen")["images"] == 0
    assert told.pop("label_errors")["listed"] == 0
    assert told.pop("headline")["interval_95"] == told["intervals_95"]["accuracy"]
    del told["unknown"], told["promises"]
    assert told == figures(grouped(outcome, groups)) | load(folder).computation
    assert told["independent_groups"] < told["images"]
    assert told["intervals_95"]["accuracy"] != list(intervals(outcome)["accuracy"])
