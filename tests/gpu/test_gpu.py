"""On a CUDA GPU: `make test-gpu`. Every verb computes there and answers as it does on the CPU."""

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from photos import save
from tiny import FEW, VARIETY, build, images, largest_difference, some
from vitkit.errors import Interrupted
from vitkit.inference import open_runner
from vitkit.model.layers import PatchConvolution
from vitkit.training import TrainingState, read_metrics

if not torch.cuda.is_available():
    pytest.skip("no CUDA GPU, or not asked for: make test-gpu", allow_module_level=True)

MICRO = "vit_micro_patch4_16"
SMALL: dict[str, Any] = {"model": MICRO, "epochs": 2, "max_images": 300, "compile": "off", "workers": 0}


def train(out: Path, **fields: Any) -> vitkit.TrainingRun:
    """On the GPU, on digits; a small model for a short time unless the fields say otherwise."""
    return vitkit.train("digits", vitkit.Recipe(**{"device": "cuda", **SMALL, **fields}), out=out)


def on(device: str, precision: str = "float32") -> vitkit.Compute:
    return vitkit.Compute(device=device, precision=precision)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("run") / "digits").folder


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("family", some(VARIETY, FEW))
def test_the_eager_backend_answers_as_the_model_does(family: str, precision: str) -> None:
    model = build(**VARIETY[family])
    batch = images(3, config=model.config)
    with torch.inference_mode():
        expected = model(batch)
        found = open_runner(model, "eager", precision, device="cuda")(batch)
    assert found.device.type == "cpu"
    within = 1e-4 if precision == "float32" else 0.1 * max(1.0, expected.abs().max().item())
    assert largest_difference(found, expected) <= within


def test_a_model_that_is_on_the_gpu_is_asked_there() -> None:
    assert not torch.backends.cuda.matmul.allow_tf32, "which would be another arithmetic"
    model = build()
    batch = images(3, config=model.config)
    with torch.inference_mode():
        found = open_runner(copy.deepcopy(model).cuda(), "eager", "float32")(batch)
        assert largest_difference(found, model(batch)) <= 1e-4


@pytest.mark.parametrize(
    ("patch", "size"), [((4, 4), (16, 16)), ((2, 8), (12, 16)), ((1, 1), (3, 5)), ((4, 4), (18, 17))]
)
def test_patches_are_embedded_by_products_as_by_convolution(patch: tuple[int, int], size: tuple[int, int]) -> None:
    ours = PatchConvolution(3, 6, patch, stride=patch, device="cuda", dtype=torch.float64)
    theirs = torch.nn.Conv2d(3, 6, patch, stride=patch, device="cuda", dtype=torch.float64)
    theirs.load_state_dict(ours.state_dict())
    batch = torch.randn(2, 3, *size, device="cuda", dtype=torch.float64, requires_grad=True)
    for given in (batch, batch.to(memory_format=torch.channels_last)):
        results = []
        for layer in (ours, theirs):
            out = layer(given)
            results.append((out, *torch.autograd.grad(out.square().sum(), [batch, *layer.parameters()])))
        for found, expected in zip(*results, strict=True):
            assert found.shape == expected.shape
            assert largest_difference(found, expected) <= 1e-10


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_small_batches_are_replayed_as_they_are_computed(precision: str) -> None:
    model = build()
    runner = open_runner(model, "eager", precision, device="cuda")
    within = 1e-4 if precision == "float32" else 0.1
    with torch.inference_mode(), ThreadPoolExecutor(3) as pool:
        batches = [images(count, config=model.config) for count in (1, 3, 1, 32, 33, 2, 3, 1, 40, 32)] * 2
        for batch, found in zip(batches, pool.map(runner, batches), strict=True):
            assert largest_difference(found, model(batch)) <= within


@pytest.mark.filterwarnings("ignore")  # of torch itself, as it imports its compiler
def test_compiled_batches_of_any_size() -> None:
    model = build()
    runner = open_runner(model, "compile", "float32", device="cuda")
    with torch.inference_mode():
        for count in (1, 8, 3, 40, 2):
            batch = images(count, config=model.config)
            assert largest_difference(runner(batch), model(batch)) <= 1e-4


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_two_trainings_begin_alike_on_gpu_and_cpu(tmp_path: Path, precision: str) -> None:
    first = {}
    for device in ("cpu", "cuda"):
        train(tmp_path / device, device=device, precision=precision, seed=3)
        first[device] = read_metrics(tmp_path / device / "metrics.csv")[0]["train_loss"]
    assert first["cuda"] == pytest.approx(first["cpu"], abs=1e-3 if precision == "float32" else 3e-2)


@pytest.mark.filterwarnings("ignore")  # of torch itself, as it imports its compiler
@pytest.mark.parametrize(
    "fields",
    [
        *({"ema": 0.9}, {"swa": 0.5}, {"mixup": 0.8, "cutmix": 1.0}, {"patch_dropout": 0.3, "workers": 2}),
        *({"precision": "float16"}, {"compile": "on"}),
        {"model": "torchvision:shufflenet_v2_x0_5", "image_size": 32},
    ],
    ids=str,
)
def test_ways_of_training(tmp_path: Path, fields: dict[str, Any]) -> None:
    assert 0 <= train(tmp_path / "run", **fields).evaluation["accuracy"] <= 1
    losses = [row["train_loss"] for row in read_metrics(tmp_path / "run" / "metrics.csv")]
    assert losses[-1] < losses[0] or fields != {"precision": "float16"}


def test_folds(tmp_path: Path) -> None:
    found = train(tmp_path / "run", folds=2, epochs=1)
    assert 0 <= vitkit.evaluate(found.folder, compute=on("cuda", "auto"), data="digits").to_dict()["accuracy"] <= 1


def test_an_interrupted_training_goes_on(tmp_path: Path) -> None:
    class Interrupting:
        def on_step_end(self, state: TrainingState) -> None:
            if state.step == 5:
                raise Interrupted(15)

    fields = SMALL | {"epochs": 3, "batch_size": 32, "ema": 0.9}
    whole, hooks = train(tmp_path / "whole", **fields), vitkit.Hooks(callbacks=[Interrupting()])
    with pytest.raises(Interrupted):
        vitkit.train("digits", vitkit.Recipe(device="cuda", **fields), hooks=hooks, out=tmp_path / "cut")
    resumed = vitkit.train(resume=tmp_path / "cut")
    last = [read_metrics(run.folder / "metrics.csv")[-1]["train_loss"] for run in (whole, resumed)]
    assert last[1] == pytest.approx(last[0], abs=1e-3)


def test_unfamiliar_pictures_and_sets_are_those_of_the_cpu(run: Path, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (4, 32, 32, 3), dtype=np.uint8)
    for i, picture in enumerate(noise):
        Image.fromarray(picture).save(tmp_path / f"{i}.png")
    promises = vitkit.Promises(coverage=0.9)
    rows = [vitkit.predict(run, tmp_path, compute=on(device), promises=promises) for device in ("cpu", "cuda")]
    for here, there in zip(*rows, strict=True):
        assert there.familiar == pytest.approx(here.familiar, abs=0.02)
        assert there.set == here.set


@pytest.mark.parametrize("method", ["probe", "probe-sgd", "lora", "full"])
def test_every_method_fine_tunes(run: Path, tmp_path: Path, method: str) -> None:
    unused = {"model"} if method != "probe" else {"model", "epochs", "compile"}
    fields = {name: value for name, value in SMALL.items() if name not in unused}
    recipe = vitkit.Recipe(weights=str(run), method=method, device="cuda", **fields)
    vitkit.train("digits", recipe, out=tmp_path / "tuned")
    assert (tmp_path / "tuned" / "report.html").is_file()


def test_pre_training(tmp_path: Path) -> None:
    vitkit.pretrain("digits", vitkit.Recipe(device="cuda", **SMALL), out=tmp_path / "run")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_run_is_evaluated_as_on_the_cpu(run: Path, precision: str) -> None:
    here, there = (
        vitkit.evaluate(run, compute=on(device, precision)).to_dict()["accuracy"] for device in ("cpu", "cuda")
    )
    assert there == pytest.approx(here, abs=0.001 if precision == "float32" else 0.05)


def test_predictions_features_and_maps_are_those_of_the_cpu(run: Path, tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    pictures = tmp_path / "pictures"
    for i, digit in enumerate(load_digits().images[:6]):
        save(Image.fromarray((digit * 15).astype(np.uint8)).resize((32, 32)), pictures / f"{i}.png")
    rows = {}
    for device in ("cpu", "cuda"):
        rows[device] = vitkit.predict(run, pictures, compute=on(device))
        features = vitkit.embed(run, pictures, compute=vitkit.Compute(device=device), out=tmp_path / f"{device}.npz")
        assert len(features.paths) == 6
        vitkit.explain(run, pictures, tmp_path / f"maps-{device}", compute=vitkit.Compute(device=device))
    for here, there in zip(rows["cpu"], rows["cuda"], strict=True):
        assert here.label == there.label
        assert here.confidence == pytest.approx(there.confidence, abs=1e-4)
    here, there = (np.load(tmp_path / f"{device}.npz")["features"] for device in ("cpu", "cuda"))
    assert np.abs(here - there).max() <= 1e-3


@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")  # of torch itself, as it reads
def test_a_run_of_the_gpu_is_exported_and_timed(run: Path, tmp_path: Path) -> None:
    assert vitkit.export(run, "torch", tmp_path / "digits.pt2") is not None
    assert vitkit.bench(run, batch_sizes="8", backends="eager", rounds=3, device="cuda").to_dict()
