"""From what one device would hold by itself to what each of several does, whole models or parts of them."""

from __future__ import annotations

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
    steps = {}
    for number, way in enumerate(ways):
        progress("rehearsing a step", number, len(ways))
        steps[way] = rehearse_step(
            job.config, recipe.replace(checkpointing=way), images, precision=precision, on_gpu=True, teacher=teacher
        )
    own: Strategy = "fsdp" if recipe.strategy == "fsdp" else "ddp"
    may_share = is_vit and recipe.method != "lora" and not recipe.ema and not recipe.swa  # as `check_team` has it
    others: tuple[Strategy, ...] = ("ddp", "fsdp") if may_share else ("ddp",)
    strategies: tuple[Strategy, ...] = (own, *others) if devices > 1 else ("alone",)
    rows = tuple(
        memory_of(steps[way], way, strategy, devices=devices, images=images, room=room)
        for strategy in dict.fromkeys(strategies)
        for way in ways
    )
    return steps[recipe.checkpointing], rows


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
    growth = max(step.activations, 1) / max(images, 1)
    left = room - (peak - step.activations)
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
        images=max(0, min(images, int(left / growth))),
    )
