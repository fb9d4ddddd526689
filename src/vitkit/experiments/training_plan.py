"""`vitkit.plan`: predict the time and memory of a training before anything is allocated.

The request is resolved as for a training, except that only the size of the data is known. `footprint` simulates a
training step on one device. From its result, this module computes the memory of each device in distributed training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Unpack

from vitkit.data.named import DATASETS
from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig
from vitkit.model.names import Config, NetworkConfig, config_for, is_model_name, is_network_name
from vitkit.profiling.accelerators import UTILISATION, Accelerator, accelerator_names, find_accelerator
from vitkit.system.progress import Progress, progress, reporting_to, silent
from vitkit.system.run_files import RECIPE
from vitkit.text.arguments import Between, check_arguments
from vitkit.text.cells import aligned
from vitkit.training.recipe import Recipe, RecipeFields, Request, build, overlay, unfold
from vitkit.training.request import add_recipe_fields, bundled, load_fields
from vitkit.verbs.result import Result

if TYPE_CHECKING:
    from torch import nn

    from vitkit.experiments.footprint import Footprint

    AcceleratorName: TypeAlias = str  # the choices are read from a table at run time
else:
    AcceleratorName = Literal[accelerator_names()]

Strategy = Literal["alone", "ddp", "fsdp"]


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of one device in training, in bytes.

    The peak is less than the sum of the parts, because activations are freed while gradients are computed. Only tensors
    are counted. A GPU also needs memory for its driver, for the workspaces of libraries, and for gaps between allocated
    blocks.

    Attributes:
        checkpointing: see `Recipe`.
        strategy: `alone` for a single device, `ddp` for a whole model on each device, or `fsdp` for a shard on each.
        weights, gradients, optimizer, average, teacher: the sizes that `Footprint` describes, as stored on this device.
        activations: size of the tensors that a forward pass keeps for the backward pass.
        exchange: memory for the communication between devices: a buffer with all gradients (ddp), or the complete
            weights of the current blocks (fsdp).
        peak: the largest total at any moment of a step.
        fits: whether the accelerator has enough memory.
        images: the largest number of images of the device's batch that fit into memory together. If the whole batch
            does not fit, training divides it into smaller pieces.
    """

    checkpointing: str
    strategy: Strategy
    weights: int
    gradients: int
    optimizer: int
    average: int
    teacher: int
    activations: int
    exchange: int
    peak: int
    fits: bool
    images: int


@dataclass(frozen=True, repr=False)
class TrainingPlan(Result):
    """The predicted cost of a training. A multiply-accumulate counts as two FLOPs; attention products are included.

        >>> import vitkit
        >>> plan = vitkit.plan("digits")
        >>> plan.steps, plan.images_seen, plan.memory[0].fits
        (2800, 88130, True)

    Attributes:
        name: the recipe or model, as the user named it.
        recipe: the complete recipe.
        classes: the number of classes.
        parameters, trained: the number of all parameters of the model, and the number of trained parameters.
        images, images_seen: the number of images in an epoch, and in the whole training.
        steps: the number of optimiser steps; 0 if only a head is fitted in closed form.
        batch_of_device: the number of images of a batch on one device. They are split further if they do not fit into
            memory.
        tokens_per_image, tokens: the number of tokens that pass through the layers, per image and in the whole
            training; 0 for a network without tokens.
        forward_flops: FLOPs of the forward pass for one image, including the forward pass of a teacher.
        flops_per_image: FLOPs per training image, forward and backward, including recomputation by checkpointing.
        flops: FLOPs of the whole training.
        accelerator, devices, precision: the accelerator, the number of devices, and the precision.
        utilisation: the assumed fraction of the accelerator's peak.
        images_per_second: the training speed of all devices together.
        seconds: the duration of all training steps.
        decoding_cores: the number of CPU cores that are needed to read and augment the images, if each core prepares
            `decode_rate` images per second.
        price: the price of a device hour; None if unknown.
        cost: the cost of the device hours.
        memory: the memory of a device for several strategies, beginning with the recipe's strategy.
        notes: assumptions, and costs that are not included.
        others: the plans of the other recipes.
    """

    name: str
    recipe: Recipe
    classes: int
    parameters: int
    trained: int
    images: int
    images_seen: int
    steps: int
    batch_of_device: int
    tokens_per_image: int
    forward_flops: int
    flops_per_image: int
    accelerator: Accelerator
    devices: int
    precision: str
    utilisation: float
    decode_rate: float
    price: float | None
    memory: tuple[DeviceMemory, ...]
    notes: tuple[str, ...]
    others: tuple[TrainingPlan, ...] = ()

    @property
    def tokens(self) -> int:
        return self.images_seen * self.tokens_per_image

    @property
    def flops(self) -> int:
        return self.images_seen * self.flops_per_image

    @property
    def images_per_second(self) -> float:
        return self.utilisation * self.accelerator.peak(self.precision) * self.devices / self.flops_per_image

    @property
    def seconds(self) -> float:
        return self.images_seen / self.images_per_second

    @property
    def days(self) -> float:
        """The duration of all training steps in days."""
        return self.seconds / 86_400

    @property
    def device_hours(self) -> float:
        return self.devices * self.seconds / 3_600

    @property
    def decoding_cores(self) -> float:
        return self.images_per_second / self.decode_rate

    @property
    def cost(self) -> float | None:
        return None if self.price is None else self.price * self.device_hours

    def rows(self) -> list[dict[str, Any]]:
        """Return the main numbers of this plan and of the other plans, one row for each plan."""
        keys = ("parameters", "trained", "images", "classes", "steps", "tokens_per_image", "forward_flops", "flops")
        return [
            {
                "name": plan.name,
                **{key: getattr(plan, key) for key in (*keys, "seconds", "device_hours", "cost")},
                "memory": plan.memory[0].peak,
                "fits": plan.memory[0].fits,
            }
            for plan in (self, *self.others)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything in plain JSON types, including derived values."""
        computed = ("tokens", "flops", "images_per_second", "seconds", "days", "device_hours", "decoding_cores", "cost")
        plain = asdict(replace(self, others=())) | {name: getattr(self, name) for name in computed}
        return plain | {"others": [other.to_dict() for other in self.others]}

    def lines(self) -> list[str]:
        """Return lines with size, data, FLOPs, time and memory; for several recipes, a table with a row for each."""
        if self.others:
            return _side_by_side([self, *self.others])
        recipe = self.recipe
        learning = "all trained" if self.trained == self.parameters else f"{self.trained:,} trained"
        batch, accelerator = recipe.batch_size * recipe.grad_accum, self.accelerator
        steps = f"{self.steps:,} steps of {batch:,}" if self.steps else "no steps, a head is fitted to frozen features"
        size = f"{self.parameters:,} parameters, {learning}; method {recipe.method}, {self.classes:,} classes"
        amount = f"{recipe.epochs:,} epochs of {self.images:,} images: {steps}"
        tokens = f"; {self.tokens:,} tokens, {self.tokens_per_image} an image" if self.tokens else ""
        part = f"{self.flops_per_image / 1e9:,.3f} G a training image, {self.forward_flops / 1e9:,.3f} G forward"
        lines = [
            f"{self.name}: {size}",
            f"  data      {amount}{tokens}",
            f"  FLOPs     {self.flops:.4g}: {part}",
            *self._time_lines(),
            "",
            (
                f"memory of a device in GiB (it has {accelerator.memory / 2**30:.1f}), "
                f"{self.batch_of_device:,} images at a time"
            ),
            _HEADING,
            *(_memory_line(row) for row in self.memory),
        ]
        return lines + (["", *(f"note: {note}" for note in self.notes)] if self.notes else [])

    def _time_lines(self) -> list[str]:
        accelerator, peak = self.accelerator, self.accelerator.peak(self.precision) / 1e12
        used = f"{self.utilisation:.0%} of {peak:g} TFLOP/s in {self.precision}"
        cost = "" if self.cost is None else f"; cost {self.cost:,.2f} at {self.price:g} an hour"
        cores = f"{self.decoding_cores:,.1f} cores that prepare {self.decode_rate:g} each"
        return [
            f"  on        {self.devices} x {accelerator.name} ({accelerator.what}; {accelerator.source}), {used}",
            f"  time      {_duration(self.seconds)}; {_hours(self.device_hours)} device hours{cost}",
            f"  feeding   {self.images_per_second:,.0f} images a second: {cores}",
        ]


def _side_by_side(plans: Sequence[TrainingPlan]) -> list[str]:
    """Return a table with a row for each plan, and the notes of all plans."""
    first = plans[0]
    heading = ("", "parameters", "trained", "tokens", "GFLOPs forward", "FLOPs", "time", "device hours", "relative")
    prices = ("cost",) if first.price is not None else ()
    rows = [(*heading, *prices, "GiB a device", "fits")]
    for plan in plans:
        memory = plan.memory[0]
        cost = () if plan.cost is None else (f"{plan.cost:,.2f}",)
        rows.append(
            (
                plan.name,
                f"{plan.parameters:,}",
                f"{plan.trained:,}",
                f"{plan.tokens_per_image:,}" if plan.tokens_per_image else "",
                f"{plan.forward_flops / 1e9:,.3f}",
                f"{plan.flops:.3g}",
                _duration(plan.seconds),
                _hours(plan.device_hours),
                f"{plan.device_hours / first.device_hours:.3g}",
                *cost,
                f"{memory.peak / 2**30:.2f}",
                "yes" if memory.fits else "no",
            )
        )
    used = {(plan.devices, plan.accelerator.name, plan.precision) for plan in plans}
    machines = " or ".join(f"{devices} x {name} in {precision}" for devices, name, precision in sorted(used))
    amounts = {(plan.recipe.epochs, plan.images, plan.classes) for plan in plans}
    amount = ", or ".join(
        f"{epochs:,} epochs of {images:,} images in {classes:,} classes" for epochs, images, classes in sorted(amounts)
    )
    common = set(first.notes).intersection(*(plan.notes for plan in plans))
    notes = [f"note: {note}" for note in first.notes if note in common]
    notes += [f"note: {plan.name}: {note}" for plan in plans for note in plan.notes if note not in common]
    return [f"{amount}; {machines}, at {first.utilisation:.0%} of the peak", "", *aligned(rows), *notes]


_HEADING = (
    "checkpointing  devices   weights  gradients  optimiser  activations  exchange      peak  fits  images that fit"
)


def _memory_line(row: DeviceMemory) -> str:
    def gib(size: int) -> str:
        return f"{size / 2**30:.2f}" if size >= 2**29 else f"{size / 2**30:.2g}"

    return (
        f"{row.checkpointing:13}  {row.strategy:7}  {gib(row.weights + row.average + row.teacher):>8}"
        f"  {gib(row.gradients):>9}  {gib(row.optimizer):>9}  {gib(row.activations):>11}  {gib(row.exchange):>8}"
        f"  {gib(row.peak):>8}  {'yes' if row.fits else 'no':4}  {row.images:>15,}"
    )


def _duration(seconds: float) -> str:
    if seconds >= 86_400:
        return f"{seconds / 86_400:,.1f} days"
    if seconds >= 60:
        return f"{seconds / 3_600:,.1f} hours" if seconds >= 3_600 else f"{seconds / 60:,.1f} minutes"
    return f"{seconds:.2g} seconds"


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"


DECODE_RATE = 200.0  # images/s on one core, for a short side of 256 pixels (benchmarks/planning.py)


@check_arguments
def plan(
    recipe: str | Path,
    others: Sequence[str] = (),
    *,
    images: Annotated[int | None, Between(1)] = None,
    classes: Annotated[int | None, Between(1)] = None,
    accelerator: AcceleratorName = "h100",
    utilisation: float = UTILISATION,
    price: float | None = None,
    decode_rate: float = DECODE_RATE,
    progress: Progress = silent,
    **fields: Unpack[RecipeFields],
) -> TrainingPlan:
    """Predict the steps, tokens, FLOPs, memory, time and cost of a training without allocating anything.

        import vitkit

        found = vitkit.plan("vit_large_patch16_224", images=1_281_167, epochs=300, batch_size=4096, devices=8)
        print(found.days, found.memory[0].peak)

    Several recipes or models are planned with the same flags, and compared in a table with a row for each:
    `vitkit plan vit_tiny_patch16_224 vit_base_patch16_224 torchvision:resnet50 --images 50000 --epochs 7`

    `devices` and `nodes` set the number of accelerators; each batch is divided among them.

    On the command line: `vitkit plan vit_large_patch16_224 --images 1281167 --epochs 300 --batch-size 4096 --devices 8`

    Args:
        recipe: a TOML file, the name of a bundled recipe, or the name of a model such as `torchvision:resnet50`, whose
            training from scratch is planned.
        others: further recipes or models to compare with the first.
        images: the number of training images; by default that of the recipe's data, if it is known.
        classes: the number of classes; by default that of the data, or of the model's name.
        accelerator: the kind of device to train on.
        utilisation: the assumed fraction of the accelerator's peak, above 0 and at most 1.
        price: the price of one device for an hour, in any currency.
        decode_rate: the number of images that one CPU core reads and augments per second.
        progress: called with the progress of the simulations.
        fields: the fields of the recipe, see below; they take precedence over those of the recipe file.

    Raises:
        VitkitError: the recipe, model or accelerator does not exist, or a training with this recipe is not possible.
    """
    if not 0 < utilisation <= 1:
        raise VitkitError(f"--utilisation must be above 0 and at most 1, not {utilisation:g}")
    for flag, value in (("--price", price), ("--decode-rate", decode_rate)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise VitkitError(f"{flag} must be a number above 0, not {value:g}")
    machine = find_accelerator(accelerator)
    planned = partial(_planned, accelerator=machine, utilisation=utilisation, price=price, decode_rate=decode_rate)
    jobs = [(str(each), job_of(each, {**fields}, images, classes)) for each in (recipe, *others)]  # refuses all first
    first, *rest = (planned(name, job) for name, job in jobs)
    return replace(first, others=tuple(rest))


def _planned(
    name: str,
    job: PlannedTraining,
    accelerator: Accelerator,
    utilisation: float,
    price: float | None,
    decode_rate: float,
) -> TrainingPlan:
    from vitkit.training.distributed import ProcessGroup, check_team
    from vitkit.training.start import check_config

    recipe_of_job, config = job.recipe, job.config
    precision = recipe_of_job.precision
    if precision == "auto":
        precision = "float32" if accelerator.bfloat16 is None else "bfloat16"
    accelerator.peak(precision)  # refuses an unsupported precision
    devices, notes = (recipe_of_job.devices or 1) * (recipe_of_job.nodes or 1), job.notes
    check_team(recipe_of_job, ProcessGroup(size=devices))
    check_config(config, recipe_of_job)
    if recipe_of_job.method == "probe" and devices > 1:
        devices, notes = 1, (*notes, "method probe: one of the devices fits the head, and the others wait")
    seen, steps = passes(recipe_of_job, job.images)
    at_a_time = math.ceil(min(recipe_of_job.batch_size, job.images) / devices)
    step, memory = memories(job, at_a_time, devices, accelerator.memory, precision)
    return TrainingPlan(
        name=name,
        recipe=recipe_of_job,
        classes=config.num_classes,
        parameters=step.parameters,
        trained=step.trained,
        images=job.images,
        images_seen=seen,
        steps=steps,
        batch_of_device=at_a_time,
        tokens_per_image=tokens_of(recipe_of_job, config),
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


add_recipe_fields(plan, ("data",))


@dataclass(frozen=True)
class PlannedTraining:
    """A training whose recipe is complete, so that its cost can be computed.

    Attributes:
        recipe: the complete recipe.
        config: the configuration of the model.
        images: the number of images in an epoch.
        notes: assumptions, one line each.
    """

    recipe: Recipe
    config: Config
    images: int
    notes: tuple[str, ...]


# The paper's training sets: name, training images and classes (sec. 4.1; for JFT, derived from the steps in Table 3).
_PUBLISHED_DATA = {
    "imagenet": ("ImageNet", 1_281_167, 1000),
    "imagenet21k": ("ImageNet-21k", 14_197_122, 21_843),
    "jft": ("JFT-300M", 303_000_000, 18_291),
    "cifar10": ("CIFAR-10", 50_000, 10),
    "flowers": ("Oxford Flowers-102", 2_040, 102),
    "pets": ("Oxford-IIIT Pets", 3_680, 37),
}


def _published_data(recipe: str) -> tuple[str, int, int] | None:
    """Return the training set of a recipe from the paper: its name and its numbers of images and classes.

    Return None for other recipes.
    """
    return _PUBLISHED_DATA.get(recipe.rpartition("-")[2]) if recipe.startswith("paper-") else None


def job_of(recipe: str | Path, fields: dict[str, Any], images: int | None, classes: int | None) -> PlannedTraining:
    """Resolve a recipe as for a training, but without reading data.

    Args:
        recipe: a TOML file, the name of a bundled recipe, or the name of a model.
        fields: fields that take precedence over those of the recipe.
        images: the number of training images; None uses the size of the recipe's data, if it is known.
        classes: the number of classes; None uses that of the recipe's data if it is known, otherwise that of the named
            model.

    Raises:
        VitkitError: the recipe or model does not exist, or the number of images is not known.
    """
    from vitkit.data.splits import trained_of
    from vitkit.training.adapters import check_patch_dropout
    from vitkit.training.defaults import check_effects, check_network, choose, spare_patches

    base, notes = _fields_of(recipe)
    fields_of_job = overlay(base, unfold(fields))
    named = DATASETS[fields_of_job["data"]] if fields_of_job.get("data") in DATASETS else None
    published = None if fields.get("data") else _published_data(str(recipe))
    if classes is None and named is not None:
        classes = named.classes
    if published is not None:
        title, number, its_classes = published
        if images is None:
            images = number
            notes.append(f"images: the {number:,} of {title}, as in the paper")
        classes = its_classes if classes is None else classes
    first = build(fields_of_job, str(recipe))
    if images is None:
        if named is None or named.splits:
            raise VitkitError(f"{recipe}: the number of training images is unknown: set it with --images")
        if named.per_class:
            images = trained_of(named.per_class, first.split)
            notes.append(f"images: {images:,} of {named.name} to train on, as its classes are divided")
        else:
            images = round(named.images * first.split[0])
            notes.append(f"images: {first.split[0]:.0%} of {named.name}, about {images:,}")
    images = min(images, first.max_images or images)
    known = classes or _classes_of(first)
    settled, reasons = choose(Request(fields_of_job, first), images / known)
    idle = check_effects(settled, fields_of_job, named=fields)
    config = _config_of(settled, known)
    if isinstance(config, NetworkConfig):
        check_network(config, settled)
    elif settled.patch_dropout:
        check_patch_dropout(config)
    settled = spare_patches(settled, fields_of_job, config)
    return PlannedTraining(settled, config, images, (*notes, *reasons, *idle, *_left_out(settled)))


def _fields_of(recipe: str | Path) -> tuple[dict[str, Any], list[str]]:
    name = str(recipe)
    if Path(name).is_file() or name in bundled():
        return load_fields(name), []
    if is_model_name(name) or is_network_name(name):
        return {"model": name, "weights": "none"}, [
            "weights none: with only the name of a model, a training from scratch is planned"
        ]
    if Path(name).is_dir():
        raise VitkitError(f"{name} is a folder: name a recipe, such as {Path(name) / RECIPE}")
    if name.endswith(".toml") or "/" in name:
        return load_fields(name), []  # raises an error if there is no such file
    config_for(name)  # raises an error that suggests similar names
    raise AssertionError(name)


def _classes_of(recipe: Recipe) -> int:
    name = _model_name(recipe)
    return 1000 if name is None else config_for(name).num_classes


def _model_name(recipe: Recipe) -> str | None:
    """Return the name of the recipe's model, or of the model that its published weights belong to; otherwise None."""
    name = recipe.model or recipe.weights.split(".")[0]
    return name if is_model_name(name) else None


def _config_of(recipe: Recipe, classes: int) -> Config:
    """Return the configuration of the model, without downloading weights.

    If the weights are not on this machine, they are assumed to belong to the model that their name contains.
    """
    from vitkit.training.defaults import config_of, look_at_weights, named_plan, plan_of

    if recipe.weights == "none" or (recipe.weights == "auto" and is_network_name(recipe.model)):
        return config_of(recipe, classes)
    if recipe.weights != "auto" and Path(recipe.weights).exists():
        with reporting_to(silent):
            return plan_of(recipe, classes, look_at_weights(recipe))[0]
    name = _model_name(recipe)
    if name is None:
        raise VitkitError(
            f"weights {recipe.weights} are not on this machine, and their model is unknown: set it with --model"
        )
    return named_plan(recipe, name, classes)


def _left_out(recipe: Recipe) -> list[str]:
    """Return a line for each cost of a training that the plan does not include."""
    requested = {
        f"time {recipe.time}: the epochs are planned, not the budget": recipe.time is not None,
        f"folds {recipe.folds}: one of the runs is planned": recipe.folds is not None,
        "find_lr: the short runs are not counted": recipe.find_lr,
        "lp_ft: fitting the head to frozen features first is not counted: a forward pass over the images": recipe.lp_ft
        and recipe.method != "probe",
    }
    return [what for what, is_so in requested.items() if is_so]


def passes(recipe: Recipe, images: int) -> tuple[int, int]:
    """Return the number of images that a training processes in total, and the number of optimiser steps.

    The number of steps is 0 if a head is fitted in closed form.

    Args:
        recipe: the complete recipe.
        images: the number of images in an epoch.
    """
    if recipe.method == "probe":
        return images, 0
    batches = math.ceil(images / recipe.batch_size)
    return images * recipe.epochs, math.ceil(batches / recipe.grad_accum) * recipe.epochs


@cache
def published_training(recipe: str) -> tuple[PlannedTraining, int]:
    """Return a training of the paper, and its FLOPs as `plan` counts them, from a simulated step with one image."""
    from vitkit.experiments.footprint import rehearse_step

    job = job_of(recipe, {}, None, None)
    step = rehearse_step(job.config, job.recipe, 1, precision="bfloat16", on_gpu=True)
    return job, passes(job.recipe, job.images)[0] * step.flops


def tokens_of(recipe: Recipe, config: Config) -> int:
    """Return the number of tokens per training image that pass through the layers; 0 for a network without tokens."""
    if isinstance(config, NetworkConfig):
        return 0
    return config.prefix_tokens + max(1, round(config.patches * (1 - recipe.patch_dropout)))


def teacher_network(recipe: Recipe, config: Config) -> nn.Module | None:
    """Return the recipe's teacher network on the meta device; None if the recipe has no teacher.

    Raises:
        VitkitError: the teacher's architecture is not known without its weights.
    """
    from vitkit.experiments.footprint import without_numbers

    if recipe.teacher is None:
        return None
    from vitkit.training.teacher import torchvision_names
    from vitkit.weights import inspect

    name = recipe.teacher.partition(":")[0]
    model = name.split(".")[0]
    if Path(recipe.teacher).exists():
        return without_numbers(inspect(recipe.teacher).config).eval()
    if name in torchvision_names():
        return without_numbers(NetworkConfig(library="torchvision", name=name)).eval()
    if is_model_name(model):
        return without_numbers(config_for(model, image_size=config.image_size)).eval()
    raise VitkitError(f"teacher {recipe.teacher}: there is neither a file nor a model of this name")


def memories(
    job: PlannedTraining, images: int, devices: int, room: int, precision: str
) -> tuple[Footprint, tuple[DeviceMemory, ...]]:
    """Return the cost of a training step, and the memory of a device for several strategies and checkpointings.

    The first `DeviceMemory` is for the strategy and the checkpointing of the recipe.

    Args:
        job: the training.
        images: the number of images of a batch that each device processes.
        devices: the number of devices.
        room: available memory of a device in bytes.
        precision: float32 or bfloat16.
    """
    from vitkit.experiments.footprint import rehearse_step

    recipe = job.recipe
    teacher = teacher_network(recipe, job.config)
    is_vit = isinstance(job.config, ViTConfig)
    both = () if recipe.method == "probe" or not is_vit else ("none", "all")  # otherwise there is nothing to checkpoint
    ways = tuple(dict.fromkeys((recipe.checkpointing, *both)))

    @cache
    def rehearsed(way: str, count: int) -> Footprint:
        progress("rehearsing a step", ways.index(way), len(ways))
        settled = recipe.replace(checkpointing=way)
        return rehearse_step(job.config, settled, count, precision=precision, on_gpu=True, teacher=teacher)

    sharding: Strategy = "fsdp" if recipe.strategy == "fsdp" else "ddp"
    may_share = is_vit and recipe.method != "lora" and not recipe.ema and not recipe.swa  # as in `check_team`
    others: tuple[Strategy, ...] = ("ddp", "fsdp") if may_share else ("ddp",)
    strategies: tuple[Strategy, ...] = (sharding, *others) if devices > 1 else ("alone",)
    rows = []
    for strategy in dict.fromkeys(strategies):
        for way in ways:
            row = memory_of(rehearsed(way, images), way, strategy, devices=devices, images=images, room=room)
            if not row.fits:

                def peak(count: int, way: str = way, strategy: Strategy = strategy) -> int:
                    step = rehearsed(way, count)
                    return memory_of(step, way, strategy, devices=devices, images=count, room=room).peak

                left = room - (row.peak - row.activations)  # without the memory that does not grow with images
                guess = int(left / (max(row.activations, 1) / images))
                row = replace(row, images=most_that_fit(peak, guess, images, row.peak, room))
            rows.append(row)
    return rehearsed(recipe.checkpointing, images), tuple(rows)


def most_that_fit(peak: Callable[[int], int], guess: int, too_many: int, above: int, room: int) -> int:
    """Return the largest number of images that fits into memory, found with few simulations; 0 if not even one fits.

    The peak memory of a step is a convex, piecewise linear function of the number of images. Therefore linear
    interpolation between a number that fits and a number that does not fit never yields too many images. If
    interpolation hardly narrows the range, the range is halved instead.

    Args:
        peak: function that returns the peak memory in bytes for a number of images.
        guess: the number to try first.
        too_many: a number of images that does not fit.
        above: the peak of `too_many` images.
        room: available memory in bytes.
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
) -> DeviceMemory:
    """Compute the memory of each device from the cost of a step.

    With FSDP2 (`training.distributed`), each device stores its shard of the weights, gradients, moments and averaged
    weights. At any time, the complete weights of two blocks are in memory: those of the current block, and those of
    the next block, which is being gathered. The weights outside the blocks are complete, too. The backward pass adds
    the complete gradients of one block. A teacher is not sharded.

    Args:
        step: the cost of a step on a single device that processes its share of the images.
        checkpointing: the checkpointing that was used in `step`.
        strategy: how the training is distributed.
        devices: the number of devices.
        images: the number of images of a batch that each device processes.
        room: available memory of a device in bytes.
    """
    parts = devices if strategy == "fsdp" else 1
    weights, gradients, optimizer, average = (
        -(-size // parts) for size in (step.weights, step.gradients, step.optimizer, step.average)
    )
    standing = step.weights + step.optimizer + step.average + step.teacher
    peak, exchange = step.peak, 0
    if strategy == "ddp":
        exchange = step.gradients  # the buckets of `GradientSums`, which are kept between steps
        peak = max(peak, standing + step.gradients) + exchange
    if strategy == "fsdp":
        whole = step.gradients / step.weights  # the trained fraction of a block
        exchange = step.around + int((2 + whole) * step.block)
        peak = weights + gradients + optimizer + average + step.teacher + step.moving + exchange
    return DeviceMemory(
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
