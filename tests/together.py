"""`python together.py JOBS`: train recipes in 1, 2 and 3 processes, which one interpreter's imports serve.

JOBS is a JSON list of [folder, processes, fields of the recipe, images that are computed at a time or null]. Reports
are left out: only the weights and metrics.csv are asked for.
"""

import json
import os
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from vitkit.training import Pieces, Recipe, run, train
from vitkit.training.stages import fit

Job = tuple[str, int, dict[str, Any], int | None]


def spare_reports() -> None:
    run.TRAINING = replace(run.TRAINING, conclude=())
    fit.draw_classes = fit.draw_some = lambda *_: None  # type: ignore[assignment,misc]


def train_all(jobs: list[Job]) -> None:
    plain = Pieces.__init__
    for folder, _, fields, at_a_time in jobs:

        def small(self: Pieces, say: Any, team: Any, at_a_time: int | None = at_a_time) -> None:
            plain(self, say, team)
            self.size = at_a_time

        Pieces.__init__ = small  # type: ignore[method-assign]
        train(Recipe.of(fields, "JOBS"), folder)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def forked(processes: int, work: Callable[[int], None]) -> list[int]:
    """Call `work` with each rank in a fork of this process, and return the exit codes; negative ones are signals."""
    children = []
    for rank in range(processes):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                # After a fork, torch renews its thread pool when threads are first set, and two threads would collide.
                torch.set_num_threads(torch.get_num_threads())
                work(rank)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def part(jobs: list[Job], processes: int) -> int:
    """The exit status of the worst of so many processes that train together, as torchrun starts them."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "TORCHELASTIC_RUN_ID": "together"}
    place |= {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "GROUP_RANK": 0}

    def train_as(rank: int) -> None:
        variables = {"RANK": rank, "LOCAL_RANK": rank} | place if processes > 1 else {}
        os.environ.update({name: str(value) for name, value in variables.items()})
        train_all(jobs)

    codes = forked(processes, train_as)
    if any(codes):
        print(f"exit codes of ranks 0 to {processes - 1}: {codes}", file=sys.stderr)
    return max(map(abs, codes))


def main() -> int:
    torch.set_num_threads(1)
    spare_reports()
    jobs: list[Job] = [tuple(job) for job in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))]
    jobs.sort(key=lambda job: job[1])
    return max(part(list(own), processes) for processes, own in groupby(jobs, key=lambda job: job[1]))


if __name__ == "__main__":
    sys.exit(main())
