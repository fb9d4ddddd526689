"""Where models compute: what can be asked for, and what is here."""

from __future__ import annotations

from typing import Literal

from vitkit.errors import VitkitError

DeviceName = Literal["auto", "cpu", "cuda", "mps"]


def choose_device(device: str = "auto") -> str:
    """`cpu`, `cuda` or `mps`; `auto` is a CUDA GPU if there is one, else the CPU.

    Raises:
        VitkitError: there is no such device here.
    """
    found = found_devices()
    if device == "auto":
        return "cuda" if "cuda" in found else "cpu"
    if device not in found:
        raise VitkitError(f"--device {device}: there is none here; found: {', '.join(found)}")
    return device


def found_devices() -> tuple[str, ...]:
    """The devices of this machine that PyTorch can compute on."""
    import torch

    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return tuple(name for name, is_there in there.items() if is_there)
