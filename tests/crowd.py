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
from torch.utils._python_dispatch import TorchDispatchMode

from together import forked
from vitkit.data import Augment, ImageData, Preprocess
from vitkit.data.table import ImageTable
from vitkit.training import Loop, Objective, ProcessGroup, Recipe, TrainingState, fabric_of
from vitkit.training.distributed import ForwardHeads, parallel


class Network(nn.Module):
    """Three layers, of which the last is of float64, and a layer that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3).double()
        self.unused = nn.Linear(2, 2)

    def forward_heads(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.last(self.middle(self.first(x).tanh()).double()).square().sum(),)


def expected(processes: int) -> tuple[Network, list[Tensor | None]]:
    network = Network()
    network.forward_heads(images(processes))[0].backward()
    return network, [parameter.grad for parameter in network.parameters()]


def images(processes: int) -> Tensor:
    return torch.randn(6 * processes, 4, generator=torch.Generator().manual_seed(3))


def work(rank: int, size: int) -> list[bool]:
    network, own = Network(), images(size)[rank::size]
    wrapped = parallel(ForwardHeads(network))
    for _ in range(2):  # the second step begins as the first
        network.zero_grad()
        with wrapped.no_sync():
            (wrapped(own[:2])[0] * size).backward()
        (wrapped(own[2:])[0] * size).backward()
    grads = [parameter.grad for parameter in network.parameters()]
    _, wanted = expected(size)
    pairs = zip(grads, wanted, strict=True)
    return [(a is None) == (b is None) and (a is None or torch.allclose(a, b)) for a, b in pairs]


class HostReads(TorchDispatchMode):
    """Count the values of tensors that Python reads, for which it would wait for a GPU."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # torch's DistributedDataParallel keeps on the CPU, as integers, which parameters a pass used.
        self.count += func is torch.ops.aten._local_scalar_dense.default and args[0].dtype != torch.int32
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
    state = TrainingState(model.train(), recipe, data.batches, lines.append, team, fused)
    loop = Loop(state, Objective(recipe, 3), data, fabric_of("float32", "cpu"), team=team)
    sys.modules[Loop.__module__]._MAX_SECONDS_APART = 1e9  # type: ignore[attr-defined]  # however slow the machine is
    loop.begin_epoch()
    pickled, reduced, reads, moved = list[str](), list[str](), HostReads(), list[bool]()
    plain = {name: getattr(dist, name) for name in (*PICKLING, "all_reduce")}

    def reduce(tensor: Tensor, *arguments: Any, **options: Any) -> Any:
        reduced.append("agreement" if tensor.dtype == torch.float64 else "losses")
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
    counts = pickled[:], reduced.count("losses"), reduced.count("agreement"), reads.count
    for name, function in plain.items():
        setattr(dist, name, function)
    state.finite_check.resolve_pending()
    return counts, moved, lines


PICKLING = ("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list")


def judge_share(rank: int, size: int) -> tuple[Any, ...]:
    team = ProcessGroup(rank, size, 1, dist.new_group(backend="gloo"))
    logits, labels = answers()
    share = slice(rank, 3, size) if rank < 3 else slice(0, 0)  # one process has no image
    own = logits[share], labels[share]
    figures = Objective(Recipe(), 4).validation_figures(*own, team)
    return figures, [rows.tolist() for rows in team.gather(own[1])]


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
