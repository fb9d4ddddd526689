"""Ways to compute one model's logits, timed in turn, each beside its drift and the ceiling of its precision."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.model.build import Model, build
from vitkit.model.network import Network
from vitkit.model.network_config import Config
from vitkit.profiling.roofline import Ceiling
from vitkit.profiling.timing import Quartiles, Timing, Work, interleave, stopwatch_for
from vitkit.system.progress import Progress


@dataclass(frozen=True)
class Contender:
    """One way to compute logits.

    Attributes:
        name: what computes, e.g. `vitkit openvino`.
        precision: `float32` or `bfloat16`, in which the layers compute.
        run: (B, C, height, width) float32 -> (B, K) logits.
        same_weights: whether it computes the model's own weights, so that its logits can be compared.
    """

    name: str
    precision: str
    run: Callable[[Tensor], Tensor]
    same_weights: bool = True

    @property
    def key(self) -> str:
        """Tells it from the others."""
        return f"{self.name} {self.precision}"


@dataclass(frozen=True)
class Drift:
    """How far logits are from the model's own in float32.

    Attributes:
        largest: of the absolute differences, over all images and classes.
        agreement: share of the images with the same first class, in [0, 1].
        images: how many there were.
    """

    largest: float
    agreement: float
    images: int


@dataclass(frozen=True)
class Speed:
    """What one contender reached at one batch size.

    Attributes:
        name, precision, batch: who, and with how many images at a time.
        timing: seconds of a batch, by round.
        ceiling: seconds of the batch's matrix products alone in this precision, in the same rounds.
        gflops_ceiling: 10^9 operations a second of the ceiling; a multiply-accumulate is two.
        drift: None where the weights are not the model's.
    """

    name: str
    precision: str
    batch: int
    timing: Timing
    ceiling: Timing
    gflops_ceiling: float
    drift: Drift | None

    @property
    def images_per_s(self) -> Quartiles:
        """Images a second."""
        return self.timing.rate(self.batch)

    @property
    def share_of_ceiling(self) -> float:
        """1 for a model that does its products and nothing else, as fast as torch does them."""
        return self.timing.times_as_fast_as(self.ceiling).median


def drift_of(logits: Tensor, reference: Tensor) -> Drift:
    """Between two (B, K) tensors of logits."""
    logits, reference = logits.float().cpu(), reference.float().cpu()
    same = (logits.argmax(dim=1) == reference.argmax(dim=1)).float().mean()
    return Drift((logits - reference).abs().max().item(), same.item(), len(logits))


def random_model(config: Config, seed: int = 0) -> Model:
    """Random weights in eval mode; a new head is zero, so it is drawn too, for logits of a trained model's size."""
    torch.manual_seed(seed)
    model = build(config).eval()
    if isinstance(model, Network):
        return model  # whose head its library draws
    for head in (model.head, model.head_dist):
        if head is not None:
            torch.nn.init.normal_(head.weight, std=model.config.feature_size**-0.5)
    return model


@torch.inference_mode()
def in_batches(run: Callable[[Tensor], Tensor], images: Tensor, batch: int) -> Tensor:
    """(B, C, height, width) -> (B, K), computed so many at a time; B is a multiple of that."""
    return torch.cat([run(part).float() for part in torch.split(images, batch)])


def compare(
    model: Model,
    contenders: Sequence[Contender],
    images: Tensor,
    batch: int,
    rounds: int,
    progress: Progress | None = None,
    device: torch.device | None = None,
) -> list[Speed]:
    """Time the contenders in turn, and the ceilings of their precisions with them.

    Args:
        model: in float32, on the images' device; its logits are what drift is measured from.
        contenders: with keys that differ.
        images: (B, C, height, width) float32, B a multiple of `batch`. The first batch is timed, all are compared.
        batch: images at a time.
        rounds: how often each is timed.
        progress: is told what is being timed.
        device: where the contenders compute; None for where the images are.
    """
    device = device or images.device
    first, reference = images[:batch], in_batches(model, images, batch)
    drifts = {
        own.key: drift_of(in_batches(own.run, images, batch), reference) for own in contenders if own.same_weights
    }
    precisions = sorted({own.precision for own in contenders})
    ceilings = {own: Ceiling(model.config, batch, own, device) for own in precisions}
    works: dict[str, Work] = {own.key: _work(own, first) for own in contenders}
    works |= {_ceiling_key(own): ceiling for own, ceiling in ceilings.items()}
    times = interleave(works, rounds, stopwatch=stopwatch_for(device), progress=progress)

    def speed(own: Contender) -> Speed:
        top, macs = times[_ceiling_key(own.precision)], ceilings[own.precision].macs
        rate = 2e-9 * macs / top.quartiles.median
        return Speed(own.name, own.precision, batch, times[own.key], top, rate, drifts.get(own.key))

    return [speed(own) for own in contenders]


def _ceiling_key(precision: str) -> str:
    return f"the ceiling in {precision}"


def _work(contender: Contender, images: Tensor) -> Work:
    @torch.inference_mode()
    def work() -> Tensor:
        return contender.run(images)

    return work


# --- Our own backends ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Opened:
    """Backends that are ready, and why others are not.

    Attributes:
        contenders: in the order asked for.
        memory: bytes that the process grew by while each was opened and first used, by key; None where unknown.
        missing: why a backend is left out, by `backend precision`.
    """

    contenders: list[Contender]
    memory: Mapping[str, int | None]
    missing: Mapping[str, str]


def open_backends(
    model: Model,
    wanted: Sequence[tuple[str, str]],
    images: Tensor,
    progress: Progress | None = None,
    device: str = "auto",
) -> Opened:
    """Those (backend, precision) that work here; each computes `images` (B, C, height, width) once."""
    from vitkit.inference.backends import open_runner

    contenders: list[Contender] = []
    memory: dict[str, int | None] = {}
    missing: dict[str, str] = {}
    for done, (backend, precision) in enumerate(wanted):
        if progress is not None:
            progress(f"preparing {backend} {precision}", done, len(wanted))
        before = resident()
        try:
            runner = open_runner(model, backend, precision, images=None, device=device)  # eager float32: itself
            runner(images)
        except (VitkitError, ImportError) as error:
            missing[f"{backend} {precision}"] = str(error)
            continue
        after, contender = resident(), Contender(f"vitkit {runner.backend}", runner.precision, runner)
        if contender.key not in memory:
            contenders.append(contender)
            memory[contender.key] = None if before is None or after is None else max(after - before, 0)
    return Opened(contenders, memory, missing)


def resident() -> int | None:
    """Bytes of memory that this process holds now; None where the system does not say."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    return None


# --- Rows for tables ----------------------------------------------------------------------------------------


def row(speed: Speed, ratios: Mapping[str, Speed | None]) -> dict[str, Any]:
    """Plain values. For each name in `ratios` a column: the median of how many times as fast this is as that."""
    rate, drift = speed.images_per_s, speed.drift
    found: dict[str, Any] = {
        "name": speed.name,
        "precision": speed.precision,
        "batch": speed.batch,
        "images_per_s": _round(rate.median),
        "images_per_s_q1": _round(rate.low),
        "images_per_s_q3": _round(rate.high),
        "ms_per_batch": _round(1e3 * speed.timing.quartiles.median),
    }
    for name, other in ratios.items():
        found[name] = None if other is None else _round(speed.timing.times_as_fast_as(other.timing).median)
    return found | {
        "share_of_ceiling": _round(speed.share_of_ceiling),
        "ceiling_gflops": _round(speed.gflops_ceiling),
        "largest_difference": None if drift is None else float(f"{drift.largest:.2e}"),
        "same_top1": None if drift is None else _round(drift.agreement),
        "compared_images": None if drift is None else drift.images,
        "rounds": len(speed.timing.seconds),
    }


def _round(value: float) -> float:
    """Four digits say more than such a measurement knows."""
    return float(f"{value:.4g}")
