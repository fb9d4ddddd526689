"""Reading and computing at once: in order, in bounded memory, stopped at once."""

import threading
import time
from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest
import torch
from torch import Tensor

from vitkit.inference import compute_in_order

READ: list[str] = []


def number(path: str) -> Tensor | str:
    READ.append(path)
    time.sleep(0.001 * (int(path) % 3))  # later ones are done sooner
    return "odd one" if int(path) % 7 == 3 else torch.full((2,), float(path))


def double(images: Tensor) -> Tensor:
    return images * 2


@pytest.mark.parametrize("is_concurrent", [True, False])
@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_every_path_has_its_row_in_order(batch_size: int, is_concurrent: bool) -> None:
    for images in (0, 1, 3, 4, 50):
        sizes: list[int] = []

        def measured(images: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(len(images))
            return double(images)

        paths = list(map(str, range(images)))
        rows = list(compute_in_order(iter(paths), number, measured, batch_size, is_concurrent=is_concurrent))
        assert [path for path, _ in rows] == paths
        for path, row in rows:
            assert row == "odd one" if int(path) % 7 == 3 else np.array_equal(row, [2.0 * int(path)] * 2)
        assert max(sizes, default=0) <= batch_size and sum(size < batch_size for size in sizes) <= 1


@pytest.mark.parametrize("is_concurrent", [True, False])
def test_an_endless_supply_is_read_a_few_batches_ahead(is_concurrent: bool) -> None:
    taken: list[int] = []

    def endless() -> Iterator[str]:
        for i in count():
            taken.append(i)
            yield str(i)

    rows = compute_in_order(endless(), number, double, 4, is_concurrent=is_concurrent)
    bound = 4 * (2 * (len(threading.enumerate()) + 64) + 2)
    for received in range(200):
        next(rows)
        assert len(taken) - received <= bound
    rows.close()
    READ.clear()
    time.sleep(0.05)
    assert not READ, "nothing is read when nobody waits"


def test_an_backend_that_is_not_concurrent_computes_one_batch_at_a_time() -> None:
    inside: list[int] = []
    most: list[int] = []

    def watch(images: Tensor) -> Tensor:
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.002)
        inside.pop()
        return images

    list(compute_in_order(map(str, range(60)), number, watch, 4, is_concurrent=False))
    assert max(most) == 1


def test_each_core_computes_in_one_thread_and_the_callers_number_stays() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    seen: set[int] = set()

    def watch(images: Tensor) -> Tensor:
        seen.add(torch.get_num_threads())
        return images

    try:
        list(compute_in_order(map(str, range(40)), number, watch, 4, is_concurrent=True))
        assert seen == {1}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("is_concurrent", [True, False])
def test_a_failure_ends_the_flow_and_its_threads(is_concurrent: bool) -> None:
    def fail(images: Tensor) -> Tensor:
        if images.max() > 30:
            raise RuntimeError("broken")
        return images

    before = threading.active_count()
    with pytest.raises(RuntimeError, match="broken"):
        list(compute_in_order(map(str, count()), number, fail, 4, is_concurrent=is_concurrent))
    assert threading.active_count() == before
