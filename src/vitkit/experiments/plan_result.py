"""What a plan says, and how it is told."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from vitkit.profiling.accelerators import Accelerator
from vitkit.training.recipe import Recipe
from vitkit.verbs.result import Result

Strategy = Literal["alone", "ddp", "fsdp"]


@dataclass(frozen=True)
class Memory:
    """What a device holds in training, in bytes.

    `peak` is less than the sum of the parts, because activations go while gradients come. It is of tensors: what a
    GPU's driver, its libraries' workspaces and the gaps between its allocator's blocks take comes on top.

    Attributes:
        checkpointing: as in a recipe.
        strategy: alone on one device, a whole model on each (ddp), or a part of it (fsdp).
        weights, gradients, optimizer, average, teacher: as in `Footprint`, the part that is on one device.
        activations: what a forward pass leaves for the backward pass.
        exchange: what is there for the other devices' sake: all gradients in a row (ddp), or whole blocks (fsdp).
        peak: the most at any moment of a step.
        fits: whether the accelerator has as much.
        images: the most that fit at a time, by rehearsal; at most those of a batch. The loop computes a batch that does
            not fit in such pieces.
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
    """What a training will take. A multiply-accumulate is two FLOPs; attention's products count.

    Attributes:
        name: the recipe or model, as it was asked for.
        recipe: with everything settled.
        classes: of the data.
        parameters, trained: of the model, and those of them that learn.
        images: in an epoch; images_seen: in the whole training.
        steps: of the optimiser; 0 where a head is fitted at once.
        batch_of_device: images that one device computes at a time, before any is split for want of memory.
        tokens_per_image, tokens: that go through the layers in training; 0 of a network that has none.
        forward_flops: of an image's forward pass, with a teacher's.
        flops_per_image: of a training image, forward and backward, with what checkpointing computes again.
        flops: of the whole training's steps.
        accelerator, devices, precision: what computes, how many of them, in what.
        utilisation: the part of the accelerator's peak that is reached.
        images_per_second: of all devices together.
        seconds: of the whole training's steps.
        decoding_cores: CPU cores that have to prepare images meanwhile, at `decode_rate` images a second each.
        price: of a device hour; None: not stated.
        cost: of the device hours.
        memory: of a device, the recipe's own way first.
        notes: what was assumed or is left out.
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
    memory: tuple[Memory, ...]
    notes: tuple[str, ...]

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
        """Of `seconds`."""
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

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; what is computed from others is among them."""
        computed = ("tokens", "flops", "images_per_second", "seconds", "days", "device_hours", "decoding_cores", "cost")
        return asdict(self) | {name: getattr(self, name) for name in computed}

    def lines(self) -> list[str]:
        """Size, amount, time, and a table of memory."""
        recipe = self.recipe
        learning = "all trained" if self.trained == self.parameters else f"{self.trained:,} trained"
        batch, own = recipe.batch_size * recipe.grad_accum, self.accelerator
        steps = f"{self.steps:,} steps of {batch:,}" if self.steps else "no steps, a head is fitted to frozen features"
        size = f"{self.parameters:,} parameters, {learning}; method {recipe.method}, {self.classes:,} classes"
        amount = f"{recipe.epochs:,} epochs of {self.images:,} images: {steps}"
        tokens = f"; {self.tokens:,} tokens, {self.tokens_per_image} an image" if self.tokens else ""
        part = f"{self.flops_per_image / 1e9:,.3f} G a training image, {self.forward_flops / 1e9:,.3f} G forward"
        found = [
            f"{self.name}: {size}",
            f"  data      {amount}{tokens}",
            f"  FLOPs     {self.flops:.4g}: {part}",
            *self._time_lines(),
            "",
            f"memory of a device in GiB (it has {own.memory / 2**30:.1f}), {self.batch_of_device:,} images at a time",
            _HEADING,
            *(_memory_line(row) for row in self.memory),
        ]
        return found + (["", *(f"note: {note}" for note in self.notes)] if self.notes else [])

    def _time_lines(self) -> list[str]:
        own, peak = self.accelerator, self.accelerator.peak(self.precision) / 1e12
        used = f"{self.utilisation:.0%} of {peak:g} TFLOP/s in {self.precision}"
        cost = "" if self.cost is None else f"; cost {self.cost:,.2f} at {self.price:g} an hour"
        cores = f"{self.decoding_cores:,.1f} cores that prepare {self.decode_rate:g} each"
        return [
            f"  on        {self.devices} x {own.name} ({own.what}; {own.source}), {used}",
            f"  time      {_duration(self.seconds)}; {_hours(self.device_hours)} device hours{cost}",
            f"  feeding   {self.images_per_second:,.0f} images a second: {cores}",
        ]


_HEADING = (
    "checkpointing  devices   weights  gradients  optimiser  activations  exchange      peak  fits  images that fit"
)


def _memory_line(row: Memory) -> str:
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
