"""The accelerators for which training can be planned, with their peak speeds and the sources of these numbers."""

from __future__ import annotations

from dataclasses import dataclass

from vitkit.errors import VitkitError

_TERA, _GIGA, _GIBI = 10**12, 10**9, 2**30


@dataclass(frozen=True)
class Accelerator:
    """The peak speed of one device in dense matrix products, and its memory.

    Attributes:
        name: the name that users type.
        bfloat16, float32: peak speed in FLOP/s; None if the device does not support the precision or its manufacturer
            publishes no number.
        memory: size of the memory in bytes.
        what: the full name of the product, and what counts as one device.
        source: the manufacturer's page or document that states these numbers.
    """

    name: str
    bfloat16: float | None
    float32: float | None
    memory: int
    what: str
    source: str

    def peak(self, precision: str) -> float:
        """Return the peak speed in FLOP/s for the precision `float32` or `bfloat16`.

        Raises:
            VitkitError: no peak speed is known for this precision.
        """
        peak = {"bfloat16": self.bfloat16, "float32": self.float32}.get(precision)
        if peak is None:
            other = "float32" if self.bfloat16 is None else "bfloat16"
            raise VitkitError(f"{self.name}: the peak speed in {precision} is unknown; use --precision {other}")
        return peak


_DATASHEET = "https://www.nvidia.com/en-us/data-center"
# float32 is the figure without tensor cores: torch uses TF32 only on request, and vitkit does not request it.
# fmt: off
_ENTRIES = (
    Accelerator("h200", 989 * _TERA, 67 * _TERA, 141 * _GIGA, "NVIDIA H200 SXM, dense", f"{_DATASHEET}/h200/"),
    Accelerator("h100", 989 * _TERA, 67 * _TERA, 80 * _GIGA, "NVIDIA H100 SXM, dense", f"{_DATASHEET}/h100/"),
    Accelerator("a100", 312 * _TERA, 19.5 * _TERA, 80 * _GIGA, "NVIDIA A100 80 GB, dense", f"{_DATASHEET}/a100/"),
    Accelerator("a100-40gb", 312 * _TERA, 19.5 * _TERA, 40 * _GIGA, "NVIDIA A100 40 GB, dense", f"{_DATASHEET}/a100/"),
    Accelerator("v100", None, 15.7 * _TERA, 32 * _GIGA, "NVIDIA V100 SXM2 32 GB", f"{_DATASHEET}/v100/"),
    Accelerator("tpu-v3", 61.5 * _TERA, None, 16 * _GIBI, "one core of a TPU v3, half a chip of 123 TFLOP/s and 32 GiB",
                "https://cloud.google.com/tpu/docs/v3"),
)
# fmt: on
ACCELERATORS = {entry.name: entry for entry in _ENTRIES}
"""Accelerators by name."""


def accelerator_names() -> tuple[str, ...]:
    """Return the names of all accelerators."""
    return tuple(ACCELERATORS)


def find_accelerator(name: str) -> Accelerator:
    """Return the accelerator with this name.

    Raises:
        VitkitError: there is no such accelerator.
    """
    if name not in ACCELERATORS:
        raise VitkitError(f"--accelerator {name!r} is none of {', '.join(ACCELERATORS)}")
    return ACCELERATORS[name]


UTILISATION = 0.4  # the assumed fraction of an accelerator's peak


def core_days(flops: float) -> float:
    """Return the days that a training of `flops` takes on one core of a TPUv3, the unit of the paper's Table 2."""
    return flops / (UTILISATION * find_accelerator("tpu-v3").peak("bfloat16")) / 86_400


def register(entry: Accelerator) -> None:
    """Add an accelerator.

    Raises:
        ValueError: an accelerator with this name exists already.
    """
    if entry.name in ACCELERATORS:
        raise ValueError(f"there is an accelerator {entry.name!r} already")
    ACCELERATORS[entry.name] = entry
