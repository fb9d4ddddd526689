"""Gradients of several processes are summed in buckets, also where a pass runs out of memory on the way."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from vitkit.training import ALONE, GradientSums, ProcessGroup, gradients

TOGETHER = multiprocessing.get_context("fork")


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
    gradients._BUCKET = 200  # bytes, so that there are several of one type
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
