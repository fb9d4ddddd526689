"""A step of several processes: gradients are summed in buckets, also where a pass runs out of memory on the way;
nothing is pickled, and no tensor is read between two checks."""

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
from vitkit.training import ALONE, GradientSums, Objective, Recipe


def together(size: int, tmp_path: Path, target: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What each process of a group returned; a fork of this process could not differentiate after it has."""
    job, report = tmp_path / "job", tmp_path / "report"
    job.write_bytes(pickle.dumps((target.__name__, size, arguments)))
    command = [warm.python(), crowd.__file__, str(job), str(report)]
    done = subprocess.run(command, env=runs.environment(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return pickle.loads(report.read_bytes())  # type: ignore[no-any-return]


@pytest.mark.parametrize(("size", "fails"), [(2, -1), (3, 1)])
def test_buckets_hold_the_sum_of_processes_after_a_failed_pass_too(size: int, fails: int, tmp_path: Path) -> None:
    for close, summed, sent, bad, buckets in together(size, tmp_path, crowd.work, fails):
        assert all(close)
        assert summed == 6, "a layer that nothing uses has no gradient, and is not moved by the optimiser"
        assert buckets >= 4
        assert len(sent) == 2 * buckets, "each bucket is sent once a step"
        assert bad == 0


def test_a_loss_that_is_not_finite_is_known_to_all_without_another_message(tmp_path: Path) -> None:
    assert all(bad > 0 for bad in together(2, tmp_path, crowd.diverge))


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


def test_a_step_of_two_processes_pickles_nothing_and_reads_no_tensor(tmp_path: Path) -> None:
    """Not even where a loss of one process is not finite: both skip this step and report it when they settle."""
    photos = read_source(str(runs.photos(tmp_path / "photos", images=44)))
    table = dataclasses.replace(photos.take(list(range(128))), splits=("train",) * 128)
    for (pickled, buckets, agreements, reads), moved, lines in together(2, tmp_path, crowd.train_together, table, 5):
        assert (pickled, reads, agreements) == ([], 0, 2)
        assert buckets == 32, "all gradients of a small model are one bucket"
        assert [number for number, has_moved in enumerate(moved) if not has_moved] == [5]
        assert [line.partition(":")[0] for line in lines] == ["the loss is not finite in epoch 1, after 5 steps"]


def test_a_fused_optimiser_skips_steps_of_sharded_weights(tmp_path: Path) -> None:
    for moved, lines in together(2, tmp_path, crowd.skip_sharded):
        assert moved == [True, False, True]
        assert lines == ["the loss is not finite in epoch 1, after 1 steps: step skipped"]


def test_figures_of_shares_add_up_to_those_of_all_images(tmp_path: Path) -> None:
    logits, labels = answers()
    expected, outcome = Objective(Recipe(), 4).validation_figures(logits, labels)
    relative = (logits - logits.mean(dim=1, keepdim=True)).double()
    by_hand = relative.std(dim=0).max().item(), relative.mean(dim=0).std().item()
    assert outcome.spread == pytest.approx(by_hand)
    for figures, spread, rows in together(4, tmp_path, crowd.judge_share):
        assert figures == pytest.approx(expected)
        assert spread == pytest.approx(by_hand)
        assert rows == [[0], [2], [2], []]
