"""Pre-training as a run: the same weights however it is cut up, what it leaves, and what training makes of it."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import runs
import vitkit
from hearing import heard
from once import once
from refusals import refused
from vitkit.data import PictureRecord, split_from_file
from vitkit.data.loading import Images
from vitkit.data.seen import UNLABELLED
from vitkit.errors import Interrupted
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
}
OBJECTIVES = ("mae", "masked-patch")


def begin(data: Path, out: Path, objective: str = "mae", **fields: Any) -> PretrainingRun:
    size = {} if "model" in fields else {"model_fields": runs.SIZE}
    own = {**QUICK, **size, "objective": objective, **fields}
    given = {name: value for name, value in own.items() if value is not None}
    told = {name: given.pop(name) for name in ("progress", "force") if name in given}
    options, recipe = split_fields(given)
    return pretrain(data, vitkit.Recipe(**recipe), pretraining=vitkit.Pretraining(**options), out=out, **told)


def shared(objective: str) -> PretrainingRun:
    """A run of two epochs, that tests may read but not change."""
    return PretrainingRun(once(f"pretrained-{objective}", lambda place: begin(runs.shared_photos(), place, objective)))


@pytest.fixture(params=OBJECTIVES)
def finished(request: pytest.FixtureRequest) -> PretrainingRun:
    return shared(request.param)


@pytest.fixture
def mae() -> PretrainingRun:
    return shared("mae")


def test_a_stopped_run_has_the_same_weights(finished: PretrainingRun, data: Path, tmp_path: Path) -> None:
    """One at the first epoch's end, the other in the midst of the second."""
    lines: list[str] = []

    def stop(now: str, done: int, total: int | None) -> None:
        if now == ("epoch 1/2" if at_end else "epoch 2/2") and (done == total) == at_end:
            os.kill(os.getpid(), signal.SIGTERM)

    at_end = finished.choices.objective == "mae"
    with pytest.raises(Interrupted), reporting_to(stop), heard(lines.append):
        begin(data, tmp_path / "run", finished.choices.objective)
    assert lines[-1] == f"to continue: vitkit pretrain --resume {tmp_path / 'run'}"
    assert not (tmp_path / "run" / "report.html").exists()
    pretrain(resume=tmp_path / "run")
    runs.assert_same_outcome(tmp_path / "run", finished.folder)
    one, other = ((own / "pretraining.safetensors").read_bytes() for own in (tmp_path / "run", finished.folder))
    assert one == other
    assert (tmp_path / "run" / "report.html").is_file()


def test_keys_differ_between_seeds_images_epochs_and_splits_and_not_otherwise() -> None:
    class Blank(Images):
        labels, paths = (), ()

        def __len__(self) -> int:
            return 50

        def __getitem__(self, key: Any) -> tuple[torch.Tensor, int]:
            return torch.zeros(1), 0

    images = [KeyedImages(Blank(), seed, kind) for seed in (0, 1) for kind in (1, 2)]
    keys = {keyed[epoch, i][1] for keyed in images for epoch in range(20) for i in range(50)}
    assert len(keys) == 2 * 2 * 20 * 50
    assert min(keys) >= -(2**31) and max(keys) < 2**31
    assert images[1][1] == images[1][1]


def test_it_leaves_the_encoder_of_the_least_loss_a_page_and_a_record_without_labels(finished: PretrainingRun) -> None:
    whole = vitkit.create_model("vit_micro_patch4_16", num_classes=0, **runs.SIZE)
    assert runs.weights(finished.folder).keys() == whole.state_dict().keys()
    assert finished.encoder.classes == ()
    assert finished.encoder.provenance["pretraining"] == finished.choices.to_dict()
    losses = [row["val_loss"] for row in finished.metrics]
    assert len(losses) == 2 and finished.kept["val_loss"] == min(losses)
    assert ("val_acc" in finished.metrics[0]) == (finished.choices.target == "colour")
    assert finished.report.read_text(encoding="utf-8").count("data:image/png;base64,") == 2
    record = PictureRecord.from_bytes((finished.folder / "pictures.npz").read_bytes(), finished.folder)
    assert (len(record), record.names, record.is_whole) == (36, (UNLABELLED,), True)
    assert record.seen == sum(split != "test" for split in split_from_file(finished.folder / "split.json").splits)


def test_it_learns_and_images_of_one_scene_stay_in_one_split(data: Path, tmp_path: Path) -> None:
    """The photographs are of three colours and noise: what colour a patch has, the others tell."""
    fields = {"epochs": 6, "lr": 3e-3, "target": "pixels", "group_by": r"(\d)\.\w+$"}  # the last digit of the name
    run = begin(data, tmp_path / "run", "masked-patch", **fields)
    losses = [row["val_loss"] for row in run.metrics]
    assert min(losses) < 0.7 * losses[0]
    scenes = {(Path(path).stem[-1], split) for path, split in split_of(run.folder).items()}
    assert len(scenes) == 10 and {split for _, split in scenes} >= {"train", "val"}


def split_of(folder: Path) -> dict[str, str | None]:
    table = split_from_file(folder / "split.json")
    return dict(zip(table.paths, table.splits, strict=True))


def test_training_and_pretraining_from_a_pretraining_keep_its_split(
    mae: PretrainingRun, data: Path, tmp_path: Path
) -> None:
    fields = {"weights": str(mae.folder), "method": "full", "epochs": 1, "seed": 5, "workers": 0}
    run = vitkit.train(data, vitkit.Recipe(**fields), out=tmp_path / "run")
    assert run.classifier.provenance["weights"]["from"]["pretraining"]["objective"] == "mae"
    more = begin(data, tmp_path / "more", "masked-patch", weights=str(mae.folder), model=None, seed=3, epochs=1)
    assert more.recipe.weights == str(mae.folder)
    assert split_of(run.folder) == split_of(more.folder) == split_of(mae.folder)


def test_unlabelled_pictures_of_a_test_set_are_told_of(data: Path, tmp_path: Path) -> None:
    """All pictures are pre-trained on as one heap; then a data set comes with its own split."""
    heap, split = tmp_path / "heap", tmp_path / "split"
    for number, file in enumerate(sorted(data.rglob("*.png"))):
        part = split / ("test" if number % 3 == 0 else "train") / file.parent.name
        for folder in (heap, part):
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, folder / f"{number}.png")
    run = begin(heap, tmp_path / "heap-run", epochs=1)
    assert set(split_from_file(run.folder / "split.json").splits) == {"train", "val"}
    _, said = runs.followed(split, tmp_path / "run", weights=str(run.folder), epochs=1, workers=0)
    (told,) = [line for line in said.splitlines() if "had seen 12 of the 12 test images" in line]
    assert told.startswith("problem: ")


def test_unlabelled_takes_every_readable_picture_below_and_tests_none(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data / "red", tmp_path / "a" / "b" / "red")
    Image.new("RGB", (20, 20), "blue").save(tmp_path / "a" / "loose.png")
    (tmp_path / "a" / "broken.png").write_bytes(b"no picture")
    run = begin(tmp_path / "a", tmp_path / "run", unlabelled=True, epochs=1)
    table = split_from_file(run.folder / "split.json")
    assert len(table) == 13 and "test" not in table.splits


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"label_smoothing": 0.1}, "training.field-refused"),
        ({"model": "vit_micro_r_s4_16"}, "training.model-unsupported"),
        ({"model": "torchvision:resnet18"}, "training.model-unsupported"),
    ],
)
def test_what_cannot_be_pretrained_leaves_nothing_behind(
    data: Path, tmp_path: Path, fields: dict[str, Any], code: str
) -> None:
    with refused(code):
        begin(data, tmp_path / "run", **fields)
    assert not (tmp_path / "run").exists()


def test_its_own_command_and_objective_alone_resume_a_run(mae: PretrainingRun, data: Path, tmp_path: Path) -> None:
    with refused("training.run-kind", f"vitkit pretrain --resume {mae.folder}"):
        vitkit.train(resume=mae.folder)
    (tmp_path / "recipe.toml").write_text("")
    with refused("training.run-kind", f"vitkit train --resume {tmp_path}"):
        pretrain(resume=tmp_path)
    with refused("verbs.option-conflict"):
        pretrain(recipe=vitkit.Recipe(epochs=3), resume=mae.folder)
    before = (mae.folder / "model.safetensors").read_bytes()
    with refused("training.out-not-empty"):
        begin(data, mae.folder)
    assert (mae.folder / "model.safetensors").read_bytes() == before
    folder = runs.copy_of(mae.folder, tmp_path / "run")
    text = (folder / "pretraining.toml").read_text()
    (folder / "pretraining.toml").write_text(text.replace("mask = 0.", "mask = 0.1"))
    with refused("training.checkpoint-differs", "mask"):
        pretrain(resume=folder)
