"""`python crowd.py JOB REPORT`: what processes of a group do for test_gradients.py, forked once all is imported.

JOB is a pickle of the name of a function below, the number of processes and the function's further arguments; REPORT
becomes a pickle of what each process returned, by rank.
"""

import pickle
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

from together import forked
from vitkit.data import Augment, ImageData, Preprocess
from vitkit.data.table import ImageTable
from vitkit.training import (
    FiniteCheck,
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


def work(rank: int, size: int, fails: int) -> tuple[Any, ...]:
    distributed._BUCKET = 200  # bytes, so that there are several of one type
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
    return close, len(summed), sent, float(sums.bad_losses), len(sums._buckets)


def diverge(rank: int, size: int) -> float:
    network = Network()
    sums = GradientSums(network, ProcessGroup(rank, size, 1, dist.new_group(backend="gloo")))
    own = images(size)[rank::size]
    if rank == 1:
        own[0, 0] = float("nan")
    sums.begin()
    sums.add(network(own) * 1.0, is_last=True)
    sums.finish()
    return float(sums.bad_losses)


class HostReads(TorchDispatchMode):
    """Count the values of tensors that Python reads, for which it would wait for a GPU."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def fused(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=1e-3, fused=True)


def train_together(rank: int, size: int, table: ImageTable, bad: int) -> tuple[Any, ...]:
    from tiny import build

    team = ProcessGroup(rank, size, 1, dist.new_group(backend="gloo"))
    recipe = Recipe(batch_size=4, mixup=0.3, epochs=1)
    options = {"batch_size": 4, "workers": 0, "seed": 0, "process": (rank, size)}
    data = ImageData(table, Preprocess(size=(16, 16)), Augment(), **options)
    lines: list[str] = []
    model = build(image_size=(16, 16), num_classes=3)
    guard = StabilityGuard(lines.append)
    state = TrainingState(model.train(), recipe, data.batches, guard, team, fused)
    loop = Loop(state, Objective(recipe, 3), data, fabric_of("float32", "cpu"), team=team)
    sys.modules[Loop.__module__]._MAX_SECONDS_APART = 1e9  # type: ignore[attr-defined]  # however slow the machine is
    loop.start()
    loop.begin_epoch()
    pickled, reduced, reads, moved = list[str](), list[str](), HostReads(), list[bool]()
    plain = {name: getattr(dist, name) for name in (*PICKLING, "all_reduce")}

    def reduce(tensor: Tensor, *arguments: Any, **options: Any) -> Any:
        reduced.append("agreement" if options.get("group") is team.cpu_group else "bucket")
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
    loop.finite_check.resolve_pending()
    return counts, moved, lines


def skip_sharded(rank: int, size: int) -> tuple[list[bool], list[str]]:
    """Whether each of three steps moved sharded weights, of which a fused optimiser skips the second."""
    model, lines, moved = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), list[str](), list[bool]()
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    check = FiniteCheck(StabilityGuard(lines.append))
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.full((3, 4), float("nan") if step == 1 else 1.0)).square().mean()
        loss.backward()
        check.note_loss(loss.detach(), 0, step)
        check.note_team((~loss.detach().isfinite()).float())
        before = [parameter.full_tensor().clone() for parameter in model.parameters()]  # type: ignore[attr-defined]
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        assert check.allows(optimizer, check.is_finite(torch.nn.utils.get_total_norm(gradients)))
        optimizer.step()
        after = [parameter.full_tensor() for parameter in model.parameters()]  # type: ignore[attr-defined]
        moved.append(not all(torch.equal(one, other) for one, other in zip(before, after, strict=True)))
    check.resolve_pending()
    return moved, lines


PICKLING = ("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list")


def judge_share(rank: int, size: int) -> tuple[Any, ...]:
    team = ProcessGroup(rank, size, 1, dist.new_group(backend="gloo"))
    logits, labels = answers()
    share = slice(rank, 3, size) if rank < 3 else slice(0, 0)  # one process has no image
    own = logits[share], labels[share]
    figures, outcome = Objective(Recipe(), 4).validation_figures(*own, team)
    return figures, outcome.spread, [rows.tolist() for rows in team.gather(own[1])]


def answers() -> tuple[Tensor, Tensor]:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 2, 2])


# --- Starting them ------------------------------------------------------------------------------------------


def crowd(target: Callable[..., Any], size: int, arguments: tuple[Any, ...], folder: Path) -> list[Any]:
    """What each of so many processes returned, by rank; the status of one that failed is an AssertionError."""

    def take_part(rank: int) -> None:
        store = dist.FileStore(str(folder / "store"), size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        (folder / str(rank)).write_bytes(pickle.dumps(target(rank, size, *arguments)))
        dist.destroy_process_group()

    codes = forked(size, take_part)
    assert not any(codes), f"exit codes of ranks 0 to {size - 1}: {codes}"
    return [pickle.loads((folder / str(rank)).read_bytes()) for rank in range(size)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    name, processes, given = pickle.loads(Path(sys.argv[1]).read_bytes())
    with tempfile.TemporaryDirectory() as place:
        outcomes = crowd(globals()[name], processes, given, Path(place))
    Path(sys.argv[2]).write_bytes(pickle.dumps(outcomes))
