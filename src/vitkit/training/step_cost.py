"""Measure the time and the memory of a training by taking one step of it (`vitkit train --dry-run`).

The functions return figures, which `vitkit.dry_run` explains.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import Subset
from torch.utils.flop_counter import FlopCounterMode

from vitkit.data.decode import available_memory
from vitkit.data.loading import Batch, BatchedImages, EvaluationImages
from vitkit.errors import VitkitError
from vitkit.model.build import build
from vitkit.model.vit import VisionTransformer
from vitkit.system import environment
from vitkit.system.progress import ignore, silent
from vitkit.training.adapters import count_parameters, drop_patches
from vitkit.training.checkpoint import TrainingState, in_evaluation
from vitkit.training.distributed import ProcessGroup, check_team, fabric_of
from vitkit.training.features import compute_features
from vitkit.training.fine_tune import prepare_training
from vitkit.training.inputs import Inputs
from vitkit.training.loop import Loop
from vitkit.training.losses import Objective
from vitkit.training.published import paper_training
from vitkit.training.recipe import Recipe, checkpoint_every
from vitkit.training.request import Hooks
from vitkit.training.run_folder import Run
from vitkit.training.stability import TooLittleMemory
from vitkit.training.start import (
    check_config,
    choose_compile,
    choose_device,
    choose_precision,
    choose_workers,
    new_classifier,
)
from vitkit.training.teacher import load_teacher

Figures = dict[str, Any]

_FIRST_IMAGES = 2  # images of the first step
_SHORT = 5.0  # seconds; after a shorter step whose memory was recorded, another step is timed without the recording
_LONG = 30.0  # seconds; a longer step is estimated from shorter ones


def measure_training(run: Run, devices: int) -> Figures:
    """Measure a training by gradient descent. If several devices share a batch, the share of one device is measured."""
    recipe, notes = _at_full_speed(run.recipe)
    table = run.parts[0].images.table
    classifier = new_classifier(run.blueprint, table, "")
    teacher = None if recipe.teacher is None else load_teacher(recipe.teacher, table.classes)
    run.recipe = recipe.replace(lp_ft=False)  # the head is not fitted, which would take a pass over all images
    run.inputs = Inputs(table, "", {}, {})
    data, objective, fabric, _ = prepare_training(run, classifier, teacher)
    data.process = (0, devices)
    state = _initial_state(classifier.model, recipe, data, fabric.device, run.hooks)
    first_seconds, batch = _timed(lambda: data.batch_again(0, 0))
    next_seconds, _ = _timed(lambda: data.batch_again(0, 0))  # its pictures may be cached now
    network = None if teacher is None else teacher.network
    figures = _measure_step(Loop(state, objective, data, fabric), batch, network)
    images, labels = fabric.to_device([part[:_FIRST_IMAGES] for part in batch])
    with in_evaluation(state.model_to_save), torch.no_grad(), fabric.autocast():
        seconds, _ = _timed(lambda: objective.call_network(state.model_to_save, images, labels).float().sum().item())

    # The following times are seconds per image.
    training = figures["seconds_per_step"] / figures["images_in_step"]
    validation = seconds / len(images)
    first_reading, next_reading = first_seconds / len(batch[0]), next_seconds / len(batch[0])
    train_images, val_images = len(data.train) / devices, data.val_images  # in the share of one device

    def epoch_seconds(reading: float) -> float:
        train_seconds = train_images * _overlapped(training, reading, data.workers)
        return train_seconds + val_images * _overlapped(validation, reading, data.workers)

    seconds = epoch_seconds(first_reading) + (recipe.epochs - 1) * epoch_seconds(next_reading)
    if recipe.lp_ft and classifier.model.head is not None:  # a forward pass of all images
        seconds += (train_images + val_images) * _overlapped(validation, first_reading, data.workers)
    notes += figures["notes"]
    if recipe.folds is not None:
        seconds *= recipe.folds + 1
        notes.append(f"folds {recipe.folds}: the time is that of {recipe.folds + 1} trainings")
    return figures | {
        "data": str(table.place),
        "classes": len(table.classes),
        "images": len(data.train),
        "val_images": len(data.val),
        "reading_per_image": first_reading,
        "seconds": seconds if recipe.budget is None else min(seconds, recipe.budget),
        "notes": tuple(notes),
    }


def measure_head(run: Run, devices: int) -> Figures:
    """Measure a training that fits a head to the features of a frozen backbone."""
    recipe, notes = _at_full_speed(run.recipe)
    table = run.parts[0].images.table
    classifier = new_classifier(run.blueprint, table, "")
    model = classifier.model
    precision = choose_precision(recipe.precision, recipe.device)
    device = torch.device(environment.choose_device(recipe.device))
    images = EvaluationImages(table.of_split("train"), classifier.preprocess)
    train, val = len(images), len(table.of_split("val"))
    count = min(recipe.batch_size, train)
    first_count = min(_FIRST_IMAGES, count)

    def features(number: int) -> None:
        in_this_process = recipe.replace(workers=0)
        sample = Subset(images, range(number))
        compute_features(model, sample, in_this_process, precision, partial(silent, "features"))

    with FlopCounterMode(display=False) as counter:
        features(first_count)
    reading, _ = _timed(lambda: [images[i] for i in range(count)])
    weight_bytes = sum(tensor.nbytes for tensor in model.state_dict().values())
    peak, seconds = _memory_and_time(partial(features, count), device, weight_bytes)
    compute = max(seconds - reading, 0.0)
    image_seconds = _overlapped(compute / count, reading / count, choose_workers(recipe, run.config.image_size))
    notes += [
        "fitting the head to the features, and the evaluation and the report after it, are not included",
        *_excluded_costs(recipe),
    ]
    if devices > 1:
        notes.append("method probe: one of the devices fits the head, and the others wait")
    return {
        "parameters": count_parameters(model)[1],
        "trained": sum(model.get_parameter(f"head.{name}").numel() for name in ("weight", "bias")),
        "data": str(table.place),
        "recipe": recipe,
        "classes": len(table.classes),
        "images": train,
        "val_images": val,
        "epochs": 1,
        "steps": 0,
        "device": str(device),
        "devices": devices,
        "precision": precision,
        "flops_per_image": round(counter.get_total_flops() / first_count),
        "images_in_step": count,
        "peak_memory": peak,
        "seconds_per_step": compute,
        "reading_per_image": reading / count,
        "seconds": image_seconds * (train + val) * (1 if recipe.folds is None else recipe.folds + 1),
        "notes": tuple(notes),
    }


def measure_on_noise(request: Recipe, hooks: Hooks) -> Figures:
    """Measure a training run of the ViT paper with random weights, and with noise instead of the images."""
    training = paper_training(request)
    config, corpus = training.config, training.corpus
    recipe, notes = _at_full_speed(training.recipe)
    if recipe.method not in ("scratch", "full") or recipe.teacher is not None:
        what = f"method {recipe.method}" if recipe.teacher is None else "a teacher"
        raise VitkitError(
            "training.data-missing",
            f"{what} cannot be measured on noise: name the data, as in vitkit train DATA --recipe {request.source}",
        )
    devices = (recipe.devices or 1) * (recipe.nodes or 1)
    check_team(recipe, ProcessGroup(size=devices))
    check_config(config, recipe)
    fabric = fabric_of(choose_precision(recipe.precision, recipe.device), choose_device(recipe))
    model = build(config)
    if isinstance(model, VisionTransformer):
        model.fused_attention = fabric.device.type == "cuda"
        model.checkpointing = checkpoint_every(recipe.checkpointing)
        if recipe.patch_dropout:
            drop_patches(model, recipe.patch_dropout)
    images = min(corpus.images, recipe.max_images or corpus.images)
    # A step needs only the number of images, so a range takes the place of a data set.
    sets: Any = range(images), range(0), None
    data = BatchedImages(*sets, batch_size=recipe.batch_size, workers=0, seed=recipe.seed, process=(0, devices))
    state = _initial_state(model, recipe, data, fabric.device, hooks)
    loop = Loop(state, Objective(recipe, corpus.classes, custom_loss=hooks.loss), data, fabric)
    share, _ = data.images_in(0, 0)
    pictures = torch.rand(1, config.in_channels, *config.image_size).expand(share, -1, -1, -1)
    figures = _measure_step(loop, (pictures, torch.randint(corpus.classes, (share,))), None)
    noise = f"noise instead of the {images:,} images of {corpus.title}, and random weights: reading is not included"
    return figures | {
        "data": corpus.title,
        "classes": corpus.classes,
        "images": images,
        "val_images": 0,
        "reading_per_image": 0.0,
        "seconds": figures["seconds_per_step"] * state.total_steps,
        "notes": (noise, *notes, *figures["notes"]),
    }


# --- One step -------------------------------------------------------------------------------------------------


def _initial_state(
    model: Any, recipe: Recipe, data: BatchedImages, device: torch.device, hooks: Hooks
) -> TrainingState:
    if device.type == "cpu":
        # The weights, their gradients and two moments have four bytes for each parameter.
        needed, free = 4 * 4 * count_parameters(model)[0], available_memory()
        if needed > free:
            raise VitkitError(
                "training.memory-short",
                f"it does not fit: weights, gradients and moments take {needed / 2**30:,.1f} GiB, and "
                f"{free / 2**30:,.1f} GiB are free; try --method lora or a smaller --model",
            )
    model.train().to(device)
    steps = math.ceil(data.batches / recipe.grad_accum) * recipe.epochs
    return TrainingState(model, recipe, steps, ignore, make_optimizer=hooks.optimizer)


def _measure_step(loop: Loop, batch: Batch, teacher: nn.Module | None) -> Figures:
    """Take steps with a batch, of a training that has not started, and return the figures of a whole step."""
    state, device = loop.state, loop.fabric.device
    recipe, (_, devices) = state.recipe, loop.data.process
    images, labels = batch
    batch_images, first_count = len(images), min(_FIRST_IMAGES, len(images))
    batches = min(recipe.grad_accum, loop.data.batches, 2)  # accumulating more gradients takes no more memory
    images_in_step, _ = loop.data.images_in(0, recipe.grad_accum - 1)

    def take_step(count: int) -> None:
        """Take a step with only the first images of the batch."""
        loop.take_step(0, [(images[:count], labels[:count])] * batches)
        state.finite_check.resolve_pending()

    loop.begin_epoch()
    with FlopCounterMode(display=False) as counter:
        take_step(first_count)
    if choose_compile(recipe, len(loop.data.train)):
        loop.compile_steps()
    base_bytes = _bytes_between_steps(state, teacher)

    def measure(count: int) -> tuple[int, float]:
        state.optimizer.zero_grad()  # `base_bytes` has no gradients
        return _memory_and_time(partial(take_step, count), device, base_bytes)

    notes = _excluded_costs(recipe)
    if devices > 1:
        share = "measured on one device with its share of a batch"
        notes.append(f"{share}; the exchange between {devices} is not included")
    if device.type == "cpu":
        peak, seconds, cpu_notes = _measure_on_cpu(measure, first_count, batch_images, base_bytes, recipe)
        notes += cpu_notes
    else:
        if device.type == "cuda":  # compile the step, or find the pieces that fit into memory
            take_step(batch_images)
        peak, seconds = measure(batch_images)
    size = state.pieces.size
    if size is not None and devices > 1:
        raise TooLittleMemory(
            "training.memory-short",
            f"{batch_images} images do not fit into the memory of a device: lower --batch-size (a higher "
            "--grad-accum keeps the images of a step)",
        )
    if size is not None:
        notes.append(f"a batch does not fit into memory at once: {size} images are computed at a time")
    trained, parameters = count_parameters(state.model)
    return {
        "recipe": recipe,
        "parameters": parameters,
        "trained": trained,
        "epochs": recipe.epochs,
        "steps": state.total_steps,
        "device": str(device),
        "devices": devices,
        "precision": choose_precision(recipe.precision, recipe.device),
        "flops_per_image": round(counter.get_total_flops() / (first_count * batches)),
        "images_in_step": images_in_step,
        "peak_memory": peak,
        "seconds_per_step": seconds * images_in_step / (batch_images * batches),
        "notes": tuple(notes),
    }


def _bytes_between_steps(state: TrainingState, teacher: nn.Module | None) -> int:
    """Return the bytes that tensors occupy between two steps, without gradients and images."""
    modules = [module for module in (state.model, state.average, teacher) if module is not None]
    values = [value for module in modules for value in module.state_dict().values()]
    values += [value for moments in state.optimizer.state.values() for value in moments.values()]
    return sum(value.nbytes for value in values if isinstance(value, Tensor))


def _measure_on_cpu(
    measure: Callable[[int], tuple[int, float]], count: int, batch_images: int, base_bytes: int, recipe: Recipe
) -> tuple[int, float, list[str]]:
    """Return the bytes and the seconds of a step with `batch_images` images, and a note if they are estimated.

    The operating system ends a process that allocates too much memory. Therefore, the number of images is doubled from
    `count` on, and before each step, the memory of a whole step is extrapolated. If the next step would take long, the
    result is extrapolated, too.
    """
    peak, seconds = measure(count)
    while count < batch_images:
        last_count, last_peak, last_seconds = count, peak, seconds
        count = min(2 * count, batch_images)
        peak, seconds = measure(count)
        bytes_per_image = (peak - last_peak) / (count - last_count)
        seconds_per_image = max(seconds - last_seconds, 0.0) / (count - last_count)
        expected = round(peak + bytes_per_image * (batch_images - count))
        free = available_memory() + base_bytes
        if expected >= free:
            fitting = batch_images
            while fitting > 1 and expected - bytes_per_image * (batch_images - fitting) > 0.8 * free:
                fitting //= 2
            raise VitkitError(
                "training.memory-short",
                f"it does not fit: a step with {batch_images:,} images at a time takes about "
                f"{expected / 2**30:,.1f} GiB, and {free / 2**30:,.1f} GiB are free; try --batch-size {fitting} "
                f"--grad-accum {math.ceil(batch_images * recipe.grad_accum / fitting)}",
            )
        if count < batch_images and 2 * seconds > _LONG:
            note = f"memory and time of a step are estimated from steps with {last_count} and {count} images"
            return expected, seconds + seconds_per_image * (batch_images - count), [note]
    return peak, seconds, []


def _memory_and_time(work: Callable[[], Any], device: torch.device, base_bytes: int) -> tuple[int, float]:
    """Return the peak of the bytes that tensors occupy while `work` runs, and its duration in seconds.

    On a CPU, the profiler records only the changes during the work, to which `base_bytes` are added.
    """
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated(), time.perf_counter() - began
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as record:
        seconds, _ = _timed(work)
    if seconds < _SHORT:  # recording takes a notable part of this time
        seconds, _ = _timed(work)
    events = record.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return base_bytes + max(accumulate((size for _, size in changes), initial=0)), seconds


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    outcome = work()
    return time.perf_counter() - began, outcome


def _overlapped(compute: float, reading: float, workers: int) -> float:
    # The seconds for an image, if `workers` other processes read images while the device computes.
    return max(compute, reading / workers) if workers else compute + reading


def _at_full_speed(recipe: Recipe) -> tuple[Recipe, list[str]]:
    """Replace bfloat16 by float32 if the device computes it slowly; return the recipe, and notes about the change."""
    device = environment.choose_device(recipe.device)
    is_slow = device == "cpu" and environment.best_precision(device) != "bfloat16"
    if recipe.precision != "bfloat16" or not is_slow:
        return recipe, []
    note = "this processor computes bfloat16 far more slowly than float32: measured with --precision float32"
    return recipe.replace(precision="float32"), [note]


def _excluded_costs(recipe: Recipe) -> list[str]:
    return [f"time {recipe.time}: the training may end before its last epoch"] if recipe.time else []
