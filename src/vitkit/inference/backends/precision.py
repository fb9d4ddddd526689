"""What the hardware computes fastest in."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from vitkit.system.devices import choose_device

_PROCESSOR = Path("/proc/cpuinfo")  # of Linux: tells without PyTorch what PyTorch would


def best_precision(device: str = "auto") -> str:
    """`bfloat16` where the hardware multiplies such numbers, else `float32`.

    Args:
        device: that computes, as torch calls it; `auto` is what `choose_device` takes.
    """
    import torch

    kind = (choose_device() if device == "auto" else device).partition(":")[0]
    if kind == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    return processor_precision() if kind == "cpu" else "float32"


def processor_precision() -> str:
    """The same of the processor alone."""
    capabilities = _capabilities()
    has_bfloat16 = any(name in capabilities for name in ("amx_bf16", "avx512_bf16"))
    return "bfloat16" if has_bfloat16 else "float32"


def _capabilities() -> Collection[str]:
    try:
        with _PROCESSOR.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, flags = line.partition(":")
                if name.strip() in ("flags", "Features"):
                    return flags.split()
    except OSError:
        pass  # another system
    import torch

    found: dict[str, Any] = dict(getattr(torch.cpu, "get_capabilities", dict)())
    return [name for name, is_there in found.items() if is_there]
