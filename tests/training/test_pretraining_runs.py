"""Pre-training as a run: the same weights however it is cut up, what it leaves, and what training makes of it."""

import functools
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import runs
import vitkit
from hearing import heard
from vitkit.data import PictureRecord, split_from_file
from vitkit.data.loading import Images
from vitkit.data.seen import UNLABELLED
from vitkit.errors import Interrupted, VitkitError
from vitkit.system import reporting_to
from vitkit.training import KeyedImages, split_fields
from vitkit.verbs import PretrainingRun
from vitkit.verbs.pretrain import pretrain

QUICK: dict[str, Any] = {
    "model": "vit_micro_patch4_16",
    "epochs": 2,
    "batch_size": 8,
    "precision": "float32",
    "workers": 0,
    "logger": "none",
    "decoder_layers": 1,
}
OF = {"mae": {}, "masked-patch": {"decoder_layers": None}}


def begin(data: Path, out: Path, objective: str = "mae", **fields: Any) -> PretrainingRun:
    size = {} if "model" in fields else {"model_fields": runs.SIZE}
    own = {**QUICK, **size, **OF[objective], "objective": objective, **fields}
    given = {name: value for name, value in own.items() if value is not None}
    told = {name: given.pop(name) for name in ("progress", "force") if name in given}
    options, recipe = split_fields(given)
    return pretrain(data, vitkit.Recipe(**recipe), pretraining=vitkit.Pretraining(**options), out=out, **told)


@pytest.fixture(scope="module")
def runs_of(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], PretrainingRun]:
    """A run of two epochs by its objective, that tests may read but not change."""
    return functools.cache(lambda objective: begin(data, tmp_path_factory.mktemp("runs") / objective, objective))


@pytest.fixture(params=list(OF))
def finished(request: pytest.FixtureRequest, runs_of: Callable[[str], PretrainingRun]) -> PretrainingRun:
    return runs_of(request.param)


@pytest.fixture
def mae(runs_of: Callable[[str], PretrainingRun]) -> PretrainingRun:
    return runs_of("mae")


def stop_in(what: str, *, at_end: bool) -> Callable[[str, int, int | None], None]:
    def progress(now: str, done: int, total: int | None) -> None:
        if now == what and (done == total) == at_end:
            os.kill(os.getpid(), signal.SIGTERM)

    return progress


def same(one: Path, other: Path) -> None:
    runs.assert_same_outcome(one, other)
    first, second = ((own / "pretraining.safetensors").read_bytes() for own in (one, other))
    assert first == second


# --- One seed, one result ---------------------------------------------------------------------------


def test_a_stopped_run_has_the_same_weights(finished: PretrainingRun, data: Path, tmp_path: Path) -> None:
    """One at the first epoch's end, the other in the midst of the second."""
    lines: list[str] = []
    at_end = finished.choices.objective == "mae"
    with pytest.raises(Interrupted):
        stop = stop_in("epoch 1/2" if at_end else "epoch 2/2", at_end=at_end)
        with reporting_to(stop), heard(lines.append):
            begin(data, tmp_path / "run", finished.choices.objective)
    assert lines[-1] == f"to continue: vitkit pretrain --resume {tmp_path / 'run'}"
    assert not (tmp_path / "run" / "report.html").exists()
    pretrain(resume=tmp_path / "run")
    same(tmp_path / "run", finished.folder)
    assert (tmp_path / "run" / "report.html").is_file()


def test_workers_checkpointing_and_cache_change_nothing(mae: PretrainingRun, data: Path, tmp_path: Path) -> None:
    other = begin(data, tmp_path / "run", workers=1, cache="none", checkpointing="all")
    runs.assert_same_weights(other.folder, mae.folder)
    assert runs.metrics(other.folder) == runs.metrics(mae.folder)


def test_another_seed_hides_other_patches_and_leads_elsewhere(mae: PretrainingRun, data: Path, tmp_path: Path) -> None:
    other = begin(data, tmp_path / "run", seed=1, epochs=1, split_from=str(mae.folder))
    assert not torch.equal(*(runs.weights(own.folder)["blocks.0.attn.qkv.weight"] for own in (mae, other)))


def test_images_of_one_scene_stay_in_one_split(data: Path, tmp_path: Path) -> None:
    run = begin(data, tmp_path / "run", group_by=r"(\d)\.\w+$", epochs=1)  # the last digit of the name
    table = split_from_file(run.folder / "split.json")
    splits: dict[str, set[str]] = {}
    for path, split in zip(table.paths, table.splits, strict=True):
        splits.setdefault(Path(path).stem[-1], set()).add(split)
    assert set().union(*splits.values()) >= {"train", "val"}
    assert all(len(held) == 1 for held in splits.values())


def test_keys_differ_between_images_epochs_and_splits_and_not_otherwise() -> None:
    class Blank(Images):
        labels, paths = (), ()

        def __len__(self) -> int:
            return 50

        def __getitem__(self, key: Any) -> tuple[torch.Tensor, int]:
            return torch.zeros(1), 0

    images = [KeyedImages(Blank(), 0, kind) for kind in (1, 2)]
    keys = {keyed[epoch, i][1] for keyed in images for epoch in range(20) for i in range(50)}
    assert len(keys) == 2 * 20 * 50
    assert min(keys) >= -(2**31)
    assert max(keys) < 2**31
    assert images[1][1] == images[1][1]


def test_a_run_does_not_go_on_with_another_objective(finished: PretrainingRun, tmp_path: Path) -> None:
    folder = runs.copy_of(finished.folder, tmp_path / "run")
    text = (folder / "pretraining.toml").read_text()
    (folder / "pretraining.toml").write_text(text.replace("mask = 0.", "mask = 0.1"))
    with pytest.raises(
        VitkitError, match=r"belongs to another run, or the recipe was changed since: it has mask 0\.\d+, not"
    ):
        pretrain(resume=folder)


# --- What it leaves ---------------------------------------------------------------------------------


def test_it_leaves_the_encoder_of_the_least_loss_and_a_page(finished: PretrainingRun) -> None:
    whole = vitkit.create_model("vit_micro_patch4_16", num_classes=0, **runs.SIZE)
    assert runs.weights(finished.folder).keys() == whole.state_dict().keys()
    assert finished.encoder.classes == ()
    assert finished.encoder.provenance["pretraining"] == finished.choices.to_dict()
    assert finished.choices.objective in finished.lines()[0]
    losses = [row["val_loss"] for row in finished.metrics]
    assert len(losses) == 2 and finished.kept["val_loss"] == min(losses)
    assert ("val_acc" in finished.metrics[0]) == (finished.choices.target == "colour")
    page = finished.report.read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 2
    assert "Pictures filled in" in page and "No labels were used" in page
    assert "http:" not in page and "https:" not in page.replace("https://arxiv.org", "")


def test_it_learns(data: Path, tmp_path: Path) -> None:
    """The photographs are of three colours and noise: what colour a patch has, the others tell."""
    run = begin(data, tmp_path / "run", "masked-patch", epochs=6, lr=3e-3, target="pixels")
    losses = [row["val_loss"] for row in run.metrics]
    assert min(losses) < 0.7 * losses[0]


# --- What training makes of it ----------------------------------------------------------------------


def test_a_classifier_keeps_its_split_and_tests_on_unseen(mae: PretrainingRun, data: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    fields = {"weights": str(mae.folder), "method": "full", "epochs": 1, "seed": 5, "workers": 0}
    with heard(lines.append):
        run = vitkit.train(data, vitkit.Recipe(**fields), out=tmp_path / "run")
    before, after = (split_from_file(own.folder / "split.json") for own in (mae, run))
    parts = [dict(zip(own.paths, own.splits, strict=True)) for own in (before, after)]
    assert parts[0] == parts[1]
    assert any("are known from" in line and "keep their split" in line for line in lines)
    assert run.classifier.provenance["weights"]["from"]["pretraining"]["objective"] == "mae"


def test_the_record_knows_every_picture_and_no_label(mae: PretrainingRun) -> None:
    record = PictureRecord.from_bytes((mae.folder / "pictures.npz").read_bytes(), mae.folder)
    assert len(record) == 36
    assert record.names == (UNLABELLED,)
    assert record.is_whole
    table = split_from_file(mae.folder / "split.json")
    assert record.seen == sum(split != "test" for split in table.splits)


def test_unlabelled_pictures_of_a_test_set_are_told_of(data: Path, tmp_path: Path) -> None:
    """All pictures are pre-trained on as one heap; then a data set comes with its own split."""
    heap = tmp_path / "heap"
    heap.mkdir()
    for i, file in enumerate(sorted(data.rglob("*.png"))):
        shutil.copy(file, heap / f"{i}.png")
    run = begin(heap, tmp_path / "heap-run", epochs=1)
    assert set(split_from_file(run.folder / "split.json").splits) == {"train", "val"}
    split = tmp_path / "split"
    for number, file in enumerate(sorted(data.rglob("*.png"))):
        target = split / ("test" if number % 3 == 0 else "train") / file.parent.name / f"{number}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    lines: list[str] = []
    with heard(lines.append):
        vitkit.train(split, vitkit.Recipe(weights=str(run.folder), epochs=1, workers=0), out=tmp_path / "run")
    told = [line for line in lines if "had seen 12 of the 12 test images" in line]
    assert told
    assert told[0].startswith("problem: ")


def test_pretraining_goes_on_and_knows_what_weights_saw(mae: PretrainingRun, data: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    with heard(lines.append):
        run = begin(data, tmp_path / "run", "masked-patch", weights=str(mae.folder), model=None, seed=3)
    parts = [
        dict(zip(own.paths, own.splits, strict=True))
        for own in (split_from_file(own.folder / "split.json") for own in (mae, run))
    ]
    assert parts[0] == parts[1]
    assert run.recipe.weights == str(mae.folder)


# --- Folders ----------------------------------------------------------------------------------------


def test_unlabelled_takes_every_readable_picture_below_and_tests_none(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data / "red", tmp_path / "a" / "b" / "red")
    Image.new("RGB", (20, 20), "blue").save(tmp_path / "a" / "loose.png")
    (tmp_path / "a" / "broken.png").write_bytes(b"no picture")
    lines: list[str] = []
    with heard(lines.append):
        run = begin(tmp_path / "a", tmp_path / "run", unlabelled=True, epochs=1)
    table = split_from_file(run.folder / "split.json")
    assert len(table) == 13 and "test" not in table.splits
    assert any("1 of 14 images is unreadable" in line for line in lines)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_folder_without_pictures_is_refused(tmp_path: Path, is_there: bool) -> None:
    if is_there:
        (tmp_path / "photos").mkdir()
    with pytest.raises(VitkitError, match=r"no such folder|no images"):
        begin(tmp_path / "photos", tmp_path / "run", unlabelled=True)
    assert not (tmp_path / "run").exists()


# --- What cannot be ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"label_smoothing": 0.1}, "label_smoothing concerns labels"),
        ({"mixup": 0.2}, "mixup concerns labels"),
        ({"decoder_width": 50}, "multiple of 32"),
    ],
)
def test_fields_that_mean_nothing_here_are_refused(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(VitkitError, match=said):
        begin(tmp_path, tmp_path / "run", **fields)


@pytest.mark.parametrize(
    "model",
    ["vit_micro_r_s4_16", "vit_base_patch16_224_in21k", "torchvision:resnet18", "deit_tiny_distilled_patch16_224"],
)
def test_a_model_that_cannot_be_pretrained_leaves_nothing_behind(data: Path, tmp_path: Path, model: str) -> None:
    with pytest.raises(VitkitError, match="objective mae: "):
        begin(data, tmp_path / "run", model=model)
    assert not (tmp_path / "run").exists()


def test_each_kind_of_run_is_resumed_by_its_own_command_alone(mae: PretrainingRun, data: Path, tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match=f"is a pre-training: vitkit pretrain --resume {mae.folder}"):
        vitkit.train(resume=mae.folder)
    (tmp_path / "recipe.toml").write_text("")
    with pytest.raises(VitkitError, match=f"vitkit train --resume {tmp_path}"):
        pretrain(resume=tmp_path)
    with pytest.raises(VitkitError, match="leave out the data and the other flags"):
        pretrain(recipe=vitkit.Recipe(epochs=3), resume=mae.folder)
    before = (mae.folder / "model.safetensors").read_bytes()
    with pytest.raises(VitkitError, match="exists and is not empty"):
        begin(data, mae.folder)
    assert (mae.folder / "model.safetensors").read_bytes() == before


def test_a_recipe_of_a_pre_training_gives_way_to_what_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[dict[str, Any]]()
    monkeypatch.setattr(
        "vitkit.training.pretraining.pretrain.pretrain", lambda own, *_, **__: asked.append(own.set_fields())
    )
    recipe = tmp_path / "mae.toml"
    recipe.write_text("epochs = 3\n[model]\nlayers = 2\n")
    vitkit.pretrain("digits", vitkit.Recipe.load(recipe).updated(vitkit.Recipe(model_fields={"heads": 2})))
    assert asked == [{"epochs": 3, "model_fields": {"layers": 2, "heads": 2}, "data": "digits"}]
    with pytest.raises(VitkitError, match=r"no such recipe: .*none\.toml"):
        vitkit.pretrain("digits", recipe=tmp_path / "none.toml")
    with pytest.raises(VitkitError, match="resume takes everything from the run"):
        vitkit.pretrain(recipe=recipe, resume=tmp_path)
