"""A step of several processes: gradients are summed in buckets, also where a pass runs out of memory on the way;
nothing is pickled, and no tensor is read between two checks."""

from __future__ import annotations

import dataclasses
import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import runs
import tiny
from vitkit.data import Augment, ImageData, Preprocess, read_source
from vitkit.data.table import ImageTable
from vitkit.training import (
    ALONE,
    GradientSums,
    Loop,
    Objective,
    ProcessGroup,
    Recipe,
    StabilityGuard,
    TrainingState,
    distributed,
    fabric_of,
)

TOGETHER = multiprocessing.get_context("forkserver")  # a fork of this process could not differentiate after it has
TOGETHER.set_forkserver_preload(["torch.distributed", "vitkit.training.loop", "vitkit.training.distributed"])


class Network(nn.Module):
    """Three layers, of which the last pass may fail in the middle one, a layer that nothing uses, one of float64."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3).double()
        self.unused = nn.Linear(2, 2)
        self.fails = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.middle(self.first(x).tanh())
        if self.fails:
            x.register_hook(self._fail)
        return self.last(x.double()).square().sum()

    def _fail(self, _: Tensor) -> None:
        raise MemoryError


def expected(processes: int) -> tuple[Network, list[Tensor | None]]:
    network = Network()
    network(images(processes)).backward()
    return network, [parameter.grad for parameter in network.parameters()]


def images(processes: int) -> Tensor:
    return torch.randn(6 * processes, 4, generator=torch.Generator().manual_seed(3))


def work(rank: int, size: int, store: str, fails: int, report: Any) -> None:
    distributed._BUCKET = 200  # bytes, so that there are several of one type
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
    team = ProcessGroup(rank, size, 1, dist.new_group(backend="gloo"))
    network, own = Network(), images(size)[rank::size]
    sums = GradientSums(network, team)
    sent: list[int] = []
    reduce = dist.all_reduce
    dist.all_reduce = lambda tensor, **options: (sent.append(len(tensor)), reduce(tensor, **options))[1]  # type: ignore
    for _ in range(2):  # the second step begins as the first
        network.zero_grad()
        sums.begin()
        sums.add(network(own[:2]), is_last=False)
        network.fails = rank == fails
        try:
            sums.add(network(own[2:]), is_last=True)
        except MemoryError:
            network.fails = False
            sums.add(network(own[2:3]), is_last=False)
            sums.add(network(own[3:]), is_last=True)
        summed = sums.finish()
    grads = [parameter.grad for parameter in network.parameters()]
    _, wanted = expected(size)
    close = [
        (a is None) == (b is None) and (a is None or torch.allclose(a, b)) for a, b in zip(grads, wanted, strict=True)
    ]
    report.put((rank, close, len(summed), sent, float(sums.bad_losses), len(sums._buckets)))
    dist.destroy_process_group()


def together(size: int, tmp_path: Path, target: Callable[..., None], *arguments: Any) -> list[Any]:
    report = TOGETHER.Queue()
    crowd = [
        TOGETHER.Process(target=target, args=(rank, size, str(tmp_path / "store"), *arguments, report))
        for rank in range(size)
    ]
    for process in crowd:
        process.start()
    outcomes = [report.get(timeout=60) for _ in crowd]
    for process in crowd:
        process.join(60)
    return sorted(outcomes)


@pytest.mark.parametrize(("size", "fails"), [(2, -1), (3, 1)])
def test_buckets_hold_the_sum_over_processes_also_after_a_pass_that_failed(
    size: int, fails: int, tmp_path: Path
) -> None:
    for _, close, summed, sent, bad, buckets in together(size, tmp_path, work, fails):
        assert all(close)
        assert summed == 6, "a layer that nothing uses has no gradient, and is not moved by the optimiser"
        assert buckets >= 4
        assert len(sent) == 2 * buckets, "each bucket is sent once a step"
        assert bad == 0


def diverge(rank: int, size: int, store: str, report: Any) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
    network = Network()
    sums = GradientSums(network, ProcessGroup(rank, size, 1, dist.new_group(backend="gloo")))
    own = images(size)[rank::size]
    if rank == 1:
        own[0, 0] = float("nan")
    sums.begin()
    sums.add(network(own) * 1.0, is_last=True)
    sums.finish()
    report.put((rank, float(sums.bad_losses)))
    dist.destroy_process_group()


def test_a_loss_that_is_not_finite_is_known_to_all_without_another_message(tmp_path: Path) -> None:
    assert all(bad > 0 for _, bad in together(2, tmp_path, diverge))


def test_one_process_adds_up_what_backward_adds_up() -> None:
    network, wanted = expected(1)
    network.zero_grad()
    sums = GradientSums(network, ALONE)
    sums.begin()
    for part in images(1).split(2):
        sums.add(network(part), is_last=False)
    sums.finish()
    for parameter, gradient in zip(network.parameters(), wanted, strict=True):
        assert (parameter.grad is None) == (gradient is None)
        assert gradient is None or torch.allclose(parameter.grad, gradient)  # type: ignore[arg-type]


# --- What a step costs ------------------------------------------------------------------------------


class HostReads(TorchDispatchMode):
    """Count the values of tensors that Python reads, for which it would wait for a GPU."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def fused(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=1e-3, fused=True)


def train_together(rank: int, size: int, store: str, table: ImageTable, bad: int, report: Any) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
    team = ProcessGroup(rank, size, 1, dist.new_group(backend="gloo"))
    recipe = Recipe(batch_size=4, mixup=0.3, epochs=1)
    options = {"batch_size": 4, "workers": 0, "seed": 0, "process": (rank, size)}
    data = ImageData(table, Preprocess(size=(16, 16)), Augment(), **options)
    lines: list[str] = []
    model = tiny.build(image_size=(16, 16), num_classes=3)
    guard = StabilityGuard(lines.append)
    state = TrainingState.begin(model.train(), recipe, data.batches, guard, team, fused)
    loop = Loop(state, Objective(recipe, 3), data, fabric_of("float32", "cpu"), team=team)
    sys.modules[Loop.__module__]._SECONDS_APART = 1e9  # type: ignore[attr-defined]  # however slow the machine is
    loop.start()
    loop.begin_epoch()
    pickled, reduced, reads, moved = list[str](), list[str](), HostReads(), list[bool]()
    plain = {name: getattr(dist, name) for name in (*PICKLING, "all_reduce")}

    def reduce(tensor: Tensor, *arguments: Any, **options: Any) -> Any:
        reduced.append("agreement" if options.get("group") is team.group else "bucket")
        return plain["all_reduce"](tensor, *arguments, **options)

    for name in PICKLING:
        setattr(dist, name, lambda *_, name=name, **__: pickled.append(name))
    dist.all_reduce = reduce
    weight = next(model.parameters())
    for number, batch in enumerate(data.train_batches(0)):
        if number == bad and rank == 1:
            batch[0].fill_(float("nan"))
        before = weight.detach().clone()
        with reads:
            loop.take_step(number, [batch])
            state.batch = number + 1
            loop.between_steps()
        moved.append(not torch.equal(weight, before))
    counts = pickled[:], reduced.count("bucket"), reduced.count("agreement"), reads.count
    for name, function in plain.items():
        setattr(dist, name, function)
    loop.check.settle()
    report.put((rank, counts, moved, lines))
    dist.destroy_process_group()


PICKLING = ("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list")


@pytest.mark.parametrize("bad", [-1, 5])
def test_a_step_of_two_processes_pickles_nothing_and_reads_no_tensor(tmp_path: Path, bad: int) -> None:
    """Not even where a loss of one process is not finite: both skip this step and report it when they settle."""
    photos = read_source(str(runs.photos(tmp_path / "photos", images=44)))
    table = dataclasses.replace(photos.take(list(range(128))), splits=("train",) * 128)
    for _, (pickled, buckets, agreements, reads), moved, lines in together(2, tmp_path, train_together, table, bad):
        assert pickled == []
        assert reads == 0
        assert buckets == 32, "all gradients of a small model are one bucket"
        assert agreements == 2
        assert [number for number, has_moved in enumerate(moved) if not has_moved] == [bad] * (bad >= 0)
        assert [line.partition(":")[0] for line in lines] == (
            ["the loss or its gradient is not finite in epoch 1, after 5 steps"] if bad >= 0 else []
        )


# --- Figures of several processes ------------------------------------------------------------------------------


def judge_share(rank: int, size: int, store: str, report: Any) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
    team = ProcessGroup(rank, size, 1, dist.new_group(backend="gloo"))
    logits, labels = answers()
    share = slice(rank, 3, size) if rank < 3 else slice(0, 0)  # one process has no image
    own = logits[share], labels[share]
    figures, outcome = Objective(Recipe(), 4).judge(*own, team)
    assert outcome is not None
    report.put((rank, figures, outcome.spread, [rows.tolist() for rows in team.gather_rows(own[1])]))
    dist.destroy_process_group()


def answers() -> tuple[Tensor, Tensor]:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 2, 2])


def test_figures_of_shares_add_up_to_those_of_all_images(tmp_path: Path) -> None:
    logits, labels = answers()
    expected, outcome = Objective(Recipe(), 4).judge(logits, labels)
    assert outcome is not None
    relative = (logits - logits.mean(dim=1, keepdim=True)).double()
    by_hand = relative.std(dim=0).max().item(), relative.mean(dim=0).std().item()
    assert outcome.spread == pytest.approx(by_hand)
    for _, figures, spread, rows in together(4, tmp_path, judge_share):
        assert figures == pytest.approx(expected)
        assert spread == pytest.approx(by_hand)
        assert rows == [[0], [2], [2], []]
