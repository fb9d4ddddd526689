"""`vitkit.dry_run`: what a training would take, measured by one of its steps (`vitkit train --dry-run`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from vitkit.errors import VitkitError, first_line, is_memory_short
from vitkit.system.progress import Progress, silent
from vitkit.text.arguments import Between, check_arguments
from vitkit.text.cells import plural
from vitkit.training.recipe import Recipe, name_of
from vitkit.training.request import NO_HOOKS, Hooks, with_data
from vitkit.verbs.result import Result
from vitkit.verbs.train import requested_on_files

_FACTS = (  # in the order of the JSON
    *("data", "recipe", "parameters", "trained", "classes", "images", "val_images", "epochs", "steps", "device"),
    *("precision", "flops_per_image", "images_in_step", "peak_memory", "seconds_per_step", "reading_per_image"),
    *("seconds", "devices", "notes"),
)


@check_arguments
def dry_run(
    data: str | Path | None = None,
    recipe: str | Path | Recipe | None = None,
    *,
    out: Path | str | None = None,
    force: bool = False,
    price: Annotated[float | None, Between(0)] = None,
    hooks: Hooks = NO_HOOKS,
    progress: Progress = silent,
) -> Result:
    """Take one step of a training, and tell what the training would take: steps, FLOPs, memory, time and cost.

    The images are read, checked and split, and the model and its weights are loaded, as `vitkit.train` does. Nothing is
    written. A recipe of the paper without data is measured on noise instead.

        import vitkit

        found = vitkit.dry_run("digits", vitkit.Recipe(epochs=2), price=2.0)
        print(found.steps, found.images, found.seconds, found.peak_memory, found.cost)

    On the command line: `vitkit train digits --dry-run`.

    Args:
        data: a folder of class folders, a folder with train/ and val/, or a name such as digits.
        recipe: see `vitkit.train`.
        out: the run folder of the training, which is only checked.
        force: whether the training would overwrite the run in `out`.
        price: the price of a device for an hour, in any currency.
        hooks: see `vitkit.train`.
        progress: called with the current task, the number of finished items and the total number of items.

    Returns:
        A result with these facts:

        data, recipe: the images, and the complete recipe.
        parameters, trained: the number of all parameters of the model, and of the trained ones.
        classes, images, val_images: the number of classes, of training images and of validation images.
        epochs: the number of passes over the training images.
        steps: the number of optimiser steps; 0 if a head is fitted in closed form to features of a frozen backbone.
        device, precision: where and how the step was computed.
        flops_per_image: FLOPs of a training image, forward and backward; a multiply-accumulate counts as two.
        flops: FLOPs of the whole training, without validation.
        images_in_step: the number of images of a step, on one device.
        peak_memory: the most bytes that tensors occupy during a step.
        seconds_per_step: the duration of a step without reading its images; for a head that is fitted to features, of
            computing the features of a batch.
        reading_per_image: the seconds in which one process reads and augments an image.
        seconds: the duration of the training, with validation, without checks of the data and without the report.
        devices: the number of devices.
        price, cost: the price of a device for an hour, and of the whole training; None if unknown.
        notes: assumptions, and what is not included.

    Raises:
        VitkitError: the training is not possible, or it does not fit into memory.
    """
    # PyTorch's profiler, which records the memory, writes lines about itself unless these are set before its import.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    requested = with_data(recipe)
    from vitkit.training import step_cost
    from vitkit.training.distributed import ProcessGroup, launched
    from vitkit.training.published import is_of_paper
    from vitkit.training.run import PREPARE
    from vitkit.training.run_folder import Run, check_free

    if launched():
        raise VitkitError(
            "verbs.process-group",
            "a dry run measures one device: start it without torchrun or srun; --devices divides a batch",
        )
    if data is None and requested.data is None and is_of_paper(requested.source):
        with _explaining_shortage():
            return _result(step_cost.measure_on_noise(requested, hooks), price)
    requested, notes = requested_on_files(requested, data)
    devices = (requested.devices or 1) * (requested.nodes or 1)
    run = Run(requested, None if out is None else Path(out), ProcessGroup(size=devices), hooks)
    run.reserve = partial(check_free, force=force)
    for stage in PREPARE:
        stage(run)
    with _explaining_shortage(), TemporaryDirectory() as folder:
        run.set_folder(Path(folder))
        measure = step_cost.measure_head if run.recipe.method == "probe" else step_cost.measure_training
        measured = measure(run, devices)
    measured["notes"] = (*notes, *dict.fromkeys(run.effect_notes), *run.reasons, *measured["notes"])
    return _result(measured, price)


@contextmanager
def _explaining_shortage() -> Iterator[None]:
    """If memory runs out in the `with` block, raise an error that the training run does not fit into memory."""
    from vitkit.training.stability import TooLittleMemory

    try:
        yield
    except TooLittleMemory as error:
        raise VitkitError(error.code, f"it does not fit: {error}") from error
    except (RuntimeError, MemoryError) as error:
        if not is_memory_short(error):
            raise
        raise VitkitError(
            "verbs.memory-short", f"it does not fit: {first_line(error)}; try a smaller --batch-size"
        ) from error


def _result(measured: dict[str, Any], price: float | None) -> Result:
    recipe: Recipe = measured["recipe"]
    steps, seconds = measured["steps"], measured["seconds"]
    flops = measured["flops_per_image"] * measured["images"] * measured["epochs"]  # without validation
    amount = (
        f"{measured['images']:,} images in {measured['classes']:,} classes, "
        f"{plural(measured['epochs'], 'epoch', 'epochs')}"
    )
    if steps:
        step_count = f"{steps:,} steps of {recipe.batch_size * recipe.grad_accum:,}"
        rate = f"{measured['seconds_per_step']:.3g} s for a step"
    else:
        step_count = "no steps, a head is fitted to features"
        rate = f"{measured['seconds_per_step']:.3g} s for the features of a batch"
    if seconds >= 86_400:
        duration = f"{seconds / 86_400:,.1f} days"
    elif seconds >= 3_600:
        duration = f"{seconds / 3_600:,.1f} hours"
    elif seconds >= 60:
        duration = f"{seconds / 60:,.1f} minutes"
    else:
        duration = f"{seconds:.2g} seconds"
    cost, price_text = None, ""
    if price is not None:
        cost = price * measured["devices"] * seconds / 3_600
        price_text = f"; cost {cost:,.2f} at {price:g} an hour"
    trained = f"{measured['trained']:,} of {measured['parameters']:,} parameters trained"
    step = f"a step of {measured['images_in_step']:,} images, on {measured['device']} in {measured['precision']}"
    reading = f"{1000 * measured['reading_per_image']:.3g} ms to read an image"
    lines = [
        f"{name_of(recipe)}, method {recipe.method}: {trained}",
        f"  images  {amount}: {step_count}; {measured['val_images']:,} to validate",
        f"  FLOPs   {flops:.4g}; {measured['flops_per_image'] / 1e9:,.3f} G for a training image",
        f"  memory  {measured['peak_memory'] / 2**30:,.2f} GiB of tensors in {step}",
        f"  time    {duration}; {rate}, {reading}{price_text}",
        *(f"note: {note}" for note in measured["notes"]),
    ]
    facts = {name: measured[name] for name in _FACTS}
    facts |= {"price": price, "flops": flops, "cost": cost}
    fields = {name: value for name, value in asdict(recipe).items() if value is not None}
    return Result("dry_run", lines, facts, json={**facts, "recipe": fields})
