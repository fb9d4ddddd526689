"""From what one device would hold by itself to what each of several does, whole models or parts of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from vitkit.experiments.plan_recipe import Job, teacher_network
from vitkit.experiments.plan_result import Memory, Strategy
from vitkit.experiments.plan_step import Footprint, rehearse_step
from vitkit.model.config import ViTConfig
from vitkit.system.progress import Progress


def memories(
    job: Job, images: int, devices: int, room: int, precision: str, progress: Progress
) -> tuple[Footprint, tuple[Memory, ...]]:
    """The step of a training, and what a device holds in it: as the recipe has it first, then otherwise.

    Args:
        job: the training.
        images: that each device computes in a batch.
        devices: how many there are.
        room: bytes of each.
        precision: float32 or bfloat16.
        progress: told what is rehearsed.
    """
    recipe = job.recipe
    teacher = teacher_network(recipe, job.config)
    is_vit = isinstance(job.config, ViTConfig)
    both = () if recipe.method == "probe" or not is_vit else ("none", "all")  # else there is nothing to checkpoint
    ways = tuple(dict.fromkeys((recipe.checkpointing, *both)))

    @cache
    def rehearsed(way: str, count: int) -> Footprint:
        progress("rehearsing a step", ways.index(way), len(ways))
        settled = recipe.replace(checkpointing=way)
        return rehearse_step(job.config, settled, count, precision=precision, on_gpu=True, teacher=teacher)

    own: Strategy = "fsdp" if recipe.strategy == "fsdp" else "ddp"
    may_share = is_vit and recipe.method != "lora" and not recipe.ema and not recipe.swa  # as `check_team` has it
    others: tuple[Strategy, ...] = ("ddp", "fsdp") if may_share else ("ddp",)
    strategies: tuple[Strategy, ...] = (own, *others) if devices > 1 else ("alone",)
    rows = []
    for strategy in dict.fromkeys(strategies):
        for way in ways:
            row = memory_of(rehearsed(way, images), way, strategy, devices=devices, images=images, room=room)
            if not row.fits:

                def peak(count: int, way: str = way, strategy: Strategy = strategy) -> int:
                    step = rehearsed(way, count)
                    return memory_of(step, way, strategy, devices=devices, images=count, room=room).peak

                left = room - (row.peak - row.activations)  # beside what does not grow with the images
                guess = int(left / (max(row.activations, 1) / images))
                row = replace(row, images=most_that_fit(peak, guess, images, row.peak, room))
            rows.append(row)
    return rehearsed(recipe.checkpointing, images), tuple(rows)


def most_that_fit(peak: Callable[[int], int], guess: int, too_many: int, above: int, room: int) -> int:
    """Find the largest number of images that fits, in as few rehearsals as will do.

    A step's peak grows with its images along a line, or along lines of which each is steeper than the one before, so
    the line between the nearest numbers on both sides never promises more images than fit. Where that line is of little
    use, as there is a bend between the two, the middle is taken.

    Args:
        peak: bytes that a step of so many images takes.
        guess: where to begin.
        too_many: images that do not fit.
        above: what these take.
        room: bytes that there are.
    """
    fits = below = 0
    guess = min(max(guess, 1), too_many - 1)
    while too_many - fits > 1:
        gap, taken = too_many - fits, peak(guess)
        if taken <= room:
            fits, below = guess, taken
        else:
            too_many, above = guess, taken
        on_line = fits + int((room - below) * (too_many - fits) / (above - below))
        is_of_use = fits > 0 and too_many - fits <= max(gap / 2, 2)
        guess = min(max(on_line if is_of_use else (fits + too_many) // 2, fits + 1), too_many - 1)
    return fits


def memory_of(
    step: Footprint, checkpointing: str, strategy: Strategy, *, devices: int, images: int, room: int
) -> Memory:
    """What each device holds.

    FSDP2 (`training.sharding`) leaves each its part of weights, gradients and moments. Two blocks are whole at a time,
    the one that is computed and the next that is gathered, and so is all around the blocks; in the backward pass one
    block's gradients are whole too. The average of the weights is a part as well, and a teacher is whole.

    Args:
        step: of one device by itself, with its share of the images.
        checkpointing: with which it was rehearsed.
        strategy: among how many devices that is.
        devices: how many.
        images: that each computes in a batch.
        room: bytes of a device.
    """
    parts = devices if strategy == "fsdp" else 1
    weights, gradients, optimizer, average = (
        -(-own // parts) for own in (step.weights, step.gradients, step.optimizer, step.average)
    )
    standing = step.weights + step.optimizer + step.average + step.teacher
    peak, exchange = step.peak, 0
    if strategy == "ddp":
        exchange = step.gradients  # `Team.add_up` lays them in a row, when nothing but gradients is left of the step
        peak = max(peak, standing + step.gradients + exchange)
    if strategy == "fsdp":
        whole = step.gradients / step.weights  # the part of a block that is trained
        exchange = step.around + int((2 + whole) * step.block)
        peak = weights + gradients + optimizer + average + step.teacher + step.moving + exchange
    return Memory(
        checkpointing=checkpointing,
        strategy=strategy,
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        average=average,
        teacher=step.teacher,
        activations=step.activations,
        exchange=exchange,
        peak=peak,
        fits=peak <= room,
        images=images,
    )
