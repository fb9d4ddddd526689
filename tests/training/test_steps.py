"""Steps on a GPU ask for their outcome later; blocks computed again; steps that are compiled."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import lookup_backend

import tiny
from once import once
from runs import assert_same_weights, metrics, quick
from vitkit.training import FiniteCheck, Recipe, checkpoint_every, train
from vitkit.training import checkpoint as state
from vitkit.training import start as setup


def small(data: Path, **fields: Any) -> Recipe:
    return quick(data, epochs=2, **fields)


@pytest.fixture(scope="module")
def plain(data: Path) -> Path:
    return once("steps", lambda place: train(small(data, cache="none"), place))


class Noted:
    """Whether each step went well, in the place of a guard; of those that did not, what was not finite, and when."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int, int] | None] = []

    def pass_step(self) -> None:
        self.steps.append(None)

    def skip_step(self, what: str, epoch: int, step: int) -> None:
        self.steps.append((what, epoch, step))


@pytest.mark.parametrize(
    ("kind", "bad"),
    [*((kind, "norm") for kind in (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD)), (torch.optim.AdamW, "loss")],
)
def test_a_bad_step_moves_nothing_and_is_told_of(kind: type[torch.optim.Optimizer], bad: str) -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = kind([weight], lr=0.1, fused=True)  # type: ignore[call-arg]
    guard: Any = Noted()
    check, moved = FiniteCheck(guard), []
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
    assert guard.steps == [None, ("loss" if bad == "loss" else "gradient", 0, 1), None, None]
    check.resolve_pending()
    assert len(guard.steps) == 4


def test_one_bad_batch_spoils_the_step_that_it_is_part_of_and_no_other() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1, fused=True)
    guard: Any = Noted()
    check = FiniteCheck(guard)
    for losses in ([1.0, float("nan")], [1.0, 1.0], [float("inf"), 1.0], *[[1.0]] * 47):
        assert guard.steps == [], "outcomes are asked for now and then"
        for loss in losses:
            check.note_loss(torch.tensor(loss), 0, 0)
        check.allows(optimizer, check.is_finite(torch.tensor(1.0)))
    assert [step is None for step in guard.steps] == [False, True, False, *[True] * 47]


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused optimisers and outcomes that are asked for later, on the CPU."""
    build = state.build_optimizer

    def fused(model: nn.Module, recipe: Recipe, make: Any = None) -> torch.optim.Optimizer:
        optimizer = build(model, recipe)
        for group in optimizer.param_groups:
            group["fused"] = True
        optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
        return optimizer

    monkeypatch.setattr(state, "build_optimizer", fused)


def test_asking_later_changes_nothing(data: Path, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_a_gpu(monkeypatch)
    train(small(data), tmp_path / "later")
    for now, later in zip(metrics(plain), metrics(tmp_path / "later"), strict=True):
        assert now == pytest.approx(later, rel=1e-3, abs=1e-4)


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
        assert not setup.choose_compile(Recipe(epochs=5, strategy="fsdp"), many)


def test_compiled_runs_are_the_same(data: Path, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, graphs = list[Any](), list[Any]()

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return lookup_backend("aot_eager")(graph, inputs)

    def aot_eager(function: Any, **options: Any) -> Any:
        compiled.append(function)
        return original(function, backend=backend, fullgraph=True, **options)

    original = torch.compile
    monkeypatch.setattr(torch, "compile", aot_eager)
    train(small(data, compile="on", checkpointing="2", ema=0.0), tmp_path / "compiled")
    (forward,) = compiled
    assert forward.__self__.checkpointing == 2
    assert len(graphs) == 1, "only whole batches are compiled, not the smaller one at the end of an epoch"
    for eager, own in zip(metrics(plain), metrics(tmp_path / "compiled"), strict=True):
        assert eager == pytest.approx(own, rel=1e-3, abs=1e-4)
