"""`vitkit.plan`: what a training will take, before anything is allocated."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from vitkit.errors import VitkitError
from vitkit.experiments.plan_result import TrainingPlan
from vitkit.profiling.accelerators import Accelerator, find_accelerator
from vitkit.system.progress import Progress, silent
from vitkit.text.arguments import check_arguments
from vitkit.verbs.choices import check_least
from vitkit.verbs.fields import tell_of_fields

DECODE_RATE = 200.0  # of photographs with a short side of 256 pixels (benchmarks/planning.py)


@check_arguments
def plan(
    recipe: str | Path,
    *,
    images: int | None = None,
    classes: int | None = None,
    accelerator: str = "h100",
    utilisation: float = 0.4,
    price: float | None = None,
    decode_rate: float = DECODE_RATE,
    progress: Progress = silent,
    **fields: Any,
) -> TrainingPlan:
    """Steps, tokens, FLOPs, memory of a device, time and cost of a training, without a tensor that takes memory.

        import vitkit

        found = vitkit.plan("vit_large_patch16_224", images=1_281_167, epochs=300, batch_size=4096, devices=8)
        print(found.days, found.memory[0].peak)

    `devices` and `nodes` of the recipe say how many accelerators there are; a batch is dealt out among them.

    Args:
        recipe: TOML file, the name of a bundled recipe, or the name of a model (`torchvision:resnet50` too), which is
            planned from scratch.
        images: that it trains on; by default as many as the recipe's data has, where that is known.
        classes: of the data; by default as many as it has, or as the model's name says.
        accelerator: what computes (`profiling.accelerators`).
        utilisation: the part of the accelerator's peak that is reached, more than 0 and at most 1.
        price: of one device for an hour, in any currency.
        decode_rate: images that one CPU core reads and augments in a second.
        progress: told what is rehearsed.
        fields: of the recipe, see below; they go before those of the recipe file.

    Raises:
        VitkitError: there is no such recipe, model or accelerator, or the recipe cannot be trained by.
    """
    check_least("--images", images, 1)
    check_least("--classes", classes, 1)
    if not 0 < utilisation <= 1:
        raise VitkitError(f"--utilisation must be above 0 and at most 1, not {utilisation:g}")
    for flag, value in (("--price", price), ("--decode-rate", decode_rate)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise VitkitError(f"{flag} must be a number above 0, not {value:g}")
    found = find_accelerator(accelerator)
    return _planned(recipe, fields, images, classes, found, utilisation, price, decode_rate, progress)


def _planned(
    recipe: str | Path,
    fields: dict[str, Any],
    images: int | None,
    classes: int | None,
    accelerator: Accelerator,
    utilisation: float,
    price: float | None,
    decode_rate: float,
    progress: Progress,
) -> TrainingPlan:
    from vitkit.experiments.plan_memory import memories
    from vitkit.experiments.plan_recipe import job_of, passes, tokens_of
    from vitkit.training.distributed import Team, check_team

    job = job_of(recipe, fields, images, classes)
    own, config = job.recipe, job.config
    precision = own.precision
    if precision == "auto":
        precision = "float32" if accelerator.bfloat16 is None else "bfloat16"
    accelerator.peak(precision)  # refuses what it has not
    devices, notes = (own.devices or 1) * (own.nodes or 1), job.notes
    check_team(own, Team(size=devices))
    if own.method == "probe" and devices > 1:
        devices, notes = 1, (*notes, "method probe: one of the devices fits it, the others wait")
    seen, steps = passes(own, job.images)
    at_a_time = math.ceil(min(own.batch_size, job.images) / devices)
    step, memory = memories(job, at_a_time, devices, accelerator.memory, precision, progress)
    return TrainingPlan(
        name=str(recipe),
        recipe=own,
        classes=config.num_classes,
        parameters=step.parameters,
        trained=step.trained,
        images=job.images,
        images_seen=seen,
        steps=steps,
        batch_of_device=at_a_time,
        tokens_per_image=tokens_of(own, config),
        forward_flops=round(step.forward_flops / step.images),
        flops_per_image=round(step.flops / step.images),
        accelerator=accelerator,
        devices=devices,
        precision=precision,
        utilisation=utilisation,
        decode_rate=decode_rate,
        price=price,
        memory=memory,
        notes=notes,
    )


tell_of_fields(plan, ("data", "select_time"))
