"""`vitkit plan`: counts against formulas and real steps, memory against what an allocator recorded."""

from __future__ import annotations

import dataclasses
import json
import math
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vitkit
from cli.conftest import vitkit as command
from vitkit.experiments import Footprint, job_of, memory_of, most_that_fit, passes, rehearse_step
from vitkit.model import config_for
from vitkit.profiling import ACCELERATORS, Accelerator, find_accelerator, register
from vitkit.training import Recipe, bundled

__all__ = ["command"]

MICRO, IMAGES = "vit_micro_patch4_16", 1000
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "planning.py"


@pytest.fixture(scope="module")
def planned() -> Callable[..., vitkit.TrainingPlan]:
    """Plans that several tests look at; each takes a second."""
    known: dict[str, vitkit.TrainingPlan] = {}

    def plan(recipe: str = MICRO, **options: Any) -> vitkit.TrainingPlan:
        asked = {"images": IMAGES, "classes": 10, **options}
        key = repr((recipe, sorted(asked.items())))
        if key not in known:
            known[key] = vitkit.plan(recipe, **asked)
        return known[key]

    return plan


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The script that takes real steps, as a module."""
    monkeypatch.syspath_prepend(BENCHMARK.parent)
    return runpy.run_path(str(BENCHMARK))


def macs_of_vit(name: str, classes: int) -> int:
    """Of an image's forward pass, from the paper's equations: the last layer's other tokens are not computed."""
    own = config_for(name, classes)
    N, D, patch = own.tokens, own.hidden_size, own.patch_size[0] * own.patch_size[1] * own.in_channels
    layer = N * D * 3 * D + 2 * N * N * D + N * D * D + 2 * N * D * own.mlp_size
    last = N * D * 2 * D + D * D + 2 * N * D + D * D + 2 * D * own.mlp_size
    return own.patches * patch * D + (own.layers - 1) * layer + last + D * classes


# --- Against a real step ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "checkpointing"), [pytest.param("float32", "none", marks=pytest.mark.accept), ("bfloat16", "2")]
)
def test_a_rehearsed_step_is_the_step(benchmark: dict[str, Any], precision: str, checkpointing: str) -> None:
    row = benchmark["compare"](MICRO, 16, precision, checkpointing, fused=False, device="cpu", momentum=0.8)
    assert row["parameters"] == row["parameters_real"]
    assert row["gflops"] == row["gflops_real"] > 0
    assert row["ratio"] == pytest.approx(1, abs=0.04)


@pytest.mark.accept
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("checkpointing", ["none", "2", "all"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_small_patch16_224", "vit_base_patch16_224"])
def test_memory_is_within_a_tenth_of_the_allocators_record(
    benchmark: dict[str, Any], name: str, precision: str, checkpointing: str, fused: bool
) -> None:
    row = benchmark["compare"](name, 8, precision, checkpointing, fused, device="cpu")
    assert row["parameters"] == row["parameters_real"]
    assert row["gflops"] == row["gflops_real"]
    assert row["ratio"] == pytest.approx(1, abs=0.1)


@pytest.mark.accept
@pytest.mark.parametrize(
    "fields",
    [
        {"ema": 0.99},
        {"optimizer": "sgd"},
        {"mixup": 0.8, "cutmix": 1.0},
        {"label_smoothing": 0.0, "clip_grad": 0.0},
        {"weight_decay": 0.0, "layer_decay": 0.7},
    ],
    ids=lambda fields: " ".join(fields),
)
def test_whatever_a_recipe_asks_for_is_in_the_memory(benchmark: dict[str, Any], fields: dict[str, Any]) -> None:
    assert benchmark["compare"]("vit_tiny_patch16_224", 8, "float32", "none", False, device="cpu", **fields)[
        "ratio"
    ] == pytest.approx(1, abs=0.1)


# --- Against formulas ---------------------------------------------------------------------------------


def step_of(name: str = MICRO, images: int = 16, *, on_gpu: bool = False, **fields: Any) -> Footprint:
    recipe = Recipe(**{"model": name, "weights": "none", "method": "scratch", "drop_path": 0.0, **fields})
    rates = {rate: getattr(recipe, rate) for rate in ("dropout", "attention_dropout", "drop_path")}
    return rehearse_step(config_for(name, 10, **rates), recipe, images, precision="float32", on_gpu=on_gpu)


def test_the_sizes_of_a_step_are_those_of_its_tensors() -> None:
    own, images = step_of(), 16
    numbers = sum(p.numel() for p in vitkit.create_model(MICRO, num_classes=10).parameters())
    assert own.parameters == own.trained == numbers
    assert own.weights == own.gradients == 4 * numbers
    tensors = len(list(vitkit.create_model(MICRO, num_classes=10).parameters()))
    assert own.optimizer == 8 * numbers + 4 * tensors, "two moments, and a count of steps each"
    assert own.forward_flops == 2 * images * macs_of_vit(MICRO, 10)
    config = config_for(MICRO, 10)
    first = 2 * images * config.patches * config.patch_size[0] * config.patch_size[1] * 3 * config.hidden_size
    assert own.flops == 3 * own.forward_flops - first, "no gradient of the pixels"
    assert own.around + config.layers * own.block == own.weights


def test_what_makes_a_step_lighter_does_so_in_its_rehearsal() -> None:
    plain = step_of()
    again = step_of(checkpointing="all")
    assert again.activations < 0.5 * plain.activations
    assert again.flops > plain.flops
    frozen = step_of(method="probe-sgd", weights="auto")
    assert frozen.gradients == 4 * frozen.trained < plain.gradients / 100
    assert frozen.flops < 1.01 * frozen.forward_flops


@pytest.mark.accept
def test_what_makes_a_step_otherwise_does_so_in_its_rehearsal() -> None:
    plain = step_of()
    assert step_of(on_gpu=True).activations < plain.activations
    fewer = step_of(patch_dropout=0.5)
    assert fewer.activations < 0.7 * plain.activations
    assert fewer.flops < 0.6 * plain.flops
    low = step_of(method="lora", weights="auto", lora_rank=2)
    assert plain.trained / 20 > low.trained > 0
    averaged = step_of(ema=0.9)
    assert averaged.average == averaged.weights
    assert step_of(grad_accum=4).flops == 4 * plain.flops
    assert step_of(dropout=0.1, attention_dropout=0.1).activations > plain.activations


def test_a_plan_multiplies_its_step(planned: Callable[..., vitkit.TrainingPlan]) -> None:
    own = planned(epochs=3, batch_size=64, devices=4, price=2.0, utilisation=0.25, accelerator="a100")
    assert (own.steps, own.images_seen, own.batch_of_device) == (3 * 16, 3000, 16)
    assert own.tokens == 3000 * config_for(MICRO).tokens
    assert own.forward_flops == 2 * macs_of_vit(MICRO, 10)
    assert own.flops == 3000 * own.flops_per_image
    assert own.seconds == pytest.approx(own.flops / (4 * 0.25 * 312e12))
    assert own.cost == pytest.approx(2.0 * 4 * own.seconds / 3600)
    assert own.decoding_cores == pytest.approx(3000 / own.seconds / own.decode_rate)
    assert {(row.strategy, row.checkpointing) for row in own.memory} == {
        (strategy, way) for strategy in ("ddp", "fsdp") for way in ("none", "all")
    }
    assert own.recipe.strategy == "auto"
    assert own.memory[0].strategy == "ddp"


def test_what_each_holds_a_part_of_is_divided(planned: Callable[..., vitkit.TrainingPlan]) -> None:
    own = planned(epochs=3, batch_size=64, devices=4, price=2.0, utilisation=0.25, accelerator="a100")
    rows = {row.strategy: row for row in own.memory if row.checkpointing == "none"}
    for name in ("weights", "gradients", "optimizer"):
        whole, part = (getattr(rows[strategy], name) for strategy in ("ddp", "fsdp"))
        assert part == -(-whole // 4)
    assert rows["ddp"].activations == rows["fsdp"].activations
    assert rows["ddp"].exchange == rows["ddp"].gradients
    assert 0 < rows["fsdp"].exchange < rows["fsdp"].weights * 4 * 2


def test_a_network_of_another_library_is_planned(planned: Callable[..., vitkit.TrainingPlan]) -> None:
    own = planned("torchvision:resnet18", images=100, image_size=32, classes=1000, batch_size=4, epochs=1)
    assert own.parameters == 11_689_512  # as torchvision says
    assert own.tokens == 0
    assert [row.checkpointing for row in own.memory] == ["none"]
    assert 2.5 < own.flops_per_image / own.forward_flops < 3
    with pytest.raises(vitkit.VitkitError, match="checkpointing requires a Vision Transformer"):
        planned("torchvision:resnet18", checkpointing="all")


# --- What is asked for --------------------------------------------------------------------------------


def test_several_recipes_are_planned_as_each_alone() -> None:
    names = ["vit_micro_patch8_16", "torchvision:resnet18", "timm:resnetv2_18"]
    flags: dict[str, Any] = {"images": 100, "epochs": 2, "classes": 3, "batch_size": 4, "image_size": 32}
    plans = vitkit.plan(names[0], names[1:], **flags)
    alone = [vitkit.plan(name, **flags) for name in names]
    for plan, expected in zip([plans, *plans.others], alone, strict=True):  # a first rehearsal may take bytes more
        assert dataclasses.replace(plan, others=(), memory=()) == dataclasses.replace(expected, memory=())
        assert plan.memory[0].peak == pytest.approx(expected.memory[0].peak, rel=1e-4)
    assert [other["name"] for other in plans.to_dict()["others"]] == names[1:]
    _, _, heading, *rows = plans.lines()
    assert "relative" in heading and [row.split()[0] for row in rows[:3]] == names
    for row, plan in zip(rows, alone, strict=False):
        assert f"{plan.parameters:,}" in row and f"{plan.device_hours / alone[0].device_hours:.3g}" in row
    assert rows[3:] == [f"note: {note}" for note in alone[0].notes]


def test_a_recipe_among_several_that_is_unknown_is_named_before_a_step_is_rehearsed() -> None:
    seen: list[Any] = []
    with pytest.raises(vitkit.VitkitError, match="unknown model 'nothing'"):
        vitkit.plan(MICRO, ["nothing"], images=10, classes=2, progress=lambda *report: seen.append(report))
    assert seen == []


def test_a_run_is_planned_by_its_recipe(tmp_path: Path) -> None:
    with pytest.raises(vitkit.VitkitError, match=r"is a folder: name a recipe, such as .*recipe\.toml"):
        vitkit.plan(tmp_path, images=10, classes=2)


def test_a_bundled_recipe_is_planned_with_its_data() -> None:
    own = job_of("digits", {}, None, None)
    assert own.config.num_classes == 10
    assert own.images == 1259  # as README has it: each class is divided by itself
    assert passes(own.recipe, own.images) == (70 * 1259, 70 * 40)  # 70 epochs of 40 steps, as README has it
    assert any("1,259 of digits" in note for note in own.notes)
    assert job_of("flowers-head", {}, None, None).images == 2939  # as its own heading has it


@pytest.mark.parametrize("name", bundled())
def test_every_bundled_recipe_can_be_planned_without_its_weights(name: str) -> None:
    own = job_of(name, {}, 5000, 50)
    assert own.config.num_classes == 50
    assert passes(own.recipe, own.images)[0] > 0


def test_a_recipe_in_a_file_is_planned(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'weights = "none"\nepochs = 2\nbatch_size = 16\n[model]\nname = "vit_micro_patch4_16"\nlayers = 2\n'
    )
    own = job_of(str(tmp_path / "mine.toml"), {"epochs": 5, "grad_accum": 2}, 1000, 10)
    assert passes(own.recipe, own.images) == (5000, 5 * 32)
    assert own.config == config_for(MICRO, 10, layers=2, drop_path=own.recipe.drop_path)


def test_a_fine_tuning_is_settled_as_training_settles_it() -> None:
    many = job_of(MICRO, {"weights": "auto"}, 10_000, 10)
    assert (many.recipe.method, many.recipe.patch_dropout) == ("full", 0.3)
    assert many.config.pool == "token"
    few = job_of(MICRO, {"weights": "auto"}, 100, 10)
    assert few.recipe.method == "probe"
    assert few.config.pool == "token+gap"
    assert passes(few.recipe, few.images) == (100, 0)
    assert job_of(MICRO, {"max_images": 50}, 100, 10).images == 50


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        ("vit_tinny_patch16_224", {}, "did you mean"),
        ("nowhere.toml", {}, "no such recipe: nowhere.toml"),
        (MICRO, {"images": None}, "with --images"),
        (MICRO, {"images": 0}, "--images must be at least 1"),
        (MICRO, {"accelerator": "abacus"}, "'abacus' is none of h200, h100"),
        (MICRO, {"accelerator": "v100", "precision": "bfloat16"}, "v100: the peak speed in bfloat16"),
        (MICRO, {"utilisation": 40}, "--utilisation must be above 0 and at most 1"),
        (MICRO, {"price": float("nan")}, "--price must be a number above 0"),
        (MICRO, {"decode_rate": 0.0}, "--decode-rate must be a number above 0"),
        (MICRO, {"batch_size": 4, "devices": 8}, "batch_size 4 is too small for 8"),
        (MICRO, {"weights": "somewhere.pth", "method": "full", "model": None}, "set it with --model"),
        (MICRO, {"patch_dropout": 0.5, "model_fields": {"position": "relative"}}, "--patch-dropout"),
        (MICRO, {"layres": 3}, "unknown field 'layres'"),
    ],
)
def test_what_cannot_be_planned_is_refused(recipe: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(vitkit.VitkitError, match=message):
        vitkit.plan(recipe, **{"images": 10, **options})


def test_the_command_says_what_the_function_returns(command: Any, planned: Callable[..., vitkit.TrainingPlan]) -> None:
    planned()  # the first rehearsal of a process meets a constant of PyTorch's, 4 bytes that later ones find there
    own = planned(method="probe", weights="auto", batch_size=16, price=2.0, utilisation=0.25, accelerator="a100")
    words = "--images 1000 --classes 10 --method probe --weights auto --batch-size 16 --price 2"
    words += " --accelerator a100 --utilisation 0.25"
    done = command("plan", MICRO, *words.split())
    assert done.code == 0
    assert done.out == "".join(f"{line}\n" for line in own.lines())
    told = json.loads(command("plan", MICRO, *words.split(), "--json").out)
    assert told == json.loads(json.dumps(own.to_dict()))
    assert told["flops"] == own.flops
    assert command("plan", MICRO).code == 2


# --- Accelerators and the paper -----------------------------------------------------------------------


def test_every_accelerator_has_a_source_and_a_peak() -> None:
    for name, own in ACCELERATORS.items():
        assert own.name == name
        assert own.source.startswith("https://")
        assert own.memory >= 16e9
        assert (own.bfloat16 or own.float32 or 0) > 1e12
    assert find_accelerator("h100").peak("bfloat16") == 989e12


def test_an_accelerator_can_be_added(
    monkeypatch: pytest.MonkeyPatch, planned: Callable[..., vitkit.TrainingPlan]
) -> None:
    monkeypatch.setattr("vitkit.profiling.accelerators.ACCELERATORS", dict(ACCELERATORS))
    small = Accelerator("toy", None, 1e9, 10 * 2**20, "a toy", "https://example.org")
    register(small)
    with pytest.raises(ValueError, match="already"):
        register(small)
    own = planned(accelerator="toy", method="probe", weights="auto", batch_size=16)
    assert own.precision == "float32"
    assert own.memory[0].fits


def test_what_does_not_fit_is_said_and_how_many_would() -> None:
    step = Footprint(
        images=100, parameters=25, trained=25, flops=1, forward_flops=1,
        weights=100, gradients=100, optimizer=200, average=0, teacher=0, activations=1000, peak=1400,
        moving=1050, block=20, around=40,
    )  # fmt: skip
    rows = {
        (strategy, room): memory_of(step, "none", strategy, devices=4, images=100, room=room)  # type: ignore[arg-type]
        for strategy, room in (
            ("alone", 1400),
            ("alone", 1399),
            ("alone", 900),
            ("alone", 300),
            ("ddp", 1500),
            ("fsdp", 1400),
        )
    }
    peaks = [1400, 1400, 1400, 1400, 1400 + 100, 25 + 25 + 50 + 1050 + 40 + 3 * 20]  # ddp keeps buckets of gradients
    assert [row.peak for row in rows.values()] == peaks
    assert [row.fits for row in rows.values()] == [True, False, False, False, True, True]
    light = dataclasses.replace(step, activations=10, peak=410, moving=12)
    assert memory_of(light, "all", "ddp", devices=4, images=100, room=1400).peak == 410 + 100


@given(
    fixed=st.integers(0, 1000),
    lines=st.lists(st.tuples(st.integers(-2000, 600), st.integers(1, 60)), min_size=1, max_size=3),
    batch=st.integers(2, 600),
    part=st.floats(0, 0.999),
    guess=st.integers(-5, 700),
)
def test_the_most_images_that_fit_are_found_in_few_rehearsals(
    fixed: int, lines: list[tuple[int, int]], batch: int, part: float, guess: int
) -> None:
    tried: list[int] = []

    def peak(images: int) -> int:
        tried.append(images)
        return max(fixed, *(begin + slope * images for begin, slope in lines))

    room = int(part * peak(batch))
    most = max((images for images in range(1, batch) if peak(images) <= room), default=0)
    above = peak(batch)
    tried.clear()
    if above > room:
        assert most_that_fit(peak, guess, batch, above, room) == most
        assert len(tried) <= 2 * math.ceil(math.log2(batch)) + 2


@pytest.mark.accept
def test_what_fits_of_a_batch_is_rehearsed_with_and_without_checkpointing(
    planned: Callable[..., vitkit.TrainingPlan],
) -> None:
    """The block that is computed again takes memory of every image too, and no fixed amount."""
    whole = planned("vit_micro_patch4_16", batch_size=24)
    peaks = {row.checkpointing: row.peak for row in whole.memory}
    room = int(0.95 * peaks["all"])
    register(dataclasses.replace(find_accelerator("h100"), name="small", memory=room))
    options: dict[str, Any] = {"images": IMAGES, "classes": 10, "accelerator": "small"}
    try:
        rows = {row.checkpointing: row for row in vitkit.plan(MICRO, batch_size=24, **options).memory}
        assert not any(row.fits for row in rows.values())
        assert rows["all"].images > rows["none"].images > 0
        for way, row in rows.items():
            for images, fits in ((row.images, True), (row.images + 1, False)):
                step = vitkit.plan(MICRO, batch_size=images, checkpointing=way, **options)
                assert step.memory[0].fits is fits
    finally:
        del ACCELERATORS["small"]


# The paper's Table 2: TPUv3-core-days of pre-training.
CORE_DAYS = {"H/14 JFT": 2500.0, "L/16 JFT": 680.0, "L/16 I21k": 230.0}


@pytest.mark.accept
def test_the_papers_core_days_are_met_within_a_factor(benchmark: dict[str, Any]) -> None:
    rows = {row["training"]: row for row in benchmark["paper"]()}
    assert rows.keys() == CORE_DAYS.keys()
    for training, days in CORE_DAYS.items():
        assert days / 3 < rows[training]["core_days"] < 3 * days
        assert 0.25 < rows[training]["utilisation_of_paper"] < 0.55


@pytest.mark.accept
@pytest.mark.parametrize("name", [MICRO, "vit_huge_patch14_224"])
def test_a_huge_batch_is_planned_without_memory(name: str) -> None:
    assert step_of(name, 10**8, on_gpu=True).peak > 2**42
