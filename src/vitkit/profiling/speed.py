"""Time implementations of a model's forward pass, and measure their numerical drift.

`compare` times contenders in turn, round after round (A B C ... A B C ...). If something slows down the machine for a
while, all contenders are affected. Therefore ratios are computed within each round, and their median is reported.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.model.build import Model, build
from vitkit.model.names import Config
from vitkit.model.network import Network
from vitkit.system.progress import progress

Work = Callable[[], object]
_Stopwatch = Callable[[Work], float]  # runs the work once and returns its seconds


def compare(
    model: Model,
    contenders: Sequence[Contender],
    images: Tensor,
    batch: int,
    rounds: int,
    device: torch.device | None = None,
) -> list[Speed]:
    """Time the contenders, which have different keys, in turn.

    The float32 model is on the device of the images (B, C, height, width), float32; the contenders compute on `device`,
    by default the same. B is a multiple of `batch`. Times are measured on the first batch, and drift from the model's
    logits on all images.
    """
    device = device or images.device
    reference = in_batches(model, images, batch)
    drifts = {
        contender.key: drift_of(in_batches(contender.run, images, batch), reference)
        for contender in contenders
        if contender.same_weights
    }
    first_batch = images[:batch]
    runs = {contender.key: torch.inference_mode()(partial(contender.run, first_batch)) for contender in contenders}
    times = interleave(runs, rounds, stopwatch=stopwatch_for(device))
    return [
        Speed(contender.name, contender.precision, batch, times[contender.key], drifts.get(contender.key))
        for contender in contenders
    ]


@dataclass(frozen=True)
class Contender:
    """One implementation of the computation of logits."""

    name: str  # for example `vitkit openvino`
    precision: str  # of the layers, `float32` or `bfloat16`
    run: Callable[[Tensor], Tensor]  # from images (B, C, height, width), float32, to logits (B, K)
    same_weights: bool = True  # whether it uses the model's weights, so that its logits can be compared

    @property
    def key(self) -> str:
        return f"{self.name} {self.precision}"


@dataclass(frozen=True)
class Speed:
    """The speed of one contender at one batch size."""

    name: str
    precision: str
    batch: int
    timing: Timing  # per batch
    drift: Drift | None  # from the model's logits; None if the contender has other weights

    @property
    def images_per_s(self) -> Quartiles:
        """The quartiles, over rounds, of the images per second."""
        return self.timing.rate(self.batch)


@dataclass(frozen=True)
class Drift:
    """The difference between a contender's logits and the model's logits in float32."""

    largest: float  # absolute difference over all images and classes
    agreement: float  # the fraction of images with the same most probable class, in [0, 1]
    images: int


def drift_of(logits: Tensor, reference: Tensor) -> Drift:
    """Measure the drift of logits (B, K) from reference logits (B, K)."""
    logits, reference = logits.float().cpu(), reference.float().cpu()
    same = (logits.argmax(dim=1) == reference.argmax(dim=1)).float().mean()
    return Drift((logits - reference).abs().max().item(), same.item(), len(logits))


@torch.inference_mode()
def in_batches(run: Callable[[Tensor], Tensor], images: Tensor, batch: int) -> Tensor:
    """Compute logits (B, K) of images (B, C, height, width) in batches; B is a multiple of the batch size."""
    return torch.cat([run(part).float() for part in torch.split(images, batch)])


def random_model(config: Config, seed: int = 0) -> Model:
    """Create a model with random weights in evaluation mode.

    The head of a new model is initialised with zeros. Here it gets random weights, too, so that the logits are about as
    large as those of a trained model.
    """
    torch.manual_seed(seed)
    model = build(config).eval()
    if isinstance(model, Network):
        return model  # its library initialises the head randomly
    for head in (model.head, model.head_dist):
        if head is not None:
            torch.nn.init.normal_(head.weight, std=model.config.feature_size**-0.5)
    return model


def row(speed: Speed, references: Mapping[str, Speed | None]) -> dict[str, Any]:
    """Return the results of a contender as plain values, for a table or JSON.

    `references` maps the name of each further column to another contender's result. The column contains the median
    speedup over that contender.
    """
    rate, drift = speed.images_per_s, speed.drift
    values: dict[str, Any] = {
        "name": speed.name,
        "precision": speed.precision,
        "batch": speed.batch,
        "images_per_s": _round(rate.median),
        "images_per_s_q1": _round(rate.low),
        "images_per_s_q3": _round(rate.high),
        "ms_per_batch": _round(1e3 * speed.timing.quartiles.median),
    }
    for name, other in references.items():
        values[name] = None if other is None else _round(speed.timing.speedup_over(other.timing).median)
    if drift is None:
        values |= dict.fromkeys(("largest_difference", "same_top1", "compared_images"))
    else:
        values["largest_difference"] = float(f"{drift.largest:.2e}")
        values["same_top1"] = _round(drift.agreement)
        values["compared_images"] = drift.images
    values["rounds"] = len(speed.timing.seconds)
    return values


def _round(value: float) -> float:
    return float(f"{value:.4g}")  # times are not more precise


def open_backends(
    model: Model, requested: Sequence[tuple[str, str]], images: Tensor, device: str = "auto"
) -> tuple[list[Contender], dict[str, str]]:
    """Open the requested pairs of backend and precision that work on this machine.

    Each backend computes the images (B, C, height, width) once.

    Returns:
        The contenders, in the requested order, and the reasons why others do not work, by name, such as `onnx float32`.
    """
    from vitkit.inference.backends import open_runner

    contenders: dict[str, Contender] = {}
    missing: dict[str, str] = {}
    for done, (backend, precision) in enumerate(requested):
        progress(f"preparing {backend} {precision}", done, len(requested))
        try:
            # If no number of images is given, eager float32 is the model itself.
            runner = open_runner(model, backend, precision, images=None, device=device)
            runner(images)
        except (VitkitError, ImportError) as error:
            missing[f"{backend} {precision}"] = str(error)
            continue
        contender = Contender(f"vitkit {runner.backend}", runner.precision, runner)
        contenders.setdefault(contender.key, contender)
    return list(contenders.values()), missing


def wall_seconds(work: Work) -> float:
    """Return the wall-clock seconds that the work takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _cuda_seconds(work: Work) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def stopwatch_for(device: torch.device) -> _Stopwatch:
    """Return the function that times work on this device."""
    return _cuda_seconds if device.type == "cuda" else wall_seconds


def interleave(
    works: Mapping[str, Work],
    rounds: int,
    *,
    stopwatch: _Stopwatch = wall_seconds,
    min_seconds: float = 0.05,
    max_seconds: float = math.inf,
) -> dict[str, Timing]:
    """Time each piece of work once per round, in the order of `works`.

    Before the first round, each piece is run twice, so that kernels are chosen and compiled. In each round, a piece
    that takes less than a second is first run once without timing, because the previous piece has filled the caches,
    and its threads may keep spinning for a tenth of a second. A piece that takes less than `min_seconds` is repeated,
    and the mean time is recorded. After `max_seconds` of rounds, no other round begins.
    """
    repeats: dict[str, int] = {}
    needs_warm_up: dict[str, bool] = {}
    for name, work in works.items():
        stopwatch(work)
        took = stopwatch(work)
        repeats[name] = max(math.ceil(min_seconds / max(took, 1e-9)), 1)
        needs_warm_up[name] = took < 1.0
    seconds: dict[str, list[float]] = {name: [] for name in works}
    end = time.monotonic() + max_seconds
    for done in range(rounds):
        if done and time.monotonic() >= end:
            break
        for name, work in works.items():
            progress(f"timing {name}", done, rounds)
            if needs_warm_up[name]:
                work()

            def repeat(work: Work = work, times: int = repeats[name]) -> None:
                for _ in range(times):
                    work()

            seconds[name].append(stopwatch(repeat) / repeats[name])
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


@dataclass(frozen=True)
class Timing:
    """The seconds that one piece of work took, one value per round."""

    seconds: tuple[float, ...]

    @property
    def quartiles(self) -> Quartiles:
        """The quartiles of the seconds."""
        return Quartiles.of(self.seconds)

    def rate(self, items: int) -> Quartiles:
        """Return the quartiles of items per second, if the work processes `items` items."""
        return Quartiles.of(tuple(items / seconds for seconds in self.seconds))

    def speedup_over(self, other: Timing) -> Quartiles:
        """Return the quartiles, over rounds, of the speedup over another piece of work; 2 means half of its time."""
        return Quartiles.of(tuple(b / a for a, b in zip(self.seconds, other.seconds, strict=True)))


@dataclass(frozen=True)
class Quartiles:
    """The median of some values, and their lower and upper quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: tuple[float, ...]) -> Quartiles:
        """Compute the quartiles with linear interpolation, as numpy does; for a single value, all three are equal."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median=median, low=low, high=high)
