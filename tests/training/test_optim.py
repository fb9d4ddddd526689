"""Which parameters decay, how the learning rate goes, and steps that fail, are computed again or are compiled."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo import lookup_backend
from torch.optim.swa_utils import SWALR

import tiny
from once import once
from runs import assert_same_weights, metrics, quick
from vitkit.model import VisionTransformer
from vitkit.training import (
    FiniteCheck,
    Recipe,
    TrainingState,
    WeightAverage,
    add_low_rank,
    build_optimizer,
    checkpoint_every,
    lr_factor,
    parameter_groups,
    swa_factor,
    swa_start,
    train,
)
from vitkit.training import start as setup
from vitkit.weights import create_model


def rates(model: VisionTransformer) -> dict[str, float]:
    """Each parameter's part of the learning rate, where each layer has half of the one above it."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = parameter_groups(model, 0.3, layer_decay=0.5)
    return {names[id(own)]: group["lr_scale"] for group in groups for own in group["params"]}


def expected_layer(name: str, layers: int) -> int:
    if found := re.match(r"(rel_pos|blocks)\.(\d+)\.", name):
        return int(found[2]) + 1
    if re.match(r"(attn_pool|norm|fc_norm|pre_logits|head|head_dist)\.", name):
        return layers + 1
    of_input = r"(cls_token|dist_token|reg_token|patch_embed|pos_embed|norm_pre|rope)\b"
    assert re.match(of_input, name), f"{name}: say which layer it is of"
    return 0


NAMED = ("vit_micro_r_s4_16", "vit_micro_convmlp_patch4_16", "vit_micro_interleaved_patch4_16")


@pytest.mark.parametrize("name", [*tiny.some(tiny.VARIETY), *NAMED])
def test_every_parameter_learns_at_the_rate_of_its_own_layer_and_weight_matrices_alone_decay(name: str) -> None:
    model = create_model(name, num_classes=3) if name in NAMED else tiny.build(**tiny.VARIETY[name])
    groups = parameter_groups(model, 0.3)
    assert sorted(id(p) for group in groups for p in group["params"]) == sorted(map(id, model.parameters()))
    decaying = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    layers = (torch.nn.Linear, torch.nn.Conv2d)
    assert decaying == {id(module.weight) for module in model.modules() if isinstance(module, layers)}
    (group,) = parameter_groups(model, 0.3, decay_all=True)
    assert (group["weight_decay"], len(group["params"])) == (0.3, len(list(model.parameters())))
    layers = model.config.layers
    is_shared = model.config.position_at == "shared"
    for own, rate in rates(model).items():
        layer = 0 if is_shared and own.startswith("rel_pos.") else expected_layer(own, layers)
        assert rate == 0.5 ** (layers + 1 - layer), own


def test_a_low_rank_change_is_of_its_block() -> None:
    model = tiny.build()
    add_low_rank(model, 2, seed=0)
    found = {name: rate for name, rate in rates(model).items() if name.startswith("blocks.")}
    assert len(found) == 3 * 4 * 2
    assert all(rate == 0.5 ** (3 - int(name.split(".")[1])) for name, rate in found.items())
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.startswith("head.")
    assert rates(model).keys() == {"head.weight", "head.bias"}, "what is frozen is left out"


@pytest.mark.parametrize(
    ("name", "kind"), [("adamw", torch.optim.AdamW), ("adam", torch.optim.Adam), ("sgd", torch.optim.SGD)]
)
def test_the_recipe_names_the_optimiser(name: str, kind: type[torch.optim.Optimizer]) -> None:
    fields: dict[str, Any] = {"optimizer": name, "momentum": 0.8, "beta2": 0.95}
    optimizer = build_optimizer(tiny.build(), Recipe(lr=0.02, decay_all=True, layer_decay=0.5, **fields))
    assert type(optimizer) is kind
    assert [group["lr_scale"] for group in optimizer.param_groups] == [0.5**n for n in range(5)]
    for group in optimizer.param_groups:
        assert group["lr"] == 0.02 and group["weight_decay"] == Recipe().weight_decay
        assert group["momentum" if name == "sgd" else "betas"] == (0.8 if name == "sgd" else (0.8, 0.95))


UNTRAINED = tiny.build()
RECIPES = st.builds(
    Recipe,
    warmup=st.floats(0, 1),
    schedule=st.sampled_from(["cosine", "linear", "constant"]),
    min_lr=st.sampled_from([0.0, 0.1, 1.0]),
    step_per=st.sampled_from(["step", "epoch"]),
    epochs=st.integers(1, 5),
)


@settings(max_examples=30)
@given(RECIPES, st.integers(1, 60))
def test_no_step_is_trained_at_rate_0_and_either_side_of_the_peak_is_monotone(recipe: Recipe, batches: int) -> None:
    state, rates = TrainingState(UNTRAINED, recipe, batches * recipe.epochs), []
    for step in range(batches * recipe.epochs):
        state.step, state.epoch = step, step // batches
        rates.append(state.lr / recipe.lr)
    assert min(rates) > 0
    assert max(rates) == pytest.approx(1)
    peak = max(i for i, rate in enumerate(rates) if rate == max(rates))
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert recipe.warmup or rates[0] == 1


def test_the_shapes_of_warm_up_and_fall() -> None:
    assert [lr_factor(p, Recipe(warmup=0.4), 0.1) for p in (0.0, 0.1, 0.2)] == pytest.approx([0.25, 0.5, 0.75])
    falls = {"cosine": [(1 + math.sqrt(0.5)) / 2, 0.5], "linear": [0.75, 0.5], "constant": [1.0, 1.0]}
    for schedule, expected in falls.items():
        recipe = Recipe(schedule=schedule, warmup=0.2, min_lr=0.0)  # type: ignore[arg-type]
        assert [lr_factor(p, recipe, 0) for p in (0.4, 0.6)] == pytest.approx(expected)
    recipe = Recipe(schedule="linear", warmup=0.0, min_lr=0.2)
    assert [lr_factor(p, recipe, 0) for p in (0.0, 0.5, 1.0)] == pytest.approx([1.0, 0.6, 0.2])
    assert lr_factor(0.45, Recipe(warmup=0.5), 0.1) == 1.0, "warm-up is that of where the step ends"


def test_averaging_begins_with_the_last_part_of_the_epochs() -> None:
    for swa, epochs, start in ((0.2, 10, 8), (0.25, 8, 6), (0.25, 1, 0), (0.01, 10, 9), (1.0, 5, 0), (0.5, 3, 1)):
        recipe = Recipe(swa=swa, epochs=epochs)
        assert swa_start(recipe) == start
        assert [swa_factor(epoch, recipe) is None for epoch in range(epochs)] == [own < start for own in range(epochs)]


@pytest.mark.parametrize("swa_lr", [0.5, 0.01])
def test_the_rate_goes_to_swa_lr_as_torchs_scheduler_does(swa_lr: float) -> None:
    recipe = Recipe(swa=0.5, epochs=30, swa_lr=swa_lr, lr=0.1, warmup=0.0, schedule="constant")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    scheduler = SWALR(optimizer, swa_lr=swa_lr, anneal_epochs=10, anneal_strategy="cos")
    expected = []
    for _ in range(15):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    factors = [swa_factor(epoch, recipe) for epoch in range(15, 30)]
    assert [0.1 * factor for factor in factors if factor is not None] == pytest.approx(expected)


def test_in_few_epochs_the_rate_arrives_with_the_last_one_and_else_stays_where_averaging_begins() -> None:
    recipe = Recipe(swa=0.3, epochs=10, swa_lr=0.02, lr=0.1, warmup=0.0, schedule="linear")
    assert [swa_factor(epoch, recipe) for epoch in (7, 8, 9)] == pytest.approx([0.3, 0.25, 0.2])
    assert [swa_factor(epoch, recipe.replace(swa_lr=None)) for epoch in (7, 8, 9)] == pytest.approx([0.3] * 3)
    assert swa_start(Recipe()) is swa_factor(49, Recipe()) is None


def flat(model: VisionTransformer) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).double()


def walk(model: VisionTransformer, average: WeightAverage, steps: int) -> list[Tensor]:
    """Weights after each of some steps in random directions, all of which the average takes in."""
    path = []
    for step in range(steps):
        tiny.randomise(model, seed=step + 10)
        average.update(model)
        path.append(flat(model))
    return path


def test_averages_are_the_sums_written_out() -> None:
    for limit in (0.5, 0.9, 0.9999):
        model = tiny.build()
        average = WeightAverage(model, Recipe(ema=limit))
        path = walk(model, average, 25)
        expected = path[0]
        for n in range(1, 25):
            decay = min(limit, (1 + n) / (10 + n))
            expected = decay * expected + (1 - decay) * path[n]
        assert torch.allclose(flat(average.model), expected, atol=1e-6)
    average = WeightAverage(model, Recipe(swa=0.5))
    path = walk(model, average, 7)
    assert torch.allclose(flat(average.model), torch.stack(path).mean(dim=0), atol=1e-6), "the equal mean"


def small(data: Path, **fields: Any) -> Recipe:
    return quick(data, epochs=2, **fields)


@pytest.fixture(scope="module")
def plain(data: Path) -> Path:
    return once("steps", lambda place: train(small(data, cache="none"), place))


@pytest.mark.parametrize(
    ("kind", "bad"),
    [*((kind, "norm") for kind in (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD)), (torch.optim.AdamW, "loss")],
)
def test_a_bad_step_moves_nothing_and_is_told_of(kind: type[torch.optim.Optimizer], bad: str) -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = kind([weight], lr=0.1, fused=True)  # type: ignore[call-arg]
    lines, moved = list[str](), []
    check = FiniteCheck(lines.append)
    for step in range(4):
        weight.grad = torch.full((3,), float("nan") if step == 1 else 1.0)
        before = weight.detach().clone()
        check.note_loss(torch.tensor(float("inf") if step == 1 and bad == "loss" else 1.0), 0, step)
        norm = torch.tensor(float("nan") if step == 1 and bad == "norm" else 1.0)
        assert check.allows(optimizer, check.is_finite(norm))
        optimizer.step()
        moved.append(not torch.equal(weight, before))
    assert moved == [True, False, True, True]
    check.resolve_pending()
    what = "loss" if bad == "loss" else "gradient"
    assert lines == [f"the {what} is not finite in epoch 1, after 1 steps: step skipped"] and not check.skipped_in_a_row
    check.resolve_pending()
    assert len(lines) == 1


def test_one_bad_batch_spoils_the_step_that_it_is_part_of_and_no_other() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1, fused=True)
    lines: list[str] = []
    check = FiniteCheck(lines.append)
    for step, losses in enumerate(([1.0, float("nan")], [1.0, 1.0], [float("inf"), 1.0], *[[1.0]] * 47)):
        assert lines == [], "outcomes are asked for now and then"
        for loss in losses:
            check.note_loss(torch.tensor(loss), 0, step)
        check.allows(optimizer, check.is_finite(torch.tensor(1.0)))
    assert [line.partition(":")[0][-7:] for line in lines] == ["0 steps", "2 steps"]


@pytest.mark.parametrize(("text", "every"), [("none", 0), ("all", 1), ("3", 3)])
def test_the_field_says_how_many_blocks_are_computed_again(text: str, every: int) -> None:
    assert checkpoint_every(text) == every
    model, runs = tiny.build(layers=4).train(), [0] * 4
    for i, block in enumerate(model.blocks):

        def count(*_: object, i: int = i) -> None:
            runs[i] += 1

        block.register_forward_pre_hook(count)
    model.checkpointing = every
    model(tiny.images()).sum().backward()
    assert runs == [2 if every and i % every == 0 else 1 for i in range(4)]


@pytest.mark.usefixtures("no_reports")
def test_a_run_is_the_same_wherever_its_pictures_are_kept(data: Path, plain: Path, tmp_path: Path) -> None:
    for cache in ("ram", "disk"):
        folder = train(small(data, cache=cache), tmp_path / cache)
        assert_same_weights(plain, folder)
        assert metrics(plain) == metrics(folder)


def test_steps_are_compiled_when_asked_for_or_on_a_gpu_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    many = 100_000  # images, of which five epochs repay the compiler's half minute
    assert setup.choose_compile(Recipe(compile="on"), 1)
    assert not setup.choose_compile(Recipe(epochs=5), many)
    monkeypatch.setattr(setup.torch.cuda, "is_available", lambda: True)
    for compiler in (True, None):
        monkeypatch.setattr(setup.importlib.util, "find_spec", lambda name, found=compiler: found)
        assert setup.choose_compile(Recipe(epochs=5), many) == bool(compiler)
        assert not setup.choose_compile(Recipe(epochs=5), many - 1)
        assert not setup.choose_compile(Recipe(epochs=5, compile="off"), many)


@pytest.mark.usefixtures("no_reports")
def test_compiled_runs_are_the_same(data: Path, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, graphs = list[Any](), list[Any]()

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return lookup_backend("eager")(graph, inputs)

    def compile_eagerly(function: Any, **options: Any) -> Any:
        compiled.append(function)
        return original(function, backend=backend, fullgraph=True, **options)

    original = torch.compile
    monkeypatch.setattr(torch, "compile", compile_eagerly)
    train(small(data, compile="on", checkpointing="2", ema=0.0), tmp_path / "compiled")
    (forward,) = compiled
    assert forward.__self__.checkpointing == 2
    assert len(graphs) == 1, "only whole batches are compiled, not the smaller one at the end of an epoch"
    for eager, own in zip(metrics(plain), metrics(tmp_path / "compiled"), strict=True):
        assert eager == pytest.approx(own, rel=1e-3, abs=1e-4)
