"""Several processes train as one does: the same weights, and each image counted once."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import runs
import tiny
import warm
from once import once
from refusals import refused
from vitkit.classifier import Classifier
from vitkit.data import Augment, ImageData, ImageTable, Preprocess
from vitkit.training import ALONE, ProcessGroup, Recipe, check_team, form_process_group, read_metrics

BIN = Path(sys.executable).parent
PLAIN = ("--optimizer", "sgd", "--lr", "0.01", "--drop-path", "0", "--epochs", "1")


def divided(folder: Path) -> None:
    for number, path in enumerate(sorted(runs.photos(folder, images=16, noise=250.0).glob("*/*.png"))):
        target = folder / ("val" if number % 16 < 7 else "train") / path.parent.name
        target.mkdir(parents=True, exist_ok=True)
        path.rename(target / path.name)
    (folder / "train" / "red" / "img9.png").unlink()
    for name in runs.COLOURS:
        (folder / name).rmdir()


@pytest.fixture(scope="module")
def data() -> Path:
    """26 images to train on, of which two are a last short batch, and 21 to validate on."""
    return once("team-photos", divided)


def told(*command: object) -> str:
    """What a program says that succeeds; what torchrun starts begins warm, too."""
    words, env = [str(word) for word in command], runs.environment() | {"PYTHON_EXEC": warm.python()}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_several_processes_end_with_the_weights_and_the_numbers_of_one(data: Path, tmp_path: Path) -> None:
    alone, command = tmp_path / "alone", [BIN / "vitkit", "train", data, *runs.FLAGS, *PLAIN, "--out"]
    told(warm.python(), *command, alone)
    launcher = [BIN / "torchrun", "--standalone", "--nproc-per-node", 2]
    said = told(warm.python(), *launcher, *command, tmp_path / "run")
    assert said.count("1 epoch of 4 steps in float32; batch 8, lr 0.01") == 1, "one process talks, of the whole"
    ours, theirs = runs.weights(tmp_path / "run"), runs.weights(alone)
    assert ours.keys() == theirs.keys()
    assert max((ours[name] - theirs[name]).abs().max().item() for name in theirs) <= 1e-5
    for row, expected in zip(runs.metrics(tmp_path / "run"), runs.metrics(alone), strict=True):
        assert row == pytest.approx(expected, abs=1e-6)
        assert row["val_acc"] * 21 == pytest.approx(round(row["val_acc"] * 21), abs=1e-5), "a part of 21 images"
    evaluations = [json.loads((folder / "evaluation.json").read_text()) for folder in (tmp_path / "run", alone)]
    assert evaluations[0]["images"] == 21
    for name in ("accuracy", "balanced_accuracy"):
        assert evaluations[0][name] == pytest.approx(evaluations[1][name], abs=1e-6)
    # Asked as `vitkit eval` asks: rounded to three digits where the processor has bfloat16, and their temperature too.
    assert evaluations[0]["loss"] == pytest.approx(evaluations[1]["loss"], abs=1e-3)


EVERYTHING = {
    "method": "full", "batch_size": 8, "epochs": 2, "precision": "float32",
    "workers": 0, "mixup": 0.8, "cutmix": 1.0, "dropout": 0.1, "attention_dropout": 0.1, "drop_path": 0.3,
    "patch_dropout": 0.3, "random_erasing": 0.5, "rand_augment": 3, "grad_accum": 2, "balance": "sampler", "ema": 0.9,
}  # fmt: skip
WAYS = {"one": (1, None), "three": (3, None), "one image at a time": (1, 1)}
PAIRS = [("everything", "three"), ("everything", "one image at a time")]


@pytest.fixture(scope="module")
def together(data: Path) -> Path:
    """Runs by name and way, `parts/two` and so on; each has been trained from the same seed."""
    return once("together", lambda folder: train_all(folder, data))


def train_all(folder: Path, data: Path) -> None:
    for number, name in enumerate(("start", "teacher")):
        model = tiny.build(image_size=(16, 16), num_classes=3, layers=3 - number)
        Classifier(model, ("blue", "green", "red"), Preprocess(size=(16, 16))).save(folder / name)
    tuned = {"data": str(data), "weights": str(folder / "start")}
    every: dict[str, dict[str, Any]] = {
        "everything": {**tuned, **EVERYTHING, "teacher": str(folder / "teacher")},
    }
    asked = sorted({*PAIRS, *((name, "one") for name, _ in PAIRS)})
    jobs = [(str(folder / name / way), WAYS[way][0], every[name], WAYS[way][1]) for name, way in asked]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    told(warm.python(), Path(__file__).parents[1] / "together.py", folder / "jobs.json")


def difference(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], name: str) -> float:
    """The largest; but a bias of all keys adds the same to a whole row of the softmax: its gradient is rounding alone,
    of which Adam makes steps.
    """
    apart = (ours[name] - theirs[name]).abs()
    if name.endswith("attn.qkv.bias"):
        query, _, value = apart.chunk(3)
        apart = torch.cat([query, value])
    return apart.max().item()


@pytest.mark.parametrize(("name", "way"), PAIRS)
def test_what_is_random_is_the_same_in_any_number_of_processes_and_pieces(together: Path, name: str, way: str) -> None:
    ours, theirs = runs.weights(together / name / way), runs.weights(together / name / "one")
    assert ours.keys() == theirs.keys()
    assert max(difference(ours, theirs, part) for part in theirs) <= 1e-5
    for row, expected in zip(*(runs.metrics(together / name / own) for own in (way, "one")), strict=True):
        assert row == pytest.approx(expected, abs=1e-4)


def test_ctrl_c_stops_processes_after_the_same_step_and_the_run_goes_on(data: Path, tmp_path: Path) -> None:
    # A call of vitkit whose further processes start warm too, from what it takes for the interpreter.
    code = (
        f"import sys; sys.executable, sys.argv[0] = {warm.python()!r}, {str(BIN / 'vitkit')!r}; "
        "from vitkit.__main__ import main; main()"
    )
    vitkit = [warm.python(), "-c", code]
    command = [*vitkit, "train", data, *runs.FLAGS, *PLAIN[:-1], "30", "--devices", "2", "--out", tmp_path / "run"]
    process = subprocess.Popen(
        command, env=runs.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and not read_metrics(tmp_path / "run" / "metrics.csv"):
        time.sleep(0.05)
    assert read_metrics(tmp_path / "run" / "metrics.csv"), "the processes did not get that far"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert b"Traceback" not in output
    done = len(runs.metrics(tmp_path / "run"))
    assert 1 <= done < 30
    recipe = tmp_path / "run" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("epochs = 30", f"epochs = {done + 1}"))
    told(*vitkit, "train", "--resume", tmp_path / "run")
    assert [row["epoch"] for row in runs.metrics(tmp_path / "run")] == list(range(done + 1))


def images(train: int, val: int, batch_size: int, rank: int, size: int, **options: bool) -> ImageData:
    labels = tuple(i % 3 for i in range(train + val))
    splits = tuple("train" if i < train else "val" for i in range(train + val))
    paths = tuple(f"{i}.png" for i in range(train + val))
    table = ImageTable("made", Path("/"), ("a", "b", "c"), paths, labels, splits)
    shape = Preprocess(size=(16, 16))
    process = (rank, size)
    return ImageData(table, shape, Augment(), batch_size=batch_size, workers=0, seed=5, process=process, **options)


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 5), st.booleans())
def test_the_shares_of_a_batch_are_the_batch(train: int, batch_size: int, size: int, balanced: bool) -> None:
    whole = list(images(train, 0, batch_size, 0, 1, balanced=balanced)._batch_sampler())
    data = [images(train, 0, batch_size, rank, size, balanced=balanced) for rank in range(size)]
    shares = [list(own._batch_sampler()) for own in data]
    for number, batch in enumerate(whole):
        counted = [own.images_in(number, number) for own in data]
        assert all(share[number] for share in shares), "a process without images would not come to the meeting"
        keys = [key for share, (own, _) in zip(shares, counted, strict=True) for key in share[number][:own]]
        assert sorted(keys) == sorted(batch)
        assert counted == [(len(batch[rank::size]), len(batch)) for rank in range(size)]
    assert data[0].images_in(0, len(whole) - 1)[1] == train
    assert {len(share) for share in shares} == {len(whole)}


@settings(max_examples=50)
@given(st.integers(1, 30), st.integers(1, 6))
def test_validation_images_are_put_together_in_order_and_once(val: int, size: int) -> None:
    every = [images(3, val, 4, rank, size) for rank in range(size)]
    shares = [torch.tensor(list(data._val_loader.sampler), dtype=torch.float64) for data in every]
    assert all(len(share) for share in shares), "a process without images would not come to the meeting"
    assert every[0].combine_shares(shares).tolist() == list(range(val))


def test_the_others_are_told_if_the_first_process_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[list[Any]] = []
    monkeypatch.setattr("torch.distributed.broadcast_object_list", lambda outcome, **_: sent.append(list(outcome)))
    with pytest.raises(ZeroDivisionError):
        ProcessGroup(rank=0, size=2).main_first(lambda: 1 / 0)
    assert sent == [[False, None]]


TORCHRUN = {"WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": "x", "RANK": 0}
SLURM = {"SLURM_NTASKS": 8, "SLURM_NNODES": 2, "SLURM_JOB_NAME": "job"}


@pytest.mark.parametrize(("started", "devices"), [(TORCHRUN, 3), (SLURM, None)])
def test_other_numbers_than_were_started_are_refused(
    started: dict[str, Any], devices: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_NTASKS_PER_NODE", raising=False)  # it is not known which machine has how many
    for name, value in started.items():
        monkeypatch.setenv(name, str(value))
    with refused("training.processes-mismatch"):
        form_process_group(devices, None)


def test_what_several_processes_cannot_do_is_refused() -> None:
    check_team(Recipe(batch_size=2), ALONE)
    with refused("training.batch-too-small"):
        check_team(Recipe(batch_size=2), ProcessGroup(rank=0, size=3))
