"""A step of several processes: gradients are summed over them, nothing is pickled, and no tensor is read between two
checks."""

import dataclasses
import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import crowd
import runs
import warm
from crowd import answers, expected, images
from vitkit.data import read_source
from vitkit.training import Objective, Recipe, add_gradients


def together(size: int, tmp_path: Path, target: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What each process of a group returned; a fork of this process could not differentiate after it has."""
    job, report = tmp_path / "job", tmp_path / "report"
    job.write_bytes(pickle.dumps((target.__name__, size, arguments)))
    command = [warm.python(), crowd.__file__, str(job), str(report)]
    done = subprocess.run(command, env=runs.environment(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return pickle.loads(report.read_bytes())  # type: ignore[no-any-return]


@pytest.mark.parametrize("size", [2, 3])
def test_gradients_are_the_sum_of_processes_and_a_layer_that_nothing_uses_has_none(size: int, tmp_path: Path) -> None:
    assert all(all(close) for close in together(size, tmp_path, crowd.work))


def test_one_process_adds_up_what_backward_adds_up() -> None:
    network, wanted = expected(1)
    network.zero_grad()
    for part in images(1).split(2):
        add_gradients(list(network.parameters()), network.forward_heads(part)[0])
    for parameter, gradient in zip(network.parameters(), wanted, strict=True):
        assert (parameter.grad is None) == (gradient is None)
        assert gradient is None or torch.allclose(parameter.grad, gradient)  # type: ignore[arg-type]


def test_a_step_of_two_processes_pickles_nothing_and_reads_no_tensor(tmp_path: Path) -> None:
    """Not even where a loss of one process is not finite: both skip this step and report it when they settle."""
    photos = read_source(str(runs.photos(tmp_path / "photos", images=44)))
    table = dataclasses.replace(photos.take(list(range(128))), splits=("train",) * 128)
    for (pickled, losses, agreements, reads), moved, lines in together(2, tmp_path, crowd.train_together, table, 5):
        assert (pickled, reads, agreements) == ([], 0, 2)
        assert losses == 32
        assert [number for number, has_moved in enumerate(moved) if not has_moved] == [5]
        assert [line.partition(":")[0] for line in lines] == ["the loss is not finite in epoch 1, after 5 steps"]


def test_figures_of_shares_add_up_to_those_of_all_images(tmp_path: Path) -> None:
    logits, labels = answers()
    expected = Objective(Recipe(), 4).validation_figures(logits, labels)
    for figures, rows in together(4, tmp_path, crowd.judge_share):
        assert figures == pytest.approx(expected)
        assert rows == [[0], [2], [2], []]
